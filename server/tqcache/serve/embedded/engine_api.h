#pragma once
// server/tqcache/serve/embedded/engine_api.h: the routes of a server that answers from an Engine.
//
// Spec: docs/reference/http.md.

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "tqcache/serve/embedded/engine.h"
#include "tqcache/serve/http_message.h"
#include "tqcache/serve/http_server.h"
#include "tqcache/serve/operations.h"
#include "tqcache/serve/prompt_page.h"

namespace tqcache::serve {

struct EngineApiOptions {
  // The salt of the client's prompts in the store.
  std::function<std::string(const Request&)> tenant_of;
  // Clients have keys: the page shows the prompts of one key. Otherwise it shows all.
  bool has_keys = false;
  PageAccess page_access = {};
};

class EngineApi {
 public:
  // `engine` and `metrics` must outlive this.
  EngineApi(Engine& engine, EngineApiOptions options, Metrics& metrics);

  // Sets the routes of `server`, which must not outlive this.
  void add_routes(HttpServer& server);

  // The handlers, which need no socket. Threads: any number.
  Response chat_completions(const Request& request, Client& client);
  Response completions(const Request& request, Client& client);
  Response messages(const Request& request, Client& client);
  Response count_tokens(const Request& request);
  Response responses(const Request& request, Client& client);
  Response tokenize(const Request& request);
  Response detokenize(const Request& request);
  Response apply_template(const Request& request);
  Response models() const;
  Response model() const;
  Response health() const;
  Response page(const Request& request);

 private:
  // A request that is ready to be answered.
  struct Job {
    Dialect dialect = Dialect::kChat;
    GenerationRequest request;
    GenerationSettings settings;
  };

  MaybeApiError check_body(const Request& request) const;
  MaybeApiError check_size(std::uint64_t n_bytes, const char* field) const;
  MaybeApiError check_tools(const ChatRequest& chat) const;
  MaybeApiError encode_chat(const ChatRequest& chat, const std::string& tenant, Dialect dialect,
                            session::Ids& ids) const;
  using ChatReader = MaybeApiError (*)(std::string_view body, ChatRequest& chat);
  Response answer_chat(Dialect dialect, ChatReader read, const Request& request, Client& client);
  MaybeApiError complete_job(Job& job) const;
  Response run(Job job, Client& client);
  bool stream(const Job& job, RequestQueue::Turn& turn, Client& client, Sink& sink);
  Answer answer_in_turn(const Job& job, RequestQueue::Turn& turn, Client& client,
                        const Engine::OnText& on_text, const Engine::OnPrompt& on_prompt = {},
                        const Engine::OnText& on_thought = {});
  void count(const Answer& answer);
  std::int64_t retry_after() const;

  Engine& engine_;
  EngineApiOptions options_;
  Metrics& metrics_;
  std::int64_t started_;  // seconds since 1970
  // Held while a body is parsed and its text becomes tokens, which takes many times its memory.
  std::mutex reading_;
};

}  // namespace tqcache::serve
