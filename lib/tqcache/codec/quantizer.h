#pragma once
// codec/quantizer.h: one head vector to packed codes and a scale, and back. The codec's front door.
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

#include "tqcache/base/result.h"
#include "tqcache/codec/codec_spec.h"
#include "tqcache/codec/rotation.h"

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

}  // namespace tqcache::codec
