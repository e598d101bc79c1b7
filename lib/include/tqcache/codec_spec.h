#pragma once
// tqcache/codec_spec.h: the parameters of a codec, which define the meaning of packed codes.
//
//   tqcache::codec::CodecSpec spec{.head_dim = 128, .bits = 3};
//   TQC_TRY_ASSIGN(const auto parts, tqcache::codec::make_parts(spec));
//
// Every mode of the codec consists of parts. A part takes some channels of a head vector,
// transforms them linearly, replaces each component by the index of the nearest centroid, and keeps
// one scale. Modes differ in their parts:
//
//   mse     one part with all channels
//   prod    mse with one bit less, and a one-bit part that codes the residual of the first (QJL)
//   mixed   a part with the outlier channels at more bits, and a part with the others
//   affine  a part per group of channels, not transformed, with evenly spaced centroids and a
//           bias
//   trellis one part of 8 bits, whose codes are the reproduction levels of a path through a
//           trellis; used by the archive tier, which stores them in far fewer bits
//
// The file stores its parts, so a reader never guesses: equal lists of parts give equal bytes.
//
// Spec:   docs/reference/codec.md §1.
// Source: arXiv 2504.19874, algorithms 1 and 2, and section 4.3 for mixed.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache::codec {

// --- The layout of packed codes: docs/reference/codec.md, "Packed codes"

inline constexpr std::size_t kBlockTokens = 256;  // tokens of a block
inline constexpr std::size_t kLanes = 16;         // lanes of a line
inline constexpr std::size_t kLineBytes = 64;     // four codes per lane
inline constexpr std::size_t kUnitLines = 8;      // lines of bytes that are packed together
inline constexpr std::size_t kLaneCodes = 4;      // codes of one lane in a line of bytes
inline constexpr std::size_t kUnitLaneCodes = kUnitLines * kLaneCodes;

enum class BlockOrder : std::uint8_t { kKeys, kValues };

// The number of packed lines that hold the first `lines` (0 to 8) lines of bytes of a unit. An
// incomplete unit is a prefix of a complete one. All eight lines take `bits` packed lines.
constexpr std::size_t packed_lines(int bits, std::size_t lines) {
  const std::size_t pairs = (lines + 1) / 2;
  const std::size_t three_of_four = lines < 4 ? lines : lines == 4 ? 3 : lines < 8 ? lines - 1 : 6;
  if (lines == 0) return 0;
  switch (bits) {
    case 1:
      return 1;
    case 2:
      return (lines + 3) / 4;
    case 3:
      return pairs < 3 ? pairs : 3;
    case 4:
      return pairs;
    case 5:
      return 1 + pairs;
    case 6:
      return three_of_four;
    case 7:
      return 1 + three_of_four;
    default:
      return lines;
  }
}

// The shape of one block of one kv head. Requires: head_dim and bits as validate(PartSpec).
struct BlockShape {
  int head_dim = 0;
  int bits = 0;
  BlockOrder order = BlockOrder::kKeys;

  bool operator==(const BlockShape&) const = default;

  constexpr std::size_t dim() const { return static_cast<std::size_t>(head_dim); }
  constexpr std::size_t groups() const {
    return (order == BlockOrder::kKeys ? kBlockTokens : dim() + kLanes - 1) / kLanes;
  }
  // Codes of one lane: the terms of one group's sum.
  constexpr std::size_t lane_codes() const {
    return order == BlockOrder::kKeys ? dim() : kBlockTokens;
  }
  constexpr std::size_t whole_units() const { return lane_codes() / kUnitLaneCodes; }
  // Packed lines of the incomplete last unit, 0 if there is none.
  constexpr std::size_t tail_lines() const {
    return packed_lines(bits, (lane_codes() % kUnitLaneCodes + kLaneCodes - 1) / kLaneCodes);
  }
  constexpr std::size_t group_lines() const {
    return whole_units() * static_cast<std::size_t>(bits) + tail_lines();
  }
  constexpr std::size_t group_bytes() const { return group_lines() * kLineBytes; }
  constexpr std::size_t block_bytes() const { return groups() * group_bytes(); }
};

// --- Parts

// Orthogonal matrices have no value above 1, and NumPy draws no normal number above 13.8. This
// bound keeps values decoded from finite scales finite.
inline constexpr float kMaxMatrixValue = 16.0f;

// A linear transform given by its values, for transforms of other programs, which none of our seeds
// can produce (TransformKind::kMatrix; docs/reference/codec.md §2). Empty by default.
//
// A value: copies share the same numbers.
class TransformMatrix {
 public:
  TransformMatrix();
  // Not inline: GCC 12 warns of uninitialized members in aggregates that hold one.
  ~TransformMatrix();
  TransformMatrix(const TransformMatrix&);
  TransformMatrix(TransformMatrix&&) noexcept;
  TransformMatrix& operator=(const TransformMatrix&);
  TransformMatrix& operator=(TransformMatrix&&) noexcept;

  // Shapes: [dim, dim], row i computes component i.
  // Errors: kCorrupt if a value is not finite, or above kMaxMatrixValue in magnitude.
  static Result<TransformMatrix> make(AlignedFloats values);

  std::span<const float> values() const;
  const std::shared_ptr<const AlignedFloats>& shared() const { return values_; }

  // Whether the bits are equal: 0 and -0 differ. Copies of one matrix compare at once.
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
inline constexpr float kMinStep = 1.0f / 64;  // for kStep
inline constexpr float kMaxStep = 8.0f;

// The default seed. Any value would do; this one is the first 16 hexadecimal digits of
// SHA-256("tqcache").
inline constexpr std::uint64_t kDefaultSeed = 0xc37e5e14f940a46f;

enum class TransformKind : std::uint8_t {
  kHadamard,  // `rounds` rounds of random signs and a Hartley and Hadamard transform
  kDenseQr,   // the orthogonal factor of a Gaussian matrix: as in the paper; d^2 per vector
  kGaussian,  // independent normal entries: S of the QJL residual in the paper; not orthogonal
  kNone,      // the identity
  kMatrix     // any matrix, by value, for imports from other programs
};

// The scale stored with the codes of x. y is x after the transform, c the centroids of its codes:
enum class ScaleRule : std::uint8_t {
  kUnbiased,  // |x|^2 / <y, c> times the factor that made y a unit vector: <x, x~> = |x|^2
  kNorm,      // |x| / |c|: |x~| = |x|
  kRaw,       // |x|, as in the paper
  kPeak,      // the largest |y[i]|: centroids are fractions of it
  kStep       // |x| times a step, fixed before the search for codes: mode trellis
};

// One part: its channels and its arithmetic. Equal parts give equal bytes.
struct PartSpec {
  int first = 0;     // its first channel, in the channel order
  int head_dim = 0;  // number of its channels
  int bits = 0;      // bits of a code
  std::uint64_t seed = kDefaultSeed;
  TransformKind rotation = TransformKind::kHadamard;
  int rounds = 1;  // for kHadamard 1 to 3; otherwise 1
  ScaleRule scale = ScaleRule::kUnbiased;
  TransformMatrix matrix = {};  // for kMatrix: [head_dim, head_dim]; otherwise empty
  float step = 0;               // for kStep: distance of levels, in units of |x| / sqrt(head_dim)
  bool of_residual = false;     // codes the residual of the previous part, same channels
  // Whether the midpoint of the largest and the smallest value is subtracted first and stored.
  bool has_bias = false;
  std::vector<float> centroids = {};  // [2^bits], ascending, within [-1, 1]

  bool operator==(const PartSpec&) const = default;
};

// The numbers of a part by themselves: not its channels (mode_of()) and not its centroids
// (Quantizer::make()).
// Errors: kUnsupported if a number is out of range or a kind is unknown; kCorrupt if the matrix has
//         the wrong size, or if a matrix or step is present that the kind does not use.
Result<void> validate(const PartSpec& part);

enum class Mode : std::uint8_t { kMse, kProd, kMixed, kAffine, kTrellis };
std::string_view mode_word(Mode mode);  // "mse", "prod", "mixed", "affine", "trellis"

// The user's choice of a codec: describes the parts by a few numbers.
struct CodecSpec {
  int head_dim = 0;
  Mode mode = Mode::kMse;
  int bits = 4;  // kProd: both parts together; kMixed: regular channels; kTrellis: unused
  std::uint64_t seed = kDefaultSeed;
  TransformKind rotation = TransformKind::kHadamard;  // kHadamard or kDenseQr
  int rounds = 1;
  ScaleRule scale = ScaleRule::kUnbiased;  // kUnbiased, kNorm, kRaw; kProd: for its first part
  TransformKind residual = TransformKind::kGaussian;  // kProd: kGaussian; kDenseQr for orthogonal S
  int outlier_channels = 0;                           // kMixed
  int outlier_bits = 0;                               // kMixed; above `bits`
  int group_size = 64;                                // kAffine; divides head_dim
  float step = 0;                                     // kTrellis

  bool operator==(const CodecSpec&) const = default;
};

// The parts of a spec, with their centroids. Transformed parts of one codec get different seeds.
// Errors: kUnsupported if a number is out of range or the numbers do not fit together; the message
//         names them ("mode prod with 1 bit").
Result<std::vector<PartSpec>> make_parts(const CodecSpec& spec);

// The mode of a list of parts, if make_parts could have returned it with other centroids, seeds and
// kinds of rotation and scale.
// Errors: kCorrupt, with what does not fit; kUnsupported as validate().
Result<Mode> mode_of(int head_dim, const std::vector<PartSpec>& parts);

// The packed token block of K or V, in memory, in files and in stores:
//
//   codes    [n_heads, code_bytes]: of part 0, of part 1, ..., BlockShape::block_bytes() each
//   scales   [n_heads, n_scale_rows, 256] f16: of each part, then the bias of each that has one
//   sinks    [n_heads, n_sinks, head_dim] of the dtype of values that stay dense
//
// All three, and the codes of each part, begin at a multiple of 64 bytes.
struct PackedLayout {
  struct Part {
    BlockShape shape;
    std::size_t code_offset = 0;  // bytes from the start of the codes of a kv head
    std::size_t bias_row = 0;     // for a part with a bias; row i has the scales of part i
  };
  static constexpr std::size_t kRowBytes = kBlockTokens * sizeof(std::uint16_t);

  std::vector<Part> parts;
  // Of one kv head:
  std::size_t code_bytes = 0;
  std::size_t n_scale_rows = 0;
  std::size_t n_sinks = 0;  // sink tokens: 0 after token block 0
  std::size_t sink_bytes = 0;

  std::size_t n_heads = 1;

  std::size_t scale_bytes() const { return n_scale_rows * kRowBytes; }
  // Offsets in bytes.
  std::size_t codes_at(std::size_t kv_head) const { return kv_head * code_bytes; }
  std::size_t scales_at(std::size_t kv_head) const {
    return n_heads * code_bytes + kv_head * scale_bytes();
  }
  std::size_t sinks_at(std::size_t kv_head) const {
    return n_heads * (code_bytes + scale_bytes()) + kv_head * sink_bytes;
  }
  std::size_t bytes() const { return sinks_at(n_heads); }
};

// Of one kv head, without sink tokens. Requires: mode_of() accepts the parts.
PackedLayout head_layout(const std::vector<PartSpec>& parts, BlockOrder order);

// kExact: f32 throughout. kFast: integer products where the CPU has fast ones
// (docs/reference/codec.md, "Kernels").
enum class Precision : std::uint8_t { kExact, kFast };

}  // namespace tqcache::codec
