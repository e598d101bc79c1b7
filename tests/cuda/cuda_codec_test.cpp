// Encoding and decoding on the GPU: the very bytes of the CPU's codec.

#include "tqcache/cuda/cuda_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
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
  codec::CodecSpec spec;
  codec::BlockOrder order = codec::BlockOrder::kKeys;
  Dtype dtype = Dtype::kF16;
  std::size_t n_tokens = 300;
  std::size_t n_kv_heads = 2;
  std::size_t n_skipped = 0;
  std::int64_t first_block = 0;
  enum Mean { kNone, kPlain, kTurns, kTurnsPartly } mean = kNone;
  std::size_t padding = 0;  // elements between rows
  float size = 1;
};

std::string name_of(const Case& c) {
  const codec::CodecSpec& s = c.spec;
  return std::string(mode_word(s.mode)) + " d" + std::to_string(s.head_dim) + " b" +
         std::to_string(s.bits) + " rotation " + std::to_string(static_cast<int>(s.rotation)) +
         " rounds " + std::to_string(s.rounds) + " scale " +
         std::to_string(static_cast<int>(s.scale)) +
         (c.order == codec::BlockOrder::kKeys ? " keys " : " values ") +
         std::string(dtype_name(c.dtype)) + " tokens " + std::to_string(c.n_tokens) + " mean " +
         std::to_string(static_cast<int>(c.mean)) + " skipped " + std::to_string(c.n_skipped);
}

float rounded(Dtype dtype, float value) {
  if (dtype == Dtype::kF16) return f16_to_f32(f32_to_f16(value));
  return dtype == Dtype::kBF16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}
void store(Dtype dtype, float value, std::byte* to) {
  if (dtype == Dtype::kF32) {
    std::memcpy(to, &value, 4);
    return;
  }
  const std::uint16_t half = dtype == Dtype::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  std::memcpy(to, &half, 2);
}

class CodecCase {
 public:
  explicit CodecCase(const Case& c)
      : c_(c),
        codec_(codec::HeadCodec::make(c.spec, c.order).value()),
        dim_(static_cast<std::size_t>(c.spec.head_dim)),
        n_blocks_((c.n_tokens + kTokens - 1) / kTokens) {
    std::mt19937 random(static_cast<unsigned>(dim_ + c.n_tokens));
    std::normal_distribution<float> normal;
    const std::size_t align = 16 / dtype_size(c.dtype);
    head_stride_ = dim_ + c.padding;
    token_stride_ = (c.n_kv_heads * head_stride_ + align - 1) / align * align;
    rows_.resize(c.n_tokens * token_stride_ * dtype_size(c.dtype), std::byte{0x7f});  // not finite
    values_.resize(c.n_kv_heads * c.n_tokens * dim_);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const std::size_t token = i / dim_ % c.n_tokens;
      // Some vectors are zero, some so small that their scale rounds to zero or is subnormal.
      const float size = token == 7 ? 0.0f : token == 9 ? 1e-8f : token == 11 ? 1e-6f : c.size;
      values_[i] = rounded(c.dtype, size * normal(random));
    }
    mean_.resize(c.n_kv_heads * dim_);
    for (float& x : mean_) x = normal(random);
    if (c.mean == Case::kTurns || c.mean == Case::kTurnsPartly) {
      const std::size_t turning = c.mean == Case::kTurns ? dim_ : dim_ / 4 * 2;
      rope_ = std::make_unique<cache::RopeTable>(cache::Rope{
          cache::RopeStyle::kHalfSplit, static_cast<std::int64_t>(turning), 10000.0, {}});
      n_pairs_ = turning / 2;
      turns_ = cache::rope_frequencies(rope_->rope());
      for (std::int64_t j = 0; j < 256; ++j) {
        for (const float x : rope_->cos(j)) cos_.push_back(x);
        for (const float x : rope_->sin(j)) sin_.push_back(x);
      }
    }
    for (std::size_t h = 0; h < c.n_kv_heads; ++h) {
      for (std::size_t t = 0; t < c.n_tokens; ++t) {
        for (std::size_t i = 0; i < dim_; ++i)
          store(c.dtype, value(h, t, i), row_at(rows_, h, t) + i * dtype_size(c.dtype));
      }
    }
    if (codec_.mode() == codec::Mode::kMixed) {
      for (std::size_t h = 0; h < c.n_kv_heads; ++h) {
        std::vector<std::uint16_t> first;
        for (std::size_t i = 0; i < codec_.outlier_channels(); ++i) {
          first.push_back(static_cast<std::uint16_t>(i * (h + 2)));
        }
        const auto order = codec::make_channel_order(dim_, first).value();
        channels_.insert(channels_.end(), order.begin(), order.end());
      }
    }
  }

  void run() {
    SCOPED_TRACE(name_of(c_));
    const auto device_codec = DeviceCodec::make(codec_);
    ASSERT_TRUE(device_codec.ok()) << device_codec.error().message;
    const auto n_heads = static_cast<int>(c_.n_kv_heads);
    const auto page_bytes = static_cast<std::size_t>(device_codec->page_bytes(n_heads));
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < n_blocks_; ++i)
      ids.push_back(static_cast<std::int32_t>(n_blocks_ - i));
    const DeviceArray<std::byte> rows(rows_), pages((n_blocks_ + 1) * page_bytes);
    const DeviceArray<std::int32_t> page_ids(ids);
    const DeviceArray<float> mean(mean_), cos(cos_), sin(sin_);
    const DeviceArray<double> turns(turns_);
    const DeviceArray<std::uint16_t> channels(channels_);
    const DeviceArray<std::uint32_t> status(std::vector<std::uint32_t>{kNoneRefused});
    Centering center;
    if (c_.mean != Case::kNone) {
      center = {mean.get(), static_cast<int>(n_pairs_), turns.get(), cos.get(), sin.get()};
    }
    const TokenRun run{static_cast<std::int64_t>(c_.n_tokens), c_.first_block, n_heads,
                       static_cast<int>(c_.n_skipped),
                       channels_.empty() ? nullptr : channels.get()};
    const DeviceArray<std::byte> workspace(codec_workspace_bytes(*device_codec, center, run));
    const PackedPages packed{pages.get(), static_cast<std::int64_t>(page_bytes), page_ids.get()};
    const auto stride = [](std::size_t n) { return static_cast<std::int64_t>(n); };
    const auto encoded =
        encode(*device_codec, {rows.get(), c_.dtype, stride(token_stride_), stride(head_stride_)},
               run, center, packed, workspace.get(), status.get(), nullptr);
    ASSERT_TRUE(encoded.ok()) << encoded.error().message;
    expect_cuda(cudaDeviceSynchronize());
    ASSERT_EQ(kNoneRefused, status.read()[0]);
    const std::vector<std::byte> got = pages.read();
    const std::vector<std::byte> expected = encode_on_cpu(page_bytes, ids);
    std::size_t different = 0, first = 0;
    for (std::size_t i = page_bytes; i < expected.size(); ++i) {
      if (got[i] == expected[i]) continue;
      if (different++ == 0) first = i;
    }
    ASSERT_EQ(0u, different) << "first at " << first % page_bytes << " of " << page_bytes;

    for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
      const DeviceArray<std::byte> out(c_.n_tokens * token_stride_ * dtype_size(dtype) + 16);
      // Of f32 strides fit 16-bit types only if they are multiples of 8.
      if (token_stride_ * dtype_size(dtype) % 16 != 0 ||
          head_stride_ * dtype_size(dtype) % 16 != 0) {
        continue;
      }
      const auto decoded = decode(*device_codec, packed, run, center,
                                  {out.get(), dtype, stride(token_stride_), stride(head_stride_)},
                                  workspace.get(), nullptr);
      ASSERT_TRUE(decoded.ok()) << decoded.error().message;
      expect_cuda(cudaDeviceSynchronize());
      compare_rows(dtype, out.read(), expected, page_bytes, ids);
    }
  }

  // The status word of encoding with `bad` as component 3 of a token.
  std::uint32_t status_with(std::size_t token, float bad) {
    const auto device_codec = DeviceCodec::make(codec_).value();
    store(c_.dtype, bad, row_at(rows_, 1, token) + 3 * dtype_size(c_.dtype));
    const auto page_bytes = device_codec.page_bytes(static_cast<int>(c_.n_kv_heads));
    const DeviceArray<std::byte> rows(rows_),
        pages(n_blocks_ * static_cast<std::size_t>(page_bytes));
    const DeviceArray<std::uint32_t> status(std::vector<std::uint32_t>{kNoneRefused});
    EXPECT_TRUE(encode(device_codec,
                       {rows.get(), c_.dtype, static_cast<std::int64_t>(token_stride_),
                        static_cast<std::int64_t>(head_stride_)},
                       {static_cast<std::int64_t>(c_.n_tokens), 0, static_cast<int>(c_.n_kv_heads)},
                       {}, {pages.get(), page_bytes, nullptr}, nullptr, status.get(), nullptr)
                    .ok());
    expect_cuda(cudaDeviceSynchronize());
    return status.read()[0];
  }

 private:
  float value(std::size_t head, std::size_t token, std::size_t i) const {
    return values_[(head * c_.n_tokens + token) * dim_ + i];
  }
  std::byte* row_at(std::vector<std::byte>& rows, std::size_t head, std::size_t token) const {
    return rows.data() + (token * token_stride_ + head * head_stride_) * dtype_size(c_.dtype);
  }
  codec::ChannelOrder order_of(std::size_t head) const {
    return channels_.empty() ? codec::ChannelOrder()
                             : codec::ChannelOrder(channels_).subspan(head * dim_, dim_);
  }
  // The mean of a head at the first token of a block.
  std::vector<float> mean_at(std::size_t head, std::size_t block) const {
    std::vector<float> mean(mean_.begin() + static_cast<std::ptrdiff_t>(head * dim_),
                            mean_.begin() + static_cast<std::ptrdiff_t>((head + 1) * dim_));
    if (rope_) {
      rope_->rotate_to((c_.first_block + static_cast<std::int64_t>(block)) * 256,
                       static_cast<std::int64_t>(dim_), mean);
    }
    return mean;
  }

  std::vector<std::byte> encode_on_cpu(std::size_t page_bytes,
                                       const std::vector<std::int32_t>& ids) const {
    std::vector<std::byte> pages((n_blocks_ + 1) * page_bytes);
    std::vector<std::uint16_t> scales(codec_.n_scale_rows() * kTokens);
    for (std::size_t b = 0; b < n_blocks_; ++b) {
      const std::size_t n = std::min(kTokens, c_.n_tokens - b * kTokens);
      for (std::size_t h = 0; h < c_.n_kv_heads; ++h) {
        std::byte* const page = pages.data() + static_cast<std::size_t>(ids[b]) * page_bytes;
        const std::span codes(page + h * codec_.code_bytes(), codec_.code_bytes());
        const std::vector<float> mean = mean_at(h, b);
        const codec::Center center{c_.mean == Case::kNone ? nullptr : mean.data(), n_pairs_,
                                   cos_.data(), sin_.data()};
        const auto* const x =
            reinterpret_cast<const std::byte*>(&values_[(h * c_.n_tokens + b * kTokens) * dim_]);
        const auto done = codec_.encode({Dtype::kF32, x, dim_ * 4}, center, order_of(h), n,
                                        b == 0 ? std::min(n, c_.n_skipped) : 0, codes, scales);
        EXPECT_TRUE(done.ok()) << done.error().message;
        std::memcpy(page + c_.n_kv_heads * codec_.code_bytes() + h * scales.size() * 2,
                    scales.data(), scales.size() * 2);
      }
    }
    return pages;
  }

  void compare_rows(Dtype dtype, const std::vector<std::byte>& got,
                    const std::vector<std::byte>& pages, std::size_t page_bytes,
                    const std::vector<std::int32_t>& ids) const {
    const std::size_t size = dtype_size(dtype);
    std::vector<std::byte> expected(got.size(), std::byte{0xcd});
    std::vector<std::uint16_t> scales(codec_.n_scale_rows() * kTokens);
    for (std::size_t b = 0; b < n_blocks_; ++b) {
      const std::size_t n = std::min(kTokens, c_.n_tokens - b * kTokens);
      for (std::size_t h = 0; h < c_.n_kv_heads; ++h) {
        const std::byte* const page = pages.data() + static_cast<std::size_t>(ids[b]) * page_bytes;
        std::memcpy(scales.data(),
                    page + c_.n_kv_heads * codec_.code_bytes() + h * scales.size() * 2,
                    scales.size() * 2);
        std::vector<float> decoded(n * dim_);
        codec_.decode({{page + h * codec_.code_bytes(), codec_.code_bytes()}, scales}, order_of(h),
                      n, decoded);
        const std::vector<float> mean = mean_at(h, b);
        for (std::size_t t = b == 0 ? c_.n_skipped : 0; t < n; ++t) {
          std::vector<float> at = mean;
          for (std::size_t i = 0; i < n_pairs_; ++i) {
            const float cos = cos_[t * n_pairs_ + i], sin = sin_[t * n_pairs_ + i];
            at[i] = mean[i] * cos - mean[i + n_pairs_] * sin;
            at[i + n_pairs_] = mean[i + n_pairs_] * cos + mean[i] * sin;
          }
          for (std::size_t i = 0; i < dim_; ++i) {
            float x = decoded[t * dim_ + i];
            if (c_.mean != Case::kNone) x += at[i];
            store(dtype, x,
                  expected.data() +
                      ((b * kTokens + t) * token_stride_ + h * head_stride_ + i) * size);
          }
        }
      }
    }
    std::size_t different = 0, first = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] == expected[i]) continue;
      if (different++ == 0) first = i;
    }
    EXPECT_EQ(0u, different) << dtype_name(dtype) << ", first at row "
                             << first / size / token_stride_ << ", element "
                             << first / size % token_stride_;
  }

  Case c_;
  codec::HeadCodec codec_;
  std::size_t dim_, n_blocks_, token_stride_ = 0, head_stride_ = 0, n_pairs_ = 0;
  std::vector<std::byte> rows_;
  std::vector<float> values_, mean_, cos_, sin_;
  std::vector<double> turns_;
  std::vector<std::uint16_t> channels_;
  std::unique_ptr<cache::RopeTable> rope_;
};

Case mse(int head_dim, int bits, codec::BlockOrder order = codec::BlockOrder::kKeys) {
  Case c;
  c.spec.head_dim = head_dim;
  c.spec.bits = bits;
  c.order = order;
  return c;
}
constexpr codec::BlockOrder kOrders[] = {codec::BlockOrder::kKeys, codec::BlockOrder::kValues};

TEST(CudaCodec, EncodesTheBytesOfTheCpuForEveryWidth) {
  for (const codec::BlockOrder order : kOrders) {
    for (const int head_dim : {32, 64, 80, 96, 100, 112, 128, 160, 192, 256, 576}) {
      for (int bits = 1; bits <= 8; ++bits) {
        Case c = mse(head_dim, bits, order);
        if (head_dim % 8 != 0) c.padding = static_cast<std::size_t>(8 - head_dim % 8);
        CodecCase(c).run();
      }
    }
  }
}

TEST(CudaCodec, TakesEveryDtypeAndMean) {
  for (const codec::BlockOrder order : kOrders) {
    for (const int head_dim : {64, 80, 96, 112, 128, 160, 192, 256}) {
      for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
        for (const auto mean : {Case::kNone, Case::kPlain, Case::kTurns, Case::kTurnsPartly}) {
          Case c = mse(head_dim, 4, order);
          c.dtype = dtype;
          c.mean = mean;
          c.n_tokens = 777;
          c.n_skipped = 4;
          c.first_block = 300;
          c.padding = 8;
          CodecCase(c).run();
        }
      }
    }
  }
}

TEST(CudaCodec, TakesEveryRotationScaleAndRound) {
  for (const codec::BlockOrder order : kOrders) {
    for (const int head_dim : {64, 80, 96, 112, 128, 160, 192, 256}) {
      for (const codec::ScaleRule scale :
           {codec::ScaleRule::kUnbiased, codec::ScaleRule::kNorm, codec::ScaleRule::kRaw}) {
        Case c = mse(head_dim, 3, order);
        c.spec.scale = scale;
        for (c.spec.rounds = 1; c.spec.rounds <= 3; ++c.spec.rounds) CodecCase(c).run();
        c.spec.rounds = 1;
        c.spec.rotation = codec::TransformKind::kDenseQr;
        CodecCase(c).run();
      }
    }
  }
}

TEST(CudaCodec, TakesEveryMode) {
  for (const codec::BlockOrder order : kOrders) {
    for (const int head_dim : {96, 128}) {
      for (const auto mean : {Case::kNone, Case::kTurns}) {
        Case c = mse(head_dim, 3, order);
        c.mean = mean;
        c.n_skipped = 2;
        c.spec.mode = codec::Mode::kProd;
        CodecCase(c).run();
        c.spec.residual = codec::TransformKind::kDenseQr;
        CodecCase(c).run();
        c = mse(head_dim, 2, order);
        c.mean = mean;
        c.spec.mode = codec::Mode::kMixed;
        c.spec.outlier_channels = 29;
        c.spec.outlier_bits = 5;
        CodecCase(c).run();
        c = mse(head_dim, 4, order);
        c.mean = mean;
        c.n_skipped = 2;
        c.spec.mode = codec::Mode::kAffine;
        c.spec.group_size = 32;
        CodecCase(c).run();
      }
    }
  }
}

TEST(CudaCodec, TakesAnyNumberOfTokens) {
  for (const codec::BlockOrder order : kOrders) {
    for (const std::size_t n : {1u, 7u, 8u, 31u, 32u, 33u, 255u, 256u, 257u, 2000u}) {
      Case c = mse(128, 4, order);
      c.n_tokens = n;
      c.n_kv_heads = 3;
      c.n_skipped = std::min<std::size_t>(n, 40);
      CodecCase(c).run();
      c.spec.head_dim = 48;
      CodecCase(c).run();
    }
  }
}

TEST(CudaCodec, RefusesWhatTheCpuRefuses) {
  for (const int head_dim : {96, 128}) {
    Case c = mse(head_dim, 4);
    c.dtype = Dtype::kF32;
    EXPECT_EQ(2u * 299, CodecCase(c).status_with(299, std::numeric_limits<float>::quiet_NaN()));
    EXPECT_EQ(2u * 1, CodecCase(c).status_with(1, std::numeric_limits<float>::infinity()));
    EXPECT_EQ(2u * 260 + 1, CodecCase(c).status_with(260, 1e30f));
    EXPECT_EQ(2u * 260 + 1, CodecCase(c).status_with(260, 1e6f));
    EXPECT_EQ(kNoneRefused, CodecCase(c).status_with(260, 1000.0f));
  }
  EXPECT_TRUE(encode_status(kNoneRefused).ok());
  EXPECT_EQ(ErrorCode::kCorrupt, encode_status(10).error().code);
  EXPECT_EQ("token 5: scale or bias beyond f16", encode_status(11).error().message);
}

}  // namespace
}  // namespace tqcache::cuda
