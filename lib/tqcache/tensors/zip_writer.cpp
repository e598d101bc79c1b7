#include "tqcache/tensors/zip_writer.h"

#include <zlib.h>

#include <utility>

namespace tqcache::tensors {
namespace {

constexpr std::uint16_t kVersion = 20;  // of the format, without zip64
constexpr std::uint16_t kVersionZip64 = 45;
constexpr std::uint16_t kMadeByUnix = 3 << 8;
constexpr std::uint32_t kReadableFile = 0100600u << 16;  // st_mode of Unix
constexpr std::uint16_t kFirstDay = 1 << 5 | 1;          // 1 January 1980
constexpr std::uint32_t kIn64Bits = 0xffffffff;          // the number is in the zip64 record
constexpr std::uint16_t kIn64BitsShort = 0xffff;
constexpr std::uint16_t kZip64Extra = 1;

std::uint32_t low32(std::uint64_t number) { return static_cast<std::uint32_t>(number); }
std::uint16_t low16(std::uint64_t number) { return static_cast<std::uint16_t>(number); }

std::uint32_t crc_of(std::span<const ByteView> parts) {
  uLong crc = 0;
  for (const ByteView part : parts) {
    // A null pointer would restart the checksum.
    if (part.empty()) continue;
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(part.data()), part.size());
  }
  return static_cast<std::uint32_t>(crc);
}

}  // namespace

// The fields that both headers of a member share. `extra_bytes`: size of the zip64 field.
void ZipWriter::write_shared(const Member& member, bool is_zip64, std::uint16_t extra_bytes,
                             ByteWriter& out) {
  const std::uint32_t bytes = is_zip64 ? kIn64Bits : low32(member.bytes);
  out.write(is_zip64 ? kVersionZip64 : kVersion);
  out.write(std::uint16_t{0});  // flags
  out.write(std::uint16_t{0});  // stored
  out.write(std::uint16_t{0});  // midnight
  out.write(kFirstDay);
  out.write(member.crc);
  out.write(bytes);
  out.write(bytes);
  out.write(low16(member.name.size()));
  out.write(static_cast<std::uint16_t>(is_zip64 ? extra_bytes : 0));
}

ZipWriter::ZipWriter(AtomicFile file, std::uint64_t zip64_from)
    : file_(std::move(file)), zip64_from_(zip64_from) {}

Bytes ZipWriter::local_header(const Member& member) const {
  const bool is_zip64 = is_large(member.bytes);
  ByteWriter out;
  out.write(std::uint32_t{0x04034b50});
  write_shared(member, is_zip64, 20, out);
  out.append(as_bytes(member.name));
  if (is_zip64) {
    out.write(kZip64Extra);
    out.write(std::uint16_t{16});
    out.write(member.bytes);
    out.write(member.bytes);
  }
  return std::move(out).take();
}

Result<void> ZipWriter::add(std::string_view name, std::span<const ByteView> parts) {
  Member member{std::string(name), crc_of(parts), 0, file_.size()};
  for (const ByteView part : parts) member.bytes += part.size();
  TQC_TRY(file_.write(local_header(member)));
  for (const ByteView part : parts) TQC_TRY(file_.write(part));
  members_.push_back(std::move(member));
  return {};
}

void ZipWriter::add_central_header(const Member& member, ByteWriter& out) const {
  const bool is_zip64 = is_large(member.bytes) || is_large(member.offset);
  const std::uint16_t version = is_zip64 ? kVersionZip64 : kVersion;
  out.write(std::uint32_t{0x02014b50});
  out.write(static_cast<std::uint16_t>(kMadeByUnix | version));
  write_shared(member, is_zip64, 28, out);
  out.write(std::uint16_t{0});  // comment
  out.write(std::uint16_t{0});  // disk
  out.write(std::uint16_t{0});  // internal attributes
  out.write(kReadableFile);
  out.write(is_zip64 ? kIn64Bits : low32(member.offset));
  out.append(as_bytes(member.name));
  if (is_zip64) {
    out.write(kZip64Extra);
    out.write(std::uint16_t{24});
    out.write(member.bytes);
    out.write(member.bytes);
    out.write(member.offset);
  }
}

// Writes the end records after the central headers, which start at byte `begin` of the file and are
// all in `out`.
void ZipWriter::add_end(std::uint64_t begin, ByteWriter& out) const {
  const std::uint64_t bytes = out.bytes().size();
  const std::uint64_t n = members_.size();
  const bool is_zip64 = is_large(bytes) || is_large(begin) || n >= kIn64BitsShort;
  if (is_zip64) {
    out.write(std::uint32_t{0x06064b50});
    out.write(std::uint64_t{44});  // bytes left in this record
    out.write(static_cast<std::uint16_t>(kMadeByUnix | kVersionZip64));
    out.write(kVersionZip64);
    out.write(std::uint64_t{0});  // disks
    out.write(n);
    out.write(n);
    out.write(bytes);
    out.write(begin);
    out.write(std::uint32_t{0x07064b50});
    out.write(std::uint32_t{0});  // disk
    out.write(begin + bytes);
    out.write(std::uint32_t{1});  // disks
  }
  out.write(std::uint32_t{0x06054b50});
  out.write(std::uint32_t{0});  // disks
  out.write(is_zip64 ? kIn64BitsShort : low16(n));
  out.write(is_zip64 ? kIn64BitsShort : low16(n));
  out.write(is_zip64 ? kIn64Bits : low32(bytes));
  out.write(is_zip64 ? kIn64Bits : low32(begin));
  out.write(std::uint16_t{0});  // comment
}

Result<void> ZipWriter::finish() {
  const std::uint64_t begin = file_.size();
  ByteWriter out;
  for (const Member& member : members_) add_central_header(member, out);
  add_end(begin, out);
  TQC_TRY(file_.write(out.bytes()));
  return file_.commit();
}

}  // namespace tqcache::tensors
