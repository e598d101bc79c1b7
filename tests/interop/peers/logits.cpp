// Prints a model's logits, for tests that hold them against another program's.
//
// usage: logits MODEL OUT [--cache FILE] [--prefill IDS] [--save FILE] [--steps IDS]
//
// IDS are numbers with commas between them. Prefills one list and takes decode steps over the
// other, and writes the logits of every token of both to OUT, as f32 values. --save writes the
// cache that is there before the steps. A new cache has f32 values.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tqcache/decoder.h"
#include "tqcache/file.h"
#include "tqcache/model.h"
#include "tqcache/tqkv.h"

namespace {

using namespace tqcache;  // NOLINT

std::vector<std::int32_t> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  std::istringstream in(text);
  for (std::string id; std::getline(in, id, ',');) ids.push_back(std::stoi(id));
  return ids;
}

class Output {
 public:
  explicit Output(const char* path) : file_(std::fopen(path, "wb")) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (file_ != nullptr) std::fclose(file_);
  }
  void add(std::span<const float> values) {
    if (file_ == nullptr || std::fwrite(values.data(), 4, values.size(), file_) != values.size()) {
      std::perror("logits");
      std::exit(1);
    }
  }

 private:
  std::FILE* file_;
};

Result<cache::Cache> open_cache(const model::Model& model, const std::string& path) {
  if (path.empty()) return model::make_cache(model, Dtype::kF32);
  TQC_TRY_ASSIGN(const auto source, open_file(path));
  TQC_TRY_ASSIGN(cache::Cache cache, format::read_cache(*source));
  TQC_TRY(cache::check_identity(cache, model.identity));
  return cache;
}

Result<void> run(const char* model_path, const char* out,
                 std::map<std::string, std::string> flags) {
  TQC_TRY_ASSIGN(const auto model, model::load_model(model_path));
  TQC_TRY_ASSIGN(cache::Cache cache, open_cache(*model, flags["--cache"]));
  model::Decoder decoder(*model, 2);
  Output file(out);
  if (const auto ids = parse_ids(flags["--prefill"]); !ids.empty()) {
    TQC_TRY(decoder.prefill_all_logits(
        cache, ids,
        [&](std::int64_t, std::int64_t, std::span<const float> rows) { file.add(rows); }));
  }
  if (!flags["--save"].empty()) {
    TQC_TRY(format::write_cache_file(cache, flags["--save"], {.overwrite = Overwrite::kAllow}));
  }
  for (const std::int32_t id : parse_ids(flags["--steps"])) {
    TQC_TRY_ASSIGN(const auto logits, decoder.decode_step(cache, id));
    file.add(logits);
  }
  return cache::validate(cache);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc % 2 == 0) return 2;
  std::map<std::string, std::string> flags;
  for (int i = 3; i < argc; i += 2) flags[argv[i]] = argv[i + 1];
  const auto done = run(argv[1], argv[2], std::move(flags));
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
