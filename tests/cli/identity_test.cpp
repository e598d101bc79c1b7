// Whether a cache of another model, or with other token ids, is found out where layers have windows
// or a state that cannot be cut shorter.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "cli/demo.h"
#include "cli/probe.h"
#include "model/tiny_files.h"
#include "support/cache_builder.h"
#include "tqcache/decoder.h"
#include "tqcache/file.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::test {
namespace identity_test {

using nlohmann::json;
using testing::HasSubstr;

constexpr std::int32_t kVocabulary = 59;

// A model of tests/data/architectures, with a tokenizer of 59 pieces and a longer context. `other`:
// another model of the same shape, whose matrices have their values in another order.
class Family {
 public:
  Family(const std::string& name, bool other) {
    const std::string from = TQCACHE_TEST_DATA "/architectures/" + name + "/";
    json config = json::parse(as_text(read_all(from + "config.json")));
    config["max_position_embeddings"] = 4096;
    write_all(dir_ / "config.json", as_bytes(config.dump()));
    Bytes weights = read_all(from + "model.safetensors");
    if (other) turn_matrices(weights);
    write_all(dir_ / "model.safetensors", weights);
    json root;
    auto vocab = json::array({json::array({"<unk>", 0.0})});
    for (char letter = 'A'; letter < 'A' + 58; ++letter) {
      vocab.push_back(json::array({std::string(1, letter), -1.0}));
    }
    root["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}};
    root["added_tokens"] = {tiny::added_token(0, "<unk>", true)};
    root["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "\u2581"}, {"add_prefix_space", false}};
    root["decoder"] = root["pre_tokenizer"];
    write_all(dir_ / "tokenizer.json", as_bytes(root.dump()));
  }

  std::string path() const { return dir_.path().string(); }

 private:
  static std::string as_text(const Bytes& bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  static void turn_matrices(Bytes& weights) {
    const auto index = must(tensors::index_safetensors(*memory_source(weights)));
    for (const auto& [name, place] : index.tensors) {
      if (place.shape.size() < 2) continue;
      std::uint64_t n = 1;
      for (const std::uint64_t size : place.shape) n *= size;
      const std::uint64_t width = place.bytes / n;
      const auto value = [&](std::uint64_t i) {
        return weights.begin() + static_cast<std::ptrdiff_t>(place.offset + i * width);
      };
      for (std::uint64_t i = 0; i < n / 2; ++i) {
        std::swap_ranges(value(i), value(i) + static_cast<std::ptrdiff_t>(width), value(n - 1 - i));
      }
    }
  }

  TempDir dir_;
};

std::vector<std::int32_t> ids(std::int32_t n_tokens, std::int32_t shift = 0) {
  std::vector<std::int32_t> all;
  for (std::int32_t i = 0; i < n_tokens; ++i) {
    all.push_back((7 * i * i + 3 * i + 11 + shift) % kVocabulary);
  }
  return all;
}

class Identities
    : public testing::TestWithParam<std::tuple<const char*, std::pair<std::int32_t, const char*>>> {
 protected:
  std::int32_t n_tokens() const { return std::get<1>(GetParam()).first; }
  std::string scope() const { return std::get<1>(GetParam()).second; }

  // A prompt cache of mlx-lm, which has no token ids.
  std::string foreign_cache() const {
    const std::string own = (dir_ / "own.kv").string(), foreign = (dir_ / "f.safetensors").string();
    must({"prefill", "-m", model_.path(), "--ids", id_list(ids(n_tokens())), "-o", own});
    must({"convert", own, foreign, "--to", "mlx-lm", "-f"});
    return foreign;
  }
  std::string write_ids(std::int32_t shift) const {
    const std::string path = (dir_ / "ids.json").string();
    write_all(path, as_bytes(json(ids(n_tokens(), shift)).dump()));
    return path;
  }
  Output convert(const std::string& file, const std::string& model, std::int32_t shift) const {
    return tqcache(
        {"convert", file, to_, "-f", "--bits", "16", "-m", model, "--ids-file", write_ids(shift)});
  }

  TempDir dir_;
  std::string to_ = (dir_ / "to.tqkv").string();
  Family model_{std::get<0>(GetParam()), false};
  Family other_{std::get<0>(GetParam()), true};
};

INSTANTIATE_TEST_SUITE_P(WindowsAndStates, Identities,
                         testing::Combine(testing::Values("mistral", "gemma2", "gemma3", "gpt_oss",
                                                          "qwen3_next", "qwen3_5"),
                                          testing::Values(std::pair{60, "whole"},
                                                          std::pair{1100, "first_layer"})));

TEST_P(Identities, AreAccepted) {
  const std::string file = foreign_cache();
  const Output converted = convert(file, model_.path(), 0);
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_FALSE(info_of(to_)["identity"].contains("standing"));
  const json verified = json::parse(must({"verify", to_, "-m", model_.path(), "--json"}).out);
  EXPECT_EQ(verified["identity"], "checked");
  EXPECT_EQ(verified["probe"]["scope"], scope());
}

TEST_P(Identities, OfAnotherModelAreRefused) {
  const std::string file = foreign_cache();
  const Output converted = convert(file, other_.path(), 0);
  EXPECT_EQ(converted.exit_code, 22) << converted.err;
  EXPECT_THAT(converted.err, HasSubstr("the file is of another model, or was not read correctly"));
  EXPECT_FALSE(std::filesystem::exists(to_));
}

TEST_P(Identities, WithOtherIdsAreRefused) {
  const std::string file = foreign_cache();
  const Output converted = convert(file, model_.path(), 1);
  EXPECT_EQ(converted.exit_code, 22) << converted.err;
  EXPECT_FALSE(std::filesystem::exists(to_));
}

// verify finds it out as well, if somebody stated it without a probe.
TEST_P(Identities, ThatWereStatedAreMarkedAndVerified) {
  const std::string file = foreign_cache();
  must({"convert", file, to_, "-f", "--bits", "16", "-m", other_.path(), "--ids-file", write_ids(0),
        "--probe", "0"});
  EXPECT_EQ(info_of(to_)["identity"]["standing"], "unchecked");
  EXPECT_THAT(must({"info", to_}).out, HasSubstr("identity stated, not checked"));
  const Output verified = tqcache({"verify", to_, "-m", other_.path()});
  EXPECT_EQ(verified.exit_code, 22) << verified.out;
  const json unprobed =
      json::parse(must({"verify", to_, "-m", other_.path(), "--probe", "0", "--json"}).out);
  EXPECT_EQ(unprobed["identity"], "stated, not checked");
  EXPECT_THAT(must({"verify", to_, "-m", other_.path(), "--probe", "0"}).out,
              HasSubstr("identity stated, not checked"));
}

// Without ids nothing can be compared.
TEST_P(Identities, WithoutIdsAreStatedAndNotChecked) {
  const std::string file = foreign_cache();
  must({"convert", file, to_, "-f", "--bits", "16", "-m", model_.path()});
  EXPECT_EQ(info_of(to_)["identity"]["standing"], "unchecked");
}

// Layers of dense tensors and up to 256 tokens: the tokens from `first` on, at positions from 0 on,
// as llama.cpp leaves them after a context shift.
cache::Cache shifted(const cache::Cache& whole, std::int64_t first, const model::Model& model) {
  cache::Cache part = must(cache::truncate(whole, whole.n_tokens() - first));
  part.tokens.assign(whole.tokens.begin() + first, whole.tokens.end());
  for (std::size_t i = 0; i < part.layers.size(); ++i) {
    const auto& from = std::get<cache::AttentionLayer>(whole.layers[i]);
    auto& to = std::get<cache::AttentionLayer>(part.layers[i]);
    const auto width = static_cast<std::size_t>(from.shape.head_dim);
    for (const bool is_key : {true, false}) {
      const auto& from_tensor = std::get<cache::DenseTensor>(is_key ? from.k : from.v);
      auto& to_tensor = std::get<cache::DenseTensor>(is_key ? to.k : to.v);
      std::vector<float> values(from_tensor.blocks[0].size() / sizeof(float));
      load_f32(Dtype::kF32, from_tensor.blocks[0].data(), values);
      std::vector<float> moved(values.size());
      for (std::int64_t head = 0; head < from.shape.n_kv_heads; ++head) {
        for (std::int64_t token = 0; token < part.n_tokens(); ++token) {
          const auto at = [&](std::int64_t row) {
            return static_cast<std::size_t>(head * cache::kTokenBlock + row) * width;
          };
          const auto row = std::span(moved).subspan(at(token), width);
          std::ranges::copy(std::span(values).subspan(at(token + first), width), row.begin());
          if (is_key) cache::rotate_back(model.config.layer(0).rope, first, row);
        }
      }
      store_f32(Dtype::kF32, moved, to_tensor.blocks[0].data());
    }
  }
  return part;
}

// Layer 0 is that of the tokens, whatever was before them; the other layers are not.
TEST(ShiftedContexts, DifferFromTheBeginningOn) {
  const Family family("llama", false);
  const auto model = must(model::load_model(family.path()));
  cache::Cache whole = must(model::make_cache(*model, Dtype::kF32));
  model::Decoder decoder(*model, 1);
  must(decoder.prefill(whole, ids(200)));
  EXPECT_LT(must(cli::error_of_beginning(whole, *model, 1)), 0.01);
  const cache::Cache part = shifted(whole, 80, *model);
  const auto report = must(cli::probe(part, *model, 16, cli::kForeignLimit, 1, {}));
  EXPECT_FALSE(report.wrong_token);
  EXPECT_LT(report.layers[0].k_error, 0.01);
  EXPECT_GT(must(cli::error_of_beginning(part, *model, 1)), cli::kShiftedLimit);
}

}  // namespace identity_test
}  // namespace tqcache::test
