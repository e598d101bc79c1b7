// tools/verbs/cmd_chat.cpp: a conversation, typed or piped, that can be kept as a cache.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/cache_io.h"
#include "cli/chat_turns.h"
#include "cli/cli.h"
#include "cli/form_flags.h"
#include "cli/growing_file.h"
#include "cli/interrupt.h"
#include "cli/line_reader.h"
#include "cli/prompt_store.h"
#include "cli/prompt_store_flags.h"
#include "cli/session.h"
#include "cli/text.h"
#include "cli/text_stream.h"
#include "tqcache/cache/token_hashes.h"
#include "tqcache/cache/truncate.h"

namespace tqcache::cli {
namespace {

constexpr const char* kChatExamples =
    R"(Every line is a turn. A line that begins with / is a command:
  /save [FILE]  keep the conversation so far; without FILE, under --save's name
  /info         tokens and memory in use
  /help         this list
  /quit         end, as does Ctrl-D

How turns are written is the model's: its chat template is recognized (never run),
and --template chooses a form by name.

With --cache the conversation goes on after what the cache holds: another
conversation, or a text. With --save it is kept at the end, also after Ctrl-C.
When that is the file of --cache, it grows in place by what is new, without -f:
whoever reads it at any moment finds the old state or the new one. It is locked
for the whole conversation; a second writer is refused (exit code 11). tqcache
compact drops what such saves leave dead.

With --store (or the variable TQCACHE_STORE) a new conversation begins from what a
store of prompts has of its first turn, as a long --system, and what is new is put
there while it goes on. --store-name keeps all of it at the end.

Examples:
  tqcache chat -m model.gguf
  tqcache chat -m model.gguf --system "Answer in one sentence." --save talk.tqkv
  tqcache chat -m model.gguf --cache talk.tqkv --save talk.tqkv
  tqcache chat -m model.gguf --store dir:prompts --system "Answer in one sentence."
  echo "What is the name of my parrot?" | tqcache chat -m model.gguf --cache talk.tqkv
)";

constexpr std::string_view kCommands = "/save [FILE]  /info  /help  /quit (or Ctrl-D)";

struct ChatFlags {
  SessionOptions session;
  FormFlags form;
  PromptStoreFlags store;
  std::string system;
  std::string chat_template;
  bool no_think = false;
  std::string save;
  std::int64_t n = 512;
  bool no_tokens = false;
  CompressionFlags compression;
  bool force = false;

  // Whether a file of this name is the cache that the conversation goes on from.
  bool is_cache(const std::string& path) const {
    return !session.cache.empty() && same_file(path, session.cache);
  }
  bool grows() const { return !save.empty() && is_cache(save); }
};

Error no_tokens_in_growing_file() {
  return usage_error("--no-tokens: a file that grows shows its tokens as it did before");
}

class Chat {
 public:
  // `growing` is the cache file, if it was opened to grow; `store` may be null.
  Chat(const Console& console, const ChatFlags& flags, Session& session, ChatTurns turns,
       std::optional<GrowingFile>& growing, PromptStore* store)
      : console_(console),
        flags_(flags),
        session_(session),
        turns_(std::move(turns)),
        growing_(growing),
        store_(store) {}

  // Reads and answers until the input ends or the user does.
  Outcome<Done> converse();

  // Keeps the conversation under `path`. The cache that it went on from grows, and a file of this
  // conversation may always be replaced.
  Outcome<Done> save(const std::string& path);

 private:
  Outcome<Done> say(const std::string& text);
  Outcome<Done> read(std::span<const std::int32_t> ids);
  Outcome<Done> answer();
  void command(const std::string& line);
  void command_save(const std::string& argument);
  void greet() const;
  Outcome<Done> grow();

  const Console& console_;
  const ChatFlags& flags_;
  Session& session_;
  ChatTurns turns_;
  std::optional<GrowingFile>& growing_;
  PromptStore* store_;
  LineReader reader_;
  std::vector<std::string> saved_;  // files written by this conversation
  bool quit_ = false;
};

void Chat::greet() const {
  if (!reader_.interactive()) return;
  const std::int64_t n = session_.cache().n_tokens();
  note(console_, fmt::format("{}{}. {}", session_.model().config.name,
                             n > 0 ? fmt::format(", going on after {} tokens",
                                                 grouped(static_cast<std::uint64_t>(n)))
                                   : "",
                             kCommands));
}

Outcome<Done> Chat::converse() {
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
  return Done{};
}

// The first turn may stand in the store, or its beginning.
Outcome<Done> Chat::read(std::span<const std::int32_t> ids) {
  const bool begins = store_ != nullptr && session_.cache().n_tokens() == 0;
  if (begins) TQC_TRY(session_.begin_from(*store_, ids));
  const std::int64_t n_found = begins ? session_.cache().n_tokens() : 0;
  return session_.feed(ids.subspan(static_cast<std::size_t>(n_found)));
}

Outcome<Done> Chat::say(const std::string& text) {
  TQC_TRY_ASSIGN(const Ids ids,
                 turns_.ask(session_.cache().tokens, flags_.system, text, !flags_.no_think));
  const std::int64_t n_before = session_.cache().n_tokens();
  if (Outcome<Done> fed = read(ids); !fed) {
    // Half a turn is of no use to whoever goes on from the saved cache.
    TQC_TRY_ASSIGN(session_.cache(), cache::truncate(std::move(session_.cache()), n_before));
    return fed;
  }
  return answer();
}

Outcome<Done> Chat::answer() {
  TextStream stream(session_.model().tokenizer, flags_.session.sampling.stops, true, true);
  const auto show = [&](std::int32_t id) { return stream.add(id); };
  const Generation generation = session_.generate(flags_.n, true, show);
  if (generation.stop == StopReason::kFailed) return *generation.failure;
  TQC_TRY(stream.end());
  if (generation.failure) return *generation.failure;
  if (generation.stop == StopReason::kLength) {
    note(console_, fmt::format("(cut at {} tokens, see -n)", flags_.n));
  }
  if (generation.stop == StopReason::kContextFull) {
    const std::string message =
        fmt::format("the model's context of {} tokens is full", session_.cache().n_tokens());
    return Failure{Error{ErrorCode::kTooLarge, message}, {}, false};
  }
  return Done{};
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
    note(console_, fmt::format("{} of {} tokens, cache {} ({} with free room), {}",
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
  if (path.empty()) return complain({}, "/save FILE: no name given, here or by --save");
  // A typing mistake should not end a conversation.
  if (const Outcome<Done> done = save(path); !done) report(done.error(), console_.json);
}

Outcome<Done> Chat::grow() {
  if (flags_.no_tokens) return no_tokens_in_growing_file();
  if (!growing_) {
    TQC_TRY_ASSIGN(growing_, GrowingFile::open(flags_.session.cache));
  }
  TQC_TRY_ASSIGN(
      const format::AppendReport report,
      growing_->append(console_, session_.cache(), flags_.compression, flags_.session.n_threads));
  note(console_, append_text(growing_->path(), report));
  return Done{};
}

Outcome<Done> Chat::save(const std::string& path) {
  if (path == "-") return usage_error("/save: standard output is taken by the answers");
  if (flags_.is_cache(path)) return grow();
  const bool own = std::find(saved_.begin(), saved_.end(), path) != saved_.end();
  TQC_TRY_ASSIGN(format::WriteOptions options,
                 write_options(flags_.compression, flags_.session.n_threads, flags_.force || own));
  options.hide_tokens = flags_.no_tokens;
  TQC_TRY_ASSIGN(const std::uint64_t bytes, save_cache(console_, session_.cache(), path, options));
  saved_.push_back(path);
  note(console_,
       fmt::format("{}: {} tokens, {} bytes", path, session_.cache().n_tokens(), grouped(bytes)));
  return Done{};
}

Outcome<Done> check_flags(const ChatFlags& flags) {
  if (flags.session.cache == "-") return usage_error("--cache: standard input is the conversation");
  if (flags.save == "-") return usage_error("--save: standard output is taken by the answers");
  TQC_TRY(write_options(flags.compression, flags.session.n_threads, flags.force));
  TQC_TRY(check_sampling(flags.session.sampling));
  if (!flags.chat_template.empty()) TQC_TRY(tokenizer::ChatTemplate::by_name(flags.chat_template));
  if (flags.form.given() && !flags.session.cache.empty()) {
    return usage_error("--bits and --config say how a new cache is kept, and --cache names one");
  }
  if (flags.grows() && flags.no_tokens) return no_tokens_in_growing_file();
  if (!flags.save.empty() && !flags.grows()) TQC_TRY(check_output(flags.save, flags.force));
  return Done{};
}

Outcome<std::unique_ptr<PromptStore>> open_store(const Console& console, const ChatFlags& flags) {
  std::string_view obstacle;
  if (!flags.session.cache.empty()) obstacle = "a session begins from a store or from --cache";
  if (flags.no_tokens) obstacle = "a store shows the tokens that --no-tokens hides";
  TQC_TRY_ASSIGN(const std::optional<PromptStoreChoice> choice,
                 choose_prompt_store(flags.store, obstacle));
  if (!choice) return std::unique_ptr<PromptStore>();
  return PromptStore::open(console, {.choice = *choice,
                                     .own_form = flags.form.given(),
                                     .replace_name = flags.force,
                                     .n_threads = flags.session.n_threads});
}

// Whether a conversation can go on from the cache.
Outcome<Done> check_cache(const ChatFlags& flags, const cache::Cache& cache) {
  if (!cache::tokens_known(cache)) {
    return Failure{Error{ErrorCode::kUnsupported,
                         "the tokens are hidden: tqcache generate goes on from it when it is given "
                         "the whole prompt"},
                   flags.session.cache, false};
  }
  if (!flags.system.empty() && cache.n_tokens() > 0) {
    return usage_error("--system: the cache already holds the beginning of the conversation");
  }
  return Done{};
}

Outcome<ChatTurns> choose_turns(const ChatFlags& flags, const tokenizer::Tokenizer& tokenizer) {
  auto turns = ChatTurns::make(tokenizer, flags.chat_template);
  if (turns) return std::move(turns).value();
  Error error = std::move(turns).error();
  if (flags.chat_template.empty()) error.message += " (--template NAME)";
  return Failure{std::move(error), flags.session.model, false};
}

Outcome<ExitCode> run(const Console& console, ChatFlags& flags) {
  TQC_TRY(check_flags(flags));
  TQC_TRY_ASSIGN(flags.session.form, form_of(flags.form));
  TQC_TRY_ASSIGN(const std::unique_ptr<PromptStore> store, open_store(console, flags));
  std::optional<GrowingFile> growing;
  if (flags.grows()) {
    TQC_TRY_ASSIGN(growing, GrowingFile::open(flags.session.cache));
  }
  TQC_TRY_ASSIGN(const std::unique_ptr<Session> session,
                 Session::open(console, flags.session, growing ? &*growing : nullptr));
  TQC_TRY(check_cache(flags, session->cache()));
  TQC_TRY_ASSIGN(ChatTurns turns, choose_turns(flags, session->model().tokenizer));
  Chat chat(console, flags, *session, std::move(turns), growing, store.get());
  const Outcome<Done> conversed = chat.converse();
  acknowledge_interrupt();  // or it would end the saving too
  if (!flags.save.empty() && session->cache().n_tokens() > 0) TQC_TRY(chat.save(flags.save));
  if (store) TQC_TRY(store->finish(session->cache()));
  if (!conversed) return conversed.error();
  return ExitCode::kDone;
}

}  // namespace

Action define_chat(CLI::App& app) {
  const auto flags = std::make_shared<ChatFlags>();
  add_model_flag(app, flags->session.model, true);
  app.add_option("-c,--cache", flags->session.cache, "Cache file to go on from")
      ->type_name("FILE")
      ->check(file_name());
  app.add_option("--system", flags->system, "System turn that begins a new conversation")
      ->type_name("TEXT");
  app.add_option("-n,--max-new-tokens", flags->n, "Tokens of an answer at most")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  app.add_option("--template", flags->chat_template,
                 "How turns are written, instead of as the model's own template says: " +
                     tokenizer::ChatTemplate::names())
      ->type_name("NAME");
  app.add_flag("--no-think", flags->no_think,
               "Have a model that thinks before it answers not do so (Qwen3)");
  add_sampling_flags(app, flags->session.sampling);
  add_form_flags(app, flags->form);
  add_prompt_store_flags(app, flags->store, StoreNames::kWithName);
  app.add_option("--save", flags->save, "Keep the conversation in this file at the end")
      ->type_name("FILE")
      ->check(file_name());
  add_no_tokens_flag(app, flags->no_tokens);
  add_compression_flags(app, flags->compression, "zstd");
  add_threads_flag(app, flags->session.n_threads);
  add_scorer_flag(app, flags->session.scorer);
  add_map_flag(app, flags->session.map);
  add_force_flag(app, flags->force);
  app.footer(kChatExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
