#pragma once
// model/linear/products.h: products of some tokens' rows with matrices, by the way that suits their
// number.

#include <cstdint>
#include <initializer_list>
#include <span>

#include "tqcache/model/linear/matrix.h"
#include "tqcache/model/linear/workers.h"

namespace tqcache::model {

// One token goes through multiply_vector, several go through the BLAS.
// Shapes: rows [n, n_cols] at least, n_cols being that of all matrices.
inline void multiply_rows(std::int64_t n, std::span<const float> rows,
                          std::initializer_list<Product> products, const Workers& workers) {
  const std::int64_t n_cols = products.begin()->matrix->n_cols;
  const std::span<const float> used = rows.first(static_cast<std::size_t>(n * n_cols));
  if (n == 1) return multiply_vector(products, used, workers);
  for (const Product& product : products) multiply_matrix(product, n, used, workers);
}

}  // namespace tqcache::model
