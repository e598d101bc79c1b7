#pragma once
// codec/trellis/trellis_walk.h: symbols to codes and back, component by component, for all vectors of a
// token block at once.
//
// The machine of states is made of shifts and exclusive ors, so as many vectors go through it at a
// time as a register has bytes. Every CPU gives the same bytes.
//
// Spec: docs/reference/codec.md, "Trellis codes".

#include <array>
#include <cstddef>
#include <cstdint>

#include "tqcache/base/result.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::codec {

// One component of n vectors. States and marks are bytes, and there are 256 of each.
struct TrellisStep {
  const std::uint8_t* in = nullptr;
  std::uint8_t* out = nullptr;
  std::size_t n = 0;
  std::uint8_t flip = 0;
  std::uint8_t* states = nullptr;
  std::uint8_t* bad = nullptr;
};

struct TrellisSteps {
  void (*to_codes)(const TrellisStep&);
  void (*to_symbols)(const TrellisStep&);
};

class TrellisWalk {
 public:
  // Requires: n_vectors 1 to 256.
  TrellisWalk(std::size_t n_vectors, const Kernels& kernels);

  // The next component, symbols to codes. `flip` is 0x80 for levels instead of codes, else 0.
  // Shapes: symbols, codes [n_vectors].
  void to_codes(const std::uint8_t* symbols, std::uint8_t flip, std::uint8_t* codes);

  // The next component, codes to symbols.
  void to_symbols(const std::uint8_t* codes, std::uint8_t flip, std::uint8_t* symbols);

  // What is wrong with the first vector that had a symbol of 128 or more, or a code that its state
  // does not have. Errors: kCorrupt: "vector 17: " + fact.
  Result<void> verdict(const char* fact) const;

 private:
  std::size_t n_;
  const TrellisSteps& steps_;
  alignas(64) std::array<std::uint8_t, kBlockTokens> states_{};
  alignas(64) std::array<std::uint8_t, kBlockTokens> bad_{};  // not 0 if its vector is bad
};

}  // namespace tqcache::codec
