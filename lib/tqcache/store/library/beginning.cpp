#include "tqcache/store/library/beginning.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tqcache/format/cache_file.h"
#include "tqcache/format/load_sections.h"
#include "tqcache/store/blobs/chain_form.h"

namespace tqcache::store {
namespace {

using cache::kTokenBlock;

std::int64_t count(const std::vector<Sha256>& chain) {
  return static_cast<std::int64_t>(chain.size());
}

// Leaves what stands behind the last token block to the model, where it can do without.
void end_with_block(Prefix& prefix) {
  if (!prefix.state || !can_be_cut(prefix.parameters.layers)) return;
  prefix.state.reset();
  prefix.state_key.clear();
  prefix.n_tokens = count(prefix.chain) * kTokenBlock;
  prefix.tokens.resize(static_cast<std::size_t>(prefix.n_tokens));
}

struct Brought {
  Prefix prefix;
  std::unique_ptr<StoredPrompt> stored;  // null: nothing
};

Result<Brought> bring(Library& library, const cache::Identity& identity,
                      std::span<const std::int32_t> tokens, const FindOptions& options,
                      const Progress& progress) {
  Brought brought;
  TQC_TRY_ASSIGN(brought.prefix, library.find(identity, tokens, options));
  end_with_block(brought.prefix);
  if (brought.prefix.n_tokens == 0) return brought;
  TQC_TRY_ASSIGN(brought.stored, library.fetch(brought.prefix, progress));
  return brought;
}

}  // namespace

Result<std::optional<Beginning>> load_beginning(Library& library, const cache::Identity& identity,
                                                std::span<const std::int32_t> tokens,
                                                const FindOptions& options, unsigned n_threads,
                                                const Progress& progress) {
  TQC_TRY_ASSIGN(Brought brought, bring(library, identity, tokens, options, progress));
  const bool lost = !brought.stored && !brought.prefix.parameters.layers.empty();
  // What a state needs was lost. That is known now, and a shorter one may be whole.
  if (lost) {
    TQC_TRY_ASSIGN(brought, bring(library, identity, tokens, options, progress));
  }
  if (!brought.stored) return std::optional<Beginning>();
  Beginning beginning;
  TQC_TRY_ASSIGN(beginning.cache,
                 format::load_sections(*brought.stored, format::ReadOptions{}.max_payload_bytes, {},
                                       n_threads));
  const std::vector<std::int32_t>& found = beginning.cache.tokens;
  if (found.size() >= tokens.size() || !std::ranges::equal(found, tokens.first(found.size()))) {
    return Error{ErrorCode::kCorrupt, "the store's tokens are not those of the prompt"};
  }
  beginning.n_blocks = count(brought.prefix.chain);
  beginning.parameters = std::move(brought.prefix.parameters);
  beginning.read_bytes = brought.stored->blob_bytes();
  return std::optional<Beginning>(std::move(beginning));
}

}  // namespace tqcache::store
