#include "tqcache/eval/principal_directions.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/model/linear/products.h"

namespace tqcache::eval {
namespace {

constexpr std::size_t kSpare = 16;   // directions beyond those wanted, which make these exact
constexpr int kIterations = 6;       // each multiplies an error by the ratio of two eigenvalues
constexpr std::size_t kChunk = 512;  // vectors at a time

std::int64_t as_int(std::size_t x) { return static_cast<std::int64_t>(x); }

double dot(const double* a, const double* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Makes rows orthogonal, of length 1, or 0 if they depend on rows before. Shapes: rows [k, dim].
void orthonormalize(std::size_t k, std::size_t dim, std::vector<double>& rows) {
  for (std::size_t i = 0; i < k; ++i) {
    double* const own = &rows[i * dim];
    const double before = std::sqrt(dot(own, own, dim));
    for (int twice = 0; twice < 2; ++twice) {  // the second time for what rounding left
      for (std::size_t j = 0; j < i; ++j) {
        const double* const other = &rows[j * dim];
        const double share = dot(own, other, dim);
        for (std::size_t c = 0; c < dim; ++c) own[c] -= share * other[c];
      }
    }
    const double length = std::sqrt(dot(own, own, dim));
    const double factor = length > 1e-6 * before && length > 1e-150 ? 1 / length : 0;
    for (std::size_t c = 0; c < dim; ++c) own[c] *= factor;
  }
}

// The sum of x x^T over all vectors, times each row. Shapes: rows, result [k, dim].
std::vector<double> multiplied(std::size_t dim, std::size_t n, const LoadVector& load,
                               const std::vector<double>& rows) {
  const std::size_t k = rows.size() / dim;
  const AlignedFloats narrow(rows.begin(), rows.end());
  AlignedFloats chunk(std::min(kChunk, n) * dim), shares(k * std::min(kChunk, n)), part(k * dim);
  std::vector<double> sum(k * dim);
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::size_t count = std::min(kChunk, n - first);
    for (std::size_t i = 0; i < count; ++i) {
      load(first + i, std::span(chunk).subspan(i * dim, dim));
    }
    model::multiply_transposed(as_int(k), as_int(count), as_int(dim), {narrow.data(), as_int(dim)},
                               {chunk.data(), as_int(dim)}, {shares.data(), as_int(count)});
    model::multiply_matrices(as_int(k), as_int(dim), as_int(count), {shares.data(), as_int(count)},
                             {chunk.data(), as_int(dim)}, {part.data(), as_int(dim)});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += double{part[i]};
  }
  return sum;
}

}  // namespace

Result<codec::SymmetricEigen> principal_directions(std::size_t dim, std::size_t n,
                                                   const LoadVector& load, std::size_t n_wanted) {
  const std::size_t k = std::min(n_wanted + kSpare, dim);
  std::vector<double> rows(k * dim);
  std::minstd_rand random(1);
  for (double& each : rows) each = static_cast<double>(random()) / 2147483647.0 - 0.5;
  orthonormalize(k, dim, rows);
  for (int i = 0; i < kIterations; ++i) {
    rows = multiplied(dim, n, load, rows);
    orthonormalize(k, dim, rows);
  }
  // The eigenvectors within the subspace.
  const std::vector<double> image = multiplied(dim, n, load, rows);
  std::vector<double> within(k * k);
  for (std::size_t i = 0; i < k; ++i) {
    for (std::size_t j = 0; j <= i; ++j)
      within[i * k + j] = dot(&image[i * dim], &rows[j * dim], dim);
  }
  TQC_TRY_ASSIGN(const codec::SymmetricEigen small, codec::symmetric_eigen(k, within));
  codec::SymmetricEigen result;
  result.values.assign(small.values.begin(),
                       small.values.begin() + static_cast<std::ptrdiff_t>(n_wanted));
  result.vectors.assign(n_wanted * dim, 0);
  for (std::size_t i = 0; i < n_wanted; ++i) {
    double* const to = &result.vectors[i * dim];
    for (std::size_t j = 0; j < k; ++j) {
      const double share = small.vectors[i * k + j];
      const double* const from = &rows[j * dim];
      for (std::size_t c = 0; c < dim; ++c) to[c] += share * from[c];
    }
  }
  return result;
}

}  // namespace tqcache::eval
