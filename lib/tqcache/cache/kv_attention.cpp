#include "tqcache/cache/kv_attention.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "tqcache/base/integers.h"
#include "tqcache/cache/kv_codec_state.h"
#include "tqcache/codec/kernels/row_transform.h"

namespace tqcache::cache {
namespace {

// AVX2 multiplies narrow codes as bytes, and wider ones as int16 if their centroids lie on linear
// segments (codec/code_tables.h).
bool has_whole_numbers(const codec::CodeTables& tables, codec::Isa isa) {
  return isa != codec::Isa::kAvx2 || tables.bits <= codec::CodeTables::kMaxNarrowBits ||
         tables.piece_step > 0.0f;
}

// As KvCodec::why_not_integers(), of one part.
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

}  // namespace

void KeyQueries::set(const KvCodec& codec, std::int64_t kv_head, std::span<const float> queries,
                     const CenteringTable* table) {
  const KvCodec::State& state = codec.state();
  assert(codec.is_fixed() && !codec.must_keep_decoded());
  kv_head_ = kv_head;
  std::span<const float> transformed = queries;
  if (state.factors.is_there()) {
    transformed_.assign(queries.begin(), queries.end());
    scale_rows(state.factors.inverse_of_head(state.shape, kv_head), transformed_);
    transformed = transformed_;
  } else if (state.transforms.is_there()) {
    transformed_.resize(queries.size());
    codec::multiply_rows(queries, state.transforms.columns_of(state.shape, kv_head),
                         to_size(state.shape.head_dim), transformed_);
    transformed = transformed_;
  }
  codes_.set(state.codec, state.outliers.order(kv_head), transformed);
  if (state.mean.kind == Centering::kNone) return;
  const bool rotates = state.mean.kind == Centering::kPreRope;
  assert(!rotates || table != nullptr);
  mean_.set(rotates ? table : nullptr, mean_of_head(state.mean, state.shape, kv_head), queries);
}

std::string KvCodec::why_not_integers() const {
  const codec::HeadCodec& codec = state_->codec;
  for (std::size_t i = 0; i < codec.n_parts(); ++i) {
    if (std::string fact = obstacle(codec.part(i), codec.kernels()); !fact.empty()) return fact;
  }
  return {};
}

void KvCodec::score(const KeyQueries& queries, ByteView packed, std::int64_t block,
                    codec::Precision precision, codec::OutputRows scores) const {
  const State& state = *state_;
  queries.codes_.score(state.codec, state.head(packed, block, queries.kv_head_),
                       to_size(kTokenBlock), precision, scores);
  if (state.mean.kind == Centering::kNone) return;
  queries.mean_.add_to(block, state.codec.kernels(), precision, scores.values, scores.stride);
}

std::size_t KvCodec::coded_dim() const { return state_->codec.coded_dim(); }

void KvCodec::accumulate(ByteView packed, std::int64_t block, std::int64_t kv_head,
                         codec::Precision precision, const codec::WeightRows& weights,
                         codec::OutputRows sums) const {
  codec::accumulate(state_->codec, state_->head(packed, block, kv_head), to_size(kTokenBlock),
                    precision, weights, sums);
}

void KvCodec::add_decoded_sum(std::int64_t kv_head, float weight, std::span<float> coded,
                              std::span<float> scratch, std::span<float> out) const {
  const State& state = *state_;
  state.codec.rotate_back(coded, state.outliers.order(kv_head), scratch);
  if (state.transforms.is_there()) {
    std::ranges::copy(scratch, coded.begin());
    codec::multiply_rows(coded.first(scratch.size()),
                         state.transforms.rows_of(state.shape, kv_head), scratch.size(), scratch);
  }
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += scratch[i];
  if (state.mean.kind == Centering::kNone) return;
  const std::span<const float> mean = mean_of_head(state.mean, state.shape, kv_head);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += weight * mean[i];
}

}  // namespace tqcache::cache
