// Reads .tqkv files whose names come on standard input, one a line, and answers each with a line of
// JSON on standard output: {"refused": message}, or what is in the file, with the number of values
// of every section. The values follow such a line, as f32.
//
// The other half of differential_fuzz.py.

#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "section_values.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/tqkv.h"

namespace tqcache {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxBytes = std::uint64_t{256} << 20;

Json hashes_of(const cache::Cache& cache) {
  if (!cache.hidden_tokens) return nullptr;
  Json hashes = Json::array();
  for (const Sha256& hash : *cache.hidden_tokens) hashes.push_back(to_hex(hash));
  return hashes;
}

Result<Json> read(const std::string& path, std::vector<float>& all) {
  TQC_TRY_ASSIGN(const auto file, open_file(path));
  TQC_TRY_ASSIGN(const format::CacheFileInfo info, format::read_cache_info(*file));
  TQC_TRY_ASSIGN(
      const cache::Cache cache,
      format::read_cache(*file, {.n_threads = 1,
                                 .verify_digests = true,
                                 .access = {.memory = MemoryBudget().at_most(kMaxBytes)}}));
  Json json;
  json["tokens"] = cache.tokens;
  json["token_block_hashes"] = hashes_of(cache);
  json["content_name"] = to_hex(info.content_name);
  json["generation"] = info.generation;
  json["n_gaps"] = info.gaps.size();
  json["other_slot_damaged"] = !info.damage.empty();
  json["sections"] = Json::array();
  const auto add = [&](const cache::Cache& state, const cache::CacheDesc& description,
                       std::span<const format::SectionInfo> sections, std::int64_t first_layer) {
    for (format::SectionInfo section : sections) {
      json["sections"].push_back(
          {section.layer, static_cast<int>(section.tensor), section.block, int{section.packed}, 0});
      section.layer -= first_layer;
      const std::vector<float> values = section.packed
                                            ? test::packed_values(state, section)
                                            : test::dense_values(state, description, section);
      json["sections"].back().back() = values.size();
      all.insert(all.end(), values.begin(), values.end());
    }
  };
  const std::span<const format::SectionInfo> sections = info.sections;
  std::size_t first = format::count_cache_sections(info);
  add(cache, info, sections.first(first), 0);
  TQC_TRY_ASSIGN(const auto reader, format::SectionReader::open(*file));
  auto first_layer = std::ssize(info.layers);
  json["checkpoints"] = Json::array();
  for (const cache::Checkpoint& checkpoint : reader.checkpoints()) {
    const cache::CacheReader& state = *checkpoint.state;
    TQC_TRY_ASSIGN(const cache::Cache loaded,
                   cache::load(state, {MemoryBudget().at_most(kMaxBytes), 1}));
    add(loaded, state.description(), sections.subspan(first, state.blocks().size()), first_layer);
    first += state.blocks().size();
    first_layer += std::ssize(state.description().layers);
    json["checkpoints"].push_back(state.n_tokens());
  }
  return json;
}

int run() {
  for (std::string path; std::getline(std::cin, path);) {
    std::vector<float> values;
    Json answer;
    try {
      const Result<Json> found = read(path, values);
      if (found) {
        answer = *found;
      } else {
        values.clear();
        answer["refused"] = found.error().message;
      }
    } catch (const std::bad_alloc&) {
      values.clear();
      answer["refused"] = "out of memory";
    }
    constexpr auto kReplace = Json::error_handler_t::replace;
    std::cout << answer.dump(-1, ' ', true, kReplace) << '\n';
    const auto bytes = std::as_bytes(std::span(values));
    std::cout.write(reinterpret_cast<const char*>(bytes.data()),
                    static_cast<std::streamsize>(bytes.size()));
    std::cout.flush();
  }
  return 0;
}

}  // namespace
}  // namespace tqcache

int main() {
  try {
    return tqcache::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "print_values: %s\n", error.what());
    return 1;
  }
}
