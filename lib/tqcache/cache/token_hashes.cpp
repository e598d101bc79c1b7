#include <algorithm>
#include <string>
#include <string_view>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"

namespace tqcache::cache {
namespace {

constexpr std::string_view kDomain = "tqcache token block 1";

// Each hash also covers the one before it, so that blocks cannot be rearranged.
Sha256 hash_block(const Sha256& before, std::span<const std::int32_t> ids) {
  ByteWriter out;
  out.append_sized(as_bytes(kDomain));
  out.append(before);
  out.write<std::uint64_t>(ids.size());
  out.append(std::as_bytes(ids));
  return sha256(out.bytes());
}

Error other_tokens(std::int64_t block) {
  return {ErrorCode::kMismatch, "token block " + std::to_string(block) + ": other tokens"};
}

Result<void> compare_ids(const Cache& cache, std::span<const std::int32_t> ids) {
  const auto differs = std::ranges::mismatch(cache.tokens, ids).in1;
  if (differs == cache.tokens.end()) return {};
  return other_tokens((differs - cache.tokens.begin()) / kTokenBlock);
}

// A hash covers all earlier tokens as well, so the first one that differs names the block.
Result<void> compare_hashes(const std::vector<Sha256>& hashes, std::span<const std::int32_t> ids) {
  if (hashes.empty() && !ids.empty()) {
    return Error{ErrorCode::kUnsupported,
                 "the tokens are unknown: there are no hashes to compare with"};
  }
  const std::vector<Sha256> expected = hash_tokens(ids);
  const auto differs = std::ranges::mismatch(hashes, expected).in1;
  if (differs == hashes.end()) return {};
  return other_tokens(differs - hashes.begin());
}

}  // namespace

std::vector<Sha256> hash_tokens(std::span<const std::int32_t> tokens) {
  std::vector<Sha256> hashes;
  hashes.reserve(static_cast<std::size_t>(block_count(std::ssize(tokens))));
  Sha256 before{};
  while (!tokens.empty()) {
    const std::size_t n = std::min(tokens.size(), static_cast<std::size_t>(kTokenBlock));
    before = hash_block(before, tokens.first(n));
    hashes.push_back(before);
    tokens = tokens.subspan(n);
  }
  return hashes;
}

void hide_tokens(Cache& cache) {
  if (!tokens_known(cache)) return;
  cache.hidden_tokens = hash_tokens(cache.tokens);
  std::ranges::fill(cache.tokens, kUnknownToken);
  for (MediaSpan& span : cache.media) {
    span.id.clear();
    span.source.clear();  // may name it, too
  }
}

Result<void> reveal_tokens(Cache& cache, std::span<const std::int32_t> tokens) {
  if (std::ssize(tokens) < cache.n_tokens()) {
    return Error{ErrorCode::kMismatch, std::to_string(tokens.size()) + " tokens for a cache of " +
                                           std::to_string(cache.n_tokens())};
  }
  const auto ids = tokens.first(cache.tokens.size());
  if (tokens_known(cache)) return compare_ids(cache, ids);
  TQC_TRY(compare_hashes(*cache.hidden_tokens, ids));
  // Ids of media are digests: they do not tell what the hidden ids of the spans were.
  if (!cache.media.empty()) {
    return unsupported("tokens of a cache with media are compared, but cannot be revealed");
  }
  std::ranges::copy(ids, cache.tokens.begin());
  cache.hidden_tokens.reset();
  return {};
}

}  // namespace tqcache::cache
