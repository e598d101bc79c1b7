// Files of version 1 of every kind of layer.

#include <string>
#include <utility>
#include <vector>

#include "fuzz/seeds/seeds.h"
#include "support/v1_builder.h"
#include "support/v1_writer.h"

namespace tqcache::fuzz {
namespace {

std::vector<std::pair<std::string, migrations::V1File>> small_v1_files() {
  using test::V1Builder;
  using test::V1Dtype;
  std::vector<std::pair<std::string, migrations::V1File>> all;
  const test::V1Affine affine{.bits = 2, .group_size = 32};
  all.emplace_back("empty", V1Builder(0).build());
  all.emplace_back("dense", V1Builder(3).dense({1, 4}, V1Dtype::kBf16).facts().build());
  all.emplace_back("quantized", V1Builder(3).quantized({1, 32}, affine).build());
  all.emplace_back("rotating", V1Builder(5).rotating({1, 4}, {3, 1, 3, 2}).build());
  all.emplace_back("arrays", V1Builder(2).arrays().build());
  all.emplace_back("mse", V1Builder(3).turbo({1, 32}, {.bits = 1}).build());
  all.emplace_back("wht", V1Builder(257).turbo({1, 32}, {.bits = 1, .wht = true}).build());
  all.emplace_back("prod", V1Builder(2).turbo({1, 32}, {.bits = 2, .prod = true}).build());
  all.emplace_back("mixed", V1Builder(2).turbo({1, 32}, {.mixed = test::V1Mixed{}}).build());
  all.emplace_back(
      "calibrating",
      V1Builder(2).turbo({1, 32}, {.mixed = test::V1Mixed{}, .calibrating = true}).build());
  all.emplace_back("affine",
                   V1Builder(2).turbo({1, 32}, {.wht = true, .affine_values = affine}).build());
  return all;
}

}  // namespace

void make_v1(const SeedFolder& readers, const SeedFolder& migrated) {
  for (const auto& [name, file] : small_v1_files()) {
    const Bytes bytes = test::write_v1(file);
    readers.add(name, bytes);
    migrated.add(name, bytes);
  }
}

}  // namespace tqcache::fuzz
