#include "tqcache/codec/kernels/kernels.h"

#include <array>
#include <string>

#include "tqcache/base/processor.h"
#include "tqcache/codec/kernels/lanes.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kMaxTables = 4;
constexpr std::array<std::string_view, kMaxTables> kNames = {"scalar", "neon", "avx2", "avx512"};

// The table of an instruction set. `fast` and `sinusoids` are fast, or exact if the set has no
// faster kernel.
#define TQC_KERNELS(isa_of, set, fast, sinusoids)                                               \
  Kernels {                                                                                     \
    .isa = Isa::isa_of, .name = #set, .score_exact = set::score_exact,                          \
    .score_fast = set::score_##fast, .accumulate_exact = set::accumulate_exact,                 \
    .accumulate_fast = set::accumulate_##fast, .score_dense = set::score_dense,                 \
    .accumulate_dense = set::accumulate_dense, .add_sinusoids_exact = set::add_sinusoids_exact, \
    .add_sinusoids_fast = set::add_sinusoids_##sinusoids, .center_rows = set::center_rows,      \
    .restore_rows = set::restore_rows, .encode_lines = set::encode_lines,                       \
    .decode_lines = set::decode_lines, .transpose_lines = set::transpose_lines,                 \
    .multiply_rows = set::multiply_rows, .trellis = set::kTrellisKernels,                       \
    .doubles = set::kDoubleLoops,                                                               \
  }

struct Available {
  std::array<const Kernels*, kMaxTables> tables{};
  std::size_t count = 0;

  void add(const Kernels& kernels) { tables[count++] = &kernels; }
};

Available find_available() {
  Available found;
  found.add(scalar_kernels());
#ifdef TQCACHE_NEON
  static const Kernels neon = TQC_KERNELS(kNeon, neon, fast, exact);
  found.add(neon);  // every CPU of this architecture has it
#endif
#ifdef TQCACHE_X86
  static const Kernels avx2 = TQC_KERNELS(kAvx2, avx2, fast, fast);
  static const Kernels avx512 = TQC_KERNELS(kAvx512, avx512, fast, fast);
  const Processor processor = find_processor();
  if (processor.avx2) found.add(avx2);
  if (processor.avx512) found.add(avx512);
#endif
  return found;
}

bool is_known(std::string_view name) {
  for (const std::string_view known : kNames) {
    if (known == name) return true;
  }
  return false;
}

// The table that TQCACHE_ISA names; null if it is unset or names no available table.
const Kernels* find_wanted() {
  const char* const name = wanted_isa();
  if (name == nullptr) return nullptr;
  for (const Kernels* kernels : all_kernels()) {
    if (std::string_view(name) == kernels->name) return kernels;
  }
  return nullptr;
}

std::string names_there() {
  std::string names;
  for (const Kernels* kernels : all_kernels()) {
    if (!names.empty()) names += ", ";
    names += kernels->name;
  }
  return names;
}

}  // namespace

std::span<const Kernels* const> all_kernels() {
  static const Available available = find_available();
  return std::span(available.tables).first(available.count);
}

const Kernels& scalar_kernels() {
  static const Kernels scalar = TQC_KERNELS(kScalar, scalar, exact, exact);
  return scalar;
}

const Kernels& best_kernels() {
  static const Kernels* const wanted = find_wanted();
  return wanted != nullptr ? *wanted : *all_kernels().back();
}

Result<const Kernels*> find_kernels(std::string_view name) {
  if (name.empty()) return all_kernels().back();
  for (const Kernels* kernels : all_kernels()) {
    if (name == kernels->name) return kernels;
  }
  const ErrorCode code = is_known(name) ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument;
  const std::string fact = is_known(name) ? "not on this CPU or not in this program" : "unknown";
  return Error{code, "kernels " + std::string(name) + ": " + fact + "; there are " + names_there()};
}

}  // namespace tqcache::codec
