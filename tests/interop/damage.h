#pragma once
// tests/interop/damage.h: the outcomes that a damaged file of another program may have.

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

#include "interop/foreign_cache_reading.h"

namespace tqcache::test {

// Whether an error says that the content of a file is wrong, and not that something else failed.
inline bool is_of_content(const Error& error) {
  const bool is_of_content =
      error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kTruncated ||
      error.code == ErrorCode::kTooLarge || error.code == ErrorCode::kUnsupported ||
      error.code == ErrorCode::kMismatch;
  return is_of_content && !error.message.empty();
}

// Refused for its content, when it is imported or when it is read, or a valid cache; then counts
// it.
inline testing::AssertionResult refused_or_valid(Result<interop::ForeignCache> foreign,
                                                 std::size_t& n_valid) {
  const auto refusal = [](const Error& error) {
    if (is_of_content(error)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << static_cast<int>(error.code) << ": " << error.message;
  };
  if (!foreign) return refusal(foreign.error());
  const auto sections = interop::reader_of(std::move(foreign).value());
  if (!sections) return refusal(sections.error());
  const auto cache = load_all_sections(**sections);
  if (!cache) return refusal(cache.error());
  const auto valid = cache::validate(*cache);
  if (!valid) return testing::AssertionFailure() << "not valid: " << valid.error().message;
  ++n_valid;
  return testing::AssertionSuccess();
}

}  // namespace tqcache::test
