#include "tqcache/cache/pack_side.h"

#include <algorithm>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"

namespace tqcache::cache {
namespace {

// Full blocks that are there: [first, end).
struct FullBlocks {
  std::int64_t first;
  std::int64_t end;

  FullBlocks(const PackJob& job, std::int64_t n_tokens)
      : first(job.begin / kTokenBlock), end(n_tokens / kTokenBlock) {}
};

FullBlock full_block(const PackJob& job, const DenseSide& dense, std::int64_t index) {
  return {job.shape, dense.dtype, index, dense.blocks[to_size(index)],
          tokens_before(job.begin, index)};
}

// Blocks that are packed before their memory goes back and progress is told: enough to keep threads
// busy when there are few kv heads.
constexpr std::int64_t kBatchBlocks = 8;

// Packs the full blocks of `dense`, whose memory is given back.
Result<void> pack_blocks(const PackJob& job, TurboSide& turbo, DenseSide& dense, FullBlocks full,
                         unsigned n_threads, const PackProgress& progress) {
  turbo.packed.resize(to_size(full.end));
  for (std::int64_t first = full.first; first < full.end; first += kBatchBlocks) {
    const std::int64_t n = std::min(kBatchBlocks, full.end - first);
    const auto pack_one = [&](std::size_t i) -> Result<void> {
      const std::int64_t index = first + static_cast<std::int64_t>(i);
      auto packed = turbo.codec.encode(full_block(job, dense, index), n_threads);
      if (!packed) {
        return in_context("token block " + std::to_string(index), std::move(packed).error());
      }
      turbo.packed[to_size(index)] =
          make_turbo_block(turbo.codec, index, std::move(packed).value());
      AlignedBytes().swap(dense.blocks[to_size(index)]);
      return {};
    };
    TQC_TRY(parallel_try(to_size(n), n_threads, pack_one));
    TQC_TRY(progress(static_cast<std::uint64_t>(job.shape.n_kv_heads * n * kTokenBlock)));
  }
  return {};
}

}  // namespace

std::vector<PackJob> pack_jobs(Layer& layer, std::size_t index, std::span<const SidePlan> plans,
                               std::int64_t n_tokens) {
  std::vector<PackJob> jobs;
  AttentionLayer* const attention = attention_of(layer);
  if (attention == nullptr) return jobs;
  const HeadShape shape = attention->shape;
  const std::int64_t begin = first_token(layer, n_tokens);
  const std::string name = "layer " + std::to_string(index);
  if (!plans[0].dense) {
    jobs.push_back({name + " k", &attention->k, shape, plans[0], codec::BlockOrder::kKeys, begin});
  }
  if (!plans[1].dense) {
    jobs.push_back(
        {name + " v", &attention->v, shape, plans[1], codec::BlockOrder::kValues, begin});
  }
  return jobs;
}

std::uint64_t vectors_to_pack(const PackJob& job, std::int64_t n_tokens) {
  if (std::holds_alternative<TurboSide>(*job.side)) return 0;
  const FullBlocks full(job, n_tokens);
  return static_cast<std::uint64_t>(job.shape.n_kv_heads * (full.end - full.first) * kTokenBlock);
}

Result<void> pack_side(const PackJob& job, std::int64_t n_tokens, unsigned n_threads,
                       KvTables tables, const PackProgress& progress) {
  if (std::holds_alternative<TurboSide>(*job.side)) {
    return pack_full_tail(*job.side, n_tokens, n_threads, job.begin);
  }
  auto& dense = std::get<DenseSide>(*job.side);
  TQC_TRY_ASSIGN(KvCodec codec,
                 make_codec(job.plan, job.order, job.shape, dense.dtype, std::move(tables)));
  const cache::OutlierPolicy policy = job.plan.outlier_policy;
  std::vector<FullBlock> sample;
  for (const std::int64_t index : codec.blocks_to_fit(policy, n_tokens, job.begin)) {
    sample.push_back(full_block(job, dense, index));
  }
  if (!sample.empty()) codec.fit(sample, policy, n_threads);
  TurboSide turbo{std::move(codec), {}, {dense.dtype, {}}};
  const FullBlocks full(job, n_tokens);
  TQC_TRY(pack_blocks(job, turbo, dense, full, n_threads, progress));
  for (auto i = to_size(full.end); i < dense.blocks.size(); ++i) {
    turbo.tail.blocks.push_back(std::move(dense.blocks[i]));
  }
  *job.side = std::move(turbo);
  return {};
}

}  // namespace tqcache::cache
