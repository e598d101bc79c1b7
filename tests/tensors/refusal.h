#pragma once
// tests/tensors/refusal.h: reading bytes that must be refused, in memory that ends where they end.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "support/matchers.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache::test {

// A heap copy without a spare byte, so that the address sanitizer sees any read past the end.
class ExactCopy {
 public:
  explicit ExactCopy(ByteView bytes)
      : size_(bytes.size()), memory_(std::make_unique<std::byte[]>(bytes.size())) {
    if (size_ > 0) std::memcpy(memory_.get(), bytes.data(), size_);
  }
  ByteView bytes() const { return {memory_.get(), size_}; }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> memory_;
};

// `read` must refuse `file` with `code` and exactly `message`, and also the file one byte short.
template <class Reader>
void expect_refused(Reader read, const Bytes& file, ErrorCode code, const std::string& message) {
  const ExactCopy whole(file);
  EXPECT_THAT(read(whole.bytes()), test::FailsWith(code, message));
  const ExactCopy cut(ByteView(file).first(file.size() - 1));
  EXPECT_FALSE(read(cut.bytes()).ok()) << message;
}

}  // namespace tqcache::test
