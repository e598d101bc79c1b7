// The C interface against the C++ one. Tests of group CudaHost need no GPU.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/device_array.h"
#include "tqcache/base/half.h"
#include "tqcache/cuda/cuda_attention.h"
#include "tqcache/cuda/cuda_codec.h"
#include "tqcache/cuda/cuda_planes.h"
#include "tqcache/cuda/tqcache_cuda.h"

extern "C" int c_makes_codec(int head_dim, int bits, int is_values, tqcache_cuda_codec** codec);

namespace tqcache::cuda {
namespace {

TEST(CudaHost, ReadsStatusWords) {
  EXPECT_TRUE(encode_status(kNoneRefused).ok());
  EXPECT_EQ("token 5: a component is not finite", encode_status(10).error().message);
  EXPECT_EQ(TQCACHE_CUDA_OK, tqcache_cuda_encode_status(kNoneRefused));
  EXPECT_EQ(TQCACHE_CUDA_CORRUPT, tqcache_cuda_encode_status(10));
  EXPECT_EQ(TQCACHE_CUDA_UNSUPPORTED, tqcache_cuda_encode_status(11));
  EXPECT_STREQ("token 5: scale or bias beyond f16", tqcache_cuda_error());
}

TEST(CudaHost, RefusesCodecsThatThereAreNot) {
  tqcache_cuda_codec* codec = nullptr;
  EXPECT_EQ(TQCACHE_CUDA_UNSUPPORTED, c_makes_codec(128, 9, 0, &codec));
  EXPECT_NE(std::string(), tqcache_cuda_error());
  EXPECT_EQ(nullptr, codec);
  tqcache_cuda_codec_spec spec = {};
  spec.head_dim = 128, spec.bits = 4, spec.rounds = 1;
  for (int* const number : {&spec.mode, &spec.rotation, &spec.scale, &spec.residual}) {
    *number = 4;
    EXPECT_EQ(TQCACHE_CUDA_INVALID_ARGUMENT, tqcache_cuda_codec_new(&spec, &codec));
    *number = 0;
  }
  tqcache_cuda_codec_free(nullptr);
}

TEST(CudaHost, RefusesSinusoidsThatThereAreNot) {
  EXPECT_EQ(ErrorCode::kInvalidArgument, DeviceSinusoids::make({}).error().code);
  EXPECT_EQ(ErrorCode::kUnsupported,
            DeviceSinusoids::make(std::vector<double>(129, 0.1)).error().code);
  const double turns = std::numeric_limits<double>::infinity();
  tqcache_cuda_sinusoids* sinusoids = nullptr;
  EXPECT_EQ(TQCACHE_CUDA_INVALID_ARGUMENT, tqcache_cuda_sinusoids_new(&turns, 1, &sinusoids));
  EXPECT_EQ(TQCACHE_CUDA_INVALID_ARGUMENT, tqcache_cuda_sinusoids_new(&turns, -1, &sinusoids));
  EXPECT_EQ(nullptr, sinusoids);
}

TEST(CudaHost, RefusesArgumentsBeforeTheyReachAGpu) {
  tqcache_cuda_attention step = {};
  std::size_t bytes = 1;
  EXPECT_EQ(TQCACHE_CUDA_INVALID_ARGUMENT, tqcache_cuda_attention_workspace_bytes(&step, &bytes));
  EXPECT_EQ(0u, bytes);
  step.dtype = 3;
  EXPECT_EQ(TQCACHE_CUDA_INVALID_ARGUMENT, tqcache_cuda_attend(&step, nullptr, nullptr));
  alignas(16) char memory[64] = {};
  void* planes[4] = {memory, memory + 16, memory + 32, memory + 48};
  EXPECT_EQ(TQCACHE_CUDA_INVALID_ARGUMENT,
            tqcache_cuda_split_planes(memory, 1, 3, planes, nullptr));
  EXPECT_EQ(TQCACHE_CUDA_INVALID_ARGUMENT,
            tqcache_cuda_split_planes(memory, -1, 2, planes, nullptr));
  planes[1] = memory + 8;
  EXPECT_EQ(TQCACHE_CUDA_INVALID_ARGUMENT, tqcache_cuda_join_planes(planes, 1, 2, memory, nullptr));
}

// Where there is no GPU, making a codec fails with the words of the CUDA runtime.
TEST(CudaHost, ReportsAMissingGpu) {
  tqcache_cuda_codec* codec = nullptr;
  const int status = c_makes_codec(128, 4, 0, &codec);
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess && n > 0) {
    EXPECT_EQ(TQCACHE_CUDA_OK, status) << tqcache_cuda_error();
  } else {
    EXPECT_EQ(TQCACHE_CUDA_FAILED, status);
    EXPECT_EQ(0u, std::string(tqcache_cuda_error()).find("cudaMalloc: "));
  }
  tqcache_cuda_codec_free(codec);
}

// A page of random rows, encoded and decoded by the C interface and by the C++ one.
TEST(CudaCInterface, GivesTheBytesOfTheCppInterface) {
  constexpr int kHeads = 2, kDim = 128, kTokens = 256;
  std::vector<std::uint16_t> values(kTokens * kHeads * kDim);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (auto& value : values) value = f32_to_f16(normal(random));
  const DeviceArray<std::uint16_t> rows(values), decoded(values.size()), expected(values.size());
  const DeviceArray<std::uint32_t> status(std::vector<std::uint32_t>{kNoneRefused});

  tqcache_cuda_codec* codec = nullptr;
  ASSERT_EQ(TQCACHE_CUDA_OK, c_makes_codec(kDim, 4, 0, &codec)) << tqcache_cuda_error();
  codec::CodecSpec spec;
  spec.head_dim = kDim;
  const auto device =
      DeviceCodec::make(codec::HeadCodec::make(spec, codec::BlockOrder::kKeys).value()).value();
  const std::int64_t page_bytes = tqcache_cuda_page_bytes(codec, kHeads, 0, TQCACHE_CUDA_F16);
  ASSERT_EQ(device.page_bytes(kHeads), page_bytes);
  const auto size = static_cast<std::size_t>(page_bytes);
  const DeviceArray<std::byte> page(size), expected_page(size);

  const tqcache_cuda_run run = {kTokens, 0, kHeads, 0, nullptr};
  const TokenRun cpp_run{kTokens, 0, kHeads};
  tqcache_cuda_rows from = {rows.get(), TQCACHE_CUDA_F16, kHeads * kDim, kDim};
  const tqcache_cuda_pages pages = {page.get(), page_bytes, nullptr};
  EXPECT_EQ(0u, tqcache_cuda_codec_workspace_bytes(codec, nullptr, &run));
  ASSERT_EQ(TQCACHE_CUDA_OK, tqcache_cuda_encode(codec, &from, &run, nullptr, &pages, nullptr,
                                                 status.get(), nullptr));
  ASSERT_TRUE(encode(device, {rows.get(), Dtype::kF16, kHeads * kDim, kDim}, cpp_run, {},
                     {expected_page.get(), page_bytes, nullptr}, nullptr, status.get(), nullptr)
                  .ok());
  from.data = decoded.get();
  ASSERT_EQ(TQCACHE_CUDA_OK,
            tqcache_cuda_decode(codec, &pages, &run, nullptr, &from, nullptr, nullptr));
  ASSERT_TRUE(decode(device, {expected_page.get(), page_bytes, nullptr}, cpp_run, {},
                     {expected.get(), Dtype::kF16, kHeads * kDim, kDim}, nullptr, nullptr)
                  .ok());
  expect_cuda(cudaDeviceSynchronize());
  EXPECT_EQ(TQCACHE_CUDA_OK, tqcache_cuda_encode_status(status.read()[0]));
  EXPECT_EQ(expected_page.read(), page.read());
  EXPECT_EQ(expected.read(), decoded.read());
  from.dtype = 7;
  EXPECT_EQ(TQCACHE_CUDA_INVALID_ARGUMENT,
            tqcache_cuda_decode(codec, &pages, &run, nullptr, &from, nullptr, nullptr));
  tqcache_cuda_codec_free(codec);
}

TEST(CudaCInterface, AttendsAsTheCppInterface) {
  constexpr int kHeads = 2, kQueries = 8, kDim = 128, kTokens = 200;
  tqcache_cuda_codec *k = nullptr, *v = nullptr;
  ASSERT_EQ(TQCACHE_CUDA_OK, c_makes_codec(kDim, 4, 0, &k));
  ASSERT_EQ(TQCACHE_CUDA_OK, c_makes_codec(kDim, 4, 1, &v));
  codec::CodecSpec spec;
  spec.head_dim = kDim;
  const auto keys =
      DeviceCodec::make(codec::HeadCodec::make(spec, codec::BlockOrder::kKeys).value()).value();
  const auto values =
      DeviceCodec::make(codec::HeadCodec::make(spec, codec::BlockOrder::kValues).value()).value();
  const std::int64_t page_bytes = keys.page_bytes(kHeads);
  std::mt19937 random(2);
  std::vector<std::byte> bytes(static_cast<std::size_t>(page_bytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0x3f);  // scales below 2
  std::vector<float> query(kQueries * kDim), mean(kHeads * kDim);
  std::normal_distribution<float> normal;
  for (float& x : query) x = normal(random);
  for (float& x : mean) x = normal(random);
  std::vector<double> turns(kDim / 2);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    turns[i] = std::pow(10000.0, -static_cast<double>(i) / 64) / 6.283185307179586;
  }
  const DeviceArray<std::byte> pages(bytes);
  const DeviceArray<float> queries(query), means(mean), got(query.size()), expected(query.size());
  const DeviceArray<std::int32_t> n_packed(std::vector<std::int32_t>{kTokens});
  tqcache_cuda_sinusoids* sinusoids = nullptr;
  ASSERT_EQ(TQCACHE_CUDA_OK, tqcache_cuda_sinusoids_new(turns.data(), kDim / 2, &sinusoids));
  const auto cpp_sinusoids = DeviceSinusoids::make(turns).value();

  tqcache_cuda_attention step = {};
  step.n_sequences = 1, step.n_query_heads = kQueries, step.n_kv_heads = kHeads;
  step.head_dim = kDim, step.max_blocks = 1, step.scale = 0.1f;
  step.queries = queries.get(), step.output = got.get();
  step.n_packed = n_packed.get();
  step.keys = {k, pages.get(), page_bytes, nullptr, means.get(), kDim / 2, sinusoids, nullptr};
  step.values = {v, pages.get(), page_bytes, nullptr, nullptr, 0, nullptr, nullptr};
  std::size_t size = 0;
  ASSERT_EQ(TQCACHE_CUDA_OK, tqcache_cuda_attention_workspace_bytes(&step, &size))
      << tqcache_cuda_error();
  const DeviceArray<std::byte> workspace(size);
  ASSERT_EQ(TQCACHE_CUDA_OK, tqcache_cuda_attend(&step, workspace.get(), nullptr));

  AttentionStep cpp;
  cpp.n_sequences = 1, cpp.n_query_heads = kQueries, cpp.n_kv_heads = kHeads;
  cpp.head_dim = kDim, cpp.max_blocks = 1, cpp.scale = 0.1f;
  cpp.queries = queries.get(), cpp.output = expected.get();
  cpp.dtype = cpp.sink_dtype = cpp.tail.dtype = Dtype::kF32;
  cpp.n_packed = n_packed.get();
  cpp.keys.codec = &keys, cpp.values.codec = &values;
  cpp.keys.data = cpp.values.data = pages.get();
  cpp.keys.page_bytes = cpp.values.page_bytes = page_bytes;
  cpp.keys.center.mean = means.get(), cpp.keys.center.n_pairs = kDim / 2;
  cpp.keys.sinusoids = &cpp_sinusoids;
  ASSERT_EQ(size, attention_workspace_bytes(cpp).value());
  expect_cuda(cudaDeviceSynchronize());
  ASSERT_TRUE(attend(cpp, workspace.get(), nullptr).ok());
  expect_cuda(cudaDeviceSynchronize());
  EXPECT_EQ(expected.read(), got.read());
  EXPECT_TRUE(std::isfinite(got.read()[0]));
  tqcache_cuda_sinusoids_free(sinusoids);
  tqcache_cuda_codec_free(k);
  tqcache_cuda_codec_free(v);
}

}  // namespace
}  // namespace tqcache::cuda
