#include "tqcache/tensors/gguf.h"

#include <bit>
#include <optional>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/tensors/ggml_type.h"
#include "tqcache/tensors/gguf_metadata.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::tensors {
namespace {

// Far above any model in use. The bound keeps a list whose entries are larger in memory than in
// the file (24 bytes at least) from growing without end.
constexpr std::uint64_t kMaxTensors = 65'536;
constexpr std::uint64_t kMaxKeys = 65'536;
constexpr std::uint64_t kMaxNameBytes = 63;  // ggml keeps names in 64 bytes with a NUL at the end
constexpr std::uint32_t kMaxDims = 4;        // GGML_MAX_DIMS
constexpr std::int64_t kDefaultAlignment = 32;   // where general.alignment is absent
constexpr std::int64_t kMaxAlignment = 1 << 20;  // ggml's bound; writers use 32 to 4,096

struct Header {
  std::uint32_t version;
  std::uint64_t n_tensors;
  std::uint64_t n_keys;
};

struct TensorInfo {
  std::string name;
  std::vector<std::uint64_t> shape;  // outermost first
  const GgmlType* type;
  std::uint64_t n_bytes;
  std::uint64_t offset;  // from the start of the data
};

Error error(ErrorCode code, std::string message) { return Error{code, std::move(message)}; }

Result<void> check_version(std::uint32_t version) {
  if (version == 2 || version == 3) return {};
  if (version == 0) return error(ErrorCode::kCorrupt, "header: GGUF version 0");
  // A small number read in the wrong order has its low bytes empty.
  if ((version & 0xffff) == 0) {
    return error(ErrorCode::kUnsupported, "header: big-endian GGUF file");
  }
  return error(ErrorCode::kUnsupported,
               "header: GGUF version " + std::to_string(version) + ", only 2 and 3 are read");
}

Result<Header> read_header(ByteReader& in) {
  TQC_TRY_ASSIGN(const std::string magic, in.take_string(4));
  if (magic != "GGUF") return error(ErrorCode::kCorrupt, "header: not a GGUF file (bad magic)");
  Header header;
  TQC_TRY_ASSIGN(header.version, in.read<std::uint32_t>());
  TQC_TRY(check_version(header.version));
  TQC_TRY_ASSIGN(header.n_tensors, in.read<std::uint64_t>());
  TQC_TRY_ASSIGN(header.n_keys, in.read<std::uint64_t>());
  if (header.n_tensors > kMaxTensors) {
    return error(ErrorCode::kTooLarge, "header: " + std::to_string(header.n_tensors) +
                                           " tensors, at most " + std::to_string(kMaxTensors) +
                                           " are read");
  }
  if (header.n_keys > kMaxKeys) {
    return error(ErrorCode::kTooLarge, "header: " + std::to_string(header.n_keys) +
                                           " metadata keys, at most " + std::to_string(kMaxKeys) +
                                           " are read");
  }
  return header;
}

Result<std::uint64_t> find_alignment(const Gguf& file) {
  if (!file.has("general.alignment")) return std::uint64_t{kDefaultAlignment};
  TQC_TRY_ASSIGN(const std::int64_t alignment, file.get_int("general.alignment"));
  const auto value = static_cast<std::uint64_t>(alignment);  // it was a u32
  if (!std::has_single_bit(value)) {
    return error(ErrorCode::kCorrupt,
                 "key \"general.alignment\": " + std::to_string(value) + " is not a power of two");
  }
  if (alignment > kMaxAlignment) {
    return error(ErrorCode::kTooLarge, "key \"general.alignment\": " + std::to_string(value) +
                                           " is above " + std::to_string(kMaxAlignment));
  }
  return value;
}

Result<std::string> read_name(ByteReader& in) {
  TQC_TRY_ASSIGN(std::string name, read_gguf_string(in, kMaxNameBytes));
  if (name.find('\0') != std::string::npos) {
    return error(ErrorCode::kCorrupt, "name " + printable_name(name) + " holds a NUL");
  }
  return name;
}

// The file has the innermost dimension first.
Result<std::vector<std::uint64_t>> read_shape(ByteReader& in) {
  TQC_TRY_ASSIGN(const auto n_dims, in.read<std::uint32_t>());
  if (n_dims > kMaxDims) {
    return error(ErrorCode::kTooLarge, std::to_string(n_dims) + " dimensions, at most " +
                                           std::to_string(kMaxDims) + " are read");
  }
  std::vector<std::uint64_t> shape(n_dims);
  for (std::uint32_t i = n_dims; i-- > 0;) {
    TQC_TRY_ASSIGN(const auto size, in.read<std::int64_t>());
    if (size <= 0) return error(ErrorCode::kCorrupt, "dimension of size " + std::to_string(size));
    shape[i] = static_cast<std::uint64_t>(size);
  }
  return shape;
}

Result<std::uint64_t> tensor_bytes(const GgmlType& type, const std::vector<std::uint64_t>& shape) {
  const std::uint64_t row = shape.empty() ? 1 : shape.back();
  if (row % type.block_values != 0) {
    return error(ErrorCode::kCorrupt, "rows of " + std::to_string(row) + " values, which " +
                                          type.name + " stores in blocks of " +
                                          std::to_string(type.block_values));
  }
  const std::optional<std::uint64_t> count = element_count(shape);
  const auto bytes =
      count ? checked_mul(*count / type.block_values, type.block_bytes) : std::nullopt;
  if (!bytes) return error(ErrorCode::kCorrupt, "its size does not fit 64 bits");
  return *bytes;
}

Result<TensorInfo> read_tensor_info(ByteReader& in, std::string name) {
  TQC_TRY_ASSIGN(std::vector<std::uint64_t> shape, read_shape(in));
  TQC_TRY_ASSIGN(const auto type_id, in.read<std::uint32_t>());
  const GgmlType* type = find_ggml_type(type_id);
  if (!type) {
    return error(ErrorCode::kUnsupported, "tensor type " + std::to_string(type_id) + " is unknown");
  }
  TQC_TRY_ASSIGN(const std::uint64_t n_bytes, tensor_bytes(*type, shape));
  TQC_TRY_ASSIGN(const auto offset, in.read<std::uint64_t>());
  return TensorInfo{std::move(name), std::move(shape), type, n_bytes, offset};
}

Result<std::vector<TensorInfo>> read_tensor_infos(ByteReader& in, std::uint64_t count) {
  std::vector<TensorInfo> infos;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto name = read_name(in);
    if (!name) return in_context("tensor " + std::to_string(i), std::move(name).error());
    const std::string place = "tensor " + printable_name(*name);
    auto info = read_tensor_info(in, std::move(name).value());
    if (!info) return in_context(place, std::move(info).error());
    infos.push_back(std::move(info).value());
  }
  return infos;
}

// `expected` is where the tensor before ended, padded: ggml writes and demands exactly that, so
// overlaps and unexplained bytes are ruled out together.
Result<ByteView> tensor_data(const TensorInfo& info, std::uint64_t expected,
                             std::uint64_t alignment, ByteView data) {
  if (info.offset % alignment != 0) {
    return error(ErrorCode::kCorrupt, "offset " + std::to_string(info.offset) +
                                          " is not a multiple of " + std::to_string(alignment));
  }
  if (info.offset != expected) {
    return error(ErrorCode::kCorrupt, "offset " + std::to_string(info.offset) + ", where " +
                                          std::to_string(expected) + " must follow");
  }
  const std::optional<std::uint64_t> end = checked_add(info.offset, info.n_bytes);
  if (!end) return error(ErrorCode::kCorrupt, "its end does not fit 64 bits");
  if (*end > data.size()) {
    return error(ErrorCode::kTruncated, "bytes " + std::to_string(info.offset) + " to " +
                                            std::to_string(*end) +
                                            " lie beyond the end of the data");
  }
  return data.subspan(static_cast<std::size_t>(info.offset),
                      static_cast<std::size_t>(info.n_bytes));
}

Result<std::map<std::string, TensorView>> place_tensors(std::vector<TensorInfo> infos,
                                                        std::uint64_t alignment, ByteView data) {
  std::map<std::string, TensorView> tensors;
  std::uint64_t expected = 0;
  for (TensorInfo& info : infos) {
    const std::string place = "tensor " + printable_name(info.name);
    if (tensors.contains(info.name)) return error(ErrorCode::kCorrupt, place + ": given twice");
    const auto bytes = tensor_data(info, expected, alignment, data);
    if (!bytes) return in_context(place, bytes.error());
    // Cannot wrap: the end lies in the file, and no file comes within kMaxAlignment of 2^64.
    expected = *align_up(info.offset + info.n_bytes, alignment);
    tensors.emplace(std::move(info.name),
                    TensorView{info.type->type, info.type->name, std::move(info.shape), *bytes});
  }
  return tensors;
}

// From the first aligned byte after the tensor list to the end of the file.
Result<ByteView> find_data(ByteView file, std::size_t position, std::uint64_t alignment) {
  const std::optional<std::uint64_t> start = align_up(position, alignment);
  if (!start || *start > file.size()) {
    return error(ErrorCode::kTruncated,
                 "byte " + std::to_string(position) + ": the file ends before its tensor data");
  }
  return file.subspan(static_cast<std::size_t>(*start));
}

}  // namespace

Result<Gguf> read_gguf(ByteView file) {
  ByteReader in(file);
  TQC_TRY_ASSIGN(const Header header, read_header(in));
  Gguf gguf;
  gguf.version = header.version;
  TQC_TRY_ASSIGN(gguf.metadata, read_gguf_metadata(in, header.n_keys));
  TQC_TRY_ASSIGN(const std::uint64_t alignment, find_alignment(gguf));
  TQC_TRY_ASSIGN(std::vector<TensorInfo> infos, read_tensor_infos(in, header.n_tensors));
  if (infos.empty()) return gguf;  // a file of metadata alone need not be padded
  TQC_TRY_ASSIGN(const ByteView data, find_data(file, in.position(), alignment));
  TQC_TRY_ASSIGN(gguf.tensors, place_tensors(std::move(infos), alignment, data));
  return gguf;
}

}  // namespace tqcache::tensors
