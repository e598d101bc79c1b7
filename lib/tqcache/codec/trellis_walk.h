#pragma once
// codec/trellis_walk.h: symbols to codes and back, component by component, for all vectors of a
// token block at once.
//
// The machine of states is made of shifts and exclusive ors, so eight vectors go through it in the
// bytes of one word. What is done there is the same for every CPU.
//
// Spec: docs/codec.md, "Trellis codes".

#include <array>
#include <cstddef>
#include <cstdint>

#include "tqcache/base/result.h"
#include "tqcache/codec/block_layout.h"

namespace tqcache::codec {

class TrellisWalk {
 public:
  // Requires: n_vectors 1 to 256.
  explicit TrellisWalk(std::size_t n_vectors);

  // The next component, symbols to codes. `flip` is 0x80 for levels instead of codes, else 0.
  // Shapes: symbols, codes [n_vectors].
  void to_codes(const std::uint8_t* symbols, std::uint8_t flip, std::uint8_t* codes);

  // The next component, codes to symbols.
  void to_symbols(const std::uint8_t* codes, std::uint8_t flip, std::uint8_t* symbols);

  // What is wrong with the first vector that had a symbol of 128 or more, or a code that its state
  // does not have. Errors: kCorrupt: "vector 17: " + fact.
  Result<void> verdict(const char* fact) const;

 private:
  static constexpr std::size_t kWords = kBlockTokens / 8;

  template <class Step>
  void for_words(const std::uint8_t* in, std::uint8_t* out, const Step& step);

  std::size_t n_;
  std::array<std::uint64_t, kWords> states_{};
  std::array<std::uint64_t, kWords> bad_{};  // a byte is not 0 if its vector is bad
};

}  // namespace tqcache::codec
