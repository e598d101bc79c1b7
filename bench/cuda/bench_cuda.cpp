// Speed of the CUDA kernels, as a fraction of the bandwidth that a copy in device memory reaches.
//
//   bench_cuda [attention] [codec] [planes]
//   bench_cuda one BATCH TOKENS HEAD_DIM KEY_BITS VALUE_BITS QUERY_HEADS TURNS
//                                                a single line, for profilers; TURNS: 1 for a mean
//                                                of keys that turns with RoPE
//   bench_cuda few                                               the lines that the aims are about
//
// Every figure is the median of 30 runs, timed with events. Codes are random, so that no run is
// faster than real data would be. Consecutive runs use different memory where the data would fit
// into the L2 cache.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tqcache/base/half.h"
#include "tqcache/cuda/cuda_attention.h"
#include "tqcache/cuda/cuda_codec.h"
#include "tqcache/cuda/cuda_planes.h"

namespace {

using namespace tqcache;

constexpr int kRuns = 30;
constexpr int kWarmUps = 5;

void must(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(code));
  std::exit(1);
}
template <class T>
T must(Result<T> result) {
  if (result) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::exit(1);
}
void must(Result<void> result) {
  if (result) return;
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  std::exit(1);
}

struct Memory {
  explicit Memory(std::size_t bytes) : size(bytes) { must(cudaMalloc(&data, bytes)); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data); }
  std::byte* at(std::size_t offset = 0) const { return static_cast<std::byte*>(data) + offset; }
  void* data = nullptr;
  std::size_t size;
};

// Random bytes. Made once on the host, and repeated.
void fill_random(std::byte* data, std::size_t size) {
  static const std::vector<std::uint32_t> numbers = [] {
    std::mt19937 random(1);
    std::vector<std::uint32_t> values(4 << 20);
    for (auto& value : values) value = static_cast<std::uint32_t>(random());
    return values;
  }();
  const std::size_t piece = numbers.size() * 4;
  for (std::size_t at = 0; at < size; at += piece) {
    must(cudaMemcpy(data + at, numbers.data(), std::min(piece, size - at), cudaMemcpyHostToDevice));
  }
}

// Seconds of one call, the median. `run` gets the number of the call.
double seconds(const std::function<void(int)>& run) {
  std::vector<cudaEvent_t> events(2 * kRuns);
  for (auto& event : events) must(cudaEventCreate(&event));
  for (int i = 0; i < kWarmUps; ++i) run(i);
  must(cudaDeviceSynchronize());
  for (int i = 0; i < kRuns; ++i) {
    must(cudaEventRecord(events[2 * i]));
    run(kWarmUps + i);
    must(cudaEventRecord(events[2 * i + 1]));
  }
  must(cudaDeviceSynchronize());
  std::vector<float> times(kRuns);
  for (int i = 0; i < kRuns; ++i) {
    must(cudaEventElapsedTime(&times[i], events[2 * i], events[2 * i + 1]));
  }
  for (auto& event : events) cudaEventDestroy(event);
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return static_cast<double>(times[kRuns / 2]) * 1e-3;
}

double copy_bandwidth() {
  const std::size_t size = std::size_t{1} << 30;
  const Memory from(size), to(size);
  fill_random(from.at(), size);
  const double time = seconds(
      [&](int) { must(cudaMemcpyAsync(to.data, from.data, size, cudaMemcpyDeviceToDevice)); });
  return 2.0 * static_cast<double>(size) / time;
}

codec::HeadCodec make_codec(int head_dim, int bits, codec::BlockOrder order) {
  codec::CodecSpec spec;
  spec.head_dim = head_dim;
  spec.bits = bits;
  return must(codec::HeadCodec::make(spec, order));
}

// Full turns per token of a model with RoPE of base 1e6.
std::vector<double> rope_turns(int head_dim) {
  std::vector<double> turns;
  for (int i = 0; i < head_dim / 2; ++i) {
    turns.push_back(std::pow(1e6, -2.0 * i / head_dim) / 6.283185307179586);
  }
  return turns;
}

struct Setting {
  int batch, tokens, head_dim, n_kv_heads, n_query_heads, key_bits, value_bits;
  bool mean_turns = false;  // of keys, subtracted before RoPE
};

void bench_attention(const Setting& s, double copy) {
  const auto k = must(cuda::DeviceCodec::make(
      make_codec(s.head_dim, std::min(s.key_bits, 8), codec::BlockOrder::kKeys)));
  const auto v = must(
      cuda::DeviceCodec::make(make_codec(s.head_dim, s.value_bits, codec::BlockOrder::kValues)));
  const bool is_dense = s.key_bits == 16;
  const std::size_t k_page = is_dense
                                 ? static_cast<std::size_t>(s.n_kv_heads * 256 * s.head_dim * 2)
                                 : static_cast<std::size_t>(k.page_bytes(s.n_kv_heads));
  const std::size_t v_page = static_cast<std::size_t>(v.page_bytes(s.n_kv_heads));
  const int max_blocks = (s.tokens + 255) / 256;
  const std::size_t pages =
      static_cast<std::size_t>(s.batch) * static_cast<std::size_t>(max_blocks);
  // Several sets, so that no run finds its data in the L2 cache.
  const std::size_t bytes = pages * (k_page + v_page);
  const std::size_t n_sets = std::clamp<std::size_t>((std::size_t{400} << 20) / bytes + 1, 1, 32);
  const Memory k_pages(n_sets * pages * k_page), v_pages(n_sets * pages * v_page);
  fill_random(k_pages.at(), k_pages.size);
  fill_random(v_pages.at(), v_pages.size);
  // Scales near 1.
  std::vector<std::uint16_t> scales(256 * static_cast<std::size_t>(s.n_kv_heads));
  std::mt19937 random(2);
  for (auto& scale : scales) {
    scale = f32_to_f16(std::uniform_real_distribution<float>(0.5f, 1.5f)(random));
  }
  const std::size_t row = scales.size() * 2;
  const Memory row_bytes(row);
  must(cudaMemcpy(row_bytes.data, scales.data(), row, cudaMemcpyHostToDevice));
  for (const auto& [memory, page, is_packed] :
       {std::tuple(&k_pages, k_page, !is_dense), {&v_pages, v_page, true}}) {
    if (is_packed) {
      for (std::size_t i = 0; i < n_sets * pages; ++i) {
        must(cudaMemcpyAsync(memory->at(i * page + page - row), row_bytes.data, row,
                             cudaMemcpyDeviceToDevice));
      }
    } else {
      std::vector<std::uint16_t> values(std::size_t{1} << 20);
      for (auto& value : values) value = f32_to_f16(std::normal_distribution<float>()(random));
      for (std::size_t at = 0; at < memory->size; at += values.size() * 2) {
        must(cudaMemcpy(memory->at(at), values.data(),
                        std::min(values.size() * 2, memory->size - at), cudaMemcpyHostToDevice));
      }
    }
  }
  const std::size_t n_values =
      static_cast<std::size_t>(s.batch) * static_cast<std::size_t>(s.n_query_heads * s.head_dim);
  std::vector<std::uint16_t> query_values(n_values);
  for (auto& value : query_values) value = f32_to_f16(std::normal_distribution<float>()(random));
  const Memory queries(n_values * 2), output(n_values * 2);
  must(cudaMemcpy(queries.data, query_values.data(), n_values * 2, cudaMemcpyHostToDevice));
  const std::vector<std::int32_t> lengths(static_cast<std::size_t>(s.batch), s.tokens);
  const Memory n_packed(lengths.size() * 4);
  must(cudaMemcpy(n_packed.data, lengths.data(), lengths.size() * 4, cudaMemcpyHostToDevice));

  cuda::AttentionStep step;
  step.n_sequences = s.batch;
  step.n_query_heads = s.n_query_heads;
  step.n_kv_heads = s.n_kv_heads;
  step.head_dim = s.head_dim;
  step.max_blocks = max_blocks;
  step.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  step.queries = queries.data;
  step.output = output.data;
  step.n_packed = static_cast<const std::int32_t*>(n_packed.data);
  step.keys.codec = is_dense ? nullptr : &k;
  step.keys.page_bytes = static_cast<std::int64_t>(k_page);
  step.values.codec = &v;
  step.values.page_bytes = static_cast<std::int64_t>(v_page);
  const cuda::DeviceSinusoids sinusoids = must(cuda::DeviceSinusoids::make(rope_turns(s.head_dim)));
  std::vector<float> mean_values(static_cast<std::size_t>(s.n_kv_heads * s.head_dim));
  for (float& x : mean_values) x = std::normal_distribution<float>()(random);
  const Memory mean(mean_values.size() * 4);
  must(cudaMemcpy(mean.data, mean_values.data(), mean.size, cudaMemcpyHostToDevice));
  if (s.mean_turns) {
    step.keys.center.mean = static_cast<const float*>(mean.data);
    step.keys.center.n_pairs = s.head_dim / 2;
    step.keys.sinusoids = &sinusoids;
  }
  const Memory workspace(must(cuda::attention_workspace_bytes(step)));
  const double time = seconds([&](int i) {
    const std::size_t set = static_cast<std::size_t>(i) % n_sets;
    step.keys.data = k_pages.at(set * pages * k_page);
    step.values.data = v_pages.at(set * pages * v_page);
    must(cuda::attend(step, workspace.data, nullptr));
  });
  const double rate = static_cast<double>(bytes) / time;
  std::printf("| %d | %d | %d | k%d v%d%s | %d/%d | %.1f | %.0f | %.1f |\n", s.batch, s.tokens,
              s.head_dim, s.key_bits, s.value_bits, s.mean_turns ? ", mean rotates" : "",
              s.n_query_heads, s.n_kv_heads, time * 1e6, rate * 1e-9, 100 * rate / copy);
  std::fflush(stdout);
}

void print_attention_head() {
  std::printf(
      "\n| batch | tokens | head_dim | bits | heads | us | GB/s | %% of copy |\n"
      "|---|---|---|---|---|---|---|---|\n");
}

void bench_all_attention(double copy) {
  print_attention_head();
  for (const auto& [k, v] : {std::pair(4, 4), {3, 3}, {2, 2}, {8, 8}, {8, 4}, {4, 3}, {16, 4}}) {
    for (const auto& [batch, tokens] : {std::pair(1, 131072), {32, 8192}}) {
      bench_attention({batch, tokens, 128, 8, 32, k, v}, copy);
    }
  }
  for (const auto& [batch, tokens] : {std::pair(1, 8192), {1, 131072}, {32, 8192}}) {
    for (const int bits : {4, 2}) {
      bench_attention({batch, tokens, 128, 8, 32, bits, bits, true}, copy);
    }
  }
  for (const auto& [batch, tokens] : {std::pair(1, 1024),
                                      {1, 4096},
                                      {1, 8192},
                                      {1, 16384},
                                      {1, 32768},
                                      {1, 65536},
                                      {8, 1024},
                                      {8, 8192},
                                      {8, 32768},
                                      {64, 1024},
                                      {64, 8192}}) {
    bench_attention({batch, tokens, 128, 8, 32, 4, 4}, copy);
  }
  for (const int head_dim : {64, 96, 256}) {
    for (const auto& [batch, tokens] : {std::pair(1, 131072), {32, 8192}}) {
      for (const bool mean_turns : {false, true}) {
        bench_attention({batch, tokens, head_dim, 8, 32, 4, 4, mean_turns}, copy);
      }
    }
  }
  for (const int n_query_heads : {8, 64, 128}) {
    for (const bool mean_turns : {false, true}) {
      bench_attention({1, 131072, 128, 8, n_query_heads, 4, 4, mean_turns}, copy);
    }
  }
}

#include "bench_cuda_codec.h"

// Numbers of 1 GiB. Bytes counted: read and written.
void bench_planes(int width, double copy) {
  const std::int64_t n = (std::int64_t{1} << 30) / width;
  const Memory numbers(std::size_t{1} << 30), memory(std::size_t{1} << 30);
  fill_random(numbers.at(), numbers.size);
  cuda::BytePlanes planes{};
  for (std::size_t p = 0; p < static_cast<std::size_t>(width); ++p) {
    planes[p] = memory.at(p * static_cast<std::size_t>(n));
  }
  const double bytes = 2.0 * static_cast<double>(numbers.size);
  const double splitting =
      seconds([&](int) { must(cuda::split_planes(numbers.data, n, width, planes, nullptr)); });
  const double joining =
      seconds([&](int) { must(cuda::join_planes(planes, n, width, numbers.data, nullptr)); });
  std::printf("| %d | %.0f | %.1f | %.0f | %.1f |\n", width, bytes / splitting * 1e-9,
              100 * bytes / splitting / copy, bytes / joining * 1e-9, 100 * bytes / joining / copy);
}

void bench_all_planes(double copy) {
  std::printf(
      "\n| bytes of a number | split GB/s | %% of copy | join GB/s | %% of copy |\n"
      "|---|---|---|---|---|\n");
  for (const int width : {2, 4}) bench_planes(width, copy);
}

void bench_few(double copy) {
  print_attention_head();
  for (const auto& [batch, tokens] : {std::pair(1, 131072), {32, 8192}}) {
    for (const int bits : {4, 3, 2}) {
      for (const bool mean_turns : {false, true}) {
        bench_attention({batch, tokens, 128, 8, 32, bits, bits, mean_turns}, copy);
      }
    }
  }
  print_codec_head();
  for (const auto mean : {CodecSetting::kNone, CodecSetting::kPlain, CodecSetting::kTurns}) {
    bench_codec({128, 4, codec::BlockOrder::kKeys, Dtype::kF16, mean}, copy);
  }
  bench_all_planes(copy);
}

}  // namespace

int main(int argc, char** argv) {
  const auto wants = [&](const char* what) {
    return argc == 1 || std::any_of(argv + 1, argv + argc,
                                    [&](const char* arg) { return std::strcmp(arg, what) == 0; });
  };
  cudaDeviceProp properties;
  must(cudaGetDeviceProperties(&properties, 0));
  const double copy = copy_bandwidth();
  std::printf("%s, copy in device memory %.0f GB/s read and written\n", properties.name,
              copy * 1e-9);
  std::printf("code for compute capability %.1f\n", must(cuda::attention_architecture()) / 10.0);
  if (argc == 9 && wants("one")) {
    bench_attention(
        {std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), 8, std::atoi(argv[7]),
         std::atoi(argv[5]), std::atoi(argv[6]), std::atoi(argv[8]) != 0},
        copy);
  }
  if (argc == 2 && wants("few")) bench_few(copy);
  if (wants("attention")) bench_all_attention(copy);
  if (wants("codec")) bench_all_codec(copy);
  if (wants("planes")) bench_all_planes(copy);
}
