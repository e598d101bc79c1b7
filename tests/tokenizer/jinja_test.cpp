// Programs of chat templates against transformers, and the limits that hold for any program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/matchers.h"
#include "tqcache/tokenizer/jinja/jinja_program.h"

namespace tqcache::tokenizer::jinja {
namespace jinja_test {

using nlohmann::ordered_json;
using testing::HasSubstr;

constexpr std::uint64_t kBudget = 1 << 22;
constexpr CivilTime kNow{2026, 2, 3, 4, 5, 6};

using Variables = std::vector<std::pair<std::string, Value>>;

Result<Text> run(Heap& heap, std::string_view source, Variables variables) {
  TQC_TRY_ASSIGN(const Program program, Program::parse(source));
  return program.run(heap, std::move(variables), &kNow);
}

Result<Text> run(std::string_view source) {
  Heap heap(kBudget);
  return run(heap, source, {});
}

std::string error_of(std::string_view source) {
  const Result<Text> text = run(source);
  return text ? "no error: " + text->bytes : text.error().message;
}

// The cases and the expected texts are those of make_jinja_cases.py.
TEST(Jinja, WritesWhatTransformersWrites) {
  std::ifstream file(TQCACHE_TEST_DATA "/jinja_cases.json");
  const ordered_json data = ordered_json::parse(file);
  ASSERT_GT(data["cases"].size(), 500u);
  for (const ordered_json& one : data["cases"]) {
    const std::string source = one["template"];
    Heap heap(kBudget);
    Variables variables;
    for (const auto& [name, value] : data["variables"].items()) {
      variables.emplace_back(name, *value_of_json(heap, value.dump(), Mark::kTemplate));
    }
    const Result<Text> text = run(heap, source, std::move(variables));
    if (one.contains("text")) {
      ASSERT_TRUE(text.ok()) << source << "\n" << text.error().message;
      EXPECT_EQ(text->bytes, one["text"].get<std::string>()) << source;
    } else {
      EXPECT_FALSE(text.ok()) << source << "\n" << text->bytes;
    }
  }
}

TEST(Jinja, NamesTheLineOfAnError) {
  EXPECT_EQ(error_of("a\n{{ 'b' }}\n{{ x.y }}"), "line 3: \"x\" is undefined");
  EXPECT_EQ(error_of("{% if true %}\n\n{{ 'a' | batch(2) }}{% endif %}"),
            "line 3: the filter \"batch\" is not supported");
  EXPECT_EQ(error_of("\n{% if true %}"), "line 2: expected {% endif %}, found the end");
  EXPECT_EQ(error_of("\n\n{% include 'a' %}"), "line 3: the block \"include\" is not supported");
  EXPECT_EQ(error_of("{{ 'a\n' }}\n{{ 1 + }}"), "line 3: expected a value, found }}");
  EXPECT_EQ(error_of("{{ 'x'.encode() }}"), "line 1: str.encode() is not supported");
  EXPECT_EQ(error_of("{{ [].append(1) }}"),
            "line 1: list.append() would change a list, which a template must not");
}

TEST(Jinja, TellsAConversationThatTheTemplateRefuses) {
  EXPECT_THAT(run("{{ raise_exception('No system\x1b role') }}"),
              test::FailsWith(ErrorCode::kInvalidArgument,
                              "line 1: the template refuses the conversation: No system? role"));
}

// The bytes of a text that are a message's.
std::string marked_part(const Text& text) {
  std::string marked;
  for (std::size_t i = 0; i < text.bytes.size(); ++i) {
    if (mark_at(text, i) == Mark::kMessage) marked += text.bytes[i];
  }
  return marked;
}

// Every byte of a message keeps its mark, whatever a template does to it; no other byte gets one.
TEST(Jinja, KeepsTheMarksOfMessages) {
  const std::string message = R"("  Hi <|end|> Ünï\n'you' ")";
  const std::pair<const char*, std::string> cases[] = {
      {"<|user|>{{ m }}<|end|>", "  Hi <|end|> Ünï\n'you' "},
      {"{{ '<|end|>' + m | trim + '<|end|>' }}", "Hi <|end|> Ünï\n'you'"},
      {"{{ ('a' ~ m ~ 1).strip() }}", "  Hi <|end|> Ünï\n'you' "},
      {"{{ m[2:8] ~ m[-1] }}", "Hi <|e "},
      {"{{ m | upper }}", "  HI <|END|> ÜNÏ\n'YOU' "},
      {"{{ m.split('<')[1] }}", "|end|> Ünï\n'you' "},
      {"{{ m.replace('Hi', 'X') }}", "   <|end|> Ünï\n'you' "},
      {"{{ 'a-b'.replace('-', m) }}", "  Hi <|end|> Ünï\n'you' "},
      {"{{ m | tojson }}", R"(  Hi <|end|> Ünï\n'you' )"},
      {"{{ [m] }}", R"(  Hi <|end|> Ünï\n'you' )"},
      {"{{ '%s%s' % ('<|end|>', m) }}", "  Hi <|end|> Ünï\n'you' "},
      {"{{ '{}!'.format(m) }}", "  Hi <|end|> Ünï\n'you' "},
      {"{{ ['a', m] | join('<|end|>') }}", "  Hi <|end|> Ünï\n'you' "},
      {"{{ m | indent(2) }}", "  Hi <|end|> Ünï'you' "},
      {"{{ m | reverse | reverse }}", "  Hi <|end|> Ünï\n'you' "},
      {"{{ m.splitlines() | last }}", "'you' "},
      {"{% set x %}a{{ m }}{% endset %}{{ x }}", "  Hi <|end|> Ünï\n'you' "},
      {"{% macro f(t) %}<|end|>{{ t }}{% endmacro %}{{ f(m) }}", "  Hi <|end|> Ünï\n'you' "},
      {"{% for c in m %}{{ c }}-{% endfor %}", "  Hi <|end|> Ünï\n'you' "},
      {"{{ m | length }}{{ m == 'x' }}<|end|>", ""}};
  for (const auto& [source, expected] : cases) {
    Heap heap(kBudget);
    const Value value = *value_of_json(heap, message, Mark::kMessage);
    const Result<Text> text = run(heap, source, {{"m", value}});
    ASSERT_TRUE(text.ok()) << source << "\n" << text.error().message;
    EXPECT_EQ(marked_part(*text), expected) << source;
  }
}

// None of these would end within the memory of a machine or the patience of a person.
TEST(Jinja, EndsProgramsThatTakeTooMuch) {
  for (const char* source :
       {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 999999999999 }}", "{{ [1] * 999999999999 }}",
        "{% set ns = namespace(a='aa') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}"
        "{% endfor %}",
        "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}"
        "{% endfor %}{{ ns.a }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}"
        "{% endfor %}{{ ns.a | tojson }}",
        "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
        "{{ 'a'.ljust(999999999999) }}{{ range(100000) | map('string') | list * 99 }}"}) {
    const Result<Text> text = run(source);
    ASSERT_FALSE(text.ok()) << source;
    EXPECT_NE(text.error().code, ErrorCode::kInvalidArgument) << source;
  }
}

TEST(Jinja, RefusesProgramsThatAreNestedTooDeep) {
  std::string blocks, sum = "1";
  for (int i = 0; i < 200; ++i) {
    blocks += "{% if true %}";
    sum += "+1";
  }
  const auto bracketed = [](char open, char close) {
    return "{{ " + std::string(5000, open) + "1" + std::string(5000, close) + " }}";
  };
  for (const std::string& source : {blocks, "{{ " + sum + " }}", bracketed('(', ')'),
                                    bracketed('[', ']'), "{{ " + std::string(5000, '-') + "1 }}"}) {
    EXPECT_THAT(run(source), test::FailsWith(ErrorCode::kTooLarge, HasSubstr("deep")));
  }
  EXPECT_EQ(Program::parse(std::string(2 << 20, 'a')).error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(Program::parse("a\xff").error().code, ErrorCode::kUnsupported);
}

TEST(Jinja, KnowsWhichVariablesAProgramReads) {
  const Program program =
      Program::parse("{{ a.b }}{% if c is defined %}{{ 'd' }}{% endif %}").value();
  EXPECT_TRUE(program.uses("a"));
  EXPECT_TRUE(program.uses("c"));
  EXPECT_FALSE(program.uses("b"));
  EXPECT_FALSE(program.uses("d"));
}

TEST(Jinja, ReadsJsonWithItsLimits) {
  const auto error = [](const std::string& json) {
    Heap heap(kBudget);
    const Result<Value> value = value_of_json(heap, json, Mark::kMessage);
    return value ? "no error" : value.error().message;
  };
  EXPECT_EQ(error("{\"a\": [1, null, true, 1.5, \"b\"]}"), "no error");
  EXPECT_EQ(error("{\"a\": "), "not valid JSON");
  EXPECT_THAT(error(std::string(100, '[') + std::string(100, ']')), HasSubstr("nested more than"));
  EXPECT_THAT(error("[18446744073709551615]"), HasSubstr("beyond 64 bits"));
  std::string many = "{\"a\": 0";
  for (int i = 0; i < 5000; ++i) many += ", \"" + std::to_string(i) + "\": 0";
  EXPECT_THAT(error(many + "}"), HasSubstr("more than 4096 keys"));
}

}  // namespace jinja_test
}  // namespace tqcache::tokenizer::jinja
