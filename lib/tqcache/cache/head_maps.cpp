#include "tqcache/cache/head_maps.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>

#include "tqcache/base/threads.h"
#include "tqcache/cache/token_pieces.h"
#include "tqcache/codec/dot.h"
#include "tqcache/codec/symmetric_eigen.h"

namespace tqcache::cache {
namespace {

constexpr double kUnit = 64;  // entries of an orthogonal matrix are within -1 and 1

// What is left of a row after those before, at least: less is no direction.
constexpr double kLeastLength = 1e-3;

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Modified Gram-Schmidt, row by row, in f64. False: a row depends on those before.
bool make_orthogonal(std::size_t dim, std::span<double> rows) {
  for (std::size_t k = 0; k < dim; ++k) {
    double* const row = rows.data() + k * dim;
    double sum = 0;
    for (std::size_t i = 0; i < dim; ++i) sum += row[i] * row[i];
    const double length = std::sqrt(sum);
    if (!(length >= kLeastLength)) return false;
    for (std::size_t i = 0; i < dim; ++i) row[i] /= length;
    for (std::size_t j = k + 1; j < dim; ++j) {
      double* const other = rows.data() + j * dim;
      double share = 0;
      for (std::size_t i = 0; i < dim; ++i) share += row[i] * other[i];
      for (std::size_t i = 0; i < dim; ++i) other[i] -= row[i] * share;
    }
  }
  return true;
}

// The lower half of sum += w w^T of the vectors w, made as long as each other.
void add_products(std::span<const float> rows, std::size_t dim, std::span<double> sum) {
  for (std::size_t at = 0; at < rows.size(); at += dim) {
    const std::span<const float> row = rows.subspan(at, dim);
    const double energy = static_cast<double>(codec::lane_dot(row, row));
    if (energy == 0) continue;
    for (std::size_t i = 0; i < dim; ++i) {
      const double factor = static_cast<double>(row[i]) / energy;
      double* const out = sum.data() + i * dim;
      for (std::size_t j = 0; j <= i; ++j) out[j] += factor * static_cast<double>(row[j]);
    }
  }
}

// Of one kv head in one block.
void add_block(const FullBlock& block, std::int64_t kv_head, std::int64_t n_sinks, const Mean& mean,
               std::span<double> sum) {
  const std::size_t dim = to_size(block.shape.head_dim);
  const std::int64_t first = sinks_in_block(n_sinks, block.index);
  const std::size_t n = to_size(kTokenBlock - first);
  if (n == 0) return;
  AlignedFloats rows(n * dim);
  load_f32(block.dtype, block.head(kv_head).data() + to_size(first) * dim * dtype_size(block.dtype),
           rows);
  BlockMean(mean, block.shape, block.index, kv_head).subtract_from(kv_head, first, rows);
  if (mean.kind == Centring::kPreRope) {
    turn_rows_back(*mean.rope, first, dim, rows);
    std::vector<double> turned(dim);
    for (std::size_t at = 0; at < rows.size(); at += dim) {
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(at), dim, turned.begin());
      mean.rope->turn_back_from(block.index * kTokenBlock, turned);
      for (std::size_t i = 0; i < dim; ++i) rows[at + i] = static_cast<float>(turned[i]);
    }
  }
  add_products(rows, dim, sum);
}

// The eigenvectors of one kv head, in whole 64ths; empty: they are not to be had.
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

template <class Turn>
void each_pair(const RopeTable& rope, std::int64_t first, std::size_t head_dim,
               std::span<float> rows, Turn turn) {
  const std::size_t half = to_size(rope.rope().n_dims / 2);
  std::int64_t place = first;
  for (float* x = rows.data(); x != rows.data() + rows.size(); x += head_dim, ++place) {
    const float* const cos = rope.cos(place).data();
    const float* const sin = rope.sin(place).data();
    for (std::size_t i = 0; i < half; ++i) turn(x[i], x[i + half], cos[i], sin[i]);
  }
}

}  // namespace

Result<HeadMaps> make_head_maps(HeadShape shape, std::vector<std::int8_t> entries) {
  const std::size_t dim = to_size(shape.head_dim);
  const std::size_t n_heads = to_size(shape.n_kv_heads);
  if (entries.size() != n_heads * dim * dim) {
    return Error{ErrorCode::kCorrupt, "maps of " + std::to_string(entries.size()) +
                                          " entries where " + std::to_string(n_heads * dim * dim) +
                                          " belong"};
  }
  HeadMaps maps{false, std::move(entries), AlignedFloats(n_heads * dim * dim),
                AlignedFloats(n_heads * dim * dim)};
  std::vector<double> rows(dim * dim);
  for (std::size_t head = 0; head < n_heads; ++head) {
    const std::size_t at = head * dim * dim;
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = maps.entries[at + i] / kUnit;
    if (!make_orthogonal(dim, rows)) {
      return Error{ErrorCode::kCorrupt,
                   "map of head " + std::to_string(head) + ": its rows depend on each other"};
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto value = static_cast<float>(rows[i]);
      maps.rows[at + i] = value;
      maps.columns[at + i % dim * dim + i / dim] = value;
    }
  }
  return maps;
}

HeadMaps fit_head_maps(std::span<const FullBlock> blocks, std::int64_t n_sinks, const Mean& mean,
                       unsigned n_threads) {
  const HeadShape shape = blocks.front().shape;
  std::vector<std::vector<std::int8_t>> of_heads(to_size(shape.n_kv_heads));
  parallel_for(of_heads.size(), n_threads, [&](std::size_t head) {
    of_heads[head] = fit_head(blocks, static_cast<std::int64_t>(head), n_sinks, mean);
  });
  std::vector<std::int8_t> all;
  for (const auto& entries : of_heads) all.insert(all.end(), entries.begin(), entries.end());
  auto maps = make_head_maps(shape, std::move(all));
  return maps ? std::move(maps).value() : HeadMaps{};
}

void turn_rows_back(const RopeTable& rope, std::int64_t first, std::size_t head_dim,
                    std::span<float> rows) {
  each_pair(rope, first, head_dim, rows, [](float& a, float& b, float cos, float sin) {
    const float x = a * cos + b * sin;
    b = b * cos - a * sin;
    a = x;
  });
}

void turn_rows(const RopeTable& rope, std::int64_t first, std::size_t head_dim,
               std::span<float> rows) {
  each_pair(rope, first, head_dim, rows, [](float& a, float& b, float cos, float sin) {
    const float x = a * cos - b * sin;
    b = b * cos + a * sin;
    a = x;
  });
}

}  // namespace tqcache::cache
