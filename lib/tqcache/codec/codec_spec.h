#pragma once
// codec/codec_spec.h: the parameters that decide what packed codes mean.
//
// Every mode of the codec is made of parts. A part takes some channels of a head vector, turns them
// by a linear map, gives each component the number of the nearest of a few centroids, and keeps one
// scale. What differs between modes is which parts there are:
//
//   mse     one part of all channels
//   prod    mse with one bit less, and a part of one bit that codes what the first one leaves (QJL)
//   mixed   a part of the outlier channels with more bits, and one of the others
//   affine  a part a group of channels, not turned, with evenly spaced centroids and a bias
//   trellis one part of 8 bits, whose codes are the levels of a path through a trellis: of the
//           archive tier, where they are stored in far fewer bits (codec/trellis.h)
//
// Parts travel in the file, so a reader never guesses: two equal lists of parts give equal bytes.
//
// Spec: docs/reference/codec.md §1. Source: arXiv 2504.19874, algorithms 1 and 2, and section 4.3
//       for mixed.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/result.h"
#include "tqcache/codec/block_layout.h"

namespace tqcache::codec {

// An orthogonal matrix has no value above 1, and no normal number of NumPy's is above 13.8. With
// this bound, what is decoded from finite scales is finite.
inline constexpr float kMaxMatrixValue = 16.0f;

// A linear transform by value, for transforms of other programs, which no seed of ours gives
// (TransformKind::kMatrix; docs/reference/codec.md §2). Empty by default.
//
// A value: copies share the same numbers.
class TransformMatrix {
 public:
  TransformMatrix();
  // Not inline: GCC 12 warns of what it takes for uninitialized in aggregates that hold one.
  ~TransformMatrix();
  TransformMatrix(const TransformMatrix&);
  TransformMatrix(TransformMatrix&&) noexcept;
  TransformMatrix& operator=(const TransformMatrix&);
  TransformMatrix& operator=(TransformMatrix&&) noexcept;

  // Shapes: [dim, dim], row i gives component i.
  // Errors: kCorrupt when a value is not finite, or above kMaxMatrixValue in magnitude.
  static Result<TransformMatrix> make(AlignedFloats values);

  std::span<const float> values() const;
  const std::shared_ptr<const AlignedFloats>& shared() const { return values_; }

  // Of the same bits: 0 and -0 differ. Takes no time for copies of one.
  bool operator==(const TransformMatrix& other) const;

 private:
  explicit TransformMatrix(AlignedFloats values);

  std::shared_ptr<const AlignedFloats> values_;
};

inline constexpr int kMinHeadDim = 32;
inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMinPartDim = 8;  // channels of a part
inline constexpr int kMinBits = 1;
inline constexpr int kMaxBits = 8;
inline constexpr int kMaxRounds = 3;
inline constexpr std::size_t kMaxParts = 32;
inline constexpr float kMinStep = 1.0f / 64;  // of kStep
inline constexpr float kMaxStep = 8.0f;

// The seed of files that ask for no other. Any value would do; this one is the first 16 hexadecimal
// digits of SHA-256("tqcache").
inline constexpr std::uint64_t kDefaultSeed = 0xc37e5e14f940a46f;

enum class TransformKind : std::uint8_t {
  kHadamard,  // `rounds` rounds of random signs and a Hartley and Hadamard transform
  kDenseQr,   // the orthogonal factor of a Gaussian matrix: the paper's, at d^2 a vector
  kGaussian,  // independent normal entries: the paper's S of the QJL residual; not orthogonal
  kNone,      // the identity
  kMatrix     // any matrix, by value: what other programs have; nobody asks for it
};

// What is kept beside the codes of x, y being x after the map and c its centroids:
enum class ScaleRule : std::uint8_t {
  kUnbiased,  // |x|^2 / <y, c> times what made y a unit vector: <x, x~> = |x|^2
  kNorm,      // |x| / |c|: |x~| = |x|
  kRaw,       // |x|, as the paper has it
  kPeak,      // the largest |y[i]|: centroids are parts of it
  kStep       // |x| times a step, fixed before the codes are looked for (codec/trellis_rows.h)
};

// One part's arithmetic. Two equal ones, with equal centroids, give equal bytes.
struct QuantizerSpec {
  int head_dim = 0;  // channels of the part
  int bits = 0;      // bits of a code
  std::uint64_t seed = kDefaultSeed;
  TransformKind rotation = TransformKind::kHadamard;
  int rounds = 1;  // of kHadamard, 1 to 3; otherwise 1
  ScaleRule scale = ScaleRule::kUnbiased;
  TransformMatrix matrix = {};  // of kMatrix: [head_dim, head_dim]; otherwise none
  float step = 0;               // of kStep: from level to level, in parts of |x| / sqrt(head_dim)

  bool operator==(const QuantizerSpec&) const = default;
};

// Errors: kUnsupported when a number is out of range, or a kind is not known; kCorrupt when the
//         matrix is of another size, or none belongs there, and likewise a step.
Result<void> validate(const QuantizerSpec& spec);

struct PartSpec {
  int first = 0;             // its first channel, in the channel order
  QuantizerSpec quantizer;   // head_dim is the number of its channels
  bool of_residual = false;  // codes what the part before leaves of the same channels
  // Whether the middle between the largest and the smallest value is taken out first and kept.
  bool has_bias = false;
  std::vector<float> centroids;  // [2^bits], ascending, within [-1, 1]

  bool operator==(const PartSpec&) const = default;
};

enum class Mode : std::uint8_t { kMse, kProd, kMixed, kAffine, kTrellis };
std::string_view mode_word(Mode mode);  // "mse", "prod", "mixed", "affine", "trellis"

// What a user asks for: names the parts by a few numbers.
struct CodecSpec {
  int head_dim = 0;
  Mode mode = Mode::kMse;
  int bits = 4;  // kProd: of both parts together; kMixed: of the regular channels; not kTrellis
  std::uint64_t seed = kDefaultSeed;
  TransformKind rotation = TransformKind::kHadamard;  // kHadamard or kDenseQr
  int rounds = 1;
  ScaleRule scale = ScaleRule::kUnbiased;  // kUnbiased, kNorm, kRaw; kProd: of its first part
  TransformKind residual = TransformKind::kGaussian;  // kProd: kGaussian; kDenseQr for orthogonal S
  int outlier_channels = 0;                           // kMixed
  int outlier_bits = 0;                               // kMixed; above `bits`
  int group_size = 64;                                // kAffine; divides head_dim
  float step = 0;                                     // kTrellis

  bool operator==(const CodecSpec&) const = default;
};

// The parts of a spec, with their centroids. Parts of one codec that turn get different seeds.
// Errors: kUnsupported when a number is out of range or the numbers do not go together; the message
//         names them ("mode prod with 1 bit").
Result<std::vector<PartSpec>> make_parts(const CodecSpec& spec);

// The mode that a list of parts is, if it is one that make_parts could have given but for its
// centroids, seeds and kinds of rotation and scale.
// Errors: kCorrupt, saying what does not fit together; kUnsupported as validate().
Result<Mode> mode_of(int head_dim, const std::vector<PartSpec>& parts);

// The packed token block of one kv head, in memory and in files:
//
//   codes    of part 0, of part 1, ..., each BlockShape::block_bytes(): a multiple of 64 bytes
//   scales   rows of 256 f16: the scale of each part, then the bias of each part that has one
struct HeadLayout {
  struct Part {
    BlockShape shape;
    std::size_t code_offset = 0;  // bytes from the start of the codes
    std::size_t bias_row = 0;     // of a part that has a bias; part i has its scales in row i
  };
  static constexpr std::size_t kRowBytes = kBlockTokens * sizeof(std::uint16_t);

  std::vector<Part> parts;
  std::size_t code_bytes = 0;
  std::size_t n_scale_rows = 0;

  std::size_t scale_bytes() const { return n_scale_rows * kRowBytes; }
};

// Requires: parts that mode_of() takes.
HeadLayout head_layout(const std::vector<PartSpec>& parts, BlockOrder order);

// f32 throughout, or products of whole numbers where the CPU has fast ones
// (docs/reference/codec.md, "Kernels").
enum class Precision : std::uint8_t { kExact, kFast };

}  // namespace tqcache::codec
