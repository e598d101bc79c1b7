#pragma once
// bench/simulation/trace.h: what users ask, drawn: conversations of several turns behind system
// prompts of which a few are very common.
//
// A user starts a conversation, or takes up an earlier one; asks, reads the answer, thinks, and
// asks again with all that was said before as the prompt; and some time later starts another.

#include <cstdint>
#include <vector>

namespace tqcache::simulation {

struct Workload {
  std::uint64_t seed = 1;
  std::int64_t n_requests = 1'000'000;
  std::int64_t n_users = 1000;

  std::int64_t n_system_prompts = 1000;
  double zipf_exponent = 1;     // of how common they are
  double system_tokens = 1500;  // median of their lengths
  double system_sigma = 1;      // of the logarithm
  double user_tokens = 60;      // median of what a user says in a turn
  double user_sigma = 1.2;
  double answer_tokens = 250;  // median of what the model says
  double answer_sigma = 0.8;
  std::int64_t max_tokens = 32'768;  // of a conversation; who gets there begins another one

  double turns = 5;           // mean, of one sitting
  double think_seconds = 60;  // median, between turns
  double think_sigma = 1;
  double pause_seconds = 3600;     // mean, between sittings
  double resume = 0.2;             // how often a sitting takes up an earlier conversation
  std::int64_t n_remembered = 16;  // of which a user chooses by Zipf's law, the last one first
};

// One turn. Its prompt is: shared_tokens of the system prompt, what was said before up to
// known_tokens in all, and what the user says now.
struct Request {
  double seconds = 0;  // since the beginning
  std::int64_t user = 0, conversation = 0, system_prompt = 0;
  std::int64_t shared_tokens = 0;
  std::int64_t known_tokens = 0;  // 0 in the first turn of a conversation
  std::int64_t prompt_tokens = 0;
  std::int64_t answer_tokens = 0;

  std::int64_t all_tokens() const { return prompt_tokens + answer_tokens; }
};

// In the order of time. The same for the same workload.
//
// Requires: numbers positive; turns >= 1.
std::vector<Request> make_trace(const Workload& workload);

}  // namespace tqcache::simulation
