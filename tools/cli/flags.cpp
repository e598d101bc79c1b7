#include "cli/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <span>
#include <utility>

namespace tqcache::cli {
namespace {

constexpr const char* kArguments = "Arguments";
constexpr std::size_t kTextColumn = 26;  // where the help text of a flag begins

// A whole number, also as "0x10". Absent if it is malformed or exceeds 64 bits.
template <class T>
std::optional<T> parse_whole(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  if (text.empty() || text.front() == ' ') return std::nullopt;
  if constexpr (std::is_signed_v<T>) {
    const long long number = std::strtoll(text.c_str(), &end, 0);
    if (errno != 0 || *end != '\0' || !std::in_range<T>(number)) return std::nullopt;
    return static_cast<T>(number);
  } else {
    if (text.front() == '-') return std::nullopt;
    const unsigned long long number = std::strtoull(text.c_str(), &end, 0);
    if (errno != 0 || *end != '\0' || !std::in_range<T>(number)) return std::nullopt;
    return static_cast<T>(number);
  }
}

template <class T>
std::optional<T> parse_number(const std::string& text) {
  if constexpr (std::is_integral_v<T>) {
    return parse_whole<T>(text);
  } else {
    char* end = nullptr;
    if (text.empty() || text.front() == ' ') return std::nullopt;
    const double number = std::strtod(text.c_str(), &end);
    if (*end != '\0') return std::nullopt;
    return static_cast<T>(number);
  }
}

// "2.5", as in the source: more than six digits of a float are not worth showing.
template <class T>
std::string number_text(T number) {
  return fmt::format("{}", number);
}

std::vector<std::string> all_names(const FlagSet& flags) {
  std::vector<std::string> names = {"--help"};
  for (const auto& flag : flags.flags()) {
    const Flag::Description& about = flag->description();
    if (!about.is_positional) names.insert(names.end(), about.names.begin(), about.names.end());
  }
  return names;
}

// Names that other programs give to our flags.
constexpr std::pair<std::string_view, std::string_view> kNamesElsewhere[] = {
    {"--n-predict", "--max-new-tokens"},
    {"--predict", "--max-new-tokens"},
    {"--max-tokens", "--max-new-tokens"},
    {"--num-predict", "--max-new-tokens"},
    {"--n-tokens", "--tokens"},
    {"--out", "--output"},
    {"--outfile", "--output"},
    {"--overwrite", "--force"},
    {"--system-prompt", "--system"},
    {"--system-prompt-file", "--system-file"},
    {"--temp", "--temperature"},
    {"--repetition-penalty", "--repeat-penalty"},
    {"--prompt-cache", "--cache"},
    {"--reverse-prompt", "--stop"},
    {"--n-threads", "--threads"},
    {"--jobs", "--threads"},
    {"--prompt-file", "--file"},
    {"--model-path", "--model"},
};

// The flag that an unknown word was probably meant to be, or empty.
std::string meant_flag(const FlagSet& flags, const std::string& word) {
  const std::vector<std::string> names = all_names(flags);
  for (const auto& [elsewhere, ours] : kNamesElsewhere) {
    if (word == elsewhere && std::ranges::find(names, ours) != names.end()) {
      return std::string(ours);
    }
  }
  return closest_word(word, names);
}

// "--bits" of "-bits", which CLI11 parses as "-b" with the value "its"; empty if there is none.
std::string flag_with_one_dash(const FlagSet& flags, const std::vector<std::string>& args) {
  const std::vector<std::string> names = all_names(flags);
  for (const std::string& word : args) {
    if (word.size() < 4 || word[0] != '-' || word[1] == '-') continue;
    const std::string name = word.substr(0, word.find('='));
    if (std::ranges::find(names, "-" + name) != names.end()) return name;
  }
  return {};
}

std::string parse_message(const FlagSet& flags, const CLI::App& app, const CLI::ParseError& error,
                          const std::vector<std::string>& args) {
  if (const std::string name = flag_with_one_dash(flags, args); !name.empty()) {
    return fmt::format("unknown flag {}, did you mean -{}?", name, name);
  }
  // Report unknown flags first: they usually explain missing values, too.
  for (const std::string& word : app.remaining()) {
    if (!word.starts_with("-") || word == "-") continue;
    const std::string name = word.substr(0, word.find('='));
    const std::string meant = meant_flag(flags, name);
    if (meant.empty()) return fmt::format("unknown flag {}", name);
    return fmt::format("unknown flag {}, did you mean {}?", name, meant);
  }
  if (const std::vector<std::string> extra = app.remaining(); !extra.empty()) {
    return fmt::format("unexpected argument {}", extra.front());
  }
  std::string message = error.what();
  std::replace(message.begin(), message.end(), '\n', ' ');
  // Messages of CLI11: "Could not convert: --bits = x", "--a excludes --b" and "--a: 1 required N
  // missing".
  constexpr std::string_view kConversion = "Could not convert: ";
  const std::size_t equals = message.find(" = ");
  if (message.starts_with(kConversion) && equals != std::string::npos) {
    return fmt::format("{}: {} is not a number this flag takes",
                       message.substr(kConversion.size(), equals - kConversion.size()),
                       message.substr(equals + 3));
  }
  if (const std::size_t at = message.find(" excludes "); at != std::string::npos) {
    return fmt::format("{} and {} exclude each other", message.substr(0, at),
                       message.substr(at + 10));
  }
  if (const std::size_t at = message.find(": 1 required "); at != std::string::npos) {
    return fmt::format("{} needs a value", message.substr(0, at));
  }
  return message;
}

std::string upper_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return text;
}

// "-b, --bits B"
std::string heading(const Flag::Description& flag) {
  if (flag.is_positional) return upper_case(flag.names.front());
  std::string text;
  // Aligns long names.
  if (flag.names.front().starts_with("--")) text = "    ";
  text += fmt::format("{}", fmt::join(flag.names, ", "));
  if (!flag.type_name.empty()) text += " " + flag.type_name;
  return text;
}

// The help of a flag with its allowed values and its default.
std::string full_text(const Flag::Description& flag) {
  std::string text = flag.text;
  if (!flag.words.empty()) {
    const bool are_named = std::ranges::all_of(flag.words, [&](const std::string& word) {
      return flag.text.find(word) != std::string::npos;
    });
    if (!are_named) text += fmt::format(": {}", fmt::join(flag.words, ", "));
  }
  if (!flag.default_text.empty()) text += fmt::format(" [default: {}]", flag.default_text);
  if (flag.is_required && !flag.is_positional) text += " [required]";
  return text;
}

std::string flag_text(const Flag::Description& flag, std::size_t columns) {
  std::string head = "  " + heading(flag);
  std::string body = fold(full_text(flag), columns, kTextColumn);
  if (head.size() + 2 > kTextColumn) return head + "\n" + body;
  return head + body.substr(head.size());
}

}  // namespace

// --- one flag

Flag* Flag::type_name(std::string name) {
  description_.type_name = std::move(name);
  return this;
}

Flag* Flag::group(std::string name) {
  description_.group = std::move(name);
  return this;
}

Flag* Flag::shared() {
  description_.is_shared = true;
  return this;
}

Flag* Flag::required(bool is_required) {
  option_->required(is_required);
  description_.is_required = is_required;
  return this;
}

Flag* Flag::show_default() { return show_default(value_text_()); }

Flag* Flag::show_default(std::string text) {
  description_.default_text = std::move(text);
  return this;
}

Flag* Flag::formerly(const std::string& name) {
  std::erase(description_.names, name);
  description_.old_names.push_back(name);
  return this;
}

Flag* Flag::check(std::function<Result<void>(const std::string&)> check) {
  option_->check(
      [check = std::move(check)](const std::string& value) {
        const Result<void> good = check(value);
        return good ? std::string() : good.error().message;
      },
      "");
  return this;
}

Flag* Flag::one_of(std::vector<std::string> words) {
  description_.words = words;
  description_.completion = Completion::kWords;
  return check([words = std::move(words)](const std::string& value) -> Result<void> {
    if (std::ranges::find(words, value) != words.end()) return {};
    return invalid(fmt::format("{} is not one of {}", value, fmt::join(words, ", ")));
  });
}

Flag* Flag::at_least(std::int64_t least) {
  return check([least](const std::string& value) -> Result<void> {
    const std::optional<std::int64_t> number = parse_whole<std::int64_t>(value);
    if (number && *number >= least) return {};
    return invalid(fmt::format("{} is not a whole number of at least {}", value, least));
  });
}

Flag* Flag::range(std::int64_t least, std::int64_t most) {
  return check([least, most](const std::string& value) -> Result<void> {
    const std::optional<std::int64_t> number = parse_whole<std::int64_t>(value);
    if (number && *number >= least && *number <= most) return {};
    return invalid(fmt::format("{} is not a whole number from {} to {}", value, least, most));
  });
}

Flag* Flag::not_empty() {
  return check([](const std::string& value) -> Result<void> {
    if (!value.empty()) return {};
    return invalid("the value is empty");
  });
}

Flag* Flag::file() {
  description_.completion = Completion::kFile;
  return check([](const std::string& value) -> Result<void> {
    if (!value.empty()) return {};
    return invalid("the name is empty");
  });
}

Flag* Flag::folder() {
  file();
  description_.completion = Completion::kFolder;
  return this;
}

Flag* Flag::excludes(Flag* other) {
  option_->excludes(other->option_);
  return this;
}

Flag* Flag::separated_by(char separator) {
  option_->delimiter(separator);
  return this;
}

Flag* Flag::repeats() {
  option_->expected(CLI::detail::expected_max_vector_size)->allow_extra_args(false);
  description_.is_list = true;
  return this;
}

bool Flag::is_given() const { return option_->count() > 0; }

// --- all flags of a verb

FlagSet::FlagSet(std::string program, std::string summary)
    : program_(std::move(program)),
      summary_(std::move(summary)),
      app_(std::make_unique<CLI::App>(summary_, program_)) {
  // On Windows CLI11 would take /tmp/a for an option.
  app_->allow_windows_style_options(false);
}

FlagSet::~FlagSet() = default;

Flag* FlagSet::describe_flag(CLI::Option* option, const std::string& names, std::string text) {
  flags_.push_back(std::make_unique<Flag>());
  Flag* const flag = flags_.back().get();
  flag->option_ = option;
  flag->name_ = option->get_name();
  Flag::Description& about = flag->description_;
  about.is_positional = !names.starts_with("-");
  if (about.is_positional) about.group = kArguments;
  for (std::size_t at = 0; at <= names.size();) {
    const std::size_t comma = std::min(names.find(',', at), names.size());
    about.names.push_back(names.substr(at, comma - at));
    at = comma + 1;
  }
  about.text = std::move(text);
  return flag;
}

Flag* FlagSet::add_value(const std::string& names, std::string text, Take take) {
  CLI::Option* const option = app_->add_option(
      names,
      [take = std::move(take)](const CLI::results_t& values) {
        return std::ranges::all_of(values, take);
      },
      text);
  return describe_flag(option, names, std::move(text));
}

template <class T>
Flag* FlagSet::add_number(const std::string& names, std::string text, T& value) {
  Flag* const flag = add_value(names, std::move(text), [&value](const std::string& word) {
    const std::optional<T> number = parse_number<T>(word);
    if (number) value = *number;
    return number.has_value();
  });
  flag->value_text_ = [&value] { return number_text(value); };
  return flag;
}

template <class T>
Flag* FlagSet::add_optional(const std::string& names, std::string text, std::optional<T>& value) {
  return add_value(names, std::move(text), [&value](const std::string& word) {
    value = parse_number<T>(word);
    return value.has_value();
  });
}

Flag* FlagSet::add(const std::string& names, bool& value, std::string text) {
  CLI::Option* const option = app_->add_flag_callback(
      names, [&value] { value = true; }, text);
  Flag* const flag = describe_flag(option, names, std::move(text));
  flag->description_.takes_value = false;
  return flag;
}

Flag* FlagSet::add(const std::string& names, std::string& value, std::string text) {
  Flag* const flag = add_value(names, std::move(text), [&value](const std::string& word) {
    value = word;
    return true;
  });
  flag->value_text_ = [&value] { return value; };
  return flag;
}

Flag* FlagSet::add(const std::string& names, std::optional<std::string>& value, std::string text) {
  return add_value(names, std::move(text), [&value](const std::string& word) {
    value = word;
    return true;
  });
}

Flag* FlagSet::add(const std::string& names, std::vector<std::string>& values, std::string text) {
  CLI::Option* const option = app_->add_option(
      names,
      [&values](const CLI::results_t& words) {
        values = words;
        return true;
      },
      text);
  option->expected(CLI::detail::expected_max_vector_size);
  Flag* const flag = describe_flag(option, names, std::move(text));
  flag->description_.is_list = true;
  flag->value_text_ = [&values] { return fmt::format("{}", fmt::join(values, ",")); };
  return flag;
}

Flag* FlagSet::add(const std::string& names, int& value, std::string text) {
  return add_number(names, std::move(text), value);
}
Flag* FlagSet::add(const std::string& names, std::int64_t& value, std::string text) {
  return add_number(names, std::move(text), value);
}
Flag* FlagSet::add(const std::string& names, unsigned& value, std::string text) {
  return add_number(names, std::move(text), value);
}
Flag* FlagSet::add(const std::string& names, std::uint64_t& value, std::string text) {
  return add_number(names, std::move(text), value);
}
Flag* FlagSet::add(const std::string& names, float& value, std::string text) {
  return add_number(names, std::move(text), value);
}
Flag* FlagSet::add(const std::string& names, double& value, std::string text) {
  return add_number(names, std::move(text), value);
}
Flag* FlagSet::add(const std::string& names, std::optional<int>& value, std::string text) {
  return add_optional(names, std::move(text), value);
}
Flag* FlagSet::add(const std::string& names, std::optional<std::int64_t>& value, std::string text) {
  return add_optional(names, std::move(text), value);
}
Flag* FlagSet::add(const std::string& names, std::optional<std::uint32_t>& value,
                   std::string text) {
  return add_optional(names, std::move(text), value);
}
Flag* FlagSet::add(const std::string& names, std::optional<std::uint64_t>& value,
                   std::string text) {
  return add_optional(names, std::move(text), value);
}
Flag* FlagSet::add(const std::string& names, std::optional<double>& value, std::string text) {
  return add_optional(names, std::move(text), value);
}

Flag* FlagSet::add_text(const std::string& names, std::function<void(const std::string&)> take,
                        std::string text) {
  return add_value(names, std::move(text), [take = std::move(take)](const std::string& word) {
    take(word);
    return true;
  });
}

void FlagSet::usual(std::vector<std::string> names) { usual_ = std::move(names); }

std::vector<const Flag*> FlagSet::added_by(const std::function<void()>& add) {
  const std::size_t n_before = flags_.size();
  add();
  std::vector<const Flag*> added;
  for (std::size_t i = n_before; i < flags_.size(); ++i) added.push_back(flags_[i].get());
  return added;
}

const Flag* first_given(std::span<const Flag* const> flags) {
  const auto given = std::ranges::find_if(flags, &Flag::is_given);
  return given == flags.end() ? nullptr : *given;
}

void FlagSet::footer(std::string_view text) {
  constexpr std::string_view kExamples = "Examples:\n";
  const std::size_t at = text.find(kExamples);
  prose_ = text.substr(0, at);
  while (prose_.ends_with('\n')) prose_.pop_back();
  if (at != std::string_view::npos) examples_ = text.substr(at + kExamples.size());
}

Result<void> FlagSet::parse(const std::vector<std::string>& args) {
  if (std::ranges::find(args, "--help-all") != args.end()) {
    help_wanted_ = all_help_wanted_ = true;
    return {};
  }
  try {
    app_->parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 reads them reversed
  } catch (const CLI::CallForHelp&) {
    help_wanted_ = true;
  } catch (const CLI::ParseError& error) {
    return invalid(
        fmt::format("{} (see {} --help)", parse_message(*this, *app_, error, args), program_));
  }
  return {};
}

// --- help

std::string usage_line(const FlagSet& flags) {
  std::string line = flags.program();
  for (const auto& flag : flags.flags()) {
    const Flag::Description& about = flag->description();
    if (!about.is_positional) continue;
    std::string name = upper_case(about.names.front());
    if (about.is_list) name += "...";
    line += about.is_required ? " " + name : fmt::format(" [{}]", name);
  }
  return line + " [FLAGS]";
}

std::string fold(std::string_view text, std::size_t columns, std::size_t indent) {
  const std::string margin(indent, ' ');
  std::string out;
  std::string line;
  const auto end_line = [&] {
    if (!line.empty()) out += margin + line + "\n";
    line.clear();
  };
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.empty() || row.front() == ' ') {  // end of a paragraph, or a verbatim line
      end_line();
      out += row.empty() ? "\n" : margin + std::string(row) + "\n";
      continue;
    }
    while (!row.empty()) {
      const std::size_t size = std::min(row.find(' '), row.size());
      const std::string_view word = row.substr(0, size);
      row.remove_prefix(std::min(size + 1, row.size()));
      if (!line.empty() && indent + line.size() + 1 + word.size() > columns) end_line();
      if (!line.empty()) line += ' ';
      line += word;
    }
  }
  end_line();
  return out;
}

std::vector<std::string> groups_of(const FlagSet& flags) {
  std::vector<std::string> groups;
  for (const auto& flag : flags.flags()) {
    const std::string& group = flag->description().group;
    if (std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  }
  // Not the one of std::ranges: clang 14 does not understand what libstdc++ 12 returns there.
  std::stable_partition(groups.begin(), groups.end(),
                        [](const std::string& name) { return name == kArguments; });
  return groups;
}

std::string help_text(const FlagSet& flags, std::size_t columns, bool all) {
  std::string text = fold(flags.summary() + ".", columns) + "\nUsage: " + usage_line(flags) + "\n";
  const std::vector<std::string>& usual = flags.usual_flags();
  const bool is_short = !all && !usual.empty();
  const auto is_shown = [&](const Flag& flag) {
    return !is_short || std::ranges::find(usual, flag.name()) != usual.end();
  };
  for (const std::string& group : groups_of(flags)) {
    std::string shown;
    for (const auto& flag : flags.flags()) {
      if (flag->description().group != group || !is_shown(*flag)) continue;
      shown += flag_text(flag->description(), columns);
    }
    if (!shown.empty()) text += fmt::format("\n{}:\n{}", group, shown);
  }
  if (is_short) {
    constexpr std::size_t kExamples = 8;
    std::size_t end = 0;
    const std::string& examples = flags.example_lines();
    for (std::size_t i = 0; i < kExamples && end < examples.size(); ++i) {
      end = std::min(examples.find('\n', end), examples.size() - 1) + 1;
    }
    if (end > 0) text += "\nExamples:\n" + examples.substr(0, end);
    return text +
           fmt::format("\n{} --help-all has all flags, and explains them.\n", flags.program());
  }
  if (!flags.prose().empty()) text += "\n" + fold(flags.prose(), columns);
  if (!flags.example_lines().empty()) text += "\nExamples:\n" + flags.example_lines();
  return text;
}

std::string closest_word(std::string_view word, const std::vector<std::string>& known) {
  for (const std::string& candidate : known) {
    if (word.size() >= 3 && candidate.starts_with(word)) return candidate;  // an abbreviation
  }
  const auto distance = [](std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j <= b.size(); ++j) {
        const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
      }
    }
    return row.back();
  };
  std::string best;
  std::size_t best_distance = word.size() < 4 ? 2 : 3;  // limit above which words are unrelated
  for (const std::string& candidate : known) {
    if (candidate.size() < 3 && candidate != word) continue;  // "-x" is not a misspelled "-h"
    const std::size_t changes = distance(word, candidate);
    if (changes >= best_distance) continue;
    best = candidate;
    best_distance = changes;
  }
  return best;
}

}  // namespace tqcache::cli
