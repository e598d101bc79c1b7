#include "cli/prompt.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "cli/cache_io.h"
#include "tqcache/base/file.h"

namespace tqcache::cli {
namespace {

constexpr std::uint64_t kMaxPromptBytes = std::uint64_t{1} << 30;

Result<std::vector<std::int32_t>> parse_ids(std::string_view list,
                                            const tokenizer::Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  while (!list.empty()) {
    const std::string_view word = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), word.size() + 1));
    std::int32_t id = -1;
    const char* end = word.data() + word.size();
    const std::from_chars_result parsed = std::from_chars(word.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || id < 0 || id >= tokenizer.vocab_size()) {
      return usage_error(
          fmt::format("--ids: {} is not a token id below {}", word, tokenizer.vocab_size()));
    }
    ids.push_back(id);
  }
  return ids;
}

Result<Bytes> read_text(const std::string& path) {
  return path == "-" ? read_stdin(kMaxPromptBytes) : read_file(path, kMaxPromptBytes);
}

// Without the second of two tokens for the beginning: of a text that spells it out.
std::vector<std::int32_t> begun_once(std::vector<std::int32_t> ids,
                                     const tokenizer::Tokenizer& tokenizer) {
  const std::optional<std::int32_t> begin = tokenizer.begin_token();
  if (ids.size() > 1 && ids[0] == begin && ids[1] == begin) ids.erase(ids.begin());
  return ids;
}

Outcome<std::vector<std::int32_t>> encode(const PromptFlags& flags,
                                          const tokenizer::Tokenizer& tokenizer,
                                          PromptPlace place) {
  using tokenizer::Tokenizer;
  const bool begins = place == PromptPlace::kBegins;
  Tokenizer::EncodeOptions options;
  options.special = flags.no_special ? Tokenizer::Special::kAsText : Tokenizer::Special::kParse;
  options.ends = begins ? Tokenizer::Ends::kBegin : Tokenizer::Ends::kNone;
  options.at_beginning = begins;
  std::string name = "--prompt";
  Bytes bytes;
  std::string_view text = flags.text ? *flags.text : std::string_view();
  if (!flags.text) {
    name = display_name(*flags.file, "standard input");
    TQC_TRY_ASSIGN(bytes, in_file(name, read_text(*flags.file)));
    text = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  TQC_TRY_ASSIGN(std::vector<std::int32_t> ids, in_file(name, tokenizer.encode(text, options)));
  return begins && tokenizer.adds_begin_token() ? begun_once(std::move(ids), tokenizer)
                                                : std::move(ids);
}

}  // namespace

void add_prompt_flags(CLI::App& app, PromptFlags& flags) {
  const std::string group = "Prompt (one of)";
  app.add_option("-p,--prompt", flags.text, "The text itself")->type_name("TEXT")->group(group);
  app.add_option("--file", flags.file, "A file of UTF-8 text; - is standard input")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--ids", flags.ids, "Token ids, separated by commas")
      ->type_name("LIST")
      ->group(group);
  app.add_flag("--no-special", flags.no_special,
               "Take special tokens spelled out in the text, like <|im_end|>, as plain text")
      ->group(group);
}

Result<void> check_prompt_flags(const PromptFlags& flags) {
  const int n = flags.text.has_value() + flags.file.has_value() + flags.ids.has_value();
  if (n > 1) return usage_error("only one of --prompt, --file and --ids can be the prompt");
  return {};
}

Outcome<std::vector<std::int32_t>> read_prompt(const PromptFlags& flags,
                                               const tokenizer::Tokenizer& tokenizer,
                                               PromptPlace place) {
  if (!flags.given()) return std::vector<std::int32_t>{};
  std::vector<std::int32_t> ids;
  if (flags.ids) {
    TQC_TRY_ASSIGN(ids, parse_ids(*flags.ids, tokenizer));
  } else {
    TQC_TRY_ASSIGN(ids, encode(flags, tokenizer, place));
  }
  if (ids.empty()) return usage_error("the prompt holds no token");
  return ids;
}

}  // namespace tqcache::cli
