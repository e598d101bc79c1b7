#pragma once
// support/failing_source.h: bytes of which one read fails, as from a disk that goes bad.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "tqcache/file.h"

namespace tqcache::test {

// Passes every read on but one: read `failing` (0: the first) gives kIo, "the disk went bad".
class FailingSource : public ByteSource {
 public:
  FailingSource(Bytes bytes, std::size_t failing)
      : bytes_(memory_source(std::move(bytes))), failing_(failing) {}

  std::uint64_t size() const override { return bytes_->size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (n_reads_++ == failing_) return Error{ErrorCode::kIo, "the disk went bad"};
    return bytes_->read_at(offset, out);
  }

  bool has_failed() const { return n_reads_ > failing_; }

 private:
  std::unique_ptr<ByteSource> bytes_;
  std::size_t failing_;
  mutable std::atomic<std::size_t> n_reads_ = 0;
};

// Calls use(source) with the first read failing, then with the second, ... until `use` gets by with
// fewer. Returns how many reads `use` makes.
template <class Use>
std::size_t fail_every_read(const Bytes& bytes, Use use) {
  for (std::size_t failing = 0;; ++failing) {
    const FailingSource source(bytes, failing);
    use(source);
    if (!source.has_failed()) return failing;
  }
}

}  // namespace tqcache::test
