// Attention on packed keys and values on the GPU, against f64 on what the CPU's codec decodes.

#include "tqcache/cuda/cuda_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cuda/device_array.h"
#include "tqcache/base/half.h"
#include "tqcache/cache/rope_angles.h"

namespace tqcache::cuda {
namespace {

constexpr std::size_t kTokens = 256;

struct Case {
  int head_dim = 128;
  int key_bits = 4;  // 16: dense f16
  int value_bits = 4;
  int n_kv_heads = 2;
  int n_query_heads = 8;
  std::vector<int> n_packed = {1000};
  std::vector<int> n_tail = {0};
  int n_sinks = 0;
  Dtype dtype = Dtype::kF32;
  enum Mean { kNone, kPlain, kTurns, kTurnsPartly } mean = kNone;  // kTurns: of keys
  float mean_size = 1;
  double rope_base = 10000;
  float key_size = 1;
  int rounds = 1;
};

// K or V of one kv head of one sequence.
struct Head {
  std::vector<float> packed;  // [n_packed, head_dim], as decoded
  std::vector<float> dense;   // [n_tail, head_dim]
};

class AttentionCase {
 public:
  explicit AttentionCase(const Case& c) : c_(c), random_(c.head_dim * 100 + c.key_bits) {
    dim_ = static_cast<std::size_t>(c.head_dim);
    n_sequences_ = c.n_packed.size();
    for (const int n : c.n_packed) {
      max_blocks_ = std::max(max_blocks_, (static_cast<std::size_t>(n) + kTokens - 1) / kTokens);
    }
    for (const int n : c.n_tail) capacity_ = std::max(capacity_, static_cast<std::size_t>(n));
  }

  // The largest error of an output vector relative to its length.
  double error() {
    make_means();
    make_tensor(false);
    make_tensor(true);
    make_queries();
    return run();
  }

 private:
  struct Tensor {
    std::vector<Head> heads;  // [n_sequences, n_kv_heads]
    std::vector<std::byte> pages;
    std::vector<std::int32_t> table;
    std::vector<std::uint16_t> tail;  // f16 bits
    std::vector<float> mean;
    std::size_t page_bytes = 0;
    std::optional<codec::HeadCodec> codec;
  };

  float normal() { return std::normal_distribution<float>()(random_); }
  std::size_t kv_heads() const { return static_cast<std::size_t>(c_.n_kv_heads); }

  void make_means() {
    for (Tensor* tensor : {&k_, &v_}) {
      tensor->mean.assign(kv_heads() * dim_, 0.0f);
      if (c_.mean == Case::kNone) continue;
      const float size = tensor == &k_ ? c_.mean_size : 1.0f;
      for (float& x : tensor->mean) x = size * normal();
    }
    if (c_.mean == Case::kTurns || c_.mean == Case::kTurnsPartly) {
      const std::size_t turning = c_.mean == Case::kTurns ? dim_ : dim_ / 4 * 2;
      rope_.emplace(cache::Rope{
          cache::RopeStyle::kHalfSplit, static_cast<std::int64_t>(turning), c_.rope_base, {}});
      n_pairs_ = turning / 2;
    }
  }

  void make_tensor(bool is_values) {
    Tensor& tensor = is_values ? v_ : k_;
    const int bits = is_values ? c_.value_bits : c_.key_bits;
    const std::size_t sinks = static_cast<std::size_t>(c_.n_sinks);
    std::size_t code_bytes = kTokens * dim_ * 2;
    if (bits <= 8) {
      codec::CodecSpec spec;
      spec.head_dim = c_.head_dim;
      spec.bits = bits;
      spec.rounds = c_.rounds;
      tensor.codec = codec::HeadCodec::make(
                         spec, is_values ? codec::BlockOrder::kValues : codec::BlockOrder::kKeys)
                         .value();
      code_bytes = tensor.codec->code_bytes();
    }
    const std::size_t scale_bytes = bits <= 8 ? 512 : 0;
    tensor.page_bytes = kv_heads() * (code_bytes + scale_bytes + sinks * dim_ * 2);
    const std::size_t n_pages = n_sequences_ * max_blocks_ + 1;
    tensor.pages.resize(n_pages * tensor.page_bytes, std::byte{0xff});
    std::vector<std::int32_t> order(n_pages);
    for (std::size_t i = 0; i < n_pages; ++i) order[i] = static_cast<std::int32_t>(i);
    std::shuffle(order.begin(), order.end(), random_);
    tensor.table.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n_pages - 1));
    tensor.tail.resize(n_sequences_ * kv_heads() * capacity_ * dim_, 0x7e00);  // NaN
    const float size = is_values ? 1.0f : c_.key_size;
    for (std::size_t s = 0; s < n_sequences_; ++s) {
      const std::size_t n_packed = static_cast<std::size_t>(c_.n_packed[s]);
      for (std::size_t h = 0; h < kv_heads(); ++h) {
        Head head;
        head.packed.resize(n_packed * dim_);
        for (std::size_t first = 0; first < n_packed; first += kTokens) {
          const std::size_t n = std::min(kTokens, n_packed - first);
          std::byte* const page =
              tensor.pages.data() +
              static_cast<std::size_t>(tensor.table[s * max_blocks_ + first / kTokens]) *
                  tensor.page_bytes;
          const std::size_t n_skipped = first == 0 ? std::min(sinks, n) : 0;
          // The mean at the first token, and its way into each token.
          std::vector<float> mean(
              tensor.mean.begin() + static_cast<std::ptrdiff_t>(h * dim_),
              tensor.mean.begin() + static_cast<std::ptrdiff_t>((h + 1) * dim_));
          const bool turns = rope_.has_value() && !is_values;
          if (turns) {
            rope_->rotate_to(static_cast<std::int64_t>(first), static_cast<std::int64_t>(dim_),
                             mean);
          }
          const auto mean_at = [&](std::size_t token, std::size_t i) {
            if (!turns || i >= 2 * n_pairs_) return mean[i];
            const std::size_t pair = i % n_pairs_;
            const float cos = rope_->cos(static_cast<std::int64_t>(token))[pair];
            const float sin = rope_->sin(static_cast<std::int64_t>(token))[pair];
            const float a = mean[pair], b = mean[pair + n_pairs_];
            return i < n_pairs_ ? a * cos - b * sin : b * cos + a * sin;
          };
          std::vector<float> x(n * dim_), decoded(n * dim_);
          for (float& value : x) value = size * normal();
          for (std::size_t i = 0; i < x.size(); ++i) {
            x[i] = f16_to_f32(f32_to_f16(x[i] + mean_at(i / dim_, i % dim_)));
          }
          if (bits <= 8) {
            const codec::Center center{mean.data(), turns ? n_pairs_ : 0,
                                       turns ? rope_->cos(0).data() : nullptr,
                                       turns ? rope_->sin(0).data() : nullptr};
            const std::span codes(page + h * code_bytes, code_bytes);
            std::vector<std::uint16_t> scales(kTokens);
            ASSERT_TRUE(tensor.codec
                            ->encode({Dtype::kF32, std::as_bytes(std::span(x)).data(), dim_ * 4},
                                     center, {}, n, n_skipped, codes, scales)
                            .ok());
            std::memcpy(page + kv_heads() * code_bytes + h * 512, scales.data(), 512);
            tensor.codec->decode({codes, scales}, {}, n, decoded);
            for (std::size_t i = 0; i < x.size(); ++i) {
              decoded[i] += mean_at(i / dim_, i % dim_);
            }
          } else {
            decoded = x;
            for (std::size_t i = 0; i < x.size(); ++i) {
              const std::uint16_t bits16 = f32_to_f16(x[i]);
              std::memcpy(page + h * code_bytes + i * 2, &bits16, 2);
            }
          }
          for (std::size_t i = 0; i < n_skipped * dim_; ++i) {
            decoded[i] = x[i];
            const std::uint16_t bits16 = f32_to_f16(x[i]);
            std::memcpy(page + kv_heads() * (code_bytes + scale_bytes) + (h * sinks * dim_ + i) * 2,
                        &bits16, 2);
          }
          std::copy(decoded.begin(), decoded.end(),
                    head.packed.begin() + static_cast<std::ptrdiff_t>(first * dim_));
        }
        const std::size_t n_tail = static_cast<std::size_t>(c_.n_tail[s % c_.n_tail.size()]);
        for (std::size_t i = 0; i < n_tail * dim_; ++i) {
          const std::uint16_t bits16 =
              f32_to_f16(size * normal() + tensor.mean[h * dim_ + i % dim_]);
          tensor.tail[(s * kv_heads() + h) * capacity_ * dim_ + i] = bits16;
          head.dense.push_back(f16_to_f32(bits16));
        }
        tensor.heads.push_back(std::move(head));
      }
    }
  }

  void make_queries() {
    queries_.resize(n_sequences_ * static_cast<std::size_t>(c_.n_query_heads) * dim_);
    for (float& x : queries_) x = f16_to_f32(f32_to_f16(normal()));
  }

  // Pages are counted from the middle one, so that some have negative numbers.
  static std::int32_t middle_of(const Tensor& tensor) {
    return static_cast<std::int32_t>(tensor.pages.size() / tensor.page_bytes / 2);
  }
  static std::vector<std::int32_t> numbers_of(const Tensor& tensor) {
    std::vector<std::int32_t> numbers = tensor.table;
    for (std::int32_t& number : numbers) number -= middle_of(tensor);
    return numbers;
  }

  template <class T>
  static AttentionPages pages_of(const Tensor& tensor, const DeviceArray<std::byte>& pages,
                                 const DeviceArray<std::int32_t>& table,
                                 const DeviceArray<float>& mean, const T& codec, bool has_means) {
    AttentionPages out;
    out.codec = codec ? &*codec : nullptr;
    out.data = pages.get() + middle_of(tensor) * static_cast<std::int64_t>(tensor.page_bytes);
    out.page_bytes = static_cast<std::int64_t>(tensor.page_bytes);
    out.page_table = table.get();
    if (codec && has_means) out.center.mean = mean.get();
    return out;
  }

  double run() {
    std::optional<DeviceCodec> k_codec, v_codec;
    if (k_.codec) k_codec = DeviceCodec::make(*k_.codec).value();
    v_codec = DeviceCodec::make(*v_.codec).value();
    const DeviceArray<std::byte> k_pages(k_.pages), v_pages(v_.pages);
    const DeviceArray<std::int32_t> k_table(numbers_of(k_)), v_table(numbers_of(v_));
    const DeviceArray<float> k_mean(k_.mean), v_mean(v_.mean);
    const DeviceArray<std::uint16_t> k_tail(k_.tail), v_tail(v_.tail);
    std::vector<std::int32_t> n_tail;
    for (std::size_t s = 0; s < n_sequences_; ++s)
      n_tail.push_back(c_.n_tail[s % c_.n_tail.size()]);
    const DeviceArray<std::int32_t> tail_tokens(n_tail);
    const DeviceArray<std::int32_t> packed_tokens(
        std::vector<std::int32_t>(c_.n_packed.begin(), c_.n_packed.end()));
    std::vector<std::byte> query_bytes(queries_.size() * dtype_size(c_.dtype));
    store(queries_, query_bytes);
    const DeviceArray<std::byte> queries(query_bytes), output(query_bytes.size());

    AttentionStep step;
    step.n_sequences = static_cast<int>(n_sequences_);
    step.n_query_heads = c_.n_query_heads;
    step.n_kv_heads = c_.n_kv_heads;
    step.head_dim = c_.head_dim;
    step.max_blocks = static_cast<int>(max_blocks_);
    step.scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
    step.queries = queries.get();
    step.output = output.get();
    step.dtype = c_.dtype;
    step.n_packed = packed_tokens.get();
    step.n_sinks = c_.n_sinks;
    step.keys = pages_of(k_, k_pages, k_table, k_mean, k_codec, c_.mean != Case::kNone);
    std::optional<DeviceSinusoids> sinusoids;
    if (rope_) {
      sinusoids = DeviceSinusoids::make(cache::rope_frequencies(rope_->rope())).value();
      step.keys.center.n_pairs = static_cast<int>(n_pairs_);
      step.keys.sinusoids = &*sinusoids;
    }
    step.values = pages_of(v_, v_pages, v_table, v_mean, v_codec, c_.mean != Case::kNone);
    step.tail = {k_tail.get(), v_tail.get(), Dtype::kF16, static_cast<int>(capacity_),
                 tail_tokens.get()};
    const auto size = attention_workspace_bytes(step);
    EXPECT_TRUE(size.ok()) << size.error().message;
    const DeviceArray<std::byte> workspace(*size);
    const auto done = attend(step, workspace.get(), nullptr);
    EXPECT_TRUE(done.ok()) << done.error().message;
    expect_cuda(cudaDeviceSynchronize());
    std::vector<float> out(queries_.size());
    load(output.read(), out);
    // The same bytes again.
    EXPECT_TRUE(attend(step, workspace.get(), nullptr).ok());
    expect_cuda(cudaDeviceSynchronize());
    std::vector<float> again(queries_.size());
    load(output.read(), again);
    EXPECT_EQ(0, std::memcmp(out.data(), again.data(), out.size() * 4));
    return compare(out);
  }

  void store(const std::vector<float>& values, std::vector<std::byte>& bytes) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t half =
          c_.dtype == Dtype::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
      if (c_.dtype == Dtype::kF32) {
        std::memcpy(&bytes[4 * i], &values[i], 4);
      } else {
        std::memcpy(&bytes[2 * i], &half, 2);
      }
    }
  }
  void load(const std::vector<std::byte>& bytes, std::vector<float>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (c_.dtype == Dtype::kF32) {
        std::memcpy(&values[i], &bytes[4 * i], 4);
        continue;
      }
      std::uint16_t half;
      std::memcpy(&half, &bytes[2 * i], 2);
      values[i] = c_.dtype == Dtype::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
  }

  double compare(const std::vector<float>& out) const {
    const std::size_t group = static_cast<std::size_t>(c_.n_query_heads / c_.n_kv_heads);
    double worst = 0;
    for (std::size_t i = 0; i < out.size() / dim_; ++i) {
      const std::size_t s = i / static_cast<std::size_t>(c_.n_query_heads);
      const std::size_t h = i % static_cast<std::size_t>(c_.n_query_heads) / group;
      const Head& k = k_.heads[s * kv_heads() + h];
      const Head& v = v_.heads[s * kv_heads() + h];
      std::vector<double> scores;
      for (const auto* rows : {&k.packed, &k.dense}) {
        for (std::size_t at = 0; at < rows->size(); at += dim_) {
          double sum = 0;
          for (std::size_t j = 0; j < dim_; ++j) {
            double q = static_cast<double>(queries_[i * dim_ + j]);
            if (c_.dtype == Dtype::kBF16) {
              q = static_cast<double>(bf16_to_f32(f32_to_bf16(static_cast<float>(q))));
            }
            sum += q * static_cast<double>((*rows)[at + j]);
          }
          scores.push_back(sum / std::sqrt(static_cast<double>(dim_)));
        }
      }
      std::vector<double> sum(dim_);
      double total = 0;
      const double most = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
      std::size_t token = 0;
      for (const auto* rows : {&v.packed, &v.dense}) {
        for (std::size_t at = 0; at < rows->size(); at += dim_, ++token) {
          const double weight = std::exp(scores[token] - most);
          total += weight;
          for (std::size_t j = 0; j < dim_; ++j) {
            sum[j] += weight * static_cast<double>((*rows)[at + j]);
          }
        }
      }
      double error = 0, length = 0;
      for (std::size_t j = 0; j < dim_; ++j) {
        const double expected = total > 0 ? sum[j] / total : 0;
        const double got = static_cast<double>(out[i * dim_ + j]);
        error += (got - expected) * (got - expected);
        length += expected * expected;
        if (!std::isfinite(got)) error = 1e30;
      }
      worst = std::max(worst, scores.empty() ? error : std::sqrt(error / length));
    }
    return worst;
  }

  Case c_;
  std::mt19937 random_;
  std::size_t dim_ = 0, n_sequences_ = 0, max_blocks_ = 1, capacity_ = 0;
  Tensor k_, v_;
  std::vector<float> queries_;
  std::optional<cache::RopeTable> rope_;
  std::size_t n_pairs_ = 0;
};

constexpr double kBound = 2e-3;  // f16 factors and weights

void expect_right(const std::string& name, const Case& c, double bound = kBound) {
  const double error = AttentionCase(c).error();
  std::printf("  %-40s %.2e\n", name.c_str(), error);
  EXPECT_LT(error, bound) << name;
}

TEST(CudaAttention, MatchesTheCpuForEveryWidth) {
  for (const int head_dim : {64, 96, 128, 256}) {
    for (const auto& [k, v] : {std::pair(4, 4),
                               {3, 3},
                               {2, 2},
                               {8, 8},
                               {8, 4},
                               {4, 3},
                               {4, 2},
                               {3, 4},
                               {16, 4},
                               {16, 3},
                               {16, 2}}) {
      if (head_dim == 96 && k == 16) continue;
      Case c;
      c.head_dim = head_dim;
      c.key_bits = k, c.value_bits = v;
      expect_right(
          "d" + std::to_string(head_dim) + " k" + std::to_string(k) + " v" + std::to_string(v), c);
    }
  }
}

TEST(CudaAttention, TakesRaggedAndEmptySequences) {
  Case c;
  c.n_packed = {0, 1, 31, 32, 33, 255, 256, 257, 0, 700, 5000, 0};
  expect_right("ragged", c);
  c.n_tail = {0, 3, 64, 255};
  expect_right("ragged, with tails", c);
  c.n_packed = {0, 0, 0, 0, 0};
  expect_right("tails alone", c);
  c.n_tail = {0};
  expect_right("nothing at all", c);
  c.n_packed = {40000};
  c.n_kv_heads = 1, c.n_query_heads = 4;
  expect_right("one long sequence", c);
}

TEST(CudaAttention, TakesGroupsOfAnySize) {
  for (const int group : {1, 2, 3, 4, 5, 7, 8, 9, 16}) {
    Case c;
    c.n_kv_heads = 2, c.n_query_heads = 2 * group;
    c.n_packed = {300, 77};
    c.n_tail = {5, 80};
    expect_right("group of " + std::to_string(group), c);
  }
}

TEST(CudaAttention, AddsMeansSinksAndTails) {
  for (const int head_dim : {64, 96, 128, 256}) {
    Case c;
    c.head_dim = head_dim;
    c.mean = Case::kPlain;
    c.n_packed = {900, 3, 256, 0};
    c.n_tail = {17, 0, 200};
    expect_right("means", c);
    c.n_sinks = 4;
    expect_right("means and sinks", c);
    c.n_sinks = 100;
    expect_right("many sinks", c);
  }
}

TEST(CudaAttention, TakesMeansBeforeRope) {
  for (const int head_dim : {64, 96, 128, 256}) {
    for (const double base : {100.0, 10000.0, 1e6}) {
      Case c;
      c.head_dim = head_dim;
      c.rope_base = base;
      c.n_packed = {900, 3, 256, 0, 20000};
      c.n_tail = {17, 0, 200};
      c.n_sinks = 4;
      for (const auto mean : {Case::kTurns, Case::kTurnsPartly}) {
        c.mean = mean;
        expect_right("d" + std::to_string(head_dim) + " base " + std::to_string(base) +
                         (mean == Case::kTurns ? "" : " partly"),
                     c);
      }
    }
  }
  Case c;
  c.mean = Case::kTurns;
  for (const auto& [k, v] : {std::pair(2, 2), {3, 3}, {8, 4}, {4, 3}}) {
    c.key_bits = k, c.value_bits = v;
    expect_right("k" + std::to_string(k) + " v" + std::to_string(v), c);
  }
  c.n_query_heads = 18;  // nine a kv head
  c.n_packed = {2000, 100};
  expect_right("group of 9", c);
  c.mean_size = 10;
  expect_right("a mean of ten times the length", c, 1e-2);
}

TEST(CudaAttention, TakesEveryDtypeAndRound) {
  Case c;
  c.dtype = Dtype::kF16;
  expect_right("f16", c);
  c.dtype = Dtype::kBF16;
  expect_right("bf16", c, 8e-3);
  c.dtype = Dtype::kF32;
  c.rounds = 3;
  expect_right("three rounds", c);
  c.head_dim = 96;
  expect_right("three rounds of three parts", c);
}

TEST(CudaAttention, TakesPeakedScores) {
  for (const float size : {1e-3f, 4.0f, 30.0f, 3000.0f}) {
    Case c;
    c.key_size = size;
    c.n_packed = {3000};
    // A large score has a large error: what weights see of it is bounded by f16 of the factors.
    expect_right("keys of size " + std::to_string(size), c, size < 10 ? kBound : 0.1);
  }
}

// A newer GPU can run the code of an older one: tools/check_cuda.sh says which it has built.
TEST(CudaAttention, RunsTheCodeThatWasBuilt) {
  const Result<int> architecture = attention_architecture();
  ASSERT_TRUE(architecture.ok()) << architecture.error().message;
  EXPECT_GE(*architecture, 80);
  if (const char* const built = std::getenv("TQCACHE_CUDA_ARCHITECTURE")) {
    EXPECT_EQ(*architecture, std::atoi(built));
  }
}

TEST(CudaAttention, RefusesWhatItHasNoKernelFor) {
  AttentionStep step;
  EXPECT_EQ(ErrorCode::kInvalidArgument, attention_workspace_bytes(step).error().code);
  codec::CodecSpec spec;
  spec.head_dim = 80;
  const auto k = DeviceCodec::make(codec::HeadCodec::make(spec, codec::BlockOrder::kKeys).value());
  const auto v =
      DeviceCodec::make(codec::HeadCodec::make(spec, codec::BlockOrder::kValues).value());
  step.n_sequences = step.n_kv_heads = step.n_query_heads = step.max_blocks = 1;
  step.head_dim = 80;
  step.keys.codec = &*k;
  step.values.codec = &*v;
  EXPECT_EQ(ErrorCode::kUnsupported, attention_workspace_bytes(step).error().code);
}

TEST(CudaAttention, RefusesMeansThatTurnWithoutTheirSinusoids) {
  codec::CodecSpec spec;
  spec.head_dim = 128;
  const auto k = DeviceCodec::make(codec::HeadCodec::make(spec, codec::BlockOrder::kKeys).value());
  const auto v =
      DeviceCodec::make(codec::HeadCodec::make(spec, codec::BlockOrder::kValues).value());
  const auto sinusoids = DeviceSinusoids::make(std::vector<double>(32, 0.1)).value();
  AttentionStep step;
  step.n_sequences = step.n_kv_heads = step.n_query_heads = step.max_blocks = 1;
  step.head_dim = 128;
  step.keys.codec = &*k;
  step.values.codec = &*v;
  const float mean = 0;
  step.keys.center.mean = &mean;
  step.keys.center.n_pairs = 64;
  EXPECT_EQ(ErrorCode::kInvalidArgument, attention_workspace_bytes(step).error().code);
  step.keys.sinusoids = &sinusoids;  // of other pairs
  EXPECT_EQ(ErrorCode::kInvalidArgument, attention_workspace_bytes(step).error().code);
  step.keys.center.n_pairs = 32;
  EXPECT_TRUE(attention_workspace_bytes(step).ok());
  step.values.center = step.keys.center;
  EXPECT_EQ(ErrorCode::kUnsupported, attention_workspace_bytes(step).error().code);
  EXPECT_EQ(ErrorCode::kInvalidArgument, DeviceSinusoids::make({}).error().code);
  EXPECT_EQ(ErrorCode::kUnsupported,
            DeviceSinusoids::make(std::vector<double>(129, 0.1)).error().code);
}

}  // namespace
}  // namespace tqcache::cuda
