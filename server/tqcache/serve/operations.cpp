#include "tqcache/serve/operations.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tqcache::serve {
namespace {

std::string labels_text(const Metrics::Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    std::string escaped;
    for (const char c : value) {
      if (c == '\n') {
        escaped += "\\n";
        continue;
      }
      if (c == '"' || c == '\\') escaped += '\\';
      escaped += c;
    }
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", name, escaped);
  }
  return text.empty() ? text : "{" + text + "}";
}

std::string number_text(double value) {
  if (std::trunc(value) == value && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{:.6g}", value);
}

std::string log_value(const std::string& value) {
  const bool is_plain = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > 0x20 && byte < 0x7f && c != '"' && c != '=' && c != '\\';
  });
  if (is_plain) return value;
  return nlohmann::json(value).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string_view name_of_level(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      break;
  }
  return "error";
}

}  // namespace

void Metrics::define(std::string name, Type type, std::string help, bool start_at_zero) {
  const std::lock_guard lock(mutex_);
  Family& family = families_[std::move(name)];
  family.type = type;
  family.help = std::move(help);
  if (start_at_zero) family.values.try_emplace("", 0.0);
}

void Metrics::add(std::string_view name, double amount, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  const auto family = families_.find(name);
  if (family != families_.end()) family->second.values[labels_text(labels)] += amount;
}

void Metrics::set(std::string_view name, double value, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  const auto family = families_.find(name);
  if (family != families_.end()) family->second.values[labels_text(labels)] = value;
}

double Metrics::value(std::string_view name, const Labels& labels) const {
  const std::lock_guard lock(mutex_);
  const auto family = families_.find(name);
  if (family == families_.end()) return 0;
  const auto value = family->second.values.find(labels_text(labels));
  return value == family->second.values.end() ? 0 : value->second;
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [name, family] : families_) {
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, family.help, name,
                        family.type == Type::kCounter ? "counter" : "gauge");
    for (const auto& [labels, value] : family.values) {
      text += fmt::format("{}{} {}\n", name, labels, number_text(value));
    }
  }
  return text;
}

void Log::line(LogLevel level, std::string_view event, const Fields& fields) {
  if (quiet_ && level == LogLevel::kInfo) return;
  const auto now = std::chrono::system_clock::now();
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::string text = fmt::format("time={:%Y-%m-%dT%H:%M:%S}.{:03}Z level={} event={}",
                                 fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms,
                                 name_of_level(level), event);
  for (const auto& [name, value] : fields) text += fmt::format(" {}={}", name, log_value(value));
  text += '\n';
  const std::lock_guard lock(mutex_);
  if (write_) return write_(text);
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (n <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace tqcache::serve
