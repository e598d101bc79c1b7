#include "golden_v1_cases.h"

#include "support/v1_builder.h"

namespace tqcache::test {
namespace {

using migrations::V1File;

// Values that take little room.
V1Turbo small_values(V1Turbo options) {
  options.affine_values = V1Affine{1, 32};
  return options;
}

V1File dense() {
  return V1Builder(260, 1)
      .dense({1, 16}, V1Dtype::kF32)
      .dense({2, 8}, V1Dtype::kF16, "mlx_lm.models.base.KVCache")
      .dense({1, 12}, V1Dtype::kBf16)
      .build();
}

V1File mse(bool wht, std::uint64_t seed) {
  V1Builder builder(258, seed);
  for (int bits = 1; bits <= 4; ++bits) {
    builder.turbo({1, 32}, small_values({.bits = bits, .wht = wht, .rotation_seed = bits}));
  }
  return builder.build();
}

V1File more_bits() {
  return V1Builder(256, 4)
      .turbo({1, 36}, {.bits = 5, .wht = true, .norms = V1Dtype::kF16, .values = V1Dtype::kBf16})
      .turbo({1, 32}, small_values({.bits = 8}))
      .build();
}

V1File prod() {
  return V1Builder(257, 5)
      .turbo({1, 32}, small_values({.bits = 2, .prod = true}))
      .turbo({1, 64}, small_values({.bits = 3, .prod = true, .wht = true, .qjl_seed = 9}))
      .turbo({2, 32}, small_values({.bits = 4, .prod = true, .norms = V1Dtype::kF16}))
      .build();
}

V1File mixed() {
  return V1Builder(259, 6)
      .turbo({2, 32}, small_values({.mixed = V1Mixed{8, 3, 2}}))
      .turbo({1, 36}, {.wht = true, .mixed = V1Mixed{9, 4, 3}})
      .build();
}

V1File calibrating() {
  return V1Builder(60, 7)
      .turbo({2, 32}, {.mixed = V1Mixed{8, 3, 2}, .calibrating = true})
      .turbo({1, 64}, {.mixed = V1Mixed{16, 4, 3},
                       .values = V1Dtype::kF32,
                       .affine_values = V1Affine{4, 64},
                       .calibrating = true})
      .build();
}

// What version 2 has no codec for.
V1File kept_dense() {
  return V1Builder(257, 8)
      .turbo({1, 32}, small_values({.bits = 2, .odd_norms = true}))
      .turbo({1, 16}, {.bits = 2, .values = V1Dtype::kBf16})
      .turbo({1, 32}, small_values({.bits = 3, .prod = true, .mixed = V1Mixed{8, 4, 3}}))
      .turbo({1, 32}, small_values({.mixed = V1Mixed{8, 2, 2}}))
      .quantized({1, 16}, {4, 8})
      .build();
}

V1File quantized() {
  return V1Builder(258, 9)
      .quantized({1, 32}, {4, 32})
      .quantized({1, 64}, {1, 32, V1Dtype::kBf16})
      .quantized({1, 64}, {2, 64})
      .build();
}

V1File quantized_8() {
  return V1Builder(257, 14).quantized({1, 32}, {8, 32, V1Dtype::kF32}).build();
}

V1File rotating() {
  return V1Builder(50, 10)
      .rotating({2, 8}, {.n_rows = 50, .keep = 4, .max_size = 64, .next = 50})
      .rotating({2, 8}, {.n_rows = 32, .keep = 4, .max_size = 32, .next = 17}, V1Dtype::kBf16)
      .rotating({1, 8}, {.n_rows = 32, .keep = 0, .max_size = 32, .next = 18}, V1Dtype::kF32)
      .rotating({1, 8}, {.n_rows = 45, .keep = 2, .max_size = 20, .next = 45})
      .rotating({1, 8}, {.n_rows = 64, .keep = 0, .max_size = 64, .next = 50})
      .build();
}

V1File arrays() {
  return V1Builder(20, 11)
      .arrays()
      .arrays("mlx_lm.models.cache.MambaCache")
      .arrays("mlx_lm.models.mamba.MambaCache")
      .dense({1, 32}, V1Dtype::kF16)
      .build();
}

V1File facts() {
  return V1Builder(300, 12)
      .turbo({2, 32}, small_values({.bits = 4, .wht = true}))
      .arrays()
      .rotating({1, 8}, {.n_rows = 16, .keep = 0, .max_size = 16, .next = 3})
      .facts()
      .build();
}

V1File empty() {
  return V1Builder(0, 13)
      .dense({2, 32}, V1Dtype::kF16)
      .turbo({2, 32}, {.bits = 3})
      .turbo({2, 32}, {.mixed = V1Mixed{}, .calibrating = true})
      .build();
}

}  // namespace

std::vector<GoldenV1Case> golden_v1_cases() {
  return {
      {"dense", dense},
      {"mse_qr", [] { return mse(false, 2); }},
      {"mse_wht", [] { return mse(true, 3); }},
      {"more_bits", more_bits},
      {"prod", prod},
      {"mixed", mixed},
      {"calibrating", calibrating},
      {"kept_dense", kept_dense},
      {"quantized", quantized},
      {"quantized_8", quantized_8},
      {"rotating", rotating},
      {"arrays", arrays},
      {"facts", facts},
      {"empty", empty},
  };
}

}  // namespace tqcache::test
