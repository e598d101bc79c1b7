#pragma once
// store/values/checked_value.h: bytes in an envelope of checksums: a value under a key of another
// program, with metadata that a reader compares. Decoding is safe for untrusted input.
//
// Spec: docs/reference/store.md, "Values of other programs".

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache::store {

// How the data of a value is stored. The numbers are those in envelopes.
enum class ValueCoding : std::uint32_t {
  kRaw = 0,
  kPlanes2 = 1,  // byte planes of 2-byte numbers, in chunks, each compressed if that is smaller
  kPlanes4 = 2,  // of 4-byte numbers
};

inline constexpr std::size_t kMaxValueKeyBytes = 4096;
inline constexpr std::size_t kMaxValueMetaBytes = 65536;
inline constexpr std::size_t kValueChunkBytes = 1 << 20;  // before compression

// The envelope of `data`, which is given in parts that are joined.
//
// Errors: kTooLarge (key, metadata); kInvalidArgument (planes of data that is no multiple of the
//         size of a number).
Result<Bytes> encode_value(std::string_view key, ByteView meta, std::span<const ByteView> data,
                           ValueCoding coding, unsigned n_threads);

// The fields of an envelope whose checksums are right.
struct CheckedValue {
  std::string_view key;
  ByteView meta;
  ValueCoding coding = ValueCoding::kRaw;
  std::uint64_t data_bytes = 0;  // before coding
  ByteView stored;               // the data as it is stored
};

// Views of `envelope`. Errors: kTruncated, kCorrupt, kUnsupported (a later version), kNoKey (an
// encrypted value), kTooLarge (more memory than such a value should take).
Result<CheckedValue> open_value(ByteView envelope, const MemoryBudget& memory = {});

// Decodes the data of a value into parts, which are filled one after another.
//
// Requires: the parts have value.data_bytes together.
// Errors:   kCorrupt.
Result<void> read_value(const CheckedValue& value, std::span<const std::span<std::byte>> out,
                        unsigned n_threads);

}  // namespace tqcache::store
