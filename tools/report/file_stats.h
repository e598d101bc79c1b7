#pragma once
// tools/report/file_stats.h: how many bytes of a cache file go where.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "tqcache/cache/cache.h"
#include "tqcache/format/cache_file.h"

namespace tqcache::cli {

// Keys and values of the first `n_tokens` tokens in all layers with attention, as single numbers:
// of a rotating layer those that its window holds.
std::uint64_t value_count(const format::Manifest& info, std::int64_t n_tokens);

// Bits of the whole file for each key and value; nothing when there is none.
std::optional<double> bits_per_value(std::uint64_t file_bytes, std::uint64_t n_values);

inline constexpr std::array kCompressions = {format::Compression::kNone, format::Compression::kZstd,
                                             format::Compression::kPlanes,
                                             format::Compression::kSymbols};

// How many sections are compressed in that way.
std::size_t compressed_count(const format::CacheFileInfo& info, format::Compression compression);

struct PartBytes {
  std::uint64_t key_packed = 0;
  std::uint64_t key_dense = 0;
  std::uint64_t value_packed = 0;
  std::uint64_t value_dense = 0;
  std::uint64_t arrays = 0;
  std::uint64_t manifest = 0;
  std::uint64_t dead = 0;
  std::uint64_t header_and_padding = 0;  // what is left of the file
};
PartBytes bytes_by_part(const format::CacheFileInfo& info);

}  // namespace tqcache::cli
