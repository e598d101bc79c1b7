#include "cli/reuse.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tqcache/cache/truncate.h"

namespace tqcache::cli {

std::int64_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

Outcome<Done> keep_common_prefix(const Console& console, const model::Model& model,
                                 std::span<const std::int32_t> prompt, cache::Cache& cache) {
  const std::int64_t n_before = cache.n_tokens();
  const std::int64_t n_common = common_prefix(cache.tokens, prompt);
  if (n_common == n_before) return Done{};
  if (const Result<void> possible = cache::check_truncate(cache::describe(cache), n_common); !possible) {
    note(console, fmt::format("the prompt differs from the cache after {} tokens, and the cache "
                              "cannot be cut there ({}): nothing of it is reused",
                              n_common, possible.error().message));
    TQC_TRY_ASSIGN(cache, model::make_cache(model, Dtype::kF16));
    return Done{};
  }
  TQC_TRY_ASSIGN(cache, cache::truncate(std::move(cache), n_common));
  note(console, fmt::format("{} of the cache's {} tokens are reused, the prompt differs from there",
                            n_common, n_before));
  return Done{};
}

}  // namespace tqcache::cli
