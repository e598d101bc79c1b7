#pragma once
// tools/cli/flags.h: the flags and arguments of one verb.
//
// One definition serves the parser, --help, docs/reference/cli.md, the manual pages and the shell
// completions. CLI11 does the parsing; only flags.cpp includes its headers, which take seconds to
// compile.
//
//   void define(FlagSet& flags, Options& options) {
//     flags.add("-n,--lines", options.n, "Number of lines")->type_name("N")->at_least(1);
//   }

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tqcache::cli {

// The kind of completions that a shell offers for a value.
enum class Completion { kNothing, kFile, kFolder, kWords };

class Flag {
 public:
  // The placeholder of the value in the help: "FILE", "N".
  Flag* type_name(std::string name);
  Flag* group(std::string name);
  Flag* required(bool is_required = true);
  // Many verbs have this flag, with one meaning: reference pages explain it once.
  Flag* shared();
  // Shows the variable's current value, or this text, as the default.
  Flag* show_default();
  Flag* show_default(std::string text);
  // An old name, which the flag still has. Requires: it is one of the flag's names.
  Flag* formerly(const std::string& name);

  // Checks of the value. at_least() and range() are for whole numbers.
  Flag* one_of(std::vector<std::string> words);
  Flag* at_least(std::int64_t least);
  Flag* range(std::int64_t least, std::int64_t most);
  Flag* not_empty();
  Flag* file();    // not empty; shells complete file names
  Flag* folder();  // likewise folders
  Flag* check(std::function<Result<void>(const std::string&)> check);

  Flag* excludes(Flag* other);
  Flag* separated_by(char separator);  // several values in one argument
  Flag* repeats();                     // the flag may be given several times

  // After parsing: whether the command line has the flag.
  bool is_given() const;

  // "--bits", or "in" for a positional argument.
  const std::string& name() const { return name_; }

  struct Description {
    std::vector<std::string> names;  // {"-b", "--bits"}
    std::vector<std::string> old_names;
    std::string type_name;  // empty: no value, or a positional argument
    std::string group = "Flags";
    std::string text;
    std::string default_text;
    std::vector<std::string> words;  // the allowed values, if they are few
    Completion completion = Completion::kNothing;
    bool takes_value = true;
    bool is_positional = false;
    bool is_required = false;
    bool is_list = false;
    bool is_shared = false;
  };
  const Description& description() const { return description_; }

 private:
  friend class FlagSet;
  CLI::Option* option_ = nullptr;
  std::string name_;
  std::function<std::string()> value_text_;
  Description description_;
};

class FlagSet {
 public:
  FlagSet(std::string program, std::string summary);
  ~FlagSet();
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  // Adds a flag, "-b,--bits", or a positional argument, "in". Parsing writes to `value`.
  // Requires: `value` outlives this.
  Flag* add(const std::string& names, bool& value, std::string text);
  Flag* add(const std::string& names, std::string& value, std::string text);
  Flag* add(const std::string& names, std::optional<std::string>& value, std::string text);
  Flag* add(const std::string& names, std::vector<std::string>& values, std::string text);
  Flag* add(const std::string& names, int& value, std::string text);
  Flag* add(const std::string& names, std::int64_t& value, std::string text);
  Flag* add(const std::string& names, unsigned& value, std::string text);
  Flag* add(const std::string& names, std::uint64_t& value, std::string text);
  Flag* add(const std::string& names, float& value, std::string text);
  Flag* add(const std::string& names, double& value, std::string text);
  Flag* add(const std::string& names, std::optional<int>& value, std::string text);
  Flag* add(const std::string& names, std::optional<std::int64_t>& value, std::string text);
  Flag* add(const std::string& names, std::optional<std::uint32_t>& value, std::string text);
  Flag* add(const std::string& names, std::optional<std::uint64_t>& value, std::string text);
  Flag* add(const std::string& names, std::optional<double>& value, std::string text);
  // Calls `take` with the unparsed value, after all checks.
  Flag* add_text(const std::string& names, std::function<void(const std::string&)> take,
                 std::string text);

  // The flags that `add` adds.
  std::vector<const Flag*> added_by(const std::function<void()>& add);

  // Prose, "Examples:" on its own line, and command lines. Paragraphs of the prose are wrapped;
  // lines that begin with a space stay unchanged.
  void footer(std::string_view text);

  // The flags that most users need, for verbs with many. --help then shows these and the first
  // examples, and --help-all everything.
  void usual(std::vector<std::string> names);

  // Errors: kInvalidArgument, with the flag and a hint.
  Result<void> parse(const std::vector<std::string>& args);
  // Whether parse() met --help or --help-all.
  bool help_wanted() const { return help_wanted_; }
  bool all_help_wanted() const { return all_help_wanted_; }

  // --max-memory: common_flags.h, add_memory_flag(). Read by parse().
  std::optional<std::uint64_t> max_memory = {};

  const std::string& program() const { return program_; }  // "tqcache convert"
  const std::string& summary() const { return summary_; }
  const std::string& prose() const { return prose_; }
  const std::string& example_lines() const { return examples_; }
  const std::vector<std::unique_ptr<Flag>>& flags() const { return flags_; }
  const std::vector<std::string>& usual_flags() const { return usual_; }

 private:
  using Take = std::function<bool(const std::string&)>;  // false: not a value of the flag's type
  Flag* add_value(const std::string& names, std::string text, Take take);
  template <class T>
  Flag* add_number(const std::string& names, std::string text, T& value);
  template <class T>
  Flag* add_optional(const std::string& names, std::string text, std::optional<T>& value);
  Flag* describe_flag(CLI::Option* option, const std::string& names, std::string text);

  std::string program_;
  std::string summary_;
  std::string prose_;
  std::string examples_;
  std::vector<std::string> usual_;
  std::unique_ptr<CLI::App> app_;
  std::vector<std::unique_ptr<Flag>> flags_;
  bool help_wanted_ = false;
  bool all_help_wanted_ = false;
};

// The first of these that was given; null: none.
const Flag* first_given(std::span<const Flag* const> flags);

// "tqcache convert IN OUT [FLAGS]"
std::string usage_line(const FlagSet& flags);

// The headings of the flags, arguments first.
std::vector<std::string> groups_of(const FlagSet& flags);

// The text of --help, or with `all` of --help-all, wrapped at `columns`.
std::string help_text(const FlagSet& flags, std::size_t columns, bool all);

// The paragraphs of a text, wrapped at `columns`, each line indented by `indent` spaces.
std::string fold(std::string_view text, std::size_t columns, std::size_t indent = 0);

// The word in `known` that `word` was probably meant to be, or empty.
std::string closest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace tqcache::cli
