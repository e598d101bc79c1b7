#include "tqcache/codec/kernels/code_tables.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

#include "tqcache/codec/kernels/lanes.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kEntries = 256;

// The frequency of a centroid, not normalized: the density over its cell, summed over slices of a
// quarter of a component's standard deviation. All cells of a good codebook except the outermost
// are narrower.
double frequency(int head_dim, std::span<const float> centroids, std::size_t i) {
  const double c = centroids[i];
  const double low = i > 0 ? (c + centroids[i - 1]) / 2 : -1.0;
  const double high = i + 1 < centroids.size() ? (c + centroids[i + 1]) / 2 : 1.0;
  const double n_slices = std::ceil((high - low) * std::sqrt(head_dim) * 4.0);
  const double width = (high - low) / n_slices;
  double sum = 0.0;
  for (double slice = 0.5; slice < n_slices; slice += 1.0) {
    const double x = low + slice * width;
    sum += std::pow(std::max(0.0, 1.0 - x * x), (head_dim - 3) / 2.0) * width;
  }
  return sum;
}

// The codebook and the weight of each entry's error.
struct Weighted {
  std::span<const float> centroids;
  std::array<double, kEntries> weights{};
  double energy = 0.0;
  float largest = 0.0f;
};

Weighted weigh(int head_dim, std::span<const float> centroids) {
  Weighted book{.centroids = centroids};
  for (std::size_t i = 0; i < centroids.size(); ++i) {
    book.weights[i] = frequency(head_dim, centroids, i);
    book.energy += book.weights[i] * centroids[i] * centroids[i];
    book.largest = std::max(book.largest, std::fabs(centroids[i]));
  }
  return book;
}

// The root mean square error of rounding to multiples of `step`, relative to the centroids.
double rounding_error(const Weighted& book, double step) {
  // A double of this size has no fraction, so adding it rounds to the nearest integer, ties to
  // even, as std::nearbyint() does. That is a call of a function, and this runs 131,072 times for 8
  // bits.
  constexpr double kNoFraction = 0x1.8p52;
  double sum = 0.0;
  for (std::size_t i = 0; i < book.centroids.size(); ++i) {
    const double c = book.centroids[i];
    const double error = (c / step + kNoFraction - kNoFraction) * step - c;
    sum += book.weights[i] * error * error;
  }
  return book.energy > 0.0 ? std::sqrt(sum / book.energy) : 0.0;
}

// The best step at which the largest centroid takes at most `most` steps. The search ends at half
// of `most`, because coarser steps cannot win.
double best_step(const Weighted& book, int most) {
  constexpr int kTries = 512;
  const double finest = static_cast<double>(book.largest) / most;
  double best = finest;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    const double step = finest * (1.0 + static_cast<double>(i) / kTries);
    const double error = rounding_error(book, step);
    if (error < least) least = error, best = step;
  }
  return best;
}

int steps(float centroid, double step) {
  return static_cast<int>(std::lround(static_cast<double>(centroid) / step));
}

void fill_one_byte(const Weighted& book, CodeTables& tables) {
  const double step = best_step(book, 127);
  tables.n_levels = 1;
  tables.step = static_cast<float>(step);
  for (std::size_t i = 0; i < kEntries; ++i) {
    const float c = book.centroids[i % book.centroids.size()];
    tables.bytes[0][i] = static_cast<std::uint8_t>(128 + steps(c, step));
  }
}

void fill_two_bytes(const Weighted& book, CodeTables& tables) {
  constexpr int kMost = 127 * 256 + 127;
  const double step = static_cast<double>(book.largest) / kMost;
  tables.n_levels = 2;
  tables.step = static_cast<float>(step);
  for (std::size_t i = 0; i < kEntries; ++i) {
    const int n = steps(book.centroids[i % book.centroids.size()], step);
    const int high = (n + 128) >> 8;  // so that the remainder is in [-128, 127]
    tables.bytes[0][i] = static_cast<std::uint8_t>(128 + high);
    tables.bytes[1][i] = static_cast<std::uint8_t>(128 + n - 256 * high);
  }
}

double largest_remainder(std::span<const float> centroids, double slope) {
  double largest = 0.0;
  for (std::size_t i = 0; i < centroids.size(); ++i) {
    const double line = slope * (static_cast<double>(i) - 128.0);
    largest = std::max(largest, std::fabs(static_cast<double>(centroids[i]) - line));
  }
  return largest;
}

// The slope with the smallest maximum remainder, which is a convex function of the slope.
double best_slope(std::span<const float> centroids) {
  constexpr int kRounds = 80;
  double low = 0.0, high = 1.0;
  for (int round = 0; round < kRounds; ++round) {
    const double a = low + (high - low) / 3.0, b = high - (high - low) / 3.0;
    if (largest_remainder(centroids, a) < largest_remainder(centroids, b)) {
      high = b;
    } else {
      low = a;
    }
  }
  return (low + high) / 2.0;
}

void fill_remainders(const Weighted& book, CodeTables& tables) {
  const double slope = best_slope(book.centroids);
  tables.linear_step = static_cast<float>(slope);
  const double step = largest_remainder(book.centroids, slope) / 127.0;
  tables.remainder_step = static_cast<float>(step);
  for (std::size_t i = 0; i < kEntries; ++i) {
    const double line = slope * (static_cast<double>(i) - 128.0);
    const double rest = static_cast<double>(book.centroids[i]) - line;
    const int n = step > 0.0 ? static_cast<int>(std::lround(rest / step)) : 0;
    tables.remainder[i] = static_cast<std::uint8_t>(128 + n);
  }
}

void fill_narrow(const Weighted& book, CodeTables& tables) {
  const double step = best_step(book, CodeTables::kNarrowOffset);
  tables.narrow_step = static_cast<float>(step);
  for (std::size_t i = 0; i < std::size(tables.narrow); ++i) {
    const float c = book.centroids[i % book.centroids.size()];
    tables.narrow[i] = static_cast<std::uint8_t>(CodeTables::kNarrowOffset + steps(c, step));
  }
}

// A straight line through the centroids of one piece: base + slope * l.
struct Line {
  double base = 0.0;
  double slope = 0.0;
};

constexpr std::size_t kPieces = 16;

// Weighted means over the centroids of a piece, which has n values.
template <class Value>
double mean_of_piece(const Weighted& book, std::size_t piece, std::size_t n, Value value) {
  double sum = 0.0, weights = 0.0;
  for (std::size_t l = 0; l < n; ++l) {
    // Entries with weight 0 must not leave a piece without weight.
    const double weight = book.weights[piece * n + l] + std::numeric_limits<double>::min();
    sum += weight * value(l);
    weights += weight;
  }
  return sum / weights;
}

// The line with the least weighted squares.
Line fit_piece(const Weighted& book, std::size_t piece, std::size_t n) {
  const auto c = [&](std::size_t l) { return static_cast<double>(book.centroids[piece * n + l]); };
  const auto at = [](std::size_t l) { return static_cast<double>(l); };
  const double middle = mean_of_piece(book, piece, n, at), mean = mean_of_piece(book, piece, n, c);
  const double spread = mean_of_piece(
      book, piece, n, [&](std::size_t l) { return (at(l) - middle) * (at(l) - middle); });
  const double along = mean_of_piece(
      book, piece, n, [&](std::size_t l) { return (at(l) - middle) * (c(l) - mean); });
  const double slope = spread > 0.0 ? along / spread : 0.0;
  return {mean - slope * middle, slope};
}

// The step at which slopes fit a byte and the ends of all pieces stay within kMostTimesInt16.
double piece_step(const std::array<Line, kPieces>& lines, std::size_t n) {
  double steepest = 0.0, largest = 0.0;
  for (const Line& line : lines) {
    const double end = line.base + line.slope * static_cast<double>(n - 1);
    steepest = std::max(steepest, std::fabs(line.slope));
    largest = std::max({largest, std::fabs(line.base), std::fabs(end)});
  }
  // Rounding adds at most 1/2 for the base, and 1/2 for each of up to 15 slopes.
  return std::max(steepest / 127.0, largest / (kMostTimesInt16 - 8));
}

void fill_pieces(const Weighted& book, CodeTables& tables) {
  const std::size_t n = book.centroids.size() / kPieces;
  std::array<Line, kPieces> lines;
  for (std::size_t h = 0; h < kPieces; ++h) lines[h] = fit_piece(book, h, n);
  const double step = piece_step(lines, n);
  double error = 0.0;
  for (std::size_t h = 0; h < kPieces; ++h) {
    const auto slope = static_cast<int>(std::lround(lines[h].slope / step));
    const auto rest = [&](std::size_t l) {
      return book.centroids[h * n + l] / step - slope * static_cast<double>(l);
    };
    const auto base = static_cast<int>(std::lround(mean_of_piece(book, h, n, rest)));
    tables.piece_slope[h] = static_cast<std::int8_t>(slope);
    tables.piece_high[h] = static_cast<std::int8_t>(base >> 8);
    tables.piece_low[h] = static_cast<std::uint8_t>(base & 0xff);
    for (std::size_t l = 0; l < n; ++l) {
      const double off = (rest(l) - base) * step;
      error += book.weights[h * n + l] * off * off;
    }
  }
  const bool is_precise = std::sqrt(error / book.energy) <= CodeTables::kPieceError;
  tables.piece_step = is_precise ? static_cast<float>(step) : 0.0f;
}

}  // namespace

CodeTables make_code_tables(int head_dim, int bits, std::span<const float> centroids) {
  assert(centroids.size() == std::size_t{1} << bits);
  CodeTables tables;
  tables.bits = bits;
  for (std::size_t i = 0; i < kEntries; ++i) tables.values[i] = centroids[i % centroids.size()];
  const Weighted book = weigh(head_dim, centroids);
  if (book.largest < std::numeric_limits<float>::min()) return tables;  // the only centroid is 0
  if (rounding_error(book, best_step(book, 127)) <= CodeTables::kByteError) {
    fill_one_byte(book, tables);
  } else {
    fill_two_bytes(book, tables);
  }
  if (bits == 8) fill_remainders(book, tables);
  if (bits <= CodeTables::kMaxNarrowBits) fill_narrow(book, tables);
  if (bits >= CodeTables::kMinPieceBits) fill_pieces(book, tables);
  return tables;
}

}  // namespace tqcache::codec
