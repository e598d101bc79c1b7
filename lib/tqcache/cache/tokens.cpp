// The tokens of a cache, and the media among them.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"

namespace tqcache::cache {
namespace {

constexpr std::string_view kMediaLabel = "tqcache media 1";
constexpr std::int64_t kIdsPerDigest = 8;

std::string place_of(std::size_t number) { return fmt::format("media {}", number); }

bool is_printable(char byte) { return byte > ' ' && byte <= '~'; }

// A span by itself: sizes and ranges.
Result<void> check_span(const MediaSpan& span, std::int64_t first_position, bool is_hidden) {
  if (span.kind > MediaKind::kVideo) return corrupt("an unknown kind");
  if (span.n_tokens < 1 || span.n_tokens > kMaxTokens) {
    return corrupt(fmt::format("{} tokens", span.n_tokens));
  }
  if (is_hidden ? !span.id.empty() : span.id.empty()) {
    return corrupt(is_hidden ? "an id, though the tokens are hidden" : "no id");
  }
  if (span.id.size() > kMaxMediaIdBytes || !std::ranges::all_of(span.id, is_printable)) {
    return corrupt("an id that is not 1 to 256 printable ASCII characters");
  }
  const auto is_position = [](std::int64_t value) { return value >= 0 && value <= kMaxTokens; };
  if (!is_position(span.next_position)) {
    return corrupt(fmt::format("position {} behind it", span.next_position));
  }
  if (span.placeholder < kUnknownToken) return corrupt("a placeholder below -1");
  if (span.source.size() > kMaxMediaSourceBytes) {
    return too_large(fmt::format("{} bytes of its program", span.source.size()));
  }
  if (span.coordinates.empty()) {
    if (span.next_position == first_position + span.n_tokens) return {};
    return corrupt(fmt::format("position {} behind {} tokens from position {} on",
                               span.next_position, span.n_tokens, first_position));
  }
  if (std::ssize(span.coordinates) != 3 * span.n_tokens) {
    return corrupt(
        fmt::format("{} coordinates for {} tokens", span.coordinates.size(), span.n_tokens));
  }
  if (!std::ranges::all_of(span.coordinates, is_position)) {
    return corrupt("a coordinate out of range");
  }
  return {};
}

// Spans in order and within the cache; tokens of text are ids, those of spans are media_tokens().
Result<void> validate_media(std::span<const std::int32_t> tokens, bool is_hidden,
                            std::span<const MediaSpan> media) {
  if (media.size() > kMaxMediaSpans) return too_large(fmt::format("{} media", media.size()));
  const auto is_text = [&](std::int64_t begin, std::int64_t end) {
    const auto text = tokens.subspan(to_size(begin), to_size(end - begin));
    return is_hidden || std::ranges::all_of(text, [](std::int32_t id) { return id >= 0; });
  };
  std::int64_t end = 0, position = 0;  // of the span before
  for (std::size_t i = 0; i < media.size(); ++i) {
    const MediaSpan& span = media[i];
    if (span.begin < end || span.begin >= std::ssize(tokens)) {
      return corrupt(fmt::format("{}: it begins at token {}", place_of(i), span.begin));
    }
    position += span.begin - end;
    if (auto checked = check_span(span, position, is_hidden); !checked) {
      return in_context(place_of(i), std::move(checked).error());
    }
    if (!is_text(end, span.begin)) return corrupt("a token id below 0");
    end = span.end();
    if (end > std::ssize(tokens) && i + 1 < media.size()) {
      return corrupt(place_of(i) + ": it reaches past the tokens, and others follow");
    }
    if (!is_hidden) {
      const auto ids = media_tokens(span, position, std::ssize(tokens));
      const auto own = tokens.subspan(to_size(span.begin));
      if (!std::ranges::equal(ids, own.first(ids.size()))) {
        return corrupt(place_of(i) + ": its token ids are not those of its digest");
      }
    }
    position = span.next_position;
  }
  end = std::min<std::int64_t>(end, std::ssize(tokens));
  return is_text(end, std::ssize(tokens)) ? Result<void>() : corrupt("a token id below 0");
}

}  // namespace

std::string_view name_of(MediaKind kind) {
  constexpr std::array<std::string_view, 3> kNames = {"image", "audio", "video"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::vector<std::int32_t> media_tokens(const MediaSpan& span, std::int64_t first_position,
                                       std::int64_t n_tokens) {
  ByteWriter content;
  content.append(as_bytes(kMediaLabel));
  content.write(static_cast<std::uint8_t>(span.kind));
  content.write(static_cast<std::uint64_t>(span.id.size()));
  content.append(as_bytes(span.id));
  content.write(static_cast<std::uint64_t>(span.n_tokens));
  content.write(static_cast<std::uint64_t>(span.coordinates.size()));
  for (const std::int32_t each : span.coordinates) {
    content.write(static_cast<std::int64_t>(each - first_position));
  }
  content.write(span.next_position - first_position);
  const Sha256 of_content = sha256(content.bytes());
  const std::int64_t n = std::min(span.n_tokens, n_tokens - span.begin);
  std::vector<std::int32_t> ids;
  ids.reserve(to_size(n));
  for (std::int64_t part = 0; std::ssize(ids) < n; ++part) {
    ByteWriter numbered;
    numbered.append(of_content);
    numbered.write(static_cast<std::uint64_t>(part));
    const Sha256 digest = sha256(numbered.bytes());
    for (std::int64_t i = 0; i < kIdsPerDigest && std::ssize(ids) < n; ++i) {
      const auto word = number_at<std::uint32_t>(digest, to_size(4 * i));
      ids.push_back(-2 - static_cast<std::int32_t>(word % 0x7ffffffe));
    }
  }
  return ids;
}

std::int64_t position_of(std::span<const MediaSpan> media, std::int64_t index) {
  std::int64_t position = index;
  for (const MediaSpan& span : media) {
    if (span.end() > index) break;
    position = span.next_position + index - span.end();
  }
  return position;
}

std::vector<std::int32_t> all_positions(std::span<const MediaSpan> media, std::int64_t n_tokens) {
  std::vector<std::int32_t> positions;
  positions.reserve(to_size(n_tokens));
  std::int64_t next = 0;
  const auto count_to = [&](std::int64_t end) {
    while (std::ssize(positions) < std::min(end, n_tokens)) {
      positions.push_back(static_cast<std::int32_t>(next++));
    }
  };
  for (const MediaSpan& span : media) {
    count_to(span.begin);
    if (span.coordinates.empty()) count_to(span.end());
    for (std::int64_t i = 0; std::ssize(positions) < std::min(span.end(), n_tokens); ++i) {
      positions.push_back(span.coordinates[to_size(i)]);
    }
    next = span.next_position;
  }
  count_to(n_tokens);
  return positions;
}

std::vector<std::int32_t> with_placeholders(std::span<const std::int32_t> tokens,
                                            std::span<const MediaSpan> media) {
  std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
  for (const MediaSpan& span : media) {
    const auto end = std::min<std::int64_t>(span.end(), std::ssize(ids));
    std::fill(ids.begin() + span.begin, ids.begin() + end, span.placeholder);
  }
  return ids;
}

std::vector<MediaSpan> media_in(std::span<const MediaSpan> media, std::int64_t begin,
                                std::int64_t end) {
  std::vector<MediaSpan> some;
  std::ranges::copy_if(media, std::back_inserter(some), [&](const MediaSpan& span) {
    return begin <= span.begin && span.begin < end;
  });
  return some;
}

Result<void> validate_tokens(std::span<const std::int32_t> tokens,
                             const std::optional<std::vector<Sha256>>& hidden,
                             std::span<const MediaSpan> media) {
  const std::int64_t n_tokens = std::ssize(tokens);
  if (n_tokens > kMaxTokens) return too_large(fmt::format("{} tokens", n_tokens));
  if (hidden) {
    const auto is_known = [](std::int32_t token) { return token != kUnknownToken; };
    if (std::ranges::any_of(tokens, is_known)) return corrupt("a token id that is not hidden");
    if (!hidden->empty() && std::ssize(*hidden) != block_count(n_tokens)) {
      return corrupt(fmt::format("{} hashes for {} tokens", hidden->size(), n_tokens));
    }
  }
  return validate_media(tokens, hidden.has_value(), media);
}

}  // namespace tqcache::cache
