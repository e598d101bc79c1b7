// Targets and bodies of requests, and ends of answers, as the proxy reads them.

#include <string>
#include <string_view>

#include "fuzz/seeds/seeds.h"

namespace tqcache::fuzz {
namespace {

// The first byte chooses what reads the rest; of an answer the second one says where it is cut.
std::string input(std::string_view choice, std::string_view rest) {
  return std::string(choice) + std::string(rest);
}

constexpr std::string_view kTarget("\0", 1), kChatBody("@"), kAnswer("\xa0\x10");

}  // namespace

void make_serve_requests(const SeedFolder& seeds) {
  using namespace std::string_view_literals;
  seeds.add("path", input(kTarget, "/v1/chat/completions?x=%20&y"));
  seeds.add("path_escaped", input(kTarget, "/%73lots/%30?action=save"));
  seeds.add("path_unicode", input(kTarget, "/%u0073lots"));
  seeds.add("path_dots", input(kTarget, "/a/%2e%2E/./b//c#d"));
  seeds.add("body", input(kChatBody, R"({"prompt":"a \"b\" }","n_predict":3,"stream":true,)"
                                     R"("lora":[{"id":0,"scale":0.5}]})"));
  seeds.add("body_steered", input(kChatBody,
                                  " {\"id_slot\" : -1 , \"cache_prompt\" :false,"
                                  "\"id\\u005fslot\":2}\n"));
  seeds.add("body_any_slot", input(kChatBody, R"({"id_slot":-1,"cache_prompt":true,)"
                                              R"("":{"a":[1,{"b":null}]}})"));
  seeds.add("body_nul", input(kChatBody, "{\"a\":1}\0}"sv));
  seeds.add("answer", input(kAnswer, R"({"content":"\",\"timings\":{\"cache_n\":5}","id_slot":1,)"
                                     R"("truncated":true,"timings":{"cache_n":9,"prompt_n":31,)"
                                     R"("prompt_ms":1.5,"predicted_n":4}})"));
  seeds.add("answer_tool", input(kAnswer, R"({"content":[{"input":{"timings":{"cache_n":1}}}],)"
                                          R"("timings":{"cache_n":9}})"));
  seeds.add("answer_usage", input(kAnswer, R"({"usage":{"prompt_tokens":5,)"
                                           R"("prompt_tokens_details":{"cached_tokens":2},)"
                                           R"("cache_read_input_tokens":3}})"));
  seeds.add("answer_stream", input(kAnswer,
                                   "data: {\"choices\":[]}\n\n: ping\n\nevent: x\n"
                                   "data: {\"timings\":{\"cache_n\":9}}\n\n"
                                   "data: [DONE]\n\n"));
}

}  // namespace tqcache::fuzz
