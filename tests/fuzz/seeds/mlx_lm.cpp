// Prompt caches of mlx-lm of every age, as the tests of their importer damage them.

#include "fuzz/seeds/seeds.h"
#include "interop/mlx_lm_small_files.h"

namespace tqcache::fuzz {

void make_mlx_lm(const SeedFolder& seeds) {
  for (const auto& [name, file] : test::small_mlx_files()) seeds.add(name, file);
}

}  // namespace tqcache::fuzz
