// Householder's method: reflections that bring a column after the other into the upper triangle,
// and then, in turn, the unit matrix into Q.

#include "tqcache/interop/turbomlx/numpy_linalg.h"

#include <cmath>
#include <utility>

namespace tqcache::interop {
namespace {

struct Matrix {
  std::size_t n;
  std::vector<double> values;

  double* row(std::size_t i) { return values.data() + i * n; }
};

void add_multiple(const double* __restrict from, double factor, std::size_t count,
                  double* __restrict to) {
  for (std::size_t j = 0; j < count; ++j) to[j] += factor * from[j];
}

// v and 2 / |v|^2 of one reflection, which is 1 - beta v v^T for rows and columns from k on.
struct Reflection {
  std::vector<double> v;  // [n - k]
  double beta = 0;
  bool is_negative = false;  // the diagonal value of R that it gives
};

Reflection reflection_of(Matrix& a, std::size_t k) {
  Reflection reflection;
  double squares = 0;
  for (std::size_t i = k; i < a.n; ++i) {
    const double value = a.row(i)[k];
    reflection.v.push_back(value);
    squares += value * value;
  }
  const double first = reflection.v[0];
  const double length = std::sqrt(squares);
  if (length == 0) return reflection;
  // Away from the column, so that no digits are lost: R's value has the other sign.
  reflection.is_negative = first >= 0;
  const double v0 = first >= 0 ? first + length : first - length;
  reflection.v[0] = v0;
  reflection.beta = 2 / (squares - first * first + v0 * v0);
  return reflection;
}

// Columns from `first` on.
void reflect(const Reflection& reflection, std::size_t k, std::size_t first, Matrix& a) {
  const std::size_t count = a.n - first;
  std::vector<double> shares(count, 0.0);
  for (std::size_t i = k; i < a.n; ++i) {
    add_multiple(a.row(i) + first, reflection.v[i - k], count, shares.data());
  }
  for (std::size_t i = k; i < a.n; ++i) {
    add_multiple(shares.data(), -reflection.beta * reflection.v[i - k], count, a.row(i) + first);
  }
}

}  // namespace

std::vector<double> orthogonal_factor(std::span<const double> a, std::size_t n) {
  Matrix rest{n, {a.begin(), a.end()}};
  std::vector<Reflection> reflections;
  for (std::size_t k = 0; k < n; ++k) {
    reflections.push_back(reflection_of(rest, k));
    reflect(reflections.back(), k, k, rest);
  }
  Matrix q{n, std::vector<double>(n * n, 0.0)};
  for (std::size_t i = 0; i < n; ++i) q.row(i)[i] = 1;
  for (std::size_t k = n; k-- > 0;) reflect(reflections[k], k, k, q);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) {
      if (reflections[k].is_negative) q.row(i)[k] = -q.row(i)[k];
    }
  }
  return std::move(q.values);
}

}  // namespace tqcache::interop
