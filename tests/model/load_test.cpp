// Loading whole models from disk, and their fingerprints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "model/tiny_files.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::model {
namespace load_test {

using test::TempDir;
using test::write_all;
using testing::HasSubstr;
using tiny::Json;
using tiny::Shapes;

const std::string kDemo = TQCACHE_DEMO_MODEL;

void expect_refused(const std::filesystem::path& path, ErrorCode code, std::string_view message) {
  EXPECT_THAT(load_model(path), test::FailsWith(code, HasSubstr(message)));
}

TEST(LoadModel, LoadsTheDemoFromAFileAndFromAFolder) {
  const auto from_file = load_model(kDemo + "/tqcache-demo-17m.q8_0.gguf").value();
  const auto from_folder = load_model(kDemo + "/hf").value();
  for (const Model* model : {from_file.get(), from_folder.get()}) {
    EXPECT_EQ(model->identity.architecture, "qwen3");
    EXPECT_EQ(model->identity.source_format, "tqcache");
    EXPECT_EQ(model->identity.rope, model->config.rope);
    EXPECT_EQ(model->identity.tokenizer_fingerprint, model->tokenizer.fingerprint());
    EXPECT_EQ(model->weights->layers.size(), 8u);
    EXPECT_EQ(model->weights->token_embedding.n_rows, 8192);
    EXPECT_FALSE(model->identity.adapter_fingerprint);
  }
  EXPECT_EQ(from_file->identity.model_name, "tqcache demo 17M");
  EXPECT_EQ(from_folder->identity.model_name, "hf");
  EXPECT_EQ(from_file->identity.tokenizer_fingerprint, from_folder->identity.tokenizer_fingerprint);
  // Q8_0 and bf16 give different keys and values, so a cache belongs to one of them.
  EXPECT_NE(from_file->identity.weights_fingerprint, from_folder->identity.weights_fingerprint);
}

// The rule is written down in docs/reference/format.md; this is the demo model's.
TEST(LoadModel, FingerprintsTheSameWeightsForEver) {
  const auto model = load_model(kDemo + "/tqcache-demo-17m.q8_0.gguf").value();
  EXPECT_EQ(to_hex(model->identity.weights_fingerprint),
            "aa07008a6ba5c003cf8d9624f9c6d98423f22638996a60a26bb0e1524fbb8e27");
  // Written down before fields were appended that this model does not set.
  EXPECT_EQ(to_hex(model->identity.model_fingerprint.value().digest),
            "67396daea8f4ab66b06324fdcfadfb096ed92ad15520b3ef42ce25c47dbf098a");
}

TEST(LoadModel, TakesAddedTokensBeyondTheMatrices) {
  const TempDir folder;
  tiny::write_model(folder.path());
  Json tokenizer = tiny::tokenizer();
  tokenizer["added_tokens"].push_back(tiny::added_token(tiny::kVocabSize, "<pad>", true));
  write_all(folder / "tokenizer.json", tokenizer.dump());
  const auto model = load_model(folder.path()).value();
  const auto ids = model->tokenizer.encode("a<pad>", tokenizer::Tokenizer::Special::kParse).value();
  ASSERT_THAT(ids, testing::ElementsAre('a', tiny::kVocabSize));
  cache::Cache cache = make_cache(*model, Dtype::kF32).value();
  Decoder decoder(model->config, *model->weights, 1);
  EXPECT_EQ(decoder.prefill(cache, ids).error().code, ErrorCode::kInvalidArgument);

  tokenizer["model"]["vocab"]["beyond"] = tiny::kVocabSize + 1;
  write_all(folder / "tokenizer.json", tokenizer.dump());
  expect_refused(folder.path(), ErrorCode::kCorrupt,
                 "tokenizer: 266 tokens for 264 rows of the embedding matrix");
}

TEST(LoadModel, MakesAnEmptyCacheOfTheModelsShape) {
  const auto model = load_model(kDemo + "/tqcache-demo-17m.q8_0.gguf").value();
  const cache::Cache cache = make_cache(*model, Dtype::kBF16).value();
  EXPECT_EQ(cache.n_tokens(), 0);
  ASSERT_EQ(cache.layers.size(), 8u);
  const auto& layer = std::get<cache::AttentionLayer>(cache.layers[7]);
  EXPECT_EQ(layer.shape.n_kv_heads, 2);
  EXPECT_EQ(layer.shape.head_dim, 128);
  EXPECT_TRUE(cache::check_identity(cache, model->identity).ok());
}

TEST(LoadModel, SaysSoWhenThePathIsNoModel) {
  const TempDir dir;
  constexpr const char* kNoModel = "neither a GGUF file nor a Hugging Face folder";
  write_all(dir / "empty", "");
  write_all(dir / "text", "Alice was beginning to get very tired\n");
  write_all(dir / "short", "GGU");
  write_all(dir / "bare", "GGUF");
  expect_refused(dir / "missing", ErrorCode::kNotFound, "no such file");
  expect_refused(dir / "empty", ErrorCode::kCorrupt, kNoModel);
  expect_refused(dir / "text", ErrorCode::kUnsupported, kNoModel);
  expect_refused(dir / "short", ErrorCode::kCorrupt, kNoModel);
  expect_refused(dir / "bare", ErrorCode::kTruncated, "byte 4");
  expect_refused(dir.path(), ErrorCode::kNotFound, "config.json: ");
  expect_refused("/dev/null", ErrorCode::kIo, "not a regular file");
}

TEST(LoadModel, RefusesAGgufThatIsCutShort) {
  const TempDir dir;
  const Bytes whole = test::read_all(kDemo + "/tqcache-demo-17m.q8_0.gguf");
  for (const std::size_t size : {std::size_t{100}, std::size_t{100'000}, whole.size() - 1}) {
    write_all(dir / "cut.gguf", ByteView(whole).first(size));
    expect_refused(dir / "cut.gguf", ErrorCode::kTruncated, "");
  }
}

TEST(LoadModel, LoadsATinyFolder) {
  const TempDir dir;
  tiny::write_model(dir.path());
  const auto model = load_model(dir.path()).value();
  EXPECT_EQ(model->config.n_layers, 2);
  EXPECT_EQ(model->identity.model_name, dir.path().filename());
  EXPECT_EQ(model->weights->output.bytes.data(), model->weights->token_embedding.bytes.data());
  EXPECT_EQ(model->tokenizer.end_tokens(), std::vector<std::int32_t>{tiny::kEnd});
  write_all(dir / "generation_config.json", R"({"eos_token_id":[261]})");
  EXPECT_EQ(load_model(dir.path()).value()->tokenizer.end_tokens().size(), 2u);
}

TEST(LoadModel, NamesTheFileOfTheFolderThatIsWrong) {
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    const TempDir dir;
    tiny::write_model(dir.path());
    std::filesystem::remove(dir / name);
    expect_refused(dir.path(), ErrorCode::kNotFound, std::string(name) + ": ");
    write_all(dir / name, std::string(100, 'x'));
    const auto model = load_model(dir.path());
    ASSERT_FALSE(model.ok());
    EXPECT_THAT(model.error().message, HasSubstr(std::string(name) + ": "));
  }
}

TEST(LoadModel, RefusesMissingUnknownAndSurplusTensors) {
  const TempDir dir;
  tiny::write_model(dir.path());
  const auto write = [&](const Shapes& shapes) {
    write_all(dir / "model.safetensors", tiny::safetensors(shapes));
  };
  Shapes missing = tiny::shapes();
  missing.erase("model.layers.1.self_attn.q_norm.weight");
  write(missing);
  expect_refused(dir.path(), ErrorCode::kCorrupt, "blk.1.attn_q_norm.weight");

  Shapes unknown = tiny::shapes();
  unknown["model.layers.0.self_attn.q_proj.scale"] = {12};
  write(unknown);
  expect_refused(dir.path(), ErrorCode::kUnsupported,
                 "tensor \"model.layers.0.self_attn.q_proj.scale\": unknown");

  Shapes surplus = tiny::shapes();
  surplus["model.layers.1.self_attn.q_proj.bias"] = {12};
  write(surplus);
  expect_refused(dir.path(), ErrorCode::kUnsupported, "tensors: 25 where qwen3 uses 24");

  Shapes wrong = tiny::shapes();
  wrong["model.norm.weight"] = {9};
  write(wrong);
  expect_refused(dir.path(), ErrorCode::kCorrupt, "output_norm.weight");
}

TEST(LoadModel, LeavesOutWhatFollowsFromTheRest) {
  const TempDir dir;
  tiny::write_model(dir.path());
  const Sha256 plain = load_model(dir.path()).value()->identity.weights_fingerprint;
  Shapes shapes = tiny::shapes();
  shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = {3};
  shapes["lm_head.weight"] = {tiny::kVocabSize, 8};  // the embeddings are tied
  write_all(dir / "model.safetensors", tiny::safetensors(shapes));
  EXPECT_EQ(load_model(dir.path()).value()->identity.weights_fingerprint, plain);
}

// As transformers 5 does, and llama.cpp's converter.
TEST(LoadModel, TakesAnOutputMatrixThatDiffersFromTiedEmbeddings) {
  const TempDir dir;
  tiny::write_model(dir.path());
  const Sha256 tied = load_model(dir.path()).value()->identity.weights_fingerprint;
  Shapes shapes = tiny::shapes();
  shapes["lm_head.weight"] = {tiny::kVocabSize, 8};
  Bytes file = tiny::safetensors(shapes);
  const std::uint64_t header = ByteReader(file).read<std::uint64_t>().value();
  file[8 + header] ^= std::byte{1};  // the first weight of lm_head, which comes first
  write_all(dir / "model.safetensors", file);
  const auto model = load_model(dir.path()).value();
  EXPECT_FALSE(model->config.tied_embeddings);
  EXPECT_NE(model->weights->output.bytes.data(), model->weights->token_embedding.bytes.data());
  EXPECT_NE(model->identity.weights_fingerprint, tied);
}

TEST(LoadModel, UsesTheOutputMatrixWhenItIsNotTied) {
  const TempDir dir;
  tiny::write_model(dir.path());
  Json config = tiny::config();
  config["tie_word_embeddings"] = false;
  write_all(dir / "config.json", config.dump());
  expect_refused(dir.path(), ErrorCode::kCorrupt, "output.weight");
  Shapes shapes = tiny::shapes();
  shapes["lm_head.weight"] = {tiny::kVocabSize, 8};
  write_all(dir / "model.safetensors", tiny::safetensors(shapes));
  const auto model = load_model(dir.path()).value();
  EXPECT_NE(model->weights->output.bytes.data(), model->weights->token_embedding.bytes.data());
}

TEST(LoadModel, RefusesAVocabularyLargerThanTheMatrix) {
  const TempDir dir;
  tiny::write_model(dir.path());
  Json tokenizer = tiny::tokenizer();
  tokenizer["model"]["vocab"]["more"] = 264;
  write_all(dir / "tokenizer.json", tokenizer.dump());
  expect_refused(dir.path(), ErrorCode::kCorrupt, "265 tokens for 264 rows");
}

// The tokenizer and the weights are read at once. What is told does not depend on it.
TEST(LoadModel, TellsOfTheTokenizerBeforeTheWeights) {
  Shapes shapes = tiny::shapes();
  shapes.erase("model.norm.weight");
  Json tokenizer = tiny::tokenizer();
  tokenizer["model"]["merges"].push_back("x no-such");
  const TempDir dir;
  for (const bool is_readable : {false, true}) {
    for (const unsigned n_threads : {1u, 2u, 4u}) {
      tiny::write_model(dir.path());
      write_all(dir / "model.safetensors", is_readable ? tiny::safetensors(shapes) : Bytes(20));
      EXPECT_THAT(load_model(dir.path(), n_threads).error().message,
                  HasSubstr(is_readable ? "\"output_norm.weight\": missing" : "model.safetensors"));
      write_all(dir / "tokenizer.json", tokenizer.dump());
      EXPECT_THAT(load_model(dir.path(), n_threads),
                  test::FailsWith(ErrorCode::kCorrupt, HasSubstr("not in the vocabulary")));
    }
  }
}

TEST(LoadModel, GivesTheSameModelOnAnyNumberOfThreads) {
  for (const char* name : {"/tqcache-demo-17m.q8_0.gguf", "/hf"}) {
    const auto one = load_model(kDemo + name, 1).value();
    for (const unsigned n_threads : {0u, 2u, 5u}) {
      const auto model = load_model(kDemo + name, n_threads).value();
      EXPECT_EQ(model->identity.weights_fingerprint, one->identity.weights_fingerprint);
      EXPECT_EQ(model->identity.model_fingerprint, one->identity.model_fingerprint);
      EXPECT_EQ(model->identity.tokenizer_fingerprint, one->identity.tokenizer_fingerprint);
      EXPECT_EQ(model->identity.model_name, one->identity.model_name);
    }
  }
}

// A folder whose tensors stand in two files.
class ShardedModel : public testing::Test {
 protected:
  ShardedModel() {
    tiny::write_model(dir_.path());
    std::filesystem::remove(dir_ / "model.safetensors");
    for (const auto& [name, shape] : tiny::shapes()) {
      const bool first = name.find("layers.0") != std::string::npos;
      shards_[first ? "a.safetensors" : "b.safetensors"][name] = shape;
    }
    for (const auto& [file, shapes] : shards_) {
      for (const auto& entry : shapes) index_["weight_map"][entry.first] = file;
    }
    write();
  }

  void write() {
    for (const auto& [file, shapes] : shards_) {
      write_all(dir_ / file, tiny::safetensors(shapes));
    }
    write_all(dir_ / "model.safetensors.index.json", index_.dump());
  }

  TempDir dir_;
  std::map<std::string, Shapes> shards_;
  Json index_;
};

TEST_F(ShardedModel, IsTheSameAsTheModelInOneFile) {
  const TempDir whole;
  tiny::write_model(whole.path());
  EXPECT_EQ(load_model(dir_.path()).value()->identity.weights_fingerprint,
            load_model(whole.path()).value()->identity.weights_fingerprint);
}

TEST_F(ShardedModel, RefusesFileNamesThatLeaveTheFolder) {
  for (const char* name : {"../a.safetensors", "/etc/a.safetensors", "x\\a.safetensors", "a.bin",
                           "", "sub/a.safetensors"}) {
    index_["weight_map"]["model.norm.weight"] = name;
    write();
    expect_refused(dir_.path(), ErrorCode::kCorrupt, "not the name of a safetensors file");
  }
  index_["weight_map"]["model.norm.weight"] = 5;
  write();
  expect_refused(dir_.path(), ErrorCode::kCorrupt, "model.safetensors.index.json: ");
}

TEST_F(ShardedModel, RefusesAnIndexThatDisagreesWithItsFiles) {
  index_["weight_map"]["model.norm.weight"] = "a.safetensors";
  write();
  expect_refused(dir_.path(), ErrorCode::kCorrupt, "has other tensors than the index says");
  index_["weight_map"]["model.norm.weight"] = "0.safetensors";
  write();
  expect_refused(dir_.path(), ErrorCode::kNotFound, "\"0.safetensors\": ");
  index_ = Json::object();
  write();
  expect_refused(dir_.path(), ErrorCode::kCorrupt, "key \"weight_map\": missing");
}

TEST_F(ShardedModel, RefusesATensorThatComesTwice) {
  shards_["b.safetensors"]["model.layers.0.input_layernorm.weight"] = {8};
  write();
  expect_refused(dir_.path(), ErrorCode::kCorrupt,
                 "\"model.layers.0.input_layernorm.weight\": comes twice");
}

// Fingerprints of one tensor of a megabyte.
class WeightsFingerprint : public testing::Test {
 protected:
  static constexpr std::size_t kSize = 1 << 20;

  Sha256 print() const {
    const tensors::TensorView view{type_, type_name_, shape_, ByteView(bytes_)};
    return weights_fingerprint({{name_, view}});
  }
  // Whether another value of this byte gives another fingerprint.
  bool sees_byte(std::size_t i) {
    const Sha256 before = print();
    bytes_[i] ^= std::byte{1};
    const bool differs = print() != before;
    bytes_[i] ^= std::byte{1};
    return differs;
  }

  std::string name_ = "output_norm.weight";
  tensors::TensorType type_ = tensors::TensorType::kF32;
  std::string type_name_ = "F32";
  std::vector<std::uint64_t> shape_ = {kSize / 4};
  Bytes bytes_ = Bytes(kSize);
};

TEST_F(WeightsFingerprint, SeesSixteenPiecesOfFourKilobytes) {
  for (std::size_t piece = 0; piece < 16; ++piece) {
    const std::size_t begin = (kSize - 4096) * piece / 15;
    EXPECT_TRUE(sees_byte(begin));
    EXPECT_TRUE(sees_byte(begin + 4095));
    if (piece < 15) {
      EXPECT_FALSE(sees_byte(begin + 4096));
    }
  }
  EXPECT_TRUE(sees_byte(kSize - 1));
}

TEST_F(WeightsFingerprint, OfTheModelSeesSixteenPiecesOf64Kilobytes) {
  bytes_.resize(3 << 20);
  const auto print = [&] {
    return model_fingerprint({}, {{name_, {type_, type_name_, shape_, ByteView(bytes_)}}});
  };
  const Sha256 before = print();
  const auto sees_byte = [&](std::size_t i) {
    bytes_[i] ^= std::byte{1};
    const bool differs = print() != before;
    bytes_[i] ^= std::byte{1};
    return differs;
  };
  for (std::size_t piece = 0; piece < 16; ++piece) {
    const std::size_t begin = (bytes_.size() - 65536) * piece / 15;
    EXPECT_TRUE(sees_byte(begin));
    EXPECT_TRUE(sees_byte(begin + 65535));
    if (piece < 15) {
      EXPECT_FALSE(sees_byte(begin + 65536));
    }
  }
}

// Every number that changes keys, values or logits; names and the context length change none.
TEST(ModelFingerprint, SeesTheWholeConfiguration) {
  ModelConfig config;
  config.architecture = "qwen3";
  config.n_layers = 2;
  config.head_dim = 64;
  config.rope = {cache::RopeStyle::kHalfSplit, 64, 1e6};
  const std::function<void(ModelConfig&)> changes[] = {
      [](auto& c) { c.architecture = "llama"; },
      [](auto& c) { c.n_layers = 3; },
      [](auto& c) { c.d_model = 1; },
      [](auto& c) { c.d_ff = 1; },
      [](auto& c) { c.n_heads = 1; },
      [](auto& c) { c.n_kv_heads = 1; },
      [](auto& c) { c.head_dim = 32; },
      [](auto& c) { c.vocab_size = 1; },
      [](auto& c) { c.rms_norm_epsilon = 0.5f; },
      [](auto& c) { c.rope.style = cache::RopeStyle::kInterleaved; },
      [](auto& c) { c.rope.n_dims = 32; },
      [](auto& c) { c.rope.base = 1e4; },
      [](auto& c) { c.rope.factors.assign(32, 1.0f); },
      [](auto& c) { c.rope.factors.assign(32, 2.0f); },
      [](auto& c) { c.tied_embeddings = true; },
      [](auto& c) {
        c.layers = {{.kind = LayerKind::kDeltaNet, .rope = c.rope}, {.rope = c.rope}};
      },
      [](auto& c) {
        c.layers = {{.window = 512, .rope = c.rope}, {.rope = c.rope}};
      },
      [](auto& c) {
        c.layers = {{.rope = c.rope}, {.window = 512, .rope = c.rope}};
      },
      // The base of local RoPE.
      [](auto& c) {
        c.layers = {{.rope = {cache::RopeStyle::kHalfSplit, 64, 1e4}}, {.rope = c.rope}};
      },
      [](auto& c) { c.qk_norms = true; },
      [](auto& c) { c.qkv_biases = true; },
      [](auto& c) { c.output_bias = true; },
      [](auto& c) { c.post_norms = true; },
      [](auto& c) { c.attention_gate = true; },
      [](auto& c) { c.activation = Activation::kGeluTanh; },
      [](auto& c) { c.rope_magnitude = 1.2f; },
      [](auto& c) { c.attention_scale = 0.5f; },
      [](auto& c) { c.attention_cap = 50; },
      [](auto& c) { c.logit_cap = 30; },
      [](auto& c) { c.embedding_scale = 16; },
      [](auto& c) { c.experts.count = 8; },
      [](auto& c) { c.experts.used = 2; },
      [](auto& c) { c.experts.d_ff = 1; },
      [](auto& c) { c.experts.shared_d_ff = 1; },
      [](auto& c) { c.experts.normalized = false; },
      [](auto& c) { c.delta_net.n_key_heads = 1; },
      [](auto& c) { c.delta_net.n_value_heads = 1; },
      [](auto& c) { c.delta_net.key_dim = 1; },
      [](auto& c) { c.delta_net.value_dim = 1; },
      [](auto& c) { c.delta_net.kernel = 1; },
      [](auto& c) { c.layout.permuted_heads = true; },
      [](auto& c) { c.layout.fused_projections = true; },
      [](auto& c) { c.layout.tiled_value_heads = true; },
      [](auto& c) { c.layout.log_decay = true; },
      [](auto& c) { c.layout.norm_offset = 1; },
  };
  std::set<Sha256> prints = {model_fingerprint(config, {})};
  for (const auto& change : changes) {
    ModelConfig other = config;
    change(other);
    prints.insert(model_fingerprint(other, {}));
  }
  EXPECT_EQ(prints.size(), 1 + std::size(changes));
  ModelConfig same = config;
  same.name = "a copy";
  same.context_length = 4096;
  same.layers = {{.rope = config.rope}, {.rope = config.rope}};
  same.attention_scale = 0.125f;
  EXPECT_EQ(model_fingerprint(same, {}), model_fingerprint(config, {}));
}

TEST_F(WeightsFingerprint, SeesEveryByteOfASmallTensor) {
  bytes_.resize(64 * 1024);
  for (std::size_t i = 0; i < bytes_.size(); i += 1021) EXPECT_TRUE(sees_byte(i)) << i;
  EXPECT_TRUE(sees_byte(bytes_.size() - 1));
  bytes_.resize(1);
  EXPECT_TRUE(sees_byte(0));
}

TEST_F(WeightsFingerprint, SeesNameTypeAndShape) {
  const Sha256 before = print();
  name_ = "blk.0.attn_norm.weight";
  EXPECT_NE(print(), before);
  name_ = "output_norm.weight", type_name_ = "I32";
  EXPECT_NE(print(), before);
  type_name_ = "F32", shape_ = {1, kSize / 4};
  EXPECT_NE(print(), before);
  shape_ = {kSize / 4};
  EXPECT_EQ(print(), before);
}

}  // namespace load_test
}  // namespace tqcache::model
