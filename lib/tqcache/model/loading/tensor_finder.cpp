#include "tqcache/model/loading/tensor_finder.h"

#include <span>

#include "tqcache/base/integers.h"

namespace tqcache::model {
namespace {

constexpr const char* kReadable =
    "F32, F16, BF16; in rows of a multiple of 32 Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL; of 256 Q2_K "
    "to Q6_K";

std::string describe(std::span<const std::uint64_t> shape) {
  std::string text;
  for (const std::uint64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

Error error_at(ErrorCode code, const std::string& name, const std::string& fact) {
  return {code, "tensor \"" + name + "\": " + fact};
}

std::uint64_t to_unsigned(std::int64_t n) { return static_cast<std::uint64_t>(n); }

// A tensor of one of two shapes. Seen as a matrix, it has as many rows as all dimensions but the
// last make.
Result<Matrix> find(const Tensors& tensors, const std::string& name,
                    const std::vector<std::uint64_t>& shape,
                    const std::vector<std::uint64_t>& other_shape) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return error_at(ErrorCode::kCorrupt, name, "missing");
  const tensors::TensorView& tensor = found->second;
  if (tensor.shape != shape && (other_shape.empty() || tensor.shape != other_shape)) {
    return error_at(
        ErrorCode::kCorrupt, name,
        "shape " + describe(tensor.shape) + " where the configuration wants " + describe(shape));
  }
  const std::uint64_t n_cols = shape.back();
  const std::uint64_t bytes_a_row = row_bytes(tensor.type, n_cols);
  if (bytes_a_row == 0) {
    return error_at(ErrorCode::kUnsupported, name,
                    "type " + tensor.type_name + " in rows of " + std::to_string(n_cols) +
                        " values (readable: " + kReadable + ")");
  }
  const auto n_rows = element_count(std::span(shape).first(shape.size() - 1));
  if (!n_rows || checked_mul(*n_rows, bytes_a_row) != tensor.bytes.size()) {
    return error_at(ErrorCode::kCorrupt, name, std::to_string(tensor.bytes.size()) + " bytes");
  }
  return Matrix{tensor.type, static_cast<std::int64_t>(*n_rows), static_cast<std::int64_t>(n_cols),
                tensor.bytes};
}

}  // namespace

Matrix TensorFinder::take(const std::string& name, const Shape& shape, const Shape& other_shape) {
  if (failed()) return {};
  Result<Matrix> found = find(tensors_, name, shape, other_shape);
  if (!found) {
    first_error_ = std::move(found).error();
    return {};
  }
  taken_.insert(name);
  return *found;
}

Matrix TensorFinder::matrix(const std::string& name, std::int64_t n_rows, std::int64_t n_cols) {
  const Shape as_vector = n_rows == 1 ? Shape{to_unsigned(n_cols)} : Shape{};
  return take(name, {to_unsigned(n_rows), to_unsigned(n_cols)}, as_vector);
}

std::vector<Matrix> TensorFinder::stack(const std::string& name, std::int64_t count,
                                        std::int64_t n_rows, std::int64_t n_cols) {
  const Matrix all = take(name, {to_unsigned(count), to_unsigned(n_rows), to_unsigned(n_cols)});
  std::vector<Matrix> matrices;
  for (std::int64_t i = 0; i < count && !failed(); ++i) {
    matrices.push_back(rows_of(all, i * n_rows, n_rows));
  }
  return matrices;
}

AlignedFloats TensorFinder::vector(const std::string& name, std::int64_t size) {
  const Matrix row = take(name, {to_unsigned(size)});
  AlignedFloats values(static_cast<std::size_t>(row.n_cols));
  load_rows(row, 0, row.n_rows, values);
  return values;
}

AlignedFloats TensorFinder::norm(const std::string& name, std::int64_t size) {
  AlignedFloats weights = vector(name, size);
  if (norm_offset_ == 0) return weights;
  for (float& weight : weights) weight += norm_offset_;
  return weights;
}

AlignedFloats TensorFinder::vector_if(bool wanted, const std::string& name, std::int64_t size) {
  return wanted ? vector(name, size) : AlignedFloats();
}

AlignedFloats TensorFinder::norm_if(bool wanted, const std::string& name, std::int64_t size) {
  return wanted ? norm(name, size) : AlignedFloats();
}

AlignedFloats TensorFinder::channel_kernels(const std::string& name, std::int64_t n_channels,
                                            std::int64_t size) {
  const Shape shape = {to_unsigned(n_channels), to_unsigned(size)};
  const Matrix matrix = take(name, shape, {to_unsigned(n_channels), 1, to_unsigned(size)});
  AlignedFloats rows(static_cast<std::size_t>(matrix.n_rows * matrix.n_cols));
  load_rows(matrix, 0, matrix.n_rows, rows);
  AlignedFloats kernels(rows.size());
  for (std::int64_t i = 0; i < std::ssize(rows); ++i) {
    const std::int64_t to = i % size * n_channels + i / size;
    kernels[static_cast<std::size_t>(to)] = rows[static_cast<std::size_t>(i)];
  }
  return kernels;
}

Matrix rows_of(const Matrix& matrix, std::int64_t first, std::int64_t count) {
  if (matrix.n_rows == 0) return {};
  const std::uint64_t bytes = row_bytes(matrix.type, to_unsigned(matrix.n_cols));
  return {matrix.type, count, matrix.n_cols,
          matrix.bytes.subspan(static_cast<std::size_t>(to_unsigned(first) * bytes),
                               static_cast<std::size_t>(to_unsigned(count) * bytes))};
}

}  // namespace tqcache::model
