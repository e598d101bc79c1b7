#pragma once
// server/tqcache/serve/embedded/engine.h: the reference decoder and a store, which answer one
// prompt at a time.
//
// The cache of the last conversation stays in memory. A prompt of the same tenant that continues
// it is answered from there, as `tqcache chat` does. Any other prompt begins with the longest
// prefix that the store has, as `tqcache generate --store` does; without a store, with the token
// blocks that it shares with the cache in memory. New token blocks are put into the store by a
// thread, also after the answer.
//
// A tenant's cache is never continued, and not even kept in memory, for another tenant.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/quantize.h"
#include "tqcache/serve/embedded/client_request.h"
#include "tqcache/serve/embedded/request_queue.h"
#include "tqcache/serve/embedded/tool_calls.h"
#include "tqcache/serve/hit_scores.h"
#include "tqcache/serve/prompt_ledger.h"
#include "tqcache/session.h"

namespace tqcache::serve {

struct EngineOptions {
  std::string model;                              // GGUF file, or Hugging Face folder
  std::string model_id = {};                      // for clients; empty: from the file name
  std::string chat_template = {};                 // as of session::ChatTurns::make()
  std::optional<tokenizer::CivilTime> date = {};  // that templates learn; absent: the time of day
  std::optional<cache::ConvertOptions> quantization = {};  // of new caches; absent: dense f16
  unsigned n_threads = 0;
  model::Scorer scorer = model::Scorer::kFast;
  model::ActivationBits activations = model::ActivationBits::k16;
  std::string store_url = {};  // empty: prompts are kept in memory only
  KeyRing keys = {};           // of the store
  store::Credentials credentials = {};
  MemoryBudget memory = {};
  bool store_read_only = false;
  bool same_quantization = false;  // take only stored prefixes with `quantization`
  bool verify_digests = false;
  std::size_t max_waiting = 16;  // requests in the queue
  bool shows_text = false;       // the ledger keeps how each prompt begins
  // Learns which prompts are kept, and must outlive the engine. Null: the engine has its own.
  PromptLedger* ledger = nullptr;
  // Learns which blobs of the store are used, and must outlive the engine. Null: nobody does.
  HitScores* scores = nullptr;
  std::function<void(const std::string& where, const std::string& message)> on_warning = {};
};

// Where the first tokens of a prompt came from.
enum class PrefixSource { kNothing, kMemory, kStore };

struct Answer {
  std::string text;                  // without the calls
  std::string thoughts = {};         // that the model wrote apart from it
  bool may_think = false;            // there may be thoughts: the model has channels
  std::vector<ToolCall> calls = {};  // of tools
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  // of the prompt, that were not computed
  PrefixSource source = PrefixSource::kNothing;
  std::int64_t completion_tokens = 0;
  double load_seconds = 0;    // finding and loading the prefix
  double prompt_seconds = 0;  // computing the rest of the prompt
  double answer_seconds = 0;
  double saved_seconds = 0;  // what computing the cached tokens would have taken, at a guess
  session::StopReason stop = session::StopReason::kFailed;
  std::string stop_string = {};       // with kStopString: the one that ended the answer
  std::optional<Error> failure = {};  // with kInterrupted and kFailed
};

struct GenerationRequest {
  std::string tenant;  // the salt of its keys in the store
  session::Ids prompt;
  model::SamplerOptions sampling;
  std::int64_t max_tokens = 0;
  std::vector<std::string> stops;
  bool has_tools = false;                   // the answer may have calls
  bool one_call = false;                    // and ends with the first one
  std::optional<Sha256> conversation = {};  // that the prompt is: conversation_digest()
};

// Identifies the messages of a conversation, and its tools.
Sha256 conversation_digest(const ChatRequest& request);

class Engine {
 public:
  // Loads the model.
  // Errors: those of session::Session::open() and session::ChatTurns::make().
  static Result<std::unique_ptr<Engine>> open(EngineOptions options);
  ~Engine();  // waits up to ten seconds for the store

  const std::string& model_id() const { return model_id_; }
  const model::Model& model() const { return session_->model(); }
  std::int64_t context_length() const { return model().config.context_length; }
  // A longer text has more tokens than the context holds, so nothing needs to be encoded to refuse
  // it: the context times the bytes of the longest token.
  std::uint64_t max_text_bytes() const { return max_text_bytes_; }
  RequestQueue& queue() { return queue_; }
  PromptLedger& ledger() { return options_.ledger == nullptr ? own_ledger_ : *options_.ledger; }
  bool has_store() const { return !options_.store_url.empty(); }
  // Of the store, without the password; empty: there is none.
  const std::string& store_name() const { return store_name_; }
  bool shows_text() const { return options_.shows_text; }
  // Whether the chat template tells the model of tools.
  bool takes_tools() const { return turns_ && turns_->takes_tools(); }

  // The tokens of a conversation. Answers of this engine to the same tenant keep their tokens.
  // Threads: any number. Errors: kUnsupported (the model has no chat template), those of
  // session::ChatTurns::conversation().
  Result<session::Ids> encode_chat(const ChatRequest& request, const std::string& tenant) const;
  Result<std::string> render_chat(const ChatRequest& request) const;
  // The tokens of a text that begins here, as `tqcache generate` reads it. Threads: any number.
  Result<session::Ids> encode_text(std::string_view text) const;

  // Receives text as it is made: whole characters, and nothing that may begin a stop string.
  // Returns false when nobody wants more.
  using OnText = std::function<bool(std::string_view text)>;

  // Is called once the prompt was read, before the first token.
  using OnPrompt = std::function<bool(const Answer& so_far)>;

  // Answers a prompt. `on_thought` receives thoughts. `goes_on` is asked before each layer and
  // token; once it returns false the answer ends with kInterrupted. Requires: the caller has its
  // turn in queue(); the prompt is not empty and shorter than the
  //           context.
  Answer answer(const GenerationRequest& request, const std::function<bool()>& goes_on,
                const OnText& on_text, const OnPrompt& on_prompt = {},
                const OnText& on_thought = {});

  // Bytes that were added to the store so far. Threads: any.
  std::uint64_t added_bytes() const { return finished_bytes_ + current_bytes_; }

  // Brings the ledger up to date with what the store has acknowledged, if the engine is idle.
  void refresh_ledger();

  // Ends the answer in progress, and all that follow, after the current token. Threads: any.
  void stop() { stopping_ = true; }
  // Gives the store what it lacks, for at most ten seconds. Requires: nobody has a turn, and nobody
  // asks for one any more.
  void finish() { finish_store(); }
  bool is_stopping() const { return stopping_; }

 private:
  explicit Engine(EngineOptions options);
  session::ChatOptions chat_options(const ChatRequest& request) const;

  // An answer, and all before it: the tokens of the prompt, and those of the answer.
  struct GivenAnswer {
    std::string tenant;
    Sha256 conversation;  // with the answer
    session::Ids tokens;
  };

  Result<void> take_prefix(const GenerationRequest& request, const Progress& progress,
                           Answer& answer);
  Result<void> take_from_store(const GenerationRequest& request, const Progress& progress);
  Result<void> forget_conversation();
  void finish_store();
  void note_stored_bytes();
  std::int64_t shared_blocks(const GenerationRequest& request) const;
  Result<void> read_prompt(const GenerationRequest& request, const Progress& progress,
                           Answer& answer);
  void generate(const GenerationRequest& request, const std::function<bool()>& goes_on,
                const OnText& on_text, const OnText& on_thought, Answer& answer);
  void remember(const GenerationRequest& request, const Answer& answer, const session::Ids& ids);
  void note_in_ledger(const GenerationRequest& request, const Answer& answer);
  Result<std::unique_ptr<session::PromptStore>> open_store(const std::string& tenant) const;

  EngineOptions options_;
  std::string model_id_;
  std::string store_name_;
  std::unique_ptr<session::Session> session_;
  std::optional<session::ChatTurns> turns_;
  std::optional<Error> no_turns_;  // why there are none
  bool writes_calls_ = false;      // the chat template knows calls as ToolCallReader does
  std::uint64_t max_text_bytes_ = 0;
  RequestQueue queue_;
  PromptLedger own_ledger_;
  std::atomic<bool> stopping_ = false;

  // Of the conversation in memory. Held by the one that has its turn, so nobody waits for it.
  std::mutex conversation_mutex_;
  std::string tenant_;
  std::unique_ptr<session::PromptStore> store_;    // that its blocks go to; null: none
  PromptLedger::Id entry_ = 0;                     // 0: none
  std::atomic<std::uint64_t> finished_bytes_ = 0;  // added to the store, by earlier conversations
  std::atomic<std::uint64_t> current_bytes_ = 0;   // by this one
  std::int64_t computed_tokens_ = 0;               // of all prompts, and the time that they took
  double computed_seconds_ = 0;

  mutable std::mutex given_mutex_;
  std::deque<GivenAnswer> given_;  // newest last
  std::size_t given_tokens_ = 0;
};

}  // namespace tqcache::serve
