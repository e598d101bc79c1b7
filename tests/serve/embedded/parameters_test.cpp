// The table of parameters is that of the document, and the readers do what it says.

#include "tqcache/serve/embedded/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tqcache/serve/embedded/client_request.h"

namespace tqcache::serve {
namespace {

using nlohmann::json;

constexpr Dialect kDialects[] = {Dialect::kChat, Dialect::kCompletion, Dialect::kMessages,
                                 Dialect::kResponses};

MaybeApiError read(Dialect dialect, const json& body) {
  ChatRequest chat;
  CompletionRequest completion;
  switch (dialect) {
    case Dialect::kChat:
      return read_chat_request(body.dump(), chat);
    case Dialect::kCompletion:
      return read_completion_request(body.dump(), completion);
    case Dialect::kMessages:
      return read_messages_request(body.dump(), false, chat);
    case Dialect::kResponses:
      return read_responses_request(body.dump(), chat);
  }
  throw std::runtime_error("no such dialect");
}

// A request that is accepted, with an object or a list at each place that a row can name.
json smallest(Dialect dialect) {
  const json parts = json::parse(R"([{"type": "text", "text": "Hi"}])");
  const json messages = json::array({json::object({{"role", "user"}, {"content", parts}})});
  switch (dialect) {
    case Dialect::kChat: {
      json call = json::parse(R"({"id": "a", "function": {"name": "f", "arguments": "{}"}})");
      json answer = json::object({{"role", "assistant"}, {"content", parts}});
      answer["tool_calls"] = json::array({call});
      const json tool = json::parse(R"({"type": "function", "function": {"name": "f"}})");
      return {{"messages", json::array({answer})}, {"tools", json::array({tool})}};
    }
    case Dialect::kCompletion:
      return {{"prompt", "Hi"}};
    case Dialect::kMessages:
      return {{"messages", messages},
              {"max_tokens", 5},
              {"system", parts},
              {"tools", json::parse(R"([{"name": "f", "input_schema": {}}])")}};
    case Dialect::kResponses:
      return {{"input", messages},
              {"tools", json::parse(R"([{"type": "function", "name": "f", "parameters": {}}])")}};
  }
  throw std::runtime_error("no such dialect");
}

// The same for a row. Anthropic's parts of a content have fields of their own.
json smallest_for(Dialect dialect, const std::string& name) {
  json request = smallest(dialect);
  if (dialect == Dialect::kResponses) {
    if (name == "input[].call_id" || name == "input[].name" || name == "input[].arguments") {
      request["input"][0] = json::parse(
          R"({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"})");
    } else if (name.starts_with("input[].output")) {
      request["input"][0] = json::parse(
          R"({"type": "function_call_output", "call_id": "a",
              "output": [{"type": "input_text", "text": ""}]})");
    }
    return request;
  }
  if (dialect != Dialect::kMessages || !name.starts_with("messages[].content[].")) return request;
  const std::string field = name.substr(std::string("messages[].content[].").size());
  json& message = request["messages"][0];
  if (field == "id" || field == "name" || field == "input") {
    message["content"] =
        json::parse(R"([{"type": "tool_use", "id": "a", "name": "f", "input": {}}])");
    message["role"] = "assistant";
    request["messages"].push_back({{"role", "user"}, {"content", "Hi"}});
  } else if (field == "thinking") {
    message["content"] = json::parse(R"([{"type": "thinking", "thinking": "Hm."}])");
    message["role"] = "assistant";
    request["messages"].push_back({{"role", "user"}, {"content", "Hi"}});
  } else if (field.starts_with("content") || field == "tool_use_id" || field == "is_error") {
    message["content"] = json::parse(
        R"([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": ""}]}])");
  }
  return request;
}

// The request with `value` at "messages[].content[].text", where [] is the first of a list.
json with(json request, std::string name, const json& value) {
  json* at = &request;
  for (std::size_t end = 0; (end = name.find('.')) != std::string::npos; name.erase(0, end + 1)) {
    std::string key = name.substr(0, end);
    const bool is_list = key.ends_with("[]");
    if (is_list) key.resize(key.size() - 2);
    at = &(*at)[key];
    if (is_list) at = &(*at)[0];
  }
  (*at)[name == "*" ? "no_such_field" : name] = value;
  return request;
}

// "messages[0].role" is "messages[].role".
std::string place_of(std::string param) {
  for (std::size_t at = 0; (at = param.find("[0]")) != std::string::npos;) param.erase(at + 1, 1);
  return param;
}

// "| `n` | only `1` | ..." as {"n", "only 1", ...}; empty if the line is no row.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  if (!line.starts_with("| `")) return cells;
  for (std::size_t at = 1; at < line.size();) {
    const std::size_t end = line.find('|', at);
    if (end == std::string::npos) break;
    std::string cell = line.substr(at, end - at);
    std::erase(cell, '`');
    cell.erase(0, cell.find_first_not_of(' '));
    cell.erase(cell.find_last_not_of(' ') + 1);
    cells.push_back(cell);
    at = end + 1;
  }
  return cells;
}

TEST(Parameters, TheDocumentListsExactlyTheTable) {
  std::ifstream file(TQCACHE_HTTP_DOCUMENT);
  ASSERT_TRUE(file);
  std::vector<std::vector<std::string>> documented;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) is_inside = line.find("Parameters of all dialects") != line.npos;
    if (!is_inside) continue;
    if (auto cells = cells_of(line); !cells.empty()) documented.push_back(std::move(cells));
  }
  std::vector<std::vector<std::string>> table;
  for (const Parameter& row : parameters()) {
    std::vector<std::string> cells{std::string(row.name)};
    for (const std::string_view treatment : row.treatments) {
      cells.emplace_back(treatment.empty() ? "refused" : treatment);
    }
    table.push_back(std::move(cells));
  }
  ASSERT_EQ(documented.size(), table.size());
  for (std::size_t i = 0; i < table.size(); ++i) EXPECT_EQ(documented[i], table[i]);
}

TEST(Parameters, WhatHasNoRowIsRefusedByName) {
  for (const Dialect dialect : kDialects) {
    EXPECT_FALSE(read(dialect, smallest(dialect)));
    for (const char* name :
         {"dry_multiplier", "thinking.type", "messages[].role", "reasoning.*", "*", "", "."}) {
      json request = smallest(dialect);
      request[name] = 1;
      const MaybeApiError error = read(dialect, request);
      ASSERT_TRUE(error) << name;
      EXPECT_EQ(error->status, 400);
      EXPECT_EQ(error->param, name);
      EXPECT_EQ(error->code, "unknown_parameter");
      request[name] = nullptr;
      EXPECT_FALSE(read(dialect, request)) << name;
    }
  }
}

TEST(Parameters, EachIsTreatedAsItsRowSays) {
  // Nothing that is read takes this value.
  const json odd = json::array({json::array({nullptr})});
  for (const Parameter& row : parameters()) {
    for (const Dialect dialect : kDialects) {
      const std::string name(row.name);
      const std::string_view treatment = row.treatment(dialect);
      SCOPED_TRACE(name + ", dialect " + std::to_string(static_cast<int>(dialect)));
      const json base = smallest_for(dialect, name);
      const std::string outer = name.substr(0, name.find_first_of(".["));
      if (outer != name && !base.contains(outer)) {
        // A field of an object that the request may lack. Whatever the outer one is, it decides.
        const Parameter* const parent = find_parameter("", outer);
        ASSERT_NE(parent, nullptr);
        if (parent->treatment(dialect) != "read" || name.find('[') != name.npos) {
          EXPECT_EQ(treatment, "");
          continue;
        }
      }
      const MaybeApiError error = read(dialect, with(base, name, odd));
      if (treatment == "ignored") {
        EXPECT_FALSE(error) << error->message;
        continue;
      }
      ASSERT_TRUE(error);
      EXPECT_EQ(error->status, 400);
      if (treatment.empty()) {
        // An object may be refused as a whole.
        if (error->param != outer) {
          EXPECT_EQ(error->code, "unknown_parameter");
        }
      } else if (treatment == "read") {
        EXPECT_EQ(error->code, "");
        EXPECT_TRUE(place_of(error->param).starts_with(name)) << error->param;
      } else {
        EXPECT_EQ(error->code, "unsupported_parameter");
        EXPECT_EQ(place_of(error->param), name);
        EXPECT_THAT(error->message, testing::HasSubstr(std::string(row.reason)));
        // The values that ask for nothing.
        std::string values(treatment.substr(5));
        for (std::size_t end = 0; (end = values.find(" or ")) != values.npos;) {
          values.replace(end, 4, ",");
        }
        for (const json& value : json::parse("[" + values + "]")) {
          EXPECT_FALSE(read(dialect, with(base, name, value))) << value;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tqcache::serve
