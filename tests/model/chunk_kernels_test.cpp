#include "tqcache/model/linear/chunk_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/gaussian.h"
#include "support/random_blocks.h"
#include "tqcache/base/processor.h"
#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/block_loops.h"
#include "tqcache/model/linear/product_kernels.h"
#include "tqcache/tensors/block_types.h"

namespace tqcache::model {
namespace chunk_kernels_test {

using tensors::BlockType;

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(float)) == 0;
}

// Memory of exactly its size, so that a sanitizer sees a read past the end.
struct Panel {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<float> minima;
  PanelView view;

  Panel(const ChunkKernels& kernels, std::size_t type, const std::byte* rows, std::size_t n_rows,
        std::size_t n_groups) {
    const RunShape shape = run_shapes()[type];
    const std::size_t n_scales = n_groups * kGroup / shape.run * kPanelRows;
    codes.assign(n_groups * kGroup * kPanelRows, 77);
    scales.assign(n_scales, 77);
    minima.assign(shape.has_minimum ? n_scales : 0, 77);
    kernels.pack[type](rows, n_rows, n_groups, codes.data(), scales.data(), minima.data());
    view = {codes.data(), scales.data(), shape.has_minimum ? minima.data() : nullptr,
            shape.run,    n_groups,      n_rows};
  }
};

QuantizedChunk quantize(const std::vector<float>& x, std::size_t n, std::size_t n_cols) {
  QuantizedChunk chunk(n, n_cols);
  for (std::size_t i = 0; i < n; ++i) chunk.set(i, x.data() + i * n_cols, kScalarBlocks);
  return chunk;
}

std::vector<float> multiply(const ChunkKernels& kernels, const Panel& panel, const ChunkView& x,
                            std::size_t stride) {
  std::vector<float> y((x.n - 1) * stride + panel.view.n_rows, 5.0f);
  kernels.multiply(panel.view, x, y.data(), stride);
  return y;
}

// Value i of a group of a quantized vector, where model/linear/block_kernels.h says that it is.
int code_of(const ChunkView& x, std::size_t row, std::size_t group, std::size_t i) {
  const std::size_t part = i / 16 * 2 + i % 2;
  return x.codes[row * x.row_codes + ((group / 4 * 4 + part) * 4 + group % 4) * 8 + i % 16 / 2];
}

// The rule of model/linear/chunk_kernels.h, told anew.
template <class Layout>
float product_as_stated(const std::byte* row, const ChunkView& x, std::size_t i,
                        std::size_t n_groups) {
  constexpr std::size_t kGroups = Layout::kValues / kGroup, kPerGroup = kGroup / Layout::kRun;
  float y = 0;
  for (std::size_t g = 0; g < n_groups; ++g) {
    const std::byte* const block = row + g / kGroups * Layout::kBytes;
    std::uint8_t code[kGroup];
    Layout::codes(block, g % kGroups, code);
    const auto scales = Layout::scales(block);
    for (std::size_t run = 0; run < kPerGroup; ++run) {
      std::int64_t products = 0, sum = 0;
      for (std::size_t l = run * Layout::kRun; l < (run + 1) * Layout::kRun; ++l) {
        products += (code[l] - Layout::kOffset) * code_of(x, i, g, l);
        sum += code_of(x, i, g, l);
      }
      const std::size_t n = g % kGroups * kPerGroup + run;
      float term = static_cast<float>(products) * scales.scale[n];
      if (Layout::kHasMinimum) term += static_cast<float>(-sum) * scales.minimum[n];
      y += term * x.scales[i * x.row_groups + g];
    }
  }
  return y;
}

template <class... Layout>
void expect_as_stated(tensors::layouts::List<Layout...>) {
  constexpr std::size_t kCols = 768, kGroups = kCols / kGroup, kVectors = 11;
  const QuantizedChunk chunk =
      quantize(test::GaussianSource(7).vector(kVectors * kCols), kVectors, kCols);
  test::SplitMix64 random(8);
  std::size_t type = 0;
  const auto compare = [&](auto product) {
    const BlockType& block = tensors::block_types()[type];
    const std::size_t row_bytes = kCols / block.block_values * block.block_bytes;
    Bytes rows(kPanelRows * row_bytes);
    test::fill_blocks(block, rows, random);
    const Panel panel(kScalarChunks, type, rows.data(), kPanelRows, kGroups);
    const std::vector<float> y = multiply(kScalarChunks, panel, chunk.view(), kPanelRows);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::byte* const row = rows.data() + i % kPanelRows * row_bytes;
      EXPECT_EQ(y[i], product(row, chunk.view(), i / kPanelRows, kGroups)) << type << ", " << i;
    }
    ++type;
  };
  (compare(product_as_stated<Layout>), ...);
}

TEST(ChunkKernels, AddUpInTheStatedOrder) { expect_as_stated(tensors::layouts::All{}); }

struct ChunkSet {
  const char* name;
  const ChunkKernels* kernels;
  bool is_there;  // this CPU has the instructions
};

// Those that best_kernels() would not take are tested too.
std::vector<ChunkSet> chunk_sets() {
  [[maybe_unused]] const auto has = [](codec::Isa isa) { return kernels_of(isa) != nullptr; };
#if defined(TQCACHE_X86)
  return {{"avx2", &kAvx2Chunks, has(codec::Isa::kAvx2)},
          {"avx2_vnni", &kAvx2VnniChunks, find_processor().avx_vnni},
          {"avx512", &kAvx512Chunks, has(codec::Isa::kAvx512)}};
#elif defined(TQCACHE_NEON)
  return {{"neon", &kNeonChunks, true}, {"neon_dot", &kNeonDotChunks, has_dot_products()}};
#else
  return {};
#endif
}

class FastChunks : public testing::TestWithParam<ChunkSet> {
 protected:
  void SetUp() override {
    if (!GetParam().is_there) GTEST_SKIP() << "this CPU has no such instructions";
  }
  const ChunkKernels& fast() const { return *GetParam().kernels; }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FastChunks);
INSTANTIATE_TEST_SUITE_P(Sets, FastChunks, testing::ValuesIn(chunk_sets()),
                         [](const auto& set) { return set.param.name; });

void expect_same(const ChunkKernels& fast, std::size_t type, const Bytes& rows, std::size_t n_rows,
                 const QuantizedChunk& chunk, std::size_t n_groups) {
  const Panel expected(kScalarChunks, type, rows.data() + 1, n_rows, n_groups);
  const Panel panel(fast, type, rows.data() + 1, n_rows, n_groups);
  EXPECT_EQ(panel.codes, expected.codes);
  for (std::size_t i = 0; i < panel.scales.size(); ++i) {
    EXPECT_TRUE(same(panel.scales[i], expected.scales[i])) << type << ", scale " << i;
  }
  const std::size_t stride = n_rows + 3;  // what lies between the rows of y is not written
  const std::vector<float> of_scalar = multiply(kScalarChunks, expected, chunk.view(), stride);
  const std::vector<float> of_fast = multiply(fast, panel, chunk.view(), stride);
  for (std::size_t i = 0; i < of_fast.size(); ++i) {
    EXPECT_TRUE(same(of_fast[i], of_scalar[i]))
        << type << ", " << n_groups << ", " << i << ": " << of_fast[i] << ", " << of_scalar[i];
  }
}

// Every type, numbers of rows, of vectors and of groups, of which many leave a rest; rows one byte
// off any alignment; once with scales that are not finite.
TEST_P(FastChunks, MultiplyEveryTypeAsScalarDoesBitForBit) {
  test::SplitMix64 random(3);
  for (std::size_t type = 0; type < tensors::block_types().size(); ++type) {
    const BlockType& block = tensors::block_types()[type];
    for (std::size_t n_blocks = 1; n_blocks <= 9; n_blocks += 2) {
      const std::size_t n_cols = n_blocks * block.block_values;
      const std::size_t n_rows = 1 + random.below(kPanelRows), n = 1 + random.below(19);
      std::vector<float> x = test::GaussianSource(n_cols).vector(n * n_cols);
      if (n_blocks == 3) x[n_cols / 2] = std::numeric_limits<float>::infinity();
      const QuantizedChunk chunk = quantize(x, n, n_cols);
      for (const bool any_scale : {false, true}) {
        Bytes rows(n_rows * n_blocks * block.block_bytes + 1);
        const auto blocks = std::span(rows).subspan(1);
        any_scale ? test::fill(blocks, random) : test::fill_blocks(block, blocks, random);
        expect_same(fast(), type, rows, n_rows, chunk, n_cols / kGroup);
      }
    }
  }
}

// The largest and the smallest codes of weights and of x: no sum overflows.
TEST_P(FastChunks, MultiplyTheLargestCodes) {
  for (std::size_t type = 0; type < tensors::block_types().size(); ++type) {
    const BlockType& block = tensors::block_types()[type];
    for (const unsigned byte : {0x00u, 0x80u, 0x7fu, 0xffu, 0x0fu, 0xf0u}) {
      const Bytes rows(kPanelRows * (512 / block.block_values * block.block_bytes) + 1,
                       std::byte(byte));
      for (const float value : {1.0f, -1.0f}) {
        const QuantizedChunk chunk = quantize(std::vector<float>(3 * 512, value), 3, 512);
        expect_same(fast(), type, rows, kPanelRows, chunk, 512 / kGroup);
      }
    }
  }
}

TEST(QuantizedChunk, HasTheSumsOfTheCodesOfHalvesAndGroups) {
  const QuantizedChunk chunk = quantize(test::GaussianSource(6).vector(2 * 160), 2, 160);
  const ChunkView view = chunk.view();
  for (std::size_t row = 0; row < 2; ++row) {
    for (std::size_t group = 0; group < 5; ++group) {
      int sums[2] = {};
      for (std::size_t i = 0; i < kGroup; ++i) sums[i / 16] += code_of(view, row, group, i);
      const float* const found = view.minus_sums + (row * view.row_groups + group) * 3;
      EXPECT_EQ(found[0], static_cast<float>(-sums[0]));
      EXPECT_EQ(found[1], static_cast<float>(-sums[1]));
      EXPECT_EQ(found[2], static_cast<float>(-sums[0] - sums[1]));
    }
  }
}

}  // namespace chunk_kernels_test
}  // namespace tqcache::model
