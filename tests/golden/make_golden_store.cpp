// Writes the golden blobs that are not there yet.
//
// usage: make_golden_store FOLDER (tests/golden/store_v1)

#include <cstdio>
#include <exception>
#include <filesystem>

#include "store/blob_fixture.h"
#include "support/temp_dir.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_golden_store FOLDER\n", stderr);
    return 2;
  }
  try {
    std::filesystem::create_directories(argv[1]);
    for (const auto& sample : tqcache::test::sample_blobs()) {
      const auto path = std::filesystem::path(argv[1]) / (sample.name + ".tqkb");
      if (std::filesystem::exists(path)) continue;
      const auto blob =
          tqcache::test::must(tqcache::store::encode_blob(sample.key, sample.content));
      tqcache::test::write_all(path, blob);
      std::printf("%s: %zu bytes\n", path.c_str(), blob.size());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_golden_store: %s\n", error.what());
    return 1;
  }
  return 0;
}
