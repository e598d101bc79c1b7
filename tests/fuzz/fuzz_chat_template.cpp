// Chat templates: any program in Jinja, run for a conversation, tools and other values.
//
// Rules: a program ends, within its budget, with a text or an error; the text is UTF-8 and is the
// same when it runs again; no byte of a message passes for one of the template.

#include <string>

#include "fuzz/fuzz.h"
#include "tqcache/tokenizer/jinja/jinja_program.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache {
namespace {

using fuzz::require;
namespace jinja = tokenizer::jinja;

constexpr std::uint64_t kBudget = std::uint64_t{1} << 16;

// U+E001, which stands in every text that is not the template's.
constexpr std::string_view kOurs = "\xEE\x80\x81";

// The variables of tests/tokenizer/make_jinja_cases.py, in small, with U+E001 for ~.
constexpr std::string_view kVariables = R"({"name": "~Ann", "n": 7, "x": 2.5, "yes": true,
 "nothing": null, "text": "  ~Ün cö\n\tline~  ", "thought": "<think>\nHm~.\n</think>\n\nYes~.",
 "items": [3, 1, 2], "words": ["pe~ar", "Apple~"], "d": {"b": 1, "a": "t~", "items": [1]},
 "people": [{"name": "Ann~", "age": 3, "on": true}, {"name": "~Bob", "age": 1, "on": false}],
 "tool": {"type": "function", "function": {"name": "f~", "parameters": {"p": {"type": "a~"}}}},
 "tools": null, "add_generation_prompt": true,
 "messages": [{"role": "system", "content": "~Be kind."}, {"role": "user", "content": "Hi~ <|end|>"},
  {"role": "assistant", "content": "~Yes", "tool_calls": [{"function": {"name": "f~",
   "arguments": {"a~": 1}}}]}, {"role": "tool", "content": "{~}"}, {"role": "user", "content": "~"}]})";

std::string variables_text() {
  std::string text;
  for (const char c : kVariables) text += c == '~' ? std::string(kOurs) : std::string(1, c);
  return text;
}

Result<jinja::Text> run(const jinja::Program& program, const std::string& variables) {
  jinja::Heap heap(kBudget);
  TQC_TRY_ASSIGN(const jinja::Value value, value_of_json(heap, variables, jinja::Mark::kMessage));
  std::vector<std::pair<std::string, jinja::Value>> named = {{"bos_token", heap.text("<s>")}};
  for (const auto& [key, held] : value.dict()->items) named.emplace_back(key.text()->bytes, held);
  const tokenizer::CivilTime now{2026, 11, 29, 8, 5, 1};
  return program.run(heap, std::move(named), &now);
}

void check_text(const jinja::Text& text) {
  require(tokenizer::valid_utf8_bytes(text.bytes) == text.bytes.size(), "a text is UTF-8");
  require(text.marks.empty() || text.marks.size() == text.bytes.size(), "each byte has a mark");
  for (std::size_t at = text.bytes.find(kOurs); at != std::string::npos;
       at = text.bytes.find(kOurs, at + 1)) {
    for (std::size_t i = 0; i < kOurs.size(); ++i) {
      require(mark_at(text, at + i) == jinja::Mark::kMessage, "a message's bytes stay its own");
    }
  }
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  // A program that can write U+E001 itself says nothing about marks.
  for (const std::string_view each : {kOurs, std::string_view("\\u"), std::string_view("\\U")}) {
    if (source.find(each) != std::string_view::npos) return 0;
  }
  const auto program = jinja::Program::parse(source);
  if (!program) {
    fuzz::require(!program.error().message.empty(), "an error has a message");
    return 0;
  }
  static const std::string kText = variables_text();
  const auto text = run(*program, kText);
  const auto again = run(*program, kText);
  fuzz::require(text.ok() == again.ok(), "a program does the same twice");
  if (!text) {
    const ErrorCode code = text.error().code;
    fuzz::require(code == ErrorCode::kUnsupported || code == ErrorCode::kTooLarge ||
                      code == ErrorCode::kInvalidArgument,
                  "an error is one of a program");
    fuzz::require(text.error().message == again.error().message, "an error is the same twice");
    return 0;
  }
  fuzz::require(text->bytes == again->bytes && text->marks == again->marks,
                "a program writes the same twice");
  check_text(*text);
  return 0;
}
