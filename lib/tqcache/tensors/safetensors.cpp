#include "tqcache/tensors/safetensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/shape.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tensors/safetensors_header.h"

namespace tqcache::tensors {
namespace {

// MAX_HEADER_SIZE of the reference reader.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

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

Result<TensorView> make_view(const SafetensorsEntry& entry, ByteView data) {
  const auto dtype = std::ranges::find(kDtypes, entry.dtype, &Dtype::name);
  if (dtype == kDtypes.end()) {
    return Error{ErrorCode::kUnsupported, "dtype " + printable_name(entry.dtype) + " is unknown"};
  }
  if (entry.end > data.size()) {
    return Error{ErrorCode::kTruncated,
                 range_text(entry.begin, entry.end) + " lie beyond the end of the data"};
  }
  TQC_TRY_ASSIGN(const std::uint64_t n_bytes, tensor_bytes(*dtype, entry.shape));
  if (entry.end - entry.begin != n_bytes) {
    return Error{ErrorCode::kCorrupt, range_text(entry.begin, entry.end) +
                                          " where its shape needs " + std::to_string(n_bytes) +
                                          " bytes"};
  }
  const ByteView bytes =
      data.subspan(static_cast<std::size_t>(entry.begin), static_cast<std::size_t>(n_bytes));
  return TensorView{dtype->type, entry.dtype, entry.shape, bytes};
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

Result<std::string_view> read_header_text(ByteReader& in) {
  TQC_TRY_ASSIGN(const auto size, in.read<std::uint64_t>());
  if (size > kMaxHeaderBytes) {
    return Error{ErrorCode::kTooLarge, "header: " + std::to_string(size) + " bytes, at most " +
                                           std::to_string(kMaxHeaderBytes) + " are read"};
  }
  TQC_TRY_ASSIGN(const ByteView bytes, in.take(size));
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

Result<Safetensors> read_safetensors(ByteView file) {
  ByteReader in(file);
  TQC_TRY_ASSIGN(const std::string_view header_text, read_header_text(in));
  TQC_TRY_ASSIGN(SafetensorsHeader header, parse_safetensors_header(header_text));
  TQC_TRY_ASSIGN(const ByteView data, in.take(in.remaining()));
  Safetensors result;
  for (const auto& [name, entry] : header.tensors) {
    auto view = make_view(entry, data);
    if (!view) return in_context("tensor " + printable_name(name), std::move(view).error());
    result.tensors.emplace(name, std::move(view).value());
  }
  TQC_TRY(check_coverage(header.tensors, data.size()));
  result.metadata = std::move(header.metadata);
  return result;
}

}  // namespace tqcache::tensors
