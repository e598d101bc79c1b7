// Token ids of many texts by the library's own tokenizer, for tests that compare them with another
// one's.
//
// usage: tokenize_lines MODEL < texts.json > ids.json
//
// MODEL is a GGUF file or a folder with tokenizer.json. The input is a JSON array of texts; the
// output an array of [ids, text again] pairs, the ids with what the files add at the ends.

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tqcache/file.h"
#include "tqcache/model/loading/model_files.h"
#include "tqcache/tensors/gguf.h"
#include "tqcache/tokenizer.h"

namespace {

using namespace tqcache;
using Json = nlohmann::json;

Result<tokenizer::Tokenizer> open(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    TQC_TRY_ASSIGN(const Bytes text, model::read_folder_file(path, "tokenizer.json"));
    TQC_TRY_ASSIGN(const Bytes config,
                   model::read_folder_file_if_any(path, "tokenizer_config.json"));
    return tokenizer::Tokenizer::from_json(text, config);
  }
  TQC_TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
  TQC_TRY_ASSIGN(const tensors::Gguf gguf, tensors::read_gguf(file.bytes()));
  return tokenizer::Tokenizer::from_gguf(gguf);
}

Result<Json> tokenize(const tokenizer::Tokenizer& tokenizer, const Json& texts) {
  tokenizer::Tokenizer::EncodeOptions options;
  options.ends = tokenizer::Tokenizer::Ends::kBoth;
  Json all = Json::array();
  for (const Json& text : texts) {
    TQC_TRY_ASSIGN(const auto ids, tokenizer.encode(text.get_ref<const std::string&>(), options));
    std::string bytes = tokenizer.decode(ids);
    std::string whole = tokenizer::take_whole_characters(bytes);
    all.push_back({ids, whole + bytes});
  }
  return all;
}

Result<void> run(const char* path) {
  TQC_TRY_ASSIGN(const tokenizer::Tokenizer tokenizer, open(path));
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  TQC_TRY_ASSIGN(const Json ids, tokenize(tokenizer, Json::parse(input)));
  std::cout << Json{{"fingerprint", to_hex(tokenizer.fingerprint())}, {"texts", ids}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const Result<void> done = run(argv[1]);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
