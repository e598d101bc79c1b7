// Caches that TurboMLX has written, and pickles that it never would.

#include <string>
#include <string_view>

#include "fuzz/seeds/seeds.h"
#include "interop/turbomlx_builder.h"
#include "interop/turbomlx_files.h"

namespace tqcache::fuzz {

using namespace std::string_view_literals;

void make_turbomlx(const SeedFolder& seeds) {
  for (const std::string name : {"v2_mixed_p5", "v2_mse_p2", "v3_calibrating", "v3_prod"}) {
    seeds.add(name, test::turbomlx_file(name));
  }
  // Whole token blocks, whose codes become ours.
  const test::BuiltTurbo plain{
      .shape = {1, 32}, .bits = 2, .is_wht = true, .values = test::BuiltGroups{.bits = 2}};
  test::BuiltTurbo prod = plain;
  prod.is_prod = true;
  prod.is_wht = false;
  prod.values->dtype = Dtype::kF32;
  seeds.add("v3_packed", test::TurboMlxBuilder(cache::kTokenBlock).turbo(plain).file());
  seeds.add("v3_packed_prod", test::TurboMlxBuilder(cache::kTokenBlock).turbo(prod).file());
  // A command that pickle.load() would run.
  seeds.add("imports_os_system",
            "\x80\x02"
            "cos\nsystem\nX\x02\0\0\0id\x85R."sv);
  // {"schema_version": 2, "entries": [<this list>]}
  seeds.add("list_in_itself",
            "\x80\x04}\x94\x8c\x0eschema_versionK\x02s\x8c\x07"
            "entries]\x94h\x01"
            "as."sv);
}

}  // namespace tqcache::fuzz
