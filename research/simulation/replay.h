#pragma once
// research/simulation/replay.h: replay of a trace on machines that share a store.
//
// Every request is its own process, like `tqcache generate --store`: it knows only what the store
// returns. Each machine may have a local store, which is queried first and receives everything that
// the shared store returns.

#include <cstdint>
#include <span>

#include "block_store.h"
#include "trace.h"

namespace tqcache::simulation {

// The size of a token. 256 tokens form a block; the tail of a prompt stays dense.
struct Form {
  double token_bytes = 0;
  double dense_token_bytes = 0;
  std::uint64_t blob_bytes = 2 << 20;  // maximum size of the blobs that store a block

  std::uint64_t block_bytes() const;
  std::int64_t block_blobs() const;
};

enum class Routing {
  kSticky,  // all requests of a user go to one machine
  kSpread,  // each request goes to a random machine
};

struct Machines {
  Form form;
  std::uint64_t shared_bytes = BlockStore::kEndless;  // 0: no shared store
  std::uint64_t local_bytes = 0;                      // of each machine; 0: no local store
  std::int64_t n_machines = 1;
  Routing routing = Routing::kSpread;
  std::int64_t n_kept = 0;    // of the most common system prompts, which are never evicted
  bool stores_states = true;  // snapshots, at the last block of each prompt
  double warm_up = 0.5;       // share of requests that are not counted
  std::uint64_t seed = 1;     // of the routing
};

// Sums over all counted requests. Network traffic is that of the shared store.
struct Counts {
  std::int64_t requests = 0, hits = 0;
  double seconds = 0;  // from the first one to the last
  std::int64_t prompt_tokens = 0, answer_tokens = 0, reused_tokens = 0;
  std::int64_t round_trips = 0,
               lookups = 0;  // lookups: all keys asked for, hits and misses
  std::int64_t get_blobs = 0, put_blobs = 0;
  std::uint64_t get_bytes = 0, put_bytes = 0;
  std::uint64_t local_get_bytes = 0;
};

struct Outcome {
  Counts counts;
  std::uint64_t shared_bytes = 0, local_bytes = 0;  // stored at the end; sum over all machines
  std::int64_t shared_entries = 0;
};

Outcome replay(std::span<const Request> trace, const Machines& machines);

}  // namespace tqcache::simulation
