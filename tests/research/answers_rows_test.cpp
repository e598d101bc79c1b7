#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/cache_builder.h"
#include "support/failing_source.h"
#include "support/matchers.h"
#include "tqcache/research/answers_jsonl.h"

namespace tqcache::research {
namespace answers_rows_test {

using test::must;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<ByteSource> source_of(std::string_view text) {
  const ByteView view = as_bytes(text);
  return memory_source(Bytes(view.begin(), view.end()));
}

Error error_of(std::string_view json) {
  const auto row = parse_answer_row(json);
  return row ? Error{ErrorCode::kIo, "no error"} : row.error();
}

TEST(AnswerRow, TakesItsTextsInOneOrder) {
  const AnswerRow row = must(parse_answer_row(
      R"({"question": "q", "input": "i", "prompt": "p", "context": "c", "answers": ["x"]})"));
  EXPECT_THAT(row.texts, ElementsAre("p", "c", "i", "q"));
  EXPECT_THAT(row.answers, ElementsAre("x"));
}

TEST(AnswerRow, TakesOneAnswerOrSeveral) {
  EXPECT_THAT(must(parse_answer_row(R"({"prompt": "p", "answer": "x"})")).answers,
              ElementsAre("x"));
  EXPECT_THAT(
      must(parse_answer_row(R"({"prompt": "p", "answers": ["x", "y"], "answer": "z"})")).answers,
      ElementsAre("x", "y", "z"));
}

TEST(AnswerRow, LooksAtNoOtherKeys) {
  EXPECT_TRUE(
      parse_answer_row(R"({"prompt": "p", "answer": "x", "id": [1, {}], "context": null})"));
}

TEST(AnswerRow, RefusesWhatIsNotOne) {
  for (const auto& [json, message] :
       {std::pair{"", ""},
        {"[1]", ""},
        {"{\"prompt\": \"p\"", ""},
        {"{\"answer\": \"x\"}", "no prompt: a row needs"},
        {"{\"prompt\": \"\", \"answer\": \"x\"}", "no prompt: a row needs"},
        {"{\"prompt\": 7, \"answer\": \"x\"}", "prompt"},
        {"{\"prompt\": \"p\"}", "no expected answer"},
        {"{\"prompt\": \"p\", \"answers\": []}", "no expected answer"},
        {"{\"prompt\": \"p\", \"answers\": \"x\"}", "answers"},
        {"{\"prompt\": \"p\", \"answers\": [1]}", "not a list of strings"},
        {"{\"prompt\": \"p\", \"answer\": \"!\"}", "without a letter"}}) {
    const Error error = error_of(json);
    EXPECT_EQ(error.code, ErrorCode::kCorrupt) << json;
    EXPECT_THAT(error.message, HasSubstr(message)) << json;
  }
}

TEST(AnswerRow, RefusesDeepNesting) {
  const std::string deep(100000, '[');
  EXPECT_EQ(error_of("{\"prompt\": " + deep).code, ErrorCode::kTooLarge);
}

TEST(AnswerRows, ComeOneAfterAnotherWithTheirLines) {
  const auto source = source_of(
      "{\"prompt\": \"a\", \"answer\": \"x\"}\n\n \r\n{\"prompt\": \"b\", \"answer\": \"y\"}");
  AnswerRows rows(*source);
  const auto first = must(rows.next());
  EXPECT_EQ(first->line, 1);
  EXPECT_THAT(first->texts, ElementsAre("a"));
  const auto second = must(rows.next());
  EXPECT_EQ(second->line, 4);
  EXPECT_THAT(second->texts, ElementsAre("b"));
  EXPECT_FALSE(must(rows.next()));
  EXPECT_FALSE(must(rows.next()));
}

TEST(AnswerRows, MayBeLongerThanWhatIsReadAtOnce) {
  const std::string text(200000, 'a');
  std::string lines;
  for (int i = 0; i < 3; ++i) lines += "{\"prompt\": \"" + text + "\", \"answer\": \"x\"}\n";
  const auto source = source_of(lines);
  AnswerRows rows(*source);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(must(rows.next())->texts[0], text);
  EXPECT_FALSE(must(rows.next()));
}

TEST(AnswerRows, NameTheLineOfABadOne) {
  const auto source = source_of("{\"prompt\": \"a\", \"answer\": \"x\"}\n\n{}\n");
  AnswerRows rows(*source);
  must(rows.next());
  EXPECT_THAT(rows.next(), test::FailsWith(ErrorCode::kCorrupt, testing::StartsWith("line 3: ")));
}

TEST(AnswerRows, ReportADiskThatFails) {
  const ByteView line = as_bytes("{\"prompt\": \"a\", \"answer\": \"x\"}\n");
  const test::FailingSource source(Bytes(line.begin(), line.end()), 0);
  AnswerRows rows(source);
  EXPECT_THAT(rows.next(), test::FailsWith(ErrorCode::kIo, HasSubstr("the disk went bad")));
}

// An endless source. The reader must not keep more of it than the limit.
class EndlessLine : public ByteSource {
 public:
  std::uint64_t size() const override { return std::uint64_t{1} << 50; }
  Result<void> read_at(std::uint64_t, std::span<std::byte> out) const override {
    std::ranges::fill(out, std::byte{'a'});
    return {};
  }
};

TEST(AnswerRows, RefuseALineWithoutAnEnd) {
  const EndlessLine source;
  AnswerRows rows(source);
  const auto row = rows.next();
  ASSERT_FALSE(row);
  EXPECT_EQ(row.error().code, ErrorCode::kTooLarge);
}

}  // namespace answers_rows_test
}  // namespace tqcache::research
