#include "research/simulation/replay.h"

#include <gtest/gtest.h>

#include <vector>

namespace tqcache::simulation {
namespace replay_test {

// One byte per token, two in the tail; all requests count.
Machines one_machine() {
  Machines machines;
  machines.form = {1, 2, 1 << 20};
  machines.warm_up = 0;
  return machines;
}

// Two conversations over one system prompt of 600 tokens, then a second turn of the first.
std::vector<Request> three_requests() {
  return {{0, 0, 0, 5, 600, 0, 700, 100},
          {1, 1, 1, 5, 600, 0, 650, 50},
          {4, 0, 0, 5, 600, 800, 900, 124}};
}

TEST(Replay, CountsWhatCanBeCountedByHand) {
  const Outcome outcome = replay(three_requests(), one_machine());
  const Counts& c = outcome.counts;
  EXPECT_EQ(c.requests, 3);
  EXPECT_EQ(c.hits, 2);
  EXPECT_EQ(c.seconds, 4);
  EXPECT_EQ(c.prompt_tokens, 700 + 650 + 900);
  EXPECT_EQ(c.answer_tokens, 100 + 50 + 124);
  // The second finds the two whole blocks of the system prompt, the third all that was said.
  EXPECT_EQ(c.reused_tokens, 512 + 800);
  EXPECT_EQ(c.get_bytes, 512u + (768 + 2 * 32));
  EXPECT_EQ(c.get_blobs, 2 + 4);
  // 800 tokens: three blocks and a tail of 32; 700: a tail of 188; 1,024: a tail of 256.
  EXPECT_EQ(c.put_bytes, (768u + 64) + 376 + 512);
  EXPECT_EQ(c.put_blobs, 4 + 1 + 1);
  EXPECT_EQ(c.lookups, 3 * 32 + (2 + 2 + 3));
  EXPECT_EQ(c.round_trips, 3 + 4 + 4);
  EXPECT_EQ(outcome.shared_bytes, c.put_bytes);
  EXPECT_EQ(outcome.shared_entries, 6);
}

TEST(Replay, FindsNothingWithoutAStore) {
  Machines without = one_machine();
  without.shared_bytes = 0;
  const Counts c = replay(three_requests(), without).counts;
  EXPECT_EQ(c.reused_tokens, 0);
  EXPECT_EQ(c.lookups, 0);
  EXPECT_EQ(c.round_trips, 0);
  EXPECT_EQ(c.put_bytes, 0u);
}

TEST(Replay, TakesFromTheMachinesOwnStoreFirst) {
  Machines near = one_machine();
  near.local_bytes = BlockStore::kEndless;
  const Outcome outcome = replay(three_requests(), near);
  EXPECT_EQ(outcome.counts.reused_tokens, 512 + 800);
  EXPECT_EQ(outcome.counts.get_bytes, 0u);
  EXPECT_EQ(outcome.counts.local_get_bytes, 512u + 832);
  EXPECT_EQ(outcome.local_bytes, outcome.shared_bytes);
}

TEST(Replay, SharesNothingAmongMachinesWithoutASharedStore) {
  Machines apart = one_machine();
  apart.shared_bytes = 0;
  apart.local_bytes = BlockStore::kEndless;
  apart.routing = Routing::kSticky;
  apart.n_machines = 64;  // so that users 0 and 1 are on two of them
  EXPECT_EQ(replay(three_requests(), apart).counts.reused_tokens, 800);
  apart.n_machines = 1;
  EXPECT_EQ(replay(three_requests(), apart).counts.reused_tokens, 512 + 800);
}

TEST(Replay, EvictsUnlessKept) {
  Machines small = one_machine();
  small.shared_bytes = 1000;
  std::vector<Request> trace = three_requests();
  trace[1] = {1, 1, 1, 6, 10, 0, 900, 100};  // of another system prompt: its 1,000 tokens take 928
  EXPECT_EQ(replay(trace, small).counts.reused_tokens, 0);
  small.n_kept = 6;
  EXPECT_EQ(replay(trace, small).counts.reused_tokens, 512);
}

TEST(Replay, NeedsWholeBlocksOfTokensInCommon) {
  std::vector<Request> trace = three_requests();
  for (Request& r : trace) r.shared_tokens = 255;
  EXPECT_EQ(replay(trace, one_machine()).counts.reused_tokens, 800);
}

TEST(Replay, StoresNoStateWithoutABlockBeforeIt) {
  const std::vector<Request> trace = {{0, 0, 0, 0, 10, 0, 100, 156}, {1, 0, 0, 0, 10, 256, 300, 1}};
  const Outcome outcome = replay(trace, one_machine());
  EXPECT_EQ(outcome.counts.reused_tokens, 0);
  EXPECT_EQ(outcome.counts.put_bytes, 256u + 2 * 45);
}

TEST(Replay, ReadsTailsAgainWhereStatesAreNotStored) {
  Machines blocks_only = one_machine();
  blocks_only.stores_states = false;
  const Counts c = replay(three_requests(), blocks_only).counts;
  EXPECT_EQ(c.reused_tokens, 512 + 768);
  EXPECT_EQ(c.get_bytes, 512u + 768);
  EXPECT_EQ(c.put_bytes, 768u);
}

TEST(Replay, LeavesOutTheWarmUp) {
  Machines warm = one_machine();
  warm.warm_up = 0.34;
  const Counts c = replay(three_requests(), warm).counts;
  EXPECT_EQ(c.requests, 2);
  EXPECT_EQ(c.seconds, 3);
  EXPECT_EQ(c.reused_tokens, 512 + 800);
}

TEST(Replay, CutsBlocksIntoBlobs) {
  Machines cut = one_machine();
  cut.form.blob_bytes = 100;
  EXPECT_EQ(cut.form.block_blobs(), 3);
  const Counts c = replay(three_requests(), cut).counts;
  EXPECT_EQ(c.get_blobs, 2 * 3 + (3 * 3 + 1));
  EXPECT_EQ(c.put_blobs, (3 * 3 + 1) + 4 + 6);
  EXPECT_EQ(c.round_trips, 3 + (3 + 1) + (3 + 2));
}

TEST(Replay, FindsMoreInALargerStore) {
  Workload workload;
  workload.n_requests = 5000;
  workload.n_users = 100;
  const std::vector<Request> trace = make_trace(workload);
  std::int64_t last = 0;
  for (const std::uint64_t bytes : {100'000u, 400'000u, 1'600'000u, 100'000'000u}) {
    Machines sized = one_machine();
    sized.shared_bytes = bytes;
    const Outcome outcome = replay(trace, sized);
    EXPECT_GT(outcome.counts.reused_tokens, last);
    EXPECT_LE(outcome.shared_bytes, bytes);
    last = outcome.counts.reused_tokens;
  }
}

}  // namespace replay_test
}  // namespace tqcache::simulation
