// Families of models, against what transformers computes with the same weights
// (tests/data/README.md).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "model/fixture_model.h"
#include "support/matchers.h"
#include "tqcache/cache.h"
#include "tqcache/cache/window.h"
#include "tqcache/model/attention/gated_delta_net.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

namespace tqcache::model {
namespace architectures_test {

using test::FixtureModel;
using test::kFixtures;
using test::must;
using testing::HasSubstr;
using Floats = std::vector<float>;
using Ids = std::vector<std::int32_t>;

constexpr double kBound = 1e-4;
constexpr std::size_t kVocab = 64;

Floats prefill(Decoder& decoder, cache::Cache& cache, std::span<const std::int32_t> ids) {
  Floats all;
  must(decoder.prefill_all_logits(cache, ids,
                                  [&](std::int64_t, std::int64_t, std::span<const float> rows) {
                                    all.insert(all.end(), rows.begin(), rows.end());
                                  }));
  return all;
}

Floats take_steps(Decoder& decoder, cache::Cache& cache, std::span<const std::int32_t> ids) {
  Floats all;
  for (const std::int32_t id : ids) {
    const auto logits = must(decoder.decode_step(cache, id));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

cache::Cache through_a_file(const cache::Cache& cache) {
  const Bytes bytes = must(format::write_cache_bytes(cache, {}));
  return must(format::read_cache(*memory_source(bytes)));
}

class Family : public testing::TestWithParam<std::string> {
 protected:
  FixtureModel model_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Families, Family, testing::ValuesIn(kFixtures),
                         [](const auto& name) { return name.param; });

TEST_P(Family, GivesTheReferencesLogitsForAPrompt) {
  Decoder decoder = model_.decoder();
  cache::Cache cache = model_.make_cache();
  const Floats logits = prefill(decoder, cache, model_.ids());
  EXPECT_LT(test::relative_error(logits, model_.logits(), kVocab), kBound);
  must(cache::validate(cache));
}

TEST_P(Family, GivesTheReferencesLogitsStepByStep) {
  Decoder decoder = model_.decoder(2);
  cache::Cache cache = model_.make_cache();
  const Floats logits = take_steps(decoder, cache, model_.ids());
  EXPECT_LT(test::relative_error(logits, model_.logits(), kVocab), kBound);
}

TEST_P(Family, GoesOnFromAFileBitForBit) {
  const Ids ids = model_.many_ids(300);
  for (const std::size_t n : {std::size_t{1}, std::size_t{3}, std::size_t{30}, std::size_t{255},
                              std::size_t{256}, std::size_t{257}}) {
    if (static_cast<std::int64_t>(n) + 3 > model_.config.context_length) continue;
    Decoder decoder = model_.decoder();
    cache::Cache cache = model_.make_cache(Dtype::kF16);
    prefill(decoder, cache, std::span(ids).first(n));
    cache::Cache loaded = through_a_file(cache);
    const auto next = std::span(ids).subspan(n, 3);
    Decoder other = model_.decoder(3);
    EXPECT_EQ(take_steps(other, loaded, next), take_steps(decoder, cache, next)) << n;
    EXPECT_EQ(must(format::write_cache_bytes(loaded, {})),
              must(format::write_cache_bytes(cache, {})))
        << n;
  }
}

TEST_P(Family, KeepsTheCacheAsItWasWhenItIsInterrupted) {
  const Ids ids = model_.many_ids(60);
  Decoder decoder = model_.decoder();
  cache::Cache cache = model_.make_cache();
  prefill(decoder, cache, std::span(ids).first(30));
  const Bytes before = must(format::write_cache_bytes(cache, {}));
  int n_asked = 0;
  const auto stopped = decoder.prefill(cache, std::span(ids).subspan(30),
                                       [&](std::uint64_t, std::uint64_t) { return ++n_asked < 2; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kInterrupted);
  must(cache::validate(cache));
  EXPECT_EQ(must(format::write_cache_bytes(cache, {})), before);
  cache::Cache whole = model_.make_cache();
  Decoder fresh = model_.decoder();
  prefill(fresh, whole, std::span(ids).first(30));
  EXPECT_EQ(take_steps(decoder, cache, std::span(ids).subspan(30, 3)),
            take_steps(fresh, whole, std::span(ids).subspan(30, 3)));
}

TEST_P(Family, GivesTheSameBitsForAnyNumberOfThreads) {
  const Ids ids = model_.many_ids(70);
  const auto run = [&](unsigned n_threads) {
    Decoder decoder = model_.decoder(n_threads);
    cache::Cache cache = model_.make_cache();
    Floats all = prefill(decoder, cache, std::span(ids).first(60));
    const Floats steps = take_steps(decoder, cache, std::span(ids).subspan(60));
    all.insert(all.end(), steps.begin(), steps.end());
    return all;
  };
  EXPECT_EQ(run(1), run(3));
}

TEST_P(Family, PacksFullAttentionAlone) {
  if (model_.config.context_length < 300) return;  // less than a token block and what follows it
  const Ids ids = model_.many_ids(300);
  Decoder decoder = model_.decoder();
  cache::Cache dense = model_.make_cache(Dtype::kF16);
  prefill(decoder, dense, std::span(ids).first(297));
  cache::Cache turbo = must(cache::convert(through_a_file(dense), {.n_threads = 1}));
  for (std::size_t i = 0; i < turbo.layers.size(); ++i) {
    const auto* attention = std::get_if<cache::AttentionLayer>(&turbo.layers[i]);
    const LayerConfig layer = model_.config.layer(static_cast<std::int64_t>(i));
    EXPECT_EQ(attention != nullptr, layer.kind == LayerKind::kAttention && layer.window == 0);
    if (attention == nullptr) continue;
    EXPECT_EQ(cache::packed_block_count(attention->k), 1);
  }
  const auto next = std::span(ids).subspan(297);
  cache::Cache again = through_a_file(turbo);
  Decoder other = model_.decoder();
  const Floats logits = take_steps(decoder, turbo, next);
  EXPECT_EQ(take_steps(other, again, next), logits);
  EXPECT_LT(test::relative_error(logits, take_steps(other, dense, next), kVocab), 0.5);
}

// --- windows

class Windows : public testing::TestWithParam<std::string> {
 protected:
  FixtureModel model_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Families, Windows,
                         testing::Values("mistral", "gemma2", "gemma3", "gpt_oss", "olmo3",
                                         "cohere2", "ministral", "cwm", "exaone4", "vaultgemma",
                                         "gemma3n", "gemma4", "gemma4_dense", "gemma4_moe"));

std::int64_t first_window(const ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    if (layer.window > 0) return layer.window;
  }
  return 0;
}

TEST_P(Windows, AreRotatingLayersOfTheNewestTokens) {
  Decoder decoder = model_.decoder();
  cache::Cache cache = model_.make_cache();
  prefill(decoder, cache, model_.ids());
  const cache::Cache loaded = through_a_file(cache);
  const std::int64_t window = first_window(model_.config);
  const auto& layer = std::get<cache::WindowLayer>(loaded.layers.front());
  EXPECT_EQ(layer.window, (cache::Window{window, 0}));
  EXPECT_EQ(layer.attention.shape, model_.config.layer(0).heads);
}

TEST_P(Windows, TakeNoMoreMemoryThanATokenBlockBeside) {
  Decoder decoder = model_.decoder();
  cache::Cache cache = model_.make_cache();
  prefill(decoder, cache, model_.many_ids(511));
  const auto& layer = std::get<cache::WindowLayer>(cache.layers.front());
  const auto& blocks = std::get<cache::DenseTensor>(layer.attention.k).blocks;
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_TRUE(blocks[0].empty());
  EXPECT_FALSE(blocks[1].empty());
}

TEST_P(Windows, RepeatTheLastLogits) {
  Decoder decoder = model_.decoder();
  cache::Cache cache = model_.make_cache();
  const auto last = must(decoder.prefill(cache, model_.ids()));
  const Floats expected(last.begin(), last.end());
  const cache::Cache loaded = through_a_file(cache);
  for (const cache::Cache* each : {&std::as_const(cache), &loaded}) {
    const auto again = must(decoder.last_logits(*each));
    EXPECT_EQ(Floats(again.begin(), again.end()), expected);
  }
}

TEST_P(Windows, MayBeATokenShorter) {
  Decoder decoder = model_.decoder();
  cache::Cache cache = model_.make_cache();
  prefill(decoder, cache, model_.ids());
  cache::Cache shorter = through_a_file(cache);
  for (cache::Layer& layer : shorter.layers) {
    // As transformers keeps it: without the token that is being computed.
    if (auto* window = std::get_if<cache::WindowLayer>(&layer)) window->window.size -= 1;
  }
  must(cache::validate(shorter));
  EXPECT_THAT(
      decoder.last_logits(shorter),
      test::FailsWith(ErrorCode::kUnsupported, HasSubstr("layer 0: keeps a window that has left")));
  const Ids next = {3, 1, 4};
  EXPECT_EQ(take_steps(decoder, shorter, next), take_steps(decoder, cache, next));
  EXPECT_EQ(must(format::write_cache_bytes(shorter, {})),
            must(format::write_cache_bytes(cache, {})));
}

TEST_P(Windows, OfOtherSizesAreRefused) {
  Decoder decoder = model_.decoder();
  const auto error_of = [&](const std::function<void(cache::WindowLayer&)>& change) {
    cache::Cache cache = model_.make_cache();
    change(std::get<cache::WindowLayer>(cache.layers.front()));
    const auto step = decoder.decode_step(cache, 1);
    EXPECT_FALSE(step.ok());
    EXPECT_EQ(step.error().code, ErrorCode::kMismatch);
    return step.error().message;
  };
  EXPECT_THAT(error_of([](auto& layer) { layer.window.size += 1; }),
              HasSubstr("layer 0: a window of"));
  EXPECT_THAT(error_of([](auto& layer) { layer.window.keep = 1; }),
              HasSubstr("1 of them the first ones"));
  EXPECT_THAT(error_of([](auto& layer) { layer.attention.shape.n_kv_heads = 1; }),
              HasSubstr("1 kv heads of 32 components; the model has 2 of 32"));
  cache::Cache cache = model_.make_cache();
  cache.layers.front() = cache::AttentionLayer{model_.config.head_shape(), {}, {}};
  EXPECT_THAT(decoder.decode_step(cache, 1).error().message,
              HasSubstr("layer 0: full attention; the model has a window of"));
  cache.layers.front() = cache::StateLayer{};
  EXPECT_THAT(decoder.decode_step(cache, 1).error().message,
              HasSubstr("layer 0: an arrays layer; the model has a window of"));
}

TEST_P(Windows, CannotBeCutShorter) {
  Decoder decoder = model_.decoder();
  cache::Cache cache = model_.make_cache();
  prefill(decoder, cache, model_.ids());
  EXPECT_EQ(cache::truncate(cache, 39).error().code, ErrorCode::kUnsupported);
}

// --- state without attention

class Hybrids : public testing::TestWithParam<std::string> {
 protected:
  cache::Cache prefilled() {
    Decoder decoder = model_.decoder();
    cache::Cache cache = model_.make_cache();
    prefill(decoder, cache, model_.ids());
    return cache;
  }
  cache::StateLayer& state(cache::Cache& cache) const {
    return std::get<cache::StateLayer>(cache.layers.front());
  }

  FixtureModel model_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Families, Hybrids, testing::Values("qwen3_next", "qwen3_5"));

TEST_P(Hybrids, KeepTheirStateAsMlxLmDoes) {
  cache::Cache cache = prefilled();
  const cache::StateLayer& layer = state(cache);
  ASSERT_EQ(layer.arrays.size(), 2u);
  EXPECT_EQ(layer.arrays[0].name, "0");
  EXPECT_EQ(layer.arrays[0].shape, (std::vector<std::uint64_t>{1, 3, 2 * 2 * 16 + 4 * 24}));
  EXPECT_EQ(layer.arrays[1].name, "1");
  EXPECT_EQ(layer.arrays[1].shape, (std::vector<std::uint64_t>{1, 4, 24, 16}));
}

TEST_P(Hybrids, DoNotComputeTheirLastTokenAgain) {
  cache::Cache cache = prefilled();
  Decoder decoder = model_.decoder();
  EXPECT_THAT(decoder.last_logits(cache),
              test::FailsWith(ErrorCode::kUnsupported,
                              HasSubstr("layer 0: keeps the state behind the last token")));
}

TEST_P(Hybrids, RefuseOtherArrays) {
  cache::Cache cache = prefilled();
  Decoder decoder = model_.decoder();
  state(cache).arrays[0].name = "conv";
  EXPECT_THAT(
      decoder.decode_step(cache, 1),
      test::FailsWith(ErrorCode::kMismatch, HasSubstr("layer 0: its arrays are not the state")));
  cache = prefilled();
  cache.layers.front() = cache::empty_window({1, 1}, {1, 0}, Dtype::kF32);
  EXPECT_THAT(decoder.decode_step(cache, 1).error().message,
              HasSubstr("layer 0: a rotating layer; the model has a gated delta net"));
  cache = prefilled();
  std::swap(cache.layers[0], cache.layers[1]);
  EXPECT_THAT(decoder.decode_step(cache, 1).error().message,
              HasSubstr("layer 0: full attention; the model has a gated delta net"));
}

// Values in another order: out[place(i)] = in[i].
cache::NamedArray moved(const cache::NamedArray& from, const std::string& name,
                        std::vector<std::uint64_t> shape,
                        const std::function<std::size_t(std::size_t)>& place) {
  std::uint64_t count = 1;
  for (const std::uint64_t n : shape) count *= n;
  cache::NamedArray to{name, Dtype::kF32, std::move(shape), AlignedBytes(count * 4)};
  for (std::size_t i = 0; i < from.data.size() / 4; ++i) {
    std::memcpy(to.data.data() + 4 * place(i), from.data.data() + 4 * i, 4);
  }
  return to;
}

TEST_P(Hybrids, GoOnFromTheStateOfTransformers) {
  cache::Cache cache = prefilled();
  cache::Cache other = cache;
  const cache::StateLayer ours = state(cache);
  constexpr std::size_t kChannels = 160;
  state(other).arrays = {
      // Four inputs, of which the oldest is not needed.
      moved(ours.arrays[0], "conv_states.0", {1, kChannels, 4},
            [](std::size_t i) { return i % kChannels * 4 + i / kChannels + 1; }),
      moved(ours.arrays[1], "recurrent_states.0", {1, 4, 16, 24}, [](std::size_t i) {
        const std::size_t head = i / (24 * 16), value = i / 16 % 24, key = i % 16;
        return (head * 16 + key) * 24 + value;
      })};
  Decoder decoder = model_.decoder();
  const Ids next = {3, 1, 4};
  EXPECT_EQ(take_steps(decoder, other, next), take_steps(decoder, cache, next));
  EXPECT_EQ(must(format::write_cache_bytes(other, {})), must(format::write_cache_bytes(cache, {})));
}

TEST_P(Hybrids, GoOnFromTheStateOfLlamaCpp) {
  cache::Cache cache = prefilled();
  constexpr std::size_t kChannels = 160, kKeys = 64, kHead = 24 * 16;
  for (const bool tiled : {false, true}) {
    model_.config.layout.tiled_value_heads = tiled;
    const auto head_in_file = [&](std::size_t head) {
      return tiled ? head % 2 * 2 + head / 2 : head;
    };
    cache::StateLayer layer = state(cache);
    const cache::StateLayer ours = layer;
    layer.arrays = {moved(ours.arrays[0], "r", {3 * kChannels},
                          [&](std::size_t i) {
                            std::size_t channel = i % kChannels;
                            if (channel >= kKeys) {
                              const std::size_t value = channel - kKeys;
                              channel = kKeys + head_in_file(value / 24) * 24 + value % 24;
                            }
                            return channel * 3 + i / kChannels;
                          }),
                    moved(ours.arrays[1], "s", {4 * kHead}, [&](std::size_t i) {
                      return head_in_file(i / kHead) * kHead + i % kHead;
                    })};
    must(adopt_delta_state(model_.config, layer));
    EXPECT_EQ(layer.arrays[0].data, ours.arrays[0].data) << tiled;
    EXPECT_EQ(layer.arrays[1].data, ours.arrays[1].data) << tiled;
  }
}

// --- forms of weights

// A tensor whose rows stand in another order: row i of the new one is row order[i] of the old one.
class Reordered {
 public:
  Reordered(const tensors::TensorView& tensor, const std::vector<std::size_t>& order) {
    const std::size_t row = tensor.bytes.size() / order.size();
    for (const std::size_t from : order) {
      const ByteView part = tensor.bytes.subspan(from * row, row);
      bytes_.insert(bytes_.end(), part.begin(), part.end());
    }
    view_ = tensor;
    view_.bytes = bytes_;
  }
  Reordered(const Reordered&) = delete;
  Reordered& operator=(const Reordered&) = delete;
  const tensors::TensorView& view() const { return view_; }

 private:
  Bytes bytes_;
  tensors::TensorView view_;
};

TEST(WeightForms, ReadsHeadsWhoseRowsAreInPairs) {
  for (const char* name : {"llama", "llama_biased"}) {
    FixtureModel model{name};
    Decoder decoder = model.decoder();
    cache::Cache cache = model.make_cache();
    const Floats expected = take_steps(decoder, cache, model.ids());
    std::map<std::string, Reordered> permuted;
    for (auto& [key, tensor] : model.tensors.by_name) {
      if (key.find("attn_q.") == std::string::npos && key.find("attn_k.") == std::string::npos) {
        continue;
      }
      std::vector<std::size_t> order;
      for (std::size_t i = 0; i < tensor.shape[0]; ++i) {
        order.push_back(i / 32 * 32 + i % 2 * 16 + i % 32 / 2);
      }
      tensor = permuted.try_emplace(key, tensor, order).first->second.view();
    }
    model.config.layout.permuted_heads = true;
    const Weights weights = must(read_weights(model.tensors.by_name, model.config));
    Decoder other(model.config, weights, 1);
    cache::Cache from_pairs = model.make_cache();
    EXPECT_EQ(take_steps(other, from_pairs, model.ids()), expected) << name;
    EXPECT_EQ(test::difference(from_pairs, cache), "") << name;
  }
}

// Value heads in tiles: file head t is ours of key head t % 2 and number t / 2. Runs of `size` rows
// behind the first `n_before`, which stay, `n_times` over.
std::vector<std::size_t> tiled_order(std::size_t n_before, std::size_t size,
                                     std::size_t n_times = 1) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < n_before; ++i) order.push_back(i);
  for (std::size_t time = 0; time < n_times; ++time) {
    for (std::size_t head = 0; head < 4; ++head) {
      const std::size_t ours = time * 4 + head % 2 * 2 + head / 2;
      for (std::size_t i = 0; i < size; ++i) order.push_back(n_before + ours * size + i);
    }
  }
  return order;
}

TEST(WeightForms, ReadsValueHeadsInTiles) {
  FixtureModel model{"qwen3_5"};
  Decoder decoder = model.decoder();
  cache::Cache cache = model.make_cache();
  const Floats expected = take_steps(decoder, cache, model.ids());
  const std::map<std::string, std::vector<std::size_t>> orders = {
      {"attn_qkv.weight", tiled_order(64, 24)}, {"ssm_conv1d.weight", tiled_order(64, 24)},
      {"attn_gate.weight", tiled_order(0, 24)}, {"ssm_beta.weight", tiled_order(0, 1)},
      {"ssm_alpha.weight", tiled_order(0, 1)},  {"ssm_a", tiled_order(0, 1)},
      {"ssm_dt.bias", tiled_order(0, 1)},       {"ssm_out.weight", tiled_order(0, 24, 32)}};
  std::map<std::string, Reordered> tiled;
  for (const auto& [name, order] : orders) {
    tensors::TensorView& tensor = model.tensors.by_name.at("blk.0." + name);
    tensor = tiled.try_emplace(name, tensor, order).first->second.view();
  }
  model.config.layout.tiled_value_heads = true;
  const Weights weights = must(read_weights(model.tensors.by_name, model.config));
  Decoder other(model.config, weights, 1);
  cache::Cache from_tiles = model.make_cache();
  const Floats logits = take_steps(other, from_tiles, model.ids());
  EXPECT_LT(test::relative_error(logits, expected, kVocab), 1e-5);
  // The state does not depend on the last product, whose sums are in another order.
  EXPECT_EQ(std::get<cache::StateLayer>(from_tiles.layers[0]).arrays[1].data,
            std::get<cache::StateLayer>(cache.layers[0]).arrays[1].data);
}

TEST(WeightForms, RefusesASurplusTensorOfTheWrongLayer) {
  FixtureModel model{"qwen2"};
  EXPECT_EQ(model.weights.n_tensors, static_cast<std::int64_t>(model.tensors.by_name.size()));
  model.tensors.by_name["blk.2.attn_q.weight"] = model.tensors.by_name["blk.1.attn_q.weight"];
  EXPECT_EQ(must(read_weights(model.tensors.by_name, model.config)).n_tensors + 1,
            static_cast<std::int64_t>(model.tensors.by_name.size()));
  model.config.layout.n_extra_layers = 1;  // a layer that predicts further tokens
  EXPECT_EQ(must(read_weights(model.tensors.by_name, model.config)).n_tensors,
            static_cast<std::int64_t>(model.tensors.by_name.size()));
}

}  // namespace architectures_test
}  // namespace tqcache::model
