#include "tqcache/store/blobs/chain_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "tqcache/cache/blocks.h"
#include "tqcache/store/blobs/blob_format.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::store {
namespace {

auto place_in_file(const format::SectionInfo& info) {
  const bool is_array = info.tensor == cache::TensorKind::kArray;
  return std::tuple(is_array, is_array ? 0 : info.block, info.layer, info.tensor,
                    is_array ? info.block : 0);
}

}  // namespace

bool can_be_cut(const std::vector<cache::LayerDesc>& layers) {
  return std::ranges::all_of(layers, [](const cache::LayerDesc& layer) {
    return std::holds_alternative<cache::AttentionDesc>(layer);
  });
}

SectionPlaces place_sections(const format::Manifest& manifest) {
  const std::int64_t n_final = final_blocks(manifest.n_tokens());
  SectionPlaces places;
  places.blocks.resize(static_cast<std::size_t>(n_final));
  for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
    const format::SectionInfo& info = manifest.sections[i];
    const auto layer = static_cast<std::size_t>(info.layer);
    const bool is_final = std::holds_alternative<cache::AttentionDesc>(manifest.layers[layer]) &&
                          info.block < n_final;
    auto& numbers =
        is_final ? places.blocks[static_cast<std::size_t>(info.block)] : places.snapshot;
    numbers.push_back(i);
  }
  return places;
}

bool stands_before(const format::SectionInfo& a, const format::SectionInfo& b) {
  return place_in_file(a) < place_in_file(b);
}

std::uint64_t block_bytes(const std::vector<cache::LayerDesc>& layers) {
  std::uint64_t bytes = 0;
  for (const cache::LayerDesc& layer : layers) {
    if (!std::holds_alternative<cache::AttentionDesc>(layer)) continue;
    for (const cache::TensorKind tensor : {cache::TensorKind::kKeys, cache::TensorKind::kValues}) {
      const bool packed = cache::is_quantized(cache::tensor_of(layer, tensor));
      bytes += cache::raw_bytes(layer, {0, tensor, 1}, packed, 2 * cache::kTokenBlock);
    }
  }
  return bytes;
}

Result<void> check_blob_count(const PromptRecord& record, const PartCounts& counts) {
  const std::uint64_t n_blocks = record.chain.size();
  const std::uint64_t n_parts = n_blocks == 0 ? 0 : counts.of(0) + (n_blocks - 1) * counts.of(1);
  if (n_parts + record.snapshot.data_keys.size() <= record.bytes / kBlobHeaderBytes) return {};
  return corrupt(fmt::format("a record of {} blobs in {} bytes",
                             n_parts + record.snapshot.data_keys.size(), record.bytes));
}

std::vector<std::vector<std::string>> block_keys(const PartCounts& counts, std::int64_t first,
                                                 std::span<const Sha256> hashes) {
  std::vector<std::vector<std::string>> keys;
  for (const Sha256& hash : hashes) {
    const std::int64_t block = first + std::ssize(keys);
    std::vector<std::string>& parts = keys.emplace_back();
    for (std::size_t part = 0; part < counts.of(block); ++part) {
      parts.push_back(block_key(hash, block, static_cast<int>(part)));
    }
  }
  return keys;
}

std::vector<std::string> flatten(const std::vector<std::vector<std::string>>& keys) {
  std::vector<std::string> all;
  for (const auto& some : keys) all.insert(all.end(), some.begin(), some.end());
  return all;
}

Bytes data_content(std::span<const StoredSection> sections) {
  ByteWriter out;
  for (const StoredSection& section : sections) {
    const format::SectionInfo& info = section.info;
    out.write(info.layer);
    out.write(static_cast<std::uint64_t>(info.tensor));
    out.write(info.block);
    out.write(std::uint64_t{info.packed});
    out.write(static_cast<std::uint64_t>(info.compression));
    out.write(info.stored_bytes);
    out.write(info.raw_bytes);
    out.write(info.checksum.high);
    out.write(info.checksum.low);
    out.append(info.raw_sha256);
  }
  return std::move(out).take();
}

}  // namespace tqcache::store
