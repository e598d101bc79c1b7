#pragma once
// store/backends/backend_support.h: batches of keys and blobs, and printable server texts.
//
// Only for the sources of store.

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/store.h"

namespace tqcache::store {

// Calls each(begin, some) for runs of at most `limit` items; `begin` is the index of the first.
// Errors: the first one of `each`.
template <class T, class Each>
Result<void> in_batches(std::span<T> all, std::size_t limit, Each each) {
  for (std::size_t i = 0; i < all.size(); i += limit) {
    TQC_TRY(each(i, all.subspan(i, std::min(limit, all.size() - i))));
  }
  return {};
}

// The length of the longest prefix, at most `limit`, whose keys all differ: these may be put in any
// order.
inline std::size_t count_different(std::span<const Blob> blobs, std::size_t limit) {
  std::set<std::string_view> keys;
  while (keys.size() < std::min(blobs.size(), limit)) {
    if (!keys.insert(blobs[keys.size()].key).second) break;
  }
  return keys.size();
}

// Calls put_some(some, outcomes) for each such run. Errors: those of `put_some`.
template <class PutSome>
Result<std::vector<PutOutcome>> put_in_batches(std::span<const Blob> blobs, std::size_t limit,
                                               PutSome put_some) {
  std::vector<PutOutcome> outcomes;
  while (!blobs.empty()) {
    const std::size_t count = count_different(blobs, limit);
    TQC_TRY(put_some(blobs.first(count), outcomes));
    blobs = blobs.subspan(count);
  }
  return outcomes;
}

// --- text of a server or a URL in error messages

// Secrets of a user that a server knows, and may repeat. Empty ones do not count.
using Secrets = std::span<const std::string_view>;

// Puts stars in the place of secrets, also where they overlap.
inline void hide(std::span<char> text, Secrets secrets) {
  const std::string given(text.begin(), text.end());
  for (const std::string_view secret : secrets) {
    if (secret.empty()) continue;
    for (auto at = given.find(secret); at != std::string_view::npos;
         at = given.find(secret, at + 1)) {
      std::ranges::fill(text.subspan(at, secret.size()), '*');
    }
  }
}

// Truncates the text to 200 bytes and replaces everything but printable ASCII by '?', because the
// text of a server is as untrusted as a file. Stars replace secrets.
inline std::string printable(std::string_view from, Secrets secrets = {}) {
  constexpr std::size_t kMaxPrintedBytes = 200;  // so that a key is shown whole
  std::string text(from);
  hide(text, secrets);
  std::string out;
  for (const char c : std::string_view(text).substr(0, kMaxPrintedBytes)) {
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  if (text.size() > kMaxPrintedBytes) out += "...";
  return out;
}

// The same, in double quotes.
inline std::string in_quotes(std::string_view text, Secrets secrets = {}) {
  return '"' + printable(text, secrets) + '"';
}

}  // namespace tqcache::store
