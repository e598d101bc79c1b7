#include "cli/prompt.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/cache_io.h"
#include "cli/console.h"
#include "cli/terminal.h"
#include "tqcache/cache.h"
#include "tqcache/file.h"
#include "tqcache/tokenizer/utf8.h"

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

// Removes the second of two begin tokens, for texts that spell out their own.
std::vector<std::int32_t> begun_once(std::vector<std::int32_t> ids,
                                     const tokenizer::Tokenizer& tokenizer) {
  const std::optional<std::int32_t> begin = tokenizer.begin_token();
  if (ids.size() > 1 && ids[0] == begin && ids[1] == begin) ids.erase(ids.begin());
  return ids;
}

Result<std::vector<std::int32_t>> encode(const PromptFlags& flags,
                                         const tokenizer::Tokenizer& tokenizer, PromptPlace place) {
  using tokenizer::Tokenizer;
  const bool begins = place == PromptPlace::kBegins;
  Tokenizer::EncodeOptions options;
  options.special = flags.no_special ? Tokenizer::Special::kAsText : Tokenizer::Special::kParse;
  options.ends = begins ? Tokenizer::Ends::kBegin : Tokenizer::Ends::kNone;
  options.at_beginning = begins;
  options.keep_going = [] { return !interrupted(); };
  std::string name = "--prompt";
  Bytes bytes;
  std::string_view text = flags.text ? *flags.text : std::string_view();
  if (!flags.text) {
    name = display_name(*flags.file, "standard input");
    TQC_TRY_ASSIGN(bytes, in_file(name, read_input(*flags.file, kMaxPromptBytes)));
    text = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  TQC_TRY_ASSIGN(std::vector<std::int32_t> ids, in_file(name, tokenizer.encode(text, options)));
  warn_if_left_out(tokenizer, name, text);
  return begins && tokenizer.adds_begin_token() ? begun_once(std::move(ids), tokenizer)
                                                : std::move(ids);
}

}  // namespace

void add_prompt_flags(FlagSet& app, PromptFlags& flags) {
  const std::string group = "Prompt (one of)";
  app.add("-p,--prompt", flags.text, "Text of the prompt")->type_name("TEXT")->group(group);
  app.add("--file", flags.file, "File with the prompt as UTF-8 text; - is standard input")
      ->type_name("FILE")
      ->group(group);
  app.add("--ids", flags.ids, "Token ids of the prompt, separated by commas")
      ->type_name("LIST")
      ->group(group);
  app.add(
         "--no-special", flags.no_special,
         "Treat special tokens that are spelled out in the text, such as <|im_end|>, as plain text")
      ->group(group);
}

Result<void> check_prompt_flags(const PromptFlags& flags) {
  const int n = flags.text.has_value() + flags.file.has_value() + flags.ids.has_value();
  if (n > 1) return usage_error("--prompt, --file and --ids exclude each other");
  return {};
}

Result<std::vector<std::int32_t>> read_prompt(const PromptFlags& flags,
                                              const tokenizer::Tokenizer& tokenizer,
                                              PromptPlace place) {
  if (!flags.given()) return std::vector<std::int32_t>{};
  std::vector<std::int32_t> ids;
  if (flags.ids) {
    TQC_TRY_ASSIGN(ids, parse_ids(*flags.ids, tokenizer));
  } else {
    TQC_TRY_ASSIGN(ids, encode(flags, tokenizer, place));
  }
  if (ids.empty()) return usage_error("the prompt is empty");
  return ids;
}

void warn_if_left_out(const tokenizer::Tokenizer& tokenizer, std::string_view place,
                      std::string_view text) {
  const std::optional<std::size_t> at = tokenizer.find_left_out(text);
  if (!at) return;
  const auto character =
      static_cast<unsigned>(tokenizer::first_character(text.substr(*at)).code_point);
  warn(place, fmt::format("byte {}: the model's vocabulary has no token for U+{:04X}; such "
                          "characters are left out",
                          *at, character));
}

namespace {

// Ten digits, a comma and a space for each token id.
constexpr std::uint64_t kMaxBytes = std::uint64_t{cache::kMaxTokens} * 12 + 1024;

Error not_ids() { return {ErrorCode::kCorrupt, "not a JSON array of token ids"}; }

// Receives the events of the parser, so that only numbers are stored.
class IdReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  Result<std::vector<std::int32_t>> take() && {
    if (is_too_long_) return Error{ErrorCode::kTooLarge, "more token ids than a cache may have"};
    if (!is_done_) return not_ids();
    return std::move(ids_);
  }

  bool start_array(std::size_t) override { return !std::exchange(is_open_, true); }
  bool end_array() override { return is_done_ = true; }
  bool number_unsigned(std::uint64_t id) override {
    if (!is_open_ || id > std::uint64_t{std::numeric_limits<std::int32_t>::max()}) return false;
    is_too_long_ = std::ssize(ids_) == cache::kMaxTokens;
    if (!is_too_long_) ids_.push_back(static_cast<std::int32_t>(id));
    return !is_too_long_;
  }
  bool null() override { return false; }
  bool boolean(bool) override { return false; }
  bool number_integer(std::int64_t) override { return false; }
  bool number_float(double, const std::string&) override { return false; }
  bool string(std::string&) override { return false; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return false; }
  bool key(std::string&) override { return false; }
  bool end_object() override { return false; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    is_done_ = false;
    return false;
  }

 private:
  std::vector<std::int32_t> ids_;
  bool is_open_ = false;
  bool is_done_ = false;
  bool is_too_long_ = false;
};

Result<std::vector<std::int32_t>> parse_ids(const Bytes& text) {
  IdReader reader;
  const auto* begin = reinterpret_cast<const char*>(text.data());
  nlohmann::json::sax_parse(begin, begin + text.size(), &reader);
  return std::move(reader).take();
}

}  // namespace

Result<std::vector<std::int32_t>> read_ids(const std::string& path) {
  TQC_TRY_ASSIGN(const Bytes text, in_file(path, read_file(path, kMaxBytes)));
  return in_file(path, parse_ids(text));
}

}  // namespace tqcache::cli
