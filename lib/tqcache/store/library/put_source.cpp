
#include "tqcache/store/library/put_source.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/format/section_writer.h"
#include "tqcache/format/sections/symbol_section.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/store/blobs/chain_layout.h"

namespace tqcache::store {

PutSource::PutSource(const cache::CacheReader& reader, SectionStorer storer)
    : reader_(&reader), manifest_(format::manifest_of(reader)), storer_(std::move(storer)) {}

Result<PutSource> PutSource::open(const cache::CacheReader& reader) {
  TQC_TRY_ASSIGN(SectionStorer storer, SectionStorer::make());
  return PutSource(reader, std::move(storer));
}

Result<std::optional<StoredSection>> PutSource::as_stored(std::size_t i) const {
  if (reader_->prediction()) return std::optional<StoredSection>();
  BlobMemory::Room room;
  TQC_TRY_ASSIGN(const auto stored, reader_->stored(i, [&](std::size_t n_bytes) {
    room = memory_->take(n_bytes);
    return room.bytes;
  }));
  if (!stored) return std::optional<StoredSection>();
  StoredSection section{manifest_.sections[i], room.shared()};
  section.info.compression = stored->compression;
  section.info.stored_bytes = room.bytes.size();
  section.info.checksum = stored->checksum;
  section.info.raw_sha256 = stored->raw_sha256;
  return std::optional(std::move(section));
}

Result<Sha256> PutSource::digest(std::size_t i) const {
  TQC_TRY_ASSIGN(const auto stored, as_stored(i));
  if (stored) return stored->info.raw_sha256;
  TQC_TRY_ASSIGN(const SharedBytes raw, reader_->share(i));
  return sha256(raw.view());
}

Result<StoredSection> PutSource::section(std::size_t i) const {
  TQC_TRY_ASSIGN(auto stored, as_stored(i));
  if (stored) return *std::move(stored);
  TQC_TRY_ASSIGN(SharedBytes raw, reader_->share(i));
  const format::SectionInfo& info = manifest_.sections[i];
  return storer_.store(manifest_.layers[to_size(info.layer)], info, std::move(raw));
}

namespace {

bool becomes_smaller(const cache::LayerDesc& layer, const format::SectionInfo& section) {
  return !section.packed || format::has_symbols(cache::tensor_of(layer, section.tensor));
}

}  // namespace

Result<SectionStorer> SectionStorer::make() {
  using enum format::Compression;
  TQC_TRY_ASSIGN(auto as_it_is, format::SectionCompressor::make(kNone, 1));
  TQC_TRY_ASSIGN(auto smaller, format::SectionCompressor::make(kPlanes, 1));
  return SectionStorer(std::move(as_it_is), std::move(smaller));
}

StoredSection SectionStorer::store(const cache::LayerDesc& layer,
                                   const format::SectionInfo& section, SharedBytes raw) const {
  format::SectionInfo info = section;
  Bytes compressed;
  const auto& compressor = becomes_smaller(layer, info) ? smaller_ : as_it_is_;
  compressor.prepare(layer, raw.view(), info, compressed);
  if (compressed.empty()) return {info, std::move(raw)};
  const auto owner = std::make_shared<const Bytes>(std::move(compressed));
  return {info, SharedBytes(owner, *owner)};
}

namespace {

using cache::kTokenBlock;
using cache::TensorKind;

// A section of a cache in memory, with bytes that stay valid when the cache grows.
RawSection raw_section(const cache::Cache& cache, const cache::BlockInfo& block) {
  RawSection section;
  static_cast<cache::BlockInfo&>(section.info) = block;
  section.raw = cache::copy_block(cache, block);
  return section;
}

}  // namespace

std::uint64_t total_bytes(const std::vector<RawSection>& sections) {
  std::uint64_t bytes = 0;
  for (const RawSection& section : sections) bytes += section.raw.size();
  return bytes;
}

bool keeps_state(const cache::Cache& cache) {
  return std::ranges::any_of(cache.layers, [](const cache::Layer& layer) {
    return !std::holds_alternative<cache::AttentionLayer>(layer);
  });
}

Parameters parameters_of(const cache::Cache& cache) {
  Parameters parameters{cache.identity, {}, {}};
  parameters.tokens.assign(cache.tokens.begin(), cache.tokens.begin() + kTokenBlock);
  for (const cache::Layer& layer : cache.layers) {
    parameters.layers.push_back(cache::describe(layer));
  }
  return parameters;
}

std::vector<RawSection> block_pieces(const cache::Cache& cache,
                                     const std::vector<cache::LayerDesc>& layers,
                                     std::int64_t block) {
  std::vector<RawSection> pieces;
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    if (!std::holds_alternative<cache::AttentionLayer>(cache.layers[i])) continue;
    for (const TensorKind kind : {TensorKind::kKeys, TensorKind::kValues}) {
      const cache::BlockKey key{static_cast<std::int64_t>(i), kind, block};
      cache::BlockInfo info{key.layer, key.tensor, key.block,
                            cache::is_packed(cache.layers[i], key)};
      info.raw_bytes = cache::raw_bytes(layers[i], key, info.packed, cache.n_tokens());
      pieces.push_back(raw_section(cache, info));
    }
  }
  return pieces;
}

StatePieces state_pieces(const cache::Cache& cache) {
  format::Manifest manifest = format::manifest_of(*cache::reader_of(cache));
  const std::int64_t n_final = final_blocks(cache.n_tokens());
  StatePieces pieces;
  for (const std::size_t i : place_sections(manifest).snapshot) {
    pieces.sections.push_back(raw_section(cache, manifest.sections[i]));
  }
  pieces.snapshot.n_tokens = cache.n_tokens();
  pieces.snapshot.tail.assign(cache.tokens.begin() + n_final * kTokenBlock, cache.tokens.end());
  pieces.snapshot.media = cache::media_in(cache.media, n_final * kTokenBlock, cache.n_tokens());
  pieces.snapshot.layers = std::move(manifest.layers);
  return pieces;
}

}  // namespace tqcache::store
