#pragma once
// base/shared_bytes.h: read-only bytes with shared ownership.
//
// They are in memory of their own or in a mapped file; readers need not know which.
//
// Threads: any number may read.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "tqcache/base/aligned.h"
#include "tqcache/base/bytes.h"

namespace tqcache {

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
