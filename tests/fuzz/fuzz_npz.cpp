// Any bytes as a .npz file, and as the members of one: what is taken for a cache is valid.
//
// An input that begins as a zip file does is one. Of others a zip file is made, with the checksums
// that changes to one would have to guess (npz_parts.h).

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "fuzz/fuzz.h"
#include "fuzz/npz_parts.h"
#include "fuzz/zip_bytes.h"
#include "interop/foreign_cache_reading.h"
#include "tqcache/file.h"
#include "tqcache/interop.h"
#include "tqcache/interop/npz/npz_cache.h"
#include "tqcache/interop/npz/npz_schema.h"
#include "tqcache/tensors/npy.h"

namespace tqcache {
namespace {

using fuzz::require;

constexpr std::int64_t kMaxTokens = 65'536;  // more takes time and shows nothing new

bool is_zip(ByteView bytes) {
  return bytes.size() > 2 && bytes[0] == std::byte{'P'} && bytes[1] == std::byte{'K'};
}

// Whether it was taken for a cache.
bool read(std::shared_ptr<const ByteSource> file) {
  auto foreign = interop::import_npz(std::move(file));
  if (!foreign) {
    require(!foreign.error().message.empty(), "an error has a message");
    return false;
  }
  if (foreign->n_tokens > kMaxTokens) return true;
  const auto sections = interop::reader_of(std::move(foreign).value());
  if (sections) (void)test::read_sections(**sections);  // a checksum may be wrong
  return true;
}

void read_zip(ByteView bytes) {
  const std::shared_ptr<const ByteSource> file = memory_source(Bytes(bytes.begin(), bytes.end()));
  (void)interop::name_of_pickle(*file);
  const auto is_cache = interop::is_npz_cache(*file);
  if (read(file)) require(is_cache && *is_cache, "what is read as a cache is told to be one");
}

// The first member is the text of the description, the others are .npy files. A name that is taken
// gives way to the next one: that none is there twice is the first thing that a reader asks for.
void read_members(const fuzz::NpzParts& parts) {
  constexpr std::string_view kNames[fuzz::kMaxNpzMembers] = {
      "tokens",        "layer_0_key",     "layer_0_value",   "layer_1_key",
      "layer_1_value", "layer_0_array_a", "layer_1_array_a", "other"};
  fuzz::ZipBytes zip;
  zip.add("tqcache.npy", interop::make_npz_text({reinterpret_cast<const char*>(parts.text.data()),
                                                 parts.text.size()}));
  bool is_taken[fuzz::kMaxNpzMembers] = {};
  for (const fuzz::NpzMember& member : parts.members) {
    (void)tensors::parse_npy_header(member.npy);  // also behind one that is refused
    std::size_t name = member.name % fuzz::kMaxNpzMembers;
    while (is_taken[name]) name = (name + 1) % fuzz::kMaxNpzMembers;
    is_taken[name] = true;
    zip.add(std::string(kNames[name]) + ".npy", member.npy);
  }
  const std::shared_ptr<const ByteSource> file = memory_source(std::move(zip).finish());
  if (!read(file)) return;  // the others begin with the same steps
  const auto is_cache = interop::is_npz_cache(*file);
  require(is_cache && *is_cache, "what is read as a cache is told to be one");
}

// libzip makes times of what stands in a file, and looks for the zone's file each time.
const bool kHasTimeZone = ::setenv("TZ", "UTC0", 1) == 0;

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const tqcache::ByteView bytes = tqcache::fuzz::view_of(data, size);
  if (tqcache::is_zip(bytes)) {
    tqcache::read_zip(bytes);
  } else {
    tqcache::read_members(tqcache::fuzz::take_npz_apart(bytes));
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace tqcache::fuzz;
  constexpr std::size_t kMaxGrowth = 64;
  Chance chance(seed);
  const tqcache::ByteView bytes = view_of(data, size);
  if (tqcache::is_zip(bytes) || chance.one_in(8)) return LLVMFuzzerMutate(data, size, max_size);
  NpzParts parts = take_npz_apart(bytes);
  change_npz(chance, parts, std::min(max_size - std::min(max_size, size), kMaxGrowth));
  return give_back(put_npz_together(parts), data, size, max_size);
}
