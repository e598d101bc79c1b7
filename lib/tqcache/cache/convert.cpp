#include "tqcache/cache/convert.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tqcache/base/threads.h"

namespace tqcache::cache {
namespace {

using codec::BlockOrder;

// One side of one attention layer that is turbo, or shall be.
struct Job {
  std::string name;  // "layer 3 k"
  Side* side;
  HeadShape shape;
  SidePlan plan;
  BlockOrder order;
};

std::vector<Job> jobs_of(Cache& cache, const std::vector<SidePlan>& plans) {
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    auto* layer = std::get_if<AttentionLayer>(&cache.layers[i]);
    if (layer == nullptr) continue;
    const std::string name = "layer " + std::to_string(i);
    const SidePlan& keys = plans[2 * i];
    const SidePlan& values = plans[2 * i + 1];
    if (!keys.dense) {
      jobs.push_back({name + " k", &layer->k, layer->shape, keys, BlockOrder::kKeys});
    }
    if (!values.dense) {
      jobs.push_back({name + " v", &layer->v, layer->shape, values, BlockOrder::kValues});
    }
  }
  return jobs;
}

// Counts head vectors, and asks whether to go on.
class Counter {
 public:
  Counter(const Progress& progress, std::uint64_t total) : progress_(progress), total_(total) {}

  Result<void> add(std::uint64_t n_vectors) {
    done_ += n_vectors;
    if (progress_ && !progress_(done_, total_)) {
      return Error{ErrorCode::kInterrupted, "interrupted"};
    }
    return {};
  }

 private:
  const Progress& progress_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
};

std::uint64_t vectors_to_pack(const std::vector<Job>& jobs, std::int64_t n_tokens) {
  std::int64_t total = 0;
  for (const Job& job : jobs) {
    const bool is_dense = std::holds_alternative<DenseSide>(*job.side);
    if (is_dense) total += job.shape.n_kv_heads * (n_tokens / kTokenBlock) * kTokenBlock;
  }
  return static_cast<std::uint64_t>(total);
}

FullBlock full_block(HeadShape shape, const DenseSide& dense, std::int64_t index) {
  return {shape, dense.dtype, index, dense.blocks[static_cast<std::size_t>(index)]};
}

// Blocks that are packed before their memory goes back and progress is told: enough to keep threads
// busy when there are few kv heads.
constexpr std::int64_t kBatchBlocks = 8;

// Packs the full blocks of `dense`, whose memory is given back.
Result<void> pack_blocks(TurboSide& turbo, HeadShape shape, DenseSide& dense, std::int64_t n_full,
                         unsigned n_threads, Counter& counter) {
  turbo.packed.resize(static_cast<std::size_t>(n_full));
  for (std::int64_t first = 0; first < n_full; first += kBatchBlocks) {
    const std::int64_t n = std::min(kBatchBlocks, n_full - first);
    const auto pack_one = [&](std::size_t i) -> Result<void> {
      const std::int64_t index = first + static_cast<std::int64_t>(i);
      auto packed = pack_block(turbo, full_block(shape, dense, index), n_threads);
      if (!packed) {
        return in_context("token block " + std::to_string(index), std::move(packed).error());
      }
      turbo.packed[static_cast<std::size_t>(index)] = std::move(packed).value();
      complete_block(turbo, shape, index);
      AlignedBytes().swap(dense.blocks[static_cast<std::size_t>(index)]);
      return {};
    };
    TQC_TRY(parallel_try(static_cast<std::size_t>(n), n_threads, pack_one));
    TQC_TRY(counter.add(static_cast<std::uint64_t>(shape.n_kv_heads * n * kTokenBlock)));
  }
  return {};
}

// Packs what is full of a job's side.
Result<void> run(const Job& job, std::int64_t n_tokens, unsigned n_threads, SideMaker& maker,
                 Counter& counter) {
  if (std::holds_alternative<TurboSide>(*job.side)) {
    return pack_full_tail(*job.side, job.shape, n_tokens, n_threads);
  }
  auto& dense = std::get<DenseSide>(*job.side);
  TQC_TRY_ASSIGN(TurboSide turbo, maker.make(job.plan, job.order, job.shape, dense.dtype));
  std::vector<FullBlock> sample;
  for (const std::int64_t index : mean_blocks(n_tokens)) {
    sample.push_back(full_block(job.shape, dense, index));
  }
  if (!sample.empty()) fix_side(turbo, sample, job.plan.outlier_policy, n_threads);
  const std::int64_t n_full = n_tokens / kTokenBlock;
  TQC_TRY(pack_blocks(turbo, job.shape, dense, n_full, n_threads, counter));
  for (auto i = static_cast<std::size_t>(n_full); i < dense.blocks.size(); ++i) {
    turbo.tail.blocks.push_back(std::move(dense.blocks[i]));
  }
  *job.side = std::move(turbo);
  return {};
}

}  // namespace

Result<Cache> convert(Cache cache, const ConvertOptions& options, const Progress& progress) {
  TQC_TRY(validate(cache));
  TQC_TRY_ASSIGN(const std::vector<SidePlan> plans, plan_layers(cache, options));
  const std::vector<Job> jobs = jobs_of(cache, plans);
  SideMaker maker(cache.identity.rope);
  Counter counter(progress, vectors_to_pack(jobs, cache.n_tokens()));
  for (const Job& job : jobs) {
    auto packed = run(job, cache.n_tokens(), options.n_threads, maker, counter);
    if (packed) continue;
    if (packed.error().code == ErrorCode::kInterrupted) return std::move(packed).error();
    return in_context(job.name, std::move(packed).error());
  }
  return cache;
}

}  // namespace tqcache::cache
