#include "tqcache/codec/trellis/trellis.h"

#include <cassert>
#include <string>
#include <string_view>

#include "tqcache/codec/trellis/trellis_search.h"
#include "tqcache/codec/trellis/trellis_walk.h"

namespace tqcache::codec {
namespace {

constexpr std::uint8_t kLevels = 0x80;  // what turns a code into the byte of its level

}  // namespace

TrellisSearch trellis_search([[maybe_unused]] const Kernels& kernels) {
#ifdef TQCACHE_X86
  const std::string_view name = kernels.name;  // tables may be copies
  if (name == "avx512") return search_trellis_avx512;
  if (name == "avx2") return search_trellis_avx2;
#endif
#ifdef TQCACHE_NEON
  if (std::string_view(kernels.name) == "neon") return search_trellis_neon;
#endif
  return search_trellis_scalar;
}

Result<void> encode_trellis(const TrellisShape& shape, std::span<const float> y,
                            const TrellisPaths& paths, const Kernels& kernels) {
  assert(shape.is_legal() && y.size() == shape.size() && paths.symbols.size() == shape.size());
  assert(paths.products.empty() || paths.products.size() == shape.n_vectors);
  assert(paths.squares.empty() || paths.squares.size() == shape.n_vectors);
  const std::size_t bad =
      trellis_search(kernels)({.rows = y.data(),
                               .shape = shape,
                               .symbols = paths.symbols.data(),
                               .products = paths.products.empty() ? nullptr : paths.products.data(),
                               .squares = paths.squares.empty() ? nullptr : paths.squares.data()});
  if (bad == shape.n_vectors) return {};
  return Error{ErrorCode::kCorrupt,
               "vector " + std::to_string(bad) + ": a component is not finite"};
}

Result<void> decode_trellis(const TrellisShape& shape, std::span<const std::uint8_t> symbols,
                            std::span<std::int8_t> levels) {
  assert(shape.is_legal() && symbols.size() == shape.size() && levels.size() == shape.size());
  std::uint8_t* const bytes = reinterpret_cast<std::uint8_t*>(levels.data());
  TrellisWalk walk(shape.n_vectors, best_kernels());
  for (std::size_t at = 0; at < shape.size(); at += shape.n_vectors) {
    walk.to_codes(symbols.data() + at, kLevels, bytes + at);
  }
  return walk.verdict("a symbol above 127");
}

Result<void> trellis_symbols(const TrellisShape& shape, std::span<const std::int8_t> levels,
                             std::span<std::uint8_t> symbols) {
  assert(shape.is_legal() && symbols.size() == shape.size() && levels.size() == shape.size());
  const std::uint8_t* const bytes = reinterpret_cast<const std::uint8_t*>(levels.data());
  TrellisWalk walk(shape.n_vectors, best_kernels());
  for (std::size_t at = 0; at < shape.size(); at += shape.n_vectors) {
    walk.to_symbols(bytes + at, kLevels, symbols.data() + at);
  }
  return walk.verdict("its levels are no path");
}

}  // namespace tqcache::codec
