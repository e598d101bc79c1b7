#include "tqcache/cache/convert.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/pack_side.h"

namespace tqcache::cache {
namespace {

std::vector<PackJob> jobs_of(Cache& cache, std::span<const SidePlan> plans) {
  std::vector<PackJob> jobs;
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const auto of_layer = plans.subspan(2 * i, 2);
    if (of_layer[0].dense && of_layer[1].dense) continue;
    std::ranges::move(pack_jobs(cache.layers[i], i, of_layer, cache.n_tokens()),
                      std::back_inserter(jobs));
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
      return interrupted_error();
    }
    return {};
  }

 private:
  const Progress& progress_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
};

std::uint64_t vectors_to_pack(const std::vector<PackJob>& jobs, std::int64_t n_tokens) {
  std::uint64_t total = 0;
  for (const PackJob& job : jobs) total += vectors_to_pack(job, n_tokens);
  return total;
}

}  // namespace

Result<Cache> convert(Cache cache, const ConvertOptions& options, const Progress& progress) {
  TQC_TRY(validate(cache));
  TQC_TRY_ASSIGN(const std::vector<SidePlan> plans, plan_layers(describe(cache), options));
  const std::vector<PackJob> jobs = jobs_of(cache, plans);
  const KvTables tables(cache.identity.rope);
  Counter counter(progress, vectors_to_pack(jobs, cache.n_tokens()));
  for (const PackJob& job : jobs) {
    auto packed = pack_side(job, cache.n_tokens(), options.n_threads, tables,
                            [&](std::uint64_t n) { return counter.add(n); });
    if (packed) continue;
    if (packed.error().code == ErrorCode::kInterrupted) return std::move(packed).error();
    return in_context(job.name, std::move(packed).error());
  }
  return cache;
}

}  // namespace tqcache::cache
