// Chat templates: the look-alikes of model families, and the longer programs of the tests.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "fuzz/seeds/seeds.h"

namespace tqcache::fuzz {

void make_chat_template(const SeedFolder& seeds) {
  constexpr std::size_t kMaxBytes = 4096;  // of an input
  const std::filesystem::path data = TQCACHE_TEST_DATA;
  for (const auto& entry : std::filesystem::directory_iterator(data / "chat_templates")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (text.size() <= kMaxBytes) seeds.add(entry.path().stem().string(), text);
  }
  std::ifstream file(data / "jinja_cases.json");
  int n = 0;
  for (const nlohmann::json& one : nlohmann::json::parse(file)["cases"]) {
    const std::string text = one["template"];
    if (!one.contains("text") || text.find("{%") == std::string::npos || text.size() < 60) continue;
    if (++n <= 40) seeds.add("case-" + std::to_string(n), text);
  }
}

}  // namespace tqcache::fuzz
