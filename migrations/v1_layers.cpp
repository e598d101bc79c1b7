
#include "migrations/v1_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "migrations/v1_kv.h"
#include "migrations/v1_metadata.h"
#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/cache/window.h"
#include "tqcache/error.h"
#include "tqcache/format/container_format.h"

namespace tqcache::migrations {

namespace {

bool same_transform(const codec::PartSpec& a, const codec::PartSpec& b) {
  return a.head_dim == b.head_dim && a.rotation == b.rotation && a.rounds == b.rounds &&
         a.seed == b.seed && a.matrix == b.matrix;
}

bool is_dense_transform(const codec::PartSpec& spec) {
  return spec.rotation == codec::TransformKind::kDenseQr ||
         spec.rotation == codec::TransformKind::kGaussian;
}

Result<void> spend(std::uint64_t& used, std::uint64_t more, std::uint64_t limit, const char* what) {
  used += more;
  if (used <= limit) return {};
  return too_large(fmt::format("more than {} {}", limit, what));
}

}  // namespace

const codec::Rotation* CodecPool::find(const codec::PartSpec& spec) const {
  const auto found = std::ranges::find_if(
      transforms_, [&](const KnownTransform& known) { return same_transform(known.first, spec); });
  return found == transforms_.end() ? nullptr : &found->second;
}

Result<void> CodecPool::count(const codec::PartSpec& spec) {
  TQC_TRY(spend(n_parts_, 1, cache::kMaxDifferentParts, "parts of codecs"));
  if (!is_dense_transform(spec) || find(spec) != nullptr) return {};
  const auto dim = static_cast<std::uint64_t>(spec.head_dim);
  return spend(matrix_values_, dim * dim, cache::kMaxMatrixValues, "values of matrices");
}

Result<cache::KvCodec> CodecPool::codec(const cache::TensorDesc& tensor, cache::HeadShape shape,
                                        codec::BlockOrder order) {
  const std::pair wanted(order, tensor.quant->parts);
  if (std::ranges::find(codecs_, wanted) == codecs_.end()) {
    for (const codec::PartSpec& part : wanted.second) TQC_TRY(count(part));
    for (const codec::PartSpec& part : wanted.second) {
      if (find(part) != nullptr) continue;
      transforms_.emplace_back(part, codec::Rotation(part));
    }
    codecs_.push_back(wanted);
  }
  return cache::KvCodec::make(tensor, shape, order, tables_);
}

Result<codec::Rotation> CodecPool::rotation(const codec::PartSpec& spec) {
  if (const codec::Rotation* known = find(spec)) return *known;
  TQC_TRY(count(spec));
  transforms_.emplace_back(spec, codec::Rotation(spec));
  return transforms_.back().second;
}

Result<void> MigrationContext::take(std::uint64_t bytes) {
  if (bytes > bytes_left) {
    return too_large(std::to_string(bytes) + " bytes of memory, beyond those of the whole cache");
  }
  bytes_left -= bytes;
  return {};
}

// --- KVCache of mlx-lm: dense keys and values

namespace {

Result<cache::Tensor> tensor_of(const char* place, const V1Tensor& from, const DensePair& pair,
                                MigrationContext& context) {
  auto tensor = dense_tensor(from, pair.shape, pair.n_tokens, context);
  if (!tensor) return in_context(place, std::move(tensor).error());
  return cache::Tensor(std::move(tensor).value());
}

}  // namespace

Result<DensePair> dense_pair(const NamedTensors& state, std::string_view keys,
                             std::string_view values) {
  DensePair pair;
  TQC_TRY_ASSIGN(pair.keys, state.named(keys));
  TQC_TRY_ASSIGN(pair.values, state.named(values));
  TQC_TRY_ASSIGN(const Grid k, grid_of(*pair.keys));
  TQC_TRY_ASSIGN(const Grid v, grid_of(*pair.values));
  if (k.n_kv_heads < 1 || k.width < 1) return corrupt(describe(*pair.keys) + ": a size of 0");
  if (k.n_kv_heads != v.n_kv_heads || k.n_tokens != v.n_tokens) {
    return corrupt(describe(*pair.values) + ": unlike " + describe(*pair.keys));
  }
  if (k.width != v.width) {
    return unsupported(fmt::format("keys of head_dim {} and values of {}", k.width, v.width));
  }
  pair.shape = {k.n_kv_heads, k.width};
  pair.n_tokens = k.n_tokens;
  return pair;
}

Result<MigratedLayer> dense_layer(const V1Entry& entry, MigrationContext& context) {
  const NamedTensors state(entry.state);
  TQC_TRY(state.require_only({"keys", "values"}));
  TQC_TRY_ASSIGN(const DensePair pair, dense_pair(state, "keys", "values"));
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  if (numbers.size() > 1 || (numbers.size() == 1 && numbers[0] != pair.n_tokens)) {
    return corrupt("meta_state: not the offset " + std::to_string(pair.n_tokens));
  }
  TQC_TRY_ASSIGN(cache::Tensor k, tensor_of("k", *pair.keys, pair, context));
  TQC_TRY_ASSIGN(cache::Tensor v, tensor_of("v", *pair.values, pair, context));
  return MigratedLayer{cache::AttentionLayer{pair.shape, std::move(k), std::move(v)},
                       pair.n_tokens};
}

// --- QuantizedKVCache of mlx-lm, and affine values of TurboQuantKVCache: groups with
//     bias + scale * code, codes packed in 32-bit words

namespace {

constexpr std::int64_t kWordBits = 32;

// code / 2^bits. The scales are multiplied by 2^bits in return, which is exact, because centroids
// have to be between -1 and 1.
std::vector<float> code_centroids(int bits) {
  const int count = 1 << bits;
  std::vector<float> centroids;
  for (int code = 0; code < count; ++code) {
    centroids.push_back(static_cast<float>(code) / static_cast<float>(count));
  }
  return centroids;
}

// Every n_groups-th value: [n_kv_heads, n_tokens] of one group.
std::vector<float> of_group(const std::vector<float>& values, std::size_t group,
                            std::size_t n_groups) {
  std::vector<float> result;
  result.reserve(values.size() / n_groups);
  for (std::size_t i = group; i < values.size(); i += n_groups) result.push_back(values[i]);
  return result;
}

QuantizedPart group_part(std::int64_t group, AffineSettings settings) {
  const int bits = static_cast<int>(settings.bits);
  const int size = static_cast<int>(settings.group_size);
  const int first = static_cast<int>(group * settings.group_size);
  return {.spec = {.first = first,
                   .head_dim = size,
                   .bits = bits,
                   .seed = 0,  // no random numbers
                   .rotation = codec::TransformKind::kNone,
                   .scale = codec::ScaleRule::kPeak,
                   .has_bias = true,
                   .centroids = code_centroids(bits)},
          .rows = 0,
          .first_code = static_cast<std::size_t>(first),
          .factor = static_cast<float>(1 << bits),
          .scales = {},
          .biases = {}};
}

Result<void> check_settings(AffineSettings settings, std::int64_t head_dim) {
  if (settings.bits != 1 && settings.bits != 2 && settings.bits != 4 && settings.bits != 8) {
    return unsupported(fmt::format("groups of {} bits", settings.bits));
  }
  if (settings.group_size < 1 || head_dim % settings.group_size != 0) {
    return corrupt(fmt::format("head_dim {} in groups of {}", head_dim, settings.group_size));
  }
  if (head_dim * settings.bits % kWordBits == 0) return {};
  return corrupt(fmt::format("head_dim {}: no whole words of codes", head_dim));
}

}  // namespace

Result<cache::Tensor> affine_tensor(const NamedTensors& state, std::string_view name,
                                    AffineSettings settings, cache::HeadShape shape,
                                    std::int64_t n_tokens, codec::BlockOrder order,
                                    std::string_view place, MigrationContext& context) {
  TQC_TRY(check_settings(settings, shape.head_dim));
  const std::string prefix(name);
  const std::int64_t n_groups = shape.head_dim / settings.group_size;
  QuantizedTensor tensor{
      .shape = shape, .n_tokens = n_tokens, .rows = {}, .parts = {}, .outliers = {}};
  ByteView packed;
  std::vector<float> scales, biases;
  if (n_tokens > 0) {
    const Grid words{shape.n_kv_heads, n_tokens, shape.head_dim * settings.bits / kWordBits};
    const Grid groups{shape.n_kv_heads, n_tokens, n_groups};
    TQC_TRY_ASSIGN(packed, state.bytes(prefix + ".packed", V1Dtype::kU32, words));
    TQC_TRY_ASSIGN(scales, state.floats(prefix + ".scales", groups));
    TQC_TRY_ASSIGN(biases, state.floats(prefix + ".biases", groups));
  }
  // Consecutive little-endian words form one bit stream.
  tensor.rows.push_back(
      {packed, static_cast<std::size_t>(shape.head_dim), static_cast<int>(settings.bits)});
  for (std::int64_t group = 0; group < n_groups; ++group) {
    QuantizedPart part = group_part(group, settings);
    part.scales =
        of_group(scales, static_cast<std::size_t>(group), static_cast<std::size_t>(n_groups));
    part.biases =
        of_group(biases, static_cast<std::size_t>(group), static_cast<std::size_t>(n_groups));
    tensor.parts.push_back(std::move(part));
  }
  return quantized_tensor(tensor, order, place, context);
}

Result<MigratedLayer> quantized_layer(const V1Entry& entry, std::string_view place,
                                      MigrationContext& context) {
  const NamedTensors state(entry.state);
  TQC_TRY(state.require_only({"keys.packed", "keys.scales", "keys.biases", "values.packed",
                              "values.scales", "values.biases"}));
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  if (numbers.size() != 3) return corrupt("meta_state: not offset, group_size and bits");
  const std::int64_t offset = numbers[0];
  const AffineSettings settings{.bits = numbers[2], .group_size = numbers[1]};
  TQC_TRY_ASSIGN(const V1Tensor* scales, state.named("keys.scales"));
  TQC_TRY_ASSIGN(const Grid groups, grid_of(*scales));
  const cache::HeadShape shape{groups.n_kv_heads, groups.width * settings.group_size};
  if (shape.n_kv_heads < 1 || shape.head_dim < 1)
    return corrupt(describe(*scales) + ": a size of 0");
  if (groups.n_tokens != offset) {
    return corrupt(fmt::format("{}: where offset is {}", describe(*scales), offset));
  }
  const auto tensor = [&](const char* name, const char* word, codec::BlockOrder order) {
    const std::string tensor_place = std::string(place).append(" ").append(word);
    auto made = affine_tensor(state, name, settings, shape, offset, order, tensor_place, context);
    return made ? std::move(made)
                : Result<cache::Tensor>(in_context(word, std::move(made).error()));
  };
  if (shape.head_dim > cache::kMaxHeadDim) {
    return too_large("head_dim " + std::to_string(shape.head_dim));
  }
  TQC_TRY_ASSIGN(cache::Tensor k, tensor("keys", "k", codec::BlockOrder::kKeys));
  TQC_TRY_ASSIGN(cache::Tensor v, tensor("values", "v", codec::BlockOrder::kValues));
  return MigratedLayer{cache::AttentionLayer{shape, std::move(k), std::move(v)}, offset};
}

// --- ArraysCache and MambaCache of mlx-lm, which are kept bit for bit, and RotatingKVCache, whose
//     ring buffer is brought into the order of positions

namespace {

// meta_state of a RotatingKVCache.
struct Ring {
  std::int64_t keep = 0;
  std::int64_t max_size = 0;
  std::int64_t offset = 0;
  std::int64_t next = 0;  // "_idx": the row that would be written next
};

Result<Ring> read_ring(const V1Entry& entry) {
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  if (numbers.size() != 4) return corrupt("meta_state: not keep, max_size, offset and _idx");
  const Ring ring{numbers[0], numbers[1], numbers[2], numbers[3]};
  if (ring.keep >= ring.max_size) {
    return corrupt(fmt::format("meta_state: keep {} of max_size {}", ring.keep, ring.max_size));
  }
  return ring;
}

// The rows of the buffer in the order of their positions. The first `keep` rows are fixed, the
// others form the ring. Source: facts of mlx-lm's RotatingKVCache, docs/reference/format.md,
// "Version 1".
Result<std::vector<std::int64_t>> rows_in_order(const Ring& ring, std::int64_t n_rows) {
  std::vector<std::int64_t> rows;
  const auto add = [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; ++row) rows.push_back(row);
  };
  const bool is_wrapped = ring.next < n_rows && n_rows <= ring.offset;
  if (ring.next == n_rows && n_rows <= ring.offset) {
    add(0, n_rows);
  } else if (is_wrapped && ring.next >= ring.keep) {
    add(0, ring.keep);
    add(ring.next, n_rows);
    add(ring.keep, ring.next);
  } else if (ring.next == ring.offset && ring.next < n_rows) {
    add(0, ring.next);  // the rest was never written
  } else {
    return corrupt(fmt::format("meta_state: _idx {} and offset {} in a ring of {}", ring.next,
                               ring.offset, n_rows));
  }
  return rows;
}

// The rows of the window: the fixed ones and the newest. A ring may hold more rows, which no query
// reads any more.
Result<std::vector<std::int64_t>> window_rows(const Ring& ring, std::int64_t n_rows) {
  TQC_TRY_ASSIGN(std::vector<std::int64_t> rows, rows_in_order(ring, n_rows));
  const std::int64_t wanted = std::min(ring.max_size, ring.offset);
  const std::int64_t spare = static_cast<std::int64_t>(rows.size()) - wanted;
  if (spare < 0) {
    return corrupt(fmt::format("{} tokens where {} belong", rows.size(), wanted));
  }
  const auto first = rows.begin() + std::min(ring.keep, wanted);
  rows.erase(first, first + spare);
  return rows;
}

Result<cache::NamedArray> window_array(const V1Tensor& tensor, cache::HeadShape shape,
                                       const std::vector<std::int64_t>& rows, std::int64_t n_rows,
                                       MigrationContext& context) {
  cache::NamedArray array;
  array.name = tensor.name;
  TQC_TRY_ASSIGN(array.dtype, dense_dtype(tensor));
  array.shape = {static_cast<std::uint64_t>(shape.n_kv_heads), rows.size(),
                 static_cast<std::uint64_t>(shape.head_dim)};
  const std::size_t row_bytes = to_size(shape.head_dim) * dtype_size(array.dtype);
  const std::size_t bytes = to_size(shape.n_kv_heads) * rows.size() * row_bytes;
  TQC_TRY(context.take(bytes));
  array.data.resize(bytes);
  std::byte* out = array.data.data();
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (const std::int64_t row : rows) {
      std::memcpy(out, tensor.data.data() + to_size(head * n_rows + row) * row_bytes, row_bytes);
      out += row_bytes;
    }
  }
  return array;
}

Result<cache::NamedArray> array_of(const V1Tensor& tensor, MigrationContext& context) {
  if (!tensor.shape.empty() && !tensor.data.empty() && tensor.shape[0] != 1) {
    return unsupported(fmt::format("{}: a batch of {}", describe(tensor), tensor.shape[0]));
  }
  TQC_TRY_ASSIGN(const Dtype dtype, dense_dtype(tensor));
  TQC_TRY(context.take(tensor.data.size()));
  return cache::NamedArray{tensor.name, dtype, tensor.shape, tensor.data};
}

}  // namespace

Result<MigratedLayer> rotating_layer(const V1Entry& entry, MigrationContext& context) {
  const NamedTensors state(entry.state);
  TQC_TRY(state.require_only({"keys", "values"}));
  TQC_TRY_ASSIGN(const DensePair pair, dense_pair(state, "keys", "values"));
  TQC_TRY_ASSIGN(const Ring ring, read_ring(entry));
  TQC_TRY_ASSIGN(const auto rows, window_rows(ring, pair.n_tokens));
  const cache::Window window{.size = ring.max_size, .keep = ring.keep};
  TQC_TRY(cache::validate_window(pair.shape, window));
  const auto tensor_of = [&](const V1Tensor& tensor) -> Result<cache::Tensor> {
    TQC_TRY_ASSIGN(const cache::NamedArray array,
                   window_array(tensor, pair.shape, rows, pair.n_tokens, context));
    if (array.shape != cache::window_array_shape(pair.shape, window, ring.offset)) {
      return corrupt(array.name + ": not of the window's shape");
    }
    return cache::Tensor(
        cache::scatter_window(pair.shape, window, array.dtype, array.data, ring.offset));
  };
  TQC_TRY_ASSIGN(cache::Tensor k, tensor_of(*pair.keys));
  TQC_TRY_ASSIGN(cache::Tensor v, tensor_of(*pair.values));
  return MigratedLayer{cache::WindowLayer{{pair.shape, std::move(k), std::move(v)}, window},
                       ring.offset};
}

Result<MigratedLayer> arrays_layer(const V1Entry& entry, MigrationContext& context) {
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  if (!numbers.empty()) return corrupt("meta_state: not empty");
  cache::StateLayer layer;
  for (const V1Tensor& tensor : entry.state) {
    if (tensor.name != std::to_string(layer.arrays.size())) {
      return corrupt(
          fmt::format("{}: where \"{}\" belongs", describe(tensor), layer.arrays.size()));
    }
    TQC_TRY_ASSIGN(cache::NamedArray array, array_of(tensor, context));
    layer.arrays.push_back(std::move(array));
  }
  return MigratedLayer{std::move(layer), std::nullopt};
}

}  // namespace tqcache::migrations
