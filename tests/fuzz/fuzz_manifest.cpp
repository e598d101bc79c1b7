// Any bytes as a manifest. One that decodes has to encode, and to decode to the same again.

#include <algorithm>
#include <cstdint>

#include "fuzz/fuzz.h"
#include "fuzz/manifest_changes.h"
#include "fuzz/mutate.h"
#include "tqcache/bytes.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/manifest_rules.h"

namespace tqcache {
namespace {

using format::Manifest;
using fuzz::require;

Result<Manifest> decode(ByteView bytes) {
  const AlignedBytes aligned(bytes.begin(), bytes.end());
  return format::decode_manifest(aligned);
}

// Where the manifest would stand if the section table and the gaps were right.
std::uint64_t manifest_offset(const Manifest& manifest) {
  std::uint64_t end = format::kHeaderBytes;
  const auto reach = [&](std::uint64_t offset, std::uint64_t n) {
    if (offset < 1 << 30 && n < 1 << 30) end = std::max(end, offset + n);
  };
  for (const auto& section : manifest.sections) reach(section.file_offset, section.stored_bytes);
  for (const auto& gap : manifest.gaps) reach(gap.file_offset, gap.bytes);
  return format::align_section(end);
}

void check_round_trip(const Manifest& manifest) {
  const auto bytes = format::encode_manifest(manifest);
  if (!bytes) {
    require(bytes.error().code == ErrorCode::kTooLarge, "what decodes can be encoded");
    return;
  }
  const Manifest again = fuzz::must(decode(*bytes), "what was encoded decodes");
  require(fuzz::must(format::encode_manifest(again), "and encodes again") == *bytes,
          "to the same bytes");
  require(format::content_name(again) == format::content_name(manifest), "and the same content");
}

void check_rules(const Manifest& manifest) {
  for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
    require(!cache::block_place(i, manifest.sections[i]).empty(), "a section has a place");
  }
  if (!format::check_contents(manifest)) return;
  static_cast<void>(format::required_features(manifest));
  if (!format::check_sections(manifest, manifest_offset(manifest))) return;
  std::uint64_t raw_bytes = 0;
  for (const auto& section : manifest.sections) raw_bytes += section.raw_bytes;
  require(cache::total_memory_bytes(manifest, manifest.sections) >= raw_bytes,
          "memory holds what the file holds");
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  const auto manifest = decode(fuzz::view_of(data, size));
  if (!manifest) {
    fuzz::require(!manifest.error().message.empty(), "an error has a message");
    return 0;
  }
  check_rules(*manifest);
  check_round_trip(*manifest);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace tqcache;
  fuzz::Chance chance(seed);
  if (chance.one_in(2)) return LLVMFuzzerMutate(data, size, max_size);
  auto manifest = decode(fuzz::view_of(data, size));
  if (!manifest) return LLVMFuzzerMutate(data, size, max_size);
  const std::size_t n_changes = 1 + chance.below(3);
  for (std::size_t i = 0; i < n_changes; ++i) fuzz::change_manifest(chance, *manifest);
  const auto bytes = format::encode_manifest(*manifest);
  return bytes ? fuzz::give_back(*bytes, data, size, max_size)
               : LLVMFuzzerMutate(data, size, max_size);
}
