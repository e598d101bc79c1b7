#pragma once
// tqcache/bytes.h: bytes, number formats, and aligned or shared memory.
//
//   tqcache::ByteReader reader(bytes);
//   TQC_TRY_ASSIGN(const auto count, reader.read<std::uint32_t>());
//
// Numbers are little-endian. Safe for untrusted input: no read passes the end of the view, and no
// length is trusted.

#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tqcache/error.h"

namespace tqcache {

// --- Number formats

enum class Dtype : std::uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2 };

constexpr std::size_t dtype_size(Dtype dtype) { return dtype == Dtype::kF32 ? 4 : 2; }

// "f32", "f16", "bf16".
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);

// Widens or rounds (to nearest, ties to even) a run of values.
//
// Shapes:   `packed` holds values.size() values of `dtype`, at any alignment.
// Bytes:    identical on every CPU.
void load_f32(Dtype dtype, const std::byte* packed, std::span<float> values);
void store_f32(Dtype dtype, std::span<const float> values, std::byte* packed);

// --- Reading and writing

static_assert(std::endian::native == std::endian::little,
              "file bytes are used in place, so the host must be little-endian");

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

inline ByteView as_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

template <class T>
ByteView object_bytes(const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span<const T>(values));
}

// The number at `offset`. Not for bool. Requires: it lies within `bytes`.
template <class T>
T number_at(ByteView bytes, std::size_t offset) {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
  assert(offset <= bytes.size() && sizeof(T) <= bytes.size() - offset);
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Reads values in sequence from a view that the caller keeps alive.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }

  // The next number. Not for bool: a byte above 1 is not a valid bool and has to be checked first.
  // Errors: kTruncated if fewer than sizeof(T) bytes are left; the position does not change.
  template <class T>
  Result<T> read() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    TQC_TRY_ASSIGN(const ByteView bytes, take(sizeof(T)));
    return number_at<T>(bytes, 0);
  }

  // A view of the next `count` bytes. Errors: kTruncated; the position does not change.
  Result<ByteView> take(std::uint64_t count) {
    if (count > remaining()) {
      return Error{ErrorCode::kTruncated, "byte " + std::to_string(position_) + ": " +
                                              std::to_string(count) + " bytes wanted, " +
                                              std::to_string(remaining()) + " left"};
    }
    const ByteView view = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += view.size();
    return view;
  }

  Result<std::string> take_string(std::uint64_t count) {
    TQC_TRY_ASSIGN(const ByteView view, take(count));
    return std::string(reinterpret_cast<const char*>(view.data()), view.size());
  }

 private:
  ByteView bytes_;
  std::size_t position_ = 0;
};

// Appends values to a growing buffer.
class ByteWriter {
 public:
  template <class T>
  void write(T value) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    std::array<std::byte, sizeof(T)> raw;
    std::memcpy(raw.data(), &value, sizeof(T));
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }
  // Requires: `view` is not part of this writer's own bytes.
  void append(ByteView view) { bytes_.insert(bytes_.end(), view.begin(), view.end()); }

  // The length as u64, then the bytes. Hashes use this unambiguous encoding.
  void append_sized(ByteView view) {
    write<std::uint64_t>(view.size());
    append(view);
  }

  const Bytes& bytes() const { return bytes_; }
  Bytes take() && { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// --- Memory
//
// Vectors begin at multiples of 64 bytes, as kernels and mapped sections require.

inline constexpr std::size_t kAlignment = 64;

template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}  // NOLINT(implicit)

  T* allocate(std::size_t n) {
    return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{kAlignment}));
  }
  void deallocate(T* p, std::size_t) { ::operator delete (p, std::align_val_t{kAlignment}); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

using AlignedBytes = std::vector<std::byte, AlignedAllocator<std::byte>>;
using AlignedFloats = std::vector<float, AlignedAllocator<float>>;

// Makes scratch memory at least `size` floats long. Its content may be lost.
template <class Size>
void grow(AlignedFloats& scratch, Size size) {
  const auto n = static_cast<std::size_t>(size);
  if (scratch.size() < n) scratch.resize(n);
}

class SharedBytes {
 public:
  SharedBytes() = default;

  // Takes ownership of the memory.
  explicit SharedBytes(AlignedBytes bytes) {
    auto owner = std::make_shared<const AlignedBytes>(std::move(bytes));
    view_ = *owner;
    owner_ = std::move(owner);
  }

  // Bytes that stay valid while `owner` lives, such as those of a mapped file.
  SharedBytes(std::shared_ptr<const void> owner, ByteView view)
      : owner_(std::move(owner)), view_(view) {}

  // A part of the bytes, which keeps all of them alive. Requires: within size().
  SharedBytes part(std::size_t offset, std::size_t size) const {
    return {owner_, view_.subspan(offset, size)};
  }

  ByteView view() const { return view_; }
  const std::byte* data() const { return view_.data(); }
  std::size_t size() const { return view_.size(); }

 private:
  std::shared_ptr<const void> owner_;
  ByteView view_;
};

}  // namespace tqcache
