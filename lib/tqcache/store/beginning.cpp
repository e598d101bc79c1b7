#include "tqcache/store/beginning.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tqcache/format/cache_file.h"
#include "tqcache/format/load_sections.h"

namespace tqcache::store {
namespace {

using cache::kTokenBlock;

std::int64_t count(const std::vector<Sha256>& chain) {
  return static_cast<std::int64_t>(chain.size());
}

// Leaves what stands behind the last token block to the model, where it can do without.
void end_with_block(Prefix& prefix) {
  const bool can_be_cut = std::ranges::all_of(prefix.parameters.layers, format::is_attention);
  if (!prefix.state || !can_be_cut) return;
  prefix.state.reset();
  prefix.state_key.clear();
  prefix.n_tokens = count(prefix.chain) * kTokenBlock;
  prefix.tokens.resize(static_cast<std::size_t>(prefix.n_tokens));
}

}  // namespace

Result<std::optional<Beginning>> load_beginning(Library& library, const cache::Identity& identity,
                                                std::span<const std::int32_t> tokens,
                                                const FindOptions& options,
                                                const Progress& progress) {
  TQC_TRY_ASSIGN(Prefix prefix, library.find(identity, tokens, options));
  end_with_block(prefix);
  if (prefix.n_tokens == 0) return std::optional<Beginning>();
  TQC_TRY_ASSIGN(const std::unique_ptr<StoredPrompt> stored, library.fetch(prefix, progress));
  if (!stored || prefix.n_tokens == 0) return std::optional<Beginning>();
  Beginning beginning;
  TQC_TRY_ASSIGN(beginning.cache,
                 format::load_sections(*stored, format::ReadOptions{}.max_payload_bytes));
  const std::vector<std::int32_t>& found = beginning.cache.tokens;
  if (found.size() >= tokens.size() || !std::ranges::equal(found, tokens.first(found.size()))) {
    return Error{ErrorCode::kCorrupt, "the store's tokens are not those of the prompt"};
  }
  beginning.n_blocks = count(prefix.chain);
  beginning.parameters = std::move(prefix.parameters);
  beginning.read_bytes = stored->blob_bytes();
  return std::optional<Beginning>(std::move(beginning));
}

}  // namespace tqcache::store
