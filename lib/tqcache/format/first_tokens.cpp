#include "tqcache/format/first_tokens.h"

#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "tqcache/base/dtype.h"
#include "tqcache/base/integers.h"
#include "tqcache/cache/truncate.h"
#include "tqcache/format/section_plan.h"

namespace tqcache::format {
namespace {

void cut_tokens(Manifest& manifest, std::int64_t n_tokens) {
  manifest.tokens.resize(to_size(n_tokens));
  if (!manifest.hidden_tokens || manifest.hidden_tokens->empty()) return;
  manifest.hidden_tokens->resize(to_size(cache::block_count(n_tokens)));
}

SectionInfo cut_info(const Manifest& manifest, SectionInfo section) {
  section.packed = false;
  section.raw_bytes = raw_bytes(manifest.layers[to_size(section.layer)], key_of(section),
                                section.packed, manifest.n_tokens());
  section.raw_sha256 = {};
  return section;
}

// [n_kv_heads, n, head_dim] to [n_kv_heads, n_kept, head_dim], in place.
AlignedBytes cut_dense(AlignedBytes raw, cache::HeadShape shape, Dtype dtype, std::int64_t n_kept) {
  const std::size_t n_heads = to_size(shape.n_kv_heads);
  const std::size_t before = raw.size() / n_heads;
  const std::size_t kept = to_size(n_kept * shape.head_dim) * dtype_size(dtype);
  for (std::size_t head = 1; head < n_heads; ++head) {
    std::memmove(raw.data() + head * kept, raw.data() + head * before, kept);
  }
  raw.resize(n_heads * kept);
  return raw;
}

}  // namespace

Result<TokenCut> TokenCut::make(Manifest& manifest, std::int64_t n_tokens) {
  TokenCut cut;
  if (n_tokens == manifest.n_tokens()) return cut;
  TQC_TRY(cache::check_truncate(manifest, n_tokens));
  TQC_TRY_ASSIGN(cut.codecs_, cache::make_codecs(manifest.layers, manifest.identity.rope));
  cut.layers_ = manifest.layers;

  cut_tokens(manifest, n_tokens);
  manifest.sections.resize(count_sections(manifest.layers, n_tokens));
  manifest.content_name = {};
  cut.n_kept_ = n_tokens % cache::kTokenBlock;
  cut.first_ = count_sections(manifest.layers, n_tokens - cut.n_kept_);
  for (SectionInfo& section : std::span(manifest.sections).subspan(cut.first_)) {
    cut.in_file_.push_back(section);
    section = cut_info(manifest, section);
  }
  return cut;
}

AlignedBytes TokenCut::cut(std::size_t section, AlignedBytes raw) const {
  const SectionInfo& info = in_file(section);
  if (info.packed) {
    const cache::LayerCodecs& codecs = codecs_[to_size(info.layer)];
    const auto& codec = info.side == SideName::kKeys ? codecs.k : codecs.v;
    return codec->decode_block(raw, info.block, n_kept_);
  }
  const cache::LayerDesc& layer = layers_[to_size(info.layer)];
  return cut_dense(std::move(raw), cache::attention_of(layer)->shape,
                   side_of(layer, info.side).dtype, n_kept_);
}

}  // namespace tqcache::format
