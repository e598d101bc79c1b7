#include <string>

#include "tqcache/cache.h"
#include "tqcache/cache/kv_codec_state.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/decoder.h"

namespace tqcache::model {

namespace {

// AVX2 multiplies narrow codes as bytes, and wider ones as int16 if their centroids lie on linear
// segments (codec/code_tables.h).
bool has_whole_numbers(const codec::CodeTables& tables, codec::Isa isa) {
  return isa != codec::Isa::kAvx2 || tables.bits <= codec::CodeTables::kMaxNarrowBits ||
         tables.piece_step > 0.0f;
}

// Why the codes of a part are not scored in integers; empty if they are.
std::string obstacle(const codec::BlockCodec& part, const codec::Kernels& kernels) {
  const bool keys = part.shape().order == codec::BlockOrder::kKeys;
  const bool is_exact = keys ? kernels.score_fast == kernels.score_exact
                             : kernels.accumulate_fast == kernels.accumulate_exact;
  const std::string name = kernels.name;
  if (is_exact) return "no kernels of whole numbers on " + name;
  if (has_whole_numbers(part.tables(), kernels.isa)) return {};
  return "no kernel of whole numbers for its codebook of " + std::to_string(part.shape().bits) +
         " bits on " + name;
}

std::string obstacle(const codec::HeadCodec& codec) {
  for (std::size_t i = 0; i < codec.n_parts(); ++i) {
    if (std::string fact = obstacle(codec.part(i), codec.kernels()); !fact.empty()) return fact;
  }
  return {};
}

void add_side(const cache::Side& side, Scorer scorer, const std::string& name, KernelPath& path) {
  if (cache::packed_block_count(side) == 0) return;
  path.prompt = "decoded";
  const std::string fact = scorer == Scorer::kFast
                               ? obstacle(std::get<cache::TurboSide>(side).codec.state().codec)
                               : std::string();
  const bool in_bytes = scorer == Scorer::kFast && fact.empty();
  if (!in_bytes) {
    path.step = "packed_f32";
  } else if (path.step == "dense") {
    path.step = "packed_int8";
  }
  if (!fact.empty() && path.fallback.empty()) path.fallback = name + ": " + fact;
}

}  // namespace

KernelPath kernel_path(const cache::Cache& cache, Scorer scorer) {
  KernelPath path;
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const cache::AttentionLayer* const rows = cache::attention_of(cache.layers[i]);
    if (rows == nullptr) continue;
    const std::string layer = "layer " + std::to_string(i);
    add_side(rows->k, scorer, layer + " k", path);
    add_side(rows->v, scorer, layer + " v", path);
  }
  return path;
}

}  // namespace tqcache::model
