#pragma once
// interop/turbomlx/pickle_reader.h: a file read from front to back, of which large parts may be left out.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "tqcache/base/bytes.h"
#include "tqcache/base/file.h"
#include "tqcache/base/result.h"

namespace tqcache::interop {

class PickleReader {
 public:
  explicit PickleReader(const ByteSource& file) : file_(file), end_(file.size()) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return end_ - position_; }

  // Errors of all: kTruncated, those of the file.
  template <class T>
  Result<T> read() {
    TQC_TRY(need(sizeof(T)));
    if (position_ < start_ || position_ + sizeof(T) > start_ + window_.size()) TQC_TRY(fill());
    const T value = number_at<T>(window_, static_cast<std::size_t>(position_ - start_));
    position_ += sizeof(T);
    return value;
  }

  // Requires: the caller has a bound on `size`.
  Result<std::string> read_text(std::uint64_t size) {
    TQC_TRY(need(size));
    std::string text(static_cast<std::size_t>(size), '\0');
    TQC_TRY(file_.read_at(position_, std::as_writable_bytes(std::span(text))));
    position_ += size;
    return text;
  }

  // Where the next `size` bytes stand.
  Result<std::uint64_t> skip(std::uint64_t size) {
    TQC_TRY(need(size));
    const std::uint64_t at = position_;
    position_ += size;
    return at;
  }

  Result<void> need(std::uint64_t size) const {
    if (size <= remaining()) return {};
    return Error{ErrorCode::kTruncated, "byte " + std::to_string(position_) + ": " +
                                            std::to_string(size) + " bytes wanted, " +
                                            std::to_string(remaining()) + " left"};
  }

 private:
  static constexpr std::uint64_t kWindow = 16 * 1024;

  Result<void> fill() {
    window_.resize(static_cast<std::size_t>(std::min(kWindow, remaining())));
    start_ = position_;
    return file_.read_at(start_, window_);
  }

  const ByteSource& file_;
  std::uint64_t end_;
  std::uint64_t position_ = 0;
  std::uint64_t start_ = 0;  // of the window
  Bytes window_;
};

}  // namespace tqcache::interop
