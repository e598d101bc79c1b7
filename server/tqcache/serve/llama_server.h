#pragma once
// server/tqcache/serve/llama_server.h: the requests of llama-server's own interface that a proxy
// needs.
//
// Source: ggml-org/llama.cpp tools/server/README.md, build b11549.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/serve/http_message.h"
#include "tqcache/serve/llama_request.h"
#include "tqcache/serve/upstream.h"

namespace tqcache::serve {

// What /props says about a server. Asking does not wake a server that sleeps.
struct ServerProps {
  // It starts a llama-server for each model ("role": "router"), and has no slots itself: then only
  // `build` is set.
  bool is_router = false;
  bool is_sleeping = false;  // --sleep-idle-seconds: the model is not in memory
  std::string model_path;
  std::int64_t n_slots = 0;
  std::int64_t n_ctx = 0;  // of a slot
  std::string build;
  bool takes_images = false, takes_audio = false;
  std::string adapters;  // /lora-adapters with a scale other than 0, as JSON; empty: none
};

// What /slots says about a slot.
struct SlotState {
  std::int64_t id = 0;
  bool is_processing = false;
  std::optional<std::int64_t> task;  // absent: it has done nothing since the server began
  std::int64_t n_tokens = 0;         // that it holds: prompt and answer
  std::int64_t n_ctx = 0;            // that it can hold
  // Of the prompt that it reads now; 0 when it is idle.
  std::int64_t n_computed = 0, n_reused = 0;
};

// What a generating request asks for, as far as a proxy needs to know.
struct Asked {
  // As the model reads it; empty: not known. Of tokens: a text that is compared as others are.
  std::string prompt;
  std::vector<std::int32_t> tokens;  // if the prompt was given as tokens
  // The client chooses a slot itself, wants no reuse, or several answers.
  bool is_steered = false;
  bool has_adapters = false;  // "lora": keys and values are not those of the plain model
  bool is_media = false;      // it has images or sound, which have no tokens
  bool is_stream = false;
  std::optional<std::int64_t> n_predict;  // the most tokens to generate, if the client says so
};

// The messages of an Anthropic or Responses request as those of a chat completion, up to the first
// part that has no such form. As a JSON text; empty: not an object.
std::string as_chat(Api api, std::string_view body);

// Threads: any number.
class LlamaServer {
 public:
  LlamaServer(Upstream& upstream, std::vector<Header> headers)
      : upstream_(upstream), headers_(std::move(headers)) {}

  // Errors of all: those of Upstream::call(); kCorrupt (an answer that is not as documented);
  // kBusy (status 503: it loads its model, ...), kUnsupported (it refuses, with what it says).
  Result<ServerProps> props() const;
  // Whether it sleeps (--sleep-idle-seconds). Asking does not wake it.
  Result<bool> is_sleeping() const;
  Result<std::vector<SlotState>> slots() const;
  // What the model would read for this request.
  Result<Asked> ask(Api api, const std::string& body, Client* client) const;
  Result<std::vector<std::int32_t>> tokenize(const std::string& text, Client* client) const;
  // The tokens of Asked::prompt, or of its beginning. `is_tokens`: it was given as tokens.
  Result<std::vector<std::int32_t>> tokens_of(const std::string& prompt, bool is_tokens,
                                              Client* client) const;
  // Saves to, or restores from, a file in the folder of --slot-save-path. Returns the number of
  // tokens.
  Result<std::int64_t> save(std::int64_t slot, const std::string& file) const;
  Result<std::int64_t> restore(std::int64_t slot, const std::string& file, Client* client) const;
  Result<void> erase(std::int64_t slot) const;
  // Computes these tokens in a slot, and nothing behind them. Returns how many were not there.
  Result<std::int64_t> read(std::int64_t slot, std::span<const std::int32_t> tokens,
                            Client* client) const;

 private:
  Result<std::string> call(std::string_view method, const std::string& target, std::string body,
                           Client* client) const;

  Upstream& upstream_;
  std::vector<Header> headers_;
};

}  // namespace tqcache::serve
