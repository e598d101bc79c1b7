// tools/verbs/cmd_chat.cpp: a conversation, typed or piped, that can be saved as a cache.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "cli/cache_io.h"
#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "cli/line_reader.h"
#include "cli/prompt.h"
#include "cli/session_flags.h"
#include "cli/store_flags.h"
#include "cli/template_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "tqcache/cache.h"
#include "tqcache/session.h"

namespace tqcache::cli {
namespace {

// Shown by --help and by /help.
#define TQC_CHAT_COMMANDS                                                           \
  "  /save [FILE]  save the conversation; without FILE, under the name of --save\n" \
  "  /retry        answer the last turn again\n"                                    \
  "  /undo         take back the last turn and its answer\n"                        \
  "  /clear        forget the conversation, except for the system text\n"           \
  "  /info         show tokens, memory in use and the speed of the last turn\n"     \
  "  /help         show this list\n"                                                \
  "  /quit         end the chat, as Ctrl-D does\n"

constexpr const char* kChatExamples =
    R"(Each line is one turn. A line that ends with a backslash continues on the next one, a text between
""" and """ may have several lines, and text pasted into a terminal is one turn. Lines that begin
with / are commands; a space before the / makes them text:
)" TQC_CHAT_COMMANDS R"(
Ctrl-C ends an answer or the reading of a turn, and the prompt returns; at an empty prompt it ends
the chat. A turn that was not read to its end is not part of the conversation.

The chat template of the model's files is run for each turn, and only what it writes behind the last
answer is read: earlier turns stay as they are. --template overrides it with another one, a file in
Jinja or chatml. Some templates write the date of today, so that a conversation begins otherwise
tomorrow and finds nothing in a store; --date keeps one.

--cache resumes a saved conversation, or any other cache. --save writes the conversation when the
chat ends, also after Ctrl-C. If both name the same file, new tokens are appended in place: no -f is
needed, and readers always see a consistent state. The file is locked for the whole chat; a second
writer is refused (exit code 11). tqcache compact reclaims the space that appending leaves dead.

A long system text needs to be read only once: without any turn, --save keeps it alone, and later
chats begin with --cache in place of --system.

With --store (or the variable TQCACHE_STORE) a new conversation reuses what the store has of the
first turn, for example a long --system text, and adds new blocks to the store as it goes.
--store-name saves the whole conversation under a name at the end.

Small models that always take the most probable token soon repeat themselves, so chat samples; the
same --seed gives the same conversation. --temperature 0 is the default of tqcache generate.

Examples:
  tqcache chat -m model.gguf
  tqcache chat -m model.gguf --system "Answer in one sentence." --save talk.tqkv
  tqcache chat -m model.gguf --cache talk.tqkv --save talk.tqkv
  tqcache chat -m model.gguf --store dir:prompts --system "Answer in one sentence."
  tqcache chat -m model.gguf --system-file rules.txt --save rules.tqkv < /dev/null
  tqcache chat -m model.gguf --cache rules.tqkv
  echo "What is the name of my parrot?" | tqcache chat -m model.gguf --cache talk.tqkv
)";

constexpr std::string_view kHelp = TQC_CHAT_COMMANDS
    "A line that ends with \\ continues on the next one, a text between \"\"\" and \"\"\" may "
    "have\n"
    "several lines, and pasted text is one turn. Ctrl-C stops an answer.\n";

constexpr std::uint64_t kMaxSystemBytes = std::uint64_t{64} << 20;

struct ChatFlags : SessionFlags {
  // The defaults of llama.cpp's chat.
  ChatFlags() {
    sampling.options.temperature = 0.8f;
    sampling.options.top_k = 40;
    sampling.options.top_p = 0.95f;
    sampling.options.min_p = 0.05f;
  }

  std::string system;
  std::string system_file;
  TemplateFlags templates;
  session::ChatOptions chat;
  std::string program;  // of --template: as of session::ChatTurns::make()
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
        store_(store),
        n_kept_(session.cache().n_tokens()),
        n_fixed_(flags.grows() ? n_kept_ : 0) {}

  // Reads and answers until the input ends or the user quits.
  Result<void> converse();

  // Saves the conversation under `path`. The resumed cache file is extended, and a file that this
  // conversation wrote may always be replaced.
  Result<void> save(const std::string& path);

  // Saves what --save asks for, and reports if that is nothing.
  Result<void> save_at_end();

  // Removes the tokens of a turn that was not read to its end.
  Result<void> drop_unfinished();

  // Reads the system text, if the conversation has not started: it can be saved alone, and other
  // conversations begin with it.
  Result<void> read_system();

 private:
  // A turn of this chat.
  struct Turn {
    std::int64_t n_before;  // tokens before it
    std::string text;
  };
  struct Speed {
    std::int64_t n_read = 0;
    double read_seconds = 0;
    std::int64_t n_written = 0;
    double write_seconds = 0;
  };

  Result<void> say(const std::string& text);
  Result<std::int64_t> keep_common(std::vector<std::int32_t>& ids);
  Result<void> read(std::vector<std::int32_t> ids);
  Result<void> answer();
  Result<void> undo();
  Result<void> retry();
  Result<void> clear();
  Result<void> command(const std::string& line);
  void tell() const;
  void greet() const;
  Result<void> grow();
  // Ctrl-C at a terminal ends what is being done, not the chat.
  bool only_stops(const Error& error) const {
    return error.code == ErrorCode::kInterrupted && reader_.interactive() && !terminated();
  }
  // Neither a typing mistake nor a full context ends a conversation of a person.
  bool survives(const Error& error, bool is_command) const {
    if (error.code == ErrorCode::kInterrupted) return only_stops(error);
    return is_command || (reader_.interactive() && error.code != ErrorCode::kIo);
  }
  std::int64_t context() const { return session_.model().config.context_length; }
  Error context_full(std::int64_t n_needed) const;
  Result<void> check_going_back(std::int64_t n_tokens) const;

  const Console& console_;
  const ChatFlags& flags_;
  session::Session& session_;
  session::ChatTurns turns_;
  std::optional<GrowingFile>& growing_;
  session::PromptStore* store_;
  LineReader reader_;
  std::vector<std::string> saved_;  // files written by this conversation
  std::vector<Turn> said_;
  std::int64_t n_kept_;   // tokens of the conversation; the cache may hold more, of a turn that was
                          // not read to its end, because the next turn may begin alike
  std::int64_t n_fixed_;  // tokens that are in the file that grows, and cannot be taken back
  Speed speed_;
  bool quit_ = false;
};

void Chat::greet() const {
  if (!reader_.interactive()) return;
  note(console_, fmt::format("{}{}. Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists "
                             "commands.",
                             session_.model().config.name,
                             n_kept_ > 0 ? fmt::format(", resuming after {} tokens",
                                                       grouped(static_cast<std::uint64_t>(n_kept_)))
                                         : ""));
}

Result<void> Chat::converse() {
  greet();
  while (!quit_) {
    TQC_TRY_ASSIGN(std::optional<std::string> turn, reader_.next_turn());
    if (!turn) break;
    const std::size_t begin = turn->find_first_not_of(" \t\r\n");
    if (begin == std::string::npos) continue;
    const bool is_command = turn->starts_with('/') && turn->find('\n') == std::string::npos;
    // A space makes text of what would be a command.
    if (turn->starts_with(' ') && (*turn)[begin] == '/') turn->erase(0, begin);
    const Result<void> done = is_command ? command(*turn) : say(*turn);
    if (done) continue;
    if (!survives(done.error(), is_command)) return done;
    if (done.error().code == ErrorCode::kInterrupted) acknowledge_interrupt();
    report(done.error(), console_.json);
  }
  return {};
}

// The store may have a prefix of the first turn.
Result<void> Chat::read(std::vector<std::int32_t> ids) {
  const auto start = std::chrono::steady_clock::now();
  const auto n_before = session_.cache().n_tokens();
  if (store_ != nullptr && n_before == 0) TQC_TRY(begin_from(console_, *store_, session_, ids));
  TQC_TRY(feed(console_, session_, ids));
  n_kept_ = session_.cache().n_tokens();
  speed_ = {};
  speed_.n_read = std::ssize(ids);
  speed_.read_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {};
}

Error Chat::context_full(std::int64_t n_needed) const {
  return {ErrorCode::kTooLarge,
          fmt::format("the context of the model is full: this turn needs {} tokens, {} of {} are "
                      "free; /undo takes back a turn, /clear begins anew",
                      grouped(static_cast<std::uint64_t>(n_needed)),
                      grouped(static_cast<std::uint64_t>(context() - n_kept_)),
                      grouped(static_cast<std::uint64_t>(context())))};
}

// Of a turn that was not read to its end, the cache keeps what `ids` begin with, which is taken off
// them: with the same system text that is most of it. Returns the number of tokens kept.
Result<std::int64_t> Chat::keep_common(std::vector<std::int32_t>& ids) {
  const auto unfinished =
      std::span(session_.cache().tokens).subspan(static_cast<std::size_t>(n_kept_));
  const std::int64_t n_common =
      std::min<std::int64_t>(session::common_prefix(unfinished, ids), std::ssize(ids) - 1);
  if (n_common < std::ssize(unfinished)) {
    TQC_TRY(n_kept_ + n_common == 0 ? session_.clear() : session_.truncate(n_kept_ + n_common));
  }
  ids.erase(ids.begin(), ids.begin() + n_common);
  return n_common;
}

Result<void> Chat::say(const std::string& text) {
  const auto kept = std::span(session_.cache().tokens).first(static_cast<std::size_t>(n_kept_));
  TQC_TRY_ASSIGN(std::vector<std::int32_t> ids, turns_.ask(kept, flags_.system, text, flags_.chat));
  const tokenizer::Tokenizer& tokenizer = session_.model().tokenizer;
  if (kept.empty()) warn_if_left_out(tokenizer, "--system", flags_.system);
  warn_if_left_out(tokenizer, "this turn", text);
  const Turn turn{n_kept_, text};
  if (n_kept_ + std::ssize(ids) > context()) return context_full(std::ssize(ids));
  TQC_TRY_ASSIGN(const std::int64_t n_common, keep_common(ids));
  const std::int64_t n_all = n_kept_ + n_common + std::ssize(ids);
  if (Result<void> fed = read(std::move(ids)); !fed) {
    const std::int64_t n_read = session_.cache().n_tokens();
    if (fed.error().code != ErrorCode::kInterrupted) return fed;
    const bool can_go_back =
        static_cast<bool>(cache::check_truncate(cache::describe(session_.cache()), n_kept_));
    note(console_, fmt::format("interrupted: {} of {} tokens of the conversation were read; {}",
                               grouped(static_cast<std::uint64_t>(n_read)),
                               grouped(static_cast<std::uint64_t>(n_all)),
                               can_go_back ? "this turn is not part of it"
                                           : "this model cannot forget what it has read of the "
                                             "turn"));
    if (!can_go_back) n_kept_ = n_read;
    if (!only_stops(fed.error())) return fed;
    acknowledge_interrupt();
    return {};
  }
  said_.push_back(turn);
  return answer();
}

Result<void> Chat::answer() {
  TextStream stream(session_.model().tokenizer, flags_.sampling.stops, true, true);
  const auto show = until_interrupted([&](std::int32_t id) { return stream.add(id); });
  const session::Generation generation = session_.generate(flags_.n, true, show);
  n_kept_ = session_.cache().n_tokens();
  speed_.n_written = std::ssize(generation.ids);
  speed_.write_seconds = generation.seconds;
  if (generation.stop == session::StopReason::kFailed) return *generation.failure;
  TQC_TRY(stream.end());
  if (generation.failure) {
    if (!only_stops(*generation.failure)) return *generation.failure;
    acknowledge_interrupt();
    note(console_, "(stopped; /retry answers again, /undo takes the turn back)");
  }
  if (generation.stop == session::StopReason::kLength) {
    note(console_, fmt::format("(stopped after {}, see -n)", counted(flags_.n, "token")));
  }
  if (generation.stop == session::StopReason::kContextFull) {
    return Error{ErrorCode::kTooLarge,
                 fmt::format("the context of the model, {} tokens, is full; /undo takes back a "
                             "turn, /clear begins anew",
                             grouped(static_cast<std::uint64_t>(context())))};
  }
  return {};
}

Result<void> Chat::drop_unfinished() {
  if (session_.cache().n_tokens() == n_kept_) return {};
  return n_kept_ == 0 ? session_.clear() : session_.truncate(n_kept_);
}

Result<void> Chat::read_system() {
  if (n_kept_ > 0 || flags_.system.empty()) return {};
  TQC_TRY_ASSIGN(std::vector<std::int32_t> ids, turns_.open_system(flags_.system, flags_.chat));
  if (std::ssize(ids) > context()) return context_full(std::ssize(ids));
  TQC_TRY_ASSIGN(const std::int64_t n_common, keep_common(ids));
  if (reader_.interactive()) {
    note(console_, fmt::format("reading the system text, to save it: {} of {} tokens are left; "
                               "Ctrl-C leaves it out",
                               grouped(ids.size()),
                               grouped(ids.size() + static_cast<std::size_t>(n_common))));
  }
  return read(std::move(ids));
}

Result<void> Chat::check_going_back(std::int64_t n_tokens) const {
  if (n_tokens < n_fixed_) {
    return usage_error(
        fmt::format("{} has this already, and appending cannot shorten a file; to "
                    "do without it, start a chat with another --save",
                    flags_.options.cache));
  }
  return {};
}

Result<void> Chat::undo() {
  if (said_.empty()) return usage_error("this chat has no turn to take back");
  const std::int64_t n_before = said_.back().n_before;
  TQC_TRY(check_going_back(n_before));
  TQC_TRY(n_before == 0 ? session_.clear() : session_.truncate(n_before));
  n_kept_ = n_before;
  said_.pop_back();
  return {};
}

Result<void> Chat::retry() {
  if (said_.empty()) return usage_error("this chat has no turn to answer again");
  const std::string text = said_.back().text;
  TQC_TRY(undo());
  return say(text);
}

Result<void> Chat::clear() {
  TQC_TRY(check_going_back(0));
  if (flags_.system.empty() && n_kept_ > 0 && said_.empty()) {
    note(console_, "the tokens of --cache are forgotten, too");
  }
  TQC_TRY(session_.clear());
  n_kept_ = 0;
  said_.clear();
  return {};
}

// "34 tokens read (120/s), 100 tokens written (30/s)"
void Chat::tell() const {
  const cache::ByteCount bytes = cache::byte_count(session_.cache());
  note(console_,
       fmt::format("{} of {} tokens, cache {} ({} allocated), scoring: {}",
                   grouped(static_cast<std::uint64_t>(n_kept_)),
                   grouped(static_cast<std::uint64_t>(context())), human_bytes(bytes.used),
                   human_bytes(bytes.allocated), session_.kernel_path().step));
  const auto rate = [](std::int64_t n, double seconds) {
    if (n < 1 || seconds <= 0) return std::string();
    return fmt::format(" ({:.0f}/s)", static_cast<double>(n) / seconds);
  };
  if (speed_.n_read + speed_.n_written == 0) return;
  note(console_,
       fmt::format("last turn: {} read{}, {} written{}", counted(speed_.n_read, "token"),
                   rate(speed_.n_read, speed_.read_seconds), counted(speed_.n_written, "token"),
                   rate(speed_.n_written - 1, speed_.write_seconds)));
}

Result<void> Chat::command(const std::string& line) {
  const std::string word = line.substr(0, line.find_first_of(" \t\r"));
  const std::size_t rest = line.find_first_not_of(" \t\r", word.size());
  std::string argument = rest == std::string::npos ? "" : line.substr(rest);
  argument.erase(argument.find_last_not_of(" \t\r") + 1);
  if (word == "/save") {
    const std::string path = argument.empty() ? flags_.save : argument;
    if (path.empty()) return usage_error("/save needs a file name, here or in --save");
    TQC_TRY(read_system());
    return save(path);
  }
  if (word == "/quit") {
    quit_ = true;
  } else if (word == "/retry") {
    return retry();
  } else if (word == "/undo") {
    TQC_TRY(undo());
    note(console_,
         fmt::format("taken back; {} of this chat left", counted(std::ssize(said_), "turn")));
  } else if (word == "/clear") {
    return clear();
  } else if (word == "/info") {
    tell();
  } else if (word == "/help") {
    for (std::size_t at = 0; at < kHelp.size(); at = kHelp.find('\n', at) + 1) {
      note(console_, kHelp.substr(at, kHelp.find('\n', at) - at));
    }
  } else {
    return usage_error(
        fmt::format("unknown command {}, see /help; a space before the / makes it text", word));
  }
  return {};
}

Result<void> Chat::grow() {
  if (flags_.no_tokens) return no_tokens_in_growing_file();
  if (!growing_) {
    TQC_TRY_ASSIGN(growing_, GrowingFile::open(console_, flags_.options.cache));
  }
  TQC_TRY_ASSIGN(
      const format::AppendReport report,
      growing_->append(console_, session_.cache(), flags_.compression, flags_.options.n_threads));
  n_fixed_ = n_kept_;
  note(console_, append_text(growing_->path(), report));
  return {};
}

Result<void> Chat::save(const std::string& path) {
  if (path == "-") return usage_error("/save: standard output is used for the answers");
  TQC_TRY(drop_unfinished());
  if (n_kept_ == 0) {
    return in_file(path, usage_error("not written: the conversation has no turn that was read"));
  }
  if (flags_.is_cache(path)) return grow();
  const bool own = std::find(saved_.begin(), saved_.end(), path) != saved_.end();
  TQC_TRY_ASSIGN(format::WriteOptions options,
                 write_options(flags_.compression, flags_.options.n_threads, flags_.force || own));
  options.hide_tokens = flags_.no_tokens;
  TQC_TRY_ASSIGN(const std::uint64_t bytes, save_cache(console_, session_.cache(), path, options));
  saved_.push_back(path);
  note(console_, fmt::format("{}: {}, {} bytes", path, counted(n_kept_, "token"), grouped(bytes)));
  return {};
}

Result<void> Chat::save_at_end() {
  if (flags_.save.empty()) return {};
  if (n_kept_ > 0) return save(flags_.save);
  note(console_, fmt::format("{}: not written, because the conversation has no turn that was read",
                             flags_.save));
  return {};
}

Result<void> check_flags(const ChatFlags& flags) {
  if (flags.options.cache == "-")
    return usage_error("--cache: standard input is used for the conversation");
  if (flags.save == "-") return usage_error("--save: standard output is used for the answers");
  if (flags.system_file == "-") {
    return usage_error("--system-file: standard input is used for the conversation");
  }
  if (flags.grows() && flags.no_tokens) return no_tokens_in_growing_file();
  if (!flags.save.empty() && !flags.grows()) TQC_TRY(check_output(flags.save, flags.force));
  return {};
}

// Reads --system-file, as the shell reads $(cat FILE).
Result<void> read_system_file(ChatFlags& flags) {
  if (flags.system_file.empty()) return {};
  TQC_TRY_ASSIGN(const Bytes text,
                 in_file(flags.system_file, read_input(flags.system_file, kMaxSystemBytes)));
  flags.system.assign(reinterpret_cast<const char*>(text.data()), text.size());
  while (flags.system.ends_with('\n') || flags.system.ends_with('\r')) flags.system.pop_back();
  if (flags.system.empty()) return in_file(flags.system_file, usage_error("the file is empty"));
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
  auto turns = session::ChatTurns::make(tokenizer, flags.program, [] { return !interrupted(); });
  if (turns) return std::move(turns).value();
  Error error = std::move(turns).error();
  if (flags.program.empty()) error.message += " (--template)";
  return in_file(flags.options.model, std::move(error));
}

Result<ExitCode> run(const Console& console, ChatFlags& flags) {
  TQC_TRY(check_flags(flags));
  TQC_TRY(finish_session_flags(console, flags));
  TQC_TRY(read_system_file(flags));
  TQC_TRY_ASSIGN(flags.program, read_template(flags.templates));
  TQC_TRY_ASSIGN(flags.chat.now, read_date(flags.templates));
  if (!flags.chat.now) flags.chat.now = local_time();
  flags.chat.thinks = !flags.no_think;
  TQC_TRY_ASSIGN(const std::unique_ptr<session::PromptStore> store,
                 open_prompt_store(console, flags, flags.codec.given()));
  std::optional<GrowingFile> growing;
  if (flags.grows()) {
    TQC_TRY_ASSIGN(growing, GrowingFile::open(console, flags.options.cache));
  }
  TQC_TRY_ASSIGN(const std::unique_ptr<session::Session> session,
                 open_session(console, flags, growing ? &*growing : nullptr));
  TQC_TRY(check_cache(flags, session->cache()));
  TQC_TRY_ASSIGN(session::ChatTurns turns, choose_turns(flags, session->model().tokenizer));
  if (!flags.save.empty() || store) note_activations(console, flags);
  Chat chat(console, flags, *session, std::move(turns), growing, store.get());
  Result<void> conversed = chat.converse();
  const bool was_interrupted = interrupted();
  // Without turns, the system text alone is saved.
  if (conversed && !flags.save.empty()) conversed = chat.read_system();
  acknowledge_interrupt();  // otherwise it would end the saving, too
  TQC_TRY(chat.drop_unfinished());
  TQC_TRY(chat.save_at_end());
  TQC_TRY(finish_store(console, store.get(), session->cache(), was_interrupted));
  if (!conversed) return conversed.error();
  return ExitCode::kDone;
}

}  // namespace

Action define_chat(FlagSet& app) {
  const auto flags = std::make_shared<ChatFlags>();
  add_model_flag(app, flags->options.model, true);
  app.add("-c,--cache", flags->options.cache, "Cache file to resume")->type_name("FILE")->file();
  Flag* const system = app.add("--system", flags->system, "System text of a new conversation");
  system->type_name("TEXT");
  app.add("--system-file", flags->system_file, "File with the system text, UTF-8")
      ->type_name("FILE")
      ->file()
      ->excludes(system);
  app.add("-n,--max-new-tokens", flags->n, "Maximum number of tokens per answer")
      ->type_name("N")
      ->at_least(1)
      ->show_default();
  add_template_flags(app, flags->templates);
  app.add("--no-think", flags->no_think,
          "Tell a reasoning model to answer without thinking first, if its template knows how");
  app.add("--save", flags->save, "Save the conversation to this file when the chat ends")
      ->type_name("FILE")
      ->file();
  add_session_flags(app, *flags);
  app.usual({"--model", "--cache", "--system", "--save", "--max-new-tokens", "--temperature",
             "--top-p", "--seed", "--no-think", "--template", "--bits", "--config", "--store",
             "--threads", "--force"});
  app.footer(kChatExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
