#include "tqcache/codec/trellis/symmetric_eigen.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::codec {
namespace {

constexpr double kEpsilon = 0x1p-52;
constexpr double kNothing = 0x1p-500;  // negligible for entries near 1; its square is not 0
constexpr std::size_t kStepsPerValue = 60;

// A square matrix by rows.
struct Square {
  std::size_t n;
  std::vector<double> entries;

  explicit Square(std::size_t size) : n(size), entries(size * size) {}
  double* row(std::size_t i) { return entries.data() + i * n; }
};

// A symmetric matrix with nonzero entries only on and next to the diagonal.
struct Tridiagonal {
  std::vector<double> diagonal;  // [n]
  std::vector<double> beside;    // [n]: entry (i, i + 1); the last is 0
};

// The only long loop in which the order of additions matters.
double dot(const double* a, const double* b, std::size_t n) {
  double sum = 0.0;
  for (std::size_t j = 0; j < n; ++j) sum += a[j] * b[j];
  return sum;
}

// The reflection 1 - factor v v' that maps x to a vector with the first component `first` and
// zeros. v overwrites x; with factor 0 the reflection is the identity.
struct Reflection {
  double factor;
  double first;
};

Reflection make_reflection(double* x, std::size_t n) {
  const double rest = dot(x + 1, x + 1, n - 1);
  if (rest == 0.0) return {0.0, x[0]};
  const double length = std::sqrt(x[0] * x[0] + rest);
  const double first = x[0] > 0.0 ? -length : length;
  x[0] -= first;
  return {2.0 / (x[0] * x[0] + rest), first};
}

// Reflects the lower right part of a, from row and column `from` on, from both sides.
void reflect_both_sides(Square& a, std::size_t from, const double* v, double factor,
                        std::vector<double>& w) {
  const std::size_t n = a.n - from;
  const DoubleLoops& with = best_kernels().doubles;
  std::fill(w.begin(), w.end(), 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    with.add_multiple(a.row(from + i) + from, factor * v[i], n, w.data());
  }
  with.add_multiple(v, -0.5 * factor * dot(w.data(), v, n), n, w.data());
  for (std::size_t i = 0; i < n; ++i) {
    with.subtract_two(v[i], w.data(), w[i], v, n, a.row(from + i) + from);
  }
}

// Row k of a stores the vector of reflection k, right of the diagonal.
Tridiagonal make_tridiagonal(Square& a, std::vector<double>& factors) {
  const std::size_t n = a.n;
  Tridiagonal t{std::vector<double>(n), std::vector<double>(n)};
  std::vector<double> w(n);
  for (std::size_t k = 0; k < n; ++k) {
    t.diagonal[k] = a.row(k)[k];
    if (k + 1 == n) break;
    double* const v = a.row(k) + k + 1;
    const Reflection reflection = make_reflection(v, n - k - 1);
    t.beside[k] = reflection.first;
    factors[k] = reflection.factor;
    if (reflection.factor != 0.0) reflect_both_sides(a, k + 1, v, reflection.factor, w);
  }
  return t;
}

// The product of all reflections.
Square multiply_reflections(Square& a, const std::vector<double>& factors) {
  const std::size_t n = a.n;
  Square q(n);
  const DoubleLoops& with = best_kernels().doubles;
  for (std::size_t i = 0; i < n; ++i) q.row(i)[i] = 1.0;
  std::vector<double> shares(n);
  for (std::size_t k = n - 1; k-- > 0;) {
    if (factors[k] == 0.0) continue;
    const std::size_t from = k + 1;
    const double* const v = a.row(k) + from;
    std::fill(shares.begin(), shares.end(), 0.0);
    for (std::size_t i = from; i < n; ++i) {
      with.add_multiple(q.row(i) + from, v[i - from], n - from, shares.data());
    }
    for (std::size_t i = from; i < n; ++i) {
      with.add_multiple(shares.data(), -factors[k] * v[i - from], n - from, q.row(i) + from);
    }
  }
  return q;
}

void transpose(Square& a) {
  for (std::size_t i = 0; i < a.n; ++i) {
    for (std::size_t j = 0; j < i; ++j) std::swap(a.row(i)[j], a.row(j)[i]);
  }
}

// A rotation of two coordinates: (a, b) becomes (c a - s b, s a + c b).
struct GivensRotation {
  double c;
  double s;
};

// The rotation that maps (x, z) to (r, 0).
GivensRotation make_rotation(double x, double z) {
  if (z == 0.0) return {1.0, 0.0};
  const double more = std::max(std::abs(x), std::abs(z));
  const double less = std::min(std::abs(x), std::abs(z)) / more;
  const double r = more * std::sqrt(1.0 + less * less);
  return {x / r, -z / r};
}

// Rotates coordinates k and k + 1 of a tridiagonal matrix.
void rotate_pair(const GivensRotation& rotation, std::size_t k, Tridiagonal& t) {
  const auto [c, s] = rotation;
  const double a = t.diagonal[k], b = t.beside[k], d = t.diagonal[k + 1];
  t.diagonal[k] = c * c * a - 2.0 * (c * s) * b + s * s * d;
  t.diagonal[k + 1] = s * s * a + 2.0 * (c * s) * b + c * c * d;
  t.beside[k] = c * s * (a - d) + (c * c - s * s) * b;
}

// The eigenvalue of the last two coordinates that is closer to the last diagonal entry.
double wilkinson_shift(const Tridiagonal& t, std::size_t last) {
  const double beside = t.beside[last - 1];
  const double half = (t.diagonal[last - 1] - t.diagonal[last]) * 0.5;
  const double root = std::sqrt(half * half + beside * beside);
  return t.diagonal[last] - beside * beside / (half < 0.0 ? half - root : half + root);
}

// One QR step of coordinates first to last.
void qr_step(std::size_t first, std::size_t last, Tridiagonal& t, Square& vectors) {
  const DoubleLoops& with = best_kernels().doubles;
  double x = t.diagonal[first] - wilkinson_shift(t, last);
  double z = t.beside[first];
  for (std::size_t k = first; k < last; ++k) {
    const GivensRotation rotation = make_rotation(x, z);
    if (k > first) t.beside[k - 1] = rotation.c * x - rotation.s * z;
    rotate_pair(rotation, k, t);
    with.rotate(rotation.c, rotation.s, vectors.n, vectors.row(k), vectors.row(k + 1));
    x = t.beside[k];
    z = -rotation.s * t.beside[k + 1];
    if (k + 1 < last) t.beside[k + 1] *= rotation.c;
  }
}

bool is_nothing(const Tridiagonal& t, std::size_t i) {
  const double size = std::abs(t.beside[i]);
  return size <= kNothing ||
         size <= kEpsilon * (std::abs(t.diagonal[i]) + std::abs(t.diagonal[i + 1]));
}

// Makes t diagonal. Returns whether it converged.
bool diagonalize(Tridiagonal& t, Square& vectors) {
  std::size_t last = vectors.n - 1, steps = 0;
  while (last > 0) {
    if (is_nothing(t, last - 1)) {
      t.beside[--last] = 0.0;
      continue;
    }
    if (++steps > kStepsPerValue * vectors.n) return false;
    std::size_t first = last - 1;
    while (first > 0 && !is_nothing(t, first - 1)) --first;
    if (first > 0) t.beside[first - 1] = 0.0;
    qr_step(first, last, t, vectors);
  }
  return true;
}

// Sorts by eigenvalue, the largest first, and gives each vector its unique sign.
SymmetricEigen put_in_order(const Tridiagonal& t, Square& vectors, int exponent) {
  const std::size_t n = vectors.n;
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&t](std::size_t a, std::size_t b) { return t.diagonal[a] > t.diagonal[b]; });
  SymmetricEigen result;
  for (const std::size_t i : order) {
    result.values.push_back(std::ldexp(t.diagonal[i], exponent));
    const double* const row = vectors.row(i);
    const double* const most = std::max_element(
        row, row + n, [](double a, double b) { return std::abs(a) < std::abs(b); });
    const double sign = *most < 0.0 ? -1.0 : 1.0;
    for (std::size_t j = 0; j < n; ++j) result.vectors.push_back(sign * row[j]);
  }
  return result;
}

std::optional<Error> refusal(std::size_t n, std::span<const double> matrix) {
  if (n < 1 || n > kMaxEigenSize || matrix.size() != n * n) {
    return Error{ErrorCode::kInvalidArgument,
                 "matrix of " + std::to_string(n) + " rows, " + std::to_string(matrix.size()) +
                     " entries: not square, or beyond " + std::to_string(kMaxEigenSize)};
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      const double size = std::abs(matrix[i * n + j]);
      if (size <= kMaxEigenEntry) continue;
      const std::string where = "entry " + std::to_string(i) + ", " + std::to_string(j) + ": ";
      if (std::isfinite(size)) return Error{ErrorCode::kUnsupported, where + "beyond 1e300"};
      return Error{ErrorCode::kCorrupt, where + "not finite"};
    }
  }
  return std::nullopt;
}

// The matrix scaled by a power of two, so that the largest entry is near 1 and no square overflows.
Square scaled_copy(std::size_t n, std::span<const double> matrix, int& exponent) {
  double most = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) most = std::max(most, std::abs(matrix[i * n + j]));
  }
  std::frexp(most, &exponent);
  Square a(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      a.row(i)[j] = a.row(j)[i] = std::ldexp(matrix[i * n + j], -exponent);
    }
  }
  return a;
}

}  // namespace

Result<SymmetricEigen> symmetric_eigen(std::size_t n, std::span<const double> matrix) {
  if (std::optional<Error> error = refusal(n, matrix)) return *std::move(error);
  int exponent = 0;
  Square a = scaled_copy(n, matrix, exponent);
  std::vector<double> factors(n);
  Tridiagonal t = make_tridiagonal(a, factors);
  Square vectors = multiply_reflections(a, factors);
  transpose(vectors);
  if (!diagonalize(t, vectors)) {
    return Error{ErrorCode::kUnsupported, "matrix: its eigenvalues do not converge"};
  }
  return put_in_order(t, vectors, exponent);
}

}  // namespace tqcache::codec
