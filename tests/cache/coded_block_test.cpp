#include "tqcache/cache/coded_block.h"

#include <gtest/gtest.h>

#include "support/cache_builder.h"
#include "tqcache/codec/head_codec.h"

namespace tqcache::cache {
namespace coded_block_test {

using test::must;

constexpr HeadShape kShape{2, 64};

KvCodec codec_of(const codec::CodecSpec& spec, codec::BlockOrder order) {
  const TensorPlan plan{.codec = spec, .center = Centering::kNone};
  return must(make_codec(plan, order, kShape, Dtype::kF16, Rope()));
}

std::size_t tokens() { return static_cast<std::size_t>(kTokenBlock); }

// Takes a packed block apart, and puts it together again from its codes and scales.
void expect_same_again(const KvCodec& kv, codec::BlockOrder order) {
  test::Random random(3);
  const std::vector<codec::PartSpec>& parts = kv.parts();
  const CodedBlock layout(kShape, parts, order);
  AlignedBytes block(kv.packed_bytes(0));
  ASSERT_EQ(layout.bytes(), block.size());
  for (std::byte& each : block) each = static_cast<std::byte>(random.below(256));
  const codec::HeadCodec& codec = kv.state().codec;

  AlignedBytes again(layout.bytes(), std::byte{0xff});
  for (std::size_t head = 0; head < 2; ++head) {
    const auto own = kv.state().head(block, 0, static_cast<std::int64_t>(head));
    std::size_t at = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const codec::BlockShape& shape = codec.part(i).shape();
      std::vector<std::uint8_t> codes(tokens() * shape.dim());
      codec::unpack_block(shape, own.codes.subspan(at, shape.block_bytes()), codes);
      at += shape.block_bytes();
      // Between other codes, as a row of several parts has them.
      const std::size_t row = shape.dim() + 5;
      std::vector<std::uint8_t> wide(tokens() * row, 0xee);
      for (std::size_t t = 0; t < tokens(); ++t) {
        std::copy_n(codes.data() + t * shape.dim(), shape.dim(), wide.data() + t * row + 2);
      }
      if (i % 2 == 0) {
        layout.put_codes(head, i, {codes, shape.dim(), 0}, again);
      } else {
        layout.put_codes(head, i, {wide, row, 2}, again);
      }
      layout.put_scales(head, i, own.scales.subspan(i * tokens(), tokens()), again);
      if (parts[i].has_bias) layout.put_biases(head, i, codec.biases(own, i), again);
    }
  }
  EXPECT_EQ(again, block);
}

TEST(CodedBlock, PutsEverythingWhereACodecHasIt) {
  const std::vector<codec::CodecSpec> specs = {
      {.head_dim = 64, .bits = 4},
      {.head_dim = 64, .mode = codec::Mode::kProd, .bits = 3},
      {.head_dim = 64,
       .mode = codec::Mode::kMixed,
       .bits = 2,
       .outlier_channels = 32,
       .outlier_bits = 5},
      {.head_dim = 64, .mode = codec::Mode::kAffine, .bits = 3, .group_size = 32}};
  for (const codec::CodecSpec& spec : specs) {
    for (const auto order : {codec::BlockOrder::kKeys, codec::BlockOrder::kValues}) {
      SCOPED_TRACE(codec::mode_word(spec.mode));
      expect_same_again(codec_of(spec, order), order);
    }
  }
}

}  // namespace coded_block_test
}  // namespace tqcache::cache
