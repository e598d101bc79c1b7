#pragma once
// tools/cli/session_flags.h: flags, progress bars and notes of the verbs that run a session.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "cli/cache_io.h"
#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "cli/console.h"
#include "cli/store_flags.h"
#include "tqcache/session.h"

namespace tqcache::cli {

// The common flags of generate and chat.
struct SessionFlags {
  session::SessionOptions options;
  SamplingFlags sampling;
  CodecFlags codec;
  PromptStoreFlags store;
  CompressionFlags compression;
  bool no_tokens = false;
  bool force = false;
};

// All except --model and --cache.
void add_session_flags(FlagSet& app, SessionFlags& flags);

// Rejects contradicting flags, and completes `options`.
// Errors: kInvalidArgument, naming the flag.
Result<void> finish_session_flags(const Console& console, SessionFlags& flags);

// Loads model and cache. The cache file may be standard input, of version 1, or open in `growing`.
Result<std::unique_ptr<session::Session>> open_session(const Console& console,
                                                       const SessionFlags& flags,
                                                       GrowingFile* growing);

// Says what --activations 8 does to a cache that is kept.
void note_activations(const Console& console, const SessionFlags& flags);

// Null if the command line names no store, or the store cannot be reached.
Result<std::unique_ptr<session::PromptStore>> open_prompt_store(const Console& console,
                                                                const SessionFlags& flags,
                                                                bool same_quantization);

// Loads the stored prefix of the prompt, and removes it from `ids`.
Result<void> begin_from(const Console& console, session::PromptStore& store,
                        session::Session& session, std::vector<std::int32_t>& ids);

// Requires: ids not empty.
Result<void> feed(const Console& console, session::Session& session,
                  std::span<const std::int32_t> ids);

// Stores new blocks, and saves the whole cache under its name. `store` may be null. `hurry`: after
// Ctrl-C, the new blocks of a slow store are given up.
Result<void> finish_store(const Console& console, session::PromptStore* store,
                          const cache::Cache& cache, bool hurry);

Json store_json(const session::PromptStore& store);

// A sink for session::Session::generate() that also ends at Ctrl-C.
session::TokenSink until_interrupted(session::TokenSink sink);

}  // namespace tqcache::cli
