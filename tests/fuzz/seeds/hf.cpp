// Caches in the schema for transformers.

#include "tqcache/interop/hf/hf.h"

#include "fuzz/seeds/exported.h"
#include "fuzz/seeds/seeds.h"

namespace tqcache::fuzz {

void make_hf(const SeedFolder& seeds) {
  seeds.add("attention", exported(interop::export_hf, attention_alone()));
  seeds.add("all", exported(interop::export_hf, every_layer()));
  seeds.add("hidden", exported(interop::export_hf,
                               test::CacheBuilder(2).dense({1, 2}).hide_tokens().build()));
}

}  // namespace tqcache::fuzz
