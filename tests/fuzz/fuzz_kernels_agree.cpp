// The kernels of this CPU against the scalar ones, for any codec, values, queries and weights that
// the input makes up: encoding, decoding and centering to the bit; scores and sums within what
// their arithmetic allows.
//
// tests/codec/kernels_test.cpp holds scores and sums against bounds that go for ordinary values, as
// a root mean square. No such bound holds for every input, so here each result has its own: the
// largest error that rounding can have added to these very terms.

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "fuzz/fuzz.h"
#include "fuzz/kernel_inputs.h"
#include "tqcache/base/half.h"
#include "tqcache/codec/head_codec.h"
#include "tqcache/codec/kernels/head_queries.h"
#include "tqcache/codec/kernels/kernels.h"

namespace tqcache {
namespace {

using codec::HeadCodec;
using codec::kBlockTokens;
using codec::Kernels;
using fuzz::Block;
using fuzz::CenterTables;
using fuzz::CodecChoice;
using fuzz::Codecs;
using fuzz::Input;
using fuzz::make_values;
using fuzz::require;
using fuzz::Vectors;

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(a, b, [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) ||
           (std::isnan(x) && std::isnan(y));
  });
}

// Encodes on every table; nullopt when all refuse. Channels may come in another order.
std::optional<Block> encode(const Codecs& codecs, const Vectors& vectors,
                            const codec::Center& center, codec::ChannelOrder order) {
  std::optional<Block> first;
  std::optional<Error> refusal;
  for (const HeadCodec& codec : codecs) {
    Block block{std::vector<std::byte>(codec.code_bytes()),
                std::vector<std::uint16_t>(codec.n_scale_rows() * kBlockTokens)};
    const auto encoded = codec.encode(vectors.rows, center, order, vectors.n_tokens,
                                      vectors.n_skipped, block.codes, block.scales);
    if (&codec == codecs.data()) {
      if (encoded) first = std::move(block);
      if (!encoded) refusal = encoded.error();
      continue;
    }
    require(encoded.ok() == first.has_value(), "all tables take the same vectors");
    if (!encoded) {
      require(encoded.error().message == refusal->message, "all tables refuse with the same words");
      continue;
    }
    require(block.codes == first->codes, "all tables give the same codes");
    require(block.scales == first->scales, "all tables give the same scales");
  }
  return first;
}

// Any bytes decode, and the tables agree on what to.
void check_decoding(const Codecs& codecs, const Block& block, codec::ChannelOrder order,
                    std::size_t n_tokens) {
  std::vector<float> expected;
  for (const HeadCodec& codec : codecs) {
    std::vector<float> values(n_tokens * codec.head_dim());
    codec.decode(block.view(), order, n_tokens, values);
    if (expected.empty()) expected = values;
    require(same_bits(values, expected), "all tables decode to the same values");
  }
}

void check_centering(const Codecs& codecs, const Vectors& vectors, const codec::Center& center) {
  if (center.mean == nullptr) return;
  const std::size_t head_dim = codecs[0].head_dim();
  std::vector<float> expected;
  for (const HeadCodec& codec : codecs) {
    std::vector<float> out(vectors.n_tokens * head_dim);
    codec.kernels().center_rows(vectors.rows, vectors.n_tokens, head_dim, center, 0, out.data());
    if (expected.empty()) expected = out;
    require(same_bits(out, expected), "all tables center to the same values");
  }
}

// A sum of products in f64, and what may be wrong with the same sum elsewhere.
struct Sum {
  double value = 0.0;
  double magnitude = 0.0;  // sum of the terms' magnitudes
  void add(double a, double b) {
    value += a * b;
    magnitude += std::fabs(a * b);
  }
};

// What f32 may do to a sum of n terms, each a product of three.
double rounding_bound(const Sum& sum, std::size_t n) {
  return (static_cast<double>(n) + 16.0) * 0x1p-23 * sum.magnitude + 1e-30;
}

bool is_moderate(double magnitude) { return magnitude < 1e30; }

void require_near(float got, double expected, double bound, std::string_view rule) {
  if (std::fabs(static_cast<double>(got) - expected) <= bound) return;
  std::fprintf(stderr, "got %.9g, expected %.9g within %.3g\n", static_cast<double>(got), expected,
               bound);
  require(false, rule);
}

// The codes of the first tokens, [n_tokens, dim], group by group: docs/reference/codec.md §5 has
// the order.
std::vector<std::uint8_t> unpack_tokens(const codec::PackedBlock& block) {
  const codec::BlockShape& shape = block.shape;
  const bool keys = shape.order == codec::BlockOrder::kKeys;
  const std::size_t dim = shape.dim(), lane_codes = shape.lane_codes();
  std::vector<std::uint8_t> codes(block.n_tokens * dim);
  std::vector<std::uint8_t> lines((lane_codes + 31) / 32 * 8 * codec::kLineBytes);
  for (std::size_t g = 0; g < shape.groups(); ++g) {
    if (keys && g * codec::kLanes >= block.n_tokens) break;
    codec::unpack_group(shape, block.codes + g * shape.group_bytes(), lines.data());
    for (std::size_t lane = 0; lane < codec::kLanes; ++lane) {
      for (std::size_t i = 0; i < lane_codes; ++i) {
        const std::size_t token = keys ? g * codec::kLanes + lane : i;
        const std::size_t component = keys ? i : g * codec::kLanes + lane;
        if (token >= block.n_tokens || component >= dim) break;
        codes[token * dim + component] = lines[i / 4 * codec::kLineBytes + 4 * lane + i % 4];
      }
    }
  }
  return codes;
}

// The values of a part's codes, in f64, with its scales in: [n_tokens, dim].
std::vector<double> coded_values(const codec::BlockCodec& part, const codec::PackedBlock& block) {
  const std::vector<std::uint8_t> codes = unpack_tokens(block);
  std::vector<double> values(codes.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(f16_to_f32(block.scales[i / part.shape().dim()])) *
                static_cast<double>(part.quantizer().centroids()[codes[i]]);
  }
  return values;
}

bool has_finite_scales(const codec::PackedBlock& block) {
  return std::all_of(block.scales, block.scales + block.n_tokens,
                     [](std::uint16_t scale) { return (scale & 0x7c00) != 0x7c00; });
}

// The most that a centroid is off in any of the forms that fast kernels have it in.
double table_error(const codec::CodeTables& tables, std::span<const float> centroids) {
  double most = 0.5 * static_cast<double>(std::max(tables.step, tables.narrow_step));
  most = std::max(most, 0.5 * static_cast<double>(tables.remainder_step));
  if (tables.piece_step == 0.0f) return 1.01 * most;
  const std::size_t n = centroids.size() / 16;
  for (std::size_t i = 0; i < centroids.size(); ++i) {
    const std::size_t h = i / n;
    const int number = 256 * tables.piece_high[h] + tables.piece_low[h] +
                       tables.piece_slope[h] * static_cast<int>(i % n);
    const double value = static_cast<double>(tables.piece_step) * number;
    most = std::max(most, std::fabs(value - static_cast<double>(centroids[i])));
  }
  return 1.01 * most;
}

double largest_of(std::span<const float> values) {
  double largest = 0.0;
  for (const float x : values) largest = std::max(largest, std::fabs(static_cast<double>(x)));
  return largest;
}

// The most that rounding a query to bytes or words moves a component.
double query_error(const codec::QueryRows& rows, std::span<const float> query) {
  const double step = rows.n_levels == 2 ? largest_of(query) / 18000.0 : largest_of(query) / 95.0;
  return 0.51 * step;
}

constexpr float kUntouched = -12345.0f;

struct ScoreCheck {
  const codec::BlockCodec& part;
  const codec::PackedBlock& block;
  const codec::QueryRows& rows;
  const std::vector<double>& keys;  // [n_tokens, dim]
  std::span<const float> got;       // [n_queries, n_tokens + 1]
};

void check_scores(const ScoreCheck& check, bool is_fast) {
  const std::size_t dim = check.part.shape().dim(), n = check.block.n_tokens;
  const double off = table_error(check.part.tables(), check.part.quantizer().centroids());
  for (std::size_t q = 0; q < check.rows.n_queries; ++q) {
    const std::span query(check.rows.values + q * check.rows.stride, dim);
    require(check.got[q * (n + 1) + n] == kUntouched, "no score behind the last token");
    const double query_off = query_error(check.rows, query);
    const double query_sum = std::accumulate(
        query.begin(), query.end(), 0.0,
        [](double sum, float x) { return sum + std::fabs(static_cast<double>(x)); });
    if (!is_moderate(query_sum)) continue;
    for (std::size_t t = 0; t < n; ++t) {
      Sum sum;
      double key_sum = 0.0;
      for (std::size_t i = 0; i < dim; ++i) {
        sum.add(static_cast<double>(query[i]), check.keys[t * dim + i]);
        key_sum += std::fabs(check.keys[t * dim + i]);
      }
      const double scale = std::fabs(static_cast<double>(f16_to_f32(check.block.scales[t])));
      double bound = rounding_bound(sum, dim) + 1e-37 * scale;
      if (is_fast) {
        bound +=
            query_off * key_sum + scale * off * (query_sum + query_off * static_cast<double>(dim));
      }
      require_near(check.got[q * (n + 1) + t], sum.value, bound, "a score is what f64 gives");
    }
  }
}

void check_all_scores(const Codecs& codecs, std::size_t part, const Block& block, Input& input,
                      std::size_t n_tokens) {
  const codec::PackedBlock view = codecs[0].view(block.view(), part, n_tokens);
  if (!has_finite_scales(view)) return;
  const codec::BlockCodec& scalar = codecs[0].part(part);
  const std::size_t dim = scalar.shape().dim();
  const std::size_t n_queries = 1 + input.below(input.below(8) == 0 ? 5 : 2);
  codec::QueryGroup queries;
  queries.set_for_packed(scalar.quantizer(), make_values(input, n_queries, dim));
  const codec::QueryRows rows = queries.rows();
  const std::vector<double> keys = coded_values(scalar, view);
  const HeadCodec& codec = codecs.back();
  const Kernels& kernels = codec.kernels();
  for (const bool is_fast : {false, true}) {
    const auto score = is_fast ? kernels.score_fast : kernels.score_exact;
    if (is_fast && score == kernels.score_exact) continue;
    std::vector<float> scores(n_queries * (n_tokens + 1), kUntouched);
    score(codec.view(block.view(), part, n_tokens), codec.part(part).tables(), rows,
          {scores.data(), n_tokens + 1});
    check_scores({scalar, view, rows, keys, scores}, is_fast);
  }
}

struct SumCheck {
  const codec::BlockCodec& part;
  const codec::PackedBlock& block;
  const codec::WeightRows& weights;
  const std::vector<double>& values;  // [n_tokens, dim]
  std::span<const float> got;         // [n_queries, dim + 1], which began with 1
};

// Weights times scales: the root of their sum of squares, and the sum of their magnitudes.
struct WeightSize {
  double root = 0.0;
  double sum = 0.0;
};

WeightSize measure(const SumCheck& check, std::size_t query) {
  WeightSize size;
  for (std::size_t t = 0; t < check.block.n_tokens; ++t) {
    const double weight =
        static_cast<double>(check.weights.values[query * check.weights.stride + t]) *
        static_cast<double>(f16_to_f32(check.block.scales[t]));
    size.root += weight * weight;
    size.sum += std::fabs(weight);
  }
  size.root = std::sqrt(size.root);
  return size;
}

void check_sums(const SumCheck& check, bool is_fast) {
  const std::size_t dim = check.part.shape().dim(), n = check.block.n_tokens;
  const std::span<const float> centroids = check.part.quantizer().centroids();
  const double off = table_error(check.part.tables(), centroids);
  const double largest = largest_of(centroids) + off;
  for (std::size_t q = 0; q < check.weights.n_queries; ++q) {
    require(check.got[q * (dim + 1) + dim] == 1.0f, "no sum behind the last component");
    const WeightSize size = measure(check, q);
    if (!is_moderate(size.sum)) continue;
    // A step of the weights' bytes is a part in 900 of the root; each is off by less than one.
    const double weights_off = static_cast<double>(n) * size.root / 900.0;
    for (std::size_t i = 0; i < dim; ++i) {
      Sum sum;
      sum.add(1.0, 1.0);
      for (std::size_t t = 0; t < n; ++t) {
        sum.add(static_cast<double>(check.weights.values[q * check.weights.stride + t]),
                check.values[t * dim + i]);
      }
      double bound = rounding_bound(sum, n) + 1e-37 * static_cast<double>(n);
      if (is_fast) bound += 1.01 * weights_off * largest + off * size.sum;
      require_near(check.got[q * (dim + 1) + i], sum.value, bound, "a sum is what f64 gives");
    }
  }
}

void check_all_sums(const Codecs& codecs, std::size_t part, const Block& block, Input& input,
                    std::size_t n_tokens) {
  const codec::PackedBlock view = codecs[0].view(block.view(), part, n_tokens);
  if (!has_finite_scales(view)) return;
  const codec::BlockCodec& scalar = codecs[0].part(part);
  const std::size_t dim = scalar.shape().dim();
  const std::size_t n_queries = 1 + input.below(input.below(8) == 0 ? 3 : 2);
  std::vector<float> weights = make_values(input, n_queries, n_tokens);
  if (!input.flag()) {
    for (float& weight : weights) weight = std::fabs(weight);
  }
  const codec::WeightRows rows{n_queries, n_tokens, weights.data()};
  const std::vector<double> values = coded_values(scalar, view);
  const HeadCodec& codec = codecs.back();
  const Kernels& kernels = codec.kernels();
  for (const bool is_fast : {false, true}) {
    const auto accumulate = is_fast ? kernels.accumulate_fast : kernels.accumulate_exact;
    if (is_fast && accumulate == kernels.accumulate_exact) continue;
    std::vector<float> sums(n_queries * (dim + 1), 1.0f);
    accumulate(codec.view(block.view(), part, n_tokens), codec.part(part).tables(), rows,
               {sums.data(), dim + 1});
    check_sums({scalar, view, rows, values, sums}, is_fast);
  }
}

void run(Input input) {
  const CodecChoice choice = fuzz::choose_codec(input);
  const Codecs codecs = fuzz::codecs_of(choice, input.below(codec::all_kernels().size()));
  if (codecs.empty()) return;
  const std::size_t head_dim = codecs[0].head_dim();
  std::vector<std::uint16_t> order;
  if (codecs[0].outlier_channels() > 0) {
    order.resize(head_dim);
    std::iota(order.begin(), order.end(), std::uint16_t{0});
    const auto middle = static_cast<std::ptrdiff_t>(input.below(head_dim));
    std::rotate(order.begin(), order.begin() + middle, order.end());
  }
  std::optional<Block> block;
  std::size_t n_tokens = 0;
  if (input.below(4) != 0) {  // encoding takes as long as all else
    block = fuzz::any_block(codecs[0], input);
    n_tokens = 1 + input.below(18);
  } else {
    const Vectors vectors = fuzz::make_vectors(input, head_dim);
    const CenterTables center = fuzz::make_center(input, head_dim);
    check_centering(codecs, vectors, center.center);
    block = encode(codecs, vectors, center.center, order);
    n_tokens = vectors.n_tokens;
  }
  if (!block) return;
  check_decoding(codecs, *block, order, n_tokens);
  const std::size_t part = input.below(codecs[0].n_parts());
  if (choice.keys) {
    check_all_scores(codecs, part, *block, input, n_tokens);
  } else {
    check_all_sums(codecs, part, *block, input, n_tokens);
  }
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tqcache::run(tqcache::fuzz::Input(tqcache::fuzz::view_of(data, size)));
  return 0;
}
