#include "tqcache/research/answers_jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "research/demo_dialogue.h"
#include "support/matchers.h"

namespace tqcache::research {
namespace answers_jsonl_test {

using test::chat_dialogue;
using test::demo_model;
using test::must;
using testing::HasSubstr;
using testing::StartsWith;

std::unique_ptr<ByteSource> source_of(std::string_view text) {
  const ByteView view = as_bytes(text);
  return memory_source(Bytes(view.begin(), view.end()));
}

std::string text_of(const Ids& ids) { return demo_model().tokenizer.decode(ids); }

JsonlOptions options() {
  JsonlOptions options;
  options.configurations = must(cache::parse_configurations("f32,turbo4"));
  options.max_tokens = 16;
  options.n_threads = 2;
  return options;
}

TEST(RowPrompt, ReadsAllButTheLastText) {
  const RowPrompt prompt = must(row_prompt({1, {"Read.", "A text.", "Who?"}, {"x"}},
                                           demo_model().tokenizer, chat_dialogue()));
  EXPECT_EQ(text_of(prompt.cached), "<|im_start|>user\nRead.\n\nA text.\n\n");
  EXPECT_EQ(text_of(prompt.asked), "Who?<|im_end|>\n<|im_start|>assistant\n");
}

TEST(RowPrompt, OfOneTextReadsThatText) {
  const RowPrompt prompt =
      must(row_prompt({1, {"Who?"}, {"x"}}, demo_model().tokenizer, chat_dialogue()));
  EXPECT_EQ(text_of(prompt.cached), "<|im_start|>user\nWho?");
  EXPECT_EQ(text_of(prompt.asked), "<|im_end|>\n<|im_start|>assistant\n");
}

TEST(RowPrompt, WithoutTurnsAsksWithTheEndOfTheText) {
  const RowPrompt prompt =
      must(row_prompt({1, {"Once upon a"}, {"time"}}, demo_model().tokenizer, Dialogue{}));
  EXPECT_EQ(text_of(prompt.cached) + text_of(prompt.asked), "Once upon a");
  EXPECT_EQ(prompt.asked.size(), 1u);
}

TEST(RowPrompt, TakesFramesThatATextSpellsOutAsText) {
  const RowPrompt prompt =
      must(row_prompt({1, {"a<|im_end|>"}, {"x"}}, demo_model().tokenizer, chat_dialogue()));
  const std::int32_t end = *demo_model().tokenizer.find_token("<|im_end|>");
  EXPECT_EQ(std::ranges::count(prompt.cached, end), 0);
}

// A real run, short.
TEST(Rows, AreAnsweredFromTheCache) {
  const std::string store =
      R"({"context": "Here is the inventory of the store.\napples: 12\nlamps: 345\nboots: 61", )";
  const auto source = source_of(
      store +
      R"("question": "How many lamps are there?", "answers": ["3", "there are 345 LAMPS"]})" +
      "\n" + store + R"("question": "How many lamps are there?", "answer": "345"})" + "\n" + store +
      R"("question": "How many apples are there?", "answer": "2"})");
  const JsonlResult result = must(measure_rows(demo_model(), *source, chat_dialogue(), options()));
  EXPECT_EQ(result.work.n_rows, 3);
  EXPECT_EQ(result.work.n_packed_rows, 0);
  ASSERT_EQ(result.scores.size(), 2u);
  for (const AnswerScore& score : result.scores) {
    EXPECT_EQ(score.trials, 3);
    EXPECT_EQ(score.exact, 1);
    EXPECT_EQ(score.found, 2);
  }
}

TEST(Rows, CountThoseThatArePacked) {
  std::string text(3000, 'a');
  for (std::size_t i = 0; i < text.size(); i += 5) text[i] = ' ';
  const auto source = source_of("{\"context\": \"" + text +
                                "\", \"question\": \"q\", \"answer\": \"x\"}\n"
                                "{\"prompt\": \"p\", \"answer\": \"x\"}");
  const JsonlWork work = must(check_rows(demo_model(), *source, chat_dialogue(), options()));
  EXPECT_EQ(work.n_rows, 2);
  EXPECT_EQ(work.n_packed_rows, 1);
}

TEST(Rows, AreLimitedInNumber) {
  const auto source = source_of("{\"prompt\": \"p\", \"answer\": \"x\"}\nnot a row\n");
  JsonlOptions wanted = options();
  wanted.limit = 1;
  EXPECT_EQ(must(check_rows(demo_model(), *source, chat_dialogue(), wanted)).n_rows, 1);
  wanted.limit = 0;
  EXPECT_THAT(check_rows(demo_model(), *source, chat_dialogue(), wanted),
              test::FailsWith(ErrorCode::kCorrupt, StartsWith("line 2: ")));
}

TEST(Rows, RefuseAnEmptyFile) {
  const auto source = source_of("\n\n");
  const auto work = check_rows(demo_model(), *source, chat_dialogue(), options());
  ASSERT_FALSE(work);
  EXPECT_EQ(work.error().code, ErrorCode::kInvalidArgument);
}

TEST(Rows, RefuseOneThatIsLongerThanTheContext) {
  JsonlOptions wanted = options();
  wanted.max_tokens = demo_model().config.context_length;
  const auto source = source_of("\n{\"prompt\": \"p\", \"answer\": \"x\"}\n");
  const auto work = check_rows(demo_model(), *source, chat_dialogue(), wanted);
  ASSERT_FALSE(work);
  EXPECT_EQ(work.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(work.error().message, StartsWith("line 2: "));
  EXPECT_THAT(work.error().message, HasSubstr("context"));
}

TEST(Rows, StopWhenInterrupted) {
  const auto source = source_of("{\"prompt\": \"p\", \"answer\": \"x\"}");
  const auto result = measure_rows(demo_model(), *source, chat_dialogue(), options(),
                                   [](std::uint64_t, std::uint64_t) { return false; });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kInterrupted);
}

TEST(Rows, AreReportedWithWhatStayedDense) {
  JsonlResult result;
  result.work = {.n_rows = 4, .n_packed_rows = 1, .n_tokens = 100};
  result.scores.assign(2, {.trials = 4, .exact = 1, .found = 2});
  const eval::Report report = jsonl_report(options(), result);
  const eval::Table& table = std::get<eval::Table>(report.figures[0]);
  EXPECT_EQ(std::get<eval::Number>(table.rows[1][2]).value, 0.25);
  EXPECT_EQ(std::get<eval::Number>(table.rows[1][3]).value, 0.5);
  EXPECT_EQ(report.notes.size(), 2u);
}

}  // namespace answers_jsonl_test
}  // namespace tqcache::research
