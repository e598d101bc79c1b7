#pragma once
// tools/cli/outcome.h: a value, or what went wrong and with which file.
//
// The library's Error names no file, because it may work on memory; the tool knows the file and
// adds it here. TQC_TRY and TQC_TRY_ASSIGN take an Outcome like a Result.

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "tqcache/base/result.h"

namespace tqcache::cli {

struct Failure {
  Error error;
  std::string file;     // empty: no file is to blame
  bool silent = false;  // the reader of our output went away: nobody is left to tell
};

template <class T>
class [[nodiscard]] Outcome {
 public:
  Outcome(T value) : state_(std::in_place_index<0>, std::move(value)) {}            // NOLINT
  Outcome(Failure failure) : state_(std::in_place_index<1>, std::move(failure)) {}  // NOLINT
  Outcome(Error error) : Outcome(Failure{std::move(error), {}, false}) {}           // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Requires: ok().
  T& value() & { return assert(ok()), *std::get_if<0>(&state_); }
  const T& value() const& { return assert(ok()), *std::get_if<0>(&state_); }
  T&& value() && { return assert(ok()), std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Requires: !ok().
  const Failure& error() const& { return assert(!ok()), *std::get_if<1>(&state_); }
  Failure&& error() && { return assert(!ok()), std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<T, Failure> state_;
};

// The value of an Outcome that has nothing to say but that it went well.
struct Done {};

template <class T>
Outcome<T> in_file(std::string_view file, Result<T> result) {
  if (!result) return Failure{std::move(result).error(), std::string(file), false};
  return std::move(result).value();
}

inline Outcome<Done> in_file(std::string_view file, Result<void> result) {
  if (!result) return Failure{std::move(result).error(), std::string(file), false};
  return Done{};
}

// A command line that cannot be meant.
inline Error usage_error(std::string message) {
  return Error{ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace tqcache::cli
