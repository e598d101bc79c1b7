#include "tqcache/tensors/npz.h"

#include <string_view>
#include <utility>

#include "tqcache/tensors/printable_name.h"

namespace tqcache::tensors {
namespace {

constexpr std::string_view kSuffix = ".npy";

Result<NpyHeader> read_header(const ZipArchive& zip, std::size_t member) {
  TQC_TRY_ASSIGN(const Bytes start, zip.read_start(member, kMaxNpyHeaderBytes));
  TQC_TRY_ASSIGN(NpyHeader header, parse_npy_header(start));
  const std::uint64_t there = zip.members()[member].bytes - header.data_offset;
  if (header.bytes == there) return header;
  return Error{
      header.bytes > there ? ErrorCode::kTruncated : ErrorCode::kCorrupt,
      std::to_string(there) + " bytes where its shape needs " + std::to_string(header.bytes)};
}

}  // namespace

Result<Npz> Npz::open(std::shared_ptr<const ByteSource> file, const ZipLimits& limits) {
  TQC_TRY_ASSIGN(auto zip, ZipArchive::open(std::move(file), limits));
  return open(std::move(zip));
}

Result<Npz> Npz::open(std::unique_ptr<ZipArchive> zip) {
  Npz npz(std::move(zip));
  for (std::size_t i = 0; i < npz.zip_->members().size(); ++i) TQC_TRY(npz.add(i));
  return npz;
}

Result<void> Npz::add(std::size_t member) {
  const std::string& name = zip_->members()[member].name;
  const std::string where = "member " + printable_name(name);
  if (!name.ends_with(kSuffix)) return Error{ErrorCode::kUnsupported, where + ": no array"};
  auto header = read_header(*zip_, member);
  if (!header) return in_context(where, std::move(header).error());
  arrays_.emplace(name.substr(0, name.size() - kSuffix.size()),
                  NpzArray{std::move(header).value(), member});
  return {};
}

Result<void> Npz::read_at(const NpzArray& array, std::uint64_t offset,
                          std::span<std::byte> out) const {
  return zip_->read_at(array.member, array.header.data_offset + offset, out);
}

Result<void> Npz::read_all(const NpzArray& array, std::span<std::byte> out) const {
  return zip_->read_end(array.member, out);
}

}  // namespace tqcache::tensors
