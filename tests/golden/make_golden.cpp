// Writes the golden files that are not there yet, each with its JSON twin.
//
// usage: make_golden FOLDER (tests/golden/v2)

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "golden_cases.h"
#include "golden_json.h"

namespace tqcache::test {
namespace {

void write_new(const std::filesystem::path& path, ByteView bytes) {
  if (std::filesystem::exists(path)) throw std::runtime_error(path.string() + " exists");
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error(path.string() + " cannot be written");
}

void make(const GoldenCase& golden, const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / (golden.name + ".tqkv");
  if (std::filesystem::exists(path)) return;
  const Bytes file = must(format::write_cache_bytes(
      golden.make(),
      {.compression = golden.compression, .n_threads = 1, .writer = "tqcache golden"}));
  const std::string twin = golden_json(file).dump(1) + "\n";
  write_new(path, file);
  write_new(folder / (golden.name + ".json"), as_bytes(twin));
  std::printf("%s: %zu and %zu bytes\n", golden.name.c_str(), file.size(), twin.size());
}

}  // namespace
}  // namespace tqcache::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_golden FOLDER\n", stderr);
    return 2;
  }
  try {
    for (const auto& golden : tqcache::test::golden_cases()) tqcache::test::make(golden, argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_golden: %s\n", error.what());
    return 1;
  }
  return 0;
}
