#include "tqcache/model/loading/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "model/tiny_model.h"
#include "support/matchers.h"
#include "tqcache/model/loading/model_files.h"

namespace tqcache::model {
namespace weights_test {

using testing::HasSubstr;

// All tensors of the tiny model, one of which a test may spoil.
class ReadWeights : public testing::Test {
 protected:
  tensors::TensorView& tensor(const std::string& name) { return set_.tensors.at(name); }
  void expect_refused(ErrorCode code, const std::string& message) {
    EXPECT_THAT(read_weights(set_.tensors, config_), test::FailsWith(code, HasSubstr(message)));
  }

  ModelConfig config_ = test::tiny_config();
  test::TensorSet set_ = test::random_tensors(config_, Dtype::kF16);
};

TEST_F(ReadWeights, FindsEveryTensor) {
  const Result<Weights> weights = read_weights(set_.tensors, config_);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  ASSERT_EQ(weights->layers.size(), 2u);
  EXPECT_EQ(weights->layers[1].ffn.down.n_rows, config_.d_model);
  EXPECT_EQ(weights->layers[1].ffn.down.n_cols, config_.d_ff);
  EXPECT_EQ(weights->layers[1].ffn.down.bytes.data(), tensor("blk.1.ffn_down.weight").bytes.data());
  EXPECT_EQ(weights->layers[0].attention.k_norm.size(), 32u);
  EXPECT_EQ(weights->output_norm.size(), 64u);
}

TEST_F(ReadWeights, MapsEveryTensorToAMatrixOfItsOwn) {
  const Result<Weights> weights = read_weights(set_.tensors, config_);
  ASSERT_TRUE(weights.ok());
  std::set<const std::byte*> seen = {weights->token_embedding.bytes.data()};
  for (const LayerWeights& layer : weights->layers) {
    for (const Matrix* matrix :
         {&layer.attention.q, &layer.attention.k, &layer.attention.v, &layer.attention.output,
          &layer.ffn.gate, &layer.ffn.up, &layer.ffn.down}) {
      EXPECT_TRUE(seen.insert(matrix->bytes.data()).second);
    }
  }
}

TEST_F(ReadWeights, TakesTheEmbeddingAsOutputOnlyWhenTied) {
  EXPECT_EQ(read_weights(set_.tensors, config_)->output.bytes.data(),
            tensor("token_embd.weight").bytes.data());
  config_.tied_embeddings = false;
  expect_refused(ErrorCode::kCorrupt, "tensor \"output.weight\": missing");
  set_ = test::random_tensors(config_, Dtype::kF16);
  EXPECT_EQ(read_weights(set_.tensors, config_)->output.bytes.data(),
            tensor("output.weight").bytes.data());
}

TEST_F(ReadWeights, WidensNorms) {
  const std::vector<float> values(64, 1.5f);
  set_.add("output_norm.weight", {64}, Dtype::kBF16, values);
  const Result<Weights> weights = read_weights(set_.tensors, config_);
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(weights->output_norm, AlignedFloats(64, 1.5f));
}

TEST_F(ReadWeights, RefusesAMissingTensor) {
  set_.tensors.erase("blk.1.attn_k.weight");
  expect_refused(ErrorCode::kCorrupt, "tensor \"blk.1.attn_k.weight\": missing");
}

TEST_F(ReadWeights, RefusesATransposedMatrix) {
  tensor("blk.0.ffn_up.weight").shape = {64, 96};
  expect_refused(ErrorCode::kCorrupt,
                 "\"blk.0.ffn_up.weight\": shape [64, 96] where the configuration wants [96, 64]");
}

TEST_F(ReadWeights, RefusesANormOfTwoDimensions) {
  tensor("blk.0.ffn_norm.weight").shape = {1, 64};
  expect_refused(ErrorCode::kCorrupt, "blk.0.ffn_norm.weight");
}

TEST_F(ReadWeights, RefusesATypeThatItCannotWiden) {
  tensor("blk.0.attn_v.weight").type = tensors::TensorType::kOther;
  tensor("blk.0.attn_v.weight").type_name = "IQ2_S";
  expect_refused(ErrorCode::kUnsupported,
                 "\"blk.0.attn_v.weight\": type IQ2_S in rows of 64 values (readable: F32, F16");
}

TEST_F(ReadWeights, RefusesRowsThatAreNoWholeBlocks) {
  config_.d_ff = 100;
  set_ = test::random_tensors(config_, Dtype::kF16);
  tensor("blk.0.ffn_down.weight").type = tensors::TensorType::kQ8_0;
  tensor("blk.0.ffn_down.weight").type_name = "Q8_0";
  expect_refused(ErrorCode::kUnsupported,
                 "\"blk.0.ffn_down.weight\": type Q8_0 in rows of 100 values");
  config_.d_ff = 128;
  set_ = test::random_tensors(config_, Dtype::kF16);
  tensor("blk.0.ffn_down.weight").type = tensors::TensorType::kQ4_K;
  expect_refused(ErrorCode::kUnsupported, "blk.0.ffn_down.weight");
}

TEST_F(ReadWeights, RefusesBytesThatDoNotMatchTheShape) {
  auto& bytes = tensor("blk.0.attn_q.weight").bytes;
  bytes = bytes.first(bytes.size() - 1);
  expect_refused(ErrorCode::kCorrupt, "blk.0.attn_q.weight");
}

TEST(GgufName, KnowsEveryTensorOfQwen3) {
  EXPECT_EQ(gguf_name("model.embed_tokens.weight"), "token_embd.weight");
  EXPECT_EQ(gguf_name("model.norm.weight"), "output_norm.weight");
  EXPECT_EQ(gguf_name("lm_head.weight"), "output.weight");
  EXPECT_EQ(gguf_name("model.layers.0.input_layernorm.weight"), "blk.0.attn_norm.weight");
  EXPECT_EQ(gguf_name("model.layers.12.self_attn.q_proj.weight"), "blk.12.attn_q.weight");
  EXPECT_EQ(gguf_name("model.layers.3.self_attn.k_norm.weight"), "blk.3.attn_k_norm.weight");
  EXPECT_EQ(gguf_name("model.layers.3.self_attn.o_proj.weight"), "blk.3.attn_output.weight");
  EXPECT_EQ(gguf_name("model.layers.3.post_attention_layernorm.weight"), "blk.3.ffn_norm.weight");
  EXPECT_EQ(gguf_name("model.layers.3.mlp.down_proj.weight"), "blk.3.ffn_down.weight");
}

TEST(GgufName, KnowsTensorsOfOtherFamilies) {
  constexpr std::string_view kPost = "post_attention_norm.weight";
  EXPECT_EQ(gguf_name("model.layers.3.post_attention_layernorm.weight", kPost),
            "blk.3.post_attention_norm.weight");
  EXPECT_EQ(gguf_name("model.layers.3.pre_feedforward_layernorm.weight", kPost),
            "blk.3.ffn_norm.weight");
  EXPECT_EQ(gguf_name("model.layers.3.self_attn.q_proj.bias"), "blk.3.attn_q.bias");
  EXPECT_EQ(gguf_name("model.layers.3.mlp.experts.12.up_proj.weight"), "blk.3.ffn_up.12.weight");
  EXPECT_EQ(gguf_name("model.layers.3.mlp.experts.gate_up_proj"), "blk.3.ffn_gate_up_exps.weight");
  EXPECT_EQ(gguf_name("model.layers.3.linear_attn.A_log"), "blk.3.ssm_a");
  EXPECT_EQ(gguf_name("model.language_model.layers.3.linear_attn.dt_bias"), "blk.3.ssm_dt.bias");
  EXPECT_EQ(gguf_name("language_model.model.norm.weight"), "output_norm.weight");
  EXPECT_EQ(gguf_name("language_model.lm_head.weight"), "output.weight");
}

TEST(GgufName, KnowsWhatIsNoPartOfALanguageModel) {
  for (const char* name :
       {"mtp.fc.weight", "model.visual.blocks.0.attn.qkv.weight", "vision_tower.patch.weight",
        "model.multi_modal_projector.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"}) {
    EXPECT_TRUE(is_unused_hf_tensor(name)) << name;
  }
  EXPECT_FALSE(is_unused_hf_tensor("model.layers.0.mlp.up_proj.weight"));
}

TEST(GgufName, IsEmptyForAnythingElse) {
  EXPECT_EQ(gguf_name(""), "");
  EXPECT_EQ(gguf_name("model.layers."), "");
  EXPECT_EQ(gguf_name("model.layers..mlp.down_proj.weight"), "");
  EXPECT_EQ(gguf_name("model.layers.x.mlp.down_proj.weight"), "");
  EXPECT_EQ(gguf_name("model.layers.3"), "");
  EXPECT_EQ(gguf_name("model.layers.3.self_attn.q_proj.scale"), "");
  EXPECT_EQ(gguf_name("model.layers.3.mlp.experts.x.up_proj.weight"), "");
  EXPECT_EQ(gguf_name("model.layers.3.mlp.experts.5.bias"), "");
  EXPECT_EQ(gguf_name("vision.layers.3.mlp.down_proj.weight"), "");
  EXPECT_EQ(gguf_name("token_embd.weight"), "");
}

}  // namespace weights_test
}  // namespace tqcache::model
