// Safetensors files of every dtype and of odd shapes.

#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/seeds/seeds.h"
#include "tensors/safetensors_builder.h"

namespace tqcache::fuzz {

void make_safetensors(const SeedFolder& seeds) {
  seeds.add("small", test::small_safetensors());
  seeds.add("empty", test::safetensors_file("{}", 0));
  std::string header = R"({"__metadata__":null)";
  std::uint64_t end = 0;
  for (const std::string_view dtype : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16",
                                       "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64"}) {
    header += ',' + test::tensor_entry(dtype, dtype, "0", end, end);
  }
  seeds.add("types", test::safetensors_file(header + "}", 0));
  seeds.add("shapes",
            test::safetensors_file('{' + test::tensor_entry("scalar", "U8", "", 0, 1) + ',' +
                                       test::tensor_entry("deep", "I64", "1,2,1", 1, 17) + '}',
                                   17));
}

}  // namespace tqcache::fuzz
