#include "tqcache/serve/embedded/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <filesystem>
#include <new>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/serve/operations.h"

namespace tqcache::serve {
namespace {

using session::Ids;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxGiven = 256;                         // answers that keep their tokens
constexpr std::size_t kMaxGivenTokens = std::size_t{4} << 20;  // of them, with those before
constexpr std::size_t kShownTextBytes = 200;

// "qwen3-4b.q8_0" of "models/qwen3-4b.q8_0.gguf", and the name of a folder.
std::string id_from_path(const std::string& path) {
  std::filesystem::path name(path);
  if (!name.has_filename()) name = name.parent_path();
  name = name.filename();
  return name.extension() == ".gguf" ? name.stem().string() : name.string();
}

// The text of an answer: whole characters, up to a stop string.
class AnswerText {
 public:
  // `drops_space`: the first one, which the tokenizer has added.
  AnswerText(const std::vector<std::string>& stops, bool drops_space)
      : stops_(stops), filter_(stops), drops_space_(drops_space) {}

  // The text that may be shown now.
  std::string add(std::string_view bytes) {
    if (drops_space_ && bytes.starts_with(' ')) bytes.remove_prefix(1);
    drops_space_ = false;
    const std::string passed = filter_.add(bytes);
    held_ += bytes;
    held_.erase(0, passed.size());
    pending_ += passed;
    return tokenizer::take_whole_characters(pending_);
  }

  // The rest. Half a character at the end becomes U+FFFD.
  std::string end() {
    pending_ += filter_.end();
    std::string rest = tokenizer::take_whole_characters(pending_);
    if (!pending_.empty()) rest += "\xEF\xBF\xBD";
    pending_.clear();
    return rest;
  }

  bool stopped() const { return filter_.stopped(); }
  // The stop string that was found; empty if none was.
  std::string stop_string() const {
    if (!stopped()) return {};
    const auto found = std::ranges::find_if(
        stops_, [&](const std::string& stop) { return held_.starts_with(stop); });
    return found == stops_.end() ? std::string() : *found;
  }

 private:
  const std::vector<std::string>& stops_;
  session::StopFilter filter_;
  bool drops_space_;
  std::string held_;     // what the filter has not passed on
  std::string pending_;  // the first bytes of a character
};

Sha256 digest_of_tools(const std::string& tools) { return sha256(as_bytes(tools)); }

// Of the messages before, and one more.
Sha256 next_digest(const Sha256& before, const tokenizer::ChatMessage& message) {
  Sha256Hasher hasher;
  hasher.update(before);
  const auto add = [&](const std::string& part) {
    hasher.update(as_bytes(std::to_string(part.size()) + " "));
    hasher.update(as_bytes(part));
  };
  add(std::to_string(static_cast<int>(message.role)));
  add(message.text);
  add(message.fields);
  return hasher.finish();
}

tokenizer::CivilTime civil_time(std::time_t seconds) {
  std::tm local = {};
  if (localtime_r(&seconds, &local) == nullptr) return {};
  return {local.tm_year + 1900, local.tm_mon + 1, local.tm_mday,
          local.tm_hour,        local.tm_min,     std::min(local.tm_sec, 59)};
}

}  // namespace

Sha256 conversation_digest(const ChatRequest& request) {
  Sha256 digest = digest_of_tools(request.tools);
  for (const tokenizer::ChatMessage& each : request.messages) digest = next_digest(digest, each);
  return digest;
}

Engine::Engine(EngineOptions options) : options_(std::move(options)), queue_(options_.max_waiting) {
  model_id_ = options_.model_id.empty() ? id_from_path(options_.model) : options_.model_id;
}

Engine::~Engine() { finish_store(); }

Result<std::unique_ptr<Engine>> Engine::open(EngineOptions options) {
  std::unique_ptr<Engine> engine(new Engine(std::move(options)));
  const EngineOptions& its = engine->options_;
  TQC_TRY_ASSIGN(engine->session_, session::Session::open({.model = its.model,
                                                           .quantization = its.quantization,
                                                           .n_threads = its.n_threads,
                                                           .scorer = its.scorer,
                                                           .activations = its.activations,
                                                           .access = {.memory = its.memory}}));
  auto turns = session::ChatTurns::make(engine->model().tokenizer, its.chat_template,
                                        [raw = engine.get()] { return !raw->is_stopping(); });
  if (turns) {
    engine->turns_ = std::move(turns).value();
    const std::string& program = its.chat_template.empty()
                                     ? engine->model().tokenizer.chat_template(true)
                                     : its.chat_template;
    engine->writes_calls_ = program.find("<tool_call>") != std::string::npos;
  } else if (!its.chat_template.empty()) {
    return std::move(turns).error();
  } else {
    engine->no_turns_ = std::move(turns).error();
  }
  std::size_t longest = 1;
  for (std::int32_t id = 0; id < engine->model().tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, engine->model().tokenizer.token_bytes(id).size());
  }
  engine->max_text_bytes_ = std::uint64_t{longest} * to_size(engine->context_length());
  // A wrong URL ends the program at once, not with the first request.
  if (!its.store_url.empty()) {
    TQC_TRY_ASSIGN(const auto store, engine->open_store(""));
    engine->store_name_ = store ? store->url() : "that cannot be reached";
  }
  return engine;
}

Result<std::unique_ptr<session::PromptStore>> Engine::open_store(const std::string& tenant) const {
  session::PromptStoreOptions store;
  store.url = options_.store_url;
  store.salt = tenant;
  store.keys = options_.keys;
  store.credentials = options_.credentials;
  store.memory = options_.memory;
  store.now = [] { return std::int64_t{std::time(nullptr)}; };
  store.read_only = options_.store_read_only;
  store.same_quantization = options_.same_quantization;
  store.n_threads = options_.n_threads;
  store.verify_digests = options_.verify_digests;
  store.on_warning = options_.on_warning;
  return session::PromptStore::open(std::move(store));
}

session::ChatOptions Engine::chat_options(const ChatRequest& request) const {
  const bool avoids = request.thinking == Thinking::kForbidden ||
                      (request.thinking == Thinking::kAvoided && turns_->can_avoid_thinking());
  return {.thinks = !avoids,
          .tools = request.tools,
          .now = options_.date ? *options_.date : civil_time(std::time(nullptr))};
}

Result<Ids> Engine::encode_chat(const ChatRequest& request, const std::string& tenant) const {
  if (!turns_) return *no_turns_;
  session::KnownMessages known;
  Sha256 digest = digest_of_tools(request.tools);
  {
    const std::lock_guard lock(given_mutex_);
    for (std::size_t i = 0; i < request.messages.size() && !given_.empty(); ++i) {
      digest = next_digest(digest, request.messages[i]);
      if (request.messages[i].role != tokenizer::ChatRole::kAssistant) continue;
      for (const GivenAnswer& each : given_) {
        const bool is_same = each.conversation == digest && each.tenant == tenant;
        if (is_same) known = {i + 1, each.tokens};
      }
    }
  }
  return turns_->conversation(request.messages, chat_options(request), std::move(known));
}

Result<std::string> Engine::render_chat(const ChatRequest& request) const {
  if (!turns_) return *no_turns_;
  return turns_->conversation_text(request.messages, chat_options(request));
}

Result<Ids> Engine::encode_text(std::string_view text) const {
  tokenizer::Tokenizer::EncodeOptions options;
  options.ends = tokenizer::Tokenizer::Ends::kBegin;
  options.keep_going = [this] { return !is_stopping(); };
  return model().tokenizer.encode(text, options);
}

// Whole token blocks that the prompt shares with the cache in memory, which can be cut there. The
// rest is then read in the same chunks as without a cache.
std::int64_t Engine::shared_blocks(const GenerationRequest& request) const {
  if (tenant_ != request.tenant) return 0;
  const cache::Cache& cache = session_->cache();
  const auto n_common = std::min<std::int64_t>(session::common_prefix(cache.tokens, request.prompt),
                                               std::ssize(request.prompt) - 1);
  const std::int64_t n = n_common / cache::kTokenBlock * cache::kTokenBlock;
  return n > 0 && cache::check_truncate(cache::describe(cache), n) ? n : 0;
}

// Ends the conversation in memory.
Result<void> Engine::forget_conversation() {
  finish_store();
  entry_ = 0;
  return session_->begin_anew();
}

void Engine::finish_store() {
  if (!store_) return;
  if (const Result<void> finished = store_->finish(session_->cache());
      !finished && options_.on_warning) {
    options_.on_warning("store", finished.error().message);
  }
  ledger().add_bytes(entry_, store_->stored().new_bytes);
  finished_bytes_ += store_->stored().new_bytes;
  current_bytes_ = 0;
  store_.reset();
}

Result<void> Engine::take_from_store(const GenerationRequest& request, const Progress& progress) {
  TQC_TRY_ASSIGN(store_, open_store(request.tenant));
  if (!store_) return {};
  TQC_TRY(session_->begin_from(*store_, request.prompt, progress));
  if (options_.scores != nullptr) {
    options_.scores->hit(store_->found_blobs(), static_cast<double>(std::time(nullptr)));
  }
  return {};
}

// Makes a cache with the longest known prefix of the prompt, and one token less than the prompt at
// most.
Result<void> Engine::take_prefix(const GenerationRequest& request, const Progress& progress,
                                 Answer& answer) {
  const Ids& held = session_->cache().tokens;
  const bool continues = tenant_ == request.tenant && !held.empty() &&
                         held.size() < request.prompt.size() &&
                         std::equal(held.begin(), held.end(), request.prompt.begin());
  if (continues) {
    answer.source = PrefixSource::kMemory;
    return {};
  }
  const std::int64_t n_shared = shared_blocks(request);
  finish_store();
  entry_ = 0;
  cache::Cache in_memory;
  if (n_shared > 0) in_memory = std::move(session_->cache());
  TQC_TRY(session_->begin_anew());
  tenant_ = request.tenant;
  if (has_store()) TQC_TRY(take_from_store(request, progress));
  if (session_->cache().n_tokens() >= std::max<std::int64_t>(n_shared, 1)) {
    answer.source = PrefixSource::kStore;
  } else if (n_shared > 0) {
    // The blocks behind it may not follow those that the store found.
    TQC_TRY(forget_conversation());
    TQC_TRY_ASSIGN(session_->cache(), cache::truncate(std::move(in_memory), n_shared));
    answer.source = PrefixSource::kMemory;
  }
  return {};
}

Result<void> Engine::read_prompt(const GenerationRequest& request, const Progress& progress,
                                 Answer& answer) {
  auto start = Clock::now();
  TQC_TRY(take_prefix(request, progress, answer));
  answer.load_seconds = seconds_since(start);
  answer.cached_tokens = session_->cache().n_tokens();
  start = Clock::now();
  const auto rest = std::span(request.prompt).subspan(to_size(answer.cached_tokens));
  TQC_TRY(session_->feed(rest, progress));
  answer.prompt_seconds = seconds_since(start);
  computed_tokens_ += std::ssize(rest);
  computed_seconds_ += answer.prompt_seconds;
  if (computed_tokens_ > 0) {
    const double each = computed_seconds_ / static_cast<double>(computed_tokens_);
    answer.saved_seconds =
        std::max(0.0, each * static_cast<double>(answer.cached_tokens) - answer.load_seconds);
  }
  return {};
}

void Engine::generate(const GenerationRequest& request, const std::function<bool()>& goes_on,
                      const OnText& on_text, const OnText& on_thought, Answer& answer) {
  using Kind = session::AnswerParts::Kind;
  using Piece = session::AnswerParts::Piece;
  const bool is_chat = request.conversation.has_value();
  AnswerText text(request.stops, is_chat && model().tokenizer.drops_first_space());
  session::AnswerParts parts(model().tokenizer);
  std::optional<ToolCall> called;  // in a channel, until it is complete
  std::string thought;             // the first bytes of a character
  ToolCallReader calls;
  const bool has_calls = request.has_tools && writes_calls_;
  const auto show = [&](std::string piece) {
    if (has_calls) piece = calls.add(piece);
    answer.text += piece;
    return piece.empty() || on_text(piece);
  };
  const auto think = [&](const std::string& bytes) {
    thought += bytes;
    const std::string whole = tokenizer::take_whole_characters(thought);
    answer.thoughts += whole;
    return whole.empty() || !on_thought || on_thought(whole);
  };
  // What is no call stays text.
  const auto end_call = [&] {
    const auto last = std::exchange(called, std::nullopt);
    if (!last) return true;
    auto call = request.has_tools ? make_call(last->name, last->arguments) : std::nullopt;
    if (!call) return show(text.add(last->arguments));
    answer.calls.push_back(std::move(*call));
    return true;
  };
  const auto take = [&](const Piece& piece) {
    if (piece.begins && !end_call()) return false;
    if (piece.kind == Kind::kThoughts) return think(piece.text);
    if (piece.kind == Kind::kText) return show(text.add(piece.text));
    if (piece.begins) called = ToolCall{{}, parts.function(), {}};
    if (called) called->arguments += piece.text;
    return true;
  };
  const session::Generation made =
      session_->generate(request.max_tokens, true, [&](std::int32_t id) -> Result<bool> {
        const bool wanted =
            take(is_chat ? parts.add(id) : Piece{Kind::kText, model().tokenizer.token_bytes(id)});
        if (!wanted || !goes_on()) return interrupted_error();
        return !text.stopped() && !(request.one_call && !calls.calls().empty());
      });
  answer.completion_tokens = std::ssize(made.ids);
  answer.answer_seconds = made.seconds;
  answer.stop = made.stop;
  answer.stop_string = text.stop_string();
  answer.failure = made.failure;
  if (made.failure) return;
  bool is_wanted = end_call() && show(text.end());
  if (const std::string rest = calls.end(); is_wanted && !rest.empty()) {
    answer.text += rest;
    is_wanted = on_text(rest);
  }
  answer.calls.insert(answer.calls.end(), calls.calls().begin(), calls.calls().end());
  if (!is_wanted) {
    answer.stop = session::StopReason::kInterrupted;
    answer.failure = interrupted_error();
    return;
  }
  // What was cut off at a stop string is not in the text.
  if (made.stop != session::StopReason::kStopString) remember(request, answer, made.ids);
}

Answer Engine::answer(const GenerationRequest& request, const std::function<bool()>& goes_on,
                      const OnText& on_text, const OnPrompt& on_prompt, const OnText& on_thought) {
  const std::lock_guard lock(conversation_mutex_);
  Answer answer;
  answer.may_think =
      request.conversation.has_value() && session::AnswerParts(model().tokenizer).has_channels();
  answer.prompt_tokens = std::ssize(request.prompt);
  const auto is_wanted = [&] { return !is_stopping() && goes_on(); };
  const auto progress = [&](std::uint64_t, std::uint64_t) { return is_wanted(); };
  try {
    Result<void> read = session_->set_sampling(request.sampling);
    if (read) read = read_prompt(request, progress, answer);
    if (read && on_prompt && !on_prompt(answer)) read = interrupted_error();
    if (read) {
      generate(request, is_wanted, on_text, on_thought, answer);
    } else {
      answer.failure = std::move(read).error();
      answer.stop = answer.failure->code == ErrorCode::kInterrupted
                        ? session::StopReason::kInterrupted
                        : session::StopReason::kFailed;
    }
  } catch (const std::bad_alloc&) {
    answer.failure = too_large("out of memory");
    answer.stop = session::StopReason::kFailed;
  } catch (const std::exception& error) {
    answer.failure = Error{ErrorCode::kIo, error.what()};
    answer.stop = session::StopReason::kFailed;
  }
  if (answer.stop == session::StopReason::kFailed) {
    // A cache after a failure is valid, but what made it fail may be in it.
    const Result<void> forgotten = forget_conversation();
    if (!forgotten && options_.on_warning) options_.on_warning("engine", forgotten.error().message);
  } else {
    note_in_ledger(request, answer);
  }
  return answer;
}

void Engine::remember(const GenerationRequest& request, const Answer& answer, const Ids& ids) {
  if (!request.conversation) return;
  GivenAnswer given{request.tenant, {}, request.prompt};
  session::append_ids(given.tokens, ids);
  const std::lock_guard lock(given_mutex_);
  // The messages that clients make of the answer: some leave its thoughts out.
  std::vector<std::optional<std::string>> thoughts = {std::nullopt};
  if (!answer.thoughts.empty()) thoughts.emplace_back(answer.thoughts);
  for (const auto& each : thoughts) {
    std::string fields = assistant_fields(!answer.text.empty(), answer.calls, each);
    given.conversation = next_digest(
        *request.conversation, {tokenizer::ChatRole::kAssistant, answer.text, std::move(fields)});
    given_tokens_ += given.tokens.size();
    given_.push_back(given);
  }
  while (given_.size() > kMaxGiven || (given_.size() > 1 && given_tokens_ > kMaxGivenTokens)) {
    given_tokens_ -= given_.front().tokens.size();
    given_.pop_front();
  }
}

void Engine::note_in_ledger(const GenerationRequest& request, const Answer& answer) {
  const cache::Cache& cache = session_->cache();
  if (cache.n_tokens() <= cache::kTokenBlock) return;  // nothing is kept of it
  std::string text;
  if (options_.shows_text) {
    const auto n_first = std::min<std::size_t>(request.prompt.size(), kShownTextBytes);
    text = model().tokenizer.decode(std::span(request.prompt).first(n_first));
    if (text.size() > kShownTextBytes) text.resize(kShownTextBytes);
    std::string whole = tokenizer::take_whole_characters(text);
    text = std::move(whole);
  }
  const PromptOwner owner{request.tenant, model_id_};
  const std::int64_t now = std::time(nullptr);
  if (answer.cached_tokens > 0) {
    ledger().hit(owner, request.prompt, answer.cached_tokens, answer.saved_seconds, now);
  }
  entry_ = ledger().keep(owner, cache.tokens, std::move(text), now);
  note_stored_bytes();
}

void Engine::note_stored_bytes() {
  if (!store_) return;
  current_bytes_ = store_->stored_so_far().new_bytes;
  ledger().set_bytes(entry_, current_bytes_);
}

void Engine::refresh_ledger() {
  const std::unique_lock lock(conversation_mutex_, std::try_to_lock);
  if (lock.owns_lock()) note_stored_bytes();
}

}  // namespace tqcache::serve
