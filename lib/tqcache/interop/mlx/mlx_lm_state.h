#pragma once
// interop/mlx/mlx_lm_state.h: the metadata of an mlx-lm prompt cache (trees of Python values,
// flattened to keys like "0.3.1"), and the state of each of its cache objects: tensors and numbers.
// Safe for untrusted input.
//
// Spec: docs/reference/interop.md, "mlx-lm".

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::interop {

enum class MlxLayout : std::uint8_t {
  kNamedPairs,  // 2024: tensors "<layer>_keys" and "<layer>_values", no classes
  kMetaState,   // to 0.31: values other than arrays are in the metadata
  kScalars,     // since 0.32.0: all state is stored as tensors, including numbers
};

// The value that a tensor represents if it is not an array.
enum class MlxScalar : std::uint8_t { kNumber, kText, kNone };

// Holds views into the index that it was read from.
struct MlxMeta {
  using Texts = std::map<std::string_view, std::string_view>;

  MlxLayout layout = MlxLayout::kScalars;
  std::vector<std::string_view> classes;          // of the layers; empty for kNamedPairs
  Texts user;                                     // added by the program that saved it
  Texts info;                                     // kMetaState: indexed by the key after "0."
  std::map<std::string_view, MlxScalar> scalars;  // kScalars: indexed by tensor name

  // The texts "<key>.0", "<key>.1", ... of a tuple; empty if "<key>" is an empty text or missing.
  std::vector<std::string_view> info_list(const std::string& key) const;
};

// nullopt: not a prompt cache of mlx-lm.
std::optional<MlxLayout> mlx_layout(const tensors::SafetensorsIndex& index);

// Errors: kCorrupt (keys that are missing or contradict the tensors), kTooLarge (layers),
//         kUnsupported (an unknown kind of scalar). Requires: mlx_layout(index) has a value.
Result<MlxMeta> read_mlx_meta(const tensors::SafetensorsIndex& index);

// "4": a non-negative number as Python prints it. nullopt for other texts and beyond 53 bits.
std::optional<std::int64_t> mlx_number(std::string_view text);

// A text of the file, made safe to display: cut after `max_bytes`, with '?' for everything except
// printable ASCII.
std::string mlx_text(std::string_view text, std::size_t max_bytes);

// A file with its index and metadata. Remembers which tensors were requested, so that none is left
// out silently.
class MlxFile {
 public:
  // Errors: those of index_safetensors() and read_mlx_meta(); kCorrupt for other kinds of files.
  static Result<MlxFile> open(std::shared_ptr<const ByteSource> bytes);

  const std::shared_ptr<const ByteSource>& bytes() const { return bytes_; }
  const MlxMeta& meta() const { return meta_; }
  MlxLayout layout() const { return meta_.layout; }

  // nullptr: no such tensor. The tensor does not count as requested.
  const tensors::TensorPlace* find(const std::string& name) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
  // Returns whether the tensor represents None.
  bool is_none(const std::string& name) const;
  // Errors: kCorrupt (no such tensor).
  Result<const tensors::TensorPlace*> tensor(const std::string& name);

  // Errors: kCorrupt (not exactly one integer or bool), and those of reading.
  Result<std::int64_t> number(const std::string& name);
  // The values of a one-dimensional tensor. Errors: as number(); kCorrupt for more than `max_count`
  // values.
  Result<std::vector<std::int64_t>> numbers(const std::string& name, std::uint64_t max_count);
  // A text that was saved as character codes, which must be ASCII.
  Result<std::string> text(const std::string& name);

  // Errors: kUnsupported when a tensor was not requested.
  Result<void> check_all_used() const;

 private:
  MlxFile(std::shared_ptr<const ByteSource> bytes,
          std::unique_ptr<const tensors::SafetensorsIndex> index, MlxMeta meta)
      : bytes_(std::move(bytes)), index_(std::move(index)), meta_(std::move(meta)) {}
  Result<std::vector<std::int64_t>> read_integers(const tensors::TensorPlace& place) const;

  std::shared_ptr<const ByteSource> bytes_;
  std::unique_ptr<const tensors::SafetensorsIndex> index_;  // meta_ holds views into it
  MlxMeta meta_;
  std::set<std::string> used_;
};

// A number of a cache's state, by the attribute of its class in mlx-lm or mlx-swift-lm.
enum class MlxNumber : std::uint8_t {
  kKeep,
  kMaxSize,
  kStep,  // rows by which buffers grow: of no use in a file
  kOffset,
  kNext,  // _idx
  kGroupSize,
  kBits,
  kChunkSize,
  kStart,  // start_position
  kRotated,
  kNothing,  // mlx-swift-lm: an empty text for a cache without numbers
  kOrigin,   // mlx-swift-lm: "modelNative", "requested"
  kWrapped,  // mlx-swift-lm: "true", "false"
  kNSlots,   // mlx-swift-lm: of an ArraysCache
  kPresent,  // mlx-swift-lm: the slots that have a tensor, "0,1"
  kPadding,  // mlx-swift-lm: left padding of each row of a batch, or nothing
  kLengths,  // mlx-swift-lm: tokens of each row of a batch
};

// One cache object.
struct MlxCache {
  std::string place;                   // "layer 3", "layer 3 cache 1": for messages
  std::string class_name;              // as in the file, known or not
  std::string prefix;                  // of its tensor names: "3.", "3.1.0."
  std::size_t layer = 0;               // of the list in the file
  bool is_in_list = false;             // a member of a CacheList
  int first_slot = 0;                  // number of its first tensor
  std::optional<int> n_slots = {};     // number of its tensors, where another cache's follow
  bool is_named = false;               // its tensors are "keys" and "values" instead of 0 and 1
  std::vector<std::string_view> info;  // kMetaState: its numbers as texts
  std::span<const MlxNumber> numbers = {};  // kMetaState: what they are

  // Whether its metadata has this number.
  bool has_number(MlxNumber number) const;
  // The text of a number; empty: it has none.
  std::string_view number_text(MlxNumber number) const;

  // The name of one of its state tensors.
  std::string slot(int number) const;
};

// A number of a cache's state, from the metadata or from the tensor `slot`.
// Errors: as MlxFile::number(); kTooLarge beyond cache::kMaxTokens.
Result<std::int64_t> state_number(MlxFile& file, const MlxCache& cache, MlxNumber number, int slot);

// One batch row of a tensor [batch, n_kv_heads, n_rows, width].
struct MlxGrid {
  tensors::TensorType type = tensors::TensorType::kOther;
  std::string type_name;
  std::uint64_t batch = 0;
  std::int64_t n_kv_heads = 0;
  std::int64_t n_rows = 0;
  std::int64_t width = 0;
  std::uint64_t offset = 0;  // in the file
};

// Errors: kCorrupt (another number of dimensions), kInvalidArgument (no such row of the batch),
//         kTooLarge; kUnsupported for None.
Result<MlxGrid> state_grid(MlxFile& file, const std::string& name, std::int64_t row);

// The part of a tensor [batch, ...] that belongs to one batch row: [1, ...].
// Requires: the tensor has a dimension. Errors: kInvalidArgument.
Result<tensors::TensorPlace> batch_row(const tensors::TensorPlace& place, std::int64_t row);

// The batch size of a cache, taken from its first tensor that has values; 1 without one.
std::uint64_t batch_size(const MlxFile& file, const MlxCache& cache);

// Errors: kUnsupported (not f32, f16 or bf16).
Result<Dtype> float_dtype(tensors::TensorType type, std::string_view type_name);

}  // namespace tqcache::interop
