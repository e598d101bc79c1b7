#pragma once
// interop/llama/llama_cursor.h: walks through a large file number by number, and jumps over what is not
// to be read now. Safe for untrusted input.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tqcache/base/bytes.h"
#include "tqcache/base/file.h"
#include "tqcache/base/result.h"

namespace tqcache::interop {

class LlamaCursor {
 public:
  // Begins at byte `position`. `file` must outlive this.
  LlamaCursor(const ByteSource& file, std::uint64_t position)
      : file_(file), end_(file.size()), position_(position) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return position_ < end_ ? end_ - position_ : 0; }

  // The next number. Errors: kTruncated, kIo; the position stays.
  template <class T>
  Result<T> read() {
    TQC_TRY(buffer(sizeof(T)));
    const T value = number_at<T>(buffer_, static_cast<std::size_t>(position_ - buffered_at_));
    position_ += sizeof(T);
    return value;
  }

  // Errors: kTruncated; the position stays.
  Result<void> skip(std::uint64_t count) {
    TQC_TRY(check(count));
    position_ += count;
    return {};
  }

  // The next bytes as text. Requires: `count` is small. Errors: as read().
  Result<std::string> read_text(std::size_t count) {
    TQC_TRY(check(count));
    std::string text(count, '\0');
    TQC_TRY(file_.read_at(position_, std::as_writable_bytes(std::span(text))));
    position_ += count;
    return text;
  }

 private:
  static constexpr std::uint64_t kBufferBytes = 16 * 1024;

  Result<void> check(std::uint64_t count) const {
    if (count <= remaining()) return {};
    return Error{ErrorCode::kTruncated, "byte " + std::to_string(position_) + ": " +
                                            std::to_string(count) + " bytes wanted, " +
                                            std::to_string(remaining()) + " left"};
  }

  // Makes the next `count` bytes, few, be in the buffer.
  Result<void> buffer(std::uint64_t count) {
    TQC_TRY(check(count));
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
