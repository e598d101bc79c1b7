#pragma once
// format/convert_file.h: the conversion of a cache from file to file in bounded memory:
// cache::quantize() between a reader and a new file.
//
// Spec: docs/reference/codec.md §8; docs/explain/design.md, "A cache is converted and written
//       section by section".

#include <cstdint>
#include <filesystem>
#include <optional>

#include "tqcache/base/file.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/quantize.h"
#include "tqcache/cache/reader.h"
#include "tqcache/format/cache_file.h"

namespace tqcache::format {

// Writes to `path`, whole or not at all, byte for byte the file that read_cache(), cache::convert()
// and write_cache_file() would make of `source`, or of its `first_tokens` tokens if so many are
// given (ReadOptions::first_tokens).
//
// Reads some token blocks of every side twice: for the mean and the outlier channels of the side
// (cache::mean_blocks()), and with all others to pack them. `source` may be the file that `path`
// replaces (write.overwrite): that happens at the end. options.n_threads counts, and that of
// `write` does not.
//
// Memory:   the token blocks of one side that its mean is taken over (at most 32), then
//           write.window_bytes and a token block a thread; sliding windows that get packed, in
//           packed form; when `path` is a stream (/dev/stdout), the whole file besides.
// Progress: bytes of the source before compression; what is read twice counts twice.
// Errors:   as read_cache(), but max_payload_bytes holds for each section, and for all sliding
//           windows together that get packed; as cache::convert(), of these windows first and then
//           in the order of the file's sections; as write_cache_file(). kInterrupted.
Result<void> convert_file(const ByteSource& source, const std::filesystem::path& path,
                          const cache::ConvertOptions& options, const WriteOptions& write,
                          const Progress& progress = {},
                          std::optional<std::int64_t> first_tokens = {});

// The same for any reader. With plans that leave every K and V as it is the cache is written
// unchanged.
//
// Errors: those of the reader in the place of read_cache()'s.
Result<void> convert_file(const cache::CacheReader& source, const std::filesystem::path& path,
                          const cache::ConvertOptions& options, const WriteOptions& write,
                          const Progress& progress = {});

}  // namespace tqcache::format
