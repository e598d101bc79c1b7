// Products where no OpenBLAS can be loaded. CMakeLists.txt names a file that does not exist.

#include <gtest/gtest.h>

#include <vector>

#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/model/linear/blas.h"
#include "tqcache/model/linear/plain_products.h"

namespace tqcache::model {
namespace no_blas_test {

TEST(NoBlas, ItsProductsAreOurs) {
  ASSERT_TRUE(load_blas().ok());
  EXPECT_NE(why_no_blas(), "");
  EXPECT_EQ(blas_core(), "");
  // [2, 3] and [2, 3]: small whole numbers, so that every order of the sums gives the same bits.
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {7, 8, 9, 1, 0, 2};
  std::vector<float> y(4, 77.0f);
  multiply_transposed(2, 2, 3, 2.0f, {a.data(), 3}, {b.data(), 3}, {y.data(), 2});
  EXPECT_EQ(y, (std::vector<float>{100, 14, 244, 32}));
  // [2, 2] times [2, 3], added.
  std::vector<float> sum(6, 1.0f);
  multiply_add(2, 3, 2, {a.data(), 3}, {b.data(), 3}, {sum.data(), 3});
  EXPECT_EQ(sum, (std::vector<float>{10, 9, 14, 34, 33, 47}));
}

}  // namespace no_blas_test
}  // namespace tqcache::model
