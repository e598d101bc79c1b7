// Calls of tools through the routes: a model whose weights say, for each token, the one that
// follows, so that it always gives the same answer with two calls.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tiny_files.h"
#include "support/temp_dir.h"
#include "tqcache/serve/embedded/engine_api.h"

namespace tqcache::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The tokens of the answer. It follows the line end that the template writes last.
const std::vector<std::string> kAnswer = {
    "I look.\n",
    "<tool_call>",
    "\n{\"name\": \"look_up\", \"arguments\": {\"b\": \"é\", ",
    "\"a\": 2.50}}\n",
    "</tool_call>",
    "\n<tool_call>{\"name\": \"list\", \"arguments\": {}}</tool_call>",
    "<|im_end|>"};

constexpr std::size_t kFirstId = 261;  // behind those of tiny::tokenizer()
constexpr std::size_t kWidth = 16;     // of the residual stream: a component for each token above

// A model whose only layer adds nothing: a token's embedding says which one comes next.
void write_answering_model(const std::filesystem::path& folder,
                           const std::vector<std::string>& answer = kAnswer) {
  json tokens = tiny::tokenizer();
  tokens["added_tokens"] = json::array({tiny::added_token(kFirstId, "<|im_start|>", true)});
  for (std::size_t i = 0; i < answer.size(); ++i) {
    const bool is_special = answer[i].starts_with("<|");
    tokens["added_tokens"].push_back(
        tiny::added_token(static_cast<std::int64_t>(kFirstId + 1 + i), answer[i], is_special));
  }
  const std::size_t n_vocabulary = kFirstId + 1 + answer.size();
  json config = tiny::config();
  config["model_type"] = "llama";
  config["architectures"] = {"LlamaForCausalLM"};
  config["num_hidden_layers"] = 1;
  config["hidden_size"] = kWidth;
  config["vocab_size"] = n_vocabulary;
  config["tie_word_embeddings"] = false;
  config["max_position_embeddings"] = 4096;

  std::map<std::string, std::pair<std::vector<std::size_t>, std::vector<float>>> weights;
  const auto add = [&](const std::string& name, std::vector<std::size_t> shape, float value) {
    std::size_t n = 1;
    for (const std::size_t size : shape) n *= size;
    weights[name] = {std::move(shape), std::vector<float>(n, value)};
  };
  add("model.embed_tokens.weight", {n_vocabulary, kWidth}, 0);
  add("lm_head.weight", {n_vocabulary, kWidth}, 0);
  add("model.norm.weight", {kWidth}, 1);
  const std::string layer = "model.layers.0.";
  add(layer + "input_layernorm.weight", {kWidth}, 1);
  add(layer + "post_attention_layernorm.weight", {kWidth}, 1);
  add(layer + "self_attn.q_proj.weight", {12, kWidth}, 0);
  for (const char* each : {"self_attn.k_proj.weight", "self_attn.v_proj.weight"}) {
    add(layer + each, {6, kWidth}, 0);
  }
  add(layer + "self_attn.o_proj.weight", {kWidth, 12}, 0);
  for (const char* each : {"mlp.gate_proj.weight", "mlp.up_proj.weight"}) {
    add(layer + each, {12, kWidth}, 0);
  }
  add(layer + "mlp.down_proj.weight", {kWidth, 12}, 0);
  std::vector<float>& embedding = weights["model.embed_tokens.weight"].second;
  std::vector<float>& output = weights["lm_head.weight"].second;
  for (std::size_t id = 0; id < n_vocabulary; ++id) embedding[id * kWidth + kWidth - 1] = 1;
  std::size_t before = '\n';
  for (std::size_t i = 0; i < answer.size(); ++i) {
    embedding[before * kWidth + kWidth - 1] = 0;
    embedding[before * kWidth + i] = 1;
    before = kFirstId + 1 + i;
    output[before * kWidth + i] = 1;
  }

  json header = json::object();
  ByteWriter data;
  for (const auto& [name, weight] : weights) {
    const std::size_t begin = data.bytes().size();
    for (const float value : weight.second) data.write(value);
    header[name] = {
        {"dtype", "F32"}, {"shape", weight.first}, {"data_offsets", {begin, data.bytes().size()}}};
  }
  ByteWriter file;
  file.append_sized(as_bytes(header.dump()));
  file.append(data.bytes());
  test::write_all(folder / "config.json", config.dump());
  test::write_all(folder / "tokenizer.json", tokens.dump());
  test::write_all(folder / "model.safetensors", std::move(file).take());
}

class NoClient : public Client {
 public:
  bool is_gone() override { return false; }
};

class TextSink : public Sink {
 public:
  bool write(std::string_view bytes) override {
    all += bytes;
    return true;
  }
  std::string all;
};

const json kTools = json::parse(
    R"([{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}])");

class ToolModel : public testing::Test {
 protected:
  ToolModel() {
    write_answering_model(folder_.path());
    std::ifstream file(TQCACHE_TEST_DATA "/chat_templates/qwen-3.jinja");
    open({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
  }

  void open(const std::string& chat_template) {
    auto opened = Engine::open(
        {.model = folder_.path().string(), .chat_template = chat_template, .n_threads = 1});
    if (!opened) throw std::runtime_error(opened.error().message);
    engine_ = std::move(opened).value();
    api_.emplace(*engine_,
                 EngineApiOptions{.tenant_of = [](const Request&) { return std::string(); }},
                 metrics_);
  }

  Response post(json body) {
    body["temperature"] = 0;
    Request request;
    request.body = body.dump();
    return api_->chat_completions(request, client_);
  }
  json ask(const json& body) {
    const Response response = post(body);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }

  const json hi_ = json::array({json{{"role", "user"}, {"content", "Hi"}}});
  test::TempDir folder_;
  Metrics metrics_;
  NoClient client_;
  std::unique_ptr<Engine> engine_;
  std::optional<EngineApi> api_;
};

TEST_F(ToolModel, CallsTools) {
  const json answer = ask({{"messages", hi_}, {"tools", kTools}});
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "I look.");
  const json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"],
            (json{{"name", "look_up"}, {"arguments", "{\"b\": \"é\", \"a\": 2.50}"}}));
  EXPECT_EQ(calls[1]["function"], (json{{"name", "list"}, {"arguments", "{}"}}));
  EXPECT_THAT(calls[0]["id"].get<std::string>(), testing::StartsWith("call_"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
}

TEST_F(ToolModel, StreamsTheSameCalls) {
  TextSink sink;
  ASSERT_TRUE(post({{"messages", hi_}, {"tools", kTools}, {"stream", true}}).stream(sink));
  std::string text;
  json calls = json::array();
  json finish_reason;
  std::istringstream lines(sink.all);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const json choice = json::parse(line.substr(6))["choices"][0];
    EXPECT_TRUE(finish_reason.is_null());
    finish_reason = choice["finish_reason"];
    text += choice["delta"].value("content", "");
    for (const json& call : choice["delta"].value("tool_calls", json::array()))
      calls.push_back(call);
  }
  EXPECT_EQ(finish_reason, "tool_calls");
  EXPECT_EQ(text, "I look.");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["index"], 0);
  EXPECT_EQ(calls[1]["index"], 1);
  EXPECT_EQ(calls[0]["function"]["arguments"], "{\"b\": \"é\", \"a\": 2.50}");
  EXPECT_EQ(calls[1]["function"]["name"], "list");
  EXPECT_THAT(sink.all, testing::Not(HasSubstr("tool_call>")));
}

// The template would write 2.5 for the model's 2.50, and both calls in another form.
TEST_F(ToolModel, AnswersWithCallsKeepTheirTokens) {
  const json answer = ask({{"messages", hi_}, {"tools", kTools}});
  json messages = hi_;
  messages.push_back(answer["choices"][0]["message"]);
  for (const json& call : answer["choices"][0]["message"]["tool_calls"]) {
    messages.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "42"}});
  }
  const json next = ask({{"messages", messages}, {"tools", kTools}});
  EXPECT_EQ(next["usage"]["prompt_tokens_details"]["cached_tokens"],
            answer["usage"]["total_tokens"]);
  EXPECT_EQ(next["choices"][0]["message"]["content"], "I look.");
  // The results, as the template writes them behind the answer.
  const std::string behind =
      "\n<|im_start|>user\n<tool_response>\n42\n</tool_response>\n<tool_response>\n42\n"
      "</tool_response><|im_end|>\n<|im_start|>assistant\n";
  const auto expected =
      engine_->model().tokenizer.encode(behind, tokenizer::Tokenizer::Special::kParse);
  EXPECT_EQ(next["timings"]["prompt_n"], expected.value().size());
}

// The same answer in Anthropic's interface.
const json kAnthropicTools =
    json::parse(R"([{"name": "look_up", "input_schema": {"type": "object"}}])");

TEST_F(ToolModel, CallsToolsInMessages) {
  Request request;
  const json body = {
      {"messages", hi_}, {"tools", kAnthropicTools}, {"max_tokens", 50}, {"temperature", 0}};
  request.body = body.dump();
  const Response response = api_->messages(request, client_);
  ASSERT_EQ(response.status, 200) << response.body;
  const json answer = json::parse(response.body);
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  const json& content = answer["content"];
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[0], (json{{"type", "text"}, {"text", "I look."}}));
  EXPECT_EQ(content[1]["type"], "tool_use");
  EXPECT_EQ(content[1]["name"], "look_up");
  EXPECT_EQ(content[1]["input"], (json{{"a", 2.5}, {"b", "é"}}));
  EXPECT_EQ(content[2]["input"], json::object());
  EXPECT_NE(content[1]["id"], content[2]["id"]);

  // The results go back.
  json messages = hi_;
  messages.push_back({{"role", "assistant"}, {"content", content}});
  messages.push_back({{"role", "user"}, {"content", json::array()}});
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    messages[2]["content"].push_back(
        {{"type", "tool_result"}, {"tool_use_id", content[i]["id"]}, {"content", "42"}});
  }
  json next = body;
  next["messages"] = messages;
  request.body = next.dump();
  const Response second = api_->messages(request, client_);
  ASSERT_EQ(second.status, 200) << second.body;
  EXPECT_EQ(json::parse(second.body)["content"][0]["text"], "I look.");
}

TEST_F(ToolModel, StreamsTheSameCallsInMessages) {
  Request request;
  request.body = json{
      {"messages", hi_},
      {"tools", kAnthropicTools},
      {"max_tokens", 50},
      {"temperature", 0},
      {"stream",
       true}}.dump();
  TextSink sink;
  ASSERT_TRUE(api_->messages(request, client_).stream(sink));
  std::map<std::size_t, std::string> blocks;  // text, or JSON of an input
  std::vector<std::string> names;
  json stop;
  std::istringstream lines(sink.all);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const json event = json::parse(line.substr(6));
    if (event["type"] == "content_block_start") {
      names.push_back(event["content_block"].value("name", "text"));
      EXPECT_EQ(event["index"], names.size() - 1);
    }
    if (event["type"] == "content_block_delta") {
      const json& delta = event["delta"];
      blocks[event["index"]] += delta.contains("text") ? delta["text"] : delta["partial_json"];
    }
    if (event["type"] == "message_delta") stop = event["delta"]["stop_reason"];
  }
  EXPECT_EQ(names, (std::vector<std::string>{"text", "look_up", "list"}));
  EXPECT_EQ(blocks[0], "I look.");
  EXPECT_EQ(blocks[1], "{\"b\": \"é\", \"a\": 2.50}");
  EXPECT_EQ(blocks[2], "{}");
  EXPECT_EQ(stop, "tool_use");
}

const json kFlatTools =
    json::parse(R"([{"type": "function", "name": "look_up", "parameters": {"type": "object"}}])");

TEST_F(ToolModel, CallsToolsInResponses) {
  Request request;
  const json body = {{"input", "Hi"}, {"tools", kFlatTools}, {"temperature", 0}};
  request.body = body.dump();
  const Response response = api_->responses(request, client_);
  ASSERT_EQ(response.status, 200) << response.body;
  const json answer = json::parse(response.body);
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["tool_choice"], "auto");
  EXPECT_EQ(answer["parallel_tool_calls"], true);
  const json& output = answer["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0]["content"][0]["text"], "I look.");
  EXPECT_EQ(output[1]["type"], "function_call");
  EXPECT_EQ(output[1]["name"], "look_up");
  EXPECT_EQ(output[1]["arguments"], "{\"b\": \"é\", \"a\": 2.50}");
  EXPECT_EQ(output[2]["arguments"], "{}");

  // The results go back, and all items keep their tokens.
  json next = body;
  next["input"] = json::array({{{"role", "user"}, {"content", "Hi"}}});
  for (const json& item : output) next["input"].push_back(item);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    next["input"].push_back(
        {{"type", "function_call_output"}, {"call_id", output[i]["call_id"]}, {"output", "42"}});
  }
  request.body = next.dump();
  const Response second = api_->responses(request, client_);
  ASSERT_EQ(second.status, 200) << second.body;
  EXPECT_EQ(json::parse(second.body)["usage"]["input_tokens_details"]["cached_tokens"],
            answer["usage"]["total_tokens"]);
}

// The events of a stream, whose numbers ascend.
std::vector<json> events_of(const std::string& stream) {
  std::vector<json> events;
  std::istringstream lines(stream);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    events.push_back(json::parse(line.substr(6)));
    if (events.back().contains("sequence_number")) {
      EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
    }
  }
  return events;
}

TEST_F(ToolModel, StreamsTheSameCallsInResponses) {
  Request request;
  request.body =
      json{{"input", "Hi"}, {"tools", kFlatTools}, {"temperature", 0}, {"stream", true}}.dump();
  TextSink sink;
  ASSERT_TRUE(api_->responses(request, client_).stream(sink));
  std::map<std::size_t, std::string> made;  // text, or arguments
  std::vector<std::string> types;
  json last;
  for (const json& event : events_of(sink.all)) {
    const auto type = event["type"].get<std::string>();
    if (type == "response.output_item.added") {
      EXPECT_EQ(event["output_index"], types.size());
      types.push_back(event["item"]["type"]);
    }
    if (type.ends_with(".delta")) made[event["output_index"]] += event["delta"];
    if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(event["arguments"], made[event["output_index"]]);
    }
    if (type == "response.output_item.done" && event["item"]["type"] == "function_call") {
      EXPECT_EQ(event["item"]["arguments"], made[event["output_index"]]);
      EXPECT_EQ(event["item"]["status"], "completed");
    }
    last = event;
  }
  EXPECT_EQ(types, (std::vector<std::string>{"message", "function_call", "function_call"}));
  EXPECT_EQ(made[0], "I look.");
  EXPECT_EQ(made[1], "{\"b\": \"é\", \"a\": 2.50}");
  EXPECT_EQ(last["type"], "response.completed");
  EXPECT_EQ(last["response"]["output"][1]["arguments"], made[1]);
}

// --- Channels, as gpt-oss writes them. The model gives each token once.

class ChannelModel : public ToolModel {
 protected:
  void answer_with(const std::vector<std::string>& answer) {
    api_.reset();
    engine_.reset();  // it has the files in use
    write_answering_model(folder_.path(), answer);
    open(
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% "
        "endfor %}{{ '\\n' }}");
  }
  // By the route of a dialect.
  std::string send(Dialect dialect, json body, bool streams) {
    body["temperature"] = 0;
    body["max_tokens"] = 50;
    if (streams) body["stream"] = true;
    if (dialect == Dialect::kResponses) {
      body.erase("max_tokens");
      body["input"] = "Hi";
    } else {
      body["messages"] = hi_;
    }
    Request request;
    request.body = body.dump();
    const Response response = dialect == Dialect::kChat ? api_->chat_completions(request, client_)
                              : dialect == Dialect::kMessages ? api_->messages(request, client_)
                                                              : api_->responses(request, client_);
    EXPECT_EQ(response.status, 200) << response.body;
    if (!streams) return response.body;
    TextSink sink;
    EXPECT_TRUE(response.stream(sink));
    return sink.all;
  }

  const std::vector<std::string> thinking_ = {"Yes.",        "<|channel|>", "analysis",
                                              "<|message|>", "Hm.",         "<|return|>"};
  const std::vector<std::string> calling_ = {"<|channel|>",   "commentary to=functions.look_up ",
                                             "<|constrain|>", "json",
                                             "<|message|>",   "{\"b\": 1, ",
                                             "\"a\": 2.50}",  "<|call|>"};
};

TEST_F(ChannelModel, ThoughtsAreApart) {
  answer_with(thinking_);
  const json message =
      json::parse(send(Dialect::kChat, json::object(), false))["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Yes.");
  EXPECT_EQ(message["reasoning_content"], "Hm.");
  const json content = json::parse(send(Dialect::kMessages, json::object(), false))["content"];
  EXPECT_EQ(content, json::parse(R"([{"type": "thinking", "thinking": "Hm.", "signature": ""},
                                     {"type": "text", "text": "Yes."}])"));
  const json output = json::parse(send(Dialect::kResponses, json::object(), false))["output"];
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"][0]["text"], "Hm.");
  EXPECT_EQ(output[1]["content"][0]["text"], "Yes.");
}

TEST_F(ChannelModel, ThoughtsAreStreamedApart) {
  answer_with(thinking_);
  std::string text, thoughts;
  for (const json& event : events_of(send(Dialect::kChat, json::object(), true))) {
    text += event["choices"][0]["delta"].value("content", "");
    thoughts += event["choices"][0]["delta"].value("reasoning_content", "");
  }
  EXPECT_EQ(text + "|" + thoughts, "Yes.|Hm.");
  std::vector<std::string> blocks;
  for (const json& event : events_of(send(Dialect::kMessages, json::object(), true))) {
    if (event["type"] == "content_block_start") {
      blocks.push_back(event["content_block"]["type"].get<std::string>() + ":");
    }
    if (event["type"] != "content_block_delta") continue;
    blocks.at(event["index"]) +=
        event["delta"].value("text", "") + event["delta"].value("thinking", "");
  }
  EXPECT_EQ(blocks, (std::vector<std::string>{"text:Yes.", "thinking:Hm."}));
  std::vector<std::string> items;
  for (const json& event : events_of(send(Dialect::kResponses, json::object(), true))) {
    const auto type = event["type"].get<std::string>();
    if (type.ends_with("output_item.added")) {
      items.push_back(event["item"]["type"].get<std::string>() + ":");
    }
    if (type.ends_with(".delta")) items.at(event["output_index"]) += event["delta"];
    if (type.ends_with("_text.done")) {
      EXPECT_TRUE(items.at(event["output_index"]).ends_with(event["text"].get<std::string>()));
    }
  }
  EXPECT_EQ(items, (std::vector<std::string>{"message:Yes.", "reasoning:Hm."}));
}

TEST_F(ChannelModel, CommentaryForAFunctionIsACall) {
  answer_with(calling_);
  const json choice = json::parse(send(Dialect::kChat, {{"tools", kTools}}, false))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], nullptr);
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
            (json{{"name", "look_up"}, {"arguments", "{\"b\": 1, \"a\": 2.50}"}}));
  const json message = json::parse(send(Dialect::kMessages, {{"tools", kAnthropicTools}}, false));
  EXPECT_EQ(message["stop_reason"], "tool_use");
  ASSERT_EQ(message["content"].size(), 1u);
  EXPECT_EQ(message["content"][0]["input"], (json{{"a", 2.5}, {"b", 1}}));
  const json output =
      json::parse(send(Dialect::kResponses, {{"tools", kFlatTools}}, false))["output"];
  ASSERT_EQ(output.size(), 1u);
  EXPECT_EQ(output[0]["name"], "look_up");
  const auto events = events_of(send(Dialect::kResponses, {{"tools", kFlatTools}}, true));
  EXPECT_EQ(events.at(2)["item"]["type"], "function_call");
  EXPECT_EQ(events.back()["response"]["output"][0]["arguments"], output[0]["arguments"]);
}

TEST_F(ChannelModel, WithoutToolsACallIsText) {
  answer_with(calling_);
  const json choice = json::parse(send(Dialect::kChat, json::object(), false))["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "{\"b\": 1, \"a\": 2.50}");
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(ToolModel, EndsWithOneCallWhereMoreAreNotWanted) {
  const json answer = ask({{"messages", hi_}, {"tools", kTools}, {"parallel_tool_calls", false}});
  EXPECT_EQ(answer["choices"][0]["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 5);
}

TEST_F(ToolModel, WithoutToolsACallIsText) {
  std::string text;
  for (std::size_t i = 0; i + 1 < kAnswer.size(); ++i) text += kAnswer[i];
  for (const json& more : {json::object(), json{{"tools", kTools}, {"tool_choice", "none"}}}) {
    json body = {{"messages", hi_}};
    body.update(more);
    const json choice = ask(body)["choices"][0];
    EXPECT_EQ(choice["message"]["content"], text);
    EXPECT_FALSE(choice["message"].contains("tool_calls"));
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
}

TEST_F(ToolModel, ACallThatIsCutOffIsText) {
  const json choice = ask({{"messages", hi_}, {"tools", kTools}, {"max_tokens", 3}})["choices"][0];
  EXPECT_EQ(choice["message"]["content"], kAnswer[0] + kAnswer[1] + kAnswer[2]);
  EXPECT_EQ(choice["finish_reason"], "length");
}

TEST_F(ToolModel, RefusesToolsThatTheTemplateLeavesOut) {
  open("chatml");
  const Response response = post({{"messages", hi_}, {"tools", kTools}});
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(json::parse(response.body)["error"]["param"], "tools");
  EXPECT_THAT(response.body, HasSubstr("--template"));
}

TEST_F(ToolModel, OtherFormsOfCallsAreText) {
  open("{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}{{ '\\n' }}");
  const json choice = ask({{"messages", hi_}, {"tools", kTools}})["choices"][0];
  EXPECT_THAT(choice["message"]["content"].get<std::string>(), HasSubstr("<tool_call>"));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

}  // namespace
}  // namespace tqcache::serve
