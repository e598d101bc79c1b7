#pragma once
// interop/turbomlx/turbomlx_artifacts.h: codebooks, rotations and residual-sign transforms that
// TurboMLX's quantizers share and its files do not contain. Each is computed once, or read from a
// folder of .npz files. Safe for untrusted input.
//
// The codebooks ("v1-lloyd-max-beta") differ from those of codec/codebook.h in their digits: they
// come from a grid of 32,769 points, at most 256 rounds, and drop what falls between grid points.
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

// 2^bits centroids, ascending, rounded to f32. Sums are taken in another order than NumPy's: they
// agree to about 1e-14, of which rounding leaves nothing. But for head_dim 3, whose density is
// flat: there boundaries fall onto points of the grid, and a last digit moves a centroid by up to
// 2e-4.
//
// Requires: head_dim of at least 2, bits 1 to 8.
std::vector<float> turbomlx_codebook(int head_dim, int bits);

enum class TurboMlxMap : std::uint8_t {
  kQr,   // an orthogonal matrix: standard_normal((dim, dim)), its Q with a positive diagonal of R
  kWht,  // Sylvester's Hadamard matrix, its columns times random signs, over sqrt(dim)
  kQjl,  // standard_normal((dim, dim)) itself
};

// Row by row, each padded with zeros to a whole number of lanes.
struct TurboMlxMatrix {
  static constexpr std::size_t kLanes = 8;
  std::size_t dim = 0;
  std::size_t stride = 0;
  AlignedFloats values;  // [dim, stride]
  // The same for a part of our codec, by TurboMlxArtifacts; nullopt: values that it cannot
  // represent.
  std::optional<codec::TransformMatrix> map = {};
};

// Requires: `dim` from 2 to 1024; of kWht a power of two.
TurboMlxMatrix make_turbomlx_matrix(TurboMlxMap kind, std::size_t dim, std::uint64_t seed);

class TurboMlxArtifacts {
 public:
  // Artifacts in this folder are read from there, and all others are computed. Empty:
  // none.
  explicit TurboMlxArtifacts(std::filesystem::path folder = {}) : folder_(std::move(folder)) {}

  // Errors: kUnsupported (kWht of another size); kTooLarge (more of them than any model needs);
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
