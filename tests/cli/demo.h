#pragma once
// tests/cli/demo.h: the bundled model and text, and caches made of them.

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/temp_dir.h"

namespace tqcache::test {

inline const std::string kModel = TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.gguf";
inline const std::string kOtherModel = TQCACHE_DEMO_MODEL "/hf";  // the same before quantization
inline const std::string kBook = TQCACHE_DEMO_MODEL "/alice-excerpt.txt";
inline const std::string kAnswer = "Your parrot is called Max.";

inline std::string book_text(std::size_t n_bytes) {
  const Bytes bytes = read_all(kBook);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // A cut inside a character would not be text.
  while (n_bytes < text.size() && (text[n_bytes] & 0xc0) == 0x80) ++n_bytes;
  return text.substr(0, n_bytes);
}

// A conversation that tells of a parrot and asks for its name.
inline std::string parrot_prompt() {
  std::ifstream file(TQCACHE_TEST_DATA "/reference.json");
  return nlohmann::json::parse(file)["prompts"]["chat"]["text"];
}

// The first `n_tokens` tokens of the book, dense.
inline std::string prefill_book(const TempDir& dir, int n_tokens) {
  const std::string path = (dir / ("book" + std::to_string(n_tokens) + ".kv")).string();
  must({"prefill", "-m", kModel, "--file", kBook, "--max-tokens", std::to_string(n_tokens), "-o",
        path});
  return path;
}

inline std::string pack(const std::string& dense, const std::vector<std::string>& flags = {}) {
  const std::string path = dense + ".turbo";
  std::vector<std::string> args = {"convert", dense, path};
  args.insert(args.end(), flags.begin(), flags.end());
  must(args);
  return path;
}

// What `tqcache info` says of a file.
inline nlohmann::json info_of(const std::string& cache,
                              const std::vector<std::string>& flags = {}) {
  std::vector<std::string> args = {"info", cache, "--json"};
  args.insert(args.end(), flags.begin(), flags.end());
  return nlohmann::json::parse(must(args).out);
}

inline std::vector<std::int32_t> tokens_of(const std::string& cache) {
  return info_of(cache, {"--show-text"})["token_ids"];
}

inline std::string text_of(const std::string& cache) {
  return info_of(cache, {"--show-text", "-m", kModel})["text"];
}

// "1,2,3", as --ids takes it.
inline std::string id_list(const std::vector<std::int32_t>& ids) {
  std::string list;
  for (const std::int32_t id : ids) {
    list.append(list.empty() ? "" : ",").append(std::to_string(id));
  }
  return list;
}

// `tqcache generate` with these flags, as its JSON object.
inline nlohmann::json generate(const std::vector<std::string>& flags) {
  std::vector<std::string> args = {"generate", "-m", kModel, "--json"};
  args.insert(args.end(), flags.begin(), flags.end());
  return nlohmann::json::parse(must(args).out);
}

inline std::vector<std::int32_t> generate_ids(const std::vector<std::string>& flags) {
  return generate(flags)["token_ids"];
}

}  // namespace tqcache::test
