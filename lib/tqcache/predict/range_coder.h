#pragma once
// predict/range_coder.h: an adaptive binary arithmetic coder, in integers.
//
// Spec:   docs/reference/codec.md §11, "Arithmetic code".
// Source: G. N. N. Martin, "Range encoding" (1979), with the carry of the LZMA SDK.

#include <cstddef>
#include <cstdint>

#include "tqcache/bytes.h"

namespace tqcache::predict {

inline constexpr unsigned kProbabilityBits = 15;
inline constexpr std::uint32_t kLeastRange = 1u << 24;

// The probability that a bit is 0, which follows the bits that were coded with it: fast at first.
struct BitModel {
  std::uint16_t zero = 1u << (kProbabilityBits - 1);
  std::uint16_t count = 0;

  void update(bool bit) {
    const unsigned shift = 4u + (count >= 16) + (count >= 64) + (count >= 256);
    if (count < 256) ++count;
    const unsigned up = ((1u << kProbabilityBits) - zero) >> shift;
    const unsigned down = zero >> shift;
    zero = static_cast<std::uint16_t>(bit ? zero - down : zero + up);
  }
};

// Loops over symbols copy the coder and put it back. Its numbers are in registers then, provided
// that everything is inlined.
class RangeEncoder {
 public:
  explicit RangeEncoder(Bytes& out) : out_(&out) {}

  [[gnu::always_inline]] void encode(BitModel& model, bool bit) {
    const std::uint32_t bound = (range_ >> kProbabilityBits) * model.zero;
    low_ += bit ? bound : 0;
    range_ = bit ? range_ - bound : bound;
    model.update(bit);
    normalize();
  }

  // A bit of probability one half.
  [[gnu::always_inline]] void encode_even(bool bit) {
    range_ >>= 1;
    if (bit) low_ += range_;
    normalize();
  }

  void finish() {
    for (int i = 0; i < 5; ++i) shift();
  }

 private:
  [[gnu::always_inline]] void normalize() {
    while (range_ < kLeastRange) {
      range_ <<= 8;
      shift();
    }
  }

  [[gnu::always_inline]] void shift() {
    if (low_ < 0xff000000u || low_ > 0xffffffffu) {
      const auto carry = static_cast<std::uint8_t>(low_ >> 32);
      if (is_begun_) out_->push_back(std::byte{static_cast<std::uint8_t>(held_ + carry)});
      for (; n_ff_ > 0; --n_ff_) {
        out_->push_back(std::byte{static_cast<std::uint8_t>(0xff + carry)});
      }
      held_ = static_cast<std::uint8_t>(low_ >> 24);
      is_begun_ = true;
    } else {
      ++n_ff_;
    }
    low_ = (low_ & 0x00ffffffu) << 8;
  }

  Bytes* out_;
  std::uint64_t low_ = 0;
  std::uint32_t range_ = 0xffffffffu;
  std::uint64_t n_ff_ = 0;  // bytes of 0xff that a carry would change
  std::uint8_t held_ = 0;
  bool is_begun_ = false;  // the first byte that is held is always 0, and not written
};

// Bytes behind the end count as 0; is_complete() tells whether exactly all bytes were read.
class RangeDecoder {
 public:
  explicit RangeDecoder(ByteView in) : in_(in) {
    for (int i = 0; i < 4; ++i) code_ = code_ << 8 | next();
  }

  [[gnu::always_inline]] bool decode(BitModel& model) {
    const std::uint32_t bound = (range_ >> kProbabilityBits) * model.zero;
    const bool bit = code_ >= bound;
    if (bit) {
      code_ -= bound;
      range_ -= bound;
    } else {
      range_ = bound;
    }
    model.update(bit);
    normalize();
    return bit;
  }

  [[gnu::always_inline]] bool decode_even() {
    range_ >>= 1;
    const bool bit = code_ >= range_;
    if (bit) code_ -= range_;
    normalize();
    return bit;
  }

  bool is_complete() const { return position_ == in_.size(); }

 private:
  [[gnu::always_inline]] void normalize() {
    while (range_ < kLeastRange) {
      range_ <<= 8;
      code_ = code_ << 8 | next();
    }
  }

  std::uint32_t next() {
    const std::size_t at = position_++;
    return at < in_.size() ? std::to_integer<std::uint32_t>(in_[at]) : 0;
  }

  ByteView in_;
  std::size_t position_ = 0;
  std::uint32_t range_ = 0xffffffffu;
  std::uint32_t code_ = 0;
};

}  // namespace tqcache::predict
