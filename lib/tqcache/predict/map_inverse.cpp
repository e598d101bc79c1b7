#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/predict/predictor.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)
#define TQC_PREDICT_X86
#endif

namespace tqcache::predict {
namespace {

// Rows and columns are eliminated in groups, so that most of the work is products of matrices.
constexpr std::size_t kGroup = 32;

// to -= left * right, products in ascending order of the inner index, each rounded: the same sums
// with every instruction set. Shapes: left [n_rows, depth], right [depth, n_cols]; rows of all are
// `stride` apart.
struct Subtraction {
  const double* left = nullptr;
  const double* right = nullptr;
  double* to = nullptr;
  std::size_t n_rows = 0, depth = 0, n_cols = 0, stride = 0;
};

// In a struct: GCC ignores these attributes of an alias template.
template <std::size_t kLanes>
struct Doubles {
  typedef double Vector
      __attribute__((vector_size(kLanes * sizeof(double)), aligned(alignof(double)), may_alias));
  static_assert(sizeof(Vector) == kLanes * sizeof(double));
};

// A tile of sums stays in registers. Always inline: it takes the instruction set of its caller.
template <std::size_t kLanes, std::size_t kRows, std::size_t kVectors>
[[gnu::always_inline]] inline void subtract_tile(const Subtraction& task, std::size_t row,
                                                 std::size_t col) {
  using Vector = typename Doubles<kLanes>::Vector;
  Vector sums[kRows][kVectors];
  double* const to = task.to + row * task.stride + col;
  TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    TQC_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = *reinterpret_cast<const Vector*>(to + r * task.stride + v * kLanes);
    }
  }
  const double* left = task.left + row * task.stride;
  const double* right = task.right + col;
  for (std::size_t k = 0; k < task.depth; ++k, right += task.stride) {
    Vector factors[kVectors];
    TQC_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      factors[v] = *reinterpret_cast<const Vector*>(right + v * kLanes);
    }
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const double x = left[r * task.stride + k];
      TQC_UNROLL for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] -= factors[v] * x;
    }
  }
  TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    TQC_UNROLL for (std::size_t v = 0; v < kVectors; ++v) {
      *reinterpret_cast<Vector*>(to + r * task.stride + v * kLanes) = sums[r][v];
    }
  }
}

template <std::size_t kLanes, std::size_t kVectors>
[[gnu::always_inline]] inline void subtract_columns(const Subtraction& task, std::size_t col) {
  std::size_t row = 0;
  for (; row + 4 <= task.n_rows; row += 4) subtract_tile<kLanes, 4, kVectors>(task, row, col);
  for (; row < task.n_rows; ++row) subtract_tile<kLanes, 1, kVectors>(task, row, col);
}

template <std::size_t kLanes>
[[gnu::always_inline]] inline void subtract_with(const Subtraction& task) {
  std::size_t col = 0;
  for (; col + 2 * kLanes <= task.n_cols; col += 2 * kLanes) subtract_columns<kLanes, 2>(task, col);
  for (; col < task.n_cols; ++col) subtract_columns<1, 1>(task, col);
}

#ifdef TQC_PREDICT_X86
__attribute__((target("avx2"))) void subtract_avx2(const Subtraction& task) {
  subtract_with<4>(task);
}
__attribute__((target("avx512f"))) void subtract_avx512(const Subtraction& task) {
  subtract_with<8>(task);
}
#endif

void subtract(const Subtraction& task, codec::Isa isa) {
#ifdef TQC_PREDICT_X86
  if (isa == codec::Isa::kAvx512) return subtract_avx512(task);
  if (isa == codec::Isa::kAvx2) return subtract_avx2(task);
#endif
  static_cast<void>(isa);
  subtract_with<2>(task);
}

class Inversion {
 public:
  Inversion(std::size_t n, std::vector<double>& a) : n_(n), a_(a), order_(n) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }

  // P a = L U, in place, with pivots of columns. False if a pivot is 0.
  bool factorize() {
    for (std::size_t first = 0; first < n_; first += kGroup) {
      const std::size_t end = std::min(first + kGroup, n_);
      if (!factorize_columns(first, end)) return false;
      for (std::size_t row = first + 1; row < end; ++row) {
        for (std::size_t k = first; k < row; ++k) {
          with_.doubles.add_multiple(at(a_, k, end), -*at(a_, row, k), n_ - end, at(a_, row, end));
        }
      }
      subtract({at(a_, end, first), at(a_, first, end), at(a_, end, end), n_ - end, end - first,
                n_ - end, n_},
               with_.isa);
    }
    return true;
  }

  // U^-1 L^-1 P. Requires: factorize().
  void solve(std::vector<double>& inverse) const {
    inverse.assign(n_ * n_, 0);
    for (std::size_t row = 0; row < n_; ++row) inverse[row * n_ + order_[row]] = 1;
    for (std::size_t first = 0; first < n_; first += kGroup) {
      const std::size_t end = std::min(first + kGroup, n_);
      for (std::size_t row = first + 1; row < end; ++row) {
        for (std::size_t k = first; k < row; ++k) add(inverse, k, -a_[row * n_ + k], row);
      }
      subtract({a_.data() + end * n_ + first, at(inverse, first, 0), at(inverse, end, 0), n_ - end,
                end - first, n_, n_},
               with_.isa);
    }
    for (std::size_t end = n_; end > 0;) {
      const std::size_t first = (end - 1) / kGroup * kGroup;
      for (std::size_t row = end; row-- > first;) {
        for (std::size_t k = row + 1; k < end; ++k) add(inverse, k, -a_[row * n_ + k], row);
        const double pivot = a_[row * n_ + row];
        for (std::size_t i = 0; i < n_; ++i) inverse[row * n_ + i] /= pivot;
      }
      subtract(
          {a_.data() + first, at(inverse, first, 0), at(inverse, 0, 0), first, end - first, n_, n_},
          with_.isa);
      end = first;
    }
  }

 private:
  double* at(std::vector<double>& matrix, std::size_t row, std::size_t col) const {
    return matrix.data() + row * n_ + col;
  }
  void add(std::vector<double>& matrix, std::size_t from, double factor, std::size_t to) const {
    with_.doubles.add_multiple(at(matrix, from, 0), factor, n_, at(matrix, to, 0));
  }

  bool factorize_columns(std::size_t first, std::size_t end) {
    for (std::size_t col = first; col < end; ++col) {
      std::size_t pivot = col;
      for (std::size_t row = col + 1; row < n_; ++row) {
        if (std::abs(*at(a_, row, col)) > std::abs(*at(a_, pivot, col))) pivot = row;
      }
      if (!(std::abs(*at(a_, pivot, col)) > 1e-30)) return false;
      if (pivot != col) {
        std::swap_ranges(at(a_, pivot, 0), at(a_, pivot, 0) + n_, at(a_, col, 0));
        std::swap(order_[pivot], order_[col]);
      }
      for (std::size_t row = col + 1; row < n_; ++row) {
        const double factor = *at(a_, row, col) /= *at(a_, col, col);
        with_.doubles.add_multiple(at(a_, col, col + 1), -factor, end - col - 1,
                                   at(a_, row, col + 1));
      }
    }
    return true;
  }

  const codec::Kernels& with_ = codec::best_kernels();
  std::size_t n_;
  std::vector<double>& a_;
  std::vector<std::size_t> order_;  // row i of P a was row order_[i] of a
};

}  // namespace

Result<void> Predictor::prepare_encoding(unsigned n_threads) const {
  const std::lock_guard lock(mutex_);
  if (!inverses_.empty()) return {};
  const std::size_t dim = to_size(profile_.channels());
  // All inverses, and two matrices of doubles for each thread.
  const std::uint64_t square = std::uint64_t{dim} * dim;
  TQC_TRY(memory_.check(
      square * (sizeof(float) * tensors_.size() + 2 * sizeof(double) * thread_count(n_threads)),
      "the inverse maps of the profile"));
  std::vector<AlignedFloats> inverses(tensors_.size());
  TQC_TRY(parallel_try(tensors_.size(), n_threads, [&](std::size_t i) -> Result<void> {
    const TensorProfile& tensor = profile_.tensors[i];
    std::vector<double> map(dim * dim), inverse;
    for (std::size_t row = 0; row < dim; ++row) {
      for (std::size_t j = 0; j < dim; ++j) {
        map[row * dim + j] = double{tensor.map_scale[j]} * tensor.map[row * dim + j];
      }
    }
    Inversion inversion(dim, map);
    if (!inversion.factorize()) return corrupt("a map of the profile has no inverse");
    inversion.solve(inverse);
    inverses[i].assign(inverse.begin(), inverse.end());
    return {};
  }));
  inverses_ = std::move(inverses);
  return {};
}

}  // namespace tqcache::predict
