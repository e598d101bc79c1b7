#include "tqcache/interop/turbomlx/turbomlx_v3.h"

#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/result.h"
#include "tqcache/interop/json_tree.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::interop {
namespace {

using tensors::printable_name;
using Kind = Value::Kind;

constexpr std::uint64_t kHeaderAt = kTurboMlxV3Magic.size() + sizeof(std::uint64_t);
constexpr std::uint64_t kMaxHeaderBytes = 16u << 20;  // one of 128 layers takes half of 1 MiB

// The end of a file as a file.
class FileEnd : public ByteSource {
 public:
  FileEnd(const ByteSource& file, std::uint64_t offset) : file_(file), offset_(offset) {}

  std::uint64_t size() const override {
    const std::uint64_t size = file_.size();
    return size > offset_ ? size - offset_ : 0;
  }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const auto at = checked_add(offset, offset_);
    if (!at) return Error{ErrorCode::kTruncated, "byte " + std::to_string(offset) + ": no end"};
    return file_.read_at(*at, out);
  }

 private:
  const ByteSource& file_;
  std::uint64_t offset_;
};

Result<std::string> read_header(const ByteSource& file) {
  Bytes start(kHeaderAt);
  TQC_TRY(file.read_at(0, start));
  const auto size = number_at<std::uint64_t>(start, kTurboMlxV3Magic.size());
  if (size > kMaxHeaderBytes) {
    return Error{ErrorCode::kTooLarge, "a header of " + std::to_string(size) + " bytes"};
  }
  if (size > file.size() - kHeaderAt) {
    return Error{ErrorCode::kTruncated, "a header of " + std::to_string(size) +
                                            " bytes, of which " +
                                            std::to_string(file.size() - kHeaderAt) + " are there"};
  }
  std::string header(static_cast<std::size_t>(size), '\0');
  TQC_TRY(file.read_at(kHeaderAt, std::as_writable_bytes(std::span(header))));
  return header;
}

Result<std::vector<std::uint64_t>> shape_of(const ValueTree& tree, const Value& list) {
  std::vector<std::uint64_t> shape;
  for (const ValueId id : list.items) {
    const Value& n = tree.at(id);
    if (n.kind != Kind::kInteger || n.integer < 0) return corrupt("shape: not numbers from 0 on");
    shape.push_back(static_cast<std::uint64_t>(n.integer));
  }
  return shape;
}

// What stands for an array: {"__tq_array__": true, "tensor_id", "dtype", "shape"}. A shape may be
// another than the tensor's, if it has as many values.
Result<Value> make_array(const ValueTree& tree, const Value& dict,
                         const tensors::SafetensorsIndex& index, std::uint64_t blob_at) {
  TQC_TRY_ASSIGN(const std::string id, get_text(tree, dict, "tensor_id"));
  const auto found = index.tensors.find(id);
  if (found == index.tensors.end()) {
    return corrupt("array " + printable_name(id) + ": not in the file");
  }
  const tensors::TensorPlace& place = found->second;
  TQC_TRY_ASSIGN(const Value* list, require_value(tree, dict, "shape", Kind::kList));
  TQC_TRY_ASSIGN(auto shape, shape_of(tree, *list));
  if (element_count(shape) != element_count(place.shape)) {
    return corrupt("array " + printable_name(id) + ": a shape of another size than the tensor's");
  }
  Value value{.kind = Kind::kArray};
  value.array = std::make_shared<ArrayValue>();
  value.array->type = place.type;
  value.array->type_name = place.type_name;
  value.array->shape = std::move(shape);
  value.array->bytes = {blob_at + place.offset, place.bytes};
  return value;
}

bool is_marked(const Value* flag) {
  return flag != nullptr && flag->kind == Kind::kBool && flag->integer != 0;
}

// Puts arrays and tuples into their places.
Result<void> restore(ValueTree& tree, const tensors::SafetensorsIndex& index,
                     std::uint64_t blob_at) {
  for (ValueId id = 0; id < tree.size(); ++id) {
    Value& value = tree.at(id);
    TQC_TRY_ASSIGN(const Value* array, find_value(tree, value, "__tq_array__"));
    TQC_TRY_ASSIGN(const Value* tuple, find_value(tree, value, "__tq_tuple__"));
    if (is_marked(array)) {
      TQC_TRY_ASSIGN(value, make_array(tree, value, index, blob_at));
    } else if (is_marked(tuple)) {
      TQC_TRY_ASSIGN(const Value* items, require_value(tree, value, "items", Kind::kList));
      value = Value{.kind = Kind::kTuple, .items = items->items};
    }
  }
  return {};
}

Result<ValueTree> read(const ByteSource& file) {
  TQC_TRY_ASSIGN(const std::string header, read_header(file));
  auto tree = parse_json_tree(header);
  if (!tree) return in_context("header", std::move(tree).error());
  const std::uint64_t blob_at = kHeaderAt + header.size();
  const FileEnd blob(file, blob_at);
  tensors::SafetensorsIndex index;
  if (blob.size() > 0) {
    TQC_TRY_ASSIGN(index, tensors::index_safetensors(blob));
  }
  auto restored = restore(*tree, index, blob_at);
  if (!restored) return in_context("header", std::move(restored).error());
  return tree;
}

}  // namespace

Result<ValueTree> read_turbomlx_v3(const ByteSource& file) {
  if (file.size() < kHeaderAt) {
    return Error{ErrorCode::kTruncated, "a file of " + std::to_string(file.size()) + " bytes"};
  }
  return read(file);
}

}  // namespace tqcache::interop
