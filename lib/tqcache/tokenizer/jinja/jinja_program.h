#pragma once
// tokenizer/jinja/jinja_program.h: a chat template as a program: parsed once, run for each
// conversation.
//
//   TQC_TRY_ASSIGN(const Program program, Program::parse("{{ 'Hi ' + name }}"));
//   Heap heap(1 << 20);
//   TQC_TRY_ASSIGN(const Text text, program.run(heap, {{"name", heap.text("Ann")}}, nullptr));
//
// The meaning is that of transformers: jinja2's immutable sandbox with trim_blocks, lstrip_blocks,
// break and continue, {% generation %}, raise_exception(), strftime_now() and its own tojson. What
// is not implemented is refused by name. Safe for untrusted programs and values: steps and memory
// are bounded by the Heap's budget, and recursion by a constant.

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/tokenizer.h"
#include "tqcache/tokenizer/jinja/jinja_value.h"

namespace tqcache::tokenizer::jinja {

class Program {
 public:
  // Errors: kUnsupported, with the line; kTooLarge (1 MiB, or nested too deep).
  static Result<Program> parse(std::string_view source);

  // Whether the program reads a variable of this name.
  bool uses(std::string_view variable) const { return names_.contains(variable); }

  // The text that the program writes. Without a time there is no function strftime_now().
  // Errors, with the line: kInvalidArgument (raise_exception() was called), kUnsupported (anything
  //         that Python or this interpreter refuses), kTooLarge (the budget, or the depth).
  Result<Text> run(Heap& heap, std::vector<std::pair<std::string, Value>> variables,
                   const CivilTime* now) const;

 private:
  Program() = default;
  std::shared_ptr<const std::vector<Statement>> body_;
  std::set<std::string, std::less<>> names_;
};

// Python's datetime.strftime(), in English; nullopt: a code that is not supported.
std::optional<std::string> format_time(std::string_view format, const CivilTime& time);

}  // namespace tqcache::tokenizer::jinja
