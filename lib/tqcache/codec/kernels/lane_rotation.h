#pragma once
// codec/kernels/lane_rotation.h: rotation of kWidth head vectors, one per register lane.
//
// Component i of kWidth vectors is one register, and no operation crosses lanes: each lane performs
// exactly the operations of Rotation, in the same order, so the bytes are the same.
//
// Included after registers_*.h by the files of each instruction set.

#include <cstddef>
#include <cstdint>

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/codec/quantizer.h"

namespace tqcache::codec {
namespace {

// kWidth head vectors: [head_dim][kWidth].
struct LaneVectors {
  Lanes values[kMaxHeadDim];
};

TQC_LANES Lanes flip(Lanes v, std::uint32_t sign_bit) {
  return reinterpret_cast<Lanes>(reinterpret_cast<LaneBits>(v) ^ sign_bit);
}

// The stages of a Hadamard transform of kCount components, a power of two.
template <std::size_t kCount>
TQC_LANES void butterflies(Lanes (&v)[kCount]) {
  TQC_UNROLL for (std::size_t h = 1; h < kCount; h *= 2) {
    TQC_UNROLL for (std::size_t i = 0; i < kCount; ++i) {
      if ((i & h) != 0) continue;
      const Lanes a = v[i], b = v[i + h];
      v[i] = a + b;
      v[i + h] = a - b;
    }
  }
}

template <std::size_t kStages>
TQC_LANES_FUNCTION void stages(LaneVectors& x, std::size_t head_dim, std::size_t distance) {
  constexpr std::size_t kCount = std::size_t{1} << kStages;
  for (std::size_t start = 0; start < head_dim; start += distance * kCount) {
    for (std::size_t i = start; i < start + distance; ++i) {
      Lanes v[kCount];
      TQC_UNROLL for (std::size_t k = 0; k < kCount; ++k) v[k] = x.values[i + k * distance];
      butterflies(v);
      TQC_UNROLL for (std::size_t k = 0; k < kCount; ++k) x.values[i + k * distance] = v[k];
    }
  }
}

// The stages of every part from `distance` on, in passes of similar size.
void hadamard(const RotationTables& tables, LaneVectors& x, std::size_t distance) {
  std::size_t left = 0;
  while (distance << left < tables.part_size) ++left;
  while (left > 0) {
    const std::size_t n_passes = (left + kPassStages - 1) / kPassStages;
    const std::size_t now = (left + n_passes - 1) / n_passes;
    if (now == 1) stages<1>(x, tables.head_dim, distance);
    if (now == 2) stages<2>(x, tables.head_dim, distance);
    if (now == 3) stages<3>(x, tables.head_dim, distance);
    if constexpr (kPassStages > 3) {
      if (now == 4) stages<4>(x, tables.head_dim, distance);
    }
    distance <<= now;
    left -= now;
  }
}

// The Hartley transform across the parts.
template <std::size_t kParts>
TQC_LANES_FUNCTION void hartley(const RotationTables& tables, LaneVectors& x) {
  const float* const cas = tables.cas.data();
  for (std::size_t t = 0; t < tables.part_size; ++t) {
    Lanes v[kParts];
    TQC_UNROLL for (std::size_t i = 0; i < kParts; ++i) v[i] = x.values[i * tables.part_size + t];
    TQC_UNROLL for (std::size_t j = 0; j < kParts; ++j) {
      Lanes sum = v[0];
      TQC_UNROLL for (std::size_t i = 1; i < kParts; ++i) sum += v[i] * cas[i * j % kParts];
      x.values[j * tables.part_size + t] = sum;
    }
  }
}

TQC_LANES_FUNCTION void hartley_of_any(const RotationTables& tables, LaneVectors& x) {
  const std::size_t parts = tables.cas.size();
  const float* const cas = tables.cas.data();
  LaneVectors column;
  for (std::size_t t = 0; t < tables.part_size; ++t) {
    for (std::size_t i = 0; i < parts; ++i) column.values[i] = x.values[i * tables.part_size + t];
    for (std::size_t j = 0; j < parts; ++j) {
      Lanes sum = column.values[0];
      std::size_t angle = 0;  // i * j mod parts
      for (std::size_t i = 1; i < parts; ++i) {
        angle += j;
        if (angle >= parts) angle -= parts;
        sum += column.values[i] * cas[angle];
      }
      x.values[j * tables.part_size + t] = sum;
    }
  }
}

void hartley_across(const RotationTables& tables, LaneVectors& x) {
  switch (tables.cas.size()) {
    case 1:
      return;
    case 3:
      return hartley<3>(tables, x);
    case 5:
      return hartley<5>(tables, x);
    case 7:
      return hartley<7>(tables, x);
    case 9:
      return hartley<9>(tables, x);
    default:
      return hartley_of_any(tables, x);
  }
}

TQC_LANES_FUNCTION void scale_and_flip(const RotationTables& tables, std::size_t round,
                                       LaneVectors& x) {
  const std::uint32_t* const signs = tables.sign_bits.data() + round * tables.head_dim;
  for (std::size_t i = 0; i < tables.head_dim; ++i) {
    x.values[i] = flip(x.values[i] * tables.factor, signs[i]);
  }
}

// Adds the sixteen lanes of the format's inner product by halves. (Its lanes are components; here
// each of them is a register.)
TQC_LANES Lanes add_halves(Lanes (&sums)[16]) {
  TQC_UNROLL for (std::size_t half = 8; half > 0; half /= 2) {
    TQC_UNROLL for (std::size_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}

// The format's inner product of every vector with one row of a matrix.
TQC_LANES Lanes multiply_row(const float* row, const LaneVectors& x, std::size_t head_dim) {
  constexpr std::size_t kHalf = 8;  // as many sums as surely fit registers
  Lanes sums[16];
  TQC_UNROLL for (std::size_t first = 0; first < 16; first += kHalf) {
    Lanes half[kHalf] = {};
    std::size_t j = first;
    for (; j + kHalf <= head_dim; j += 16) {
      TQC_UNROLL for (std::size_t l = 0; l < kHalf; ++l) half[l] += x.values[j + l] * row[j + l];
    }
    TQC_UNROLL for (std::size_t l = 0; l < kHalf; ++l) {
      if (j + l < head_dim) half[l] += x.values[j + l] * row[j + l];
      sums[first + l] = half[l];
    }
  }
  return add_halves(sums);
}

TQC_LANES_FUNCTION void multiply_rows(const float* matrix, std::size_t head_dim, LaneVectors& x) {
  LaneVectors y;
  for (std::size_t i = 0; i < head_dim; ++i) {
    y.values[i] = multiply_row(matrix + i * head_dim, x, head_dim);
  }
  for (std::size_t i = 0; i < head_dim; ++i) x.values[i] = y.values[i];
}

// The transpose: adds the rows of the matrix, each times its component, from the first on.
TQC_LANES_FUNCTION void sum_rows(const float* matrix, std::size_t head_dim, LaneVectors& x) {
  constexpr std::size_t kColumns = 8;
  LaneVectors y;
  for (std::size_t j = 0; j < head_dim; j += kColumns) {
    Lanes sums[kColumns] = {};
    const std::size_t n = head_dim - j;
    for (std::size_t i = 0; i < head_dim; ++i) {
      const float* const row = matrix + i * head_dim + j;
      TQC_UNROLL for (std::size_t k = 0; k < kColumns; ++k) {
        if (k < n) sums[k] += x.values[i] * row[k];
      }
    }
    TQC_UNROLL for (std::size_t k = 0; k < kColumns; ++k) {
      if (k < n) y.values[j + k] = sums[k];
    }
  }
  for (std::size_t i = 0; i < head_dim; ++i) x.values[i] = y.values[i];
}

// The distance of the first stages of a transform that can run while kWidth components are loaded
// into registers.
[[maybe_unused]] std::size_t loaded_distance(const RotationTables& tables) {
  return tables.part_size % kWidth == 0 ? kWidth : 1;
}

// Everything except the first signs, which the caller has applied, and the last factor, which the
// caller must apply. `distance`: the number of stages already done, as a distance.
void rotate(const RotationTables& tables, LaneVectors& x, std::size_t distance) {
  if (tables.matrix != nullptr) return multiply_rows(tables.matrix, tables.head_dim, x);
  if (tables.rotation != TransformKind::kHadamard) return;
  for (std::size_t round = 0; round < tables.rounds; ++round) {
    if (round > 0) scale_and_flip(tables, round, x);
    hadamard(tables, x, round == 0 ? distance : 1);
    hartley_across(tables, x);
  }
}

// The inverse. The caller must apply the factor, then the signs of round 0.
[[maybe_unused]] void unrotate(const RotationTables& tables, LaneVectors& x, std::size_t distance) {
  if (tables.matrix != nullptr) return sum_rows(tables.matrix, tables.head_dim, x);
  if (tables.rotation != TransformKind::kHadamard) return;
  for (std::size_t round = tables.rounds; round-- > 0;) {
    hadamard(tables, x, round + 1 == tables.rounds ? distance : 1);
    hartley_across(tables, x);
    if (round > 0) scale_and_flip(tables, round, x);
  }
}

}  // namespace
}  // namespace tqcache::codec
