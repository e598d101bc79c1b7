#pragma once
// format/append_fixture.h: caches that grow, and files that were appended to.

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cache/random_cache.h"
#include "file_fixture.h"
#include "support/temp_dir.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/open_container.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {

// Adds tokens as a decoder does; state that belongs to all of them becomes another.
inline void grow(cache::Cache& cache, std::mt19937& random, std::int64_t n) {
  append_tokens(cache, random, n);
  for (cache::Layer& any : cache.layers) {
    if (auto* const state = std::get_if<cache::StateLayer>(&any)) {
      for (cache::NamedArray& array : state->arrays) {
        for (std::byte& byte : array.data) byte = std::byte(random() % 128);
      }
    }
    auto* const window = std::get_if<cache::WindowLayer>(&any);
    if (window == nullptr || cache::is_quantized(window->attention)) continue;
    const cache::HeadShape shape = window->attention.shape;
    for (cache::Tensor* tensor : {&window->attention.k, &window->attention.v}) {
      const Dtype dtype = cache::dense_dtype(*tensor);
      const std::int64_t n_rows =
          shape.n_kv_heads * cache::window_tokens(window->window, cache.n_tokens());
      AlignedBytes array(static_cast<std::size_t>(n_rows * shape.head_dim) * dtype_size(dtype));
      for (std::byte& byte : array) byte = std::byte(random() % 128);
      *tensor = cache::scatter_window(shape, window->window, dtype, array, cache.n_tokens());
    }
  }
}

inline cache::Cache grown(cache::Cache cache, std::int64_t n, unsigned seed = 1) {
  std::mt19937 random(seed);
  grow(cache, random, n);
  return cache;
}

// A .tqkv file on disk, in a folder of its own.
class CacheOnDisk {
 public:
  explicit CacheOnDisk(const cache::Cache& cache, format::WriteOptions options = stored()) {
    must(format::write_cache_file(cache, path(), options));
  }
  explicit CacheOnDisk(const Bytes& file) { write_all(path(), file); }

  static format::WriteOptions stored() { return {.compression = Compression::kNone}; }

  std::filesystem::path path() const { return dir_ / "cache.tqkv"; }
  Bytes bytes() const { return read_all(path()); }
  std::size_t entry_count() const { return dir_.entry_count(); }

  Result<format::AppendReport> append(const cache::Cache& cache,
                                      format::WriteOptions options = stored()) const {
    TQC_TRY_ASSIGN(format::CacheAppender appender, format::CacheAppender::open(path()));
    return appender.append(cache, options);
  }

 private:
  TempDir dir_;
};

// The bytes of a file of `cache` after an append of `longer`.
inline Bytes appended_file(const cache::Cache& cache, const cache::Cache& longer) {
  const CacheOnDisk file(cache);
  must(file.append(longer));
  return file.bytes();
}

// Two dense blocks of values, of which an append replaced the second, and the old manifest.
inline Bytes appended_small_file() {
  const cache::Cache cache = CacheBuilder(3).dense({2, 4}).arrays().build();
  return appended_file(cache, grown(cache, 2));
}

inline format::Header header_of(const Bytes& file) {
  return must(format::read_header(*memory_source(file)));
}

// Puts a slot where its generation belongs.
inline void put_slot(Bytes& file, const format::HeaderSlot& slot) {
  std::ranges::copy(format::encode_slot(slot),
                    file.begin() + static_cast<std::ptrdiff_t>(format::slot_index(slot.generation) *
                                                               format::kSlotBytes));
}

// The same file with another manifest behind the same sections, and a slot in use that fits it;
// `change_slot` may spoil that afterwards.
inline Bytes forge(Bytes file, const std::function<void(Manifest&)>& change,
                   const std::function<void(format::HeaderSlot&)>& change_slot = {}) {
  Manifest manifest = info_of(file);
  format::HeaderSlot slot = header_of(file).slot;
  change(manifest);
  manifest.content_name = format::content_name(manifest);
  const Bytes bytes = must(format::encode_manifest(manifest));
  file.resize(slot.manifest_offset);
  file.insert(file.end(), bytes.begin(), bytes.end());
  slot.file_bytes = file.size();
  slot.manifest_checksum = xxh3_128(bytes);
  slot.required_features = format::required_features(manifest);
  if (change_slot) change_slot(slot);
  put_slot(file, slot);
  return file;
}

}  // namespace tqcache::test
