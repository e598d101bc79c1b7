#pragma once
// tests/fuzz/seeds/seeds.h: what makes the first inputs of the corpora, a file a format.

#include <filesystem>
#include <string_view>

#include "support/temp_dir.h"
#include "tqcache/bytes.h"

namespace tqcache::fuzz {

// Where the inputs of one target go.
class SeedFolder {
 public:
  SeedFolder(const std::filesystem::path& root, std::string_view target) : folder_(root / target) {
    std::filesystem::create_directories(folder_);
  }
  void add(std::string_view name, ByteView bytes) const { test::write_all(folder_ / name, bytes); }
  void add(std::string_view name, std::string_view text) const { add(name, as_bytes(text)); }

 private:
  std::filesystem::path folder_;
};

void make_chat_template(const SeedFolder& seeds);
void make_containers(const SeedFolder& files, const SeedFolder& manifests);
void make_gguf(const SeedFolder& seeds);
void make_hf(const SeedFolder& seeds);
void make_http(const SeedFolder& seeds);
void make_llama_state(const SeedFolder& seeds);
void make_mlx_lm(const SeedFolder& seeds);
void make_model_config(const SeedFolder& seeds);
void make_npz(const SeedFolder& seeds);
void make_prediction(const SeedFolder& seeds);
void make_profile(const SeedFolder& seeds);
void make_redis_answers(const SeedFolder& seeds);
void make_s3_answers(const SeedFolder& seeds);
void make_safetensors(const SeedFolder& seeds);
void make_serve_requests(const SeedFolder& seeds);
void make_sqlite_index(const SeedFolder& seeds);
void make_store_blob(const SeedFolder& seeds);
void make_tokenizer_json(const SeedFolder& seeds);
void make_turbomlx(const SeedFolder& seeds);
void make_v1(const SeedFolder& readers, const SeedFolder& migrated);

}  // namespace tqcache::fuzz
