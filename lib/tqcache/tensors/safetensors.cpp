#include "tqcache/tensors/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/error.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::tensors {
namespace {

struct SafetensorsEntry {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // of its bytes, from the start of the data
  std::uint64_t end = 0;    // begin <= end
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// Above any model in use; together these limits keep the header's memory near its size in the file.
constexpr std::size_t kMaxSafetensors = 65'536;
constexpr std::size_t kMaxMetadataKeys = 65'536;
constexpr std::size_t kMaxSafetensorsNameBytes = 256;
constexpr std::size_t kMaxMetadataValueBytes = 1 << 20;  // holds tokenizer configs and templates
constexpr std::size_t kMaxSafetensorsDims = 16;
// Larger integers are not exact in every JSON reader (RFC 8259, section 6).
constexpr std::uint64_t kMaxInteger = (1ull << 53) - 1;

constexpr std::string_view kMetadataKey = "__metadata__";

// The fields of one tensor that have been read so far.
struct Fields {
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> data_offsets;
};

// A state machine over the parser's events. Only the four places below can be entered, so the
// nesting is bounded: the header, a tensor, one of its arrays.
class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::optional<Error> error;

  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) return enter(Place::kHeader);
    if (place_ == Place::kHeader) return enter(is_metadata_ ? Place::kMetadata : Place::kTensor);
    return corrupt("an object is not allowed here");
  }

  bool key(std::string& name) override {
    if (place_ == Place::kMetadata) return begin_metadata_value(name);
    if (place_ == Place::kTensor) return begin_field(name);
    return begin_entry(name);
  }

  bool end_object() override {
    if (place_ == Place::kTensor) return finish_tensor();
    return enter(place_ == Place::kMetadata ? Place::kHeader : Place::kOutside);
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || !array_) return corrupt("an array is not allowed here");
    return enter(Place::kArray);
  }

  bool end_array() override {
    array_ = nullptr;
    return enter(Place::kTensor);
  }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ != Place::kArray) return corrupt("a number is not allowed here");
    if (value > kMaxInteger) return fail(ErrorCode::kTooLarge, "an integer beyond 53 bits");
    if (array_->size() >= kMaxSafetensorsDims) {
      return fail(ErrorCode::kTooLarge, fmt::format("more than {} numbers", kMaxSafetensorsDims));
    }
    array_->push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) return finish_metadata_value(value);
    if (place_ != Place::kTensor || array_) return corrupt("a string is not allowed here");
    fields_.dtype = std::move(value);
    return true;
  }

  bool null() override {
    // MLX writes this for an empty map.
    if (place_ == Place::kHeader && is_metadata_) return true;
    return corrupt("null is not allowed here");
  }

  // An integer gets here if it has a sign; a float also if it is an integer beyond 64 bits.
  bool number_integer(std::int64_t) override { return not_plain(); }
  bool number_float(double, const std::string&) override { return not_plain(); }
  bool boolean(bool) override { return corrupt("a bool is not allowed here"); }
  bool binary(binary_t&) override { return corrupt("binary data"); }

  // The parser passes the exception, but never throws it. Its text quotes the file, so it is not
  // used.
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    error = tqcache::corrupt(fmt::format("header: not valid JSON at byte {} of it", position));
    return false;
  }

 private:
  enum class Place { kOutside, kHeader, kMetadata, kTensor, kArray };

  bool enter(Place place) {
    place_ = place;
    return true;
  }

  bool fail(ErrorCode code, const std::string& fact) {
    error = Error{code, context() + ": " + fact};
    return false;
  }
  bool corrupt(const std::string& fact) { return fail(ErrorCode::kCorrupt, fact); }
  bool not_plain() { return corrupt("a number that is not an integer from 0 on"); }

  std::string context() const {
    if (place_ == Place::kMetadata && !metadata_key_.empty()) {
      return "metadata " + printable_name(metadata_key_);
    }
    if (is_metadata_) return "metadata";
    return place_ == Place::kOutside || !has_entry_ ? "header" : "tensor " + printable_name(name_);
  }

  bool check_name(const std::string& name) {
    if (name.size() > kMaxSafetensorsNameBytes) {
      return fail(ErrorCode::kTooLarge, fmt::format("a name of {} bytes", name.size()));
    }
    if (name.find('\0') != std::string::npos) return corrupt("a name that holds a NUL");
    return true;
  }

  bool begin_entry(std::string& name) {
    has_entry_ = is_metadata_ = false;
    if (!check_name(name)) return false;
    if (name == kMetadataKey) return begin_metadata();
    if (header.tensors.size() >= kMaxSafetensors) {
      return fail(ErrorCode::kTooLarge, fmt::format("more than {} tensors", kMaxSafetensors));
    }
    has_entry_ = true;
    name_ = std::move(name);
    fields_ = {};
    return header.tensors.contains(name_) ? corrupt("given twice") : true;
  }

  bool begin_metadata() {
    is_metadata_ = true;
    if (std::exchange(saw_metadata_, true)) return corrupt("given twice");
    return true;
  }

  bool begin_metadata_value(std::string& name) {
    metadata_key_.clear();
    if (!check_name(name)) return false;
    if (header.metadata.size() >= kMaxMetadataKeys) {
      return fail(ErrorCode::kTooLarge, fmt::format("more than {} keys", kMaxMetadataKeys));
    }
    metadata_key_ = std::move(name);
    return header.metadata.contains(metadata_key_) ? corrupt("given twice") : true;
  }

  bool finish_metadata_value(std::string& value) {
    if (value.size() > kMaxMetadataValueBytes) {
      return fail(ErrorCode::kTooLarge, fmt::format("a value of {} bytes", value.size()));
    }
    header.metadata.emplace(metadata_key_, std::move(value));
    return true;
  }

  bool begin_field(const std::string& name) {
    array_ = nullptr;
    if (name == "dtype") return fields_.dtype ? corrupt("dtype given twice") : true;
    if (name == "shape") return begin_array(fields_.shape, name);
    if (name == "data_offsets") return begin_array(fields_.data_offsets, name);
    // The reference reader skips these, but an unknown field may change how the bytes must be read.
    return fail(ErrorCode::kUnsupported, "unknown field " + printable_name(name));
  }

  bool begin_array(std::optional<std::vector<std::uint64_t>>& field, const std::string& name) {
    if (field) return corrupt(name + " given twice");
    array_ = &field.emplace();
    return true;
  }

  bool finish_tensor() {
    if (!fields_.dtype) return corrupt("no dtype");
    if (!fields_.shape) return corrupt("no shape");
    if (!fields_.data_offsets || fields_.data_offsets->size() != 2) {
      return corrupt("data_offsets are not two numbers");
    }
    const std::uint64_t begin = fields_.data_offsets->front();
    const std::uint64_t end = fields_.data_offsets->back();
    if (end < begin) return corrupt("data_offsets run backwards");
    header.tensors.emplace(
        name_, SafetensorsEntry{std::move(*fields_.dtype), std::move(*fields_.shape), begin, end});
    return enter(Place::kHeader);
  }

  Place place_ = Place::kOutside;
  bool saw_metadata_ = false;
  bool is_metadata_ = false;  // the entry being read is "__metadata__"
  bool has_entry_ = false;    // name_ is the tensor being read
  std::string name_;
  std::string metadata_key_;
  Fields fields_;
  std::vector<std::uint64_t>* array_ = nullptr;  // the field being read, if it is an array
};

// `json` is the whole header, with its padding. Dtypes and ranges are not interpreted.
// Errors: kCorrupt, kTooLarge, kUnsupported (a field that is not dtype, shape or data_offsets).
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json) {
  // The JSON parser skips a byte order mark and takes a NUL for the end of its input.
  if (!json.starts_with('{')) return corrupt("header: does not begin with '{'");
  if (json.find('\0') != std::string_view::npos) {
    return corrupt("header: holds a NUL byte");
  }
  HeaderHandler handler;
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  if (handler.error) return std::move(*handler.error);
  if (!parsed) return corrupt("header: not valid JSON");
  return std::move(handler.header);
}

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
    Dtype{"F8_E5M2", 8, kF8E5M2},
    Dtype{"F8_E4M3", 8, kF8E4M3},
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
  return fmt::format("bytes {} to {}", begin, end);
}

Result<std::uint64_t> tensor_bytes(const Dtype& dtype, const std::vector<std::uint64_t>& shape) {
  const std::optional<std::uint64_t> count = element_count(shape);
  const auto bits = count ? checked_mul(*count, dtype.bits) : std::nullopt;
  if (!bits) return corrupt("its size does not fit 64 bits");
  if (*bits % 8 != 0) return corrupt("its size is not a whole number of bytes");
  return *bits / 8;
}

// `data_offset` and `data_size`: the position and size of the data in the file.
Result<TensorPlace> make_place(const SafetensorsEntry& entry, std::uint64_t data_offset,
                               std::uint64_t data_size) {
  const auto dtype = std::ranges::find(kDtypes, entry.dtype, &Dtype::name);
  if (dtype == kDtypes.end()) {
    return unsupported("dtype " + printable_name(entry.dtype) + " is unknown");
  }
  if (entry.end > data_size) {
    return Error{ErrorCode::kTruncated,
                 range_text(entry.begin, entry.end) + " lie beyond the end of the data"};
  }
  TQC_TRY_ASSIGN(const std::uint64_t n_bytes, tensor_bytes(*dtype, entry.shape));
  if (entry.end - entry.begin != n_bytes) {
    return corrupt(fmt::format("{} where its shape needs {} bytes",
                               range_text(entry.begin, entry.end), n_bytes));
  }
  return TensorPlace{dtype->type, entry.dtype, entry.shape, data_offset + entry.begin, n_bytes};
}

// Overlaps would let a small file declare many large tensors, and holes would let it hide bytes.
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
      return corrupt("tensor " + printable_name(entry->first) + ": " + range_text(begin, end) +
                     " overlap another tensor");
    }
    if (begin > covered) {
      return corrupt("data: " + range_text(covered, begin) + " have no tensor");
    }
    covered = end;
  }
  if (covered == data_size) return {};
  return corrupt("data: " + range_text(covered, data_size) + " have no tensor");
}

// The length of the header of a file of `file_size` bytes.
Result<std::size_t> header_size(ByteView first_bytes, std::uint64_t file_size) {
  ByteReader in(first_bytes);
  TQC_TRY_ASSIGN(const auto size, in.read<std::uint64_t>());
  if (size > kMaxHeaderBytes) {
    return too_large(fmt::format("header: {} bytes, at most {} are read", size, kMaxHeaderBytes));
  }
  if (size > file_size - kLengthBytes) {
    return Error{ErrorCode::kTruncated, fmt::format("header: {} bytes, of which {} are there", size,
                                                    file_size - kLengthBytes)};
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

std::string safetensors_type(tqcache::Dtype dtype) {
  switch (dtype) {
    case tqcache::Dtype::kF32:
      return "F32";
    case tqcache::Dtype::kF16:
      return "F16";
    case tqcache::Dtype::kBF16:
      break;
  }
  return "BF16";
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
  // Bytes that are not UTF-8 are replaced: JSON cannot hold them.
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  Bytes out(kLengthBytes + text.size());
  std::memcpy(out.data(), &length, kLengthBytes);
  std::memcpy(out.data() + kLengthBytes, text.data(), text.size());
  return out;
}

}  // namespace tqcache::tensors
