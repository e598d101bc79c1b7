#pragma once
// eval/memory_run.h: what a model still knows of a conversation that was saved and loaded, for each
// way to keep its cache.
//
// Facts are told, then there is small talk up to a wanted length. The dense cache is converted,
// written to a file and read back. Each fact is asked for at once, and again after some further
// turns of small talk, always as if nothing had been asked before. The further turns are the same
// for all configurations, the assistant's part too: what differs is the cache alone.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/configuration.h"
#include "tqcache/eval/answers_dialogue.h"
#include "tqcache/eval/answers_score.h"
#include "tqcache/eval/memory.h"
#include "tqcache/eval/report.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {

struct MemoryOptions {
  std::vector<cache::Configuration> configurations;
  std::int64_t trials = 1;                         // conversations
  std::int64_t n_tokens = 1024;                    // that a conversation has at least when saved
  std::vector<std::int64_t> turns = {0, 1, 2, 5};  // further ones, ascending
  std::uint64_t seed = 0;
  std::int64_t max_tokens = 32;  // of an answer
  std::filesystem::path folder;  // where the file of a cache is written, and taken away again
  unsigned n_threads = 0;
};

// One conversation as tokens.
struct Conversation {
  Story story;
  Ids saved;                 // up to where it is saved
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

// Errors: kInvalidArgument when a conversation does not fit into the model's context; those of
//         check_configurations().
Result<void> check_memory(const model::Model& model, const Dialogue& dialogue,
                          const MemoryOptions& options);

// Progress: tokens of conversations up to where they are saved, of all.
// Requires: trials of at least 1, turns not empty.
// Errors:   as check_memory(); those of the decoder, of cache::convert, of writing and reading the
//           file; kInterrupted.
// Bytes:    the same options give the same result for any number of threads, on one kind of CPU.
Result<MemoryResult> measure_memory(const model::Model& model, const Dialogue& dialogue,
                                    const MemoryOptions& options, const Progress& progress = {});

Report memory_report(const MemoryOptions& options, const MemoryResult& result);

}  // namespace tqcache::eval
