#include "tqcache/model/linear/plain_products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "support/gaussian.h"

namespace tqcache::model {
namespace plain_products_test {

// Sizes below, at and beyond those of a tile (8 x 32) and of a panel (256 terms).
struct Size {
  std::int64_t m, n, k;
};
constexpr Size kSizes[] = {{1, 1, 1}, {3, 5, 7}, {8, 32, 256}, {9, 33, 257}, {17, 70, 600}};

constexpr std::int64_t kMore = 3;  // rows lie apart from one another
constexpr float kNobodys = 77;

struct Factors {
  Size size;
  std::vector<float> a;  // [m, k + 3]
  std::vector<float> b;  // [n, k + 3], or [k, n + 3]
  std::vector<float> y;  // [m, n + 3]
};

Factors make_factors(Size size, bool is_transposed) {
  test::GaussianSource gaussian(11);
  const auto [m, n, k] = size;
  const std::int64_t b_values = is_transposed ? n * (k + kMore) : k * (n + kMore);
  return {size, gaussian.vector(static_cast<std::size_t>(m * (k + kMore))),
          gaussian.vector(static_cast<std::size_t>(b_values)),
          std::vector<float>(static_cast<std::size_t>(m * (n + kMore)), kNobodys)};
}

std::vector<float> multiply(codec::Isa isa, bool is_transposed, float factor, Factors f) {
  const auto [m, n, k] = f.size;
  if (is_transposed) {
    plain_multiply_transposed(isa, m, n, k, factor, {f.a.data(), k + kMore},
                              {f.b.data(), k + kMore}, {f.y.data(), n + kMore});
  } else {
    plain_multiply_add(isa, m, n, k, {f.a.data(), k + kMore}, {f.b.data(), n + kMore},
                       {f.y.data(), n + kMore});
  }
  return f.y;
}

// The same in double, value by value, with the sum of the magnitudes of its terms.
void expect_product(const Factors& f, bool is_transposed, double factor,
                    const std::vector<float>& y) {
  const auto [m, n, k] = f.size;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n + kMore; ++j) {
      const float got = y[static_cast<std::size_t>(i * (n + kMore) + j)];
      if (j >= n) {
        EXPECT_EQ(got, kNobodys) << "beyond row " << i;
        continue;
      }
      double sum = is_transposed ? 0 : kNobodys, size = std::abs(sum);
      for (std::int64_t t = 0; t < k; ++t) {
        const std::int64_t in_b = is_transposed ? j * (k + kMore) + t : t * (n + kMore) + j;
        const double term = double{f.a[static_cast<std::size_t>(i * (k + kMore) + t)]} *
                            f.b[static_cast<std::size_t>(in_b)];
        sum += term;
        size += std::abs(term);
      }
      EXPECT_NEAR(got, factor * sum, 1e-6 * (1 + size)) << i << ", " << j;
    }
  }
}

TEST(PlainProducts, AreThoseOfDoublesWithinRounding) {
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    for (const Size& size : kSizes) {
      SCOPED_TRACE(std::string(kernels->name) + ", " + std::to_string(size.k) + " terms");
      const Factors transposed = make_factors(size, true), added = make_factors(size, false);
      expect_product(transposed, true, 0.5, multiply(kernels->isa, true, 0.5f, transposed));
      expect_product(added, false, 1, multiply(kernels->isa, false, 1, added));
    }
  }
}

TEST(PlainProducts, EveryInstructionSetGivesTheSameBits) {
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    for (const Size& size : kSizes) {
      for (const bool is_transposed : {true, false}) {
        const Factors factors = make_factors(size, is_transposed);
        EXPECT_EQ(multiply(kernels->isa, is_transposed, 0.3f, factors),
                  multiply(codec::Isa::kScalar, is_transposed, 0.3f, factors))
            << kernels->name << ", " << size.k << " terms";
      }
    }
  }
}

}  // namespace plain_products_test
}  // namespace tqcache::model
