#pragma once
// research/simulation/trace.h: a random trace of requests: conversations of several turns after
// system prompts, a few of which are very common.
//
// A user starts a conversation or resumes an earlier one, asks, reads the answer, thinks, and asks
// again; the prompt is then the whole conversation so far. Later the user starts another one.

#include <cstdint>
#include <vector>

namespace tqcache::simulation {

struct Workload {
  std::uint64_t seed = 1;
  std::int64_t n_requests = 1'000'000;
  std::int64_t n_users = 1000;

  std::int64_t n_system_prompts = 1000;
  double zipf_exponent = 1;     // of the popularity of system prompts
  double system_tokens = 1500;  // median of their lengths
  double system_sigma = 1;      // of the logarithm
  double user_tokens = 60;      // median length of a user's turn
  double user_sigma = 1.2;
  double answer_tokens = 250;  // median length of an answer
  double answer_sigma = 0.8;
  std::int64_t max_tokens = 32'768;  // of a conversation, after which a new one begins

  double turns = 5;           // mean, per sitting
  double think_seconds = 60;  // median, between turns
  double think_sigma = 1;
  double pause_seconds = 3600;     // mean, between sittings
  double resume = 0.2;             // probability that a sitting resumes an earlier conversation
  std::int64_t n_remembered = 16;  // chosen by Zipf's law, the latest first
};

// One turn. Its prompt is the system prompt (shared_tokens), the conversation so far (up to
// known_tokens in all), and the new turn of the user.
struct Request {
  double seconds = 0;  // since the start of the trace
  std::int64_t user = 0, conversation = 0, system_prompt = 0;
  std::int64_t shared_tokens = 0;
  std::int64_t known_tokens = 0;  // 0 in the first turn of a conversation
  std::int64_t prompt_tokens = 0;
  std::int64_t answer_tokens = 0;

  std::int64_t all_tokens() const { return prompt_tokens + answer_tokens; }
};

// In order of time. The same workload gives the same trace.
//
// Requires: positive numbers; turns >= 1.
std::vector<Request> make_trace(const Workload& workload);

}  // namespace tqcache::simulation
