#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/mlx/mlx_lm.h"
#include "tqcache/interop/mlx/mlx_lm_layout.h"
#include "tqcache/interop/mlx/mlx_lm_rows.h"
#include "tqcache/interop/mlx/mlx_lm_state.h"
#include "tqcache/reader.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::interop {
namespace {

// The values of a tensor to be written.
struct MlxTensorData {  // K or V of an attention layer
  std::int64_t layer = 0;
  cache::TensorKind tensor = cache::TensorKind::kKeys;
};

struct MlxGroupData {  // K or V in affine groups; its three tensors are consecutive
  MlxTensorData tensor;
  enum Part : std::uint8_t { kCodes, kScales, kBiases } part = kCodes;
};

struct MlxArrayData {  // an array of a recurrent state
  std::int64_t layer = 0;
  std::int64_t array = 0;
};

struct MlxNumberData {  // a number, stored as i32
  std::int64_t value = 0;
};

struct MlxTextData {  // a text, stored as the code points of its characters
  std::string text;
};

struct MlxNoData {};  // None, stored as an array without values
using MlxData =
    std::variant<MlxTensorData, MlxGroupData, MlxArrayData, MlxNumberData, MlxTextData, MlxNoData>;

constexpr std::int64_t kBufferStep = 256;  // rows by which mlx-lm's buffers grow
constexpr std::int64_t kMaxSlots = 256;    // beyond it, empty slots are no slots

struct MlxTensor {
  tensors::NewTensor tensor;
  MlxData data;
};

struct MlxPlan {
  std::vector<MlxTensor> tensors;  // in the order of writing
  std::map<std::string, std::string> metadata;
};

using cache::AttentionDesc;
using cache::LayerDesc;
using cache::TensorKind;

Result<void> check_groups(const AttentionDesc& layer, const MlxLmExport& options) {
  if (options.kv_bits == 0) return {};
  for (const std::int64_t head_dim : {layer.shape.head_dim, layer.value_shape().head_dim}) {
    if (head_dim % options.group_size == 0) continue;
    return invalid(fmt::format("groups of {} in head_dim {}", options.group_size, head_dim));
  }
  return {};
}

Result<void> check_layer(const LayerDesc& layer, const MlxLmExport& options) {
  return std::visit(
      Overload{[&](const AttentionDesc& attention) { return check_groups(attention, options); },
               [](const cache::WindowDesc&) -> Result<void> { return {}; },
               [](const cache::StateDesc& state) -> Result<void> {
                 if (!state.arrays.empty()) return {};
                 return invalid("without arrays: mlx-lm has no such cache");
               }},
      layer);
}

Result<void> check_form(const MlxLmExport& options) {
  if (options.kv_bits == 0) return {};
  if (options.kv_bits != 2 && options.kv_bits != 4 && options.kv_bits != 8) {
    return invalid(fmt::format("groups of {} bits", options.kv_bits));
  }
  if (options.group_size == 32 || options.group_size == 64 || options.group_size == 128) return {};
  return invalid(fmt::format("groups of {} components", options.group_size));
}

Result<void> check_options(const cache::CacheDesc& cache, const MlxLmExport& options) {
  if (options.version_major < 0 || options.version_minor < 0) return invalid("no such version");
  TQC_TRY(check_form(options));
  if (cache.layers.empty() || cache.n_tokens() == 0) return invalid("an empty cache");
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    auto checked = check_layer(cache.layers[i], options);
    if (!checked) return in_context(fmt::format("layer {}", i), std::move(checked).error());
  }
  return {};
}

// In mlx-lm the first dimension is the batch, here always one prompt. Arrays from other programs
// may lack it.
std::vector<std::uint64_t> with_batch(std::vector<std::uint64_t> shape) {
  if (shape.empty() || shape[0] != 1) shape.insert(shape.begin(), 1);
  return shape;
}

class Planner {
 public:
  // `objects`: the caches that the layers become, in their order.
  Planner(const cache::CacheDesc& cache, const MlxLmExport& options,
          std::span<const MlxObject> objects)
      : cache_(cache),
        options_(options),
        objects_(objects),
        with_scalars_(options.version_major > 0 || options.version_minor >= 32),
        with_steps_(options.version_major == 0 && options.version_minor < 28) {}

  MlxPlan plan() {
    add_user("model", options_.model.empty() ? cache_.identity.model_name : options_.model);
    add_user("tokenizer_config", options_.tokenizer_config);
    if (with_scalars_) plan_.metadata["2.0"] = "";
    for (const MlxObject& object : objects_) {
      object.is_list ? add_list(object) : add_one(object.members[0]);
      ++object_;
    }
    return std::move(plan_);
  }

 private:
  void add_user(const std::string& key, const std::string& value) {
    plan_.metadata[(with_scalars_ ? "0." : "1.") + key] = value;
  }

  void add_one(const MlxMember& member) {
    class_key_ = fmt::format("{}{}", (with_scalars_ ? "1." : "2."), object_);
    info_key_ = fmt::format("0.{}", object_);
    prefix_ = fmt::format("{}.", object_);
    first_slot_ = 0;
    add_layer(member);
  }

  // Since 0.32.0 the class of a member is a tensor. Before 0.31 its tensors follow those of the
  // member before, and nothing says what they are.
  void add_list(const MlxObject& list) {
    plan_.metadata[fmt::format("{}{}", (with_scalars_ ? "1." : "2."), object_)] = "CacheList";
    const bool is_flat = options_.version_major == 0 && options_.version_minor < 31;
    first_slot_ = 0;
    if (is_flat) plan_.metadata[fmt::format("0.{}", object_)] = "";
    for (std::size_t i = 0; i < list.members.size(); ++i) {
      prefix_ = is_flat         ? fmt::format("{}.", object_)
                : with_scalars_ ? fmt::format("{}.{}.0.", object_, i)
                                : fmt::format("{}.{}.", object_, i);
      class_key_ = is_flat || with_scalars_ ? "" : fmt::format("0.{}.0.{}", object_, i);
      info_key_ = is_flat ? "" : fmt::format("0.{}.1.{}", object_, i);
      const int n_slots = add_layer(list.members[i]);
      if (is_flat) first_slot_ += n_slots;
      if (!with_scalars_) continue;
      prefix_ = fmt::format("{}.{}.", object_, i);
      add_scalar(1, "string", "I32", {class_name_.size()}, MlxTextData{class_name_});
    }
  }

  // Returns the number of tensors of arrays.
  int add_layer(const MlxMember& member) {
    const LayerDesc& layer = cache_.layers[static_cast<std::size_t>(layer_)];
    const int n_slots = std::visit(Overload{[&](const AttentionDesc& attention) {
                                              options_.kv_bits == 0 ? add_kv(attention, member)
                                                                    : add_quantized(attention);
                                              return 2;
                                            },
                                            [&](const cache::WindowDesc& window) {
                                              add_rotating(window, member);
                                              return 2;
                                            },
                                            [&](const cache::StateDesc& state) {
                                              add_arrays(state);
                                              return static_cast<int>(state.arrays.size());
                                            }},
                                   layer);
    ++layer_;
    return n_slots;
  }

  void add_class(const char* name) {
    class_name_ = name;
    if (!class_key_.empty()) plan_.metadata[class_key_] = name;
  }
  // A cache without numbers has an empty text instead.
  void add_no_numbers() {
    if (!with_scalars_ && !info_key_.empty()) plan_.metadata[info_key_] = "";
  }
  void add_info(const std::vector<std::int64_t>& numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      plan_.metadata[fmt::format("{}.{}", info_key_, i)] = std::to_string(numbers[i]);
    }
  }

  std::string name(std::string_view slot) const { return prefix_ + std::string(slot); }
  // The name of tensor `number` of the object's state.
  std::string slot(std::int64_t number) const { return std::to_string(first_slot_ + number); }
  void add_tensor(std::string_view slot, std::string type, std::vector<std::uint64_t> shape,
                  MlxData data) {
    plan_.tensors.push_back({{name(slot), std::move(type), std::move(shape)}, std::move(data)});
  }
  // A tensor that represents a value other than an array.
  void add_scalar(int slot, const char* kind, std::string type, std::vector<std::uint64_t> shape,
                  MlxData data) {
    add_scalar_named(std::to_string(slot), kind, std::move(type), std::move(shape),
                     std::move(data));
  }
  void add_scalar_named(const std::string& slot, const char* kind, std::string type,
                        std::vector<std::uint64_t> shape, MlxData data) {
    const std::string number = fmt::format("2.{}", ++n_scalars_);
    plan_.metadata[number + ".0"] = name(slot);
    plan_.metadata[number + ".1"] = kind;
    add_tensor(slot, std::move(type), std::move(shape), std::move(data));
  }
  void add_numbers(int first_slot, const std::vector<std::int64_t>& numbers) {
    for (const std::int64_t number : numbers) {
      add_scalar(first_slot++, "scalar", "I32", {}, MlxNumberData{number});
    }
  }

  // [1, n_kv_heads, tokens, width]
  std::vector<std::uint64_t> shape_of(const AttentionDesc& layer, std::int64_t width) const {
    return {1, to_u64(layer.shape.n_kv_heads), to_u64(cache_.n_tokens()), to_u64(width)};
  }

  void add_kv(const AttentionDesc& layer, const MlxMember& member) {
    const bool is_chunked = member.class_name == "ChunkedKVCache";
    const bool is_concatenate = member.class_name == "ConcatenateKVCache";
    add_class(is_chunked ? "ChunkedKVCache" : is_concatenate ? "ConcatenateKVCache" : "KVCache");
    add_tensor(slot(0), tensors::safetensors_type(layer.k.dtype),
               shape_of(layer, layer.shape.head_dim), MlxTensorData{layer_, TensorKind::kKeys});
    add_tensor(slot(1), tensors::safetensors_type(layer.v.dtype),
               shape_of(layer, layer.value_shape().head_dim),
               MlxTensorData{layer_, TensorKind::kValues});
    if (is_chunked) return add_chunk_numbers(member.chunk_size, 0);
    add_no_numbers();
    if (with_scalars_ && !is_concatenate) add_numbers(2, {cache_.n_tokens()});
  }

  void add_chunk_numbers(std::int64_t chunk_size, std::int64_t start) {
    if (with_scalars_) return add_numbers(2, {cache_.n_tokens(), chunk_size, start});
    add_info({chunk_size, start});
  }

  void add_groups(const AttentionDesc& layer, const std::string& slot, Dtype dtype,
                  MlxTensorData tensor) {
    const bool is_keys = tensor.tensor == TensorKind::kKeys;
    const std::int64_t head_dim = (is_keys ? layer.shape : layer.value_shape()).head_dim;
    const std::int64_t n_u32 = head_dim * options_.kv_bits / 32;
    const auto groups = shape_of(layer, head_dim / options_.group_size);
    add_tensor(slot + ".0", "U32", shape_of(layer, n_u32),
               MlxGroupData{tensor, MlxGroupData::kCodes});
    add_tensor(slot + ".1", tensors::safetensors_type(dtype), groups,
               MlxGroupData{tensor, MlxGroupData::kScales});
    add_tensor(slot + ".2", tensors::safetensors_type(dtype), groups,
               MlxGroupData{tensor, MlxGroupData::kBiases});
  }

  void add_quantized(const AttentionDesc& layer) {
    add_class("QuantizedKVCache");
    add_groups(layer, "0", layer.k.dtype, {layer_, TensorKind::kKeys});
    add_groups(layer, "1", layer.v.dtype, {layer_, TensorKind::kValues});
    std::vector<std::int64_t> numbers = {cache_.n_tokens(), options_.group_size, options_.kv_bits};
    if (with_steps_) numbers.insert(numbers.begin(), kBufferStep);
    with_scalars_ ? add_numbers(2, numbers) : add_info(numbers);
  }

  // The window is ordered by position, so the row to be written next is the one after the last:
  // mlx-lm wraps around to the oldest row if there is no room.
  void add_rotating(const cache::WindowDesc& layer, const MlxMember& member) {
    const bool is_chunked = member.class_name == "ChunkedKVCache";
    add_class(is_chunked ? "ChunkedKVCache" : "RotatingKVCache");
    const auto arrays = cache::arrays_of(layer, cache_.n_tokens());
    for (std::int64_t i = 0; i < std::ssize(arrays); ++i) {
      const cache::ArrayDesc& array = arrays[static_cast<std::size_t>(i)];
      std::vector<std::uint64_t> shape = array.shape;
      shape.insert(shape.begin(), 1);  // [1, n_kv_heads, tokens, head_dim]
      add_tensor(slot(i), tensors::safetensors_type(array.dtype), std::move(shape),
                 MlxArrayData{layer_, i});
    }
    const std::int64_t offset = cache_.n_tokens();
    const auto [size, keep] = layer.window;
    const std::int64_t next = std::min(size, offset);
    if (is_chunked) return add_chunk_numbers(member.chunk_size, offset - next);
    if (with_scalars_) {
      add_numbers(2, {offset, keep, size, next});
    } else if (with_steps_) {
      add_info({keep, size, kBufferStep, offset, next});
    } else {
      add_info({keep, size, offset, next});
    }
  }

  void add_arrays(const cache::StateDesc& layer) {
    // Versions before 0.28.1 cannot make an ArraysCache from a file.
    add_class(with_steps_ && layer.arrays.size() == 2 ? "MambaCache" : "ArraysCache");
    std::int64_t slot_number = 0;
    for (std::int64_t i = 0; i < std::ssize(layer.arrays); ++i, ++slot_number) {
      const cache::ArrayDesc& array = layer.arrays[static_cast<std::size_t>(i)];
      // An import leaves out empty slots: names are numbers of slots.
      const std::int64_t number = mlx_number(array.name).value_or(slot_number);
      for (; with_scalars_ && slot_number < std::min(number, kMaxSlots); ++slot_number) {
        add_scalar_named(fmt::format("0.{}", slot_number), "none", "F32", {0}, MlxNoData{});
      }
      add_tensor(with_scalars_ ? fmt::format("0.{}", slot_number) : slot(slot_number),
                 tensors::safetensors_type(array.dtype), with_batch(array.shape),
                 MlxArrayData{layer_, i});
    }
    add_no_numbers();
    if (!with_scalars_) return;
    add_scalar(1, "none", "F32", {0}, MlxNoData{});  // left_padding
    add_scalar(2, "none", "F32", {0}, MlxNoData{});  // lengths
  }

  const cache::CacheDesc& cache_;
  const MlxLmExport& options_;
  std::span<const MlxObject> objects_;
  bool with_scalars_;  // 0.32.0 or later: numbers are stored as tensors
  bool with_steps_;    // before 0.28: numbers of buffers include their step
  std::int64_t layer_ = 0;
  std::int64_t object_ = 0;
  // Of the object that is being added.
  std::string class_name_;
  std::string class_key_;  // in the metadata; empty: its class is not there
  std::string info_key_;
  std::string prefix_;  // of its tensors
  int first_slot_ = 0;
  std::size_t n_scalars_ = 0;
  MlxPlan plan_;
};

// Before 0.31 a CacheList keeps no numbers of its members.
Result<void> check_lists(std::span<const MlxObject> objects, const MlxLmExport& options) {
  if (options.version_major > 0 || options.version_minor >= 31) return {};
  for (const MlxObject& object : objects) {
    for (const MlxMember& member : object.members) {
      const bool has_numbers = member.class_name == "RotatingKVCache" || member.chunk_size > 0 ||
                               (options.kv_bits > 0 && member.class_name != "ArraysCache");
      if (!object.is_list || !has_numbers) continue;
      return invalid(
          fmt::format("a CacheList with a {}, whose numbers mlx-lm did not save before 0.31: write "
                      "for 0.31 or later",
                      options.kv_bits > 0 ? "QuantizedKVCache" : member.class_name));
    }
  }
  return {};
}

// Requires: all K and V of `cache` are dense.
// Errors:   kInvalidArgument (unsupported bits, group size or version; no layers or tokens).
Result<MlxPlan> plan_mlx(const cache::CacheDesc& cache, const MlxLmExport& options) {
  TQC_TRY(check_options(cache, options));
  const std::string& layout = cache.identity.source_layout;
  std::vector<MlxObject> objects = plain_objects(cache.layers);
  // Layouts of transformers are another text.
  if (!layout.empty() && cache.identity.source_format.starts_with("mlx")) {
    TQC_TRY_ASSIGN(objects, parse_objects(layout, cache.layers));
    TQC_TRY(check_lists(objects, options));
  }
  return Planner(cache, options, objects).plan();
}

// Writes tensors in order. Memory: K or V of one layer, or one array.
class MlxWriter {
 public:
  // All arguments must outlive the writer.
  MlxWriter(const cache::CacheReader& cache, AtomicFile& file, AffineGroups groups,
            const Progress& progress)
      : cache_(cache),
        file_(file),
        groups_(groups),
        progress_(progress),
        total_(cache::total_raw_bytes(cache.blocks())) {
    number_sections();
  }

  Result<void> write(const MlxTensor& tensor) {
    return std::visit([&](const auto& data) { return write_data(data); }, tensor.data);
  }

 private:
  const cache::CacheDesc& description() const { return cache_.description(); }
  cache::HeadShape shape_of(const MlxTensorData& tensor) const {
    return cache::shape_of(description().layers[to_size(tensor.layer)], tensor.tensor);
  }
  Dtype dtype_of(const MlxTensorData& tensor) const {
    return cache::tensor_of(description().layers[to_size(tensor.layer)], tensor.tensor).dtype;
  }

  // Finds the sections of each layer's keys, values and arrays in the section table.
  void number_sections() {
    numbers_.resize(description().layers.size());
    for (std::size_t i = 0; i < cache_.blocks().size(); ++i) {
      const cache::BlockInfo& section = cache_.blocks()[i];
      numbers_[to_size(section.layer)][static_cast<std::size_t>(section.tensor)].push_back(i);
    }
  }
  const std::vector<std::size_t>& sections_of(std::int64_t layer, TensorKind tensor) const {
    return numbers_[to_size(layer)][static_cast<std::size_t>(tensor)];
  }

  Result<void> read(std::size_t section) {
    TQC_TRY(cache_.read(section, section_));
    done_ += section_.size();
    if (progress_ && !progress_(done_, total_)) {
      return interrupted_error();
    }
    return {};
  }

  // Calls use(row, bytes) with every head vector of K or V; `row` counts kv head by kv head.
  template <class Use>
  Result<void> each_row(const MlxTensorData& tensor, Use use) {
    const cache::HeadShape shape = shape_of(tensor);
    const std::size_t bytes = to_size(shape.head_dim) * dtype_size(dtype_of(tensor));
    std::int64_t first = 0;
    for (const std::size_t section : sections_of(tensor.layer, tensor.tensor)) {
      TQC_TRY(read(section));
      const std::int64_t n =
          cache::tokens_in_block(description().n_tokens(), cache_.blocks()[section].block);
      const std::byte* row = section_.data();
      for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
        for (std::int64_t i = 0; i < n; ++i, row += bytes) {
          use(to_size(head * description().n_tokens() + first + i), ByteView(row, bytes));
        }
      }
      first += n;
    }
    return {};
  }

  std::size_t n_rows(const MlxTensorData& tensor) const {
    return to_size(shape_of(tensor).n_kv_heads * description().n_tokens());
  }

  Result<void> write_data(const MlxTensorData& tensor) {
    const cache::HeadShape shape = shape_of(tensor);
    const std::size_t bytes = to_size(shape.head_dim) * dtype_size(dtype_of(tensor));
    buffers_[0].resize(n_rows(tensor) * bytes);
    TQC_TRY(each_row(tensor, [&](std::size_t row, ByteView values) {
      std::memcpy(buffers_[0].data() + row * bytes, values.data(), bytes);
    }));
    return file_.write(buffers_[0]);
  }

  // The first of the three tensors computes all of them.
  Result<void> write_data(const MlxGroupData& data) {
    if (data.part == MlxGroupData::kCodes) TQC_TRY(pack(data.tensor));
    return file_.write(buffers_[data.part]);
  }

  Result<void> pack(const MlxTensorData& tensor) {
    const cache::HeadShape shape = shape_of(tensor);
    const Dtype dtype = dtype_of(tensor);
    const std::size_t code_bytes = affine_code_bytes(groups_, shape.head_dim);
    const std::size_t group_bytes = affine_groups(groups_, shape.head_dim) * dtype_size(dtype);
    buffers_[MlxGroupData::kCodes].resize(n_rows(tensor) * code_bytes);
    buffers_[MlxGroupData::kScales].resize(n_rows(tensor) * group_bytes);
    buffers_[MlxGroupData::kBiases].resize(n_rows(tensor) * group_bytes);
    std::vector<float> x(to_size(shape.head_dim));
    const auto part = [&](MlxGroupData::Part name, std::size_t row, std::size_t bytes) {
      return std::span(buffers_[name]).subspan(row * bytes, bytes);
    };
    return each_row(tensor, [&](std::size_t row, ByteView values) {
      load_f32(dtype, values.data(), x);
      affine_encode(groups_, dtype, x, part(MlxGroupData::kCodes, row, code_bytes),
                    part(MlxGroupData::kScales, row, group_bytes),
                    part(MlxGroupData::kBiases, row, group_bytes));
    });
  }

  Result<void> write_data(const MlxArrayData& data) {
    TQC_TRY(read(sections_of(data.layer, TensorKind::kArray)[to_size(data.array)]));
    return file_.write(section_);
  }

  Result<void> write_data(const MlxNumberData& number) {
    ByteWriter out;
    out.write(static_cast<std::int32_t>(number.value));
    return file_.write(out.bytes());
  }

  Result<void> write_data(const MlxTextData& text) {
    ByteWriter out;
    for (const char c : text.text) out.write(static_cast<std::int32_t>(c));
    return file_.write(out.bytes());
  }

  Result<void> write_data(const MlxNoData&) { return {}; }

  const cache::CacheReader& cache_;
  AtomicFile& file_;
  AffineGroups groups_;
  const Progress& progress_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
  std::vector<std::array<std::vector<std::size_t>, 3>> numbers_;  // [layer][TensorKind]
  AlignedBytes section_;
  std::array<Bytes, 3> buffers_;  // K or V, or its codes, scales and biases
};

}  // namespace

Result<void> export_mlx_lm(const cache::CacheReader& cache, const std::filesystem::path& path,
                           const MlxLmExport& options, const Progress& progress) {
  const cache::Identity& identity = cache.description().identity;
  TQC_TRY(check_key_order(identity.architecture, identity.source_format));
  TQC_TRY_ASSIGN(const auto dense, cache::dequantize(cache::borrow(cache)));
  TQC_TRY_ASSIGN(const MlxPlan plan, plan_mlx(dense->description(), options));
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  std::vector<tensors::NewTensor> names;
  for (const MlxTensor& tensor : plan.tensors) names.push_back(tensor.tensor);
  TQC_TRY(file.write(tensors::make_safetensors_header(names, plan.metadata)));
  MlxWriter writer(*dense, file, {options.kv_bits, options.group_size}, progress);
  for (const MlxTensor& tensor : plan.tensors) {
    auto written = writer.write(tensor);
    if (!written) return std::move(written).error();
  }
  return file.commit();
}

}  // namespace tqcache::interop
