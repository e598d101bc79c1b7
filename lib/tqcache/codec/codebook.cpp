#include "tqcache/codec/codebook.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace tqcache::codec {
namespace {

// Gauss-Legendre rule of 10 points on [-1, 1]: positive abscissae and their weights.
// Source: Abramowitz and Stegun, table 25.4.
constexpr std::array<double, 5> kAbscissae = {0.14887433898163121, 0.43339539412924719,
                                              0.67940956829902441, 0.86506336668898451,
                                              0.97390652851717172};
constexpr std::array<double, 5> kWeights = {0.29552422471475287, 0.26926671930999636,
                                            0.21908636251598204, 0.14945134915058059,
                                            0.066671344308688138};

// (1 - x^2)^(twice_exponent / 2), by squaring.
double sphere_density(double x, int twice_exponent) {
  const double base = (1.0 - x) * (1.0 + x);
  double power = base;
  double density = twice_exponent % 2 == 0 ? 1.0 : std::sqrt(base);
  for (int exponent = twice_exponent / 2; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) density *= power;
    power *= power;
  }
  return density;
}

// Moments of the (not normalized) density over a cell of the codebook.
struct Moments {
  double mass = 0.0;
  double first = 0.0;   // integral of x
  double spread = 0.0;  // integral of (x - center)^2

  void add(double x, double more, double center) {
    mass += more;
    first += more * x;
    spread += more * (x - center) * (x - center);
  }
};

// Calls visit(point, weight) for the points of the rule on [middle - half, middle + half].
template <class Visit>
void visit_panel(double middle, double half, Visit visit) {
  for (std::size_t i = 0; i < kAbscissae.size(); ++i) {
    visit(middle - half * kAbscissae[i], half * kWeights[i]);
    visit(middle + half * kAbscissae[i], half * kWeights[i]);
  }
}

// A panel that ends at 1 (or at -1, with sign -1). For an even head_dim the density has a square
// root there, which polynomials approximate badly; the substitution t = sqrt(1 - x), dx = 2 t dt
// removes it.
void add_end_panel(double width, double sign, double center, int head_dim, Moments& sum) {
  const double half = std::sqrt(width) / 2.0;
  visit_panel(half, half, [&](double t, double weight) {
    const double x = sign * (1.0 - t * t);
    sum.add(x, 2.0 * t * weight * sphere_density(x, head_dim - 3), center);
  });
}

// Panels no wider than one standard deviation: the rule is then exact to rounding.
Moments integrate(double low, double high, double center, int head_dim) {
  constexpr int kSmoothHeadDim = 16;  // above this the square root has no measurable effect
  const double deviations = (high - low) * std::sqrt(static_cast<double>(head_dim));
  const int panels = std::max(1, static_cast<int>(std::ceil(deviations)));
  const double half = (high - low) / (2.0 * panels);
  const bool has_ends = head_dim < kSmoothHeadDim;
  Moments sum;
  for (int panel = 0; panel < panels; ++panel) {
    if (has_ends && low == -1.0 && panel == 0) {
      add_end_panel(2.0 * half, -1.0, center, head_dim, sum);
    } else if (has_ends && high == 1.0 && panel + 1 == panels) {
      add_end_panel(2.0 * half, 1.0, center, head_dim, sum);
    } else {
      visit_panel(low + half * (2 * panel + 1), half, [&](double x, double weight) {
        sum.add(x, weight * sphere_density(x, head_dim - 3), center);
      });
    }
  }
  return sum;
}

// For many centroids the best density of centroids is f^(1/3) (Bennett; Panter and Dite), so Newton
// starts at its quantiles. The exponent is rounded down to a multiple of 1/2, which is near enough.
std::vector<double> companding_start(int head_dim, std::size_t count) {
  constexpr int kSteps = 4096;
  const int twice_exponent = (head_dim - 3) / 3;
  std::vector<double> cumulated(kSteps + 1, 0.0);
  for (std::size_t i = 0; i < kSteps; ++i) {
    const double x = (static_cast<double>(i) + 0.5) / kSteps;
    cumulated[i + 1] = cumulated[i] + sphere_density(x, twice_exponent);
  }
  std::vector<double> start(count);
  std::size_t step = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double share = (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    const double wanted = share * cumulated.back();
    while (cumulated[step + 1] < wanted) ++step;
    const double within = (wanted - cumulated[step]) / (cumulated[step + 1] - cumulated[step]);
    start[i] = (static_cast<double>(step) + within) / kSteps;
  }
  return start;
}

// One row of the tridiagonal system of a Newton step.
struct Row {
  double left = 0.0, diagonal = 1.0, right = 0.0;
  double residual = 0.0;  // mean of the cell minus the centroid that defines the cell
};

// The condition is c[i] = mean(t[i], t[i+1]), where t[i] is the midpoint of c[i-1] and c[i], t[0] =
// 0 and the last t = 1. The derivative of the mean by an end is f(end) |mean - end| / mass.
std::vector<Row> stationarity(int head_dim, std::span<const double> centroids) {
  const std::size_t count = centroids.size();
  std::vector<Row> rows(count);
  double low = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    const double high = last ? 1.0 : (centroids[i] + centroids[i + 1]) / 2.0;
    const Moments cell = integrate(low, high, centroids[i], head_dim);
    const double mean = cell.first / cell.mass;
    Row& row = rows[i];
    row.residual = mean - centroids[i];
    if (i > 0) row.left = -0.5 * sphere_density(low, head_dim - 3) * (mean - low) / cell.mass;
    if (!last) row.right = -0.5 * sphere_density(high, head_dim - 3) * (high - mean) / cell.mass;
    row.diagonal = 1.0 + row.left + row.right;
    low = high;
  }
  return rows;
}

// Thomas' algorithm. No pivoting: the density is log-concave, so the mean of a cell moves less than
// its ends, and the matrix is diagonally dominant.
std::vector<double> newton_step(std::vector<Row> rows) {
  const std::size_t count = rows.size();
  for (std::size_t i = 1; i < count; ++i) {
    const double factor = rows[i].left / rows[i - 1].diagonal;
    rows[i].diagonal -= factor * rows[i - 1].right;
    rows[i].residual -= factor * rows[i - 1].residual;
  }
  std::vector<double> step(count);
  for (std::size_t i = count; i-- > 0;) {
    const double known = i + 1 < count ? rows[i].right * step[i + 1] : 0.0;
    step[i] = (rows[i].residual - known) / rows[i].diagonal;
  }
  return step;
}

bool ascends_inside(std::span<const double> values) {
  double previous = 0.0;
  for (const double value : values) {
    if (!(value > previous && value < 1.0)) return false;
    previous = value;
  }
  return true;
}

// Adds the step, halved until the centroids stay in order.
std::vector<double> stepped(std::span<const double> centroids, std::span<const double> step) {
  std::vector<double> moved(centroids.size());
  for (double factor = 1.0;; factor /= 2.0) {
    for (std::size_t i = 0; i < moved.size(); ++i) moved[i] = centroids[i] + factor * step[i];
    if (ascends_inside(moved)) return moved;
  }
}

}  // namespace

std::vector<double> solve_lloyd_max(int head_dim, int bits) {
  // Newton doubles the correct digits, so after a step this small only rounding errors are left.
  constexpr double kSmallStep = 1e-10;
  constexpr int kMaxSteps = 64;  // measured: at most 5 for every head_dim and width
  std::vector<double> centroids = companding_start(head_dim, std::size_t{1} << (bits - 1));
  for (int i = 0; i < kMaxSteps; ++i) {
    const std::vector<double> step = newton_step(stationarity(head_dim, centroids));
    centroids = stepped(centroids, step);
    const auto is_small = [](double move) { return std::abs(move) < kSmallStep; };
    if (std::all_of(step.begin(), step.end(), is_small)) break;
  }
  return centroids;
}

std::vector<float> lloyd_max_centroids(int head_dim, int bits) {
  const std::vector<double> positive = solve_lloyd_max(head_dim, bits);
  const std::size_t half = positive.size();
  std::vector<float> centroids(2 * half);
  for (std::size_t i = 0; i < half; ++i) {
    centroids[half + i] = static_cast<float>(positive[i]);
    centroids[half - 1 - i] = -centroids[half + i];
  }
  return centroids;
}

std::vector<float> residual_centroids(int head_dim, TransformKind rotation) {
  const double n = head_dim;
  const double value = rotation == TransformKind::kGaussian
                           ? std::sqrt(std::numbers::pi / 2.0) / n
                           : 1.0 / (n * solve_lloyd_max(head_dim, 1).front());
  return {-static_cast<float>(value), static_cast<float>(value)};
}

std::vector<float> linear_centroids(int bits) {
  const int last = (1 << bits) - 1;
  std::vector<float> centroids;
  for (int i = 0; i <= last; ++i) {
    centroids.push_back(static_cast<float>(2 * i - last) / static_cast<float>(last));
  }
  return centroids;
}

std::vector<float> decision_boundaries(std::span<const float> centroids) {
  assert(!centroids.empty());
  std::vector<float> boundaries(centroids.size() - 1);
  for (std::size_t i = 0; i < boundaries.size(); ++i) {
    boundaries[i] = (centroids[i] + centroids[i + 1]) * 0.5f;
  }
  return boundaries;
}

double expected_distortion(int head_dim, std::span<const float> centroids) {
  double mass = 0.0;
  double spread = 0.0;
  double low = -1.0;
  for (std::size_t i = 0; i < centroids.size(); ++i) {
    const double centroid = centroids[i];
    const double high = i + 1 == centroids.size() ? 1.0 : (centroid + centroids[i + 1]) / 2.0;
    const Moments cell = integrate(low, high, centroid, head_dim);
    mass += cell.mass;
    spread += cell.spread;
    low = high;
  }
  return head_dim * spread / mass;
}

}  // namespace tqcache::codec
