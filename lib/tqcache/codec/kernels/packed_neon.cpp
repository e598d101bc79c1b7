// Packed codes with NEON (Armv8.0): bytes by TBL and SMULL, floats by TBL and FMLA.
//
// A register holds four lanes, a quarter of a line: every group is processed in four passes.

#include "tqcache/codec/kernels/registers_neon.h"

#ifdef TQCACHE_NEON

#include "tqcache/codec/kernels/line_pass.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kUnit = kUnitLines;
constexpr std::size_t kQuarterLine = 16;  // bytes of a line that a register holds

// Shifts towards higher bits if kShift is positive, within each byte.
template <int kShift>
uint8x16_t shift(uint8x16_t v) {
  if constexpr (kShift > 0) return vshlq_n_u8(v, kShift);
  if constexpr (kShift < 0) return vshrq_n_u8(v, -kShift);
  return v;
}

template <int kShift>
uint8x16_t shift_and(uint8x16_t v, std::uint8_t mask) {
  return vandq_u8(shift<kShift>(v), vdupq_n_u8(mask));
}

void load_sixes(const std::uint8_t* lines, uint8x16_t* fields) {
  uint8x16_t line[3];
  for (int l = 0; l < 3; ++l) {
    line[l] = vld1q_u8(lines + 64 * l);
    fields[l] = shift_and<0>(line[l], 0x3f);
  }
  fields[3] = vorrq_u8(vorrq_u8(shift<-6>(line[0]), shift_and<-4>(line[1], 0x0c)),
                       shift_and<-2>(line[2], 0x30));
}

// Sets bit kAt of codes[k] to bit k of `plane`.
template <int kAt>
void put_above(uint8x16_t plane, uint8x16_t (&codes)[kUnit]) {
  for (std::size_t k = 0; k < kUnit; ++k) {
    const uint8x16_t bit =
        vshlq_u8(plane, vdupq_n_s8(static_cast<std::int8_t>(-static_cast<int>(k))));
    const uint8x16_t placed = vshlq_n_u8(vandq_u8(bit, vdupq_n_u8(1)), kAt);
    codes[k] = vorrq_u8(codes[k], placed);
  }
}

// A plane of kWidthBits bits: 8 / kWidthBits lines.
template <int kBits, int kIndex = 0>
void load_plane(uint8x16_t line, uint8x16_t* codes) {
  codes[0] = shift_and<-kBits * kIndex>(line, (1 << kBits) - 1);
  if constexpr ((kIndex + 1) * kBits < 8) load_plane<kBits, kIndex + 1>(line, codes + 1);
}

// A quarter of the eight lines of bytes of a unit.
template <int kBits>
void load_codes(const std::uint8_t* unit, uint8x16_t (&codes)[kUnit]) {
  if constexpr (kBits == 3) {
    uint8x16_t fields[4];
    load_sixes(unit, fields);
    for (std::size_t f = 0; f < 4; ++f) {
      codes[2 * f] = shift_and<0>(fields[f], 0x07);
      codes[2 * f + 1] = shift<-3>(fields[f]);
    }
  } else if constexpr (kBits == 5) {
    for (std::size_t g = 0; g < 4; ++g) load_plane<4>(vld1q_u8(unit + 64 * (1 + g)), codes + 2 * g);
    put_above<4>(vld1q_u8(unit), codes);
  } else if constexpr (kBits == 6 || kBits == 7) {
    const std::uint8_t* const sixes = unit + 64 * (kBits - 6);
    load_sixes(sixes, codes);
    load_sixes(sixes + 3 * 64, codes + 4);
    if constexpr (kBits == 7) put_above<6>(vld1q_u8(unit), codes);
  } else {
    constexpr std::size_t kLinesOfOne = 8 / kBits;
    for (std::size_t l = 0; l < kBits; ++l) {
      load_plane<kBits>(vld1q_u8(unit + 64 * l), codes + kLinesOfOne * l);
    }
  }
}

// Signed bytes, which need no offset.
template <int kBits>
struct ByteTable {
  static constexpr int kParts = kBits <= 4 ? 1 : kBits <= 6 ? 4 : kBits == 7 ? 8 : 16;
  int8x16_t parts[kParts];
};

template <int kBits>
ByteTable<kBits> load_table(const std::uint8_t* bytes) {
  ByteTable<kBits> table;
  for (int i = 0; i < ByteTable<kBits>::kParts; ++i) {
    const uint8x16_t centered = veorq_u8(vld1q_u8(bytes + 16 * i), vdupq_n_u8(0x80));
    table.parts[i] = vreinterpretq_s8_u8(centered);
  }
  return table;
}

int8x16x4_t four_of(const int8x16_t* parts) { return {{parts[0], parts[1], parts[2], parts[3]}}; }

template <int kBits>
int8x16_t look_up(const ByteTable<kBits>& table, uint8x16_t codes) {
  if constexpr (kBits <= 4) {
    return vqtbl1q_s8(table.parts[0], codes);
  } else {
    // An index beyond a table leaves the result of the others.
    int8x16_t found = vqtbl4q_s8(four_of(table.parts), codes);
    for (int i = 4; i < ByteTable<kBits>::kParts; i += 4) {
      codes = vsubq_u8(codes, vdupq_n_u8(64));
      found = vqtbx4q_s8(found, four_of(table.parts + i), codes);
    }
    return found;
  }
}

// Pairs of products of lanes 0 and 1, and of 2 and 3.
struct ByteSums {
  int32x4_t low = vdupq_n_s32(0);
  int32x4_t high = vdupq_n_s32(0);
};

template <int kBits, std::size_t kRows>
void add_unit(const std::uint8_t* unit, const ByteTable<kBits>& table, const std::int8_t* factors,
              std::size_t stride, ByteSums (&sums)[kRows]) {
  uint8x16_t codes[kUnit];
  load_codes<kBits>(unit, codes);
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    const int8x16_t values = look_up<kBits>(table, codes[k]);
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      std::int32_t four;
      __builtin_memcpy(&four, factors + r * stride + 4 * k, 4);
      const int8x16_t factor = vreinterpretq_s8_s32(vdupq_n_s32(four));
      const int16x8_t low = vmull_s8(vget_low_s8(values), vget_low_s8(factor));
      sums[r].low = vpadalq_s16(sums[r].low, low);
      sums[r].high = vpadalq_s16(sums[r].high, vmull_high_s8(values, factor));
    }
  }
}

// An incomplete unit, padded with zeros.
struct WholeUnit {
  alignas(64) std::uint8_t lines[kUnitLines * kLineBytes] = {};
};

void complete(const std::uint8_t* lines, std::size_t n, WholeUnit& unit) {
  for (std::size_t l = 0; l < n; ++l) {
    __builtin_memcpy(unit.lines + l * kLineBytes, lines + l * kLineBytes, kQuarterLine);
  }
}

float32x4_t load_scales(const std::uint16_t* scales) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(scales)));
}

// Stores the sums of four columns in one output row, or adds them.
void put_columns(const LinePass& pass, std::size_t first, std::size_t row, bool add,
                 float32x4_t sums) {
  if (pass.lane_scales != nullptr) sums = vmulq_f32(sums, load_scales(pass.lane_scales + first));
  float* const out = pass.out.values + row * pass.out.stride + first;
  const std::size_t left = pass.n_columns - first;
  if (left >= kWidth) return vst1q_f32(out, add ? vaddq_f32(vld1q_f32(out), sums) : sums);
  float lanes[kWidth];
  vst1q_f32(lanes, sums);
  for (std::size_t l = 0; l < left; ++l) out[l] = add ? out[l] + lanes[l] : lanes[l];
}

const std::uint8_t* lines_of(const LinePass& pass, std::size_t quarter) {
  return pass.lines + quarter / 4 * pass.group_bytes + quarter % 4 * kQuarterLine;
}

// Processes kRows rows of the factors from first_row on. `adds`: to the previous content.
template <int kBits, std::size_t kRows>
void byte_pass(const LinePass& pass, const std::uint8_t* table_bytes, float step,
               const ByteRows& rows, std::size_t first_row, bool adds) {
  const ByteTable<kBits> table = load_table<kBits>(table_bytes);
  for (std::size_t quarter = 0; quarter * kWidth < pass.n_columns; ++quarter) {
    const std::uint8_t* unit = lines_of(pass, quarter);
    const std::int8_t* factors = rows.values + first_row * rows.stride;
    ByteSums sums[kRows];
    for (std::size_t u = 0; u < pass.whole_units; ++u) {
      add_unit<kBits, kRows>(unit, table, factors, rows.stride, sums);
      unit += kBits * kLineBytes;
      factors += kUnitLaneCodes;
    }
    if (pass.tail_lines > 0) {
      WholeUnit whole;
      complete(unit, pass.tail_lines, whole);
      add_unit<kBits, kRows>(whole.lines, table, factors, rows.stride, sums);
    }
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const std::size_t row = first_row + r;
      const float32x4_t sum = vcvtq_f32_s32(vpaddq_s32(sums[r].low, sums[r].high));
      const bool first = !adds && (rows.n_levels == 1 || row % 2 == 0);
      put_columns(pass, quarter * kWidth, rows.n_levels == 1 ? row : row / 2, !first,
                  vmulq_n_f32(sum, step * rows.multipliers[row]));
    }
  }
}

template <int kBits>
void byte_passes(const LinePass& pass, const CodeTables& tables, const ByteRows& rows,
                 std::size_t n_rows) {
  for (int level = 0; level < tables.n_levels; ++level) {
    const float step = level + 1 < tables.n_levels ? 256.0f * tables.step : tables.step;
    const std::uint8_t* const bytes = tables.bytes[level];
    const bool adds = pass.adds || level > 0;
    std::size_t row = 0;
    for (; row + 4 <= n_rows; row += 4) byte_pass<kBits, 4>(pass, bytes, step, rows, row, adds);
    for (; row < n_rows; ++row) byte_pass<kBits, 1>(pass, bytes, step, rows, row, adds);
  }
}

// Four centroids, for the codes in byte j of four lanes.
template <int kBits>
float32x4_t look_up(const float* values, const uint8x16x4_t& table, uint32x4_t codes) {
  const uint32x4_t index = vandq_u32(codes, vdupq_n_u32(0xff));
  if constexpr (kBits <= 4) {
    // The four bytes of a float are adjacent in the table.
    const uint32x4_t bytes = vmlaq_n_u32(vdupq_n_u32(0x03020100), index, 0x04040404);
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)));
  } else {
    const float found[kWidth] = {values[vgetq_lane_u32(index, 0)], values[vgetq_lane_u32(index, 1)],
                                 values[vgetq_lane_u32(index, 2)],
                                 values[vgetq_lane_u32(index, 3)]};
    return vld1q_f32(found);
  }
}

template <int kBits, std::size_t kRows>
void add_unit(const std::uint8_t* unit, const float* values, const uint8x16x4_t& table,
              const float* factors, std::size_t stride, float32x4_t (&sums)[kRows]) {
  uint8x16_t codes[kUnit];
  load_codes<kBits>(unit, codes);
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    uint32x4_t line = vreinterpretq_u32_u8(codes[k]);
    TQC_UNROLL for (std::size_t j = 0; j < kLaneCodes; ++j) {
      const float32x4_t centroids = look_up<kBits>(values, table, line);
      line = vshrq_n_u32(line, 8);
      TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
        sums[r] = vfmaq_n_f32(sums[r], centroids, factors[r * stride + 4 * k + j]);
      }
    }
  }
}

template <int kBits, std::size_t kRows>
void float_pass(const LinePass& pass, const float* values, const FloatRows& rows,
                std::size_t first_row) {
  const std::uint8_t* const bytes = reinterpret_cast<const std::uint8_t*>(values);
  const uint8x16x4_t table = {
      {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
  for (std::size_t quarter = 0; quarter * kWidth < pass.n_columns; ++quarter) {
    const std::uint8_t* unit = lines_of(pass, quarter);
    const float* factors = rows.values + first_row * rows.stride;
    float32x4_t sums[kRows];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) sums[r] = vdupq_n_f32(0.0f);
    for (std::size_t u = 0; u < pass.whole_units; ++u) {
      add_unit<kBits, kRows>(unit, values, table, factors, rows.stride, sums);
      unit += kBits * kLineBytes;
      factors += kUnitLaneCodes;
    }
    if (pass.tail_lines > 0) {
      WholeUnit whole;
      complete(unit, pass.tail_lines, whole);
      add_unit<kBits, kRows>(whole.lines, values, table, factors, rows.stride, sums);
    }
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      put_columns(pass, quarter * kWidth, first_row + r, pass.adds, sums[r]);
    }
  }
}

template <int kBits>
void float_passes(const LinePass& pass, const CodeTables& tables, const FloatRows& rows,
                  std::size_t n_rows) {
  std::size_t row = 0;
  for (; row + 4 <= n_rows; row += 4) float_pass<kBits, 4>(pass, tables.values, rows, row);
  for (; row < n_rows; ++row) float_pass<kBits, 1>(pass, tables.values, rows, row);
}

void run(const LinePass& pass, const CodeTables& tables, const FloatRows& rows,
         std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const FloatRows&, std::size_t);
  constexpr Run kRuns[] = {float_passes<1>, float_passes<2>, float_passes<3>, float_passes<4>,
                           float_passes<5>, float_passes<6>, float_passes<7>, float_passes<8>};
  kRuns[tables.bits - 1](pass, tables, rows, n_rows);
}

void run(const LinePass& pass, const CodeTables& tables, const ByteRows& rows, std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const ByteRows&, std::size_t);
  constexpr Run kRuns[] = {byte_passes<1>, byte_passes<2>, byte_passes<3>, byte_passes<4>,
                           byte_passes<5>, byte_passes<6>, byte_passes<7>, byte_passes<8>};
  kRuns[tables.bits - 1](pass, tables, rows, n_rows);
}

// Softmax weights times scales, as two signed bytes each: this instruction set multiplies only
// signed bytes, and one signed byte has too few steps for WeightBytes (line_pass.h).

// The weights of some queries times the scales, in f32 and in two levels of bytes.
struct PreparedWeights {
  static constexpr std::size_t kMaxQueries = 8;
  alignas(64) float values[kMaxQueries][kBlockTokens];
  alignas(64) std::int8_t bytes[2 * kMaxQueries][kBlockTokens];
  float multipliers[2 * kMaxQueries];
  std::int32_t sums[2 * kMaxQueries];

  FloatRows float_rows() const { return {values[0], kBlockTokens}; }
  ByteRows byte_rows() const { return {bytes[0], kBlockTokens, 2, multipliers, sums}; }
};

// weights * scales, zero beyond the tokens. Returns the largest magnitude, or NaN if one is NaN.
using ScaleWeights = float (*)(const PackedBlock&, const float* weights, float* scaled);

// values = step * (kByteRadix * high + low), rounded; and the sums of both. For all 256 values.
using RoundToBytes = void (*)(const float* values, float step, std::int8_t* high, std::int8_t* low,
                              std::int32_t* sums);

// Prepares queries first to first + n - 1. Returns whether bytes were requested and can represent
// the weights: not for NaN and infinity, nor if a step would be too small for f32.
bool prepare_weights(const PackedBlock& block, const WeightRows& weights, std::size_t first,
                     std::size_t n, bool bytes, ScaleWeights scale, RoundToBytes round,
                     PreparedWeights& prepared) {
  constexpr float kLeast = 0x1p-100f, kMost = 0x1p100f;
  for (std::size_t q = 0; q < n; ++q) {
    const float* const row = weights.values + (first + q) * weights.stride;
    const float largest = scale(block, row, prepared.values[q]);
    const bool zeros = largest == 0.0f;
    bytes = bytes && (zeros || (largest >= kLeast && largest <= kMost));
    if (!bytes) continue;
    const float step = (zeros ? 1.0f : largest) / static_cast<float>(kMaxTwoBytes);
    prepared.multipliers[2 * q] = step * static_cast<float>(kByteRadix);
    prepared.multipliers[2 * q + 1] = step;
    round(prepared.values[q], step, prepared.bytes[2 * q], prepared.bytes[2 * q + 1],
          prepared.sums + 2 * q);
  }
  return bytes;
}

// weights * scales, zero beyond the tokens. Returns the largest magnitude, or NaN if one is NaN.
float scale_weights(const PackedBlock& block, const float* weights, float* scaled) {
  float largest = 0.0f;
  bool unordered = false;
  for (std::size_t t = 0; t < kBlockTokens; t += kWidth) {
    const std::size_t left = t < block.n_tokens ? block.n_tokens - t : 0;
    float row[kWidth] = {}, scale[kWidth] = {};
    vst1q_f32(scale, load_scales(block.scales + t));
    for (std::size_t l = 0; l < kWidth; ++l) {
      row[l] = l < left ? weights[t + l] : 0.0f;
      if (l >= left) scale[l] = 0.0f;  // it may be NaN or infinity
    }
    const float32x4_t product = vmulq_f32(vld1q_f32(row), vld1q_f32(scale));
    vst1q_f32(scaled + t, product);
    const float most = vmaxvq_f32(vabsq_f32(product));  // NaN if one is
    unordered = unordered || most != most;
    largest = most > largest ? most : largest;
  }
  return unordered ? __builtin_nanf("") : largest;
}

// values = step * (kByteRadix * high + low), rounded.
void round_to_bytes(const float* values, float step, std::int8_t* high, std::int8_t* low,
                    std::int32_t* sums) {
  const float inverse = 1.0f / step;
  int32x4_t high_sum = vdupq_n_s32(0), low_sum = high_sum;
  for (std::size_t t = 0; t < kBlockTokens; t += kWidth) {
    const float32x4_t steps = vmulq_n_f32(vld1q_f32(values + t), inverse);
    const int32x4_t h = vcvtnq_s32_f32(vmulq_n_f32(steps, 1.0f / static_cast<float>(kByteRadix)));
    const float32x4_t rest = vfmsq_n_f32(steps, vcvtq_f32_s32(h), static_cast<float>(kByteRadix));
    const int32x4_t l = vcvtnq_s32_f32(rest);
    std::int32_t highs[kWidth], lows[kWidth];
    vst1q_s32(highs, h);
    vst1q_s32(lows, l);
    for (std::size_t i = 0; i < kWidth; ++i) {
      high[t + i] = static_cast<std::int8_t>(highs[i]);
      low[t + i] = static_cast<std::int8_t>(lows[i]);
    }
    high_sum = vaddq_s32(high_sum, h);
    low_sum = vaddq_s32(low_sum, l);
  }
  sums[0] = vaddvq_s32(high_sum);
  sums[1] = vaddvq_s32(low_sum);
}

void accumulate(const PackedBlock& block, const CodeTables& tables, const WeightRows& weights,
                OutputRows out, bool fast) {
  PreparedWeights prepared;
  constexpr std::size_t kMost = PreparedWeights::kMaxQueries;
  for (std::size_t first = 0; first < weights.n_queries; first += kMost) {
    const std::size_t left = weights.n_queries - first;
    const std::size_t n = left < kMost ? left : kMost;
    const LinePass pass =
        value_pass(block, {.values = out.values + first * out.stride, .stride = out.stride});
    if (prepare_weights(block, weights, first, n, fast, scale_weights, round_to_bytes, prepared)) {
      run(pass, tables, prepared.byte_rows(), 2 * n);
    } else {
      run(pass, tables, prepared.float_rows(), n);
    }
  }
}

}  // namespace

void neon::score_exact(const PackedBlock& block, const CodeTables& tables, const QueryRows& queries,
                       OutputRows scores) {
  run(key_pass(block, scores), tables, FloatRows{queries.values, queries.stride},
      queries.n_queries);
}

void neon::score_fast(const PackedBlock& block, const CodeTables& tables, const QueryRows& queries,
                      OutputRows scores) {
  run(key_pass(block, scores), tables, byte_rows(queries), queries.n_queries * queries.n_levels);
}

void neon::accumulate_exact(const PackedBlock& block, const CodeTables& tables,
                            const WeightRows& weights, OutputRows out) {
  accumulate(block, tables, weights, out, /*fast=*/false);
}

void neon::accumulate_fast(const PackedBlock& block, const CodeTables& tables,
                           const WeightRows& weights, OutputRows out) {
  accumulate(block, tables, weights, out, /*fast=*/true);
}

// Transposes each group of sixteen bytes (four tokens of four components), then the four by four
// matrix of these groups.
void neon::transpose_lines(const std::uint8_t* in, std::uint8_t* out) {
  constexpr std::uint8_t kTransposed[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  const uint8x16_t transposed = vld1q_u8(kTransposed);
  for (std::size_t l = 0; l < 4; ++l) {
    for (std::size_t k = 0; k < 4; ++k) {
      const uint8x16_t four = vld1q_u8(in + l * kLineBytes + 16 * k);
      vst1q_u8(out + k * kLineBytes + 16 * l, vqtbl1q_u8(four, transposed));
    }
  }
}

}  // namespace tqcache::codec

#endif  // TQCACHE_NEON
