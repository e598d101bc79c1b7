// tests/interop/peers/run_templates.cpp: chat templates, run by the library, for tests in Python.
//
// Reads one JSON object per line, {"template": TEXT, "variables": {...}, "date": "2026-11-29"}, and
// writes one for each: {"text": TEXT} or {"error": MESSAGE}.

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "tqcache/tokenizer/jinja/jinja_program.h"

namespace tqcache {
namespace {

using nlohmann::ordered_json;
namespace jinja = tokenizer::jinja;

Result<std::string> run(const ordered_json& line) {
  TQC_TRY_ASSIGN(const jinja::Program program,
                 jinja::Program::parse(line.at("template").get<std::string>()));
  jinja::Heap heap(std::uint64_t{1} << 28);
  std::vector<std::pair<std::string, jinja::Value>> variables;
  for (const auto& [name, value] : line.at("variables").items()) {
    TQC_TRY_ASSIGN(jinja::Value held,
                   jinja::value_of_json(heap, value.dump(), jinja::Mark::kTemplate));
    variables.emplace_back(name, std::move(held));
  }
  tokenizer::CivilTime now;
  const bool has_now = line.contains("date");
  if (has_now) {
    const std::string date = line["date"];
    if (std::sscanf(date.c_str(), "%d-%d-%dT%d:%d:%d", &now.year, &now.month, &now.day, &now.hour,
                    &now.minute, &now.second) < 3) {
      return invalid("bad date");
    }
  }
  TQC_TRY_ASSIGN(jinja::Text text,
                 program.run(heap, std::move(variables), has_now ? &now : nullptr));
  return std::move(text.bytes);
}

}  // namespace
}  // namespace tqcache

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto result = tqcache::run(nlohmann::ordered_json::parse(line));
    const nlohmann::json answer = {
        {result ? "text" : "error", result ? *result : result.error().message}};
    std::cout << answer.dump() << "\n";
  }
}
