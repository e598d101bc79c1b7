#include "tqcache/cache/head_transforms.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>
#include <string>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/codec/dense_matrix.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/kernels/row_transform.h"
#include "tqcache/codec/rotation.h"
#include "tqcache/codec/trellis/symmetric_eigen.h"

namespace tqcache::cache {
namespace {

constexpr double kUnit = 64;  // entries of an orthogonal matrix are within -1 and 1

// The least length of a row without its projections on earlier rows; less is numerical noise.
constexpr double kLeastLength = 1e-3;

// Scales all vectors to length 1; zero vectors stay zero.
void normalize(std::span<float> rows, std::size_t dim) {
  for (std::size_t at = 0; at < rows.size(); at += dim) {
    const std::span<float> row = rows.subspan(at, dim);
    const float energy = codec::lane_dot(row, row);
    if (energy == 0) continue;
    const float factor = 1 / std::sqrt(energy);
    for (float& value : row) value *= factor;
  }
}

// The rows of one kv head in one block that transforms are applied to, from token `first` on.
AlignedFloats rows_to_transform(const FullBlock& block, std::int64_t kv_head, std::int64_t first,
                                const Mean& mean) {
  const std::size_t dim = to_size(block.shape.head_dim);
  const std::size_t stride = dim * dtype_size(block.dtype);
  const std::size_t n = to_size(kTokenBlock - first);
  AlignedFloats rows(n * dim);
  const BlockMean of_block(mean, block.shape, block.index, kv_head);
  codec::best_kernels().center_rows(
      {block.dtype, block.head(kv_head).data() + to_size(first) * stride, stride}, n, dim,
      of_block.center(kv_head), to_size(first), rows.data());
  if (mean.kind != Centering::kPreRope) return rows;
  rotate_rows_back(*mean.rope, first, dim, rows);
  mean.rope->rotate_to(-block.index * kTokenBlock, block.shape.head_dim, rows);
  return rows;
}

// sum += w w^T for the vectors w of one kv head in one block, scaled to equal length; f32 within
// the block. Only the lower half is valid.
void add_block(const FullBlock& block, std::int64_t kv_head, std::int64_t n_sinks, const Mean& mean,
               std::span<double> sum) {
  const std::int64_t first = uncoded_tokens(block, n_sinks);
  if (first == kTokenBlock) return;
  const std::size_t dim = to_size(block.shape.head_dim);
  AlignedFloats rows = rows_to_transform(block, kv_head, first, mean);
  normalize(rows, dim);
  AlignedFloats products(dim * dim);
  codec::multiply_columns(rows, rows, dim, products);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(products[i]);
}

// The eigenvectors of one kv head, in whole 64ths; empty if they cannot be computed.
std::vector<std::int8_t> fit_head(std::span<const FullBlock> blocks, std::int64_t kv_head,
                                  std::int64_t n_sinks, const Mean& mean) {
  const std::size_t dim = to_size(blocks.front().shape.head_dim);
  std::vector<double> sum(dim * dim);
  for (const FullBlock& block : blocks) add_block(block, kv_head, n_sinks, mean, sum);
  const auto found = codec::symmetric_eigen(dim, sum);
  if (!found) return {};
  std::vector<std::int8_t> entries(dim * dim);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const double entry = std::round(found->vectors[i] * kUnit);
    entries[i] = static_cast<std::int8_t>(std::clamp(entry, -kUnit, kUnit));
  }
  return entries;
}

void transpose(std::span<const float> matrix, std::size_t dim, std::span<float> out) {
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) out[i * dim + j] = matrix[j * dim + i];
  }
}

// The transform of one kv head, column by column. nullopt: a row depends on the rows before it.
std::optional<AlignedFloats> orthogonal(std::size_t dim, std::span<const std::int8_t> entries) {
  std::vector<double> columns(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) columns[i * dim + j] = entries[j * dim + i] / kUnit;
  }
  return codec::orthogonal_columns(dim, columns, kLeastLength);
}

// Undoes the rotation of the component pairs of one row by the angles of its token.
void rotate_pairs_back(const float* __restrict cos, const float* __restrict sin, std::size_t n,
                       float* __restrict low, float* __restrict high) {
  for (std::size_t i = 0; i < n; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a * cos[i] + b * sin[i];
    high[i] = b * cos[i] - a * sin[i];
  }
}

}  // namespace

Result<HeadTransforms> make_head_transforms(HeadShape shape, std::vector<std::int8_t> entries) {
  const std::size_t dim = to_size(shape.head_dim);
  const std::size_t n_heads = to_size(shape.n_kv_heads);
  if (entries.size() != n_heads * dim * dim) {
    return Error{ErrorCode::kCorrupt, "maps of " + std::to_string(entries.size()) +
                                          " entries where " + std::to_string(n_heads * dim * dim) +
                                          " belong"};
  }
  HeadTransforms maps{false, std::move(entries), AlignedFloats(n_heads * dim * dim),
                      AlignedFloats(n_heads * dim * dim)};
  for (std::size_t head = 0; head < n_heads; ++head) {
    const std::size_t at = head * dim * dim;
    const auto columns = orthogonal(dim, std::span(maps.entries).subspan(at, dim * dim));
    if (!columns) {
      return Error{ErrorCode::kCorrupt,
                   "map of head " + std::to_string(head) + ": its rows depend on each other"};
    }
    std::ranges::copy(*columns, maps.columns.begin() + static_cast<std::ptrdiff_t>(at));
    transpose(*columns, dim, std::span(maps.rows).subspan(at, dim * dim));
  }
  return maps;
}

HeadTransforms fit_head_transforms(std::span<const FullBlock> blocks, std::int64_t n_sinks,
                                   const Mean& mean, unsigned n_threads) {
  const HeadShape shape = blocks.front().shape;
  std::vector<std::vector<std::int8_t>> of_heads(to_size(shape.n_kv_heads));
  parallel_for(of_heads.size(), n_threads, [&](std::size_t head) {
    of_heads[head] = fit_head(blocks, static_cast<std::int64_t>(head), n_sinks, mean);
  });
  std::vector<std::int8_t> all;
  for (const auto& entries : of_heads) all.insert(all.end(), entries.begin(), entries.end());
  auto maps = make_head_transforms(shape, std::move(all));
  return maps ? std::move(maps).value() : HeadTransforms{};
}

void rotate_rows_back(const RopeTable& rope, std::int64_t first, std::size_t head_dim,
                      std::span<float> rows) {
  const std::size_t half = to_size(rope.rope().n_dims / 2);
  std::int64_t place = first;
  for (std::size_t at = 0; at < rows.size(); at += head_dim, ++place) {
    rotate_pairs_back(rope.cos(place).data(), rope.sin(place).data(), half, &rows[at],
                      &rows[at + half]);
  }
}

}  // namespace tqcache::cache
