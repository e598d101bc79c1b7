
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

namespace {

// The file whose sections are stored as they are; null: they are read. A store knows no profiles,
// so predicted sections are decoded.
const format::SectionReader* stored_file(const cache::CacheReader& reader) {
  const auto* const file = dynamic_cast<const format::SectionReader*>(&reader);
  return file != nullptr && file->info().prediction ? nullptr : file;
}

}  // namespace

PutSource::PutSource(const cache::CacheReader& reader, SectionStorer storer)
    : reader_(&reader),
      file_(stored_file(reader)),
      manifest_(file_ != nullptr ? format::Manifest(file_->info()) : format::manifest_of(reader)),
      storer_(std::move(storer)) {
  // Checkpoints are prompts of their own in a store.
  manifest_.sections.resize(format::count_cache_sections(manifest_));
  manifest_.checkpoints.clear();
}

Result<PutSource> PutSource::open(const cache::CacheReader& reader) {
  TQC_TRY_ASSIGN(SectionStorer storer, SectionStorer::make());
  return PutSource(reader, std::move(storer));
}

Result<Sha256> PutSource::digest(std::size_t i) const {
  if (file_ != nullptr) {  // what the file says counts only once it was compared
    AlignedBytes raw;
    TQC_TRY(file_->read(i, raw));
    return manifest_.sections[i].raw_sha256;
  }
  TQC_TRY_ASSIGN(const SharedBytes raw, reader_->share(i));
  return sha256(raw.view());
}

Result<StoredSection> PutSource::section(std::size_t i) const {
  const format::SectionInfo& info = manifest_.sections[i];
  if (file_ != nullptr) {
    const BlobMemory::Room room = memory_->take(info.stored_bytes);
    TQC_TRY(file_->read_stored(i, room.bytes));
    StoredSection section{info, room.shared()};
    // The checksum of an encrypted file is that of the encrypted bytes.
    if (manifest_.encryption) section.info.checksum = xxh3_128(room.bytes);
    section.info.seal = {};
    return section;
  }
  TQC_TRY_ASSIGN(SharedBytes raw, reader_->share(i));
  const cache::LayerDesc& layer = manifest_.layers[to_size(info.layer)];
  return storer_.store(layer, info, std::move(raw));
}

namespace {

bool becomes_smaller(const cache::LayerDesc& layer, const format::SectionInfo& section) {
  return !section.packed || format::has_symbols(cache::tensor_of(layer, section.side));
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
      cache::BlockInfo info{key.layer, key.side, key.block, cache::is_packed(cache.layers[i], key)};
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
  pieces.snapshot.layers = std::move(manifest.layers);
  return pieces;
}

}  // namespace tqcache::store
