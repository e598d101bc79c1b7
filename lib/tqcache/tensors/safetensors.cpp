#include "tqcache/tensors/safetensors.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tensors/safetensors_header.h"

namespace tqcache::tensors {
namespace {

// MAX_HEADER_SIZE of the reference reader.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kLengthBytes = 8;

using enum TensorType;

struct Dtype {
  std::string_view name;
  std::uint64_t bits;
  TensorType type;
};

constexpr std::array kDtypes = {
    Dtype{"BOOL", 8, kBool},
    Dtype{"F4", 4, kOther},
    Dtype{"F6_E2M3", 6, kOther},
    Dtype{"F6_E3M2", 6, kOther},
    Dtype{"U8", 8, kU8},
    Dtype{"I8", 8, kI8},
    Dtype{"F8_E5M2", 8, kOther},
    Dtype{"F8_E4M3", 8, kOther},
    Dtype{"F8_E8M0", 8, kOther},
    Dtype{"F8_E4M3FNUZ", 8, kOther},
    Dtype{"F8_E5M2FNUZ", 8, kOther},
    Dtype{"I16", 16, kI16},
    Dtype{"U16", 16, kU16},
    Dtype{"F16", 16, kF16},
    Dtype{"BF16", 16, kBF16},
    Dtype{"I32", 32, kI32},
    Dtype{"U32", 32, kU32},
    Dtype{"F32", 32, kF32},
    Dtype{"C64", 64, kOther},
    Dtype{"F64", 64, kF64},
    Dtype{"I64", 64, kI64},
    Dtype{"U64", 64, kU64},
};

using Entry = std::pair<const std::string, SafetensorsEntry>;

std::string range_text(std::uint64_t begin, std::uint64_t end) {
  return "bytes " + std::to_string(begin) + " to " + std::to_string(end);
}

Result<std::uint64_t> tensor_bytes(const Dtype& dtype, const std::vector<std::uint64_t>& shape) {
  const std::optional<std::uint64_t> count = element_count(shape);
  const auto bits = count ? checked_mul(*count, dtype.bits) : std::nullopt;
  if (!bits) return Error{ErrorCode::kCorrupt, "its size does not fit 64 bits"};
  if (*bits % 8 != 0) return Error{ErrorCode::kCorrupt, "its size is not a whole number of bytes"};
  return *bits / 8;
}

// `data_offset` and `data_size`: where the data stands in the file.
Result<TensorPlace> make_place(const SafetensorsEntry& entry, std::uint64_t data_offset,
                               std::uint64_t data_size) {
  const auto dtype = std::ranges::find(kDtypes, entry.dtype, &Dtype::name);
  if (dtype == kDtypes.end()) {
    return Error{ErrorCode::kUnsupported, "dtype " + printable_name(entry.dtype) + " is unknown"};
  }
  if (entry.end > data_size) {
    return Error{ErrorCode::kTruncated,
                 range_text(entry.begin, entry.end) + " lie beyond the end of the data"};
  }
  TQC_TRY_ASSIGN(const std::uint64_t n_bytes, tensor_bytes(*dtype, entry.shape));
  if (entry.end - entry.begin != n_bytes) {
    return Error{ErrorCode::kCorrupt, range_text(entry.begin, entry.end) +
                                          " where its shape needs " + std::to_string(n_bytes) +
                                          " bytes"};
  }
  return TensorPlace{dtype->type, entry.dtype, entry.shape, data_offset + entry.begin, n_bytes};
}

// Overlap would let a small file name many large tensors, and holes would let it hide bytes.
Result<void> check_coverage(const std::map<std::string, SafetensorsEntry>& entries,
                            std::uint64_t data_size) {
  std::vector<const Entry*> by_range;
  for (const Entry& entry : entries) by_range.push_back(&entry);
  std::ranges::sort(by_range, {}, [](const Entry* entry) {
    return std::pair(entry->second.begin, entry->second.end);
  });
  std::uint64_t covered = 0;
  for (const Entry* entry : by_range) {
    const auto [begin, end] = std::pair(entry->second.begin, entry->second.end);
    if (begin < covered) {
      return Error{ErrorCode::kCorrupt, "tensor " + printable_name(entry->first) + ": " +
                                            range_text(begin, end) + " overlap another tensor"};
    }
    if (begin > covered) {
      return Error{ErrorCode::kCorrupt, "data: " + range_text(covered, begin) + " have no tensor"};
    }
    covered = end;
  }
  if (covered == data_size) return {};
  return Error{ErrorCode::kCorrupt, "data: " + range_text(covered, data_size) + " have no tensor"};
}

// The length of the header that a file of `file_size` bytes begins with.
Result<std::size_t> header_size(ByteView first_bytes, std::uint64_t file_size) {
  ByteReader in(first_bytes);
  TQC_TRY_ASSIGN(const auto size, in.read<std::uint64_t>());
  if (size > kMaxHeaderBytes) {
    return Error{ErrorCode::kTooLarge, "header: " + std::to_string(size) + " bytes, at most " +
                                           std::to_string(kMaxHeaderBytes) + " are read"};
  }
  if (size > file_size - kLengthBytes) {
    return Error{ErrorCode::kTruncated, "header: " + std::to_string(size) + " bytes, of which " +
                                            std::to_string(file_size - kLengthBytes) +
                                            " are there"};
  }
  return static_cast<std::size_t>(size);
}

Result<SafetensorsIndex> make_index(std::string_view header_text, std::uint64_t file_size) {
  TQC_TRY_ASSIGN(SafetensorsHeader header, parse_safetensors_header(header_text));
  const std::uint64_t data_offset = kLengthBytes + header_text.size();
  const std::uint64_t data_size = file_size - data_offset;
  SafetensorsIndex index;
  for (const auto& [name, entry] : header.tensors) {
    auto place = make_place(entry, data_offset, data_size);
    if (!place) return in_context("tensor " + printable_name(name), std::move(place).error());
    index.tensors.emplace(name, std::move(place).value());
  }
  TQC_TRY(check_coverage(header.tensors, data_size));
  index.metadata = std::move(header.metadata);
  return index;
}

std::string_view text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Result<Safetensors> read_safetensors(ByteView file) {
  TQC_TRY_ASSIGN(const std::size_t size, header_size(file, file.size()));
  TQC_TRY_ASSIGN(SafetensorsIndex index,
                 make_index(text_of(file.subspan(kLengthBytes, size)), file.size()));
  Safetensors result;
  for (auto& [name, place] : index.tensors) {
    const ByteView bytes =
        file.subspan(static_cast<std::size_t>(place.offset), static_cast<std::size_t>(place.bytes));
    result.tensors.emplace(
        name, TensorView{place.type, std::move(place.type_name), std::move(place.shape), bytes});
  }
  result.metadata = std::move(index.metadata);
  return result;
}

Result<SafetensorsIndex> index_safetensors(const ByteSource& file) {
  const std::uint64_t file_size = file.size();
  std::array<std::byte, kLengthBytes> length{};
  if (file_size < length.size()) return Error{ErrorCode::kTruncated, "header: no length"};
  TQC_TRY(file.read_at(0, length));
  TQC_TRY_ASSIGN(const std::size_t size, header_size(length, file_size));
  Bytes header(size);
  TQC_TRY(file.read_at(kLengthBytes, header));
  return make_index(text_of(header), file_size);
}

Bytes make_safetensors_header(const std::vector<NewTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  auto header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const NewTensor& tensor : tensors) {
    const auto dtype = std::ranges::find(kDtypes, tensor.type_name, &Dtype::name);
    assert(dtype != kDtypes.end());
    const std::uint64_t end = offset + tensor_bytes(*dtype, tensor.shape).value();
    header[tensor.name] = {
        {"dtype", tensor.type_name}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  // What is no UTF-8 is replaced: a text may come from anywhere, and JSON cannot hold it.
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  Bytes out(kLengthBytes + text.size());
  std::memcpy(out.data(), &length, kLengthBytes);
  std::memcpy(out.data() + kLengthBytes, text.data(), text.size());
  return out;
}

}  // namespace tqcache::tensors
