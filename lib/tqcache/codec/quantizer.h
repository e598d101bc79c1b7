#pragma once
// codec/quantizer.h: one head vector to packed codes and a scale, and back.
//
// TurboQuant in mode mse: take out the length, rotate so that every component has the same known
// distribution, and give each component the number of the nearest centroid. By default the scale is
// chosen so that inner products with the decoded vector are unbiased: |x|^2 / <x, direction of the
// codes>. Other maps, scales and centroids serve the parts of other modes (codec_spec.h).
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

// A value: copies share the same immutable tables and cost a reference count.
// Threads: any number may use one Quantizer, or copies of it, at once.
class Quantizer {
 public:
  // With the Lloyd-Max codebook of the spec's head_dim and bits. Computes the tables of a spec: in
  // well under a millisecond, but a dense rotation takes n^3 operations (1 ms for 128 channels, 1 s
  // for 1024). Who needs the same spec for many layers makes it once and copies it.
  // Errors: kUnsupported, as validate(spec).
  static Result<Quantizer> make(const QuantizerSpec& spec);

  // The same for a codebook that a file brought along: 2^bits centroids, ascending, for unit
  // vectors; they are used exactly as given. Safe for untrusted input.
  // Errors: kUnsupported as validate(spec); kCorrupt when the count is wrong or they are not
  // finite, strictly ascending and within [-1, 1].
  static Result<Quantizer> make(const QuantizerSpec& spec, std::span<const float> centroids);

  const QuantizerSpec& spec() const;
  const Rotation& rotation() const;
  std::span<const float> centroids() const;  // [2^bits], ascending

  // Bytes of the packed codes of one head vector: ceil(head_dim * bits / 8).
  std::size_t code_bytes() const;

  // Packs one head vector and gives its scale as f16 bits.
  //
  // Shapes:   x [head_dim]; codes [code_bytes()].
  // Requires: the rule of the scale is not kStep, whose codes are a path: codec/trellis_rows.h.
  // Units:  the scale has the unit of x.
  // Errors: kCorrupt when x holds NaN or infinity; kUnsupported when the scale is beyond f16.
  //         `codes` then holds nothing of use.
  // Bytes:  identical on every CPU. A scale that rounds to 0 comes with codes that are all 0.
  Result<std::uint16_t> encode(std::span<const float> x, std::span<std::byte> codes) const;

  // x = scale * R^T c[codes].
  //
  // Shapes: codes [code_bytes()]; x [head_dim].
  // Units:  scale as f16 bits.
  // Errors: none. Any bytes decode to something finite if the scale is finite.
  void decode(std::span<const std::byte> codes, std::uint16_t scale, std::span<float> x) const;

  // x = scale * c[codes], without R^T: whoever rotates the query once may score many of these,
  // because <q, R^T y> = <R q, y>. Otherwise as decode.
  void decode_rotated(std::span<const std::byte> codes, std::uint16_t scale,
                      std::span<float> x) const;

 private:
  struct Tables;
  explicit Quantizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}
  std::shared_ptr<const Tables> tables_;
};

// --- The tables of a Quantizer as plain arrays, for kernels.

// The boundaries of a codebook in bins of equal width, at most one in each: the bin of y and one
// comparison give the number of boundaries below y. Bin k from -15 to 15 is entry k mod 32.
//
// The bin of y is y * bins_per_unit rounded to a whole number (ties to even), with y at most
// `limit` in magnitude. Boundaries are rounded in the same way, which never changes the order of
// two numbers, so codes are exact whatever the rounding.
struct CodeBins {
  bool is_usable = false;  // false: there is no such width; the rest is not set
  float limit = 0.0f;      // the largest |boundary|
  float bins_per_unit = 0.0f;
  alignas(64) float boundaries[32] = {};    // infinity in bins without one
  alignas(64) std::int32_t codes[32] = {};  // the number of boundaries in lower bins
};

// Shapes: boundaries [2^bits - 1], ascending.
CodeBins make_code_bins(std::span<const float> boundaries);

// Requires: the quantizer stays where it is for as long as this is used.
struct RotationTables {
  explicit RotationTables(const Quantizer& from);

  const Quantizer* quantizer;  // the definition, which the scalar kernels call
  std::size_t head_dim;
  int bits;
  ScaleRule scale;
  TransformKind rotation;

  // Of kHadamard; of other rotations no sign is set, and the factor is 1.
  std::size_t rounds;
  std::size_t part_size;   // a power of two; head_dim / part_size parts, an odd number
  float factor;            // 1 / sqrt(head_dim)
  std::vector<float> cas;  // [parts]
  // [rounds, head_dim], and zeros behind that a vector unit may read: 0x80000000 where a sign is
  // -1.
  std::vector<std::uint32_t, AlignedAllocator<std::uint32_t>> sign_bits;

  // Of kDenseQr, kGaussian and kMatrix: [head_dim, head_dim].
  const float* matrix;

  // The boundaries as a search tree: the children of node n are 2n + 1 (for a component not above
  // boundary n) and 2n + 2. Code c is reached as node c + 2^bits - 1.
  alignas(64) float boundary_tree[256] = {};
  CodeBins bins;
  alignas(64) float centroids[256] = {};  // entry i is that of code i % 2^bits
};

}  // namespace tqcache::codec
