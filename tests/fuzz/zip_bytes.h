#pragma once
// tests/fuzz/zip_bytes.h: zip files made in memory, of members that are stored as they are.

#include <zlib.h>

#include <cstdint>
#include <string_view>
#include <utility>

#include "tqcache/bytes.h"

namespace tqcache::fuzz {

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

}  // namespace tqcache::fuzz
