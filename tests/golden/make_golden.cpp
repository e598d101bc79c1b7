// Writes the golden files that are not there yet, each with its JSON twin.
//
// With a second folder also those encrypted ones that are not there yet; it has the key,
// golden.key.
//
// usage: make_golden FOLDER (tests/golden/v2) [FOLDER (tests/golden/v2_encrypted)]

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "golden_cases.h"
#include "golden_json.h"
#include "support/temp_dir.h"
#include "tqcache/cache.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace {

void write_new(const std::filesystem::path& path, ByteView bytes) {
  if (std::filesystem::exists(path)) throw std::runtime_error(path.string() + " exists");
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error(path.string() + " cannot be written");
}

// The states of a file, the one that it ends with last.
std::vector<cache::Cache> states_of(const GoldenCase& golden) {
  const cache::Cache last = golden.make();
  std::vector<cache::Cache> states;
  for (const std::int64_t n_tokens : golden.earlier) {
    states.push_back(must(cache::truncate(last, n_tokens)));
  }
  states.push_back(last);
  return states;
}

void write_states(const GoldenCase& golden, const std::filesystem::path& path,
                  const KeyRing& keys) {
  const format::WriteOptions options{
      .compression = golden.compression, .n_threads = 1, .writer = "tqcache golden", .keys = keys};
  const std::vector<cache::Cache> states = states_of(golden);
  write_new(path, must(format::write_cache_bytes(states.front(), options)));
  for (const cache::Cache& state : std::span(states).subspan(1)) {
    auto appender = must(format::CacheAppender::open(path, {keys}));
    must(appender.append(state, options));
  }
}

void make(const GoldenCase& golden, const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / (golden.name + ".tqkv");
  if (std::filesystem::exists(path)) return;
  write_states(golden, path, {});
  const Bytes file = read_all(path);
  const std::string twin = golden_json(file).dump(1) + "\n";
  write_new(folder / (golden.name + ".json"), as_bytes(twin));
  std::printf("%s: %zu and %zu bytes\n", golden.name.c_str(), file.size(), twin.size());
}

void make_encrypted(const std::filesystem::path& folder) {
  const KeyRing keys = must(KeyRing::parse(read_all(folder / "golden.key")));
  for (const GoldenCase& golden : golden_cases()) {
    const std::filesystem::path path = folder / (golden.name + ".tqkv");
    if (std::ranges::find(kEncryptedCases, golden.name) == kEncryptedCases.end() ||
        std::filesystem::exists(path)) {
      continue;
    }
    write_states(golden, path, keys);
    std::printf("%s, encrypted\n", golden.name.c_str());
  }
}

}  // namespace
}  // namespace tqcache::test

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fputs("usage: make_golden FOLDER [FOLDER]\n", stderr);
    return 2;
  }
  try {
    for (const auto& golden : tqcache::test::golden_cases()) tqcache::test::make(golden, argv[1]);
    if (argc == 3) tqcache::test::make_encrypted(argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_golden: %s\n", error.what());
    return 1;
  }
  return 0;
}
