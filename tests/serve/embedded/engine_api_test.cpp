// The routes, without a socket.

#include "tqcache/serve/embedded/engine_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace tqcache::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kDemoModel = TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.gguf";

class FakeClient : public Client {
 public:
  bool is_gone() override { return gone; }
  std::atomic<bool> gone = false;
};

class FakeSink : public Sink {
 public:
  bool write(std::string_view bytes) override {
    pieces.emplace_back(bytes);
    return pieces.size() < n_taken;
  }
  std::string all() const {
    std::string joined;
    for (const std::string& piece : pieces) joined += piece;
    return joined;
  }
  std::vector<std::string> pieces;
  std::size_t n_taken = 1'000'000;  // then the client is gone
};

// The objects of an SSE stream. The last one is the text of [DONE], if it was sent.
std::vector<json> events(const std::string& stream) {
  std::vector<json> found;
  std::size_t at = 0;
  while (at < stream.size()) {
    const std::size_t end = stream.find("\n\n", at);
    EXPECT_EQ(stream.substr(at, 6), "data: ");
    EXPECT_NE(end, std::string::npos);
    const std::string data = stream.substr(at + 6, end - at - 6);
    found.push_back(data == "[DONE]" ? json(data) : json::parse(data));
    at = end + 2;
  }
  return found;
}

// The objects of a stream whose events have names, which are their types.
std::vector<json> named_events(const std::string& stream) {
  std::vector<json> found;
  std::size_t at = 0;
  while (at < stream.size()) {
    const std::size_t data = stream.find("\ndata: ", at);
    const std::size_t end = stream.find("\n\n", at);
    if (data > end || end == std::string::npos) throw std::runtime_error("not an event: " + stream);
    EXPECT_EQ(stream.substr(at, 7), "event: ");
    found.push_back(json::parse(stream.substr(data + 7, end - data - 7)));
    EXPECT_EQ(found.back()["type"], stream.substr(at + 7, data - at - 7));
    at = end + 2;
  }
  return found;
}

std::vector<std::string> types_of(const std::vector<json>& found) {
  std::vector<std::string> types;
  for (const json& each : found) {
    const auto type = each["type"].get<std::string>();
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  return types;
}

class EngineApiTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto opened = Engine::open({.model = kDemoModel, .n_threads = 1, .max_waiting = 2});
    if (!opened) throw std::runtime_error(opened.error().message);
    engine_ = std::move(opened).value().release();
  }
  static void TearDownTestSuite() { delete engine_; }

  static Request with_body(std::string body) {
    Request request;
    request.body = std::move(body);
    return request;
  }
  Response chat(const std::string& body) { return api_.chat_completions(with_body(body), client_); }
  Response messages(const std::string& body) { return api_.messages(with_body(body), client_); }
  Response responses(const std::string& body) { return api_.responses(with_body(body), client_); }
  Response complete(const std::string& body) { return api_.completions(with_body(body), client_); }

  static Engine* engine_;
  Metrics metrics_;
  FakeClient client_;
  EngineApi api_{
      *engine_,
      {.tenant_of = [](const Request& request) { return request.api_key; }, .has_keys = true},
      metrics_};
};

Engine* EngineApiTest::engine_ = nullptr;

constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "What is your name?"}], "temperature": 0,
        "max_tokens": 12 MORE})";

std::string chat_body(const std::string& more = "") {
  std::string body = kChat;
  body.replace(body.find(" MORE"), 5, more);
  return body;
}

TEST_F(EngineApiTest, AnswersAChat) {
  const Response response = chat(chat_body());
  ASSERT_EQ(response.status, 200) << response.body;
  const json answer = json::parse(response.body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_THAT(answer["id"].get<std::string>(), testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(answer["model"], engine_->model_id());
  EXPECT_EQ(answer["choices"].size(), 1u);
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_NE(answer["choices"][0]["message"]["content"], "");
  const json& usage = answer["usage"];
  EXPECT_EQ(usage["total_tokens"].get<int>(),
            usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(metrics_.value("tqcache_prompt_tokens_total"), usage["prompt_tokens"].get<double>());
}

TEST_F(EngineApiTest, AStreamHasTheTextOfTheAnswer) {
  const std::string text =
      json::parse(chat(chat_body()).body)["choices"][0]["message"]["content"].get<std::string>();
  for (const bool with_usage : {false, true}) {
    Response response =
        chat(chat_body(with_usage ? R"(, "stream": true, "stream_options": {"include_usage": true})"
                                  : R"(, "stream": true)"));
    ASSERT_EQ(response.status, 200);
    EXPECT_EQ(response.headers[0].value, "text/event-stream");
    FakeSink sink;
    EXPECT_TRUE(response.stream(sink));
    std::vector<json> chunks = events(sink.all());
    EXPECT_EQ(chunks.back(), "[DONE]");
    chunks.pop_back();
    if (with_usage) {
      EXPECT_TRUE(chunks.back()["choices"].empty());
      EXPECT_EQ(chunks.back()["usage"]["completion_tokens"].get<int>() <= 12, true);
      chunks.pop_back();
    }
    EXPECT_EQ(chunks.front()["choices"][0]["delta"]["role"], "assistant");
    std::string streamed;
    for (const json& chunk : chunks) {
      EXPECT_EQ(chunk["object"], "chat.completion.chunk");
      EXPECT_EQ(chunk["id"], chunks[0]["id"]);
      EXPECT_EQ(chunk.contains("usage"), with_usage);
      streamed += chunk["choices"][0]["delta"].value("content", "");
    }
    EXPECT_EQ(streamed, text);
    EXPECT_TRUE(chunks.front()["choices"][0]["finish_reason"].is_null());
    EXPECT_TRUE(chunks.back()["choices"][0]["finish_reason"].is_string());
    EXPECT_GT(chunks.size(), 4u);
  }
  EXPECT_EQ(engine_->queue().counts().running, 0u);
}

TEST_F(EngineApiTest, CompletesAText) {
  const Response response =
      complete(R"({"prompt": "Alice was beginning to get", "temperature": 0, "max_tokens": 5})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json answer = json::parse(response.body);
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 5);
  Response stream = complete(
      R"({"prompt": "Alice was beginning to get", "temperature": 0, "max_tokens": 5,
          "stream": true})");
  FakeSink sink;
  EXPECT_TRUE(stream.stream(sink));
  std::string text;
  for (const json& chunk : events(sink.all())) {
    if (chunk.is_object()) text += chunk["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, answer["choices"][0]["text"].get<std::string>());
}

TEST_F(EngineApiTest, AnyNameOfAModelIsThatOfTheOneServed) {
  const json answer = json::parse(chat(chat_body(R"(, "model": "gpt-9\u0000<b>")")).body);
  EXPECT_EQ(answer["model"], engine_->model_id());
}

constexpr const char* kInput =
    R"({"input": "What is your name?", "temperature": 0, "max_output_tokens": 12 MORE})";
constexpr const char* kLongInput =
    R"({"input": "Tell me a story.", "logit_bias": {"0": -100, "2": -100}, "stream": true})";

std::string input_body(const std::string& more = "") {
  std::string body = kInput;
  body.replace(body.find(" MORE"), 5, more);
  return body;
}

TEST_F(EngineApiTest, AnthropicsMessagesAreTheSameAnswer) {
  const json asked = json::parse(chat(chat_body()).body);
  const std::string text = asked["choices"][0]["message"]["content"].get<std::string>();
  const Response response = messages(chat_body());
  ASSERT_EQ(response.status, 200) << response.body;
  const json answer = json::parse(response.body);
  EXPECT_THAT(answer["id"].get<std::string>(), testing::StartsWith("msg_"));
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_EQ(answer["model"], engine_->model_id());
  EXPECT_EQ(answer["content"], json::array({json::object({{"type", "text"}, {"text", text}})}));
  EXPECT_EQ(answer["stop_reason"],
            asked["choices"][0]["finish_reason"] == "length" ? "max_tokens" : "end_turn");
  EXPECT_TRUE(answer["stop_sequence"].is_null());
  EXPECT_EQ(answer["usage"]["input_tokens"].get<int>() +
                answer["usage"]["cache_read_input_tokens"].get<int>(),
            asked["usage"]["prompt_tokens"].get<int>());
  EXPECT_EQ(answer["usage"]["cache_creation_input_tokens"], 0);
  EXPECT_EQ(answer["usage"]["output_tokens"], asked["usage"]["completion_tokens"]);

  const json counted = json::parse(api_.count_tokens(with_body(chat_body())).body);
  EXPECT_EQ(counted, (json{{"input_tokens", asked["usage"]["prompt_tokens"]}}));

  FakeSink sink;
  EXPECT_TRUE(messages(chat_body(R"(, "stream": true)")).stream(sink));
  const std::vector<json> found = named_events(sink.all());
  EXPECT_EQ(types_of(found),
            (std::vector<std::string>{"message_start", "content_block_start", "ping",
                                      "content_block_delta", "content_block_stop", "message_delta",
                                      "message_stop"}));
  EXPECT_EQ(found[0]["message"]["usage"]["input_tokens"], answer["usage"]["input_tokens"]);
  EXPECT_EQ(found[0]["message"]["content"], json::array());
  std::string streamed;
  for (const json& each : found) {
    if (each["type"] == "content_block_delta") streamed += each["delta"]["text"];
  }
  EXPECT_EQ(streamed, text);
  const json& last = found[found.size() - 2];
  EXPECT_EQ(last["delta"]["stop_reason"], answer["stop_reason"]);
  EXPECT_EQ(last["usage"], answer["usage"]);
}

TEST_F(EngineApiTest, AnthropicsMessagesNameTheStopThatWasFound) {
  const std::string text =
      json::parse(chat(chat_body()).body)["choices"][0]["message"]["content"].get<std::string>();
  const std::string stop = text.substr(3, 7);
  const json stops = json::array({"never there", text.substr(5), stop, stop + "x"});
  const json answer =
      json::parse(messages(chat_body(R"(, "stop_sequences": )" + stops.dump())).body);
  EXPECT_EQ(answer["content"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(answer["stop_reason"], "stop_sequence");
  EXPECT_EQ(answer["stop_sequence"], stop);
}

TEST_F(EngineApiTest, OpenAisResponsesAreTheSameAnswer) {
  const json asked = json::parse(chat(chat_body()).body);
  const std::string text = asked["choices"][0]["message"]["content"].get<std::string>();
  const Response response = responses(input_body());
  ASSERT_EQ(response.status, 200) << response.body;
  const json answer = json::parse(response.body);
  EXPECT_THAT(answer["id"].get<std::string>(), testing::StartsWith("resp_"));
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["model"], engine_->model_id());
  const bool is_cut = asked["choices"][0]["finish_reason"] == "length";
  EXPECT_EQ(answer["status"], is_cut ? "incomplete" : "completed");
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], text);
  EXPECT_EQ(answer["usage"]["input_tokens"], asked["usage"]["prompt_tokens"]);
  EXPECT_EQ(answer["usage"]["output_tokens"], asked["usage"]["completion_tokens"]);
  EXPECT_TRUE(answer["usage"]["input_tokens_details"]["cached_tokens"].is_number_integer());

  const json cut = json::parse(responses(R"({"input": "Hi", "max_output_tokens": 1})").body);
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");

  FakeSink sink;
  EXPECT_TRUE(responses(input_body(R"(, "stream": true)")).stream(sink));
  const std::vector<json> found = named_events(sink.all());
  EXPECT_EQ(types_of(found),
            (std::vector<std::string>{"response.created", "response.in_progress",
                                      "response.output_item.added", "response.content_part.added",
                                      "response.output_text.delta", "response.output_text.done",
                                      "response.content_part.done", "response.output_item.done",
                                      is_cut ? "response.incomplete" : "response.completed"}));
  std::string streamed;
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i]["sequence_number"], i);
    if (found[i]["type"] == "response.output_text.delta") streamed += found[i]["delta"];
  }
  EXPECT_EQ(streamed, text);
  const json& whole = found.back()["response"];
  EXPECT_EQ(whole["output"][0]["content"], answer["output"][0]["content"]);
  EXPECT_EQ(whole["usage"]["total_tokens"], answer["usage"]["total_tokens"]);
  EXPECT_EQ(whole["id"], found[0]["response"]["id"]);
}

TEST_F(EngineApiTest, AStreamSaysThatItFailedAndDoesNotEndAsACompleteOne) {
  const std::string chat_stream = R"({"messages": [{"role": "user", "content": "Count."}],
      "max_tokens": 400, "logit_bias": {"0": -100, "2": -100}, "stream": true,
      "stop_sequences": null})";
  const auto failed = [&](const auto& ask) {
    // An engine that is stopped while the answer is written.
    auto opened = Engine::open({.model = kDemoModel, .n_threads = 1, .max_waiting = 2});
    if (!opened) throw std::runtime_error(opened.error().message);
    const std::unique_ptr<Engine> engine = std::move(opened).value();
    Metrics metrics;
    EngineApi api(*engine, {.tenant_of = [](const Request&) { return std::string(); }}, metrics);
    class StoppingSink : public FakeSink {
     public:
      explicit StoppingSink(Engine& its) : engine(its) {}
      bool write(std::string_view bytes) override {
        if (pieces.size() == 2) engine.stop();
        return FakeSink::write(bytes);
      }
      Engine& engine;
    } sink(*engine);
    EXPECT_FALSE(ask(api).stream(sink));
    return sink.all();
  };
  const std::string of_chat =
      failed([&](EngineApi& api) { return api.chat_completions(with_body(chat_stream), client_); });
  EXPECT_THAT(of_chat, testing::Not(HasSubstr("[DONE]")));
  const std::vector<json> chunks = events(of_chat);
  EXPECT_EQ(chunks.back()["error"]["code"], "stopping");
  for (const json& chunk : chunks) EXPECT_TRUE(!chunk.contains("id") || chunk["id"].is_string());

  const std::vector<json> of_messages = named_events(
      failed([&](EngineApi& api) { return api.messages(with_body(chat_stream), client_); }));
  EXPECT_EQ(of_messages.back()["type"], "error");
  EXPECT_EQ(of_messages.back()["error"]["type"], "overloaded_error");

  const std::vector<json> of_responses = named_events(
      failed([&](EngineApi& api) { return api.responses(with_body(kLongInput), client_); }));
  EXPECT_EQ(of_responses.back()["type"], "response.failed");
  EXPECT_EQ(of_responses.back()["response"]["status"], "failed");
  EXPECT_EQ(of_responses.back()["response"]["error"]["code"], "stopping");
}

// "none" asks for no thinking where the template knows how, and is no error elsewhere.
TEST_F(EngineApiTest, AnEffortIsAWishOfTheClient) {
  const auto rendered = [&](EngineApi& api, const std::string& more) {
    const std::string body = R"({"messages": [{"role": "user", "content": "Hi"}])" + more + "}";
    return api.apply_template(with_body(body));
  };
  const std::string avoided = R"(, "reasoning_effort": "none")";
  const std::string forbidden = R"(, "chat_template_kwargs": {"enable_thinking": false})";
  EXPECT_EQ(rendered(api_, avoided).body, rendered(api_, "").body);
  EXPECT_EQ(rendered(api_, forbidden).status, 400);

  auto opened = Engine::open({.model = kDemoModel, .chat_template = "chatml", .n_threads = 1});
  ASSERT_TRUE(opened) << opened.error().message;
  EngineApi thinks(**opened, {.tenant_of = [](const Request&) { return std::string(); }}, metrics_);
  EXPECT_EQ(rendered(thinks, avoided).body, rendered(thinks, forbidden).body);
  EXPECT_NE(rendered(thinks, avoided).body, rendered(thinks, "").body);
}

// Hostile JSON of this length would be refused as JSON if it was parsed.
TEST_F(EngineApiTest, ABodyThatNoPromptNeedsIsRefusedBeforeItIsParsed) {
  const std::string body(16 * engine_->max_text_bytes(), '[');
  for (const Response& response :
       {chat(body), complete(body), messages(body), responses(body),
        api_.count_tokens(with_body(body)), api_.tokenize(with_body(body)),
        api_.detokenize(with_body(body)), api_.apply_template(with_body(body))}) {
    EXPECT_EQ(response.status, 413);
    EXPECT_THAT(response.body, HasSubstr("bytes"));
  }
}

// By its bytes: the message would count tokens if they had been made.
TEST_F(EngineApiTest, ATextThatCannotFitIsRefusedBeforeItIsEncoded) {
  const std::string text(engine_->max_text_bytes() + 1, 'a');
  const std::string number = std::to_string(text.size()) + " bytes";
  const std::string message = R"({"messages": [{"role": "user", "content": ")" + text + R"("}]})";
  const auto check = [&](const Response& response, bool is_anthropic = false) {
    EXPECT_EQ(response.status, 400);
    const json error = json::parse(response.body)["error"];
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(number));
    const std::string kind = is_anthropic ? "type" : "code";
    EXPECT_EQ(error[kind], is_anthropic ? "invalid_request_error" : "context_length_exceeded");
  };
  check(chat(message));
  check(complete(R"({"prompt": ")" + text + R"("})"));
  check(responses(R"({"input": ")" + text + R"("})"));
  check(api_.count_tokens(with_body(message)), true);
  check(api_.tokenize(with_body(R"({"content": ")" + text + R"("})")));
  // One byte less is encoded.
  const std::string fits = text.substr(1);
  EXPECT_EQ(api_.tokenize(with_body(R"({"content": ")" + fits + R"("})")).status, 200);
  const Response counted = complete(R"({"prompt": ")" + fits + R"("})");
  EXPECT_THAT(counted.body, HasSubstr(" tokens; the context"));
}

TEST_F(EngineApiTest, ASeedGivesTheSameText) {
  const std::string body =
      R"({"prompt": "Alice was", "temperature": 1.5, "max_tokens": 12, "seed": )";
  const auto text = [&](const std::string& seed) {
    return json::parse(complete(body + seed + "}").body)["choices"][0]["text"].get<std::string>();
  };
  EXPECT_EQ(text("7"), text("7"));
  EXPECT_NE(text("7"), text("8"));
}

TEST_F(EngineApiTest, RefusesWithTheRightStatus) {
  const auto status = [](const Response& response) {
    EXPECT_TRUE(json::parse(response.body)["error"]["message"].is_string()) << response.body;
    return response.status;
  };
  EXPECT_EQ(status(chat("")), 400);
  EXPECT_EQ(status(chat("{")), 400);
  EXPECT_EQ(status(chat(R"({"messages": []})")), 400);
  EXPECT_EQ(status(chat(chat_body(R"(, "n": 3)"))), 400);
  EXPECT_EQ(status(chat(chat_body(R"(, "model": 9)"))), 400);
  EXPECT_EQ(status(chat(chat_body(R"(, "logit_bias": {"8192": 1})"))), 400);
  EXPECT_EQ(status(complete(R"({"prompt": [8192]})")), 400);
  std::string ids = "[1";
  for (int i = 1; i < 16'384; ++i) ids += ",1";
  const Response long_prompt = complete(R"({"prompt": )" + ids + "]}");
  EXPECT_EQ(status(long_prompt), 400);
  EXPECT_EQ(json::parse(long_prompt.body)["error"]["code"], "context_length_exceeded");
}

TEST_F(EngineApiTest, AFullQueueSaysWhenToComeAgain) {
  std::vector<RequestQueue::Turn> turns;
  for (int i = 0; i < 3; ++i) turns.push_back(std::move(*engine_->queue().join()));
  const Response response = chat(chat_body());
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(json::parse(response.body)["error"]["code"], "queue_full");
  ASSERT_FALSE(response.headers.empty());
  EXPECT_EQ(response.headers.back().name, "Retry-After");
  EXPECT_EQ(response.headers.back().value, "2");
  const json health = json::parse(api_.health().body);
  EXPECT_EQ(health["queue"]["running"], 1);
  EXPECT_EQ(health["queue"]["waiting"], 2);
  EXPECT_EQ(metrics_.value("tqcache_queue_full_total"), 1);
  turns.clear();
  EXPECT_EQ(chat(chat_body()).status, 200);
}

TEST_F(EngineApiTest, AClientThatIsGoneLeavesTheQueue) {
  auto first = engine_->queue().join();
  client_.gone = true;
  chat(chat_body());
  EXPECT_EQ(engine_->queue().counts().waiting, 0u);
  first.reset();

  client_.gone = false;
  Response response = chat(chat_body(R"(, "stream": true, "max_tokens": 500)"));
  EXPECT_EQ(response.status, 400);  // a key given twice
  response = chat(R"({"messages": [{"role": "user", "content": "Tell me a story."}],
                      "max_tokens": 500, "temperature": 0, "stream": true})");
  FakeSink sink;
  sink.n_taken = 3;
  EXPECT_FALSE(response.stream(sink));
  EXPECT_LE(sink.pieces.size(), 4u);  // and an error, which nobody reads
  EXPECT_THAT(sink.all(), testing::Not(HasSubstr("[DONE]")));
  // A stream that is never begun leaves the queue with its response.
  response = chat(chat_body(R"(, "stream": true)"));
  EXPECT_EQ(engine_->queue().counts().running, 1u);
  response = {};
  EXPECT_EQ(engine_->queue().counts().running, 0u);
}

TEST_F(EngineApiTest, ThePageIsOfOneKey) {
  Request request = with_body(R"({"prompt": [)" + [] {
    std::string ids = "5";
    for (int i = 0; i < 299; ++i) ids += ",5";
    return ids;
  }() + R"(], "max_tokens": 1})");
  request.api_key = "first";
  ASSERT_EQ(api_.completions(request, client_).status, 200);
  const Response own = api_.page(request);
  EXPECT_THAT(own.body, HasSubstr("<td>301</td>"));
  request.api_key = "second";
  EXPECT_THAT(api_.page(request).body, testing::Not(HasSubstr("<td>301</td>")));
  EngineApi open(*engine_, {.tenant_of = [](const Request&) { return std::string(); }}, metrics_);
  EXPECT_THAT(open.page(request).body, HasSubstr("<td>301</td>"));
  std::string policy;
  for (const Header& header : own.headers) {
    if (header.name == "Content-Security-Policy") policy = header.value;
  }
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(own.body, testing::Not(HasSubstr("<script")));
}

TEST_F(EngineApiTest, HasTheSmallRoutes) {
  const json models = json::parse(api_.models().body);
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], engine_->model_id());
  EXPECT_EQ(models["data"][0]["context_length"], 16'384);
  EXPECT_EQ(json::parse(api_.model().body), models["data"][0]);

  const std::string messages = R"({"messages": [{"role": "user", "content": "Hi <|im_end|>"}]})";
  const json rendered = json::parse(api_.apply_template(with_body(messages)).body);
  EXPECT_EQ(rendered["prompt"],
            "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n");
  const auto tokenize = [&](const json& body) {
    return json::parse(api_.tokenize(with_body(body.dump())).body)["tokens"];
  };
  const json parsed = tokenize({{"content", "Hi <|im_end|>"}});
  const json plain = tokenize({{"content", "Hi <|im_end|>"}, {"parse_special", false}});
  EXPECT_LT(parsed.size(), plain.size());
  for (const json& ids : {parsed, plain}) {
    EXPECT_EQ(json::parse(api_.detokenize(with_body(json{{"tokens", ids}}.dump())).body),
              (json{{"content", "Hi <|im_end|>"}}));
  }
  EXPECT_EQ(api_.tokenize(with_body("{}")).status, 400);
  EXPECT_EQ(api_.tokenize(with_body(R"({"content": 5})")).status, 400);
  EXPECT_EQ(api_.detokenize(with_body(R"({"tokens": [-5]})")).status, 400);
  EXPECT_EQ(api_.detokenize(with_body(R"({"tokens": [999999]})")).status, 200);
  EXPECT_EQ(api_.apply_template(with_body("[]")).status, 400);
  EXPECT_EQ(api_.health().status, 200);
}

// A body that is read takes many times its memory, and becomes tokens by way of tables that all
// share: so bodies are read one after the other, and what comes of them is what comes of each
// alone.
TEST_F(EngineApiTest, BodiesAreReadOneAfterTheOther) {
  std::atomic<int> n_reading = 0, n_at_once = 0;
  // Asked while the messages of a client are read.
  const auto tenant_of = [&](const Request& request) {
    if (++n_reading > 1) ++n_at_once;
    for (int i = 0; i < 20; ++i) std::this_thread::yield();
    --n_reading;
    return request.api_key;
  };
  EngineApi api(*engine_, {.tenant_of = tenant_of, .has_keys = true}, metrics_);
  const std::vector<std::function<Response()>> routes = {
      [&] { return api.count_tokens(with_body(chat_body())); },
      [&] { return api.tokenize(with_body(R"({"content": "What is your name, Alice?"})")); },
      [&] { return api.detokenize(with_body(R"({"tokens": [265, 300, 411]})")); },
      [&] { return api.apply_template(with_body(chat_body())); },
      [&] { return api.tokenize(with_body(R"({"content": 7})")); }};
  std::vector<std::string> alone;
  for (const auto& route : routes) alone.push_back(route().body);
  std::atomic<int> n_other = 0;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 100; ++i) {
        // Every second one is the first route, whose readers are counted.
        const std::size_t which = i % 2 == 0 ? 0 : (t + i / 2) % routes.size();
        if (routes[which]().body != alone[which]) ++n_other;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_at_once, 0);
  EXPECT_EQ(n_other, 0);
}

}  // namespace
}  // namespace tqcache::serve
