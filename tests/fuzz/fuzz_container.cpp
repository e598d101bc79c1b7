// Any bytes as a whole .tqkv file: told apart, listed, loaded, loaded in part, verified.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "fuzz/container_parts.h"
#include "fuzz/fuzz.h"
#include "fuzz/manifest_changes.h"
#include "fuzz/mutate.h"
#include "tqcache/file.h"
#include "tqcache/format/container_format.h"
#include "tqcache/tqkv.h"

namespace tqcache {
namespace {

using fuzz::require;

// A token block in memory has room for 256 tokens whatever the file holds.
constexpr std::uint64_t kMaxPayloadBytes = 1 << 20;
const format::Access kAccess{.memory = MemoryBudget().at_most(kMaxPayloadBytes)};
const format::ReadOptions kOptions{.n_threads = 1, .access = kAccess};

// Bytes that somebody else keeps.
class ViewSource : public ByteSource {
 public:
  explicit ViewSource(ByteView bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
      return Error{ErrorCode::kTruncated, "the bytes end"};
    }
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    return {};
  }

 private:
  ByteView bytes_;
};

void check_error(const Error& error) {
  require(!error.message.empty(), "an error has a message");
  require(error.code == ErrorCode::kTruncated || error.code == ErrorCode::kCorrupt ||
              error.code == ErrorCode::kUnsupported || error.code == ErrorCode::kTooLarge,
          "bytes in memory give errors of bytes");
}

// What a whole file holds can be written again, and is then the same content.
void check_rewriting(const cache::Cache& cache, const format::CacheFileInfo& info) {
  const auto bytes = fuzz::must(
      format::write_cache_bytes(cache, {.compression = format::Compression::kNone, .n_threads = 1}),
      "what was loaded can be written");
  const auto again = fuzz::must(format::read_cache_info(ViewSource(bytes)), "and be read again");
  require(again.content_name == info.content_name, "the content keeps its name");
}

void check_part(const ByteSource& file, std::int64_t n_tokens) {
  const auto part =
      format::read_cache(file, {.n_threads = 1, .first_tokens = n_tokens, .access = kAccess});
  if (part) {
    require(part->n_tokens() == n_tokens, "as many tokens as were asked for");
    require(cache::validate(*part), "a part is a cache");
  }
}

// Unpacking codes takes longer than all else: one file in `n` of those that have any will do,
// chosen by a digest.
bool is_unpacked(const format::CacheFileInfo& info, int n) {
  const auto is_packed = [](const format::SectionInfo& section) { return section.packed; };
  return std::ranges::none_of(info.sections, is_packed) ||
         std::to_integer<int>(info.content_name[0]) % n == 0;
}

void check_verifying(const ByteSource& file, const format::CacheFileInfo& info,
                     const Result<cache::Cache>& cache) {
  const auto report = format::verify_cache(file, kOptions);
  if (!report) {
    require(report.error().code == ErrorCode::kTooLarge, "what can be listed can be verified");
    return;
  }
  if (!report->damage.empty()) return;
  require(cache.ok() || cache.error().code == ErrorCode::kTooLarge, "a whole file loads");
  if (cache) check_rewriting(*cache, info);
}

void check_unlisted(const ByteSource& file, const Error& error) {
  check_error(error);
  require(!format::read_cache(file, kOptions).ok(), "what cannot be listed cannot be loaded");
  const auto report = format::verify_cache(file, kOptions);
  require(!report.ok() || !report->damage.empty(), "nor is it whole");
}

void run(const ByteSource& file) {
  const auto info = format::read_cache_info(file);
  if (!info) return check_unlisted(file, info.error());
  require(format::looks_like_cache_file(file), "what can be listed looks like it");
  const auto cache = format::read_cache(file, kOptions);
  if (!cache) check_error(cache.error());
  if (is_unpacked(*info, 16)) check_verifying(file, *info, cache);
  if (!cache) return;
  require(cache->n_tokens() == info->n_tokens(), "as many tokens as the file says");
  if (is_unpacked(*info, 4)) check_part(file, info->n_tokens() / 2);
}

// A change that keeps the file a file: of the manifest, of the layout, or of bytes behind a
// checksum.
void change_structure(fuzz::Chance& chance, Bytes& file) {
  auto manifest = fuzz::manifest_of(file);
  if (!manifest) return;
  const std::size_t n_changes = 1 + chance.below(3);
  for (std::size_t i = 0; i < n_changes; ++i) fuzz::change_manifest(chance, *manifest);
  if (!chance.one_in(3)) {
    if (auto laid_out = fuzz::lay_out(chance, *manifest)) {
      file = std::move(*laid_out);
      return;
    }
  }
  fuzz::replace_manifest(file, *manifest);
}

void change_region(fuzz::Chance& chance, Bytes& file, std::size_t max_growth) {
  const std::size_t header = std::min(file.size(), format::kHeaderBytes);
  if (chance.one_in(4)) {
    fuzz::change_bytes(file, 0, header, 0);
  } else {
    fuzz::change_bytes(file, header, file.size(), max_growth);
  }
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tqcache::run(tqcache::ViewSource(tqcache::fuzz::view_of(data, size)));
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace tqcache;
  fuzz::Chance chance(seed);
  const ByteView view = fuzz::view_of(data, size);
  Bytes file(view.begin(), view.end());
  if (chance.one_in(3)) {
    change_region(chance, file, std::min<std::size_t>(max_size - std::min(max_size, size), 64));
  } else {
    change_structure(chance, file);
  }
  if (!chance.one_in(8)) fuzz::repair(file);
  return fuzz::give_back(file, data, size, max_size);
}
