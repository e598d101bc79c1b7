// The decoder on the bundled model, against what transformers computes with the same weights
// (tests/data/README.md).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/npz.h"
#include "support/cache_builder.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

namespace tqcache::model {
namespace reference_test {

using test::must;
using Ids = std::vector<std::int32_t>;

constexpr const char* kFolder = TQCACHE_DEMO_MODEL "/hf";
constexpr const char* kGguf = TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.gguf";
constexpr const char* kPrompts[] = {"alice", "chat", "handbook"};

std::int32_t find_largest(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

double log_probability(std::span<const float> logits, std::int32_t id) {
  const double max = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - max - std::log(sum);
}

// The greedy continuation of a cache, from the logits of its last token on.
Ids continue_greedily(Decoder& decoder, cache::Cache& cache, std::span<const float> logits,
                      std::size_t n) {
  Ids ids;
  while (ids.size() < n) {
    ids.push_back(find_largest(logits));
    logits = must(decoder.decode_step(cache, ids.back()));
  }
  return ids;
}

// |a - b| / |b| over all values.
double relative_error(std::span<const float> a, std::span<const float> b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double delta = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += delta * delta;
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / size);
}

// Loads each form of the model once for all tests.
class Reference : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = must(load_model(kFolder));
    gguf_ = must(load_model(kGguf));
    std::ifstream in(TQCACHE_TEST_DATA "/reference.json");
    json_ = nlohmann::json::parse(in);
    arrays_ = std::make_unique<test::Npz>(TQCACHE_TEST_DATA "/reference.npz");
  }
  static void TearDownTestSuite() {
    folder_.reset();
    gguf_.reset();
    json_ = {};
    arrays_.reset();
  }

  static Ids prompt(const std::string& name) { return json_["prompts"][name]["ids"].get<Ids>(); }
  static Ids greedy(const std::string& name) { return json_["prompts"][name]["greedy"].get<Ids>(); }

  // Some ids of real text, as many as wanted.
  static Ids text(std::size_t n_tokens) {
    const Ids alice = prompt("alice");
    Ids ids;
    while (ids.size() < n_tokens) ids.push_back(alice[ids.size() % alice.size()]);
    return ids;
  }

  inline static std::unique_ptr<Model> folder_;
  inline static std::unique_ptr<Model> gguf_;
  inline static nlohmann::json json_;
  inline static std::unique_ptr<test::Npz> arrays_;
};

TEST_F(Reference, ContinuesEveryPromptAsTransformersDoes) {
  Decoder decoder(*folder_, 2);
  for (const std::string name : kPrompts) {
    cache::Cache cache = must(make_cache(*folder_, Dtype::kF32));
    const auto logits = must(decoder.prefill(cache, prompt(name)));
    const Ids expected = greedy(name);
    EXPECT_EQ(continue_greedily(decoder, cache, logits, expected.size()), expected) << name;
  }
}

TEST_F(Reference, GivesEveryNextTokenTheProbabilityThatTransformersGives) {
  Decoder decoder(*folder_, 2);
  double worst = 0;
  for (const std::string name : kPrompts) {
    const Ids ids = prompt(name);
    const std::vector<float> expected = arrays_->values<float>(name + ".logprob_of_next");
    ASSERT_EQ(expected.size() + 1, ids.size());
    cache::Cache cache = must(make_cache(*folder_, Dtype::kF32));
    const auto compare = [&](std::int64_t first, std::int64_t n, std::span<const float> logits) {
      const std::size_t n_words = logits.size() / static_cast<std::size_t>(n);
      const std::size_t end = static_cast<std::size_t>(first + n);
      for (std::size_t i = static_cast<std::size_t>(first); i < std::min(end, expected.size());
           ++i) {
        const auto row = logits.subspan((i - static_cast<std::size_t>(first)) * n_words, n_words);
        const double difference =
            log_probability(row, ids[i + 1]) - static_cast<double>(expected[i]);
        worst = std::max(worst, std::abs(difference));
      }
    };
    must(decoder.prefill_all_logits(cache, ids, compare));
  }
  RecordProperty("largest_difference", std::to_string(worst));
  EXPECT_LT(worst, 2e-4);  // 4e-5 was measured
}

TEST_F(Reference, GivesTheLastTokenTheLogitsThatTransformersGives) {
  Decoder decoder(*folder_, 2);
  for (const std::string name : kPrompts) {
    cache::Cache cache = must(make_cache(*folder_, Dtype::kF32));
    const auto logits = must(decoder.prefill(cache, prompt(name)));
    const std::vector<float> expected = arrays_->values<float>(name + ".last_logits");
    ASSERT_EQ(logits.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(logits[i], expected[i], 5e-4f) << name << " token " << i;
    }
  }
}

TEST_F(Reference, ComputesTheKeysAndValuesThatTransformersComputes) {
  cache::Cache cache = must(make_cache(*folder_, Dtype::kF32));
  must(Decoder(*folder_, 2).prefill(cache, prompt("chat")));
  double worst = 0;
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const auto& layer = std::get<cache::AttentionLayer>(cache.layers[i]);
    for (const auto& [tensor, letter] : {std::pair{&layer.k, 'k'}, std::pair{&layer.v, 'v'}}) {
      const std::string name = std::string("chat.") + letter + "." + std::to_string(i);
      const std::vector<float> expected = arrays_->values<float>(name);
      std::vector<float> actual(expected.size());
      const std::size_t head_size = expected.size() / 2;
      for (std::size_t head = 0; head < 2; ++head) {
        cache::read_block(*tensor, layer.shape, cache.n_tokens(), 0,
                          static_cast<std::int64_t>(head),
                          std::span(actual).subspan(head * head_size, head_size));
      }
      worst = std::max(worst, relative_error(actual, expected));
    }
  }
  RecordProperty("largest_relative_error", std::to_string(worst));
  EXPECT_LT(worst, 1e-5);  // 1.6e-6 was measured
}

TEST_F(Reference, AnswersTheChatFromQ8WithADenseCache) {
  Decoder decoder(*gguf_, 2);
  cache::Cache cache = must(make_cache(*gguf_, Dtype::kF16));
  const auto logits = must(decoder.prefill(cache, prompt("chat")));
  const Ids answer = continue_greedily(decoder, cache, logits, 9);
  EXPECT_EQ(gguf_->tokenizer.decode(answer), "Your parrot is called Max.<|im_end|>");
}

TEST_F(Reference, AnswersTheChatFromQ8WithAFourBitCache) {
  Decoder decoder(*gguf_, 2);
  cache::Cache cache = must(make_cache(*gguf_, Dtype::kF16));
  // Text before the conversation, so that the prompt fills a block that can be packed.
  Ids ids = text(300);
  const Ids chat = prompt("chat");
  ids.insert(ids.end(), chat.begin(), chat.end());
  ids.resize(ids.size() - 1);
  must(decoder.prefill(cache, ids));
  cache = must(cache::convert(std::move(cache), {}));
  EXPECT_NE(kernel_path(cache, Scorer::kFast).step, "dense");
  const auto logits = must(decoder.decode_step(cache, chat.back()));
  const Ids answer = continue_greedily(decoder, cache, logits, 9);
  EXPECT_EQ(gguf_->tokenizer.decode(answer), "Your parrot is called Max.<|im_end|>");
}

// What a run gives from some cache on.
struct Continuation {
  Ids ids;
  std::vector<float> logits;  // after the last of them
  bool operator==(const Continuation&) const = default;
};

Continuation go_on(const Model& model, cache::Cache cache, std::span<const float> logits) {
  Decoder decoder(model, 2);
  Continuation result;
  result.ids = continue_greedily(decoder, cache, logits, 5);
  const auto last = must(decoder.last_logits(cache));
  result.logits.assign(last.begin(), last.end());
  return result;
}

cache::Cache through_a_file(const cache::Cache& cache) {
  const auto source = memory_source(must(format::write_cache_bytes(cache, {})));
  return must(format::read_cache(*source));
}

class ResumeAt : public Reference, public testing::WithParamInterface<int> {};

TEST_P(ResumeAt, GoesOnFromADenseFileAsTheUninterruptedRunDoes) {
  Decoder decoder(*gguf_, 2);
  cache::Cache cache = must(make_cache(*gguf_, Dtype::kF16));
  const auto logits = must(decoder.prefill(cache, text(static_cast<std::size_t>(GetParam()))));
  const Continuation uninterrupted = go_on(*gguf_, cache, logits);
  const cache::Cache loaded = through_a_file(cache);
  EXPECT_EQ(go_on(*gguf_, loaded, must(Decoder(*gguf_, 1).last_logits(loaded))), uninterrupted);
}

TEST_P(ResumeAt, GoesOnFromATurboFileAsFromTurboInMemory) {
  Decoder decoder(*gguf_, 2);
  cache::Cache cache = must(make_cache(*gguf_, Dtype::kF16));
  must(decoder.prefill(cache, text(static_cast<std::size_t>(GetParam()))));
  cache = must(cache::convert(std::move(cache), {}));
  const Continuation in_memory = go_on(*gguf_, cache, must(decoder.last_logits(cache)));
  const cache::Cache loaded = through_a_file(cache);
  EXPECT_EQ(go_on(*gguf_, loaded, must(Decoder(*gguf_, 1).last_logits(loaded))), in_memory);
}

INSTANTIATE_TEST_SUITE_P(BlockBorders, ResumeAt, testing::Values(255, 256, 257, 511, 512, 513));

}  // namespace reference_test
}  // namespace tqcache::model
