#include "tqcache/format/sections/plane_section.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/format/sections/byte_planes.h"

namespace tqcache::format {
namespace {

// A frame is kept if it saves 1 / kWorthwhile of its plane; less is not worth the decompression.
constexpr std::size_t kWorthwhile = 64;

std::size_t table_bytes(std::size_t width) { return width * sizeof(std::uint64_t); }

Error corrupt_plane(std::size_t plane, std::string fact) {
  return {ErrorCode::kCorrupt, "plane " + std::to_string(plane) + ": " + std::move(fact)};
}

// Planes as stored in a section.
struct StoredPlanes {
  std::array<ByteView, kMaxPlanes> planes;
  std::uint64_t plane_bytes = 0;  // of each, after decompression

  bool is_frame(std::size_t plane) const { return planes[plane].size() < plane_bytes; }
};

// Errors: kCorrupt when their sizes are not valid for planes, or do not add up.
Result<StoredPlanes> find_planes(ByteView stored, std::uint64_t raw_size, std::size_t width) {
  StoredPlanes found{{}, raw_size / width};
  if (stored.size() < table_bytes(width)) {
    return Error{ErrorCode::kCorrupt, "no room for the sizes of planes"};
  }
  ByteView rest = stored.subspan(table_bytes(width));
  for (std::size_t i = 0; i < width; ++i) {
    const auto size = number_at<std::uint64_t>(stored, i * sizeof(std::uint64_t));
    if (size > found.plane_bytes || size > rest.size()) {
      return corrupt_plane(i, std::to_string(size) + " bytes");
    }
    found.planes[i] = rest.first(size);
    rest = rest.subspan(size);
  }
  if (rest.empty()) return found;
  return Error{ErrorCode::kCorrupt, std::to_string(rest.size()) + " bytes behind the planes"};
}

// Appends a plane to `stored`, compressed if that pays, and returns its stored size.
std::uint64_t append_plane(const Compressor& compressor, ByteView plane, Bytes& stored) {
  const std::size_t at = stored.size();
  stored.resize(at + plane.size());
  const auto room = std::span(stored).subspan(at);
  std::size_t size =
      compressor.compress_into(plane, room.first(plane.size() - plane.size() / kWorthwhile - 1));
  if (size == 0) {
    std::ranges::copy(plane, room.begin());
    size = plane.size();
  }
  stored.resize(at + size);
  return size;
}

}  // namespace

bool compress_planes(const Compressor& compressor, ByteView raw, std::size_t width, Bytes& stored) {
  stored.clear();
  if (raw.empty()) return false;
  AlignedBytes planes(raw.size());
  split_planes(raw, width, planes);

  const std::size_t plane_bytes = raw.size() / width;
  stored.reserve(table_bytes(width) + raw.size());
  stored.resize(table_bytes(width));
  for (std::size_t i = 0; i < width; ++i) {
    const ByteView plane = ByteView(planes).subspan(i * plane_bytes, plane_bytes);
    const std::uint64_t size = append_plane(compressor, plane, stored);
    std::memcpy(stored.data() + i * sizeof(size), &size, sizeof(size));
  }
  if (stored.size() >= raw.size()) stored.clear();
  return !stored.empty();
}

Result<void> check_planes(ByteView stored, std::uint64_t raw_size, std::size_t width) {
  assert(width <= kMaxPlanes && raw_size % width == 0);
  TQC_TRY_ASSIGN(const StoredPlanes found, find_planes(stored, raw_size, width));
  for (std::size_t i = 0; i < width; ++i) {
    if (!found.is_frame(i)) continue;
    auto checked = Decompressor::check_frame(found.planes[i], found.plane_bytes);
    if (!checked) return in_context("plane " + std::to_string(i), std::move(checked).error());
  }
  return {};
}

Result<void> decompress_planes(const Decompressor& decompressor, ByteView stored, std::size_t width,
                               std::span<std::byte> raw) {
  TQC_TRY_ASSIGN(StoredPlanes found, find_planes(stored, raw.size(), width));
  std::array<AlignedBytes, kMaxPlanes> memory;
  for (std::size_t i = 0; i < width; ++i) {
    if (!found.is_frame(i)) continue;
    memory[i].resize(found.plane_bytes);
    auto done = decompressor.decompress(found.planes[i], memory[i]);
    if (!done) return in_context("plane " + std::to_string(i), std::move(done).error());
    found.planes[i] = memory[i];
  }
  join_planes(std::span(found.planes).first(width), raw);
  return {};
}

}  // namespace tqcache::format
