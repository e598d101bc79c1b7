#include "tqcache/interop/turbomlx/turbomlx_artifacts.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop/turbomlx/numpy_random.h"
#include "tqcache/interop/turbomlx/turbomlx_file.h"
#include "tqcache/tensors/npy.h"
#include "tqcache/tensors/zip_archive.h"

namespace tqcache::interop {
namespace {

constexpr std::uint64_t kMaxFileBytes = 16u << 20;  // a transform of 1,024 channels takes 4 MiB

Result<std::vector<float>> read_member(const tensors::ZipArchive& zip, std::size_t member,
                                       const std::vector<std::uint64_t>& shape) {
  TQC_TRY_ASSIGN(const Bytes start, zip.read_start(member, tensors::kMaxNpyHeaderBytes));
  TQC_TRY_ASSIGN(const tensors::NpyHeader header, tensors::parse_npy_header(start));
  if (header.type != tensors::TensorType::kF32 || header.shape != shape) {
    return corrupt("not f32, or of another shape than its name says");
  }
  if (zip.members()[member].bytes != header.data_offset + header.bytes) {
    return corrupt("its size differs from its shape");
  }
  std::vector<float> values(static_cast<std::size_t>(header.bytes) / sizeof(float));
  TQC_TRY(zip.read_at(member, header.data_offset, std::as_writable_bytes(std::span(values))));
  if (std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) return values;
  return corrupt("values that are not finite");
}

Result<std::vector<float>> read_array(const tensors::ZipArchive& zip, std::string_view name,
                                      const std::vector<std::uint64_t>& shape) {
  const std::string file = std::string(name) + ".npy";
  const auto found = std::ranges::find(zip.members(), file, &tensors::ZipMember::name);
  if (found == zip.members().end()) return corrupt("missing");
  return read_member(zip, static_cast<std::size_t>(found - zip.members().begin()), shape);
}

// Reads the f32 values of an array "NAME.npy" of this shape from an .npz file. nullopt: no such
// file.
//
// Errors: kCorrupt (no such array, another shape or type, values that are not finite), kTruncated,
//         kTooLarge, kUnsupported, kIo.
Result<std::optional<std::vector<float>>> read_npz_floats(const std::filesystem::path& path,
                                                          std::string_view name,
                                                          const std::vector<std::uint64_t>& shape) {
  auto file = open_file(path);
  if (!file && file.error().code == ErrorCode::kNotFound)
    return std::optional<std::vector<float>>();
  const std::string place = path.filename().string() + ", array " + std::string(name);
  if (!file) return in_context(place, std::move(file).error());
  auto zip = tensors::ZipArchive::open(std::move(file).value(),
                                       {.max_members = 16, .max_inflated_bytes = kMaxFileBytes});
  if (!zip) return in_context(place, std::move(zip).error());
  auto values = read_array(**zip, name, shape);
  if (!values) return in_context(place, std::move(values).error());
  return std::optional(std::move(values).value());
}

// A model has at most two head sizes, each with two parts and their signs. A transform of 1,024
// channels takes a second to compute and 4 MiB.
constexpr std::size_t kMaxOfEach = 16;

TurboMlxMatrix empty_matrix(std::size_t dim) {
  constexpr std::size_t kLanes = TurboMlxMatrix::kLanes;
  const std::size_t stride = (dim + kLanes - 1) / kLanes * kLanes;
  return {.dim = dim, .stride = stride, .values = AlignedFloats(dim * stride, 0.0f)};
}

std::vector<double> draw_normal(std::size_t dim, std::uint64_t seed) {
  NumpyRandom random(seed);
  std::vector<double> values(dim * dim);
  for (double& value : values) value = random.next_normal();
  return values;
}

template <class T>
TurboMlxMatrix rounded(const std::vector<T>& values, std::size_t dim) {
  TurboMlxMatrix matrix = empty_matrix(dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) {
      matrix.values[i * matrix.stride + j] = static_cast<float>(values[i * dim + j]);
    }
  }
  return matrix;
}

// Removes the padding of the rows.
std::optional<codec::TransformMatrix> map_of(const TurboMlxMatrix& matrix) {
  AlignedFloats values;
  values.reserve(matrix.dim * matrix.dim);
  for (std::size_t i = 0; i < matrix.dim; ++i) {
    const auto row = matrix.values.begin() + static_cast<std::ptrdiff_t>(i * matrix.stride);
    values.insert(values.end(), row, row + static_cast<std::ptrdiff_t>(matrix.dim));
  }
  auto map = codec::TransformMatrix::make(std::move(values));
  if (!map) return std::nullopt;
  return *std::move(map);
}

// Sylvester's matrix is -1 where i & j has an odd number of bits.
TurboMlxMatrix make_wht(std::size_t dim, std::uint64_t seed) {
  NumpyRandom random(seed);
  TurboMlxMatrix matrix = empty_matrix(dim);
  const float size = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  for (std::size_t j = 0; j < dim; ++j) {
    const float value = random.next_of_two() != 0 ? size : -size;
    for (std::size_t i = 0; i < dim; ++i) {
      const bool is_negative = std::popcount(i & j) % 2 != 0;
      matrix.values[i * matrix.stride + j] = is_negative ? -value : value;
    }
  }
  return matrix;
}

// "rotations/qr-d128-s0.npz", "qjl/qjl-d128-s1.npz"
std::filesystem::path file_name(TurboMlxMap kind, std::size_t dim, std::uint64_t seed) {
  const char* const name = kind == TurboMlxMap::kQr    ? "rotations/qr-d"
                           : kind == TurboMlxMap::kWht ? "rotations/wht-d"
                                                       : "qjl/qjl-d";
  return fmt::format("{}{}-s{}.npz", name, dim, seed);
}

}  // namespace

TurboMlxMatrix make_turbomlx_matrix(TurboMlxMap kind, std::size_t dim, std::uint64_t seed) {
  if (kind == TurboMlxMap::kWht) return make_wht(dim, seed);
  const std::vector<double> normal = draw_normal(dim, seed);
  return rounded(kind == TurboMlxMap::kQr ? orthogonal_factor(normal, dim) : normal, dim);
}

Result<TurboMlxMatrix> TurboMlxArtifacts::load_or_make(const MapKey& key) const {
  if (!folder_.empty()) {
    const std::vector<std::uint64_t> shape = {key.dim, key.dim};
    TQC_TRY_ASSIGN(
        const auto values,
        read_npz_floats(folder_ / file_name(key.kind, key.dim, key.seed), "matrix", shape));
    if (values) return rounded(*values, key.dim);
  }
  return make_turbomlx_matrix(key.kind, key.dim, key.seed);
}

Result<std::vector<float>> TurboMlxArtifacts::load_or_make(const BookKey& key) const {
  if (!folder_.empty()) {
    const std::string name = turbomlx_codebook_id(static_cast<std::int64_t>(key.dim), key.bits);
    const std::vector<std::uint64_t> shape = {std::uint64_t{1} << key.bits};
    TQC_TRY_ASSIGN(auto values,
                   read_npz_floats(folder_ / "codebooks" / (name + ".npz"), "centroids", shape));
    if (values) return *std::move(values);
  }
  return turbomlx_codebook(static_cast<int>(key.dim), key.bits);
}

Result<std::shared_ptr<const TurboMlxMatrix>> TurboMlxArtifacts::matrix(TurboMlxMap kind,
                                                                        std::size_t dim,
                                                                        std::uint64_t seed) {
  if (kind == TurboMlxMap::kWht && !std::has_single_bit(dim)) {
    return unsupported(fmt::format("rotation wht of {} channels, no power of two", dim));
  }
  const MapKey key{kind, dim, seed};
  if (const auto found = matrices_.find(key); found != matrices_.end()) return found->second;
  if (matrices_.size() == kMaxOfEach) return too_large("too many rotations");
  TQC_TRY_ASSIGN(TurboMlxMatrix matrix, load_or_make(key));
  matrix.map = map_of(matrix);
  auto made = std::make_shared<const TurboMlxMatrix>(std::move(matrix));
  matrices_.emplace(key, made);
  return made;
}

Result<std::shared_ptr<const std::vector<float>>> TurboMlxArtifacts::codebook(std::size_t dim,
                                                                              int bits) {
  const BookKey key{dim, bits};
  if (const auto found = codebooks_.find(key); found != codebooks_.end()) return found->second;
  if (codebooks_.size() == kMaxOfEach) return too_large("too many codebooks");
  TQC_TRY_ASSIGN(std::vector<float> codebook, load_or_make(key));
  auto made = std::make_shared<const std::vector<float>>(std::move(codebook));
  codebooks_.emplace(key, made);
  return made;
}

}  // namespace tqcache::interop
