#pragma once
// format/sections/compression.h: one section as one zstd frame, and back. Decompression is safe for
// untrusted input.
//
// Threads: all functions may be called from several at once; each call borrows a zstd context of
// its own and gives it back, so that a long job makes as many as it has threads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache::format {

class Compressor {
 public:
  // Errors: kInvalidArgument when the level is not 1 to 19.
  static Result<Compressor> make(int level);

  // For bytes that repeat themselves one by one and not in a row, as those of exponents: nearly all
  // it does is give frequent ones fewer bits. Looking for more would find chance repetitions, which
  // take time and make such bytes larger.
  static Compressor for_planes();

  Compressor(Compressor&&) noexcept;
  ~Compressor();

  // Fills `frame` with a frame of `raw`. False: it would not be smaller than `raw`.
  bool compress(ByteView raw, Bytes& frame) const;

  // Gives the size of the frame that it wrote into `room`; 0: there is too little.
  std::size_t compress_into(ByteView raw, std::span<std::byte> room) const;

  // The same for bytes of several kinds, one behind the other, each of which gets a table of its
  // own. Requires: sizes add up to that of `raw`.
  std::size_t compress_pieces(ByteView raw, std::span<const std::size_t> sizes,
                              std::span<std::byte> room) const;

 private:
  struct State;
  explicit Compressor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class Decompressor {
 public:
  Decompressor();
  ~Decompressor();

  // Checks that `frame` is one zstd frame and nothing more, and says of itself that it holds
  // `raw_size` bytes, which its own size allows; that it needs no dictionary and no window above
  // 128 MiB (docs/reference/format.md §6.4). To be called before memory for the content is
  // allocated.
  // Errors: kCorrupt.
  static Result<void> check_frame(ByteView frame, std::uint64_t raw_size);

  // Errors: kCorrupt, also when the frame does not hold exactly raw.size() bytes.
  Result<void> decompress(ByteView frame, std::span<std::byte> raw) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tqcache::format
