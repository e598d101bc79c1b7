// Writes the golden files of version 1 that are not there yet, each with its JSON twin.
//
// usage: make_golden_v1 FOLDER (tests/golden/v1)

#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "golden_v1_cases.h"
#include "golden_v1_json.h"
#include "support/temp_dir.h"
#include "support/v1_writer.h"

namespace tqcache::test {
namespace {

void write_new(const std::filesystem::path& path, ByteView bytes) {
  if (std::filesystem::exists(path)) throw std::runtime_error(path.string() + " exists");
  write_all(path, bytes);
}

void make(const GoldenV1Case& golden, const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / (golden.name + ".tqcache");
  if (std::filesystem::exists(path)) return;
  const Bytes file = write_v1(golden.make());
  const std::string twin = golden_v1_json(file).dump(1) + "\n";
  write_new(path, file);
  write_new(folder / (golden.name + ".json"), as_bytes(twin));
  std::printf("%s: %zu and %zu bytes\n", golden.name.c_str(), file.size(), twin.size());
}

}  // namespace
}  // namespace tqcache::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_golden_v1 FOLDER\n", stderr);
    return 2;
  }
  try {
    for (const auto& golden : tqcache::test::golden_v1_cases()) {
      tqcache::test::make(golden, argv[1]);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_golden_v1: %s\n", error.what());
    return 1;
  }
  return 0;
}
