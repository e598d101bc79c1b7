#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <vector>

#include "tqcache/cache/cache.h"
#include "tqcache/interop/llama/llama_rows.h"

namespace tqcache::interop {
namespace {

constexpr std::int64_t kSmallestRotation = 64;

// Sums and differences of all components, H without its factor, in natural order.
void add_up(std::span<double> x) {
  for (std::size_t step = 1; step < x.size(); step *= 2) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if ((i & step) != 0) continue;
      const double first = x[i];
      const double second = x[i + step];
      x[i] = first + second;
      x[i + step] = first - second;
    }
  }
}

using HeadVector = std::array<std::byte, cache::kMaxHeadDim * sizeof(float)>;

HeadVector copy_of(ByteView x) {
  assert(x.size() <= sizeof(HeadVector));
  HeadVector copy;
  std::memcpy(copy.data(), x.data(), x.size());
  return copy;
}

// Calls move(i, j) for each component i of pairs side by side and its place j in half-split order.
template <class Move>
void for_each_pair_place(std::size_t n_rot, Move move) {
  const std::size_t half = n_rot / 2;
  for (std::size_t i = 0; i < half; ++i) {
    move(2 * i, i);
    move(2 * i + 1, half + i);
  }
}

}  // namespace

void hadamard(std::int64_t size, std::span<float> x) {
  const auto n = static_cast<std::size_t>(size);
  assert(std::has_single_bit(n) && x.size() % n == 0);
  // llama.cpp multiplies with a matrix of this f32 number and its negative.
  const double factor = 1.0f / std::sqrt(static_cast<float>(size));
  std::vector<double> sums(n);
  for (std::size_t at = 0; at < x.size(); at += n) {
    for (std::size_t i = 0; i < n; ++i) sums[i] = x[at + i];
    add_up(sums);
    for (std::size_t i = 0; i < n; ++i) x[at + i] = static_cast<float>(sums[i] * factor);
  }
}

std::int64_t key_rotation_size(std::int64_t head_dim) {
  if (head_dim % kSmallestRotation != 0) return 0;
  return head_dim & -head_dim;  // the lowest bit that is set
}

std::int64_t value_rotation_size(std::int64_t head_dim) {
  return head_dim % kSmallestRotation == 0 ? kSmallestRotation : 0;
}

void to_half_split(std::int64_t n_rot, std::size_t size, std::span<std::byte> x) {
  const auto n = static_cast<std::size_t>(n_rot);
  const HeadVector pairs = copy_of(x.first(n * size));
  for_each_pair_place(n, [&](std::size_t from, std::size_t to) {
    std::memcpy(x.data() + to * size, pairs.data() + from * size, size);
  });
}

void to_interleaved(std::int64_t n_rot, std::size_t size, std::span<std::byte> x) {
  const auto n = static_cast<std::size_t>(n_rot);
  const HeadVector halves = copy_of(x.first(n * size));
  for_each_pair_place(n, [&](std::size_t to, std::size_t from) {
    std::memcpy(x.data() + to * size, halves.data() + from * size, size);
  });
}

}  // namespace tqcache::interop
