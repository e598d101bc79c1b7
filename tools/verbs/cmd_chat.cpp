// tools/verbs/cmd_chat.cpp: a conversation, typed or piped, that can be saved as a cache.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/cache_io.h"
#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "cli/line_reader.h"
#include "cli/session_flags.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "tqcache/cache.h"
#include "tqcache/session.h"

namespace tqcache::cli {
namespace {

constexpr const char* kChatExamples =
    R"(Each line is one turn. Lines that begin with / are commands:
  /save [FILE]  save the conversation; without FILE, under the name of --save
  /info         show tokens and memory in use
  /help         show this list
  /quit         end the chat, as Ctrl-D does

The chat template of the model is recognized, not executed. --template overrides it.

--cache resumes a saved conversation, or any other cache. --save writes the conversation when the
chat ends, also after Ctrl-C. If both name the same file, new tokens are appended in place: no -f is
needed, and readers always see a consistent state. The file is locked for the whole chat; a second
writer is refused (exit code 11). tqcache compact reclaims the space that appending leaves dead.

With --store (or the variable TQCACHE_STORE) a new conversation reuses what the store has of the
first turn, for example a long --system text, and adds new blocks to the store as it goes.
--store-name saves the whole conversation under a name at the end.

Examples:
  tqcache chat -m model.gguf
  tqcache chat -m model.gguf --system "Answer in one sentence." --save talk.tqkv
  tqcache chat -m model.gguf --cache talk.tqkv --save talk.tqkv
  tqcache chat -m model.gguf --store dir:prompts --system "Answer in one sentence."
  echo "What is the name of my parrot?" | tqcache chat -m model.gguf --cache talk.tqkv
)";

constexpr std::string_view kCommands = "/save [FILE]  /info  /help  /quit (or Ctrl-D)";

struct ChatFlags : SessionFlags {
  std::string system;
  std::string chat_template;
  bool no_think = false;
  std::string save;
  std::int64_t n = 512;

  // Whether a path names the cache that the conversation resumes.
  bool is_cache(const std::string& path) const {
    return !options.cache.empty() && same_file(path, options.cache);
  }
  bool grows() const { return !save.empty() && is_cache(save); }
};

Error no_tokens_in_growing_file() {
  return usage_error("--no-tokens: appending cannot hide the tokens of an existing file");
}

class Chat {
 public:
  // `growing` is the cache file, if it is open for appending; `store` may be null.
  Chat(const Console& console, const ChatFlags& flags, session::Session& session,
       session::ChatTurns turns, std::optional<GrowingFile>& growing, session::PromptStore* store)
      : console_(console),
        flags_(flags),
        session_(session),
        turns_(std::move(turns)),
        growing_(growing),
        store_(store) {}

  // Reads and answers until the input ends or the user quits.
  Result<void> converse();

  // Saves the conversation under `path`. The resumed cache file is extended, and a file that this
  // conversation wrote may always be replaced.
  Result<void> save(const std::string& path);

 private:
  Result<void> say(const std::string& text);
  Result<void> read(std::vector<std::int32_t> ids);
  Result<void> answer();
  void command(const std::string& line);
  void command_save(const std::string& argument);
  void greet() const;
  Result<void> grow();

  const Console& console_;
  const ChatFlags& flags_;
  session::Session& session_;
  session::ChatTurns turns_;
  std::optional<GrowingFile>& growing_;
  session::PromptStore* store_;
  LineReader reader_;
  std::vector<std::string> saved_;  // files written by this conversation
  bool quit_ = false;
};

void Chat::greet() const {
  if (!reader_.interactive()) return;
  const std::int64_t n = session_.cache().n_tokens();
  note(console_, fmt::format("{}{}. {}", session_.model().config.name,
                             n > 0 ? fmt::format(", resuming after {} tokens",
                                                 grouped(static_cast<std::uint64_t>(n)))
                                   : "",
                             kCommands));
}

Result<void> Chat::converse() {
  greet();
  while (!quit_) {
    TQC_TRY_ASSIGN(const std::optional<std::string> line, reader_.next());
    if (!line) break;
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line->starts_with('/')) {
      command(*line);
    } else {
      TQC_TRY(say(*line));
    }
  }
  return {};
}

// The store may have a prefix of the first turn.
Result<void> Chat::read(std::vector<std::int32_t> ids) {
  if (store_ != nullptr && session_.cache().n_tokens() == 0) {
    TQC_TRY(begin_from(console_, *store_, session_, ids));
  }
  return feed(console_, session_, ids);
}

Result<void> Chat::say(const std::string& text) {
  TQC_TRY_ASSIGN(std::vector<std::int32_t> ids,
                 turns_.ask(session_.cache().tokens, flags_.system, text, !flags_.no_think));
  const std::int64_t n_before = session_.cache().n_tokens();
  if (Result<void> fed = read(std::move(ids)); !fed) {
    // Half a turn would spoil the saved cache.
    TQC_TRY_ASSIGN(session_.cache(), cache::truncate(std::move(session_.cache()), n_before));
    return fed;
  }
  return answer();
}

Result<void> Chat::answer() {
  TextStream stream(session_.model().tokenizer, flags_.sampling.stops, true, true);
  const auto show = until_interrupted([&](std::int32_t id) { return stream.add(id); });
  const session::Generation generation = session_.generate(flags_.n, true, show);
  if (generation.stop == session::StopReason::kFailed) return *generation.failure;
  TQC_TRY(stream.end());
  if (generation.failure) return *generation.failure;
  if (generation.stop == session::StopReason::kLength) {
    note(console_, fmt::format("(stopped after {} tokens, see -n)", flags_.n));
  }
  if (generation.stop == session::StopReason::kContextFull) {
    const std::string message =
        fmt::format("the context of the model ({} tokens) is full", session_.cache().n_tokens());
    return Error{ErrorCode::kTooLarge, message};
  }
  return {};
}

void Chat::command(const std::string& line) {
  const std::string word = line.substr(0, line.find_first_of(" \t\r"));
  const std::size_t rest = line.find_first_not_of(" \t\r", word.size());
  std::string argument = rest == std::string::npos ? "" : line.substr(rest);
  argument.erase(argument.find_last_not_of(" \t\r") + 1);
  if (word == "/quit") {
    quit_ = true;
  } else if (word == "/save") {
    command_save(argument);
  } else if (word == "/info") {
    const cache::ByteCount bytes = cache::byte_count(session_.cache());
    note(console_, fmt::format("{} of {} tokens, cache {} ({} allocated), scoring: {}",
                               session_.cache().n_tokens(), session_.model().config.context_length,
                               human_bytes(bytes.used), human_bytes(bytes.allocated),
                               session_.kernel_path().step));
  } else if (word == "/help") {
    note(console_, kCommands);
  } else {
    complain({}, fmt::format("unknown command {}; {}", word, kCommands));
  }
}

void Chat::command_save(const std::string& argument) {
  const std::string path = argument.empty() ? flags_.save : argument;
  if (path.empty()) return complain({}, "/save needs a file name, here or in --save");
  // A typing mistake must not end a conversation.
  if (const Result<void> done = save(path); !done) report(done.error(), console_.json);
}

Result<void> Chat::grow() {
  if (flags_.no_tokens) return no_tokens_in_growing_file();
  if (!growing_) {
    TQC_TRY_ASSIGN(growing_, GrowingFile::open(flags_.options.cache));
  }
  TQC_TRY_ASSIGN(
      const format::AppendReport report,
      growing_->append(console_, session_.cache(), flags_.compression, flags_.options.n_threads));
  note(console_, append_text(growing_->path(), report));
  return {};
}

Result<void> Chat::save(const std::string& path) {
  if (path == "-") return usage_error("/save: standard output is used for the answers");
  if (flags_.is_cache(path)) return grow();
  const bool own = std::find(saved_.begin(), saved_.end(), path) != saved_.end();
  TQC_TRY_ASSIGN(format::WriteOptions options,
                 write_options(flags_.compression, flags_.options.n_threads, flags_.force || own));
  options.hide_tokens = flags_.no_tokens;
  TQC_TRY_ASSIGN(const std::uint64_t bytes, save_cache(console_, session_.cache(), path, options));
  saved_.push_back(path);
  note(console_,
       fmt::format("{}: {} tokens, {} bytes", path, session_.cache().n_tokens(), grouped(bytes)));
  return {};
}

Result<void> check_flags(const ChatFlags& flags) {
  if (flags.options.cache == "-")
    return usage_error("--cache: standard input is used for the conversation");
  if (flags.save == "-") return usage_error("--save: standard output is used for the answers");
  if (!flags.chat_template.empty()) TQC_TRY(tokenizer::ChatTemplate::by_name(flags.chat_template));
  if (flags.grows() && flags.no_tokens) return no_tokens_in_growing_file();
  if (!flags.save.empty() && !flags.grows()) TQC_TRY(check_output(flags.save, flags.force));
  return {};
}

// Whether a conversation can resume from the cache.
Result<void> check_cache(const ChatFlags& flags, const cache::Cache& cache) {
  if (!cache::tokens_known(cache)) {
    return Error{ErrorCode::kUnsupported,
                 "the tokens are hidden: use tqcache generate with "
                 "the whole prompt",
                 flags.options.cache};
  }
  if (!flags.system.empty() && cache.n_tokens() > 0) {
    return usage_error("--system: the conversation in the cache has already started");
  }
  return {};
}

Result<session::ChatTurns> choose_turns(const ChatFlags& flags,
                                        const tokenizer::Tokenizer& tokenizer) {
  auto turns = session::ChatTurns::make(tokenizer, flags.chat_template);
  if (turns) return std::move(turns).value();
  Error error = std::move(turns).error();
  if (flags.chat_template.empty()) error.message += " (--template NAME)";
  return in_file(flags.options.model, std::move(error));
}

Result<ExitCode> run(const Console& console, ChatFlags& flags) {
  TQC_TRY(check_flags(flags));
  TQC_TRY(finish_session_flags(flags));
  TQC_TRY_ASSIGN(const std::unique_ptr<session::PromptStore> store,
                 open_prompt_store(flags, flags.form.given()));
  std::optional<GrowingFile> growing;
  if (flags.grows()) {
    TQC_TRY_ASSIGN(growing, GrowingFile::open(flags.options.cache));
  }
  TQC_TRY_ASSIGN(const std::unique_ptr<session::Session> session,
                 open_session(console, flags, growing ? &*growing : nullptr));
  TQC_TRY(check_cache(flags, session->cache()));
  TQC_TRY_ASSIGN(session::ChatTurns turns, choose_turns(flags, session->model().tokenizer));
  Chat chat(console, flags, *session, std::move(turns), growing, store.get());
  const Result<void> conversed = chat.converse();
  const bool was_interrupted = interrupted();
  acknowledge_interrupt();  // otherwise it would end the saving, too
  if (!flags.save.empty() && session->cache().n_tokens() > 0) TQC_TRY(chat.save(flags.save));
  TQC_TRY(finish_store(console, store.get(), session->cache(), was_interrupted));
  if (!conversed) return conversed.error();
  return ExitCode::kDone;
}

}  // namespace

Action define_chat(FlagSet& app) {
  const auto flags = std::make_shared<ChatFlags>();
  add_model_flag(app, flags->options.model, true);
  app.add("-c,--cache", flags->options.cache, "Cache file to resume")->type_name("FILE")->file();
  app.add("--system", flags->system, "System message of a new conversation")->type_name("TEXT");
  app.add("-n,--max-new-tokens", flags->n, "Maximum number of tokens per answer")
      ->type_name("N")
      ->at_least(1)
      ->show_default();
  app.add("--template", flags->chat_template,
          "Chat template to use instead of the one in the model: " +
              tokenizer::ChatTemplate::names())
      ->type_name("NAME");
  app.add("--no-think", flags->no_think,
          "Tell a reasoning model (Qwen3) to answer without thinking first");
  app.add("--save", flags->save, "Save the conversation to this file when the chat ends")
      ->type_name("FILE")
      ->file();
  add_session_flags(app, *flags);
  app.footer(kChatExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
