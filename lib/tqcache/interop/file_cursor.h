#pragma once
// interop/file_cursor.h: a reader of consecutive numbers in a large file that can skip ranges. Safe
// for untrusted input.

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"

namespace tqcache::interop {

class FileCursor {
 public:
  // `file` must outlive the cursor.
  explicit FileCursor(const ByteSource& file, std::uint64_t position = 0)
      : file_(file), end_(file.size()), position_(position) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return position_ < end_ ? end_ - position_ : 0; }

  // The next number. Errors of this and the other readers: kTruncated, kIo; the position does not
  // change.
  template <class T>
  Result<T> read() {
    TQC_TRY(buffer(sizeof(T)));
    const T value = number_at<T>(buffer_, static_cast<std::size_t>(position_ - buffered_at_));
    position_ += sizeof(T);
    return value;
  }

  Result<void> skip(std::uint64_t count) {
    TQC_TRY(need(count));
    position_ += count;
    return {};
  }

  // The next bytes as text. Requires: the caller has limited `count`.
  Result<std::string> read_text(std::uint64_t count) {
    TQC_TRY(need(count));
    std::string text(static_cast<std::size_t>(count), '\0');
    TQC_TRY(file_.read_at(position_, std::as_writable_bytes(std::span(text))));
    position_ += count;
    return text;
  }

  // Checks that `count` more bytes exist. Errors: kTruncated.
  Result<void> need(std::uint64_t count) const {
    if (count <= remaining()) return {};
    return Error{ErrorCode::kTruncated,
                 fmt::format("byte {}: {} bytes wanted, {} left", position_, count, remaining())};
  }

 private:
  static constexpr std::uint64_t kBufferBytes = 16 * 1024;

  // Loads the next `count` bytes into the buffer. `count` is small.
  Result<void> buffer(std::uint64_t count) {
    TQC_TRY(need(count));
    const bool is_there = position_ >= buffered_at_ && position_ - buffered_at_ <= buffer_.size() &&
                          count <= buffer_.size() - (position_ - buffered_at_);
    if (is_there) return {};
    buffer_.resize(static_cast<std::size_t>(std::min(kBufferBytes, remaining())));
    auto done = file_.read_at(position_, buffer_);
    if (!done) {
      buffer_.clear();
      return std::move(done).error();
    }
    buffered_at_ = position_;
    return {};
  }

  const ByteSource& file_;
  std::uint64_t end_;
  std::uint64_t position_;
  std::uint64_t buffered_at_ = 0;
  Bytes buffer_;
};

}  // namespace tqcache::interop
