// Models of a few KB over caches that load: dense, turbo, windows, recurrent state and archives,
// with any values in the cache and in the weights. Prefill, decode and probe either give finite
// logits or an error, and an error leaves the cache as long as it was.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "fuzz/fuzz.h"
#include "support/cache_builder.h"
#include "support/gaussian.h"
#include "support/temp_dir.h"
#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"
#include "tqcache/model/loading/config_readers.h"
#include "tqcache/model/loading/model_files.h"
#include "tqcache/model/loading/weights.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

namespace tqcache {
namespace {

using fuzz::Input;
using fuzz::must;
using fuzz::require;

struct SmallModel {
  explicit SmallModel(const std::string& name) {
    const auto folder = std::filesystem::path(TQCACHE_TEST_DATA) / "architectures" / name;
    config = must(model::read_hf_config(test::read_all(folder / "config.json")), "a good config");
    tensors = must(model::map_hf_tensors(folder, config), "good weights");
    config.context_length = 1024;  // more tokens than some of them were made for
    if (config.tied_embeddings) tensors.by_name.erase("output.weight");
    weights = must(model::read_weights(tensors.by_name, config), "good weights");
  }

  model::ModelConfig config;
  model::ModelTensors tensors;
  model::Weights weights;
};

constexpr const char* kModels[] = {"llama",  "llama_biased", "mistral",   "qwen2",      "qwen3_moe",
                                   "gemma2", "gemma3",       "phi3_long", "qwen3_next", "qwen3_5"};
constexpr std::size_t kLayouts = 8;  // of caches
// Most inputs have few tokens, as the time of an input grows with them.
constexpr std::int64_t kTokens[] = {3, 40, 255, 256, 300, 3, 40, 1, 8, 17, 3, 24, 2, 9,  24, 5,
                                    7, 1,  2,   3,   4,   6, 8,  5, 9, 10, 2, 3,  6, 12, 4,  16};

const SmallModel& model_of(std::size_t index) {
  static std::array<std::unique_ptr<SmallModel>, std::size(kModels)> models;
  if (!models[index]) models[index] = std::make_unique<SmallModel>(kModels[index]);
  return *models[index];
}

std::vector<std::int32_t> prompt(const model::ModelConfig& config, std::int64_t n) {
  test::SplitMix64 random(5);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n; ++i) {
    ids.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.vocab_size))));
  }
  return ids;
}

cache::ConvertOptions options_of(std::size_t form) {
  constexpr const char* kSettings[] = {"turbo4", "turbo2.5", "prod3", "affine4",
                                       "k=trellis:0.25,v=trellis:1"};
  cache::ConvertOptions options =
      must(cache::parse_configuration(kSettings[form - 3]), "known settings").options;
  options.n_threads = 1;
  options.windows = cache::WindowMode::kTurbo;
  return options;
}

// As it comes out of a file; nothing if it cannot be written or read.
std::optional<cache::Cache> through_file(const cache::Cache& cache) {
  const auto file =
      format::write_cache_bytes(cache, {.compression = format::Compression::kNone, .n_threads = 1});
  if (!file) return std::nullopt;
  auto loaded = format::read_cache(*memory_source(*file), {.n_threads = 1});
  if (!loaded) return std::nullopt;
  return std::move(loaded).value();
}

// Of a model that is as it should be. Made once each. Nothing where a model's heads do not fit the
// codec.
const Result<cache::Cache>& good_cache(std::size_t which, std::size_t form, std::int64_t n) {
  static std::map<std::tuple<std::size_t, std::size_t, std::int64_t>, Result<cache::Cache>> made;
  const auto key = std::tuple(which, form, n);
  const auto found = made.find(key);
  if (found != made.end()) return found->second;
  const SmallModel& model = model_of(which);
  constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
  const Dtype dtype = kDtypes[form % 3];
  cache::Identity identity;
  identity.rope = model.config.rope;
  cache::Cache cache =
      must(model::make_cache(model.config, std::move(identity), dtype), "a new cache");
  model::Decoder decoder(model.config, model.weights, 1);
  must(decoder.prefill(cache, prompt(model.config, n)), "a prompt");
  Result<cache::Cache> result = form < 3 ? Result<cache::Cache>(std::move(cache))
                                         : cache::convert(std::move(cache), options_of(form));
  if (result) {
    auto loaded = through_file(*result);
    require(loaded.has_value(), "a good cache can be loaded");
    result = *std::move(loaded);
  }
  return made.emplace(key, std::move(result)).first->second;
}

float extreme(Input& input) {
  constexpr float kValues[] = {std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(),
                               3.4e38f,
                               -3.4e38f,
                               1e19f,
                               -1e30f,
                               65504.0f,
                               1e-40f,
                               0.0f};
  return input.flag() ? input.one_of(kValues) : input.take<float>();
}

// One value, or all of them, or one byte.
void spoil(Input& input, Dtype dtype, std::span<std::byte> bytes) {
  if (bytes.empty()) return;
  const std::size_t size = dtype_size(dtype);
  const std::size_t kind = input.below(3);
  if (kind == 0) {
    bytes[input.take<std::uint32_t>() % bytes.size()] =
        static_cast<std::byte>(input.take<std::uint8_t>());
    return;
  }
  const std::size_t n = bytes.size() / size;
  const std::vector<float> values(kind == 1 ? std::min<std::size_t>(n, 1) : n, extreme(input));
  const std::size_t first = kind == 1 ? input.take<std::uint32_t>() % n : 0;
  store_f32(dtype, values, bytes.data() + first * size);
}

void spoil_tensor(Input& input, cache::Tensor& tensor) {
  auto* turbo = std::get_if<cache::TurboTensor>(&tensor);
  if (turbo != nullptr && !turbo->packed.empty() && input.flag()) {
    cache::TurboBlock& block = turbo->packed[input.below(turbo->packed.size())];
    const ByteView view = block.bytes.view();
    AlignedBytes bytes(view.begin(), view.end());
    spoil(input, Dtype::kF16, bytes);
    block.bytes = SharedBytes(std::move(bytes));
    return;
  }
  if (turbo != nullptr && input.below(4) == 0) {
    test::edit_codec(turbo->codec, [&](cache::KvCodec::State& state) {
      for (float& value : state.mean.values) value = extreme(input);
    });
    return;
  }
  cache::DenseTensor& dense = turbo != nullptr ? turbo->tail : std::get<cache::DenseTensor>(tensor);
  if (dense.blocks.empty()) return;
  spoil(input, dense.dtype, dense.blocks[input.below(dense.blocks.size())]);
}

void spoil_layer(Input& input, cache::Layer& layer) {
  if (cache::AttentionLayer* rows = cache::attention_of(layer)) {
    return spoil_tensor(input, input.flag() ? rows->k : rows->v);
  }
  auto& arrays = std::get<cache::StateLayer>(layer).arrays;
  cache::NamedArray& array = arrays[input.below(arrays.size())];
  spoil(input, array.dtype, array.data);
}

void check(const Result<std::span<const float>>& logits) {
  if (!logits) {
    require(!logits.error().message.empty(), "an error has a message");
    require(logits.error().code != ErrorCode::kInterrupted, "nobody has asked to stop");
    return;
  }
  require(std::ranges::all_of(*logits, [](float x) { return std::isfinite(x); }),
          "logits are finite");
}

void decode(const SmallModel& model, const model::Weights& weights, cache::Cache cache) {
  model::Decoder decoder(model.config, weights, 1);
  check(decoder.last_logits(cache));
  const std::vector<std::int32_t> ids = prompt(model.config, 5);
  for (const std::size_t n : {1u, 1u, 2u}) {
    const std::int64_t before = cache.n_tokens();
    const auto logits = decoder.prefill(cache, std::span(ids).first(n));
    check(logits);
    const auto done = cache.n_tokens() - before;
    require(logits.ok() ? done == static_cast<std::int64_t>(n) : done >= 0 && done < 3,
            "tokens are counted when they are done");
    if (!logits) return;
  }
}

// As `verify -m` does it: the last tokens are taken away and computed again.
void probe(const SmallModel& model, const model::Weights& weights, const cache::Cache& cache) {
  constexpr std::int64_t kProbed = 8;
  const std::int64_t kept = std::max<std::int64_t>(cache.n_tokens() - kProbed, 0);
  auto cut = cache::truncate(cache, kept);
  if (!cut) return;
  model::Decoder decoder(model.config, weights, 1);
  const auto ids = std::span(cache.tokens).subspan(static_cast<std::size_t>(kept));
  check(decoder.prefill(*cut, ids));
  const auto ignore = [](std::int64_t, std::span<const float>) -> Result<void> { return {}; };
  const auto again = decoder.queries(cache, cache.n_tokens() - 1, 1, ignore);
  if (!again) require(!again.error().message.empty(), "an error has a message");
}

void run(ByteView bytes) {
  Input input(bytes);
  const std::size_t which = input.below(std::size(kModels));
  const SmallModel& model = model_of(which);
  const std::size_t form = input.below(kLayouts);
  const Result<cache::Cache>& good = good_cache(which, form, input.one_of(kTokens));
  if (!good) return;
  // Through a file, as hostile ones come.
  std::optional<cache::Cache> loaded = *good;
  if (const std::size_t n = input.below(4); n > 0) {
    for (std::size_t i = 0; i < n; ++i) {
      spoil_layer(input, loaded->layers[input.below(loaded->layers.size())]);
    }
    loaded = through_file(*loaded);
  }
  if (!loaded) return;

  std::vector<Bytes> changed(input.below(3));
  model::Tensors tensors;
  if (!changed.empty()) tensors = model.tensors.by_name;
  for (Bytes& each : changed) {
    auto tensor =
        std::next(tensors.begin(), static_cast<std::ptrdiff_t>(input.below(tensors.size())));
    each.assign(tensor->second.bytes.begin(), tensor->second.bytes.end());
    spoil(input, tensor->second.type == tensors::TensorType::kBF16 ? Dtype::kBF16 : Dtype::kF32,
          each);
    tensor->second.bytes = each;
  }
  std::optional<model::Weights> weights;
  if (!changed.empty()) {
    auto read = model::read_weights(tensors, model.config);
    if (!read) return;
    weights = std::move(read).value();
  }
  const model::Weights& used = weights ? *weights : model.weights;
  // One of the two, because each takes milliseconds.
  if (input.flag()) return probe(model, used, *loaded);
  decode(model, used, std::move(*loaded));
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tqcache::run(tqcache::fuzz::view_of(data, size));
  return 0;
}
