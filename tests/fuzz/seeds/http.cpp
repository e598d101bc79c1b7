// Requests of clients, and answers of a server behind the proxy.

#include <string>
#include <string_view>

#include "fuzz/seeds/seeds.h"

namespace tqcache::fuzz {
namespace {

// The first byte chooses what reads the rest.
std::string input(int choice, std::string_view rest) {
  return static_cast<char>(choice) + std::string(rest);
}

std::string answer(std::string_view body, std::string_view more = "") {
  return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + std::string(more) +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

constexpr int kHead = 0, kChunks = 64, kOpenAi = 100, kMessages = 109, kBody = 112, kPassOn = 128,
              kAsk = 192;

}  // namespace

void make_http(const SeedFolder& seeds) {
  seeds.add("get", input(kHead,
                         "GET /v1/models?x=1 HTTP/1.1\r\nHost: localhost:8081\r\n"
                         "Authorization: Bearer key\r\nAccept: */*\r\n\r\n"));
  seeds.add("post", input(kHead,
                          "POST /v1/chat/completions HTTP/1.1\r\nHost: [::1]:80\r\n"
                          "Content-Length: 12\r\nExpect: 100-continue\r\n"
                          "Connection: keep-alive, X-Own\r\nX-Own: 1\r\n\r\n"));
  seeds.add("post_chunked", input(kHead,
                                  "POST / HTTP/1.1\r\nhost: h\r\n"
                                  "Transfer-Encoding: chunked\r\nx-api-key: key\r\n\r\n"));
  seeds.add("basic",
            input(kHead, "GET /tqcache HTTP/1.0\r\nAuthorization: Basic dTprZXk=\r\n\r\n"));
  seeds.add("chunks", input(kChunks,
                            "\x05"
                            "4\r\nbody\r\nA\r\n0123456789\r\n0\r\n\r\n"));
  seeds.add("chunk_above_the_limit", input(kChunks,
                                           "\x01"
                                           "3e9\r\n"));
  seeds.add("chat", input(kOpenAi, R"({"model":"m","messages":[{"role":"system","content":"Be."},)"
                                   R"({"role":"user","content":[{"type":"text","text":"Hi"}]}],)"
                                   R"("stream":true,"stream_options":{"include_usage":true},)"
                                   R"("max_tokens":5,"stop":["\n"],"temperature":0.5,"seed":7})"));
  seeds.add("completion", input(kOpenAi + 1, R"({"prompt":[1,2,3],"max_tokens":3,"top_p":0.9,)"
                                             R"("logit_bias":{"5":-100},"n":1})"));
  seeds.add("tokenize", input(kOpenAi + 2, R"({"content":"text","add_special":true})"));
  seeds.add("detokenize", input(kOpenAi + 3, R"({"tokens":[1,2]})"));
  seeds.add(
      "tools",
      input(kOpenAi, R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant",)"
                     R"("content":null,"reasoning_content":"Hm.","tool_calls":[{"id":"c",)"
                     R"("type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},)"
                     R"({"role":"tool","tool_call_id":"c","content":"2"}],"tool_choice":)"
                     R"("auto","tools":[{"type":"function","function":{"name":"f",)"
                     R"("parameters":{"type":"object"}}}]})"));
  seeds.add("call", input(kOpenAi,
                          "So.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                          "{\"a\": 1}}\n</tool_call>\n<tool_call>"));
  seeds.add("template", input(kOpenAi + 4, R"({"messages":[{"role":"user","content":"Hi"}]})"));
  // Anthropic's and OpenAI's newer interfaces. These numbers are theirs alone.
  seeds.add("anthropic_messages",
            input(kMessages, R"({"model":"m","max_tokens":5,"system":[{"type":"text",)"
                             R"("text":"Be.","cache_control":{"type":"ephemeral"}}],)"
                             R"("messages":[{"role":"user","content":[{"type":"text",)"
                             R"("text":"Hi"}]},{"role":"assistant","content":"Yes?"},)"
                             R"({"role":"user","content":"No."}],"stop_sequences":["x"],)"
                             R"("temperature":0.5,"top_k":3,"stream":true,)"
                             R"("thinking":{"type":"disabled"}})"));
  seeds.add("anthropic_count_tokens",
            input(kMessages + 1, R"({"messages":[{"role":"user","content":"Hi"}],)"
                                 R"("system":"S","tools":[]})"));
  seeds.add("openai_responses",
            input(kMessages + 2, R"({"model":"m","instructions":"Be.","input":[)"
                                 R"({"role":"developer","content":"D"},{"type":"message",)"
                                 R"("id":"msg_1","status":"completed","role":"assistant",)"
                                 R"("content":[{"type":"output_text","text":"Yes?",)"
                                 R"("annotations":[],"logprobs":[]}]},{"role":"user",)"
                                 R"("content":[{"type":"input_text","text":"Hi"}]}],)"
                                 R"("max_output_tokens":5,"reasoning":{"effort":"none"},)"
                                 R"("text":{"format":{"type":"text"},"verbosity":"low"},)"
                                 R"("store":false,"stream":true})"));
  seeds.add("responses", input(kBody + 2, R"({"instructions":"Be.","input":[{"type":"message",)"
                                          R"("role":"user","content":"Hi"}],"tools":[{"name":"f",)"
                                          R"("parameters":{"type":"object"}}]})"));
  seeds.add("messages",
            input(kBody + 3, R"({"system":"Be.","messages":[{"role":"assistant","content":)"
                             R"([{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]},)"
                             R"({"role":"user","content":[{"type":"tool_result",)"
                             R"("tool_use_id":"1","content":"r"}]}]})"));
  seeds.add("pass_on", input(kPassOn, answer("{}", "X-Own: 1\r\nConnection: X-Own\r\n")));
  seeds.add("pass_on_chunked",
            input(kPassOn + 1,
                  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
                  "Content-Type: text/event-stream\r\n\r\n4\r\ndata\r\n0\r\n\r\n"));
  seeds.add("pass_on_to_the_end", input(kPassOn, "HTTP/1.0 200 OK\r\n\r\nbody"));
  seeds.add("pass_on_head", input(kPassOn + 2, "HTTP/1.1 204 No Content\r\n\r\n"));
  seeds.add("pass_on_cut", input(kPassOn, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbody"));
  seeds.add("pass_on_two_lengths",
            input(kPassOn,
                  "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n"
                  "\r\n4\r\nbody\r\n0\r\n\r\n"));
  seeds.add("pass_on_continue", input(kPassOn + 1,
                                      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 x\r\n"
                                      "Content-Length: 0\r\n\r\n"));
  seeds.add("props", input(kAsk, answer(R"({"model_path":"m.gguf","total_slots":2,"build_info":)"
                                        R"("b1","default_generation_settings":{"n_ctx":512}})") +
                                     answer(R"([{"id":0,"scale":0.5}])")));
  seeds.add("slots", input(kAsk + 1, answer(R"([{"id":0,"is_processing":false,"id_task":3,)"
                                            R"("n_prompt_tokens":17},{"id":1}])")));
  seeds.add("apply_template", input(kAsk + 2, answer(R"({"prompt":"<s>Hi"})")));
  seeds.add("tokens", input(kAsk + 3, answer(R"({"tokens":[1,2,3]})")));
  seeds.add("saved", input(kAsk + 4, answer(R"({"id_slot":0,"n_saved":17})")));
  seeds.add("restored", input(kAsk + 5, answer(R"({"id_slot":0,"n_restored":17})")));
  seeds.add("refused", input(kAsk + 6,
                             "HTTP/1.1 400 x\r\nContent-Length: 32\r\n\r\n"
                             R"({"error":{"message":"too large"}})"));
}

}  // namespace tqcache::fuzz
