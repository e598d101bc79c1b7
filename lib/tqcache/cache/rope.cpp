#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "tqcache/cache/rope_angles.h"
#include "tqcache/description.h"

namespace tqcache::cache {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

double power(double x, std::int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, x *= x) {
    if (n % 2 != 0) result *= x;
  }
  return result;
}

// The x in (0, 1] with x^n = a, for a in (0, 1]: bisection until the ends are adjacent numbers.
double root(double a, std::int64_t n) {
  double low = 0, high = 1;
  while (true) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return high;
    (power(middle, n) < a ? low : high) = middle;
  }
}

// The angles of `position`, times `sign`.
struct Angles {
  Angles(std::span<const double> frequencies, std::int64_t position, double sign)
      : cos(frequencies.size()), sin(frequencies.size()) {
    for (std::size_t i = 0; i < cos.size(); ++i) {
      const Phasor at = phasor(static_cast<double>(position) * frequencies[i]);
      cos[i] = at.cos;
      sin[i] = sign * at.sin;
    }
  }

  std::vector<double> cos, sin;
};

// One row of pairs. Pointers that cannot overlap allow compilers to vectorize.
template <class Value>
void rotate_pairs(const double* __restrict cos, const double* __restrict sin, std::size_t n,
                  Value* __restrict low, Value* __restrict high) {
  for (std::size_t i = 0; i < n; ++i) {
    const double a = low[i];
    const double b = high[i];
    low[i] = static_cast<Value>(a * cos[i] - b * sin[i]);
    high[i] = static_cast<Value>(b * cos[i] + a * sin[i]);
  }
}

// Every row of x [n, head_dim].
template <class Value>
void rotate_exact(const Angles& by, std::size_t head_dim, std::span<Value> x) {
  const std::size_t half = by.cos.size();
  for (std::size_t row = 0; row < x.size(); row += head_dim) {
    rotate_pairs(by.cos.data(), by.sin.data(), half, &x[row], &x[row + half]);
  }
}

// One pair of components of n vectors.
void rotate_two_rows(double cos, double sin, std::size_t n, float* __restrict low,
                     float* __restrict high) {
  for (std::size_t i = 0; i < n; ++i) {
    const double a = static_cast<double>(low[i]);
    const double b = static_cast<double>(high[i]);
    low[i] = static_cast<float>(a * cos - b * sin);
    high[i] = static_cast<float>(b * cos + a * sin);
  }
}

void rotate_rounded(const Rope& rope, std::int64_t position, float sign, std::span<float> x) {
  if (!can_rotate(rope, static_cast<std::int64_t>(x.size()))) return;
  const std::vector<double> frequencies = rope_frequencies(rope);
  const std::size_t half = frequencies.size();
  for (std::size_t i = 0; i < half; ++i) {
    const Phasor at = phasor(static_cast<double>(position) * frequencies[i]);
    const float cos = static_cast<float>(at.cos);
    const float sin = sign * static_cast<float>(at.sin);
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cos - b * sin;
    x[i + half] = b * cos + a * sin;
  }
}

// The series of sine and cosine in angle^2, up to angle^17: for angles up to pi / 4 the remainder
// is below 3e-18.
constexpr int kTerms = 9;
struct Series {
  double cos[kTerms];
  double sin[kTerms];
};
constexpr Series taylor() {
  Series series{};
  double factor = 1;
  for (int i = 0; i < kTerms; ++i) {
    series.cos[i] = factor;
    series.sin[i] = factor / (2 * i + 1);
    factor /= -(2 * i + 1) * (2 * i + 2);
  }
  return series;
}
constexpr Series kSeries = taylor();

bool factors_fit(const Rope& rope) {
  constexpr float kLeast = 0x1p-20f, kMost = 0x1p20f;
  const auto fits = [](float factor) { return factor >= kLeast && factor <= kMost; };
  return rope.factors.empty() ||
         (std::ssize(rope.factors) == rope.n_dims / 2 && std::ranges::all_of(rope.factors, fits));
}

}  // namespace

bool can_rotate(const Rope& rope, std::int64_t head_dim) {
  return rope.style != RopeStyle::kNone && rope.n_dims >= 2 && rope.n_dims % 2 == 0 &&
         rope.n_dims <= head_dim && std::isfinite(rope.base) && rope.base >= 1 && factors_fit(rope);
}

void rotate(const Rope& rope, std::int64_t position, std::span<float> x) {
  rotate_rounded(rope, position, 1, x);
}

void rotate_back(const Rope& rope, std::int64_t position, std::span<float> x) {
  rotate_rounded(rope, position, -1, x);
}

Phasor phasor(double cycles) {
  // To the nearest quarter cycle: the rest is exact, and at most pi / 4.
  const double quarters = std::round(4 * cycles);
  const double angle = (cycles - quarters / 4) * kTwoPi;
  const double square = angle * angle;
  double cos = 0, sin = 0;
  for (int i = kTerms - 1; i >= 0; --i) {
    cos = cos * square + kSeries.cos[i];
    sin = sin * square + kSeries.sin[i];
  }
  sin *= angle;
  switch (static_cast<int>(quarters - 4 * std::floor(quarters / 4))) {
    case 0:
      return {cos, sin};
    case 1:
      return {-sin, cos};
    case 2:
      return {-cos, -sin};
    default:
      return {sin, -cos};
  }
}

std::vector<double> rope_frequencies(const Rope& rope) {
  const std::int64_t half = rope.n_dims / 2;
  const double ratio = root(1 / rope.base, half);
  std::vector<double> frequencies(static_cast<std::size_t>(half));
  double frequency = 1 / kTwoPi;
  for (double& each : frequencies) {
    each = frequency;
    frequency *= ratio;
  }
  for (std::size_t i = 0; i < rope.factors.size(); ++i) {
    frequencies[i] /= static_cast<double>(rope.factors[i]);
  }
  return frequencies;
}

RopeTable::RopeTable(const Rope& rope) : rope_(rope), frequencies_(rope_frequencies(rope)) {
  const std::size_t half = frequencies_.size();
  cos_.resize(static_cast<std::size_t>(kTokenBlock) * half);
  sin_.resize(cos_.size());
  for (std::size_t i = 0; i < cos_.size(); ++i) {
    const Phasor at = phasor(static_cast<double>(i / half) * frequencies_[i % half]);
    cos_[i] = static_cast<float>(at.cos);
    sin_[i] = static_cast<float>(at.sin);
  }
}

void RopeTable::rotate_to(std::int64_t position, std::int64_t head_dim, std::span<float> x) const {
  rotate_exact(Angles(frequencies_, position, 1), static_cast<std::size_t>(head_dim), x);
}

void RopeTable::rotate_columns_to(std::int64_t position, std::int64_t n, std::span<float> x) const {
  const Angles by(frequencies_, position, 1);
  const auto size = static_cast<std::size_t>(n);
  const std::size_t half = frequencies_.size();
  for (std::size_t i = 0; i < half; ++i) {
    rotate_two_rows(by.cos[i], by.sin[i], size, &x[i * size], &x[(half + i) * size]);
  }
}

void RopeTable::rotate_back_from(std::int64_t position, std::span<double> x) const {
  rotate_exact(Angles(frequencies_, position, -1), x.size(), x);
}

}  // namespace tqcache::cache
