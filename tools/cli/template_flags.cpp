#include "cli/template_flags.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "cli/cache_io.h"
#include "cli/text.h"

namespace tqcache::cli {

void add_template_flags(FlagSet& app, TemplateFlags& flags, const std::string& group) {
  Flag* const chosen =
      app.add("--template", flags.chosen,
              "Chat template to use instead of the one in the model: a file in Jinja, or " +
                  tokenizer::ChatTemplate::names());
  chosen->type_name("FILE")->file();
  Flag* const date = app.add("--date", flags.date,
                             "Date that the chat template learns, if it asks for one (default: "
                             "today): YYYY-MM-DD");
  date->type_name("DATE");
  if (group.empty()) return;
  chosen->group(group);
  date->group(group);
}

Result<std::string> read_template(const TemplateFlags& flags) {
  constexpr std::uint64_t kMaxTemplate = std::uint64_t{1} << 20;
  if (flags.chosen.empty() || tokenizer::ChatTemplate::is_name(flags.chosen)) return flags.chosen;
  if (flags.chosen == "-") return usage_error("--template: standard input is used otherwise");
  auto bytes = read_input(flags.chosen, kMaxTemplate);
  if (!bytes) {
    Error error = std::move(bytes).error();
    if (error.code == ErrorCode::kNotFound) {
      error.message += ", and no template has this name: " + tokenizer::ChatTemplate::names();
    }
    return in_file(flags.chosen, std::move(error));
  }
  std::string text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  if (text.empty()) return in_file(flags.chosen, usage_error("the file is empty"));
  if (auto parsed = tokenizer::ChatTemplate::parse(text); !parsed) {
    return in_file(flags.chosen, std::move(parsed).error());
  }
  return text;
}

Result<std::optional<tokenizer::CivilTime>> read_date(const TemplateFlags& flags) {
  if (flags.date.empty()) return std::optional<tokenizer::CivilTime>();
  tokenizer::CivilTime time;
  int n_read = 0;
  const int n =
      std::sscanf(flags.date.c_str(), "%4d-%2d-%2d%n", &time.year, &time.month, &time.day, &n_read);
  const std::chrono::year_month_day day{std::chrono::year(time.year),
                                        std::chrono::month(static_cast<unsigned>(time.month)),
                                        std::chrono::day(static_cast<unsigned>(time.day))};
  const bool is_date = n == 3 && static_cast<std::size_t>(n_read) == flags.date.size() &&
                       flags.date.size() == 10 && time.year >= 1 && day.ok();
  if (!is_date) return usage_error("--date: expected a day as 2026-11-29, found " + flags.date);
  return std::optional(time);
}

tokenizer::CivilTime local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
#ifdef _WIN32
  if (localtime_s(&local, &now) != 0) return {};
#else
  if (localtime_r(&now, &local) == nullptr) return {};
#endif
  return {local.tm_year + 1900, local.tm_mon + 1, local.tm_mday,
          local.tm_hour,        local.tm_min,     std::min(local.tm_sec, 59)};
}

}  // namespace tqcache::cli
