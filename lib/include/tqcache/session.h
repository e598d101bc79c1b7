#pragma once
// tqcache/session.h: a model and a cache: resuming, reading prompts and generating text.
//
//   TQC_TRY_ASSIGN(const auto session, Session::open({.model = "m.gguf", .cache = "book.tqkv"}));
//   TQC_TRY_ASSIGN(const auto ids, session->model().tokenizer.encode(" Then", {}));
//   TQC_TRY(session->feed(ids));
//   std::vector<std::int32_t> text;
//   session->generate(50, true, [&](std::int32_t id) { return text.push_back(id), Result(true); });
//   TQC_TRY(format::write_cache_file(session->cache(), "more.tqkv", {}, {}));
//
// A session prints nothing; it returns what a user may want to know. Threads: one at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/progress.h"
#include "tqcache/quantize.h"
#include "tqcache/sampler.h"
#include "tqcache/store.h"
#include "tqcache/tokenizer.h"

namespace tqcache::session {

// --- The store that a session takes prefixes from and adds new blocks to
//
// A failing store is not an error of the session: the session computes what the store lacks, and
// warns once. Only saving under a name is guaranteed: if that fails, finish() returns the error.

struct PromptStoreOptions {
  std::string url;        // "dir:PATH", "redis://HOST", "s3://BUCKET"
  std::string salt = {};  // of the tenant; empty: the tenant without a salt
  KeyRing keys = {};      // the first one encrypts what is stored; empty: nothing is encrypted
  store::Credentials credentials = {};
  MemoryBudget memory = {};   // for what is loaded
  bool read_only = false;     // add nothing
  std::string name = {};      // finish() saves the whole cache under this name; empty: it does not
  bool replace_name = false;  // overwrite the name if another prompt has it
  // Take only a prefix with the quantization of the session's own cache, not the longest one of
  // any.
  bool same_quantization = false;
  unsigned n_threads = 0;
  bool verify_digests = false;  // of what is loaded: store::LibraryOptions
  // Seconds since 1970, for records and usage notes. Empty: they have no time.
  std::function<std::int64_t()> now = {};
  // Called at most once, with "store dir:prompts" and the message.
  std::function<void(const std::string& where, const std::string& message)> on_warning = {};
  // Returns false if the user wants to stop. finish() then skips work that takes time.
  std::function<bool()> keep_going = [] { return true; };
};

class PromptStore {
 public:
  // Opens the store. Returns null, after a warning, if it cannot be reached and no name is given.
  // Errors: kInvalidArgument (a bad URL, or a backend that is not built in); with a name, those of
  //         opening.
  static Result<std::unique_ptr<PromptStore>> open(PromptStoreOptions options);

  // Replaces the empty `cache` by the longest stored prefix of `prompt`.
  // Errors: kInterrupted; kInvalidArgument when the name is taken.
  Result<void> begin(const model::Model& model, std::span<const std::int32_t> prompt,
                     cache::Cache& cache, const Progress& progress = {});

  // Adds new token blocks to the store as the cache grows. end_prompt() marks the end of a prompt.
  void watch(const cache::Cache& cache);
  void end_prompt(const cache::Cache& cache);

  // Gives up the store, because the decoder failed with the values that begin() found.
  void reject(const Error& error);

  // Adds what is complete, for at most 0.3 s, and nothing more: the caller will truncate the cache,
  // and tokens that grow on it later do not follow the blocks that were added.
  void stop_adding(const cache::Cache& cache);

  // Waits a few seconds until new blocks are stored, then saves the cache under its name, if any.
  // `hurry`: the user interrupted the session, so the wait for new blocks ends after 0.3 s.
  // Errors: those of saving under the name.
  Result<void> finish(const cache::Cache& cache, const Progress& progress = {}, bool hurry = false);

  ~PromptStore();

  const std::string& url() const;
  const std::string& name() const;
  bool gave_up() const;  // the store failed and is no longer used
  std::int64_t reused_tokens() const;
  std::int64_t prompt_tokens() const;
  std::uint64_t read_bytes() const;
  // Layers of the prefix that begin() found; empty if it found no prefix.
  const std::vector<cache::LayerDesc>& found_layers() const;
  // Its blobs, named as store::CollectOptions::order_by has them; likewise.
  const std::vector<std::string>& found_blobs() const;
  const store::BackgroundPutReport& stored() const;  // after finish()
  // The same while blocks are being added; left_blocks is not counted.
  store::BackgroundPutReport stored_so_far() const;
  // What finish() saved under the name.
  const std::optional<store::PutReport>& named() const;
  const std::string& warning() const;  // empty: no warning

 private:
  struct State;
  explicit PromptStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// --- The session

struct SessionOptions {
  std::string model = {};  // GGUF file, or Hugging Face folder
  std::string cache = {};  // .tqkv file; empty: start with an empty cache
  std::optional<cache::ConvertOptions> quantization = {};  // of an empty cache; absent: dense f16
  model::SamplerOptions sampling = {};
  unsigned n_threads = 0;  // 0: all processors
  model::Scorer scorer = model::Scorer::kFast;
  model::ActivationBits activations = model::ActivationBits::k16;
  bool map = false;  // map uncompressed sections of the file into memory instead of reading them
  bool verify_digests = false;                    // of the cache: format::ReadOptions
  std::optional<std::int64_t> first_tokens = {};  // of the cache; absent: all
  format::Access access = {};                     // to the cache; its memory also for the model
};

enum class StopReason { kEndToken, kStopString, kLength, kContextFull, kInterrupted, kFailed };

// "end_token", "stop_string", ...
std::string_view stop_word(StopReason reason);

struct Generation {
  std::vector<std::int32_t> ids;  // with the end token
  double seconds = 0;             // from the first token to the last one
  StopReason stop = StopReason::kFailed;
  std::optional<Error> failure;  // with kInterrupted and kFailed
};

// Called with each token except end tokens, as soon as it is chosen. Returning false stops after
// this token, as a stop string does. An error ends the generation, too.
using TokenSink = std::function<Result<bool>(std::int32_t id)>;

// The result of comparing the tokens of a cache with a prompt.
struct PrefixReuse {
  std::int64_t n_before = 0;  // tokens that the cache had
  std::int64_t n_kept = 0;    // tokens that it has now
  std::int64_t n_common = 0;  // length of the common prefix of cache and prompt
  // Why the cache could not be truncated there; empty if it could. n_kept is then the number of
  // tokens of an earlier state, or 0.
  std::string obstacle;
};

class Session {
 public:
  // Loads the model and, if given, the cache, and checks that they belong together.
  // Errors: those of loading and reading, with the file name; kMismatch; kInvalidArgument (a
  //         logit bias for a token that the model lacks).
  static Result<std::unique_ptr<Session>> open(const SessionOptions& options,
                                               const Progress& reading = {});

  // With a loaded model and a cache that was read elsewhere; starts with an empty cache if absent.
  // `options.model`, `cache`, `map`, `verify_digests` and `first_tokens` are not used.
  // Errors: kMismatch, kInvalidArgument, as above.
  static Result<std::unique_ptr<Session>> start(std::unique_ptr<model::Model> model,
                                                std::optional<cache::Cache> cache,
                                                const SessionOptions& options);

  const model::Model& model() const { return *model_; }
  const cache::Cache& cache() const { return cache_; }
  cache::Cache& cache() { return cache_; }
  model::KernelPath kernel_path() const { return model::kernel_path(cache_, scorer_); }

  // Loads the longest prefix of the prompt that the store has, and adds new blocks to the store as
  // the cache grows.
  // Requires: the cache is empty; `store` outlives this.
  // Errors:   as PromptStore::begin().
  Result<void> begin_from(PromptStore& store, std::span<const std::int32_t> prompt,
                          const Progress& progress = {});

  // An earlier state of the same cache, of at most `n_tokens` tokens: a context checkpoint.
  // nullopt: there is none.
  using EarlierState = std::function<Result<std::optional<cache::Cache>>(std::int64_t n_tokens)>;

  // Truncates the cache to its common prefix with the prompt. A cache that cannot be truncated
  // there, because of recurrent state or a sliding window, is replaced by what `earlier` returns,
  // such as the last context checkpoint before, or else by an empty dense one. An earlier state
  // leaves at least one token of the prompt to be computed.
  // Requires: the tokens of the cache are known.
  // Errors:   those of `earlier`.
  Result<PrefixReuse> keep_common_prefix(std::span<const std::int32_t> prompt,
                                         const EarlierState& earlier = {});

  // Truncates the cache. From then on, no blocks are added to the store.
  // Errors: those of cache::check_truncate(); the cache is unchanged then.
  Result<void> truncate(std::int64_t n_tokens);

  // Empties the cache. One that cannot be truncated is replaced by a new one.
  Result<void> clear();

  // Starts a new text: drops the cache and everything learned from it, and leaves the store.
  // Errors: those of making an empty cache.
  Result<void> begin_anew();

  // Replaces the sampling settings. The next generate() draws from the new seed.
  // Errors: kInvalidArgument (a setting out of range; a logit bias for a token that the model
  //         lacks). The settings are unchanged then.
  Result<void> set_sampling(const model::SamplerOptions& sampling);

  // Appends tokens to the cache. Requires: ids not empty.
  Result<void> feed(std::span<const std::int32_t> ids, const Progress& progress = {});

  // Computes the logits of the last token of a cache, to generate from there without a prompt.
  Result<void> resume();

  // Chooses up to `n` tokens, and appends each to the cache before choosing the next. Appends the
  // last one too if `append_last`: a saved cache must hold the whole text.
  //
  // Requires: feed() or resume() came before.
  Generation generate(std::int64_t n, bool append_last, const TokenSink& sink);

  // Bytes of memory that decoding works on: weights, cache, scratch.
  std::uint64_t working_set_bytes() const;

 private:
  Session(std::unique_ptr<model::Model> model, cache::Cache cache, const SessionOptions& options);

  bool is_end_token(std::int32_t id) const;
  Result<void> append(std::int32_t id);
  // Continues after an error that blocks of the store have caused: computes all tokens again,
  // `n_before` tokens of the cache and `ids`. Returns `error` if the store is not the cause.
  Result<void> without_store(Error error, std::int64_t n_before, std::span<const std::int32_t> ids,
                             const Progress& progress);
  std::optional<StopReason> choose(std::int64_t n, const TokenSink& sink, Generation& generation);

  std::unique_ptr<model::Model> model_;
  cache::Cache cache_;
  PromptStore* store_ = nullptr;
  std::optional<cache::Cache> empty_;                  // the cache before begin_from()
  bool from_store_ = false;                            // the cache holds blocks of the store
  std::optional<cache::ConvertOptions> quantization_;  // of an empty cache
  unsigned n_threads_;
  model::Scorer scorer_;
  model::Decoder decoder_;
  model::Sampler sampler_;
  std::vector<std::int32_t> end_tokens_;
  std::span<const float> logits_;  // of the cache's last token, in the decoder's memory
};

// The length of the common prefix.
std::int64_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

// Bytes of memory that decoding works on: weights, cache, scratch.
std::uint64_t working_set_bytes(const model::Model& model, const cache::ByteCount& cache,
                                std::uint64_t scratch_bytes);

// --- Turns of a conversation as token ids, each to be appended to the previous ones
//
// A template writes whole conversations. Here it writes what follows the tokens of a cache: the
// text behind the last answer. So earlier turns keep their tokens, also where a template would
// write them otherwise in a longer conversation, as those that leave out earlier thoughts do.
//
// Only the template's own text becomes special tokens. Messages are always plain text, even if they
// spell <|im_end|>: users cannot close their turn and speak for the model.

using Ids = std::vector<std::int32_t>;

struct ChatOptions {
  bool thinks = true;                            // it may think first, if it supports that
  std::string tools = {};                        // a JSON list in OpenAI's form; empty: none
  std::optional<tokenizer::CivilTime> now = {};  // absent: the template learns no date
};

// A conversation's first messages, with the tokens that they have: the last of the messages is an
// answer, and its tokens are those that the model chose, with the end token if it has one.
struct KnownMessages {
  std::size_t n_messages = 0;
  Ids tokens = {};
};

class ChatTurns {
 public:
  // The chat template: "chatml", or a program in Jinja; empty: the one of the model's files.
  // Requires: `tokenizer` outlives this.
  // Errors:   kUnsupported (there is none, or one with parts that are not supported; the tokenizer
  //           lacks the special tokens of chatml).
  // `keep_going` may be empty; when it returns false, ask() and the like end with kInterrupted.
  static Result<ChatTurns> make(const tokenizer::Tokenizer& tokenizer, std::string_view chosen,
                                std::function<bool()> keep_going = {});

  bool can_avoid_thinking() const { return template_.can_avoid_thinking(); }
  bool takes_tools() const { return tool_template_.takes_tools(); }

  // The tokens to append to `tokens` so that the model answers `text`. `system` is used only if
  // `tokens` is empty.
  // Errors: those of Tokenizer::encode and ChatTemplate::render; kUnsupported (the template does
  //         not write a conversation's earlier answers).
  Result<Ids> ask(std::span<const std::int32_t> tokens, const std::string& system,
                  const std::string& text, const ChatOptions& options) const;

  // The tokens of a whole conversation, so that the model answers next. Messages that are known
  // keep their tokens, because encoding the text of an answer may give others.
  // Errors: those of Tokenizer::encode and ChatTemplate::render.
  Result<Ids> conversation(std::span<const tokenizer::ChatMessage> messages,
                           const ChatOptions& options, KnownMessages known = {}) const;

  // The text of a whole conversation, as conversation() encodes it.
  // Errors: those of ChatTemplate::render.
  Result<std::string> conversation_text(std::span<const tokenizer::ChatMessage> messages,
                                        const ChatOptions& options) const;

  // The tokens of a conversation that has only a system text so far. ask() continues it.
  // Errors: as ask().
  Result<Ids> open_system(const std::string& system, const ChatOptions& options) const;

 private:
  ChatTurns(const tokenizer::Tokenizer& tokenizer, tokenizer::ChatTemplate plain,
            tokenizer::ChatTemplate for_tools, std::function<bool()> keep_going)
      : tokenizer_(&tokenizer),
        template_(std::move(plain)),
        tool_template_(std::move(for_tools)),
        keep_going_(std::move(keep_going)) {}

  // A system text as the template places it before a user's text.
  struct SystemPlace {
    std::string before;  // the text before it
    std::string alone;   // the text behind it, as long as there is no user's text; may be empty
    std::string behind;  // the text between it and the user's
  };

  Result<tokenizer::ChatText> render(std::span<const tokenizer::ChatMessage> messages,
                                     const ChatOptions& options, bool asks,
                                     std::optional<std::size_t> seek = {}) const;
  Result<Ids> encode(const tokenizer::ChatText& text, bool at_beginning) const;
  Result<SystemPlace> find_system_place(const std::string& system, const std::string& text,
                                        const ChatOptions& options) const;
  // Where the text before a message has its first special token, which closes the turn before it,
  // and where that token ends. Nothing, if there is none or if it opens the message's own turn.
  struct Closing {
    std::int32_t id = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  Result<std::optional<Closing>> find_closing(std::string_view text) const;
  bool ends_answer(std::int32_t id) const;
  // What stands between a user's text and the answer, behind the end of the user's turn, without
  // white space: tokenizers differ in the spaces around special tokens.
  Result<std::string> request_mark(const ChatOptions& options) const;
  // ask(), if `tokens` are a system text alone, as open_system() gives them; otherwise nothing.
  Result<std::optional<Ids>> ask_behind_system(std::span<const std::int32_t> tokens,
                                               const std::string& text,
                                               const ChatOptions& options) const;
  // Whether the last answer of `tokens` has no end yet.
  Result<bool> is_open(std::span<const std::int32_t> tokens, const ChatOptions& options) const;
  // `rest`, the template's text behind an answer, as tokens to append to `tokens`.
  Result<Ids> encode_behind(std::span<const std::int32_t> tokens, tokenizer::ChatText rest,
                            const ChatOptions& options) const;

  const tokenizer::Tokenizer* tokenizer_;
  tokenizer::ChatTemplate template_;
  tokenizer::ChatTemplate tool_template_;
  std::function<bool()> keep_going_;
};

// Appends `more` to `ids`.
void append_ids(Ids& ids, const Ids& more);

// The parts of an answer, token by token. gpt-oss writes its answers into channels:
//
//   <|channel|>analysis<|message|>Hm.<|end|>
//   <|start|>assistant<|channel|>commentary to=functions.look_up<|message|>{"a": 1}<|call|>
//   <|start|>assistant<|channel|>final<|message|>Yes.
//
// The final channel is the text, and so is commentary for nobody, which is for the user; commentary
// for a function is a call. Everything else is thoughts. With other vocabularies all is text.
// Source: cookbook.openai.com, "OpenAI harmony response format".
class AnswerParts {
 public:
  enum class Kind : std::uint8_t { kText, kThoughts, kCall };
  struct Piece {
    Kind kind = Kind::kText;
    std::string text = {};
    bool begins = false;  // a message
  };

  // Requires: `tokenizer` outlives this.
  explicit AnswerParts(const tokenizer::Tokenizer& tokenizer);

  bool has_channels() const { return channel_ && message_; }
  Piece add(std::int32_t id);
  // The name of the function that a call is of.
  const std::string& function() const { return function_; }

 private:
  enum class Place : std::uint8_t { kStart, kText, kChannel, kRole };

  Piece begin_message();

  const tokenizer::Tokenizer* tokenizer_;
  std::optional<std::int32_t> start_, channel_, message_, end_, call_;
  Place place_ = Place::kStart;
  Kind kind_ = Kind::kText;
  std::string role_;  // and whom the message is for
  std::string name_;  // of the channel, likewise
  std::string function_;
};

// An answer as it is shown: what is no text is like the thoughts of other models,
// "<think>\nHm.\n</think>\n\nYes.".
class ShownAnswer {
 public:
  // Requires: `tokenizer` outlives this.
  explicit ShownAnswer(const tokenizer::Tokenizer& tokenizer) : parts_(tokenizer) {}

  // What to show of the next token.
  std::string add(std::int32_t id);

 private:
  AnswerParts parts_;
  bool thinks_ = false;
};

// --- Stop strings, found wherever token boundaries lie

// Passes a text on, piece by piece, up to the first stop string. A piece that may begin a stop
// string is held back until this is decided.
class StopFilter {
 public:
  // Requires: no stop string is empty.
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The text that may be shown now.
  std::string add(std::string_view text);

  // The rest of the text: what was held back.
  std::string end();

  // Whether a stop string was found; the filter then passes on no more text.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace tqcache::session
