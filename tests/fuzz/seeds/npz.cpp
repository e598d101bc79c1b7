// .npz files, and the members of some without the zip file around them.

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/seeds/exported.h"
#include "fuzz/seeds/seeds.h"
#include "interop/zip_builder.h"
#include "tqcache/interop/npz/npz_cache.h"

namespace tqcache::fuzz {
namespace {

// By the number of its name in the target.
using Members = std::vector<std::pair<std::uint8_t, Bytes>>;

Bytes members_of(std::string_view description, const Members& members) {
  ByteWriter out;
  out.write(static_cast<std::uint16_t>(description.size()));
  out.append(as_bytes(description));
  for (const auto& [name, npy] : members) {
    out.write(name);
    out.write(static_cast<std::uint16_t>(npy.size()));
    out.append(npy);
  }
  return std::move(out).take();
}

}  // namespace

void make_npz(const SeedFolder& seeds) {
  seeds.add("attention", exported(interop::export_npz, attention_alone()));
  seeds.add("all", exported(interop::export_npz, every_layer()));
  seeds.add("zip64", test::zip_file({{"a.npy", test::npy_file("|u1", {1}, Bytes(1))}}, 0));
  seeds.add("numpy_compressed", test::read_all(TQCACHE_TEST_DATA "/interop/numpy_compressed.npz"));
  const Bytes tokens = test::npy_file("<i8", {2}, Bytes(16));
  const Bytes tensor = test::npy_file("<f4", {1, 2, 1}, Bytes(8));
  seeds.add("members_attention", members_of(R"({"format":"tqcache-npz-1","n_tokens":2,)"
                                            R"("layers":[{"kind":"attention","bf16":["key"]}]})",
                                            {{0, tokens}, {1, tensor}, {2, tensor}}));
  seeds.add("members_window", members_of(R"({"format":"tqcache-npz-1","n_tokens":4,)"
                                         R"("layers":[{"kind":"arrays","arrays":["a"]},)"
                                         R"({"kind":"window","size":2,"keep":1}]})",
                                         {{3, tensor}, {4, tensor}, {5, tensor}}));
}

}  // namespace tqcache::fuzz
