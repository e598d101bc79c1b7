#pragma once
// migrations/v1_layers.h: the layers of version 1 as layers of a cache.
//
// Spec: docs/reference/format.md, "Version 1".

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "migrations/v1_file.h"
#include "migrations/v1_tensors.h"
#include "tqcache/cache.h"
#include "tqcache/codec/rotation.h"
#include "tqcache/error.h"
#include "tqcache/kv_codec.h"

namespace tqcache::migrations {

// Codecs and transforms, each made once: layers usually share them, and a dense transform takes up
// to a second to make.
class CodecPool {
 public:
  // Requires: a quantized tensor, whose parts codec::mode_of() accepts.
  // Errors: as KvCodec::make; kTooLarge if a file needs more different codecs than version 2
  // allows.
  Result<cache::KvCodec> codec(const cache::TensorDesc& tensor, cache::HeadShape shape,
                               codec::BlockOrder order);

  // Requires: validate(spec).
  Result<codec::Rotation> rotation(const codec::PartSpec& spec);

 private:
  using KnownTransform = std::pair<codec::PartSpec, codec::Rotation>;
  const codec::Rotation* find(const codec::PartSpec& spec) const;
  Result<void> count(const codec::PartSpec& spec);

  cache::KvTables tables_{cache::Rope{}};
  std::vector<std::pair<codec::BlockOrder, std::vector<codec::PartSpec>>> codecs_;
  std::vector<KnownTransform> transforms_;  // including those of codecs_
  std::uint64_t matrix_values_ = 0;
  std::uint64_t n_parts_ = 0;
};

// The state of the migration of one file.
struct MigrationContext {
  CodecPool codecs;
  std::vector<std::string> notes;
  std::uint64_t bytes_left;  // of memory for the new cache

  // Reserves memory, before it is allocated. Errors: kTooLarge.
  Result<void> take(std::uint64_t bytes);
};

// The kind of a layer, by the name of the class that wrote it. Names are only looked up in a table.
enum class V1Class { kTurbo, kDense, kQuantized, kRotating, kArrays };

// Errors: kUnsupported, with the name in printable ASCII.
Result<V1Class> class_of(std::string_view class_path);

struct MigratedLayer {
  cache::Layer layer;
  std::optional<std::int64_t> n_tokens;  // absent: the file does not say
};

// Errors: as v1_to_v2(). `place` starts the notes: "layer 3".
Result<MigratedLayer> dense_layer(const V1Entry& entry, MigrationContext& context);
Result<MigratedLayer> quantized_layer(const V1Entry& entry, std::string_view place,
                                      MigrationContext& context);
Result<MigratedLayer> rotating_layer(const V1Entry& entry, MigrationContext& context);
Result<MigratedLayer> arrays_layer(const V1Entry& entry, MigrationContext& context);
Result<MigratedLayer> turbo_layer(const V1Entry& entry, std::string_view place,
                                  MigrationContext& context);

// Two tensors [1, n_kv_heads, n_tokens, head_dim]: "keys" and "values", or those of calibration.
struct DensePair {
  const V1Tensor* keys = nullptr;
  const V1Tensor* values = nullptr;
  cache::HeadShape shape;
  std::int64_t n_tokens = 0;
};
// Errors: kCorrupt, and kUnsupported where keys and values differ in head_dim.
Result<DensePair> dense_pair(const NamedTensors& state, std::string_view keys,
                             std::string_view values);

// Quantization groups of mlx-lm: the tensors NAME.packed, NAME.scales and NAME.biases.
struct AffineSettings {
  std::int64_t bits = 0;
  std::int64_t group_size = 0;
};
// Errors: kCorrupt, kUnsupported (bits other than 1, 2, 4 and 8), kTooLarge.
Result<cache::Tensor> affine_tensor(const NamedTensors& state, std::string_view name,
                                    AffineSettings settings, cache::HeadShape shape,
                                    std::int64_t n_tokens, codec::BlockOrder order,
                                    std::string_view place, MigrationContext& context);

}  // namespace tqcache::migrations
