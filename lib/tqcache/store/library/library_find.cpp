// Library::find(): a search for the longest stored prefix, usually in three batches: parameters,
// blocks, snapshots; with FindOptions::finds_parts also what follows the last block.

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "tqcache/store.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/chain_layout.h"

namespace tqcache::store {
namespace {

using Tokens = std::span<const std::int32_t>;

bool same_model(const cache::Identity& a, const cache::Identity& b) {
  return a.architecture == b.architecture && a.rope == b.rope &&
         a.weights_fingerprint == b.weights_fingerprint &&
         a.tokenizer_fingerprint == b.tokenizer_fingerprint &&
         a.adapter_fingerprint == b.adapter_fingerprint &&
         a.model_fingerprint == b.model_fingerprint;
}

// A block-hash chain with the same first block as the prompt.
struct Chain {
  std::string key;  // of its parameters
  Parameters parameters;
  bool can_be_cut = true;
  std::vector<Sha256> hashes;             // of all blocks of the prompt
  std::size_t depth = 0;                  // number of existing blocks from the first one on
  std::int64_t n_tokens = 0;              // of the longest prefix
  std::int64_t n_common = 0;              // of these, in the prompt
  std::optional<Snapshot> snapshot = {};  // the one at its end
  std::string state_key = {};
  std::vector<std::int32_t> next =
      {};  // tokens of a block at its end, of which n_common are wanted
};

// A slot after a block of a chain, which may hold a snapshot, or the tokens of a further block.
struct Slot {
  std::size_t chain = 0;
  std::size_t block = 0;
  std::string key;
};

class Search {
 public:
  // `tokens`: the longest wanted prefix, at least one token block.
  Search(Backend& backend, const LibraryOptions& options, const cache::Identity& identity,
         Tokens tokens, bool finds_parts)
      : backend_(backend),
        reader_(backend, bad_blobs(options), options.on_warning),
        identity_(identity),
        namespace_(hash_namespace({identity, options.salt})),
        tokens_(tokens),
        finds_parts_(finds_parts) {}

  Result<void> find_chains(const FindOptions& options) {
    const Tokens first = tokens_.first(kBlockTokens);
    const std::vector<std::string> keys = parameters_slot_keys(hash_first(namespace_, first));
    const auto take = [&](std::size_t i, Content content, std::uint64_t) -> Result<void> {
      TQC_TRY_ASSIGN(Parameters parameters, BlobReader::take_kind<Parameters>(std::move(content)));
      if (!std::ranges::equal(parameters.tokens, first) ||
          !same_model(parameters.identity, identity_)) {
        return mismatch("parameters of another prompt or model");
      }
      if (options.settings != nullptr && !same_settings(parameters.layers, *options.settings)) {
        return {};
      }
      const Sha256 root = hash_root(namespace_, hash_parameters(parameters));
      const bool cuts = can_be_cut(parameters.layers);
      chains_.push_back({keys[i], std::move(parameters), cuts, hash_chain(root, tokens_)});
      return {};
    };
    TQC_TRY(reader_.read(keys, take));
    return {};
  }

  // Finds how many blocks of each chain exist, and the snapshots of chains that cannot be
  // truncated: usually in one batch. Of many chains, those that have all blocks so far remain in
  // the next batch.
  Result<void> find_blocks() {
    constexpr std::size_t kBlocksAtOnce = 4096;
    const std::size_t n_blocks = tokens_.size() / kBlockTokens;
    std::vector<std::size_t> going_on(chains_.size());
    std::iota(going_on.begin(), going_on.end(), std::size_t{0});
    std::vector<Slot> found;
    for (std::size_t first = 0, end = 0; first < n_blocks && !going_on.empty(); first = end) {
      end = std::min(n_blocks, first + std::max<std::size_t>(16, kBlocksAtOnce / going_on.size()));
      std::vector<std::string> keys;
      slots_.clear();
      for (const std::size_t i : going_on) {
        for (std::size_t block = first; block < end; ++block) {
          keys.push_back(block_key(chains_[i].hashes[block], static_cast<std::int64_t>(block), 0));
          if (!chains_[i].can_be_cut) add_states(i, block, 0);
        }
      }
      for (const Slot& slot : slots_) keys.push_back(slot.key);
      TQC_TRY_ASSIGN(const std::vector<bool> there, backend_.exists(keys));
      auto at = there.begin();
      for (const std::size_t i : going_on) {
        const auto next = at + static_cast<std::ptrdiff_t>(end - first);
        chains_[i].depth = first + static_cast<std::size_t>(std::find(at, next, false) - at);
        at = next;
      }
      for (Slot& slot : slots_) {
        if (*at++ && slot.block < chains_[slot.chain].depth) found.push_back(std::move(slot));
      }
      std::erase_if(going_on, [&](std::size_t i) { return chains_[i].depth < end; });
    }
    slots_ = std::move(found);
    return {};
  }

  Result<void> find_states() {
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      Chain& chain = chains_[i];
      if (!chain.can_be_cut || chain.depth == 0) continue;
      chain.n_tokens = chain.n_common = static_cast<std::int64_t>(chain.depth * kBlockTokens);
      if (chain.depth * kBlockTokens < tokens_.size()) add_states(i, chain.depth - 1, 0);
    }
    // The first slots of each place, and more where many of these are taken.
    for (int first = 0; !slots_.empty() && first < kStateSlots; first += kCandidateSlots) {
      std::map<std::pair<std::size_t, std::size_t>, int> n_taken;  // by chain and block
      std::vector<std::string> keys;
      for (const Slot& slot : slots_) keys.push_back(slot.key);
      TQC_TRY(
          reader_.read(keys, [&](std::size_t i, Content content, std::uint64_t) -> Result<void> {
            TQC_TRY_ASSIGN(Snapshot snapshot, BlobReader::take_kind<Snapshot>(std::move(content)));
            n_taken[{slots_[i].chain, slots_[i].block}] += 1;
            return take_state(slots_[i], std::move(snapshot));
          }));
      slots_.clear();
      for (const auto& [place, n] : n_taken) {
        if (2 * n >= kCandidateSlots)
          add_states(place.first, place.second, first + kCandidateSlots);
      }
    }
    return {};
  }

  // Blocks behind the last one that exists of each chain, of which the first tokens are wanted.
  Result<void> find_nexts() {
    std::vector<Slot> slots;
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      const Chain& chain = chains_[i];
      const bool may_be_more = chain.depth * kBlockTokens < tokens_.size();
      if (!finds_parts_ || !chain.can_be_cut || chain.depth == 0 || !may_be_more) continue;
      for (std::string& key : next_slot_keys(chain.hashes[chain.depth - 1])) {
        slots.push_back({i, chain.depth, std::move(key)});
      }
    }
    std::vector<std::string> keys;
    for (const Slot& slot : slots) keys.push_back(slot.key);
    std::vector<std::pair<const Slot*, Next>> found;
    TQC_TRY(reader_.read(keys, [&](std::size_t i, Content content, std::uint64_t) -> Result<void> {
      TQC_TRY_ASSIGN(Next next, BlobReader::take_kind<Next>(std::move(content)));
      found.emplace_back(&slots[i], std::move(next));
      return {};
    }));
    for (auto& [slot, next] : found) {
      Chain& chain = chains_[slot->chain];
      const std::size_t begin = chain.depth * kBlockTokens;
      const auto rest = tokens_.subspan(begin);
      const auto n_equal = std::ranges::mismatch(next.tokens, rest).in1 - next.tokens.begin();
      const std::int64_t n_common = static_cast<std::int64_t>(begin) + n_equal;
      if (n_common <= chain.n_common) continue;
      // It may be gone, and what names it still there.
      const Sha256 hash = hash_chain(chain.hashes[chain.depth - 1], next.tokens).front();
      TQC_TRY_ASSIGN(const bool is_there,
                     backend_.exists(block_key(hash, static_cast<std::int64_t>(chain.depth), 0)));
      if (!is_there) continue;
      chain.hashes.resize(chain.depth);
      chain.hashes.push_back(hash);
      chain.n_tokens = static_cast<std::int64_t>(begin + kBlockTokens);
      chain.n_common = n_common;
      chain.next = std::move(next.tokens);
      chain.snapshot.reset();
      chain.state_key.clear();
    }
    return {};
  }

  Prefix longest() {
    Chain* best = nullptr;
    for (Chain& chain : chains_) {
      if (chain.n_tokens > 0 && (best == nullptr || is_better(chain, *best))) best = &chain;
    }
    Prefix prefix;
    for (const Chain& chain : chains_) {
      const auto n_in_blocks = static_cast<std::int64_t>(chain.depth * kBlockTokens);
      prefix.n_known = std::max({prefix.n_known, n_in_blocks, chain.n_common});
    }
    if (best == nullptr) return prefix;
    prefix.n_tokens = best->n_tokens;
    prefix.n_common = best->n_common;
    const Tokens tokens = tokens_.first(static_cast<std::size_t>(best->n_common));
    prefix.tokens.assign(tokens.begin(), tokens.end());
    if (best->snapshot || !best->next.empty()) {
      const std::vector<std::int32_t>& tail = best->snapshot ? best->snapshot->tail : best->next;
      prefix.tokens.insert(prefix.tokens.end(), tail.end() - (best->n_tokens - best->n_common),
                           tail.end());
    }
    prefix.parameters_key = best->key;
    prefix.parameters = std::move(best->parameters);
    const std::int64_t n_blocks = best->n_tokens / cache::kTokenBlock;
    best->hashes.resize(
        static_cast<std::size_t>(best->snapshot ? final_blocks(best->n_tokens) : n_blocks));
    prefix.chain = std::move(best->hashes);
    prefix.snapshot = std::move(best->snapshot);
    prefix.state_key = std::move(best->state_key);
    return prefix;
  }

 private:
  void add_states(std::size_t chain, std::size_t block, int first) {
    for (std::string& key : state_slot_keys(chains_[chain].hashes[block], first)) {
      slots_.push_back({chain, block, std::move(key)});
    }
  }

  Result<void> take_state(const Slot& slot, Snapshot snapshot) {
    Chain& chain = chains_[slot.chain];
    const std::size_t begin = (slot.block + 1) * kBlockTokens;
    if (snapshot.n_tokens != static_cast<std::int64_t>(begin + snapshot.tail.size())) {
      return mismatch("a snapshot of another block");
    }
    TQC_TRY(join_layers(chain.parameters.layers, snapshot.layers));
    const Tokens rest = tokens_.subspan(begin);
    const auto n_equal = std::ranges::mismatch(snapshot.tail, rest).in1 - snapshot.tail.begin();
    const std::int64_t n_common = static_cast<std::int64_t>(begin) + n_equal;
    const bool is_whole = n_common == snapshot.n_tokens;
    if (n_common <= chain.n_common || !(is_whole || (finds_parts_ && chain.can_be_cut))) {
      return {};
    }
    chain.n_tokens = snapshot.n_tokens;
    chain.n_common = n_common;
    chain.snapshot = std::move(snapshot);
    chain.state_key = slot.key;
    return {};
  }

  static bool is_better(const Chain& a, const Chain& b) {
    if (a.n_common != b.n_common) return a.n_common > b.n_common;
    return block_bytes(a.parameters.layers) > block_bytes(b.parameters.layers);
  }

  Backend& backend_;
  BlobReader reader_;
  const cache::Identity& identity_;
  Sha256 namespace_;
  Tokens tokens_;
  bool finds_parts_;
  std::vector<Chain> chains_;
  std::vector<Slot> slots_;
};

// The maximum length of the prefix.
std::size_t longest_wanted(Tokens tokens, std::int64_t max_tokens) {
  const std::size_t all = tokens.size();
  if (max_tokens <= 0) return all == 0 ? 0 : all - 1;
  return std::min(all, static_cast<std::size_t>(max_tokens));
}

}  // namespace

bool same_settings(const std::vector<cache::LayerDesc>& a, const std::vector<cache::LayerDesc>& b) {
  return std::ranges::equal(a, b, [](const cache::LayerDesc& x, const cache::LayerDesc& y) {
    return cache::same_encoding(x, y);
  });
}

Result<Prefix> Library::find(const cache::Identity& identity, std::span<const std::int32_t> tokens,
                             const FindOptions& options) {
  const Tokens wanted = tokens.first(longest_wanted(tokens, options.max_tokens));
  if (wanted.size() < kBlockTokens) return Prefix{};
  Search search(backend_, options_, identity, wanted, options.finds_parts);
  TQC_TRY(search.find_chains(options));
  TQC_TRY(search.find_blocks());
  TQC_TRY(search.find_states());
  TQC_TRY(search.find_nexts());
  return search.longest();
}

}  // namespace tqcache::store
