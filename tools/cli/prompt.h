#pragma once
// tools/cli/prompt.h: flags that name a prompt, and files of token ids.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"
#include "tqcache/error.h"
#include "tqcache/tokenizer.h"

namespace tqcache::cli {

struct PromptFlags {
  std::optional<std::string> text;
  std::optional<std::string> file;  // "-": standard input
  std::optional<std::string> ids;   // "1,2,3"
  bool no_special = false;

  bool given() const { return text || file || ids; }
};

void add_prompt_flags(FlagSet& app, PromptFlags& flags);

// Errors: kInvalidArgument if more than one source is named.
Result<void> check_prompt_flags(const PromptFlags& flags);

// Whether the prompt begins a text, or continues the tokens of a cache.
enum class PromptPlace { kBegins, kGoesOn };

// The prompt's token ids; empty if no flag was given. The begin token is added to a text that
// begins here, if the model uses one and the text does not spell it out itself.
// Errors: kInvalidArgument (ids; a prompt without a token), those of files and of the tokenizer.
Result<std::vector<std::int32_t>> read_prompt(const PromptFlags& flags,
                                              const tokenizer::Tokenizer& tokenizer,
                                              PromptPlace place = PromptPlace::kBegins);

// Warns if encoding leaves out a character of the text; `place` is the text's name.
void warn_if_left_out(const tokenizer::Tokenizer& tokenizer, std::string_view place,
                      std::string_view text);

// A JSON array of ids: [1, 2, 3].
// Errors: those of reading; kCorrupt (anything but an array of numbers from 0 to 2^31 - 1),
//         kTooLarge.
Result<std::vector<std::int32_t>> read_ids(const std::string& path);

}  // namespace tqcache::cli
