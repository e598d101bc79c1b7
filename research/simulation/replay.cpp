#include "replay.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tqcache/codec/random.h"

namespace tqcache::simulation {
namespace {

constexpr std::int64_t kBlock = 256;
constexpr std::int64_t kSlots =
    16;  // of parameters and snapshots, read at once (docs/reference/store.md)
constexpr std::int64_t kBatch = 8;  // values at a time (docs/reference/store.md)

std::int64_t final_blocks(std::int64_t n_tokens) {
  return n_tokens == 0 ? 0 : (n_tokens - 1) / kBlock;
}

Key key_of(std::uint64_t kind, std::int64_t owner, std::int64_t number) {
  std::uint64_t state = kind + 8 * static_cast<std::uint64_t>(owner);
  state = codec::splitmix64(state) + static_cast<std::uint64_t>(number);
  return codec::splitmix64(state);
}

std::uint64_t whole_bytes(double bytes) { return static_cast<std::uint64_t>(std::ceil(bytes)); }

std::int64_t pieces(std::uint64_t bytes, std::uint64_t most) {
  return static_cast<std::int64_t>((bytes + most - 1) / most);
}

class Replay {
 public:
  explicit Replay(const Machines& machines)
      : m_(machines),
        shared_(machines.shared_bytes),
        local_(machines.local_bytes == 0 ? 0 : static_cast<std::size_t>(machines.n_machines),
               BlockStore(machines.local_bytes)),
        route_(machines.seed) {}

  Outcome run(std::span<const Request> trace) {
    const auto first = static_cast<std::size_t>(m_.warm_up * static_cast<double>(trace.size()));
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (i == first) counts_ = {};
      serve(trace[i]);
    }
    if (first < trace.size()) counts_.seconds = trace.back().seconds - trace[first].seconds;
    Outcome outcome{counts_, shared_.bytes(), 0, static_cast<std::int64_t>(shared_.size())};
    for (const BlockStore& store : local_) outcome.local_bytes += store.bytes();
    return outcome;
  }

 private:
  BlockStore* machine_of(const Request& request) {
    if (local_.empty()) return nullptr;
    std::uint64_t state = static_cast<std::uint64_t>(request.user);
    std::uint64_t& which = m_.routing == Routing::kSticky ? state : route_;
    return &local_[codec::splitmix64(which) % local_.size()];
  }

  void serve(const Request& request) {
    BlockStore* const near = machine_of(request);
    make_chain(request);
    const std::span<const Link> wanted =
        std::span(chain_).first(static_cast<std::size_t>(final_blocks(request.prompt_tokens)));
    const std::int64_t gets_before = counts_.get_blobs;
    const std::size_t found = fetch(wanted, near);
    const bool goes_on = fetch_state(request, found, near);
    count_tokens(request, found, goes_on);
    count_trips(wanted.size(), counts_.get_blobs - gets_before);
    store(request, goes_on, near);
  }

  // Blocks of the whole conversation, including the answer.
  void make_chain(const Request& request) {
    chain_.clear();
    const std::int64_t shared = request.shared_tokens / kBlock;
    for (std::int64_t i = 0; i < final_blocks(request.all_tokens()); ++i) {
      const bool common = i < shared;
      const Key key =
          common ? key_of(1, request.system_prompt, i) : key_of(2, request.conversation, i);
      chain_.push_back({key, m_.form.block_bytes(), m_.form.block_blobs(), false,
                        common && request.system_prompt < m_.n_kept});
    }
  }

  Link state_of(const Request& request, std::int64_t n_tokens) const {
    const std::int64_t tail = n_tokens - final_blocks(n_tokens) * kBlock;
    const std::uint64_t bytes = whole_bytes(static_cast<double>(tail) * m_.form.dense_token_bytes);
    return {key_of(3, request.conversation, n_tokens), bytes, pieces(bytes, m_.form.blob_bytes),
            true};
  }

  std::size_t fetch(std::span<const Link> wanted, const BlockStore* near) {
    std::size_t n = 0;
    for (const Link& link : wanted) {
      if (!fetch_one(link, near)) break;
      ++n;
    }
    return n;
  }

  bool fetch_one(const Link& link, const BlockStore* near) {
    if (near != nullptr && near->has(link.key)) {
      counts_.local_get_bytes += link.bytes;
      return true;
    }
    if (!shared_.has(link.key)) return false;
    counts_.get_bytes += link.bytes;
    counts_.get_blobs += link.blobs;
    return true;
  }

  // The snapshot at the end of the known tokens, if all blocks before it were found.
  bool fetch_state(const Request& request, std::size_t found, const BlockStore* near) {
    const std::int64_t blocks = final_blocks(request.known_tokens);
    if (!m_.stores_states) return false;
    if (blocks == 0 || static_cast<std::int64_t>(found) < blocks) return false;
    return fetch_one(state_of(request, request.known_tokens), near);
  }

  void count_tokens(const Request& request, std::size_t found, bool goes_on) {
    const std::int64_t in_blocks = static_cast<std::int64_t>(found) * kBlock;
    const std::int64_t reused = goes_on ? std::max(in_blocks, request.known_tokens) : in_blocks;
    ++counts_.requests;
    counts_.hits += reused > 0;
    counts_.prompt_tokens += request.prompt_tokens;
    counts_.answer_tokens += request.answer_tokens;
    counts_.reused_tokens += reused;
  }

  // One batch each for slots of parameters, all blocks, and slots of snapshots
  // (docs/reference/store.md). A local store may hold everything, but new blobs must still be put
  // in the shared store.
  void count_trips(std::size_t n_blocks, std::int64_t n_gets) {
    if (m_.shared_bytes == 0) return;
    counts_.lookups += 2 * kSlots + static_cast<std::int64_t>(n_blocks);
    counts_.round_trips += 3 + (n_gets + kBatch - 1) / kBatch;
  }

  void store(const Request& request, bool goes_on, BlockStore* near) {
    const auto before = static_cast<std::size_t>(final_blocks(request.known_tokens));
    if (goes_on) insert_state(before, state_of(request, request.known_tokens));
    if (m_.stores_states && !chain_.empty())
      chain_.push_back(state_of(request, request.all_tokens()));
    if (near != nullptr) near->use(chain_);
    const Added added = shared_.use(chain_);
    counts_.put_bytes += added.bytes;
    counts_.put_blobs += added.blobs;
  }

  void insert_state(std::size_t behind, const Link& state) {
    chain_.insert(chain_.begin() + static_cast<std::ptrdiff_t>(behind), state);
  }

  const Machines& m_;
  BlockStore shared_;
  std::vector<BlockStore> local_;
  std::uint64_t route_;
  std::vector<Link> chain_;
  Counts counts_;
};

}  // namespace

std::uint64_t Form::block_bytes() const { return whole_bytes(token_bytes * kBlock); }

std::int64_t Form::block_blobs() const { return pieces(block_bytes(), blob_bytes); }

Outcome replay(std::span<const Request> trace, const Machines& machines) {
  return Replay(machines).run(trace);
}

}  // namespace tqcache::simulation
