// The bundled model, in both of its containers.

#include <gtest/gtest.h>

#include "tqcache/file.h"
#include "tqcache/tensors/gguf.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::tensors {
namespace demo_model_test {

using Shape = std::vector<std::uint64_t>;

const std::string kFolder = TQCACHE_DEMO_MODEL;

TEST(DemoModel, OpensAsGguf) {
  const auto file = MappedFile::open(kFolder + "/tqcache-demo-17m.q8_0.gguf");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto gguf = read_gguf(file->bytes());
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_EQ(gguf->tensors.size(), 90u);
  EXPECT_EQ(gguf->metadata.size(), 25u);
  EXPECT_EQ(*gguf->get_string("general.architecture"), "qwen3");
  EXPECT_EQ(*gguf->get_int("qwen3.embedding_length"), 384);
  EXPECT_EQ((*gguf->get_strings("tokenizer.ggml.tokens"))->size(), 8192u);
  EXPECT_EQ((*gguf->get_ints("tokenizer.ggml.token_type"))->size(), 8192u);
  EXPECT_FALSE(*gguf->get_bool("tokenizer.ggml.add_bos_token"));

  const TensorView& embedding = gguf->tensors.at("token_embd.weight");
  EXPECT_EQ(embedding.type, TensorType::kQ8_0);
  EXPECT_EQ(embedding.shape, (Shape{8192, 384}));
  EXPECT_EQ(embedding.bytes.size(), 8192u * 384 / 32 * 34);
  EXPECT_EQ(gguf->tensors.at("output_norm.weight").type, TensorType::kF32);
  EXPECT_EQ(gguf->tensors.at("output_norm.weight").shape, (Shape{384}));
  EXPECT_EQ(gguf->tensors.at("blk.0.ffn_down.weight").shape, (Shape{384, 1024}));
}

TEST(DemoModel, OpensAsSafetensors) {
  const auto file = MappedFile::open(kFolder + "/hf/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto model = read_safetensors(file->bytes());
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->tensors.size(), 90u);
  EXPECT_EQ(model->metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  for (const auto& [name, view] : model->tensors) EXPECT_EQ(view.type, TensorType::kBF16) << name;
  EXPECT_EQ(model->tensors.at("model.embed_tokens.weight").shape, (Shape{8192, 384}));
  EXPECT_EQ(model->tensors.at("model.layers.0.mlp.down_proj.weight").shape, (Shape{384, 1024}));
}

}  // namespace demo_model_test
}  // namespace tqcache::tensors
