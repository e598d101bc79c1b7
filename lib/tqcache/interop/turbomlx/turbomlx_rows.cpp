#include "tqcache/interop/turbomlx/turbomlx_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/error.h"
#include "tqcache/interop/whole_tensors.h"

namespace tqcache::interop {
namespace {

std::string vector_name(std::size_t head, std::int64_t token) {
  return fmt::format("head {} token {}", head, token);
}

// Rows of one kv head, from token `first` on.
Result<void> read_rows(const ByteSource& file, const TurboMlxRows& rows, std::size_t head,
                       std::int64_t first, std::span<std::byte> out) {
  const std::size_t row = head * to_size(rows.n_tokens) + to_size(first);
  return read_run(file, rows.bytes, row * rows.row_bytes, out);
}

// Y = X M, X and Y [n, stride]. Each sum adds M's rows in order, regardless of the register lanes.
void multiply(const std::vector<float>& x, const TurboMlxMatrix& m, std::vector<float>& y) {
  constexpr std::size_t kLanes = TurboMlxMatrix::kLanes;
  const std::size_t n = x.size() / m.stride;
  for (std::size_t row = 0; row < n; ++row) {
    const float* const from = x.data() + row * m.stride;
    for (std::size_t start = 0; start < m.stride; start += kLanes) {
      float sums[kLanes] = {};
      for (std::size_t i = 0; i < m.dim; ++i) {
        const float* const matrix_row = m.values.data() + i * m.stride + start;
        for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += from[i] * matrix_row[lane];
      }
      std::copy_n(sums, kLanes, y.data() + row * m.stride + start);
    }
  }
}

// Decodes the head vectors of one kv head with one quantizer.
class PartDecoder {
 public:
  PartDecoder(const ByteSource& file, const TurboMlxPart& part) : file_(file), part_(part) {}

  // Shapes: out [n, head_dim]; only the part's channels are filled.
  Result<void> decode(std::size_t head, std::int64_t first, std::int64_t n, std::size_t head_dim,
                      std::span<float> out) const {
    TQC_TRY_ASSIGN(const auto lengths, lengths_of(part_.lengths, head, first, n));
    TQC_TRY_ASSIGN(std::vector<float> unit, rotated(head, first, n));
    if (part_.signs) TQC_TRY(add_sketch(head, first, n, unit));
    const std::size_t stride = part_.rotation->stride;
    for (std::size_t t = 0; t < to_size(n); ++t) {
      for (std::size_t i = 0; i < part_.channels.size(); ++i) {
        out[t * head_dim + part_.channels[i]] = unit[t * stride + i] * lengths[t];
      }
    }
    return {};
  }

 private:
  Result<std::vector<float>> lengths_of(const TurboMlxRows& rows, std::size_t head,
                                        std::int64_t first, std::int64_t n) const {
    TQC_TRY_ASSIGN(auto lengths, turbomlx_row_floats(file_, rows, Dtype::kF32, head, first, n));
    for (std::size_t t = 0; t < lengths.size(); ++t) {
      if (lengths[t] >= 0 && std::isfinite(lengths[t])) continue;
      return corrupt(vector_name(head, first + static_cast<std::int64_t>(t)) +
                     ": a length that is no finite number from 0 on");
    }
    return lengths;
  }

  // Looks up the centroids or signs of every row, [n, stride], and multiplies by the transform.
  Result<std::vector<float>> mapped(const TurboMlxRows& rows, int bits,
                                    std::span<const float> values, const TurboMlxMatrix& map,
                                    std::size_t head, std::int64_t first, std::int64_t n) const {
    TQC_TRY_ASSIGN(const Bytes packed, turbomlx_row_bytes(file_, rows, head, first, n));
    std::vector<float> x(to_size(n) * map.stride, 0.0f);
    std::vector<std::uint8_t> codes(map.dim);
    for (std::size_t t = 0; t < to_size(n); ++t) {
      codec::unpack_codes(ByteView(packed).subspan(t * rows.row_bytes, rows.row_bytes), bits,
                          codes);
      for (std::size_t i = 0; i < map.dim; ++i) x[t * map.stride + i] = values[codes[i]];
    }
    std::vector<float> y(x.size());
    multiply(x, map, y);
    return y;
  }

  Result<std::vector<float>> rotated(std::size_t head, std::int64_t first, std::int64_t n) const {
    return mapped(part_.codes, part_.bits, *part_.codebook, *part_.rotation, head, first, n);
  }

  Result<void> add_sketch(std::size_t head, std::int64_t first, std::int64_t n,
                          std::vector<float>& unit) const {
    constexpr float kSigns[2] = {-1, 1};
    TQC_TRY_ASSIGN(const auto residuals, lengths_of(*part_.residuals, head, first, n));
    TQC_TRY_ASSIGN(const auto sketch,
                   mapped(*part_.signs, 1, kSigns, *part_.sketch, head, first, n));
    const std::size_t stride = part_.rotation->stride;
    const auto dim = static_cast<double>(part_.channels.size());
    const auto factor = static_cast<float>(std::sqrt(std::numbers::pi / 2) / dim);
    for (std::size_t i = 0; i < unit.size(); ++i) {
      unit[i] += residuals[i / stride] * factor * sketch[i];
    }
    return {};
  }

  const ByteSource& file_;
  const TurboMlxPart& part_;
};

// Decodes one kv head after the other.
template <class Decode>  // (head, values [n, head_dim])
Result<void> each_head(cache::HeadShape shape, std::int64_t first, std::int64_t n,
                       std::span<std::byte> out, Decode decode) {
  std::vector<float> values(to_size(n * shape.head_dim));
  for (std::size_t head = 0; head < to_size(shape.n_kv_heads); ++head) {
    TQC_TRY(decode(head, std::span<float>(values)));
    const auto bad = std::ranges::find_if_not(values, [](float x) { return std::isfinite(x); });
    if (bad != values.end()) {
      const auto token = first + (bad - values.begin()) / shape.head_dim;
      return corrupt(vector_name(head, token) + ": not finite");
    }
    const std::size_t bytes = values.size() * sizeof(float);
    std::memcpy(out.data() + head * bytes, values.data(), bytes);
  }
  return {};
}

Result<void> read_groups(const ByteSource& file, const TurboMlxGroups& groups, std::size_t head,
                         std::int64_t first, std::int64_t n, std::size_t head_dim,
                         std::span<float> values) {
  TQC_TRY_ASSIGN(const Bytes packed, turbomlx_row_bytes(file, groups.codes, head, first, n));
  TQC_TRY_ASSIGN(const auto scales,
                 turbomlx_row_floats(file, groups.scales, groups.dtype, head, first, n));
  TQC_TRY_ASSIGN(const auto biases,
                 turbomlx_row_floats(file, groups.biases, groups.dtype, head, first, n));
  // Consecutive little-endian words form one bit stream.
  std::vector<std::uint8_t> codes(head_dim);
  for (std::size_t t = 0; t < to_size(n); ++t) {
    const std::size_t row_bytes = groups.codes.row_bytes;
    codec::unpack_codes(ByteView(packed).subspan(t * row_bytes, row_bytes), groups.bits, codes);
    for (std::size_t i = 0; i < head_dim; ++i) {
      const std::size_t at = t * head_dim + i;
      const std::size_t group = at / groups.group_size;
      values[at] = static_cast<float>(codes[i]) * scales[group] + biases[group];
    }
  }
  return {};
}

using tensors::TensorType;

std::string named(std::string_view name, const ArrayValue& array) {
  return std::string(name) + " " + describe(array);
}

Result<void> check_batch(const ArrayValue& array, std::string_view name) {
  if (array.shape.empty() || array.shape[0] == 1) return {};
  return unsupported(fmt::format("{}: a batch of {}", named(name, array), array.shape[0]));
}

}  // namespace

Result<Bytes> turbomlx_row_bytes(const ByteSource& file, const TurboMlxRows& rows, std::size_t head,
                                 std::int64_t first, std::int64_t n) {
  Bytes bytes(to_size(n) * rows.row_bytes);
  TQC_TRY(read_rows(file, rows, head, first, bytes));
  return bytes;
}

Result<std::vector<float>> turbomlx_row_floats(const ByteSource& file, const TurboMlxRows& rows,
                                               Dtype dtype, std::size_t head, std::int64_t first,
                                               std::int64_t n) {
  TQC_TRY_ASSIGN(const Bytes bytes, turbomlx_row_bytes(file, rows, head, first, n));
  std::vector<float> values(bytes.size() / dtype_size(dtype));
  load_f32(dtype, bytes.data(), values);
  return values;
}

ReadRows turbomlx_key_rows(TurboMlxSource file, cache::HeadShape shape,
                           std::vector<TurboMlxPart> parts) {
  auto shared = std::make_shared<const std::vector<TurboMlxPart>>(std::move(parts));
  return [file = std::move(file), shape, shared](std::int64_t first, std::int64_t n,
                                                 std::span<std::byte> out) -> Result<void> {
    const auto decode = [&](std::size_t head, std::span<float> values) -> Result<void> {
      for (const TurboMlxPart& part : *shared) {
        TQC_TRY(PartDecoder(*file, part).decode(head, first, n, to_size(shape.head_dim), values));
      }
      return {};
    };
    return each_head(shape, first, n, out, decode);
  };
}

ReadRows turbomlx_dense_rows(TurboMlxSource file, cache::HeadShape shape, TurboMlxRows rows) {
  return [file = std::move(file), shape, rows](std::int64_t first, std::int64_t n,
                                               std::span<std::byte> out) -> Result<void> {
    const std::size_t bytes = to_size(n) * rows.row_bytes;
    for (std::size_t head = 0; head < to_size(shape.n_kv_heads); ++head) {
      TQC_TRY(read_rows(*file, rows, head, first, out.subspan(head * bytes, bytes)));
    }
    return {};
  };
}

ReadRows turbomlx_affine_rows(TurboMlxSource file, cache::HeadShape shape, TurboMlxGroups groups) {
  return [file = std::move(file), shape, groups](std::int64_t first, std::int64_t n,
                                                 std::span<std::byte> out) -> Result<void> {
    const auto decode = [&](std::size_t head, std::span<float> values) {
      return read_groups(*file, groups, head, first, n, to_size(shape.head_dim), values);
    };
    return each_head(shape, first, n, out, decode);
  };
}

ReadArray turbomlx_whole_array(TurboMlxSource file, ByteRun bytes) {
  return [file = std::move(file), bytes](std::span<std::byte> out) {
    return read_run(*file, bytes, 0, out);
  };
}

ReadArray turbomlx_listed_rows(TurboMlxSource file, std::int64_t n_kv_heads, TurboMlxRows rows,
                               std::vector<std::int64_t> order) {
  return [file = std::move(file), n_kv_heads, rows,
          order = std::move(order)](std::span<std::byte> out) -> Result<void> {
    std::size_t at = 0;
    for (std::size_t head = 0; head < to_size(n_kv_heads); ++head) {
      for (const std::int64_t row : order) {
        TQC_TRY(read_rows(*file, rows, head, row, out.subspan(at, rows.row_bytes)));
        at += rows.row_bytes;
      }
    }
    return {};
  };
}

Result<const ArrayValue*> find_array(const Value& value, std::string_view name) {
  const ArrayValue* array = nullptr;
  if (value.kind == Value::Kind::kNone) return array;
  if (value.kind != Value::Kind::kArray) return corrupt(std::string(name) + ": not an array");
  if (value.array->bytes.size > 0) array = value.array.get();
  return array;
}

Result<const ArrayValue*> require_array(const Value& value, std::string_view name) {
  TQC_TRY_ASSIGN(const ArrayValue* array, find_array(value, name));
  if (array == nullptr) return corrupt(std::string(name) + ": missing");
  return array;
}

Result<Dtype> dense_dtype_of(const ArrayValue& array, std::string_view name) {
  if (const auto dtype = float_dtype(array.type)) return *dtype;
  return unsupported(named(name, array) + ": not f32, f16 or bf16");
}

Result<TurboMlxGrid> turbomlx_grid_of(const ArrayValue& array, std::string_view name) {
  TQC_TRY(check_batch(array, name));
  if (array.shape.size() != 4) return corrupt(named(name, array) + ": not four dimensions");
  for (const std::uint64_t n : array.shape) {
    if (n == 0) return corrupt(named(name, array) + ": a size of 0");
    if (n > static_cast<std::uint64_t>(cache::kMaxTokens)) {
      return too_large(named(name, array));
    }
  }
  return TurboMlxGrid{static_cast<std::int64_t>(array.shape[1]),
                      static_cast<std::int64_t>(array.shape[2]),
                      static_cast<std::int64_t>(array.shape[3])};
}

Result<TurboMlxRows> rows_of_array(const Value& value, std::string_view name, TensorType type,
                                   std::int64_t n_kv_heads, std::int64_t n_tokens,
                                   std::optional<std::int64_t> width) {
  TQC_TRY_ASSIGN(const ArrayValue* array, require_array(value, name));
  TQC_TRY(check_batch(*array, name));
  std::vector<std::uint64_t> expected = {1, static_cast<std::uint64_t>(n_kv_heads),
                                         static_cast<std::uint64_t>(n_tokens)};
  if (width) expected.push_back(static_cast<std::uint64_t>(*width));
  if (array->type != type || array->shape != expected) {
    return corrupt(named(name, *array) + ": of another type or shape than its layer says");
  }
  const auto row_values = static_cast<std::uint64_t>(width.value_or(1));
  return TurboMlxRows{array->bytes, n_tokens,
                      static_cast<std::size_t>(row_values * type_size(type))};
}

Result<TurboMlxDense> turbomlx_dense_array(const Value& value, std::string_view name) {
  TQC_TRY_ASSIGN(const ArrayValue* array, require_array(value, name));
  TurboMlxDense dense;
  TQC_TRY_ASSIGN(dense.dtype, dense_dtype_of(*array, name));
  TQC_TRY_ASSIGN(dense.grid, turbomlx_grid_of(*array, name));
  const auto row_bytes = static_cast<std::size_t>(dense.grid.width) * dtype_size(dense.dtype);
  dense.rows = {array->bytes, dense.grid.n_tokens, row_bytes};
  return dense;
}

}  // namespace tqcache::interop
