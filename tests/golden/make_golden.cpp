// Writes the golden files that are not there yet, with their JSON twins: those of versions 1 and 2,
// encrypted and predicted ones, and blobs of a store.
//
// usage: make_golden FOLDER (tests/golden)

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "golden_cases.h"
#include "golden_json.h"
#include "golden_v1_cases.h"
#include "golden_v1_json.h"
#include "store/blob_fixture.h"
#include "support/small_profile.h"
#include "support/temp_dir.h"
#include "support/v1_writer.h"
#include "tqcache/cache.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/section_writer.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace {

void write_new(const std::filesystem::path& path, ByteView bytes) {
  if (std::filesystem::exists(path)) throw std::runtime_error(path.string() + " exists");
  write_all(path, bytes);
  std::printf("%s: %zu bytes\n", path.c_str(), bytes.size());
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

void make_v2(const std::filesystem::path& folder) {
  for (const GoldenCase& golden : golden_cases()) {
    const std::filesystem::path path = folder / (golden.name + ".tqkv");
    if (std::filesystem::exists(path)) continue;
    write_states(golden, path, {});
    write_new(folder / (golden.name + ".json"),
              as_bytes(golden_json(read_all(path)).dump(1) + "\n"));
  }
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
  }
}

void make_predicted(const std::filesystem::path& folder) {
  const std::filesystem::path profile = folder / "small.tqprofile";
  if (!std::filesystem::exists(profile))
    write_new(profile, predict::profile_bytes(small_profile()));
  const auto predictor = must(predict::read_profile(profile));
  format::ReadOptions read;
  read.access.profiles.add(predictor);
  struct Case {
    std::string name;
    Dtype dtype;
    std::int64_t n_tokens;
    float step;
  };
  for (const Case& each : {Case{"f16", Dtype::kF16, 270, 0.2f}, Case{"f32", Dtype::kF32, 20, 0.01f},
                           Case{"bf16", Dtype::kBF16, 40, 0.9f}}) {
    const std::filesystem::path path = folder / (each.name + ".tqkv");
    if (std::filesystem::exists(path)) continue;
    const cache::Cache cache = predicted_model_cache(each.n_tokens, each.dtype);
    const auto reader =
        must(format::predict_cache(cache::reader_of(cache), predictor, each.step, 4));
    const Bytes file = must(format::write_cache_bytes(
        *reader, {.keep_stored = true, .n_threads = 1, .writer = "tqcache golden"}));
    write_new(path, file);
    write_new(folder / (each.name + ".json"), as_bytes(golden_json(file, read).dump(1) + "\n"));
  }
}

void make_v1(const std::filesystem::path& folder) {
  for (const GoldenV1Case& golden : golden_v1_cases()) {
    const std::filesystem::path path = folder / (golden.name + ".tqcache");
    if (std::filesystem::exists(path)) continue;
    const Bytes file = write_v1(golden.make());
    write_new(path, file);
    write_new(folder / (golden.name + ".json"), as_bytes(golden_v1_json(file).dump(1) + "\n"));
  }
}

void make_blobs(const std::filesystem::path& folder) {
  for (const auto& sample : sample_blobs()) {
    const std::filesystem::path path = folder / (sample.name + ".tqkb");
    if (std::filesystem::exists(path)) continue;
    write_new(path, must(store::encode_blob(sample.key, sample.content)));
  }
}

}  // namespace
}  // namespace tqcache::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_golden FOLDER\n", stderr);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  try {
    tqcache::test::make_v1(folder / "v1");
    tqcache::test::make_v2(folder / "v2");
    tqcache::test::make_encrypted(folder / "v2_encrypted");
    tqcache::test::make_predicted(folder / "v2_predicted");
    tqcache::test::make_blobs(folder / "store_v1");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_golden: %s\n", error.what());
    return 1;
  }
  return 0;
}
