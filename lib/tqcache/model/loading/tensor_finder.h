#pragma once
// model/loading/tensor_finder.h: takes the tensors of a model one after another, each checked against the
// shape that the configuration wants. Safe for untrusted input.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/result.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::model {

using Tensors = std::map<std::string, tensors::TensorView>;

// Keeps the first error until finish(), and gives empty things from then on.
//
// Errors: kCorrupt (missing, wrong shape), kUnsupported (type). The message names the tensor.
class TensorFinder {
 public:
  // `norm_offset` is added to the weights of norms. Requires: `tensors` outlives the finder.
  TensorFinder(const Tensors& tensors, float norm_offset)
      : tensors_(tensors), norm_offset_(norm_offset) {}

  bool has(const std::string& name) const { return tensors_.contains(name); }

  // A matrix. One of a single row may stand there as a vector.
  Matrix matrix(const std::string& name, std::int64_t n_rows, std::int64_t n_cols);
  // `count` matrices of one shape, one behind the other: [count, n_rows, n_cols].
  std::vector<Matrix> stack(const std::string& name, std::int64_t count, std::int64_t n_rows,
                            std::int64_t n_cols);
  AlignedFloats vector(const std::string& name, std::int64_t size);
  AlignedFloats norm(const std::string& name, std::int64_t size);
  // A vector if `wanted`, otherwise an empty one.
  AlignedFloats vector_if(bool wanted, const std::string& name, std::int64_t size);
  AlignedFloats norm_if(bool wanted, const std::string& name, std::int64_t size);
  // The kernels of a convolution of each channel by itself: [size, n_channels], whether the file
  // has [n_channels, size] or [n_channels, 1, size].
  AlignedFloats channel_kernels(const std::string& name, std::int64_t n_channels,
                                std::int64_t size);

  bool failed() const { return !first_error_.ok(); }
  // Tensors taken so far.
  const std::set<std::string>& taken() const { return taken_; }
  Result<void> finish() && { return std::move(first_error_); }

 private:
  using Shape = std::vector<std::uint64_t>;
  Matrix take(const std::string& name, const Shape& shape, const Shape& other_shape = {});

  const Tensors& tensors_;
  float norm_offset_;
  std::set<std::string> taken_;
  Result<void> first_error_;
};

// Rows [first, first + count) of a matrix. Requires: it has them, or is empty.
Matrix rows_of(const Matrix& matrix, std::int64_t first, std::int64_t count);

}  // namespace tqcache::model
