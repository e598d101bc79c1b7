#include "tqcache/tensors/safetensors_header.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tqcache/tensors/printable_name.h"

namespace tqcache::tensors {
namespace {

// Above what any model has; together they keep the header's memory near its size in the file.
constexpr std::size_t kMaxSafetensors = 65'536;
constexpr std::size_t kMaxMetadataKeys = 65'536;
constexpr std::size_t kMaxSafetensorsNameBytes = 256;
constexpr std::size_t kMaxMetadataValueBytes = 1 << 20;  // holds tokenizer configs and templates
constexpr std::size_t kMaxSafetensorsDims = 16;
// Larger integers are not exact in every JSON reader (RFC 8259, section 6).
constexpr std::uint64_t kMaxInteger = (1ull << 53) - 1;

constexpr std::string_view kMetadataKey = "__metadata__";

// One tensor's fields as far as they were read.
struct Fields {
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> data_offsets;
};

// A state machine over the events of the parser. Only the four places below can be entered, so
// the nesting is bounded by construction: the header, a tensor, one of its arrays.
class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::optional<Error> error;

  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) return enter(Place::kHeader);
    if (place_ == Place::kHeader) return enter(is_metadata_ ? Place::kMetadata : Place::kTensor);
    return corrupt("an object where none may stand");
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
    if (place_ != Place::kTensor || !array_) return corrupt("an array where none may stand");
    return enter(Place::kArray);
  }

  bool end_array() override {
    array_ = nullptr;
    return enter(Place::kTensor);
  }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ != Place::kArray) return corrupt("a number where none may stand");
    if (value > kMaxInteger) return fail(ErrorCode::kTooLarge, "an integer beyond 53 bits");
    if (array_->size() >= kMaxSafetensorsDims) {
      return fail(ErrorCode::kTooLarge,
                  "more than " + std::to_string(kMaxSafetensorsDims) + " numbers");
    }
    array_->push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) return finish_metadata_value(value);
    if (place_ != Place::kTensor || array_) return corrupt("a string where none may stand");
    fields_.dtype = std::move(value);
    return true;
  }

  bool null() override {
    // MLX writes this for an empty map.
    if (place_ == Place::kHeader && is_metadata_) return true;
    return corrupt("null where none may stand");
  }

  // An integer gets here when it has a sign, a float also when it is an integer beyond 64 bits.
  bool number_integer(std::int64_t) override { return not_plain(); }
  bool number_float(double, const std::string&) override { return not_plain(); }
  bool boolean(bool) override { return corrupt("a bool where none may stand"); }
  bool binary(binary_t&) override { return corrupt("binary data"); }

  // The exception is only shown, never thrown. Its text quotes the file, so it goes no further.
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    error = Error{ErrorCode::kCorrupt,
                  "header: not valid JSON at byte " + std::to_string(position) + " of it"};
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
  bool not_plain() { return corrupt("a number that is not a plain non-negative integer"); }

  std::string context() const {
    if (place_ == Place::kMetadata && !metadata_key_.empty()) {
      return "metadata " + printable_name(metadata_key_);
    }
    if (is_metadata_) return "metadata";
    return place_ == Place::kOutside || !has_entry_ ? "header" : "tensor " + printable_name(name_);
  }

  bool check_name(const std::string& name) {
    if (name.size() > kMaxSafetensorsNameBytes) {
      return fail(ErrorCode::kTooLarge, "a name of " + std::to_string(name.size()) + " bytes");
    }
    if (name.find('\0') != std::string::npos) return corrupt("a name that holds a NUL");
    return true;
  }

  bool begin_entry(std::string& name) {
    has_entry_ = is_metadata_ = false;
    if (!check_name(name)) return false;
    if (name == kMetadataKey) return begin_metadata();
    if (header.tensors.size() >= kMaxSafetensors) {
      return fail(ErrorCode::kTooLarge,
                  "more than " + std::to_string(kMaxSafetensors) + " tensors");
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
      return fail(ErrorCode::kTooLarge, "more than " + std::to_string(kMaxMetadataKeys) + " keys");
    }
    metadata_key_ = std::move(name);
    return header.metadata.contains(metadata_key_) ? corrupt("given twice") : true;
  }

  bool finish_metadata_value(std::string& value) {
    if (value.size() > kMaxMetadataValueBytes) {
      return fail(ErrorCode::kTooLarge, "a value of " + std::to_string(value.size()) + " bytes");
    }
    header.metadata.emplace(metadata_key_, std::move(value));
    return true;
  }

  bool begin_field(const std::string& name) {
    array_ = nullptr;
    if (name == "dtype") return fields_.dtype ? corrupt("dtype given twice") : true;
    if (name == "shape") return begin_array(fields_.shape, name);
    if (name == "data_offsets") return begin_array(fields_.data_offsets, name);
    // The reference reader skips these, but a field that it does not know may change how the
    // bytes are to be read.
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
  std::vector<std::uint64_t>* array_ = nullptr;  // the field being read, where it is an array
};

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json) {
  // The JSON parser skips a byte order mark and takes a NUL for the end of its input.
  if (!json.starts_with('{')) return Error{ErrorCode::kCorrupt, "header: does not begin with '{'"};
  if (json.find('\0') != std::string_view::npos) {
    return Error{ErrorCode::kCorrupt, "header: holds a NUL byte"};
  }
  HeaderHandler handler;
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  if (handler.error) return std::move(*handler.error);
  if (!parsed) return Error{ErrorCode::kCorrupt, "header: not valid JSON"};
  return std::move(handler.header);
}

}  // namespace tqcache::tensors
