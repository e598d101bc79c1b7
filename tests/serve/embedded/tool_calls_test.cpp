// Calls of tools in answers: what is one, what stays text, and in which pieces it may come.

#include "tqcache/serve/embedded/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tqcache::serve {
namespace {

struct Taken {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // names and arguments
  bool operator==(const Taken&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Taken& taken) {
  out << '"' << taken.text << '"';
  for (const auto& [name, arguments] : taken.calls) out << ' ' << name << ' ' << arguments;
  return out;
}

// What is taken of a text in pieces of `size` bytes.
Taken take(const std::string& text, std::size_t size) {
  ToolCallReader reader;
  Taken taken;
  for (std::size_t at = 0; at < text.size(); at += size)
    taken.text += reader.add(text.substr(at, size));
  taken.text += reader.end();
  for (const ToolCall& call : reader.calls()) taken.calls.emplace_back(call.name, call.arguments);
  return taken;
}

void expect_taken(const std::string& text, const Taken& taken) {
  for (std::size_t size = 1; size <= text.size(); ++size) {
    ASSERT_EQ(take(text, size), taken) << text << " in pieces of " << size;
  }
}

TEST(ToolCalls, AreTakenOutOfTheText) {
  expect_taken(
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": 2.50}}\n</tool_call>",
      {"", {{"f", "{\"z\": 1, \"a\": 2.50}"}}});
  expect_taken("I look.\n\n<tool_call>{\"arguments\":{},\"name\":\"f\"}</tool_call>\n",
               {"I look.", {{"f", "{}"}}});
  expect_taken(
      "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
      "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"a\": {\"b\": []}}}\n</tool_call> \n",
      {"", {{"f", "{}"}, {"g", "{\"a\": {\"b\": []}}"}}});
  // Both tags may be spelled out in an argument, the first one without harm.
  expect_taken("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"<tool_call>\"}}</tool_call>",
               {"", {{"f", "{\"a\": \"<tool_call>\"}"}}});
  expect_taken("a<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>b",
               {"ab", {{"f", "{}"}}});
}

TEST(ToolCalls, OthersStayText) {
  for (const char* text :
       {"", " ", "Hello.\n", "a < b, <tool", "<tool_call>", "\n<tool_call>\n{\"name\": \"f\"",
        "<tool_call></tool_call>", "<tool_call>\nf\n</tool_call> ", "</tool_call>",
        "<tool_call>[1]</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>",
        "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"name\": \"g\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}} </tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"}) {
    expect_taken(text, {text, {}});
  }
}

TEST(ToolCalls, HostileAnswersAreText) {
  std::string deep = "<tool_call>{\"name\": \"f\", \"arguments\": ";
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  deep += "</tool_call>";
  std::string open;
  for (int i = 0; i < 20'000; ++i) open += "<tool_call>";
  for (const std::string& text : {deep, open, std::string(300'000, '\n') + "x"}) {
    EXPECT_EQ(take(text, text.size()), (Taken{text, {}}));
    EXPECT_EQ(take(text, 1000), (Taken{text, {}}));
  }
}

TEST(ToolCalls, AreFieldsOfAMessage) {
  EXPECT_EQ(assistant_fields(true, {}, {}), "");
  EXPECT_EQ(assistant_fields(true, {}, "\"so\""), R"({"reasoning_content":"\"so\""})");
  const std::vector<ToolCall> calls = {{"1", "f", "{\"z\": 0}"}, {"2", "g\n", "{}"}};
  EXPECT_EQ(assistant_fields(false, calls, {}),
            R"({"content":null,"tool_calls":[)"
            R"({"id":"1","type":"function","function":{"name":"f","arguments":{"z": 0}}},)"
            R"({"id":"2","type":"function","function":{"name":"g\n","arguments":{}}}]})");
}

TEST(ToolCalls, MembersAreFoundAsTheyAreWritten) {
  const std::string object =
      R"( {"a" : [1, {"b": "]\"}"}] , "c\\\"": -1.50e3, "\u0064": "x,\\" ,"e":{}, "f" :null })";
  ASSERT_TRUE(nlohmann::json::accept(object));
  EXPECT_EQ(raw_member(object, "a"), R"([1, {"b": "]\"}"}])");
  EXPECT_EQ(raw_member(object, "c\\\""), "-1.50e3");
  EXPECT_EQ(raw_member(object, "d"), R"("x,\\")");
  EXPECT_EQ(raw_member(object, "e"), "{}");
  EXPECT_EQ(raw_member(object, "f"), "null");
  EXPECT_EQ(raw_member(object, "b"), std::nullopt);
  EXPECT_EQ(raw_member("{}", "b"), std::nullopt);
}

}  // namespace
}  // namespace tqcache::serve
