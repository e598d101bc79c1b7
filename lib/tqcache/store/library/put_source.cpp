
#include "tqcache/store/library/put_source.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "tqcache/base/aligned.h"
#include "tqcache/base/integers.h"
#include "tqcache/format/describe.h"
#include "tqcache/format/section_plan.h"
#include "tqcache/format/sections/section_bytes.h"
#include "tqcache/format/sections/symbol_section.h"
#include "tqcache/store/blobs/chain_layout.h"
#include "tqcache/store/blobs/keys.h"

namespace tqcache::store {

Result<FileSource> FileSource::open(const ByteSource& file) {
  TQC_TRY_ASSIGN(format::CacheFileInfo info, format::read_cache_info(file));
  return FileSource(file, std::move(info));
}

Result<StoredSection> FileSource::section(std::size_t i) const {
  const format::SectionInfo& info = info_.sections[i];
  const BlobMemory::Room room = memory_->take(info.stored_bytes);
  auto read = file_->read_at(info.file_offset, room.bytes);
  if (read) read = format::check_stored(info, room.bytes);
  if (!read) return in_context(format::section_place(i, info), std::move(read).error());
  return StoredSection{info, room.shared()};
}

Result<CacheSource> CacheSource::open(const cache::Cache& cache) {
  TQC_TRY(cache::validate(cache));
  TQC_TRY_ASSIGN(SectionStorer storer, SectionStorer::make());
  return CacheSource(format::content_of(cache), std::move(storer));
}

Result<Sha256> CacheSource::digest(std::size_t i) const {
  TQC_TRY_ASSIGN(const SharedBytes raw, content_.make_section(i));
  return sha256(raw.view());
}

Result<StoredSection> CacheSource::section(std::size_t i) const {
  TQC_TRY_ASSIGN(SharedBytes raw, content_.make_section(i));
  const format::SectionInfo& info = manifest().sections[i];
  const cache::LayerDesc& layer = manifest().layers[static_cast<std::size_t>(info.layer)];
  return storer_.store(layer, info, std::move(raw));
}

namespace {

bool becomes_smaller(const cache::LayerDesc& layer, const format::SectionInfo& section) {
  return !section.packed || format::has_symbols(format::side_of(layer, section.side));
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
using format::SectionInfo;
using format::SideName;

SharedBytes raw_bytes_of(const cache::Cache& cache, const SectionInfo& info) {
  if (info.packed) {
    const cache::AttentionLayer& layer = *cache::attention_of(cache.layers[to_size(info.layer)]);
    const cache::Side& side = info.side == SideName::kKeys ? layer.k : layer.v;
    return std::get<cache::TurboSide>(side).packed[to_size(info.block)].bytes;
  }
  AlignedBytes scratch;
  const ByteView view = format::section_bytes(cache, info, scratch);
  if (view.data() == scratch.data()) return SharedBytes(std::move(scratch));
  return SharedBytes(AlignedBytes(view.begin(), view.end()));
}

SectionInfo section_of(const cache::Cache& cache, const cache::LayerDesc& layer,
                       const format::SectionKey& key, const cache::Side& side) {
  SectionInfo info;
  info.layer = key.layer;
  info.side = key.side;
  info.block = key.block;
  info.packed = key.block < cache::packed_block_count(side);
  info.raw_bytes = format::raw_bytes(layer, key, info.packed, cache.n_tokens());
  return info;
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
    const auto* layer = std::get_if<cache::AttentionLayer>(&cache.layers[i]);
    if (layer == nullptr) continue;
    for (const SideName name : {SideName::kKeys, SideName::kValues}) {
      const SectionInfo info =
          section_of(cache, layers[i], {static_cast<std::int64_t>(i), name, block},
                     name == SideName::kKeys ? layer->k : layer->v);
      pieces.push_back({info, raw_bytes_of(cache, info)});
    }
  }
  return pieces;
}

StatePieces state_pieces(const cache::Cache& cache) {
  format::Manifest manifest = format::describe(cache, {});
  const std::vector<std::size_t> state_sections = place_sections(manifest).snapshot;
  const std::int64_t n_final = final_blocks(cache.n_tokens());
  StatePieces pieces;
  pieces.snapshot.n_tokens = cache.n_tokens();
  pieces.snapshot.tail.assign(cache.tokens.begin() + n_final * kTokenBlock, cache.tokens.end());
  pieces.snapshot.layers = std::move(manifest.layers);
  for (const std::size_t i : state_sections) {
    const SectionInfo& info = manifest.sections[i];
    pieces.sections.push_back({info, raw_bytes_of(cache, info)});
  }
  return pieces;
}

}  // namespace tqcache::store
