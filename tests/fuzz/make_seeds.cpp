// Writes what fuzzing begins with: small files of every kind that the targets read. Run by hand, as
// docs/develop/fuzzing.md tells; the corpora in this folder have grown from it.
//
// usage: make_seeds FOLDER     writes FOLDER/TARGET/NAME

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "fuzz/seeds/seeds.h"
#include "support/gaussian.h"

namespace tqcache::fuzz {
namespace {

void make_numbers(const SeedFolder& seeds) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    test::SplitMix64 random(seed);
    Bytes bytes(16 + 8 * seed);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    seeds.add(std::to_string(seed), bytes);
  }
}

void make_all(const std::filesystem::path& root) {
  make_chat_template({root, "chat_template"});
  make_containers({root, "container"}, {root, "manifest"});
  make_v1({root, "v1"}, {root, "migrate"});
  make_safetensors({root, "safetensors"});
  make_gguf({root, "gguf"});
  make_tokenizer_json({root, "tokenizer_json"});
  make_hf({root, "hf"});
  make_http({root, "http"});
  make_llama_state({root, "llama_state"});
  make_mlx_lm({root, "mlx_lm"});
  make_model_config({root, "model_config"});
  make_npz({root, "npz"});
  make_prediction({root, "prediction"});
  make_profile({root, "profile"});
  make_redis_answers({root, "redis_answers"});
  make_s3_answers({root, "s3_answers"});
  make_serve_requests({root, "serve_requests"});
  make_sqlite_index({root, "sqlite_index"});
  make_store_blob({root, "store_blob"});
  make_turbomlx({root, "turbomlx"});
  for (const char* target :
       {"c_interface", "decoder", "kernels_agree", "store_backend", "write_read_equal"}) {
    make_numbers({root, target});
  }
}

}  // namespace
}  // namespace tqcache::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds FOLDER\n");
    return 2;
  }
  try {
    tqcache::fuzz::make_all(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_seeds: %s\n", error.what());
    return 1;
  }
}
