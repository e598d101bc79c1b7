// RotatingKVCache: a ring of rows, which becomes the newest tokens in the order of positions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "migrations/v1_to_v2.h"
#include "support/matchers.h"
#include "support/v1_builder.h"
#include "tqcache/cache/window.h"

namespace tqcache::test {
namespace v1_ring_test {

using migrations::check_migrated;
using migrations::Migration;
using migrations::v1_to_v2;
using migrations::V1File;
using testing::HasSubstr;

// A file whose rows say which positions they hold: -1 for rows that hold none of interest.
V1File ring_file(std::int64_t offset, const V1Ring& ring, const std::vector<int>& positions) {
  V1File file = V1Builder(offset).rotating({2, 4}, ring, V1Dtype::kF32).build();
  for (migrations::V1Tensor& tensor : file.entries[0].state) {
    std::vector<float> values;
    for (int head = 0; head < 2; ++head) {
      for (const int position : positions) {
        for (int i = 0; i < 4; ++i) {
          values.push_back(static_cast<float>(100 * position + 10 * head + i));
        }
      }
    }
    store_f32(Dtype::kF32, values, tensor.data.data());
  }
  return file;
}

// The positions that a migrated layer holds, by its values.
std::vector<int> positions_of(const cache::NamedArray& array, std::size_t head) {
  const std::size_t n_tokens = array.shape.at(1);
  std::vector<float> values(array.data.size() / sizeof(float));
  load_f32(Dtype::kF32, array.data.data(), values);
  std::vector<int> positions;
  for (std::size_t token = 0; token < n_tokens; ++token) {
    const float first = values[(head * n_tokens + token) * 4];
    positions.push_back(static_cast<int>(first - 10 * static_cast<float>(head)) / 100);
  }
  return positions;
}

void expect_positions(std::int64_t offset, const V1Ring& ring, const std::vector<int>& rows,
                      const std::vector<int>& expected) {
  const V1File file = ring_file(offset, ring, rows);
  const Migration migration = must(v1_to_v2(file));
  must(check_migrated(file, migration.cache, 1));
  const auto& layer = std::get<cache::WindowLayer>(migration.cache.layers.at(0));
  EXPECT_EQ(layer.window, (cache::Window{ring.max_size, ring.keep}));
  EXPECT_EQ(layer.attention.shape, (cache::HeadShape{2, 4}));
  for (const cache::Tensor* tensor : {&layer.attention.k, &layer.attention.v}) {
    const cache::NamedArray array{"",
                                  cache::dense_dtype(*tensor),
                                  {2, expected.size(), 4},
                                  cache::gather_window(layer, *tensor, offset)};
    for (const std::size_t head : {0u, 1u}) EXPECT_EQ(positions_of(array, head), expected);
  }
  EXPECT_EQ(migration.cache.n_tokens(), offset);
}

TEST(V1Ring, NotFullIsInOrder) {
  expect_positions(3, {.n_rows = 3, .keep = 0, .max_size = 8, .next = 3}, {0, 1, 2}, {0, 1, 2});
  expect_positions(3, {.n_rows = 3, .keep = 2, .max_size = 8, .next = 3}, {0, 1, 2}, {0, 1, 2});
  expect_positions(0, {.n_rows = 0, .keep = 2, .max_size = 8, .next = 0}, {}, {});
}

TEST(V1Ring, JustFullIsInOrder) {
  expect_positions(4, {.n_rows = 4, .keep = 1, .max_size = 4, .next = 4}, {0, 1, 2, 3},
                   {0, 1, 2, 3});
}

TEST(V1Ring, IsUnrolled) {
  expect_positions(6, {.n_rows = 4, .keep = 0, .max_size = 4, .next = 2}, {4, 5, 2, 3},
                   {2, 3, 4, 5});
  expect_positions(7, {.n_rows = 4, .keep = 0, .max_size = 4, .next = 3}, {4, 5, 6, 3},
                   {3, 4, 5, 6});
}

TEST(V1Ring, KeepsItsFirstTokens) {
  expect_positions(10, {.n_rows = 6, .keep = 2, .max_size = 6, .next = 4}, {0, 1, 8, 9, 6, 7},
                   {0, 1, 6, 7, 8, 9});
  expect_positions(10, {.n_rows = 6, .keep = 2, .max_size = 6, .next = 2}, {0, 1, 6, 7, 8, 9},
                   {0, 1, 6, 7, 8, 9});
  expect_positions(10, {.n_rows = 6, .keep = 2, .max_size = 6, .next = 6}, {0, 1, 6, 7, 8, 9},
                   {0, 1, 6, 7, 8, 9});
}

// After a prompt there are up to max_size - 1 rows more than a query looks at.
TEST(V1Ring, LosesRowsThatNobodyLooksAt) {
  expect_positions(9, {.n_rows = 7, .keep = 0, .max_size = 4, .next = 7}, {2, 3, 4, 5, 6, 7, 8},
                   {5, 6, 7, 8});
  expect_positions(9, {.n_rows = 7, .keep = 2, .max_size = 4, .next = 7}, {0, 1, 4, 5, 6, 7, 8},
                   {0, 1, 7, 8});
}

// Early versions saved rows that were not written yet.
TEST(V1Ring, LosesRowsThatWereNeverWritten) {
  expect_positions(2, {.n_rows = 5, .keep = 1, .max_size = 8, .next = 2}, {0, 1, -1, -1, -1},
                   {0, 1});
}

TEST(V1Ring, IsRefusedWhenItContradictsItself) {
  const auto refused = [](std::int64_t offset, const V1Ring& ring, const std::string& message) {
    EXPECT_THAT(v1_to_v2(V1Builder(offset).rotating({1, 4}, ring).build()),
                test::FailsWith(ErrorCode::kCorrupt, HasSubstr(message)));
  };
  refused(3, {.n_rows = 4, .keep = 0, .max_size = 4, .next = 4}, "_idx 4 and offset 3");
  refused(6, {.n_rows = 4, .keep = 0, .max_size = 4, .next = 5}, "in a ring of 4");
  refused(6, {.n_rows = 4, .keep = 3, .max_size = 4, .next = 2}, "_idx 2");
  refused(6, {.n_rows = 3, .keep = 0, .max_size = 4, .next = 3}, "3 tokens where 4 belong");
  refused(6, {.n_rows = 4, .keep = 4, .max_size = 4, .next = 4}, "keep 4 of max_size 4");
  refused(0, {.n_rows = 0, .keep = 0, .max_size = 0, .next = 0}, "keep 0 of max_size 0");
  V1File file = V1Builder(3).rotating({1, 4}, {3, 0, 4, 3}).build();
  file.entries[0].meta_state = "[0, 4, 3]";
  const auto migration = v1_to_v2(file);
  ASSERT_FALSE(migration.ok());
  EXPECT_THAT(migration.error().message, HasSubstr("not keep, max_size, offset and _idx"));
}

TEST(V1Ring, MayHoldAnything) {
  V1File file = V1Builder(3).rotating({1, 4}, {3, 0, 4, 3}).build();
  for (std::byte& byte : file.entries[0].state[0].data) byte = std::byte{0xff};  // NaN
  const Migration migration = must(v1_to_v2(file));
  EXPECT_TRUE(check_migrated(file, migration.cache, 1).ok());
}

}  // namespace v1_ring_test
}  // namespace tqcache::test
