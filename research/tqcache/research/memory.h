#pragma once
// research/memory.h: recall of facts from a saved and reloaded conversation, for each configuration
// of the cache.
//
//   user: Hello! My name is Clara. I live in Lyon.     assistant: Nice to meet you, Clara!
//   user: Can you find me a bus to Oslo?               assistant: There is a bus to Oslo at 4:15
//   ...
//   ...
//   user: What is my name?                             assistant: Your name is Clara.
//
// A user states facts about themselves; small talk fills the conversation to the wanted length. The
// dense cache is converted, written to a file and read back. Each fact is asked for at once, and
// again after some further turns of small talk, each time from a cache without the earlier
// questions. The further turns, including the assistant's part, are the same for all
// configurations: only the cache differs.
//
// Everything is drawn from a seed. Each fact is stated in only one place of the conversation: small
// talk never contains a value that is asked for.

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/eval/random_choice.h"
#include "tqcache/model.h"
#include "tqcache/progress.h"
#include "tqcache/quantize.h"
#include "tqcache/report.h"
#include "tqcache/research/answers.h"
#include "tqcache/research/questions.h"
#include "tqcache/tqkv.h"

namespace tqcache::research {

// The kinds of facts, in the order of Story::facts.
inline constexpr std::array<std::string_view, 8> kFactKinds = {"name", "city",  "job",   "food",
                                                               "pet",  "color", "hobby", "age"};

struct Fact {
  std::string statement;  // "I live in Lyon."
  std::string question;   // "Where do I live?"
  std::string answer;     // "You live in Lyon."
  std::string value;      // "Lyon"
};

struct Turn {
  std::string user;
  std::string assistant;
};

// One person: a fact of every kind, and the turns that state them, several per turn in random
// order.
struct Story {
  std::vector<Fact> facts;  // [kFactKinds]
  std::vector<Turn> turns;
};

// The same seed gives the same story.
Story draw_story(std::uint64_t seed);

// An endless supply of turns about other things.
class SmallTalk {
 public:
  // `city` is where the person of the story lives; small talk never mentions it.
  SmallTalk(std::uint64_t seed, std::string_view city) : draw_(seed), city_(city) {}

  Turn next();

 private:
  std::string other_city();

  eval::Draw draw_;
  std::string city_;
};

struct MemoryOptions {
  std::vector<cache::Configuration> configurations;
  std::int64_t trials = 1;                         // conversations
  std::int64_t n_tokens = 1024;                    // minimum length of a conversation when saved
  std::vector<std::int64_t> turns = {0, 1, 2, 5};  // numbers of further turns, ascending
  std::uint64_t seed = 0;
  std::int64_t max_tokens = 32;  // of an answer
  std::filesystem::path folder;  // for the temporary file of a cache
  format::Access access;         // its first key encrypts it
  unsigned n_threads = 0;
};

// One conversation as tokens.
struct Conversation {
  Story story;
  Ids saved;                 // the part before it is saved
  std::vector<Ids> further;  // [largest of turns]
};

// Errors: those of Tokenizer::encode.
Result<Conversation> make_conversation(const tokenizer::Tokenizer& tokenizer,
                                       const Dialogue& dialogue, const MemoryOptions& options,
                                       std::int64_t trial);

struct MemoryResult {
  // [configurations][kFactKinds][turns]
  std::vector<std::vector<std::vector<AnswerScore>>> scores;
};

// Errors: kInvalidArgument if a conversation does not fit into the model's context; those of
//         check_configurations().
Result<void> check_memory(const model::Model& model, const Dialogue& dialogue,
                          const MemoryOptions& options);

// Progress: tokens of the conversations before they are saved.
// Requires: trials of at least 1, turns not empty.
// Errors:   as check_memory(); those of the decoder, of cache::convert, of writing and reading the
//           file; kInterrupted.
// Bytes:    the same options give the same result for any number of threads, on one kind of CPU.
Result<MemoryResult> measure_memory(const model::Model& model, const Dialogue& dialogue,
                                    const MemoryOptions& options, const Progress& progress = {});

eval::Report memory_report(const MemoryOptions& options, const MemoryResult& result);

}  // namespace tqcache::research
