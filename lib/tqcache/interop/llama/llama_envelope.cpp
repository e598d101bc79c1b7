#include "tqcache/interop/llama/llama_envelope.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::interop {
namespace {

// llama-server's list: marker, version, count, ids, count of media, zeros up to a whole word.
constexpr std::int32_t kWrapperMarker = -1;
constexpr std::int32_t kWrapperVersion = 1;
constexpr std::size_t kWrapperWords = 4;  // all but the ids

using Words = std::vector<std::int32_t>;

Result<Words> read_words(const ByteSource& file, const LlamaEnvelope& envelope) {
  const std::uint64_t n = envelope.n_words;
  if (n > static_cast<std::uint64_t>(cache::kMaxTokens) + kWrapperWords) {
    return Error{ErrorCode::kTooLarge, "token list: " + std::to_string(n) + " words"};
  }
  const std::uint64_t size = file.size();
  if (size < kEnvelopeBytes || n * sizeof(std::int32_t) > size - kEnvelopeBytes) {
    return Error{ErrorCode::kTruncated,
                 "token list: " + std::to_string(n) + " words, and the file ends before"};
  }
  Words words(static_cast<std::size_t>(n));
  TQC_TRY(file.read_at(kEnvelopeBytes, std::as_writable_bytes(std::span(words))));
  return words;
}

bool is_wrapped(const Words& words) { return !words.empty() && words[0] == kWrapperMarker; }

Result<Words> unwrap(const Words& words) {
  if (words.size() < kWrapperWords) return corrupt("token list of llama-server: too short");
  if (words[1] != kWrapperVersion) {
    return Error{ErrorCode::kUnsupported,
                 "token list of llama-server: version " + std::to_string(words[1])};
  }
  const auto count = static_cast<std::uint32_t>(words[2]);
  if (count > words.size() - kWrapperWords) {
    return corrupt("token list of llama-server: " + std::to_string(count) + " tokens in " +
                   std::to_string(words.size()) + " words");
  }
  const std::int32_t n_media = words[3 + count];
  if (n_media != 0) {
    return Error{ErrorCode::kUnsupported, "token list of llama-server: images or audio"};
  }
  if (count != words.size() - kWrapperWords) {
    return corrupt("token list of llama-server: words behind its end");
  }
  return Words(words.begin() + 3, words.begin() + 3 + count);
}

Result<void> check_ids(const Words& ids) {
  const auto bad = std::ranges::find_if(ids, [](std::int32_t id) { return id < 0; });
  if (bad == ids.end()) return {};
  return corrupt("token " + std::to_string(bad - ids.begin()) + ": " + std::to_string(*bad) +
                 " is no id");
}

}  // namespace

Result<std::optional<LlamaEnvelope>> read_llama_envelope(const ByteSource& file) {
  std::array<std::byte, kEnvelopeBytes> head{};
  const std::uint64_t size = file.size();
  if (size < sizeof(std::uint32_t)) return std::optional<LlamaEnvelope>();
  const auto there =
      std::span(head).first(static_cast<std::size_t>(std::min(size, kEnvelopeBytes)));
  TQC_TRY(file.read_at(0, there));
  const auto magic = number_at<std::uint32_t>(head, 0);
  if (magic != kSessionMagic && magic != kSequenceMagic) return std::optional<LlamaEnvelope>();
  if (there.size() < kEnvelopeBytes) {
    return Error{ErrorCode::kTruncated, std::to_string(size) + " bytes are no whole header"};
  }
  LlamaEnvelope envelope;
  envelope.kind = magic == kSessionMagic ? LlamaFile::kSession : LlamaFile::kSequence;
  envelope.version = number_at<std::uint32_t>(head, 4);
  envelope.n_words = number_at<std::uint32_t>(head, 8);
  return std::optional(envelope);
}

Result<LlamaTokens> read_llama_tokens(const ByteSource& file, const LlamaEnvelope& envelope) {
  TQC_TRY_ASSIGN(Words words, read_words(file, envelope));
  LlamaTokens tokens;
  tokens.end = kEnvelopeBytes + words.size() * sizeof(std::int32_t);
  tokens.is_wrapped = is_wrapped(words);
  if (tokens.is_wrapped) {
    TQC_TRY_ASSIGN(tokens.ids, unwrap(words));
  } else {
    tokens.ids = std::move(words);
  }
  TQC_TRY(check_ids(tokens.ids));
  return tokens;
}

}  // namespace tqcache::interop
