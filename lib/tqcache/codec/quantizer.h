#pragma once
// codec/quantizer.h: encoder and decoder for one head vector: packed codes and a scale.
//
// TurboQuant in mode mse: normalize the vector, rotate it so that every component has the same
// known distribution, and replace each component by the index of the nearest centroid. By default
// the scale makes inner products with the decoded vector unbiased: |x|^2 / <x, direction of the
// codes>. Parts of other modes use other transforms, scales and centroids (codec_spec.h).
//
// Spec: docs/reference/codec.md. Source: arXiv 2504.19874, algorithm 1; the scale after arXiv
//       2604.18555.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec/rotation.h"
#include "tqcache/codec_spec.h"
#include "tqcache/error.h"

namespace tqcache::codec {

// A value: copies share the same immutable tables, so a copy only increments a reference count.
// Threads: any number may use one Quantizer, or copies of it, at once.
class Quantizer {
 public:
  // Uses the Lloyd-Max codebook for the spec's head_dim and bits. Computes the tables of the spec
  // in well under a millisecond, but a dense rotation takes n^3 operations (1 ms for 128 channels,
  // 1 s for 1024). If many layers share a spec, make the quantizer once and copy it.
  // Errors: kUnsupported, as validate(spec).
  static Result<Quantizer> make(const PartSpec& spec);

  // The same with the codebook of a file: 2^bits centroids, ascending, for unit vectors; they are
  // used exactly as given. Safe for untrusted input.
  // Errors: kUnsupported as validate(spec); kCorrupt if the count is wrong or they are not finite,
  //         strictly ascending and within [-1, 1].
  static Result<Quantizer> make(const PartSpec& spec, std::span<const float> centroids);

  const PartSpec& spec() const;
  const Rotation& rotation() const;
  std::span<const float> centroids() const;  // [2^bits], ascending

  // Bytes of the packed codes of one head vector: ceil(head_dim * bits / 8).
  std::size_t code_bytes() const;

  // Encodes one head vector and returns its scale as f16 bits.
  //
  // Shapes:   x [head_dim]; codes [code_bytes()].
  // Requires: the scale rule is not kStep, whose codes are a path: codec/trellis/trellis_rows.h.
  // Units:  the scale has the unit of x.
  // Errors: kCorrupt if x contains NaN or infinity; kUnsupported if the scale is beyond f16.
  //         `codes` is then unusable.
  // Bytes:  identical on every CPU. A scale that rounds to 0 comes with codes that are all 0.
  Result<std::uint16_t> encode(std::span<const float> x, std::span<std::byte> codes) const;

  // x = scale * R^T c[codes].
  //
  // Shapes: codes [code_bytes()]; x [head_dim].
  // Units:  scale as f16 bits.
  // Errors: none. Any bytes decode, to finite values if the scale is finite.
  void decode(std::span<const std::byte> codes, std::uint16_t scale, std::span<float> x) const;

  // x = scale * c[codes], without R^T: rotate the query once, then score many of these vectors,
  // because <q, R^T y> = <R q, y>. Otherwise as decode.
  void decode_rotated(std::span<const std::byte> codes, std::uint16_t scale,
                      std::span<float> x) const;

 private:
  struct Tables;
  explicit Quantizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}
  std::shared_ptr<const Tables> tables_;
};

// --- The tables of a Quantizer as plain arrays, for kernels.

// The boundaries of a codebook in bins of equal width, at most one per bin: the bin of y and one
// comparison give the number of boundaries below y. Bin k from -15 to 15 is entry k mod 32.
//
// The bin of y is y * bins_per_unit rounded to an integer (ties to even), with y clamped to `limit`
// in magnitude. Boundaries are rounded in the same way, which never changes the order of two
// numbers, so codes are exact in spite of the rounding.
struct CodeBins {
  bool is_usable = false;  // false: no such width exists; the other members are unset
  float limit = 0.0f;      // the largest |boundary|
  float bins_per_unit = 0.0f;
  alignas(64) float boundaries[32] = {};    // infinity in empty bins
  alignas(64) std::int32_t codes[32] = {};  // the number of boundaries in lower bins
};

// Shapes: boundaries [2^bits - 1], ascending.
CodeBins make_code_bins(std::span<const float> boundaries);

// Requires: the quantizer is neither moved nor destroyed while this is used.
struct RotationTables {
  explicit RotationTables(const Quantizer& from);

  const Quantizer* quantizer;  // the definition, which the scalar kernels call
  std::size_t head_dim;
  int bits;
  ScaleRule scale;
  TransformKind rotation;

  // For kHadamard; with other rotations no sign is set, and the factor is 1.
  std::size_t rounds;
  std::size_t part_size;   // a power of two; head_dim / part_size parts, an odd number
  float factor;            // 1 / sqrt(head_dim)
  std::vector<float> cas;  // [parts]
  // [rounds, head_dim], followed by zeros that a SIMD load may read: 0x80000000 where a sign is -1.
  std::vector<std::uint32_t, AlignedAllocator<std::uint32_t>> sign_bits;

  // For kDenseQr, kGaussian and kMatrix: [head_dim, head_dim].
  const float* matrix;

  // The boundaries as a search tree: the children of node n are 2n + 1 (for a component not above
  // boundary n) and 2n + 2. The search ends for code c at node c + 2^bits - 1.
  alignas(64) float boundary_tree[256] = {};
  CodeBins bins;
  alignas(64) float centroids[256] = {};  // entry i is for code i % 2^bits
};

}  // namespace tqcache::codec
