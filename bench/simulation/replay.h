#pragma once
// bench/simulation/replay.h: a trace, asked of machines that share a store.
//
// Every request is a process of its own, as `tqcache generate --store` is: it knows nothing but
// what the store tells it. Machines may have a local store each, which is asked first and is given
// all that the shared one gives.

#include <cstdint>
#include <span>

#include "block_store.h"
#include "trace.h"

namespace tqcache::simulation {

// What a token takes. 256 of them are a block; the tail of a prompt stays dense.
struct Form {
  double token_bytes = 0;
  double dense_token_bytes = 0;
  std::uint64_t blob_bytes = 2 << 20;  // a block is stored in so many bytes apiece, or fewer

  std::uint64_t block_bytes() const;
  std::int64_t block_blobs() const;
};

enum class Routing {
  kSticky,  // a user's requests all go to one machine
  kSpread,  // each goes to any
};

struct Machines {
  Form form;
  std::uint64_t shared_bytes = BlockStore::kEndless;  // 0: there is none
  std::uint64_t local_bytes = 0;                      // of each machine; 0: there is none
  std::int64_t n_machines = 1;
  Routing routing = Routing::kSpread;
  std::int64_t n_kept = 0;    // of the most common system prompts, which are never evicted
  bool stores_states = true;  // what stands behind a prompt's last block
  double warm_up = 0.5;       // of the requests, which are not counted
  std::uint64_t seed = 1;     // of the routing
};

// Sums over all requests that count. What goes over the network is the shared store's.
struct Counts {
  std::int64_t requests = 0, hits = 0;
  double seconds = 0;  // from the first one to the last
  std::int64_t prompt_tokens = 0, answer_tokens = 0, reused_tokens = 0;
  std::int64_t round_trips = 0,
               lookups = 0;  // lookups: keys asked for, whether they are there or not
  std::int64_t get_blobs = 0, put_blobs = 0;
  std::uint64_t get_bytes = 0, put_bytes = 0;
  std::uint64_t local_get_bytes = 0;
};

struct Outcome {
  Counts counts;
  std::uint64_t shared_bytes = 0, local_bytes = 0;  // stored at the end; of all machines together
  std::int64_t shared_entries = 0;
};

Outcome replay(std::span<const Request> trace, const Machines& machines);

}  // namespace tqcache::simulation
