#include "tqcache/codec/dense_matrix.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/random.h"

namespace tqcache::codec {
namespace {

// Rows are padded with zeros to complete SIMD vectors.
constexpr std::size_t kWidth = 8;

// [n, stride], in f64.
struct Matrix {
  std::size_t n;
  std::size_t stride;
  std::vector<double, AlignedAllocator<double>> values;

  double* row(std::size_t i) { return values.data() + i * stride; }
};

Matrix make_zeros(std::size_t n) {
  const std::size_t stride = (n + kWidth - 1) / kWidth * kWidth;
  Matrix matrix{n, stride, {}};
  matrix.values.resize(n * stride);
  return matrix;
}

Matrix draw_normal(std::size_t n, std::uint64_t seed) {
  Matrix matrix = make_zeros(n);
  NormalSource normal(seed);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) matrix.row(i)[j] = normal.next();
  }
  return matrix;
}

AlignedFloats rounded(Matrix& matrix) {
  AlignedFloats result(matrix.n * matrix.n);
  for (std::size_t i = 0; i < matrix.n; ++i) {
    const double* const row = matrix.row(i);
    for (std::size_t j = 0; j < matrix.n; ++j) {
      result[i * matrix.n + j] = static_cast<float>(row[j]);
    }
  }
  return result;
}

// to[j] += factor * from[j] for j >= `first`, where `first` is rounded down to a multiple of
// kWidth.
void add_multiple(const double* from, double factor, std::size_t first, std::size_t stride,
                  double* to) {
  const std::size_t start = first / kWidth * kWidth;
  best_kernels().doubles.add_multiple(from + start, factor, stride - start, to + start);
}

// Normalizes column k. Returns it, or nullopt if it is shorter than `least`.
std::optional<std::vector<double>> normalize_column(Matrix& matrix, std::size_t k, double least) {
  double squares = 0.0;
  for (std::size_t i = 0; i < matrix.n; ++i) squares += matrix.row(i)[k] * matrix.row(i)[k];
  const double length = std::sqrt(squares);
  if (!(length >= least)) return std::nullopt;
  std::vector<double> column(matrix.n);
  for (std::size_t i = 0; i < matrix.n; ++i) {
    matrix.row(i)[k] /= length;
    column[i] = matrix.row(i)[k];
  }
  return column;
}

// Subtracts from the later columns their projections on column k, a unit vector.
void project_out(Matrix& matrix, std::size_t k, const std::vector<double>& column) {
  std::vector<double> shares(matrix.stride, 0.0);  // projections on column k: a row of R
  for (std::size_t i = 0; i < matrix.n; ++i) {
    add_multiple(matrix.row(i), column[i], k + 1, matrix.stride, shares.data());
  }
  std::fill_n(shares.begin(), k + 1, 0.0);  // not these, which rounding `first` down would include
  for (std::size_t i = 0; i < matrix.n; ++i) {
    add_multiple(shares.data(), -column[i], k + 1, matrix.stride, matrix.row(i));
  }
}

// Modified Gram-Schmidt, which gives R a positive diagonal.
std::optional<AlignedFloats> orthogonalized(Matrix matrix, double least) {
  for (std::size_t k = 0; k < matrix.n; ++k) {
    const auto column = normalize_column(matrix, k, least);
    if (!column) return std::nullopt;
    project_out(matrix, k, *column);
  }
  return rounded(matrix);
}

}  // namespace

AlignedFloats gaussian_matrix(std::size_t n, std::uint64_t seed) {
  Matrix matrix = draw_normal(n, seed);
  return rounded(matrix);
}

// Orthogonality is lost by the matrix's condition number times 2^-53; the condition number of a
// Gaussian matrix of n = 1024 is in the thousands, so the loss is far below the rounding to f32.
AlignedFloats orthogonal_matrix(std::size_t n, std::uint64_t seed) {
  return *orthogonalized(draw_normal(n, seed), /*least=*/0);
}

std::optional<AlignedFloats> orthogonal_columns(std::size_t n, std::span<const double> values,
                                                double least) {
  Matrix matrix = make_zeros(n);
  for (std::size_t i = 0; i < n; ++i) std::copy_n(&values[i * n], n, matrix.row(i));
  return orthogonalized(std::move(matrix), least);
}

}  // namespace tqcache::codec
