#pragma once
// tests/interop/mlx_lm_builder.h: prompt caches of mlx-lm, tensor by tensor, in the layouts of all
// its ages, and what an import makes of them.
//
//   MlxBuilder file(MlxLayout::kScalars);
//   file.layer("KVCache").rows("0", {2, 64}, positions(256)).rows("1", ...).number("2", 200);

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "interop/foreign_cache_reading.h"
#include "support/cache_builder.h"
#include "tqcache/bytes.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/file.h"
#include "tqcache/interop/mlx/mlx_lm.h"
#include "tqcache/interop/mlx/mlx_lm_state.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::test {

using interop::MlxLayout;
using Positions = std::vector<std::int64_t>;
using Shape = std::vector<std::uint64_t>;

// first, first + 1, ..., end - 1.
inline Positions positions(std::int64_t first, std::int64_t end) {
  Positions list(static_cast<std::size_t>(end - first));
  std::iota(list.begin(), list.end(), first);
  return list;
}
inline Positions positions(std::int64_t end) { return positions(0, end); }

inline Positions joined(Positions list, const Positions& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

// [n_kv_heads, positions, head_dim]: every value tells its place, and f16 and bf16 hold it. `salt`
// tells keys from values, and layers from one another.
inline std::vector<float> head_values(cache::HeadShape shape, const Positions& list, int salt = 0) {
  std::vector<float> values;
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (const std::int64_t position : list) {
      for (std::int64_t i = 0; i < shape.head_dim; ++i) {
        const std::int64_t mixed = position * 31 + head * 7 + i * 3 + salt * 5 + 1;
        values.push_back(static_cast<float>(mixed % 127) + 1.0f);
      }
    }
  }
  return values;
}

inline Bytes stored(Dtype dtype, const std::vector<float>& values) {
  Bytes bytes(values.size() * dtype_size(dtype));
  store_f32(dtype, values, bytes.data());
  return bytes;
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const ByteView view = object_bytes(values);
  return Bytes(view.begin(), view.end());
}

inline std::string type_name(Dtype dtype) {
  if (dtype == Dtype::kF32) return "F32";
  return dtype == Dtype::kF16 ? "F16" : "BF16";
}

class MlxBuilder {
 public:
  explicit MlxBuilder(MlxLayout layout) : layout_(layout) {
    if (has_scalars()) metadata_["2.0"] = "";
  }

  bool has_scalars() const { return layout_ == MlxLayout::kScalars; }

  // Begins a layer. What follows is of it, by the name behind "<layer>.".
  MlxBuilder& layer(const std::string& class_name) {
    prefix_ = std::to_string(n_layers_++) + '.';
    metadata_[(has_scalars() ? "1." : "2.") + prefix_.substr(0, prefix_.size() - 1)] = class_name;
    return *this;
  }

  MlxBuilder& tensor(const std::string& name, std::string type, Shape shape, Bytes bytes) {
    tensors_.push_back({prefix_ + name, std::move(type), std::move(shape)});
    data_.insert(data_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  // Head vectors [1, n_kv_heads, positions, head_dim].
  MlxBuilder& rows(const std::string& name, cache::HeadShape shape, const Positions& list,
                   int salt = 0, Dtype dtype = Dtype::kBF16) {
    return tensor(name, type_name(dtype),
                  {1, std::uint64_t(shape.n_kv_heads), list.size(), std::uint64_t(shape.head_dim)},
                  stored(dtype, head_values(shape, list, salt)));
  }
  // Keys and values: tensors 0 and 1.
  MlxBuilder& pair(cache::HeadShape shape, const Positions& list, Dtype dtype = Dtype::kBF16) {
    return rows("0", shape, list, 0, dtype).rows("1", shape, list, 1, dtype);
  }
  MlxBuilder& integers(const std::string& name, const std::vector<std::int32_t>& numbers) {
    return tensor(name, "I32", {numbers.size()}, bytes_of(numbers));
  }
  // Only in files of kScalars.
  MlxBuilder& number(const std::string& name, std::int32_t value) {
    return scalar(name, "scalar").tensor(name, "I32", {}, bytes_of(std::vector{value}));
  }
  MlxBuilder& text(const std::string& name, const std::string& value) {
    return scalar(name, "string").integers(name, {value.begin(), value.end()});
  }
  MlxBuilder& none(const std::string& name) {
    return scalar(name, "none").tensor(name, "F32", {0}, {});
  }
  MlxBuilder& scalar(const std::string& name, const std::string& kind) {
    const std::string key = "2." + std::to_string(++n_scalars_);
    metadata_[key + ".0"] = prefix_ + name;
    metadata_[key + ".1"] = kind;
    return *this;
  }
  // Only in files of kMetaState: behind "0.<layer>", or the layer's empty text.
  MlxBuilder& info(const std::string& name, const std::string& value) {
    return meta("0." + prefix_ + name, value);
  }
  MlxBuilder& infos(const std::vector<std::int64_t>& numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      info(std::to_string(i), std::to_string(numbers[i]));
    }
    return *this;
  }
  MlxBuilder& no_info() { return meta("0." + prefix_.substr(0, prefix_.size() - 1), ""); }
  MlxBuilder& user(const std::string& key, const std::string& value) {
    return meta((has_scalars() ? "0." : "1.") + key, value);
  }
  MlxBuilder& meta(const std::string& key, const std::string& value) {
    metadata_[key] = value;
    return *this;
  }
  MlxBuilder& drop_meta(const std::string& key) {
    metadata_.erase(key);
    return *this;
  }

  Bytes build() const {
    Bytes file = tensors::make_safetensors_header(tensors_, metadata_);
    file.insert(file.end(), data_.begin(), data_.end());
    return file;
  }

 private:
  MlxLayout layout_;
  std::string prefix_;
  std::size_t n_layers_ = 0;
  std::size_t n_scalars_ = 0;
  std::vector<tensors::NewTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  Bytes data_;
};

// A KVCache of 64-component head vectors, whichever age.
inline MlxBuilder& add_kv(MlxBuilder& file, std::int64_t n_tokens,
                          cache::HeadShape shape = {2, 64}) {
  file.layer("KVCache").pair(shape, positions(n_tokens));
  if (file.has_scalars()) return file.number("2", static_cast<std::int32_t>(n_tokens));
  return file.no_info();
}

inline Result<interop::ForeignCache> import_mlx(Bytes file,
                                                const interop::MlxLmImport& options = {}) {
  return interop::import_mlx_lm(memory_source(std::move(file)), options);
}
inline interop::ForeignCache must_import(const MlxBuilder& file,
                                         const interop::MlxLmImport& options = {}) {
  return must(import_mlx(file.build(), options));
}

// The values of one section: a token block of a tensor, or an array.
inline std::vector<float> section_values(const interop::ForeignCache& cache, std::int64_t layer,
                                         cache::TensorKind tensor, std::int64_t block = 0) {
  const auto sections = must(interop::reader_of(cache));
  for (std::size_t i = 0; i < sections->blocks().size(); ++i) {
    const cache::BlockInfo& section = sections->blocks()[i];
    if (section.layer != layer || section.tensor != tensor || section.block != block) continue;
    const cache::LayerDesc& info = sections->description().layers[static_cast<std::size_t>(layer)];
    const Dtype dtype = tensor == cache::TensorKind::kArray
                            ? cache::arrays_of(info, {})[static_cast<std::size_t>(block)].dtype
                            : cache::tensor_of(info, tensor).dtype;
    AlignedBytes raw;
    must(sections->read(i, raw));
    std::vector<float> values(raw.size() / dtype_size(dtype));
    load_f32(dtype, raw.data(), values);
    return values;
  }
  return {};
}

}  // namespace tqcache::test
