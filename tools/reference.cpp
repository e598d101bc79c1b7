#include "reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cli/common_flags.h"
#include "cli/flags.h"
#include "cli/verb.h"
#include "tqcache/file.h"

namespace tqcache::cli {
namespace {

constexpr std::size_t kColumns = 100;

constexpr std::string_view kGenerated =
    "Generated from the flags of the program by `tqcache --write-reference DIR`. Do not edit.";

// A verb with the flags that --help shows.
struct Page {
  std::string name;  // "store put"
  std::unique_ptr<FlagSet> flags;
  Console console;  // its flags write to it
  Action action;    // owns what the other flags write to
};

std::vector<std::unique_ptr<Page>> all_pages() {
  std::vector<std::unique_ptr<Page>> pages;
  const auto add = [&](const Verb& verb) {
    auto page = std::make_unique<Page>();
    page->name = verb.name;
    page->flags =
        std::make_unique<FlagSet>(fmt::format("tqcache {}", verb.name), std::string(verb.summary));
    page->action = define_verb(verb, *page->flags, page->console);
    pages.push_back(std::move(page));
  };
  for (const Verb& verb : all_verbs()) {
    if (verb.verbs.empty()) add(verb);
    for (const Verb& part : verb.verbs) add(part);
  }
  return pages;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// "-b, --bits B"
std::string heading(const Flag::Description& flag) {
  std::string text = fmt::format("{}", fmt::join(flag.names, ", "));
  if (!flag.type_name.empty()) text += " " + flag.type_name;
  return text;
}

// "Subtract the mean before quantizing. One of: none, pre-rope. Default: none."
std::string sentences(const Flag::Description& flag) {
  std::string text = flag.text + ".";
  const bool are_named = std::ranges::all_of(flag.words, [&](const std::string& word) {
    return flag.text.find(word) != std::string::npos;
  });
  if (!are_named) text += fmt::format(" One of: {}.", fmt::join(flag.words, ", "));
  if (!flag.default_text.empty()) text += fmt::format(" Default: {}.", flag.default_text);
  if (flag.is_required && !flag.is_positional) text += " Required.";
  if (!flag.old_names.empty()) {
    text += fmt::format(" The old name {} still works.", fmt::join(flag.old_names, ", "));
  }
  return text;
}

// The flags that many verbs have, each once, in the order of the verbs. One that verbs explain in
// different words would stand here twice.
std::vector<Flag::Description> shared_flags(const std::vector<std::unique_ptr<Page>>& pages) {
  std::vector<Flag::Description> shared;
  for (const auto& page : pages) {
    for (const auto& flag : page->flags->flags()) {
      const Flag::Description& about = flag->description();
      const auto is_same = [&](const Flag::Description& other) {
        return heading(other) == heading(about) && sentences(other) == sentences(about);
      };
      if (about.is_shared && std::ranges::none_of(shared, is_same)) shared.push_back(about);
    }
  }
  return shared;
}

// Those of a verb: {"-t, --threads N", "--json"}.
std::vector<std::string> shared_headings(const FlagSet& flags) {
  std::vector<std::string> headings;
  for (const auto& flag : flags.flags()) {
    if (flag->description().is_shared) headings.push_back(heading(flag->description()));
  }
  return headings;
}

// The flags of a group that the page of the verb explains.
std::vector<Flag::Description> own_flags(const FlagSet& flags, const std::string& group) {
  std::vector<Flag::Description> own;
  for (const auto& flag : flags.flags()) {
    const Flag::Description& about = flag->description();
    if (about.group == group && !about.is_shared) own.push_back(about);
  }
  return own;
}

// --- docs/reference/cli.md

std::string markdown_text(std::string_view text) {
  return replaced(replaced(std::string(text), "<", "&lt;"), "*", "\\*");
}

// Prose, whose indented lines become code blocks.
std::string markdown_prose(std::string_view prose) {
  std::string out;
  bool is_code = false;
  const std::string folded = fold(prose, kColumns);
  for (std::string_view rest = folded; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const bool indented = line.starts_with(' ');
    if (indented != is_code)
      out += indented ? (out.ends_with("\n\n") ? "```\n" : "\n```\n") : "```\n";
    if (is_code && !indented && !line.empty()) out += "\n";
    is_code = indented;
    out += indented ? std::string(line.substr(2)) : markdown_text(line);
    out += "\n";
  }
  return is_code ? out + "```\n" : out;
}

std::string markdown_item(const Flag::Description& flag) {
  const std::string text =
      fold(fmt::format("`{}`: {}", heading(flag), markdown_text(sentences(flag))), kColumns, 2);
  return "- " + text.substr(2);
}

std::string markdown_page(const Page& page) {
  const FlagSet& flags = *page.flags;
  std::string text = fmt::format("\n## tqcache {}\n\n{}.\n\n```text\n{}\n```\n", page.name,
                                 flags.summary(), usage_line(flags));
  for (const std::string& group : groups_of(flags)) {
    const std::vector<Flag::Description> own = own_flags(flags, group);
    if (own.empty()) continue;
    text += fmt::format("\n{}:\n\n", group);
    for (const Flag::Description& flag : own) text += markdown_item(flag);
  }
  if (const auto shared = shared_headings(flags); !shared.empty()) {
    text += "\n" + fold(fmt::format("Also `{}`: [flags of many verbs](#flags-of-many-verbs).",
                                    fmt::join(shared, "`, `")),
                        kColumns);
  }
  if (!flags.prose().empty()) text += "\n" + markdown_prose(flags.prose());
  if (!flags.example_lines().empty()) {
    text += "\n```sh\n";
    for (std::string_view rest = flags.example_lines(); !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.starts_with("  ")) line.remove_prefix(2);
      text += std::string(line) + "\n";
    }
    text += "```\n";
  }
  return text;
}

std::string markdown(const std::vector<std::unique_ptr<Page>>& pages) {
  std::string text = fmt::format("# Command line\n\n{}\n\n", fold(kGenerated, kColumns));
  text = replaced(std::move(text), "\n\n\n", "\n\n");
  text += fold(
      "Results go to standard output; progress, summaries, warnings and errors go to "
      "standard error. A file name of `-` means standard input or standard output. With "
      "`--json` the result is one JSON object on standard output, and an error is one "
      "on standard error, in one line and in place of the line for people.",
      kColumns);
  text += "\n";
  text += fold(
      "The memory of the program holds prompts. So it leaves no core dump when it crashes, and "
      "debuggers cannot attach to it. `tqcache --core-dumps VERB` allows both.",
      kColumns);
  text += "\n";
  text += fold(
      "`tqcache completion bash` writes the completions of a shell (bash, zsh, fish): put "
      "`source <(tqcache completion bash)` into `~/.bashrc`. An installation has them, and a "
      "manual "
      "page of each verb (`man tqcache-convert`), where shells and `man` look. "
      "[output.schema.json](output.schema.json) describes what each verb prints with `--json`.",
      kColumns);
  text += "\n| Exit code | Meaning |\n|---|---|\n";
  constexpr std::pair<int, std::string_view> kCodes[] = {
      {0, "success"},
      {1, "failure: the operating system or a service refused"},
      {2, "usage: the command line makes no sense"},
      {3, "partial success: some files failed, or a size limit could not be met"},
      {10, "not found"},
      {11, "busy: another process is writing the file"},
      {20, "corrupt: damaged or truncated data"},
      {21, "unsupported: a version, kind or size beyond this program"},
      {22, "wrong model or key: the cache belongs to another model, or its key is missing"},
      {130, "interrupted"}};
  for (const auto& [code, meaning] : kCodes) text += fmt::format("| {} | {} |\n", code, meaning);
  text += "\n| Verb | |\n|---|---|\n";
  for (const auto& page : pages) {
    text += fmt::format("| [{}](#tqcache-{}) | {} |\n", page->name, replaced(page->name, " ", "-"),
                        page->flags->summary());
  }
  text += "\n## Flags of many verbs\n\n";
  for (const Flag::Description& flag : shared_flags(pages)) text += markdown_item(flag);
  for (const auto& page : pages) text += markdown_page(*page);
  return text;
}

// --- man pages

std::string roff(std::string_view text) {
  std::string out;
  bool at_begin = true;
  for (const char c : text) {
    if (at_begin && (c == '.' || c == '\'')) out += "\\&";
    at_begin = c == '\n';
    out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return out;
}

std::string roff_head(const std::string& title) {
  std::string upper = title;
  std::ranges::transform(upper, upper.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return fmt::format(".\\\" {}\n.TH {} 1 \"\" \"tqcache " TQCACHE_VERSION "\" \"User Commands\"\n",
                     kGenerated, roff(upper));
}

std::string roff_prose(std::string_view prose) {
  std::string out = ".PP\n";
  bool is_code = false;
  for (std::string_view rest = prose; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const bool indented = line.starts_with(' ');
    if (indented && !is_code) out += ".RS 4\n.nf\n";
    if (!indented && is_code) out += ".fi\n.RE\n";
    is_code = indented;
    if (line.empty()) {
      out += ".PP\n";
    } else {
      out += roff(indented ? line.substr(2) : line) + "\n";
    }
  }
  return is_code ? out + ".fi\n.RE\n" : replaced(out, ".PP\n.PP\n", ".PP\n");
}

std::string roff_item(const Flag::Description& flag) {
  return fmt::format(".TP\n.B {}\n{}\n", roff(heading(flag)), roff(sentences(flag)));
}

std::string man_page(const Page& page) {
  const FlagSet& flags = *page.flags;
  const std::string title = "tqcache-" + replaced(page.name, " ", "-");
  std::string text =
      roff_head(title) + fmt::format(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n", roff(title),
                                     roff(flags.summary()), roff(usage_line(flags)));
  if (!flags.prose().empty()) text += ".SH DESCRIPTION\n" + roff_prose(flags.prose());
  text += ".SH OPTIONS\n";
  for (const std::string& group : groups_of(flags)) {
    const std::vector<Flag::Description> own = own_flags(flags, group);
    if (own.empty()) continue;
    text += fmt::format(".SS {}\n", roff(group));
    for (const Flag::Description& flag : own) text += roff_item(flag);
  }
  if (const auto shared = shared_headings(flags); !shared.empty()) {
    text += fmt::format(".SS Flags of many verbs\n.BR tqcache (1)\nexplains {}.\n",
                        roff(fmt::format("{}", fmt::join(shared, "; "))));
  }
  if (!flags.example_lines().empty()) {
    text += ".SH EXAMPLES\n.nf\n" + roff(flags.example_lines()) + ".fi\n";
  }
  return text + ".SH SEE ALSO\n.BR tqcache (1)\n";
}

std::string main_man_page(const std::vector<std::unique_ptr<Page>>& pages) {
  std::string text = roff_head("tqcache");
  text +=
      ".SH NAME\ntqcache \\- save, shrink, verify and move KV caches of language models\n"
      ".SH SYNOPSIS\n.B tqcache\n.RB [ \\-\\-core\\-dumps ]\n.I VERB\n.RI [ FLAGS ]\n"
      ".SH OPTIONS\n.TP\n.B \\-\\-core\\-dumps\n"
      "Allow a core dump, which holds prompts, when the program crashes, and debuggers.\n"
      ".TP\n.B completion \\fISHELL\\fP\nWrite the completions for bash, zsh or fish to standard "
      "output.\n"
      ".SH VERBS\n";
  for (const auto& page : pages) {
    text += fmt::format(".TP\n.B {}\n{}. See\n.BR tqcache\\-{} (1).\n", roff(page->name),
                        roff(page->flags->summary()), roff(replaced(page->name, " ", "-")));
  }
  text += ".SH FLAGS OF MANY VERBS\n";
  for (const Flag::Description& flag : shared_flags(pages)) text += roff_item(flag);
  return text +
         ".SH ENVIRONMENT\n"
         ".TP\n.B TQCACHE_ISA\nInstruction set of the kernels: scalar, avx2, avx512 or neon.\n"
         ".TP\n.B TQCACHE_STORE\nURL of the store, where \\-\\-store is not given.\n"
         ".TP\n.B TQCACHE_STORE_SALT\nSalt of the tenant, where \\-\\-salt\\-file is not given.\n"
         ".TP\n.B NO_COLOR\nProgress bars without color.\n"
         ".SH EXIT STATUS\n0 success, 1 failure, 2 usage, 3 partial success, 10 not found, 11 "
         "busy,\n"
         "20 corrupt, 21 unsupported, 22 wrong model or key, 130 interrupted.\n";
}

// --- completions

// The text up to the end of the first sentence, without characters that are special in shells.
std::string short_text(std::string_view text) {
  std::string out(text.substr(0, text.find_first_of(".;:(")));
  for (const std::string_view special : {"'", "\"", "[", "]", "\\", "$", "`"}) {
    out = replaced(std::move(out), special, "");
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

std::vector<std::string> verb_names(std::span<const Verb> verbs) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.emplace_back(last_word(verb));
  return names;
}

std::string bash_values(const Flag::Description& flag) {
  switch (flag.completion) {
    case Completion::kFile:
      return "files -f";
    case Completion::kFolder:
      return "files -d";
    case Completion::kWords:
      return fmt::format("words \"{}\"", fmt::join(flag.words, " "));
    case Completion::kNothing:
      break;
  }
  return "return";
}

std::string bash_case(const Page& page) {
  std::vector<std::string> names = {"--help"};
  std::string values;
  std::string argument;
  for (const auto& flag : page.flags->flags()) {
    const Flag::Description& about = flag->description();
    if (about.is_positional) {
      if (about.completion == Completion::kFile) argument = "      files -f\n";
      continue;
    }
    names.insert(names.end(), about.names.begin(), about.names.end());
    if (!about.takes_value) continue;
    values += fmt::format("        {}) {}; return ;;\n", fmt::join(about.names, " | "),
                          bash_values(about) == "return" ? ":" : bash_values(about));
  }
  if (argument.empty()) argument = "      :\n";
  return fmt::format(
      "    \"{}\")\n      case $prev in\n{}      esac\n"
      "      if [[ $cur == -* ]]; then\n        words \"{}\"\n        return\n      fi\n{}      "
      ";;\n",
      page.name, values, fmt::join(names, " "), argument);
}

std::string bash_completion(const std::vector<std::unique_ptr<Page>>& pages) {
  std::string groups;
  std::string sub_verbs;
  const std::string verbs = fmt::format("{}", fmt::join(verb_names(all_verbs()), " "));
  groups = "help | completion";
  sub_verbs = fmt::format(
      "      help) words \"{}\" ;;\n      completion) words \"bash zsh fish\" ;;\n", verbs);
  for (const Verb& verb : all_verbs()) {
    if (verb.verbs.empty()) continue;
    groups += (groups.empty() ? "" : " | ") + std::string(verb.name);
    sub_verbs += fmt::format("      {}) words \"{} --help\" ;;\n", verb.name,
                             fmt::join(verb_names(verb.verbs), " "));
  }
  std::string text = fmt::format(
      "# bash completion for tqcache.\n# {}\n\n"
      "_tqcache() {{\n"
      "  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}}\n"
      "  local verb=${{COMP_WORDS[1]}} first=2\n"
      "  COMPREPLY=()\n"
      "  words() {{ mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$cur\"); }}\n"
      "  files() {{ mapfile -t COMPREPLY < <(compgen \"$1\" -- \"$cur\"); }}\n"
      "  # bash takes --flag=value apart.\n"
      "  if [[ $cur == = ]]; then\n    cur=\"\"\n"
      "  elif [[ $prev == = ]]; then\n    prev=${{COMP_WORDS[COMP_CWORD - 2]}}\n  fi\n"
      "  if ((COMP_CWORD == 1)); then\n    words \"{} help version completion --help --version\"\n "
      "   "
      "return\n  fi\n"
      "  case $verb in\n    {})\n"
      "      first=3\n      verb+=\" ${{COMP_WORDS[2]}}\"\n      ;;\n  esac\n"
      "  if ((COMP_CWORD < first)); then\n    case ${{COMP_WORDS[1]}} in\n{}    esac\n"
      "    return\n  fi\n"
      "  case $verb in\n",
      kGenerated, verbs, groups, sub_verbs);
  for (const auto& page : pages) text += bash_case(*page);
  return text + "  esac\n}\n\ncomplete -o filenames -F _tqcache tqcache\n";
}

std::string zsh_values(const Flag::Description& flag) {
  const std::string label = flag.type_name.empty() ? flag.names.front() : flag.type_name;
  const std::string name = short_text(label).empty() ? "value" : short_text(label);
  switch (flag.completion) {
    case Completion::kFile:
      return fmt::format(":{}:_files", name);
    case Completion::kFolder:
      return fmt::format(":{}:_files -/", name);
    case Completion::kWords:
      return fmt::format(":{}:({})", name,
                         replaced(fmt::format("{}", fmt::join(flag.words, " ")), ":", "\\:"));
    case Completion::kNothing:
      break;
  }
  return fmt::format(":{}: ", name);
}

std::string zsh_case(const Page& page) {
  std::string specs;
  for (const auto& flag : page.flags->flags()) {
    const Flag::Description& about = flag->description();
    if (about.is_positional) {
      specs += fmt::format("        '{}{}' \\\n", about.is_list ? "*" : "", zsh_values(about));
      continue;
    }
    const std::string values = about.takes_value ? zsh_values(about) : "";
    const std::string repeat = about.is_list ? "*" : "";
    for (const std::string& name : about.names) {
      specs += fmt::format("        '{}{}{}[{}]{}' \\\n",
                           about.is_list ? "" : fmt::format("({})", fmt::join(about.names, " ")),
                           repeat, name, short_text(about.text), values);
    }
  }
  return fmt::format("    '{}')\n      _arguments -s \\\n{}        '--help[Show the help]' ;;\n",
                     page.name, specs);
}

std::string zsh_list(std::string_view array, std::span<const Verb> verbs,
                     std::string_view more = "") {
  std::string text = fmt::format("  {}=(\n{}", array, more);
  for (const Verb& verb : verbs) {
    text += fmt::format("    '{}:{}'\n", last_word(verb), short_text(verb.summary));
  }
  return text + "  )\n";
}

std::string zsh_completion(const std::vector<std::unique_ptr<Page>>& pages) {
  std::string text = fmt::format(
      "#compdef tqcache\n# {}\n\n_tqcache() {{\n  local -a verbs\n  local verb\n"
      "  if (( CURRENT == 2 )); then\n",
      kGenerated);
  text += zsh_list("verbs", all_verbs(),
                   "    'help:Describe a verb'\n    'version:Show the version'\n"
                   "    'completion:Write the completions of a shell'\n");
  text += "    _describe verb verbs\n    return\n  fi\n  verb=$words[2]\n";
  text += "  if [[ $verb == help ]]; then\n";
  text += zsh_list("verbs", all_verbs());
  text += "    (( CURRENT == 3 )) && _describe verb verbs\n    return\n  fi\n";
  text +=
      "  if [[ $verb == completion ]]; then\n    _values shell bash zsh fish\n    return\n  fi\n";
  for (const Verb& verb : all_verbs()) {
    if (verb.verbs.empty()) continue;
    text +=
        fmt::format("  if [[ $verb == {} ]]; then\n    if (( CURRENT == 3 )); then\n", verb.name);
    text += zsh_list("verbs", verb.verbs);
    text +=
        "      _describe verb verbs\n      return\n    fi\n    verb+=\" $words[3]\"\n"
        "    words=(\"${(@)words[2,-1]}\")\n    (( CURRENT-- ))\n  fi\n";
  }
  text += "  words=(\"${(@)words[2,-1]}\")\n  (( CURRENT-- ))\n  case $verb in\n";
  for (const auto& page : pages) text += zsh_case(*page);
  return text + "  esac\n}\n\n_tqcache \"$@\"\n";
}

std::string fish_completion(const std::vector<std::unique_ptr<Page>>& pages) {
  std::string text = fmt::format(
      "# fish completion for tqcache.\n# {}\n\n"
      "# Whether these words stand behind the program's name.\n"
      "function __tqcache_using\n"
      "  set -l words (commandline -opc)\n"
      "  set -e words[1]\n"
      "  set -l n (count $argv)\n"
      "  test (count $words) -ge $n\n"
      "  and test \"$words[1..$n]\" = \"$argv\"\n"
      "end\n\n"
      "# Whether exactly these words do.\n"
      "function __tqcache_at\n"
      "  set -l words (commandline -opc)\n"
      "  set -e words[1]\n"
      "  test \"$words\" = \"$argv\"\n"
      "end\n\n"
      "complete -c tqcache -f\n"
      "complete -c tqcache -n __tqcache_at -l version -d 'Show the version'\n"
      "complete -c tqcache -n __tqcache_at -a version -d 'Show the version'\n"
      "complete -c tqcache -n __tqcache_at -a help -d 'Describe a verb'\n"
      "complete -c tqcache -n __tqcache_at -a completion -d 'Write the completions of a shell'\n"
      "complete -c tqcache -n '__tqcache_at completion' -a 'bash zsh fish'\n"
      "complete -c tqcache -l help -d 'Show the help'\n",
      kGenerated);
  for (const Verb& verb : all_verbs()) {
    for (const std::string_view place : {"__tqcache_at", "'__tqcache_at help'"}) {
      text += fmt::format("complete -c tqcache -n {} -a {} -d '{}'\n", place, verb.name,
                          short_text(verb.summary));
    }
    for (const Verb& part : verb.verbs) {
      text += fmt::format("complete -c tqcache -n '__tqcache_at {}' -a {} -d '{}'\n", verb.name,
                          last_word(part), short_text(part.summary));
    }
  }
  for (const auto& page : pages) {
    const std::string head = fmt::format("complete -c tqcache -n '__tqcache_using {}'", page->name);
    for (const auto& flag : page->flags->flags()) {
      const Flag::Description& about = flag->description();
      if (about.is_positional) {
        if (about.completion == Completion::kFile) text += head + " -F\n";
        continue;
      }
      std::string line = head;
      for (const std::string& name : about.names) {
        line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (about.takes_value)
        line += about.completion == Completion::kFile || about.completion == Completion::kFolder
                    ? " -r -F"
                    : " -x";
      if (!about.words.empty()) line += fmt::format(" -a '{}'", fmt::join(about.words, " "));
      text += fmt::format("{} -d '{}'\n", line, short_text(about.text));
    }
  }
  return text;
}

Result<void> write(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) return Error{ErrorCode::kIo, error.message(), path.parent_path().string()};
  TQC_TRY(in_file(path.string(),
                  write_file_atomically(path, std::as_bytes(std::span(text)), Overwrite::kAllow)));
  // Pages are readable by everybody, unlike caches.
  std::filesystem::permissions(path, std::filesystem::perms(0644), error);
  return {};
}

}  // namespace

Result<std::string> completion_script(const std::string& shell) {
  if (shell == "bash") return bash_completion(all_pages());
  if (shell == "zsh") return zsh_completion(all_pages());
  if (shell == "fish") return fish_completion(all_pages());
  return usage_error(
      fmt::format("completions for {}: there are some for bash, zsh and fish", shell));
}

Result<void> write_reference(const std::filesystem::path& folder) {
  const std::vector<std::unique_ptr<Page>> pages = all_pages();
  TQC_TRY(write(folder / "docs/reference/cli.md", markdown(pages)));
  TQC_TRY(write(folder / "man/tqcache.1", main_man_page(pages)));
  for (const auto& page : pages) {
    const std::string name = "tqcache-" + replaced(page->name, " ", "-") + ".1";
    TQC_TRY(write(folder / "man" / name, man_page(*page)));
  }
  TQC_TRY(write(folder / "completions/tqcache.bash", bash_completion(pages)));
  TQC_TRY(write(folder / "completions/_tqcache", zsh_completion(pages)));
  return write(folder / "completions/tqcache.fish", fish_completion(pages));
}

}  // namespace tqcache::cli
