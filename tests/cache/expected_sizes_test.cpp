// bench/expected_sizes.csv: what each preset takes and costs, as README and benchmarks tell it.
//
// head_dim 128, isotropic random vectors, nothing centered. A preset whose bytes change has become
// another preset; one whose error changes has a broken codec.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "cache/random_cache.h"
#include "tqcache/quantize.h"

namespace tqcache::test {
namespace expected_sizes_test {

constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kTokens = 8 * cache::kTokenBlock;

struct Row {
  std::string bytes_per_block;  // of one kv head, keys and values of 256 tokens
  std::string bits_per_value;
  double key_error = 0;  // mean of |x - x~|^2 over mean of |x|^2
  double value_error = 0;
};

std::map<std::string, Row> expected_rows() {
  std::ifstream file(TQCACHE_BENCH "/expected_sizes.csv");
  std::map<std::string, Row> rows;
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(line, "preset,bytes_per_block,bits_per_value,key_error,value_error");
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string name, key_error, value_error;
    Row row;
    std::getline(fields, name, ',');
    std::getline(fields, row.bytes_per_block, ',');
    std::getline(fields, row.bits_per_value, ',');
    std::getline(fields, key_error, ',');
    std::getline(fields, value_error, ',');
    row.key_error = std::stod(key_error);
    row.value_error = std::stod(value_error);
    rows[name] = row;
  }
  return rows;
}

cache::Cache isotropic_cache() {
  const cache::LayerPlan layer{{1, kHeadDim}, Dtype::kF32};
  cache::Cache cache = cache::make_cache({}, {&layer, 1}).value();
  std::mt19937 random(20);
  std::normal_distribution<float> normal;
  for (std::int64_t first = 0; first < kTokens; first += cache::kTokenBlock) {
    for (cache::Tensor* tensor : {&attention(cache, 0).k, &attention(cache, 0).v}) {
      std::vector<float> rows(static_cast<std::size_t>(cache::kTokenBlock * kHeadDim));
      for (float& x : rows) x = normal(random);
      cache::append(*tensor, layer.shape, first, rows);
    }
    cache.tokens.resize(static_cast<std::size_t>(first + cache::kTokenBlock));
  }
  return cache;
}

double error_of(const cache::Tensor& dense, const cache::Tensor& packed) {
  const cache::HeadShape shape{1, kHeadDim};
  const std::vector<float> a = values_of(dense, shape, kTokens);
  const std::vector<float> b = values_of(packed, shape, kTokens);
  double error = 0, length = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    length += double{a[i]} * a[i];
  }
  return error / length;
}

std::size_t bytes_of(const cache::Tensor& tensor) {
  const auto* turbo = std::get_if<cache::TurboTensor>(&tensor);
  return turbo ? turbo->codec.packed_bytes(0)
               : cache::dense_block(tensor, 0).size() / 2;  // as f16, which caches are
}

Row measure(std::string_view preset) {
  cache::ConvertOptions options = cache::preset(preset).value();
  options.keys.center = options.values.center = cache::Centering::kNone;
  options.keys.n_sinks = options.values.n_sinks = 0;
  const cache::Cache dense = isotropic_cache();
  const cache::Cache packed = cache::convert(isotropic_cache(), options).value();
  const std::size_t bytes = bytes_of(attention(packed, 0).k) + bytes_of(attention(packed, 0).v);
  char bits[32];
  std::snprintf(bits, sizeof(bits), "%.4f",
                static_cast<double>(bytes) * 8 / (2 * cache::kTokenBlock * kHeadDim));
  return {std::to_string(bytes), bits, error_of(attention(dense, 0).k, attention(packed, 0).k),
          error_of(attention(dense, 0).v, attention(packed, 0).v)};
}

TEST(ExpectedSizes, HoldForEveryPreset) {
  const std::map<std::string, Row> expected = expected_rows();
  const std::vector<std::string_view> names = cache::preset_names();
  EXPECT_EQ(expected.size(), names.size());
  for (const std::string_view name : names) {
    const Row row = measure(name);
    char line[160];
    std::snprintf(line, sizeof(line), "%s,%s,%s,%.4g,%.4g", std::string(name).c_str(),
                  row.bytes_per_block.c_str(), row.bits_per_value.c_str(), row.key_error,
                  row.value_error);
    SCOPED_TRACE(line);  // the row as it would have to stand in the file
    const auto found = expected.find(std::string(name));
    if (found == expected.end()) {
      ADD_FAILURE() << "no row";
      continue;
    }
    EXPECT_EQ(row.bytes_per_block, found->second.bytes_per_block);
    EXPECT_EQ(row.bits_per_value, found->second.bits_per_value);
    EXPECT_NEAR(row.key_error, found->second.key_error, 0.02 * found->second.key_error);
    EXPECT_NEAR(row.value_error, found->second.value_error, 0.02 * found->second.value_error);
  }
}

}  // namespace expected_sizes_test
}  // namespace tqcache::test
