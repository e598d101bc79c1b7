// bench/bench_attention.cpp: speed of attention in one decode step over one layer, on one thread:
// scores, mean removal, softmax, weighted sums.
//
//   attention/<preset>/<kernels>/<tokens>     16 query heads on 4 kv heads, head_dim 128
//
// The presets are those of convert() in bench_model.h; codes are scored with the fast kernels. The
// baseline is dense f16 in the same run, with kernels that are equally optimized.

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <vector>

#include "bench_model.h"
#include "tqcache/cache/kv_codec_state.h"
#include "tqcache/model/attention/step_attention.h"

namespace {

using namespace tqcache;
using namespace tqcache::bench;

// The same quantized blocks with other kernels.
cache::Tensor with_kernels(cache::Tensor tensor, const codec::Kernels& kernels) {
  if (auto* turbo = std::get_if<cache::TurboTensor>(&tensor)) {
    cache::KvCodec::State state = turbo->codec.state();
    state.codec = must(codec::HeadCodec::make(static_cast<int>(state.shape.head_dim),
                                              state.codec.parts(), state.codec.order(), kernels));
    turbo->codec = cache::KvCodec(std::move(state));
  }
  return tensor;
}

// One layer of every preset, made on first use.
class Layers {
 public:
  const cache::AttentionLayer& get(const std::string& preset, std::int64_t n_tokens) {
    auto& layer = layers_[{preset, n_tokens}];
    if (layer == nullptr) {
      cache::Cache cache = convert(noise_cache(bench_config(), 1, n_tokens), preset);
      layer = std::make_unique<cache::AttentionLayer>(
          std::get<cache::AttentionLayer>(std::move(cache.layers.front())));
    }
    return *layer;
  }

 private:
  std::map<std::pair<std::string, std::int64_t>, std::unique_ptr<cache::AttentionLayer>> layers_;
};

void attention(benchmark::State& state, Layers* layers, const std::string& preset,
               const codec::Kernels* kernels, std::int64_t n_tokens) {
  const model::ModelConfig config = bench_config();
  cache::AttentionLayer layer = layers->get(preset, n_tokens);
  layer.k = with_kernels(std::move(layer.k), *kernels);
  layer.v = with_kernels(std::move(layer.v), *kernels);
  const auto n_values = static_cast<std::size_t>(config.n_heads * config.head_dim);
  std::vector<std::byte> noise(n_values * 2);
  NoiseSource(1.0f, 5).fill(noise);
  std::vector<float> q(n_values), out(n_values);
  load_f32(Dtype::kF16, noise.data(), q);
  const model::Workers one_worker(1);
  model::StepAttention step(config.head_shape(), config.n_heads, config.rope,
                            {config.score_scale(), 0}, model::Scorer::kFast, *kernels);
  for (auto _ : state) {
    step.attend(layer, n_tokens, 0, q, out, one_worker);
    benchmark::DoNotOptimize(out.data());
  }
  const auto bytes = static_cast<double>(cache::byte_count(layer.k, layer.shape, n_tokens).used +
                                         cache::byte_count(layer.v, layer.shape, n_tokens).used);
  const auto rounds = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["tokens/s"] = Counter(rounds * static_cast<double>(n_tokens), Counter::kIsRate);
  state.counters["GB/s"] = Counter(rounds * bytes * 1e-9, Counter::kIsRate);
}

constexpr const char* kPresets[] = {"f16",    "turbo4",   "turbo4-none", "turbo3",
                                    "turbo2", "turbo3.5", "turbo2.5",    "k8v4",
                                    "kfv4",   "prod4",    "affine4"};

}  // namespace

int main(int argc, char** argv) {
  Layers layers;
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    for (const std::int64_t n_tokens : {4096, 32768, 131072}) {
      for (const std::string preset : kPresets) {
        const std::string name =
            "attention/" + preset + "/" + kernels->name + "/" + std::to_string(n_tokens);
        benchmark::RegisterBenchmark(name.c_str(), attention, &layers, preset, kernels, n_tokens)
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
