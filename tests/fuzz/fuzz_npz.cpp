// Any bytes as a .npz file, and as the members of one: what is taken for a cache is valid.
//
// An input that begins as a zip file does is one. Of others a zip file is made, with the checksums
// that changes to one would have to guess: members of a name each, of a length, and of bytes.

#include <zlib.h>

#include <memory>
#include <string>
#include <string_view>

#include "fuzz/fuzz.h"
#include "interop/foreign_cache_reading.h"
#include "tqcache/base/file.h"
#include "tqcache/interop/npz_cache.h"
#include "tqcache/interop/npz_schema.h"
#include "tqcache/interop/pickles.h"
#include "tqcache/tensors/npy.h"

namespace tqcache {
namespace {

using fuzz::Input;
using fuzz::require;

constexpr std::int64_t kMaxTokens = 65'536;  // more takes time and shows nothing new
constexpr std::size_t kMaxMembers = 8;

void read(ByteView bytes) {
  const std::shared_ptr<const ByteSource> file = memory_source(Bytes(bytes.begin(), bytes.end()));
  (void)interop::name_of_pickle(*file);
  const auto is_cache = interop::is_npz_cache(*file);
  auto foreign = interop::import_npz(file);
  if (!foreign) {
    require(!foreign.error().message.empty(), "an error has a message");
    return;
  }
  require(is_cache && *is_cache, "what is read as a cache is told to be one");
  if (foreign->n_tokens > kMaxTokens) return;
  const auto sections = interop::sections_of(std::move(foreign).value());
  if (sections) (void)test::read_sections(**sections);  // a checksum may be wrong
}

// A zip file of stored members, as far as it has come.
class ZipBytes {
 public:
  void add(std::string_view name, ByteView bytes) {
    const auto crc = static_cast<std::uint32_t>(
        bytes.empty() ? 0 : crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
    const auto offset = static_cast<std::uint32_t>(out_.bytes().size());
    out_.write(std::uint32_t{0x04034b50});
    add_fields(out_, name, bytes.size(), crc);
    out_.append(as_bytes(name));
    out_.append(bytes);
    central_.write(std::uint32_t{0x02014b50});
    central_.write(std::uint16_t{20});
    add_fields(central_, name, bytes.size(), crc);
    central_.append(Bytes(10));
    central_.write(offset);
    central_.append(as_bytes(name));
    ++n_;
  }

  Bytes finish() && {
    const auto begin = static_cast<std::uint32_t>(out_.bytes().size());
    out_.append(central_.bytes());
    out_.write(std::uint32_t{0x06054b50});
    out_.write(std::uint32_t{0});
    out_.write(n_);
    out_.write(n_);
    out_.write(static_cast<std::uint32_t>(central_.bytes().size()));
    out_.write(begin);
    out_.write(std::uint16_t{0});
    return std::move(out_).take();
  }

 private:
  // From the version to the length of the extra field: alike in both headers.
  static void add_fields(ByteWriter& out, std::string_view name, std::size_t size,
                         std::uint32_t crc) {
    out.write(std::uint16_t{20});
    out.append(Bytes(8));
    out.write(crc);
    out.write(static_cast<std::uint32_t>(size));
    out.write(static_cast<std::uint32_t>(size));
    out.write(static_cast<std::uint16_t>(name.size()));
    out.write(std::uint16_t{0});
  }

  ByteWriter out_;
  ByteWriter central_;
  std::uint16_t n_ = 0;
};

// The first member is the text of the description, the others are .npy files.
void read_members(ByteView bytes) {
  constexpr std::string_view kNames[] = {"tokens",          "layer_0_key",   "layer_0_value",
                                         "layer_1_key",     "layer_1_value", "layer_0_array_a",
                                         "layer_1_array_a", "other"};
  ZipBytes zip;
  std::size_t at = 0;
  const auto take = [&](std::size_t n) {
    const ByteView taken = bytes.subspan(at, std::min(n, bytes.size() - at));
    at += taken.size();
    return taken;
  };
  const auto length = [&] {
    Input input(take(2));
    return std::size_t{input.take<std::uint16_t>()};
  };
  const ByteView text = take(length());
  zip.add("tqcache.npy",
          interop::make_npz_text({reinterpret_cast<const char*>(text.data()), text.size()}));
  for (std::size_t i = 0; i < kMaxMembers && at < bytes.size(); ++i) {
    Input input(take(1));
    const std::string_view name = input.one_of(kNames);
    const ByteView npy = take(length());
    (void)tensors::parse_npy_header(npy);
    zip.add(std::string(name) + ".npy", npy);
  }
  read(std::move(zip).finish());
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const tqcache::ByteView bytes = tqcache::fuzz::view_of(data, size);
  const bool is_zip = size > 2 && data[0] == 'P' && data[1] == 'K';
  if (is_zip) {
    tqcache::read(bytes);
  } else {
    tqcache::read_members(bytes);
  }
  return 0;
}
