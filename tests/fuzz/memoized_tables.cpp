// The tables of a codec, computed once for each codec and kept. A target that loads a file in 50 us
// would otherwise spend a millisecond or more on each, always for the same few codecs.
//
// The linker puts these functions in the place of the library's (--wrap in CMakeLists.txt), which
// they call: what they give is the same, and what asks for it does not know. Each thread keeps its
// own.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/cache/centering_score.h"
#include "tqcache/codec/codebook.h"
#include "tqcache/codec/dense_matrix.h"
#include "tqcache/codec/kernels/code_tables.h"

namespace tqcache::codec {

// "__real_" and "__wrap_", and the name that the compiler gives the function.
CodeTables real_code_tables(int head_dim, int bits, std::span<const float> centroids) asm(
    "__real__ZN7tqcache5codec16make_code_tablesEiiSt4spanIKfLm18446744073709551615EE");
CodeTables kept_code_tables(int head_dim, int bits, std::span<const float> centroids) asm(
    "__wrap__ZN7tqcache5codec16make_code_tablesEiiSt4spanIKfLm18446744073709551615EE");
std::vector<float> real_centroids(int head_dim,
                                  int bits) asm("__real__ZN7tqcache5codec19lloyd_max_centroidsEii");
std::vector<float> kept_centroids(int head_dim,
                                  int bits) asm("__wrap__ZN7tqcache5codec19lloyd_max_centroidsEii");
AlignedFloats real_gaussian(std::size_t n,
                            std::uint64_t seed) asm("__real__ZN7tqcache5codec15gaussian_matrixEmm");
AlignedFloats kept_gaussian(std::size_t n,
                            std::uint64_t seed) asm("__wrap__ZN7tqcache5codec15gaussian_matrixEmm");
AlignedFloats real_orthogonal(std::size_t n, std::uint64_t seed) asm(
    "__real__ZN7tqcache5codec17orthogonal_matrixEmm");
AlignedFloats kept_orthogonal(std::size_t n, std::uint64_t seed) asm(
    "__wrap__ZN7tqcache5codec17orthogonal_matrixEmm");

namespace {

constexpr std::size_t kMostKept = 4096;
constexpr std::size_t kMostKeptDim = 64;  // of a matrix

// Inputs choose what is kept, so now and then all of it goes.
template <class Key, class Value, class Make>
const Value& kept(std::map<Key, Value>& all, const Key& key, Make make) {
  const auto found = all.find(key);
  if (found != all.end()) return found->second;
  if (all.size() >= kMostKept) all.clear();
  return all.emplace(key, make()).first->second;
}

}  // namespace

CodeTables kept_code_tables(int head_dim, int bits, std::span<const float> centroids) {
  thread_local std::map<std::tuple<int, int, std::vector<float>>, CodeTables> all;
  const std::tuple key(head_dim, bits, std::vector<float>(centroids.begin(), centroids.end()));
  return kept(all, key, [&] { return real_code_tables(head_dim, bits, centroids); });
}

std::vector<float> kept_centroids(int head_dim, int bits) {
  thread_local std::map<std::pair<int, int>, std::vector<float>> all;
  return kept(all, std::pair(head_dim, bits), [&] { return real_centroids(head_dim, bits); });
}

AlignedFloats kept_gaussian(std::size_t n, std::uint64_t seed) {
  thread_local std::map<std::pair<std::size_t, std::uint64_t>, AlignedFloats> all;
  if (n > kMostKeptDim) return real_gaussian(n, seed);
  return kept(all, std::pair(n, seed), [&] { return real_gaussian(n, seed); });
}

AlignedFloats kept_orthogonal(std::size_t n, std::uint64_t seed) {
  thread_local std::map<std::pair<std::size_t, std::uint64_t>, AlignedFloats> all;
  if (n > kMostKeptDim) return real_orthogonal(n, seed);
  return kept(all, std::pair(n, seed), [&] { return real_orthogonal(n, seed); });
}

}  // namespace tqcache::codec

namespace tqcache::cache {

void make_real(CenteringTable* table,
               const Rope& rope) asm("__real__ZN7tqcache5cache14CenteringTableC1ERKNS0_4RopeE");
void copy_kept(CenteringTable* table,
               const Rope& rope) asm("__wrap__ZN7tqcache5cache14CenteringTableC1ERKNS0_4RopeE");

// A constructor: `table` is memory for one.
void copy_kept(CenteringTable* table, const Rope& rope) {
  struct Kept {
    explicit Kept(const Rope& made_for) : rope(made_for) { make_real(&table, made_for); }
    ~Kept() { table.~CenteringTable(); }
    Rope rope;
    union {
      CenteringTable table;
    };
  };
  thread_local std::vector<std::unique_ptr<Kept>> all;
  for (const auto& kept : all) {
    if (kept->rope == rope) {
      new (table) CenteringTable(kept->table);
      return;
    }
  }
  if (all.size() >= 64) all.clear();
  new (table) CenteringTable(all.emplace_back(std::make_unique<Kept>(rope))->table);
}

}  // namespace tqcache::cache
