#pragma once
// tqcache/error.h: Result<T>, a value or an Error.
//
//   tqcache::Result<tqcache::Bytes> read_twice(const char* path) {
//     TQC_TRY_ASSIGN(tqcache::Bytes once, tqcache::read_file(path, 1 << 20));
//     TQC_TRY(check(once));                      // returns the error of a Result<void>
//     return tqcache::read_file(path, 1 << 20);  // or the error
//   }
//
// Bad bytes, missing files and full disks are expected failures, so they are part of the signature
// and not exceptions. Exceptions are left for bad_alloc. Using the value of a failed Result, or the
// error of a good one, is a bug of the caller: it ends the program with a message, in every build.
//
// A message gives the place, then the fact: "section 12 (layer 3 k): checksum mismatch". It has no
// "error" and no full stop. The file, if one is involved, is a field of its own: code that works on
// memory leaves it empty, and callers that know the name add it with in_file().

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace tqcache {

enum class ErrorCode {
  kTruncated,        // the bytes end early
  kCorrupt,          // the bytes contradict the format or a checksum
  kUnsupported,      // valid, but newer than this reader or not implemented
  kTooLarge,         // beyond a documented limit
  kMismatch,         // a good file, for another model or shape
  kNoKey,            // an encrypted file, whose key is not given
  kInvalidArgument,  // the caller asked for something impossible
  kNotFound,         // no such file
  kIo,               // the operating system reports a failure
  kBusy,             // another process is writing the file
  kInterrupted,      // the user asked to stop
};

struct Error {
  ErrorCode code;
  std::string message;
  std::string file = {};  // empty: no file is involved, or the caller adds it
};

// The most frequent errors.
inline Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }
inline Error unsupported(std::string message) {
  return {ErrorCode::kUnsupported, std::move(message)};
}
inline Error too_large(std::string message) { return {ErrorCode::kTooLarge, std::move(message)}; }
inline Error mismatch(std::string message) { return {ErrorCode::kMismatch, std::move(message)}; }
inline Error invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}
inline Error interrupted_error() { return {ErrorCode::kInterrupted, "interrupted"}; }

// The same error with one more level of context in front: "layer 3 k: " + message.
inline Error in_context(std::string_view where, Error error) {
  error.message = std::string(where) + ": " + error.message;
  return error;
}

// The same error with the name of the file, unless it names one already.
inline Error in_file(std::string_view file, Error error) {
  if (error.file.empty()) error.file = file;
  return error;
}

// Ends the program. Out of line and cold, so that the checks below cost one predictable branch,
// which the compiler drops after `if (!result)`.
[[noreturn, gnu::cold, gnu::noinline]] inline void abort_on_wrong_access(const Error* error) {
  if (error != nullptr) {
    std::fprintf(stderr, "tqcache: value() of a Result with an error: %s\n",
                 error->message.c_str());
  } else {
    std::fputs("tqcache: error() of a Result with a value\n", stderr);
  }
  std::abort();
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(implicit)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(implicit)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Requires: ok(). Aborts otherwise.
  T& value() & { return check_value(), *std::get_if<0>(&state_); }
  const T& value() const& { return check_value(), *std::get_if<0>(&state_); }
  T&& value() && { return check_value(), std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Requires: !ok(). Aborts otherwise.
  const Error& error() const& { return check_error(), *std::get_if<1>(&state_); }
  Error&& error() && { return check_error(), std::move(*std::get_if<1>(&state_)); }

 private:
  void check_value() const {
    if (!ok()) [[unlikely]]
      abort_on_wrong_access(std::get_if<1>(&state_));
  }
  void check_error() const {
    if (ok()) [[unlikely]]
      abort_on_wrong_access(nullptr);
  }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(implicit)

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }

  // Requires: !ok(). Aborts otherwise.
  const Error& error() const& { return check_error(), *error_; }
  Error&& error() && { return check_error(), std::move(*error_); }

 private:
  void check_error() const {
    if (ok()) [[unlikely]]
      abort_on_wrong_access(nullptr);
  }

  std::optional<Error> error_;
};

template <class T>
Result<T> in_file(std::string_view file, Result<T> result) {
  if (!result) return in_file(file, std::move(result).error());
  return result;
}

}  // namespace tqcache

// A unique name. __COUNTER__ and not __LINE__: the preprocessor sees a macro's argument as one
// line, and a lambda in it may use these macros again.
#define TQC_CONCAT_INNER(a, b) a##b
#define TQC_CONCAT(a, b) TQC_CONCAT_INNER(a, b)
#define TQC_UNIQUE_NAME TQC_CONCAT(tqc_result_, __COUNTER__)

// Returns the error of the expression, a Result, from the calling function, if it has one.
#define TQC_TRY(...) TQC_TRY_INNER(TQC_UNIQUE_NAME, (__VA_ARGS__))
#define TQC_TRY_INNER(result, expr)                                    \
  do {                                                                 \
    if (auto result = expr; !result) return std::move(result).error(); \
  } while (false)

// Initializes `decl` with the value of an expression, a Result<T>, or returns its error.
//
// It expands to three statements and declares a variable in the enclosing scope. So use it only
// inside a block: as the body of an `if` or `for` without braces it does not compile.
#define TQC_TRY_ASSIGN(decl, ...) TQC_TRY_ASSIGN_INNER(TQC_UNIQUE_NAME, decl, (__VA_ARGS__))
#define TQC_TRY_ASSIGN_INNER(result, decl, expr) \
  auto result = expr;                            \
  if (!result) return std::move(result).error(); \
  decl = std::move(result).value()
