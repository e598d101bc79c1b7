// What the kernels reach on this machine's GPU, for `tqcache bench --device cuda`.

#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tqcache/cuda/check.cuh"
#include "tqcache/cuda/cuda_measure.h"

namespace tqcache::cuda {
namespace {

constexpr int kWarmUps = 3;

// Memory of the device, freed with its owner.
struct Freed {
  void operator()(void* memory) const { cudaFree(memory); }
};
using Memory = std::unique_ptr<void, Freed>;

Result<Memory> allocate(std::size_t bytes) {
  void* memory = nullptr;
  TQC_TRY(check(cudaMalloc(&memory, bytes), "memory of the GPU"));
  return Memory(memory);
}

template <class T>
Result<Memory> copied(const std::vector<T>& from) {
  TQC_TRY_ASSIGN(Memory memory, allocate(from.size() * sizeof(T)));
  TQC_TRY(
      check(cudaMemcpy(memory.get(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
            "cudaMemcpy"));
  return Result<Memory>(std::move(memory));
}

// Bell-shaped numbers of variance 1, other ones at each place.
__global__ void fill_bells(__half* to, long long n, std::uint32_t seed) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    std::uint64_t z = (static_cast<std::uint64_t>(seed) << 40) + i * 0x9e3779b97f4a7c15ull;
    float sum = 0;
    for (int k = 0; k < 3; ++k) {
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
      z ^= z >> 31;
      sum += static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
    }
    to[i] = __float2half_rn(sum);
  }
}

// The median time of a call in seconds. Before each call other memory passes through the L2 cache,
// as the other layers of a model would.
Result<double> median_seconds(int n_runs, const std::function<Result<void>()>& run) {
  int device = 0, cache_bytes = 0;
  TQC_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
  TQC_TRY(check(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device),
                "cudaDeviceGetAttribute"));
  const auto flushed_bytes = 2 * static_cast<std::size_t>(cache_bytes);
  TQC_TRY_ASSIGN(const Memory flushed, allocate(std::max<std::size_t>(16, flushed_bytes)));

  struct Event {
    cudaEvent_t event = nullptr;
    Event() = default;
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() {
      if (event != nullptr) cudaEventDestroy(event);
    }
  };
  std::vector<Event> begins(static_cast<std::size_t>(n_runs));
  std::vector<Event> ends(static_cast<std::size_t>(n_runs));
  for (auto* events : {&begins, &ends}) {
    for (Event& each : *events) TQC_TRY(check(cudaEventCreate(&each.event), "cudaEventCreate"));
  }
  for (int i = 0; i < kWarmUps; ++i) TQC_TRY(run());
  for (std::size_t i = 0; i < begins.size(); ++i) {
    TQC_TRY(check(cudaMemsetAsync(flushed.get(), static_cast<int>(i), flushed_bytes),
                  "cudaMemsetAsync"));
    TQC_TRY(check(cudaEventRecord(begins[i].event), "cudaEventRecord"));
    TQC_TRY(run());
    TQC_TRY(check(cudaEventRecord(ends[i].event), "cudaEventRecord"));
  }
  TQC_TRY(check(cudaDeviceSynchronize(), "the kernels"));
  std::vector<float> times(begins.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    TQC_TRY(check(cudaEventElapsedTime(&times[i], begins[i].event, ends[i].event),
                  "cudaEventElapsedTime"));
  }
  std::ranges::nth_element(times, times.begin() + n_runs / 2);
  return static_cast<double>(times[static_cast<std::size_t>(n_runs / 2)]) * 1e-3;
}

}  // namespace

Result<Rates> measure(const Workload& work) {
  const std::int64_t most_tokens = std::int64_t{1} << 24;
  if (work.n_runs < 1 || work.n_runs > 1000 || work.n_tokens < 1 || work.n_tokens > most_tokens ||
      work.n_tokens % 256 != 0 || work.n_sequences < 1 || work.n_sequences > 1024 ||
      work.n_kv_heads < 1 || work.n_kv_heads > 1024 ||
      work.n_query_heads % std::max(1, work.n_kv_heads) != 0 || work.n_query_heads < 1) {
    return invalid("measure: numbers of runs, tokens, sequences or heads");
  }
  if (work.values.head_dim() != work.keys.head_dim()) return invalid("measure: two sizes of heads");
  const int head_dim = static_cast<int>(work.keys.head_dim());
  TQC_TRY_ASSIGN(const DeviceCodec keys, DeviceCodec::make(work.keys));
  TQC_TRY_ASSIGN(const DeviceCodec values, DeviceCodec::make(work.values));

  // The rows of all sequences behind each other: a run of tokens is encoded as if it were one.
  const std::int64_t n_rows = work.n_tokens * work.n_sequences;
  const std::int64_t n_blocks = n_rows / 256;
  const auto n_heads = static_cast<std::size_t>(work.n_kv_heads);
  const std::size_t dense_bytes =
      static_cast<std::size_t>(n_rows) * n_heads * static_cast<std::size_t>(head_dim) * 2;
  Rates rates;
  rates.dense_bytes = 2 * dense_bytes;

  // The mean of keys before RoPE of base 1e6, as every cache has it.
  std::vector<double> turns;
  std::vector<float> cos, sin, mean(n_heads * static_cast<std::size_t>(head_dim));
  constexpr double kTwoPi = 6.283185307179586;
  for (int i = 0; i < head_dim / 2; ++i) {
    turns.push_back(std::pow(1e6, -2.0 * i / head_dim) / kTwoPi);
  }
  for (int j = 0; j < 256; ++j) {
    for (const double turn : turns) {
      cos.push_back(static_cast<float>(std::cos(kTwoPi * turn * j)));
      sin.push_back(static_cast<float>(std::sin(kTwoPi * turn * j)));
    }
  }
  for (std::size_t i = 0; i < mean.size(); ++i) {
    mean[i] = static_cast<float>(i * 37 % 101) / 50.0f - 1.0f;
  }
  TQC_TRY_ASSIGN(const Memory d_turns, copied(turns));
  TQC_TRY_ASSIGN(const Memory d_cos, copied(cos));
  TQC_TRY_ASSIGN(const Memory d_sin, copied(sin));
  TQC_TRY_ASSIGN(const Memory d_mean, copied(mean));
  Centering turning;
  turning.mean = static_cast<const float*>(d_mean.get());
  turning.n_pairs = head_dim / 2;
  turning.turns = static_cast<const double*>(d_turns.get());
  turning.cos = static_cast<const float*>(d_cos.get());
  turning.sin = static_cast<const float*>(d_sin.get());
  Centering plain;
  plain.mean = turning.mean;
  TQC_TRY_ASSIGN(const DeviceSinusoids sinusoids, DeviceSinusoids::make(turns));

  TQC_TRY_ASSIGN(const Memory rows, allocate(dense_bytes));
  TQC_TRY_ASSIGN(const Memory other_rows, allocate(dense_bytes));
  fill_bells<<<1024, 256>>>(static_cast<__half*>(rows.get()),
                            static_cast<long long>(dense_bytes / 2), 1);
  TQC_TRY(check_launch("fill_bells"));
  TQC_TRY_ASSIGN(const double copying, median_seconds(work.n_runs, [&] {
                   return check(cudaMemcpyAsync(other_rows.get(), rows.get(), dense_bytes,
                                                cudaMemcpyDeviceToDevice),
                                "cudaMemcpyAsync");
                 }));
  rates.copy_seconds = 2 * copying;  // of K and of V

  TQC_TRY_ASSIGN(const Memory status, allocate(4));
  TQC_TRY(check(cudaMemset(status.get(), 0xff, 4), "cudaMemset"));
  AttentionStep step;
  std::vector<Memory> pages;
  for (const auto& [codec, center] : {std::pair(&keys, &turning), {&values, &plain}}) {
    const std::int64_t page_bytes = codec->page_bytes(work.n_kv_heads);
    const auto bytes = static_cast<std::size_t>(page_bytes * n_blocks);
    rates.packed_bytes += bytes;
    TQC_TRY_ASSIGN(Memory packed, allocate(bytes));
    TokenRun run;
    run.n_tokens = n_rows;
    run.n_kv_heads = work.n_kv_heads;
    const DenseRows dense{rows.get(), Dtype::kF16, head_dim,
                          static_cast<std::int64_t>(head_dim) * n_rows};
    const DenseRows decoded{other_rows.get(), Dtype::kF16, dense.token_stride, dense.head_stride};
    const PackedPages to{static_cast<std::byte*>(packed.get()), page_bytes};
    TQC_TRY_ASSIGN(const Memory workspace, allocate(std::max<std::size_t>(
                                               16, codec_workspace_bytes(*codec, *center, run))));
    TQC_TRY_ASSIGN(const double encoding, median_seconds(work.n_runs, [&, c = codec, m = center] {
                     return encode(*c, dense, run, *m, to, workspace.get(),
                                   static_cast<std::uint32_t*>(status.get()), nullptr);
                   }));
    TQC_TRY_ASSIGN(const double decoding, median_seconds(work.n_runs, [&, c = codec, m = center] {
                     return decode(*c, to, run, *m, decoded, workspace.get(), nullptr);
                   }));
    rates.encode_seconds += encoding;
    rates.decode_seconds += decoding;
    AttentionPages& tensor = codec == &keys ? step.keys : step.values;
    tensor.codec = codec;
    tensor.data = to.data;
    tensor.page_bytes = page_bytes;
    tensor.center.mean = center->mean;
    tensor.center.n_pairs = center->n_pairs;
    pages.push_back(std::move(packed));
  }
  step.keys.sinusoids = &sinusoids;
  std::uint32_t word = 0;
  TQC_TRY(check(cudaMemcpy(&word, status.get(), 4, cudaMemcpyDeviceToHost), "cudaMemcpy"));
  TQC_TRY(encode_status(word));

  // One decode step, if there is a kernel for it.
  step.n_sequences = work.n_sequences;
  step.n_query_heads = work.n_query_heads;
  step.n_kv_heads = work.n_kv_heads;
  step.head_dim = head_dim;
  step.max_blocks = static_cast<int>(work.n_tokens / 256);
  step.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const std::size_t query_bytes = static_cast<std::size_t>(work.n_sequences) *
                                  static_cast<std::size_t>(work.n_query_heads) *
                                  static_cast<std::size_t>(head_dim) * 2;
  TQC_TRY_ASSIGN(const Memory queries, allocate(query_bytes));
  TQC_TRY_ASSIGN(const Memory output, allocate(query_bytes));
  fill_bells<<<64, 256>>>(static_cast<__half*>(queries.get()),
                          static_cast<long long>(query_bytes / 2), 2);
  TQC_TRY(check_launch("fill_bells"));
  step.queries = queries.get();
  step.output = output.get();
  const std::vector<std::int32_t> lengths(static_cast<std::size_t>(work.n_sequences),
                                          static_cast<std::int32_t>(work.n_tokens));
  TQC_TRY_ASSIGN(const Memory n_packed, copied(lengths));
  step.n_packed = static_cast<const std::int32_t*>(n_packed.get());
  const Result<std::size_t> bytes = attention_workspace_bytes(step);
  if (!bytes && bytes.error().code == ErrorCode::kUnsupported) return rates;
  if (!bytes) return bytes.error();
  TQC_TRY_ASSIGN(const Memory workspace, allocate(std::max<std::size_t>(16, *bytes)));
  const auto attend_once = [&] { return attend(step, workspace.get(), nullptr); };
  const Result<double> attending = median_seconds(work.n_runs, attend_once);
  if (!attending && attending.error().code == ErrorCode::kUnsupported) return rates;
  if (!attending) return attending.error();
  rates.attend_seconds = *attending;
  return rates;
}

}  // namespace tqcache::cuda
