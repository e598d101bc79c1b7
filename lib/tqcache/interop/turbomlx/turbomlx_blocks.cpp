#include "tqcache/interop/turbomlx/turbomlx_blocks.h"

#include <memory>
#include <string>
#include <utility>

#include "tqcache/base/half.h"
#include "tqcache/base/integers.h"
#include "tqcache/cache/coded_block.h"
#include "tqcache/codec/block_layout.h"

namespace tqcache::interop {
namespace {

using cache::kTokenBlock;

constexpr std::uint16_t kInfinity = 0x7c00;
constexpr std::uint16_t kMagnitude = 0x7fff;

Result<std::vector<std::uint16_t>> halves(const ReadNumbers& read, const ByteSource& file,
                                          std::size_t head, std::int64_t block) {
  TQC_TRY_ASSIGN(const std::vector<float> numbers, read(file, head, block));
  std::vector<std::uint16_t> result;
  for (const float number : numbers) {
    result.push_back(f32_to_f16(number));
    if ((result.back() & kMagnitude) < kInfinity) continue;
    return Error{ErrorCode::kCorrupt, "head " + std::to_string(head) +
                                          ": a scale or bias beyond f16, which was not there"};
  }
  return result;
}

// [256, n_codes], one code a byte.
Result<std::vector<std::uint8_t>> unpacked(const TurboMlxCodeRows& rows, const ByteSource& file,
                                           std::size_t head, std::int64_t block) {
  TQC_TRY_ASSIGN(const Bytes packed,
                 turbomlx_row_bytes(file, rows.rows, head, block * kTokenBlock, kTokenBlock));
  std::vector<std::uint8_t> codes(to_size(kTokenBlock) * rows.n_codes);
  for (std::size_t t = 0; t < to_size(kTokenBlock); ++t) {
    codec::unpack_codes(ByteView(packed).subspan(t * rows.rows.row_bytes, rows.rows.row_bytes),
                        rows.bits, std::span(codes).subspan(t * rows.n_codes, rows.n_codes));
  }
  return codes;
}

// Reads token blocks of a side as ours have them.
class BlockReader {
 public:
  BlockReader(TurboMlxSource file, TurboMlxCodedSide side)
      : file_(std::move(file)),
        side_(std::move(side)),
        layout_(side_.shape, side_.specs(), side_.order) {}

  Result<void> read(std::int64_t block, std::span<std::byte> out) const {
    for (std::size_t head = 0; head < to_size(side_.shape.n_kv_heads); ++head) {
      TQC_TRY(read_codes(head, block, out));
      TQC_TRY(read_scales(head, block, out));
    }
    return {};
  }

 private:
  Result<void> read_codes(std::size_t head, std::int64_t block, std::span<std::byte> out) const {
    std::vector<std::vector<std::uint8_t>> codes;
    for (const TurboMlxCodeRows& rows : side_.rows) {
      TQC_TRY_ASSIGN(auto own, unpacked(rows, *file_, head, block));
      codes.push_back(std::move(own));
    }
    for (std::size_t i = 0; i < side_.parts.size(); ++i) {
      const TurboMlxCodedPart& part = side_.parts[i];
      layout_.put_codes(head, i, {codes[part.rows], side_.rows[part.rows].n_codes, part.first_code},
                        out);
    }
    return {};
  }

  Result<void> read_scales(std::size_t head, std::int64_t block, std::span<std::byte> out) const {
    for (std::size_t i = 0; i < side_.parts.size(); ++i) {
      const TurboMlxCodedPart& part = side_.parts[i];
      TQC_TRY_ASSIGN(const auto scales, halves(part.scales, *file_, head, block));
      layout_.put_scales(head, i, scales, out);
      if (!part.spec.has_bias) continue;
      TQC_TRY_ASSIGN(const auto biases, halves(part.biases, *file_, head, block));
      layout_.put_biases(head, i, biases, out);
    }
    return {};
  }

  TurboMlxSource file_;
  TurboMlxCodedSide side_;
  cache::CodedBlock layout_;
};

}  // namespace

std::vector<codec::PartSpec> TurboMlxCodedSide::specs() const {
  std::vector<codec::PartSpec> specs;
  for (const TurboMlxCodedPart& part : parts) specs.push_back(part.spec);
  return specs;
}

ReadBlock turbomlx_blocks(TurboMlxSource file, TurboMlxCodedSide side) {
  const auto reader = std::make_shared<const BlockReader>(std::move(file), std::move(side));
  return
      [reader](std::int64_t block, std::span<std::byte> out) { return reader->read(block, out); };
}

}  // namespace tqcache::interop
