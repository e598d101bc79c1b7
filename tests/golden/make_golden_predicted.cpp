// Writes the golden files of prediction that are not there yet: a profile, and archives made with
// it, each with its JSON twin.
//
// usage: make_golden_predicted FOLDER (tests/golden/v2_predicted)

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

#include "golden_json.h"
#include "support/small_profile.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/section_writer.h"
#include "tqcache/predict/predictor.h"

namespace tqcache::test {
namespace {

void write_new(const std::filesystem::path& path, ByteView bytes) {
  if (std::filesystem::exists(path)) throw std::runtime_error(path.string() + " exists");
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error(path.string() + " cannot be written");
}

void make(const std::filesystem::path& folder) {
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
    std::printf("%s: %zu bytes\n", each.name.c_str(), file.size());
  }
}

}  // namespace
}  // namespace tqcache::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_golden_predicted FOLDER\n", stderr);
    return 2;
  }
  try {
    tqcache::test::make(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_golden_predicted: %s\n", error.what());
    return 1;
  }
  return 0;
}
