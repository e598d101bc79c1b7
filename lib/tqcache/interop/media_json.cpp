#include "tqcache/interop/media_json.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "tqcache/tensors/foreign_json.h"

namespace tqcache::interop {
namespace {

constexpr std::size_t kMaxBytes = 1 << 20;  // as all metadata

using cache::MediaKind;
using cache::MediaSpan;

std::optional<MediaKind> kind_of(const nlohmann::json& name) {
  for (const MediaKind kind : {MediaKind::kImage, MediaKind::kAudio, MediaKind::kVideo}) {
    if (name == name_of(kind)) return kind;
  }
  return std::nullopt;
}

// A whole number of `from` to 2^31 - 1.
std::optional<std::int32_t> number_of(const nlohmann::json& value, std::int32_t from) {
  if (!value.is_number_integer()) return std::nullopt;
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= 0x7fffffff
                                               : value.get<std::int64_t>() >= from;
  return fits ? std::optional(value.get<std::int32_t>()) : std::nullopt;
}

Result<MediaSpan> parse_span(const nlohmann::json& in, std::int64_t position, std::int64_t end) {
  if (!in.is_object()) return corrupt("no object");
  const auto find = [&](const char* key) {
    const auto found = in.find(key);
    return found == in.end() ? nlohmann::json() : *found;
  };
  MediaSpan span;
  const auto kind = kind_of(find("kind"));
  const auto begin = number_of(find("begin"), 0), n_tokens = number_of(find("n_tokens"), 1);
  const nlohmann::json id = find("id");
  if (!kind) return corrupt("no \"kind\" of image, audio or video");
  if (!begin || !n_tokens) return corrupt("no whole numbers \"begin\" and \"n_tokens\"");
  if (!id.is_string()) return corrupt("no text \"id\"");
  if (*begin < end) return corrupt("it begins before the end of the one before it");
  span.kind = *kind;
  span.begin = *begin;
  span.n_tokens = *n_tokens;
  span.id = id.get<std::string>();
  span.next_position = position + span.begin - end + span.n_tokens;
  if (const nlohmann::json list = find("coordinates"); list.is_array()) {
    for (const nlohmann::json& each : list) {
      const auto coordinate = number_of(each, 0);
      if (!coordinate) return corrupt("a coordinate that is no whole number of at least 0");
      span.coordinates.push_back(*coordinate);
    }
  }
  if (const nlohmann::json next = find("next_position"); !next.is_null()) {
    const auto number = number_of(next, 0);
    if (!number) return corrupt("\"next_position\" is no whole number of at least 0");
    span.next_position = *number;
  }
  if (const nlohmann::json placeholder = find("placeholder"); !placeholder.is_null()) {
    const auto number = number_of(placeholder, cache::kUnknownToken);
    if (!number) return corrupt("\"placeholder\" is no token id");
    span.placeholder = *number;
  }
  return span;
}

}  // namespace

nlohmann::ordered_json media_json(std::span<const MediaSpan> media) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MediaSpan& span : media) {
    list.push_back({{"kind", name_of(span.kind)},
                    {"begin", span.begin},
                    {"n_tokens", span.n_tokens},
                    {"id", span.id},
                    {"coordinates", span.coordinates},
                    {"next_position", span.next_position},
                    {"placeholder", span.placeholder}});
  }
  return list;
}

Result<std::vector<MediaSpan>> parse_media(std::string_view text) {
  TQC_TRY_ASSIGN(
      const nlohmann::json list,
      tensors::parse_json(text, {.max_bytes = kMaxBytes, .max_depth = 3, .max_values = 1 << 20}));
  if (!list.is_array()) return corrupt("no JSON list");
  if (list.size() > cache::kMaxMediaSpans) return too_large(fmt::format("{} media", list.size()));
  std::vector<MediaSpan> media;
  std::int64_t position = 0, end = 0;  // behind the span before
  for (const nlohmann::json& each : list) {
    auto span = parse_span(each, position, end);
    if (!span) return in_context(fmt::format("media {}", media.size()), std::move(span).error());
    position = span->next_position;
    end = span->end();
    media.push_back(*std::move(span));
  }
  return media;
}

}  // namespace tqcache::interop
