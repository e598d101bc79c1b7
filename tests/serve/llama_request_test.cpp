// What llama-server reads in a request. cpp-httplib and nlohmann::json, which it uses, judge: a
// real server of the first tells the path that it has read.

#include "tqcache/serve/llama_request.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tqcache/serve/llama_server.h"

namespace tqcache::serve {
namespace {

using Json = nlohmann::ordered_json;

// Tells the path that cpp-httplib reads from a request's target.
class PathReader {
 public:
  PathReader() {
    server_.set_pre_routing_handler([](const httplib::Request& request, httplib::Response& answer) {
      answer.set_content(request.path, "text/plain");
      return httplib::Server::HandlerResponse::Handled;
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() before the loop has begun would be lost.
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~PathReader() {
    server_.stop();
    thread_.join();
  }

  std::string path_of(const std::string& target) {
    httplib::Client client("127.0.0.1", port_);
    client.set_url_encode(false);  // the target goes out as it is
    const auto answer = client.Get(target.c_str());
    return answer ? answer->body : "no answer";
  }

 private:
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

std::optional<Target> target_of(std::string_view text) {
  Target target;
  const auto refusal = read_target(text, target);
  EXPECT_TRUE(!refusal || refusal->status == 400);
  return refusal ? std::nullopt : std::optional(target);
}

TEST(LlamaPath, TheForwardedTargetIsReadAsThePathThatWasJudged) {
  PathReader reader;
  for (const char* text : {"/", "/slots", "/%73lots", "/v1/chat/completions", "/%76%31/%6Dodels",
                           "/v1/stream/a::b", "/a%2Db", "/slots/0?action=save", "/a?x=%20&y=1+2",
                           "/x;y=1,2", "/a%3Ab%40", "/slots/", "/a.b/..c", "/+a"}) {
    const auto target = target_of(text);
    ASSERT_TRUE(target) << text;
    EXPECT_EQ(reader.path_of(target->text), target->path) << text;
    EXPECT_EQ(reader.path_of(text), target->path) << text;
    EXPECT_EQ(target->text.find('%'), target->text.find('%', target->path.size())) << text;
  }
}

// cpp-httplib reads some of these as another path: a request for it would not be judged.
TEST(LlamaPath, WhatAnotherReaderMayReadDifferentlyIsRefused) {
  for (const char* text : {"",
                           "slots",
                           "*",
                           "http://host/slots",
                           "/%u0073lots",
                           "/%U0073lots",
                           "/slots#x",
                           "/completion#",
                           "/slots%00",
                           "/a%2Fslots",
                           "/%2e%2e%2Fslots",
                           "/%2573lots",
                           "/slots%3Fx",
                           "/slots%23x",
                           "/%-1",
                           "/%7",
                           "/%",
                           "/%zz",
                           "/%+3",
                           "//slots",
                           "/a//b",
                           "/./slots",
                           "/a/../slots",
                           "/a/..",
                           "/.",
                           "/%2e/slots",
                           "/a/.%2E/slots",
                           "/a b",
                           "/a\\b",
                           "/a%5Cb",
                           "/caf\xc3\xa9",
                           "/caf%C3%A9",
                           "/a%20b",
                           "/a%0D%0Ab",
                           "/a\"b",
                           "/a|b",
                           "/a%7Fb"}) {
    EXPECT_FALSE(target_of(text)) << text;
  }
  EXPECT_FALSE(target_of(std::string_view("/a\0b", 4)));
  // This is why.
  PathReader reader;
  EXPECT_EQ(reader.path_of("/%u0073lots"), "/slots");
  EXPECT_EQ(reader.path_of("/a%2Fslots"), "/a/slots");
}

TEST(LlamaPath, AQueryIsPassedOnAsItWasSent) {
  EXPECT_EQ(target_of("/a?x=%41&y=/../?")->text, "/a?x=%41&y=/../?");
  EXPECT_EQ(target_of("/%61?")->text, "/a?");
  EXPECT_EQ(target_of("/a?x=1")->query, "x=1");
  for (const char* text :
       {"/a?x=%", "/a?x=%4", "/a?x=%u0041", "/a?x=1#y", "/a?x= ", "/a?x=\x7f", "/a?x=\xc3\xa9"}) {
    EXPECT_FALSE(target_of(text)) << text;
  }
}

TEST(LlamaRoute, EveryRouteThatComputesOrChangesIsKnown) {
  using Kind = RouteKind;
  const auto kind = [](const char* method, const char* path) {
    return route_of(method, path).kind;
  };
  for (const char* path :
       {"/v1/chat/completions", "/chat/completions", "/completion", "/completions",
        "/v1/completions", "/v1/responses", "/responses", "/v1/messages"}) {
    EXPECT_EQ(kind("POST", path), Kind::kGenerates) << path;
    EXPECT_NE(route_of("POST", path).api, Api::kNone) << path;
    EXPECT_EQ(kind("GET", path), Kind::kUnknown) << path;
    EXPECT_EQ(kind("OPTIONS", path), Kind::kHarmless) << path;
  }
  for (const char* path :
       {"/infill", "/embedding", "/embeddings", "/v1/embeddings", "/rerank", "/reranking",
        "/v1/rerank", "/v1/reranking", "/v1/audio/transcriptions", "/audio/transcriptions"}) {
    EXPECT_EQ(kind("POST", path), Kind::kComputes) << path;
  }
  for (const char* path : {"/health", "/props", "/v1/models", "/metrics", "/", "/bundle.js"}) {
    EXPECT_EQ(kind("GET", path), Kind::kHarmless) << path;
    EXPECT_EQ(kind("HEAD", path), Kind::kHarmless) << path;
  }
  for (const char* path : {"/props", "/lora-adapters", "/models/load", "/models/unload"}) {
    EXPECT_EQ(kind("POST", path), Kind::kShared) << path;
    EXPECT_TRUE(route_of("POST", path).changes_model) << path;
  }
  EXPECT_EQ(kind("GET", "/slots"), Kind::kShared);
  EXPECT_EQ(kind("HEAD", "/slots"), Kind::kShared);
  EXPECT_EQ(kind("POST", "/slots/0"), Kind::kShared);
  EXPECT_EQ(kind("POST", "/v1/chat/completions/control"), Kind::kShared);
  EXPECT_EQ(kind("GET", "/v1/stream"), Kind::kShared);
}

TEST(LlamaRoute, WhatIsNotInTheTableIsUnknown) {
  for (const char* path : {"/predict", "/slots/", "/slots/0/1", "/SLOTS", "/completion/",
                           "/cvectors", "completion", "", "/v2/completions", "/llm/completion"}) {
    EXPECT_EQ(route_of("POST", path).kind, RouteKind::kUnknown) << path;
  }
  EXPECT_EQ(route_of("PUT", "/slots/0").kind, RouteKind::kUnknown);
  EXPECT_EQ(route_of("post", "/completion").kind, RouteKind::kUnknown);
}

TEST(LlamaRoute, APrefixHasToBeTheServersOwn) {
  EXPECT_EQ(route_of("POST", "/llm/completion", "/llm").api, Api::kCompletion);
  EXPECT_EQ(route_of("POST", "/llm/slots/3", "/llm").kind, RouteKind::kShared);
  EXPECT_EQ(route_of("POST", "/completion", "/llm").kind, RouteKind::kUnknown);
  EXPECT_EQ(route_of("POST", "/llmcompletion", "/llm").kind, RouteKind::kUnknown);
}

// --- bodies

std::optional<JsonBody> body_of(std::string text) {
  JsonBody body;
  const auto refusal = JsonBody::read(std::move(text), body);
  EXPECT_TRUE(!refusal || refusal->status == 400);
  return refusal ? std::nullopt : std::optional(body);
}

TEST(LlamaBody, IsOneObjectWithEachKeyOnceAndNothingBehindIt) {
  using namespace std::string_literals;
  EXPECT_TRUE(body_of("{}"));
  EXPECT_TRUE(body_of(" \r\n\t{ \"a\" : [ {\"a\":1,\"a\":2} ] , \"b\":\"}\\\"{\"}\n "));
  for (const std::string& text : {""s,
                                  "[]"s,
                                  "1"s,
                                  "{"s,
                                  "{} {}"s,
                                  "{}x"s,
                                  "{}\0"s,
                                  "{\"a\":1}\0}"s,
                                  "\0{}"s,
                                  "\xef\xbb\xbf{}"s,
                                  "{\"a\":1,}"s,
                                  "{'a':1}"s,
                                  "{\"a\":1} // end"s,
                                  "{\"a\":1,\"a\":1}"s,
                                  "{\"id_slot\":1,\"id\\u005fslot\":2}"s,
                                  "{\"a\":\"\xff\"}"s,
                                  "{\"a\":\"\\ud800\"}"s,
                                  "{\"a\":NaN}"s,
                                  "{\"a\":1e999}"s,
                                  "{\"a\":\"\n\"}"s}) {
    EXPECT_FALSE(body_of(text)) << text;
  }
  const auto nested = [](int n) {
    return "{\"a\":" + std::string(static_cast<std::size_t>(n), '[') +
           std::string(static_cast<std::size_t>(n), ']') + "}";
  };
  EXPECT_TRUE(body_of(nested(255)));
  EXPECT_FALSE(body_of(nested(256)));
  std::string many = "{\"k\":0";
  for (int i = 1; i < 1024; ++i) many += ",\"" + std::to_string(i) + "\":0";
  EXPECT_TRUE(body_of(many + "}"));
  EXPECT_FALSE(body_of(many + ",\"one more\":0}"));
}

// nlohmann::json ends at NUL, in llama-server, too. A field behind it would not be read.
TEST(LlamaBody, AFieldBehindANulWouldNotBeRead) {
  const std::string body("{\"prompt\":\"guess\",\"cache_prompt\":true}\0}", 40);
  ASSERT_EQ(body[38], '\0');
  EXPECT_TRUE(Json::parse(body).at("cache_prompt").get<bool>());
  EXPECT_FALSE(body_of(body));
}

// An empty list takes two bytes, and many times that when it is read.
TEST(LlamaBody, SoManyValuesThatMemoryWouldEndAreRefused) {
  std::string many = "{\"k\":[0";
  for (int i = 0; i < 1'100'000; ++i) many += ",0";
  EXPECT_FALSE(body_of(many + "]}"));
}

TEST(LlamaBody, IsForwardedAsTheSameObjectWithOurFields) {
  for (const char* text :
       {"{}", " { } ", "{\"prompt\":\"}\"}", "{\"a\":{\"cache_prompt\":1},\"b\":[\"\\\\\"]}\n",
        "{\"cache_prompt\":true}", "{\"a\":1 , \"cache_prompt\" : false , \"b\":2}",
        "{\"id_slot\":-1,\"prompt\":\"x\"}", "{\"cache\\u005fprompt\":null,\"\":0}"}) {
    const auto body = body_of(text);
    ASSERT_TRUE(body) << text;
    for (const bool may_reuse : {true, false}) {
      Json right = Json::parse(text);
      right["id_slot"] = 3;
      right["cache_prompt"] = may_reuse;
      const std::string with = with_slot(*body, 3, may_reuse).value();
      EXPECT_EQ(nlohmann::json::parse(with), nlohmann::json(right)) << text;
      EXPECT_TRUE(body_of(with)) << "each key is there once: " << with;
    }
    Json cold = Json::parse(text);
    cold["cache_prompt"] = false;
    EXPECT_EQ(nlohmann::json::parse(without_reuse(*body)), nlohmann::json(cold)) << text;
  }
}

TEST(LlamaBody, ASlotThatTheClientChoosesIsNotReplaced) {
  for (const char* slot : {"0", "7", "1.5", "true", "\"1\"", "-2"}) {
    const auto body = body_of("{\"id_slot\":" + std::string(slot) + "}").value();
    EXPECT_TRUE(chooses_slot(body)) << slot;
    EXPECT_FALSE(with_slot(body, 3, true)) << slot;
    EXPECT_EQ(Json::parse(without_reuse(body)).at("id_slot"), -1) << slot;
  }
  for (const char* slot : {"-1", "-1.0", "-1e0", "null"}) {
    const auto body = body_of("{\"id_slot\":" + std::string(slot) + "}").value();
    EXPECT_FALSE(chooses_slot(body)) << slot;
    EXPECT_EQ(Json::parse(with_slot(body, 3, true).value()).at("id_slot"), 3) << slot;
  }
}

// --- what is asked, and what a server says of itself

// Answers with texts of build b11549.
class SaysServer {
 public:
  explicit SaysServer(const std::string& props, const std::string& slots = "[]") {
    const auto say = [this](const char* path, const std::string& text) {
      server_.Get(path, [text](const httplib::Request&, httplib::Response& answer) {
        answer.set_content(text, "application/json");
      });
    };
    say("/props", props);
    say("/slots", slots);
    say("/lora-adapters", "[]");
    const int port = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
    UpstreamOptions options;
    options.url = "http://127.0.0.1:" + std::to_string(port);
    upstream_ = std::move(Upstream::open(options)).value();
  }
  ~SaysServer() {
    upstream_.reset();  // closes its connections, so that no thread waits for a next request
    server_.stop();
    thread_.join();
  }
  LlamaServer llama() { return {*upstream_, {}}; }

 private:
  httplib::Server server_;
  std::unique_ptr<Upstream> upstream_;
  std::thread thread_;
};

Asked ask_completion(const std::string& body) {
  SaysServer server("{}");
  return server.llama().ask(Api::kCompletion, body, nullptr).value();
}

TEST(LlamaAsked, ARequestWithAdaptersIsNotThatOfThePlainModel) {
  EXPECT_TRUE(ask_completion(R"({"prompt":"x","lora":[{"id":0,"scale":5}]})").has_adapters);
  EXPECT_TRUE(ask_completion(R"({"prompt":"x","id_slot":1,"lora":[{"id":0}]})").has_adapters);
  EXPECT_TRUE(ask_completion(R"({"prompt":"x","l\u006fra":{"id":0}})").has_adapters);
  for (const char* body : {R"({"prompt":"x"})", R"({"prompt":"x","lora":[]})",
                           R"({"prompt":"x","lora":null})", R"({"prompt":"\"lora\":[1]"})"}) {
    EXPECT_FALSE(ask_completion(body).has_adapters) << body;
  }
}

TEST(LlamaAsked, AChoiceOfASlotAndSeveralAnswersAreNotSteered) {
  for (const char* more : {R"("id_slot":0)", R"("id_slot":1.5)", R"("cache_prompt":false)",
                           R"("n":2)", R"("n":2.0)", R"("n_cmpl":3)"}) {
    EXPECT_TRUE(ask_completion("{\"prompt\":\"x\"," + std::string(more) + "}").is_steered) << more;
  }
  EXPECT_TRUE(ask_completion(R"({"prompt":["a","b"]})").is_steered) << "two prompts";
  for (const char* more : {R"("id_slot":-1)", R"("id_slot":-1.0)", R"("id_slot":null)",
                           R"("cache_prompt":true)", R"("n":1)", R"("n":null)"}) {
    EXPECT_FALSE(ask_completion("{\"prompt\":\"x\"," + std::string(more) + "}").is_steered) << more;
  }
}

TEST(LlamaAsked, MediaStreamsAndLimitsAreSeen) {
  EXPECT_TRUE(
      ask_completion(R"({"prompt":{"prompt_string":"x","multimodal_data":["aa"]}})").is_media);
  const Asked asked = ask_completion(R"({"prompt":[1,2],"stream":true,"n_predict":7})");
  EXPECT_FALSE(asked.is_media);
  EXPECT_TRUE(asked.is_stream);
  EXPECT_EQ(asked.n_predict, 7);
  EXPECT_EQ(asked.tokens, (std::vector<std::int32_t>{1, 2}));
  EXPECT_FALSE(ask_completion(R"({"prompt":"x"})").n_predict);
}

TEST(LlamaSays, WhetherItIsARouterOrSleeps) {
  SaysServer router(R"({"role":"router","max_instances":4,"model_alias":"llama-server",)"
                    R"("model_path":"none","default_generation_settings":{"params":null,)"
                    R"("n_ctx":0},"build_info":"b11549"})");
  EXPECT_TRUE(router.llama().props()->is_router);
  SaysServer sleeping(R"({"total_slots":4,"model_path":"m.gguf","is_sleeping":true,)"
                      R"("default_generation_settings":{"n_ctx":4096},"build_info":"b11549",)"
                      R"("modalities":{"vision":true,"video":false,"audio":false}})");
  const ServerProps props = sleeping.llama().props().value();
  EXPECT_FALSE(props.is_router);
  EXPECT_TRUE(props.is_sleeping);
  EXPECT_EQ(props.n_slots, 4);
  EXPECT_EQ(props.n_ctx, 4096);
  EXPECT_TRUE(props.takes_images);
  EXPECT_FALSE(props.takes_audio);
  SaysServer other("{}");
  EXPECT_FALSE(other.llama().props());
}

TEST(LlamaSays, WhatASlotHolds) {
  SaysServer server("{}", R"([{"id":0,"n_ctx":512,"speculative":false,"is_processing":false},)"
                          R"({"id":1,"n_ctx":512,"is_processing":true,"id_task":3,)"
                          R"("n_prompt_tokens":220,"n_prompt_tokens_processed":7,)"
                          R"("n_prompt_tokens_cache":9}])");
  const std::vector<SlotState> slots = server.llama().slots().value();
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_FALSE(slots[0].task);
  EXPECT_EQ(slots[0].n_tokens, 0);
  EXPECT_EQ(slots[0].n_ctx, 512);
  EXPECT_TRUE(slots[1].is_processing);
  EXPECT_EQ(slots[1].task, 3);
  EXPECT_EQ(slots[1].n_tokens, 220);
  EXPECT_EQ(slots[1].n_computed, 7);
  EXPECT_EQ(slots[1].n_reused, 9);
}

}  // namespace
}  // namespace tqcache::serve
