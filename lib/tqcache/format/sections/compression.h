#pragma once
// format/sections/compression.h: compression of one section into one zstd frame, and back.
// Decompression is safe for untrusted input.
//
// Threads: all functions may be called from several at once. Each call borrows a zstd context and
// returns it, so a long job creates as many as it has threads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache::format {

// The zstd that runs: "1.5.4".
const char* zstd_version();

class Compressor {
 public:
  // Errors: kInvalidArgument when the level is not 1 to 19.
  static Result<Compressor> make(int level);

  // For bytes without repeated sequences, such as exponents: nearly all the gain comes from entropy
  // coding. A longer search would find chance repetitions, which take time and increase the size.
  static Compressor for_planes();

  Compressor(Compressor&&) noexcept;
  ~Compressor();

  // Fills `frame` with a frame of `raw`. Returns false if it would not be smaller than `raw`.
  bool compress(ByteView raw, Bytes& frame) const;

  // Returns the size of the frame written into `room`; 0: the room is too small.
  std::size_t compress_into(ByteView raw, std::span<std::byte> room) const;

  // The same for bytes of several kinds, one after another, each with its own entropy table.
  // Requires: sizes add up to that of `raw`.
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

  // Checks that `frame` is exactly one zstd frame that declares `raw_size` bytes of content, a size
  // possible for its own length, and needs no dictionary and no window above 128 MiB
  // (docs/reference/format.md §6.4). Call it before memory for the content is allocated.
  // Errors: kCorrupt.
  static Result<void> check_frame(ByteView frame, std::uint64_t raw_size);

  // Errors: kCorrupt, also when the frame does not hold exactly raw.size() bytes.
  Result<void> decompress(ByteView frame, std::span<std::byte> raw) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tqcache::format
