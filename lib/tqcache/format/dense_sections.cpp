#include "tqcache/format/dense_sections.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "tqcache/base/dtype.h"
#include "tqcache/format/section_plan.h"

namespace tqcache::format {
namespace {

bool is_turbo_window(const cache::LayerDesc& layer) {
  const auto* window = std::get_if<cache::WindowDesc>(&layer);
  return window != nullptr && cache::is_quantized(window->attention);
}

void make_dense(cache::LayerDesc& layer) {
  cache::AttentionDesc* const attention = cache::attention_of(layer);
  if (attention == nullptr) return;
  attention->k.quant.reset();
  attention->v.quant.reset();
}

// The section that a section of the source becomes, or a part of: token blocks of a turbo window
// become its arrays.
SectionKey dense_key(const SectionInfo& section, const std::vector<cache::LayerDesc>& layers) {
  SectionKey key = key_of(section);
  if (!is_turbo_window(layers[static_cast<std::size_t>(section.layer)])) return key;
  return {key.layer, SideName::kArray, static_cast<std::int64_t>(key.side)};
}

// Rows of a kv head that stand behind each other, from a block's to a window's.
struct RowsCopy {
  std::size_t n_heads;
  std::size_t from_head;  // bytes of a head in the block
  std::size_t to_head;    // and in the window
  std::size_t from;       // first byte in the block's head
  std::size_t to;         // and in the window's
  std::size_t bytes;
};

void copy_rows(const RowsCopy& copy, ByteView block, AlignedBytes& window) {
  for (std::size_t head = 0; head < copy.n_heads; ++head) {
    std::memcpy(window.data() + head * copy.to_head + copy.to,
                block.data() + head * copy.from_head + copy.from, copy.bytes);
  }
}

}  // namespace

Result<DenseSections> DenseSections::make(const SectionSource& source) {
  const Manifest& manifest = source.manifest();
  TQC_TRY_ASSIGN(auto codecs, cache::make_codecs(manifest.layers, manifest.identity.rope));
  return DenseSections(source, std::move(codecs));
}

DenseSections::DenseSections(const SectionSource& source, std::vector<cache::LayerCodecs> codecs)
    : source_(&source), codecs_(std::move(codecs)), manifest_(source.manifest()) {
  const std::vector<SectionInfo>& sections = source.manifest().sections;
  std::map<SectionKey, std::vector<std::size_t>> origins;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    origins[dense_key(sections[i], source.manifest().layers)].push_back(i);
  }
  for (cache::LayerDesc& layer : manifest_.layers) make_dense(layer);
  manifest_.sections.clear();
  for (const SectionKey& key : plan_sections(manifest_.layers, manifest_.n_tokens())) {
    origins_.push_back(origins[key]);
    const cache::LayerDesc& before = source.manifest().layers[static_cast<std::size_t>(key.layer)];
    const bool is_one = !is_turbo_window(before);
    SectionInfo section = is_one ? sections[origins_.back().front()] : SectionInfo{};
    section.layer = key.layer;
    section.side = key.side;
    section.block = key.block;
    section.packed = false;
    section.raw_bytes = raw_bytes(manifest_.layers[static_cast<std::size_t>(key.layer)], key, false,
                                  manifest_.n_tokens());
    manifest_.sections.push_back(section);
  }
}

Result<void> DenseSections::read(std::size_t section, AlignedBytes& raw) const {
  const auto layer = static_cast<std::size_t>(manifest_.sections[section].layer);
  if (is_turbo_window(source_->manifest().layers[layer])) return read_window(section, raw);
  return read_block(origins_[section].front(), raw);
}

Result<void> DenseSections::read_block(std::size_t in_source, AlignedBytes& raw) const {
  TQC_TRY(source_->read(in_source, raw));
  const SectionInfo& info = source_->manifest().sections[in_source];
  if (!info.packed) return {};
  const cache::LayerCodecs& codecs = codecs_[static_cast<std::size_t>(info.layer)];
  const auto& codec = info.side == SideName::kKeys ? codecs.k : codecs.v;
  raw = codec->decode_block(raw, info.block, cache::kTokenBlock);
  return {};
}

Result<void> DenseSections::read_window(std::size_t section, AlignedBytes& raw) const {
  const SectionInfo& info = manifest_.sections[section];
  const auto& window =
      std::get<cache::WindowDesc>(manifest_.layers[static_cast<std::size_t>(info.layer)]);
  const cache::AttentionDesc& layer = window.attention;
  const std::int64_t n_tokens = manifest_.n_tokens();
  const std::int64_t begin = cache::window_begin(window.window, n_tokens);
  const std::size_t row = static_cast<std::size_t>(layer.shape.head_dim) *
                          dtype_size((info.block == 0 ? layer.k : layer.v).dtype);
  const auto bytes_of = [&](std::int64_t n) { return static_cast<std::size_t>(n) * row; };
  raw.resize(info.raw_bytes);
  AlignedBytes block;
  for (const std::size_t in_source : origins_[section]) {
    TQC_TRY(read_block(in_source, block));
    const std::int64_t number = source_->manifest().sections[in_source].block;
    const std::int64_t first = number * cache::kTokenBlock;
    const std::int64_t n_left = cache::tokens_before(begin, number);
    const std::int64_t n_in_block = cache::tokens_in_block(n_tokens, number);
    copy_rows({static_cast<std::size_t>(layer.shape.n_kv_heads), bytes_of(n_in_block),
               bytes_of(n_tokens - begin), bytes_of(n_left), bytes_of(first + n_left - begin),
               bytes_of(n_in_block - n_left)},
              block, raw);
  }
  return {};
}

}  // namespace tqcache::format
