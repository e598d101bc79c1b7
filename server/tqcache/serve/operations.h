#pragma once
// server/tqcache/serve/operations.h: counters for /metrics and the log of a server.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tqcache::serve {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Numbers in the text format of Prometheus. Each name has a type and a help line, which define()
// sets; its values may have labels: `tqcache_requests_total{path="/v1/models",status="200"} 7`.
//
// Threads: any number.
class Metrics {
 public:
  enum class Type { kCounter, kGauge };
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // With `start_at_zero` the value without labels is shown as 0 until it is first changed.
  void define(std::string name, Type type, std::string help, bool start_at_zero = true);

  // Requires: the name is defined.
  void add(std::string_view name, double amount = 1, const Labels& labels = {});
  void set(std::string_view name, double value, const Labels& labels = {});

  // 0 for a value that was never set.
  double value(std::string_view name, const Labels& labels = {}) const;

  std::string text() const;

 private:
  struct Family {
    Type type = Type::kCounter;
    std::string help;
    std::map<std::string, double> values;  // by the text of the labels
  };
  mutable std::mutex mutex_;
  std::map<std::string, Family, std::less<>> families_;
};

enum class LogLevel { kInfo, kWarning, kError };

// One line per event: `time=2026-11-23T14:00:00.123Z level=info event=request status=200`. Values
// with spaces, quotes or control characters are quoted as in JSON. Callers log no text of prompts,
// no answers and no keys.
//
// Threads: any number.
class Log {
 public:
  using Fields = std::vector<std::pair<std::string_view, std::string>>;
  using Write = std::function<void(std::string_view line)>;  // with its line end

  // Without a function lines go to standard error.
  explicit Log(Write write = {}, bool quiet = false) : write_(std::move(write)), quiet_(quiet) {}

  void info(std::string_view event, const Fields& fields) { line(LogLevel::kInfo, event, fields); }
  void warning(std::string_view event, const Fields& fields) {
    line(LogLevel::kWarning, event, fields);
  }
  void error(std::string_view event, const Fields& fields) {
    line(LogLevel::kError, event, fields);
  }

 private:
  void line(LogLevel level, std::string_view event, const Fields& fields);

  std::mutex mutex_;
  Write write_;
  bool quiet_;  // no kInfo
};

}  // namespace tqcache::serve
