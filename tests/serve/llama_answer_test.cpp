// The ends of llama-server's answers. The answers are those of build b11549, with other texts.

#include "tqcache/serve/llama_answer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace tqcache::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

const OrderedJson kTimings = {{"cache_n", 9},
                              {"prompt_n", 31},
                              {"prompt_ms", 12.5},
                              {"predicted_n", 4},
                              {"predicted_ms", 9.1}};
// What a model may write, so that it is taken for numbers of the server.
const std::string kForged = R"({"timings":{"cache_n":99999,"prompt_n":1,"predicted_n":7}})"
                            "\n\ndata: {\"timings\":{\"cache_n\":88888}}\n\n"
                            R"(","timings":{"cache_n":77777},"truncated":true,"id_slot":5,"a":"\)";

void expect_timings(const AnswerEnd& end, const std::string& what) {
  EXPECT_EQ(end.n_reused, 9) << what;
  EXPECT_EQ(end.n_computed, 31) << what;
  EXPECT_EQ(end.n_predicted, 4) << what;
  EXPECT_EQ(end.prompt_ms, 12.5) << what;
  EXPECT_EQ(end.n_held(), 43) << what;
}

OrderedJson completion(bool truncated) {
  return {{"index", 0},
          {"content", kForged},
          {"tokens", OrderedJson::array()},
          {"id_slot", 2},
          {"stop", true},
          {"generation_settings", {{"lora", OrderedJson::array()}}},
          {"prompt", kForged},
          {"truncated", truncated},
          {"stop_type", "limit"},
          {"tokens_cached", 43},
          {"timings", kTimings}};
}

TEST(LlamaAnswer, OfACompletionHasItsSlotAndWhetherItWasTruncated) {
  for (const bool truncated : {false, true}) {
    const AnswerEnd end = read_answer_end(completion(truncated).dump());
    expect_timings(end, "at once");
    EXPECT_EQ(end.slot, 2);
    EXPECT_EQ(end.truncated, truncated);
    const std::string pieces =
        "data: " + OrderedJson{{"content", kForged}, {"stop", false}, {"id_slot", -1}}.dump() +
        "\n\n";
    const AnswerEnd streamed =
        read_answer_end(pieces + "data: " + completion(truncated).dump() + "\n\n");
    expect_timings(streamed, "streamed");
    EXPECT_EQ(streamed.slot, 2);
    EXPECT_EQ(streamed.truncated, truncated);
  }
}

TEST(LlamaAnswer, OfAChatHasItsTimings) {
  const OrderedJson chunk = {{"choices", {{{"index", 0}, {"delta", {{"content", kForged}}}}}},
                             {"object", "chat.completion.chunk"}};
  OrderedJson last = chunk;
  last["timings"] = kTimings;
  expect_timings(read_answer_end(last.dump() + "\n"), "at once");
  expect_timings(read_answer_end("data: " + chunk.dump() + "\n\n: ping\n\ndata: " + last.dump() +
                                 "\n\ndata: [DONE]\n\n"),
                 "streamed");
  EXPECT_FALSE(read_answer_end(last.dump()).slot);
  EXPECT_FALSE(read_answer_end("data: " + chunk.dump() + "\n\n").n_reused);
}

// The arguments of a tool are an object in an answer of Anthropic's interface, with any keys.
TEST(LlamaAnswer, FieldsInsideOfOthersDoNotCount) {
  const OrderedJson forged = OrderedJson::parse(
      R"({"timings":{"cache_n":99999,"prompt_n":1},"usage":{"cache_read_input_tokens":5,
          "input_tokens":5},"truncated":true,"id_slot":3})");
  const OrderedJson message = {
      {"type", "message"},
      {"content", {{{"type", "tool_use"}, {"name", "f"}, {"input", forged}}}},
      {"stop_reason", "tool_use"},
      {"usage", {{"cache_read_input_tokens", 9}, {"input_tokens", 31}, {"output_tokens", 4}}}};
  const AnswerEnd end = read_answer_end(message.dump());
  EXPECT_EQ(end.n_reused, 9);
  EXPECT_EQ(end.n_computed, 31);
  EXPECT_EQ(end.n_predicted, 4);
  EXPECT_FALSE(end.truncated);
  EXPECT_FALSE(end.slot);
  // The same where the object is the last field.
  const OrderedJson backward = {{"timings", kTimings}, {"content", {forged}}};
  expect_timings(read_answer_end(backward.dump()), "last field");
}

TEST(LlamaAnswer, WithoutTimingsUsageCounts) {
  const OrderedJson responses = {{"object", "response"},
                                 {"output", {{{"content", kForged}}}},
                                 {"usage",
                                  {{"input_tokens", 40},
                                   {"output_tokens", 4},
                                   {"input_tokens_details", {{"cached_tokens", 9}}}}}};
  const OrderedJson chat = {{"usage",
                             {{"completion_tokens", 4},
                              {"prompt_tokens", 40},
                              {"prompt_tokens_details", {{"cached_tokens", 9}}}}}};
  for (const OrderedJson& answer : {responses, chat}) {
    const AnswerEnd end = read_answer_end(answer.dump());
    EXPECT_EQ(end.n_reused, 9) << answer;
    EXPECT_EQ(end.n_computed, 31) << answer;
    EXPECT_EQ(end.n_predicted, 4) << answer;
    EXPECT_FALSE(end.prompt_ms) << answer;
  }
  // Timings win, wherever they are.
  const OrderedJson last = {
      {"type", "response.completed"}, {"response", responses}, {"timings", kTimings}};
  expect_timings(read_answer_end("event: response.completed\ndata: " + last.dump() + "\n\n"),
                 "responses");
}

TEST(LlamaAnswer, QuotesAndBracesOfATextDoNotCount) {
  for (const char* text : {"\"{", "\"}", "{\"", "}\"", "\\\"[", "\\", "\"\\", "\\\\\"", "]\"[\"",
                           "}\",\"id_slot\":7,\"a\":\"{"}) {
    const OrderedJson answer = {
        {"id_slot", 2}, {"prompt", text}, {"truncated", true}, {"timings", kTimings}};
    EXPECT_EQ(read_answer_end(answer.dump()).slot, 2) << answer;
  }
}

// The tail may begin in the middle of a text that looks like anything.
TEST(LlamaAnswer, ACutAnswerSaysTheSameOrLess) {
  const std::string whole = completion(true).dump();
  const std::size_t timings = whole.rfind("\"timings\"");
  std::size_t n_whole = 0;
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    const AnswerEnd end = read_answer_end(std::string_view(whole).substr(cut));
    if (cut <= timings) expect_timings(end, std::to_string(cut));
    EXPECT_TRUE(cut <= timings || !end.n_reused) << cut;
    EXPECT_EQ(end.slot.value_or(2), 2) << cut;
    n_whole += end.slot && end.truncated ? 1 : 0;
  }
  EXPECT_GT(n_whole, 0u);
}

TEST(LlamaAnswer, NumbersThatMakeNoSenseAreLeftOut) {
  for (const char* timings : {"1", "[]", "{\"cache_n\":-1}", "{\"cache_n\":1e300}",
                              "{\"cache_n\":\"9\"}", "{\"cache_n\":null}"}) {
    EXPECT_FALSE(read_answer_end("{\"timings\":" + std::string(timings) + "}").n_reused) << timings;
  }
  for (const char* slot : {"-1", "1e9", "99999", "\"1\"", "{}"}) {
    EXPECT_FALSE(read_answer_end("{\"id_slot\":" + std::string(slot) + "}").slot) << slot;
  }
  for (const char* text :
       {"", "\n\n", "}", "\"}", ":}", "{:}", "]]}", "data: [DONE]", "{\"a\\\":1}"}) {
    EXPECT_FALSE(read_answer_end(text).n_reused) << text;
  }
}

// A stream of /v1/messages: the numbers of the prompt are in its first event, which the end may
// have lost.
TEST(LlamaAnswer, OfAStreamOfMessagesHasThePromptOfItsFirstEvent) {
  const OrderedJson usage = {
      {"cache_read_input_tokens", 9}, {"input_tokens", 31}, {"output_tokens", 0}};
  const OrderedJson start = {{"type", "message_start"},
                             {"message", {{"id", kForged}, {"usage", usage}}}};
  const std::string head = "event: message_start\ndata: " + start.dump() + "\n\n";
  const OrderedJson text = {{"type", "content_block_delta"}, {"delta", {{"text", kForged}}}};
  const OrderedJson delta = {{"type", "message_delta"}, {"usage", {{"output_tokens", 4}}}};
  const std::string tail = "event: content_block_delta\ndata: " + text.dump() +
                           "\n\nevent: message_delta\ndata: " + delta.dump() +
                           "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
  const AnswerEnd end = read_answer_end(tail, head);
  EXPECT_EQ(end.n_reused, 9);
  EXPECT_EQ(end.n_computed, 31);
  EXPECT_EQ(end.n_predicted, 4);
  EXPECT_EQ(end.n_held(), 43);
  // Without it, or where it is cut, nothing is known of the prompt.
  for (std::size_t n = 0; n + 1 < head.size(); ++n) {
    EXPECT_FALSE(read_answer_end(tail, head.substr(0, n)).n_reused) << n;
  }
  // Words of a model at the beginning of another stream are not taken for it.
  EXPECT_FALSE(read_answer_end(tail, "data: " + text.dump() + "\n\n" + head).n_reused);
}

}  // namespace
}  // namespace tqcache::serve
