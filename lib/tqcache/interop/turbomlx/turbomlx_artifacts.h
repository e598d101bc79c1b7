#pragma once
// interop/turbomlx/turbomlx_artifacts.h: codebooks, rotations and residual-sign transforms that
// TurboMLX's quantizers share and its files omit. Each is computed once, or read from a folder of
// .npz files. Safe for untrusted input.
//
// The codebooks ("v1-lloyd-max-beta") differ in their digits from those of codec/codebook.h: they
// are computed on a grid of 32,769 points in at most 256 rounds, and ignore what falls between grid
// points.
//
// Spec:   docs/reference/interop.md, "TurboMLX".
// Source: src/turbomlx/core_ref/{codebooks,rotation,qjl}.py.

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec_spec.h"
#include "tqcache/error.h"

namespace tqcache::interop {

// 2^bits centroids, ascending, rounded to f32. Sums use another order than NumPy's: they agree to
// about 1e-14, and rounding removes the difference. The exception is head_dim 3, whose density is
// flat: boundaries fall onto grid points there, and a last digit moves a centroid by up to 2e-4.
//
// Requires: head_dim of at least 2, bits 1 to 8.
std::vector<float> turbomlx_codebook(int head_dim, int bits);

enum class TurboMlxMap : std::uint8_t {
  kQr,   // an orthogonal matrix: the Q of standard_normal((dim, dim)), R with a positive diagonal
  kWht,  // Sylvester's Hadamard matrix over sqrt(dim), its columns times random signs
  kQjl,  // standard_normal((dim, dim)) itself
};

// Row by row, each padded with zeros to a multiple of the register lanes.
struct TurboMlxMatrix {
  static constexpr std::size_t kLanes = 8;
  std::size_t dim = 0;
  std::size_t stride = 0;
  AlignedFloats values;  // [dim, stride]
  // The same matrix for a part of our codec, set by TurboMlxArtifacts; nullopt: our codec cannot
  // represent the values.
  std::optional<codec::TransformMatrix> map = {};
};

// Requires: `dim` is 2 to 1024, for kWht a power of two.
TurboMlxMatrix make_turbomlx_matrix(TurboMlxMap kind, std::size_t dim, std::uint64_t seed);

class TurboMlxArtifacts {
 public:
  // Artifacts found in this folder are read, all others are computed. Empty: no folder.
  explicit TurboMlxArtifacts(std::filesystem::path folder = {}) : folder_(std::move(folder)) {}

  // Errors: kUnsupported (kWht of another size); kTooLarge (more matrices than any model needs);
  //         those of read_npz_floats().
  Result<std::shared_ptr<const TurboMlxMatrix>> matrix(TurboMlxMap kind, std::size_t dim,
                                                       std::uint64_t seed);
  Result<std::shared_ptr<const std::vector<float>>> codebook(std::size_t dim, int bits);

 private:
  struct MapKey {
    TurboMlxMap kind;
    std::size_t dim;
    std::uint64_t seed;
    auto operator<=>(const MapKey&) const = default;
  };
  struct BookKey {
    std::size_t dim;
    int bits;
    auto operator<=>(const BookKey&) const = default;
  };

  Result<TurboMlxMatrix> load_or_make(const MapKey& key) const;
  Result<std::vector<float>> load_or_make(const BookKey& key) const;

  std::filesystem::path folder_;
  std::map<MapKey, std::shared_ptr<const TurboMlxMatrix>> matrices_;
  std::map<BookKey, std::shared_ptr<const std::vector<float>>> codebooks_;
};

}  // namespace tqcache::interop
