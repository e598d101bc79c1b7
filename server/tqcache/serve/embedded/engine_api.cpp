#include "tqcache/serve/embedded/engine_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "tqcache/serve/embedded/answer_writer.h"
#include "tqcache/serve/prompt_page.h"

namespace tqcache::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Response error_response(const ApiError& error, Dialect dialect = Dialect::kChat) {
  Response response = Response::json(error.status, error_json(error, dialect));
  if (error.retry_after_s > 0) {
    response.headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  }
  return response;
}

// An error of the library while a request was being prepared.
ApiError bad_request(const Error& error) {
  if (error.code == ErrorCode::kInterrupted) {
    return {.status = 503, .message = "the server is stopping", .type = "server_error"};
  }
  return {.message = error.message};
}

ApiError server_error(const Error& error) {
  return {.status = 500, .message = error.message, .type = "server_error"};
}

ApiError stopping() {
  return {.status = 503,
          .message = "the server is stopping",
          .type = "server_error",
          .code = "stopping",
          .retry_after_s = 5};
}

std::uint64_t random_number() {
  thread_local std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

// The field that a prompt comes in.
const char* prompt_field(Dialect dialect) {
  switch (dialect) {
    case Dialect::kChat:
    case Dialect::kMessages:
      return "messages";
    case Dialect::kCompletion:
      return "prompt";
    case Dialect::kResponses:
      return "input";
  }
  return "prompt";
}

void define_metrics(Metrics& metrics) {
  using Type = Metrics::Type;
  metrics.define("tqcache_prompts_total", Type::kCounter,
                 "Prompts answered, by where their first tokens came from.", false);
  metrics.define("tqcache_prompt_tokens_total", Type::kCounter, "Tokens of prompts.");
  metrics.define("tqcache_reused_tokens_total", Type::kCounter,
                 "Tokens of prompts that were not computed, by where they came from.", false);
  metrics.define("tqcache_generated_tokens_total", Type::kCounter, "Tokens of answers.");
  metrics.define("tqcache_saved_seconds_total", Type::kCounter,
                 "Estimated time that computing the reused tokens would have taken.");
  metrics.define("tqcache_prefill_seconds_total", Type::kCounter,
                 "Time spent computing tokens of prompts.");
  metrics.define("tqcache_queue_waiting", Type::kGauge, "Requests that wait for their turn.");
  metrics.define("tqcache_queue_full_total", Type::kCounter,
                 "Requests refused because the queue was full.");
}

}  // namespace

EngineApi::EngineApi(Engine& engine, EngineApiOptions options, Metrics& metrics)
    : engine_(engine),
      options_(std::move(options)),
      metrics_(metrics),
      started_(std::time(nullptr)) {
  define_metrics(metrics_);
}

void EngineApi::add_routes(HttpServer& server) {
  const auto post = [&](const char* path, auto handler) {
    server.route("POST", path, [this, handler](const Request& request, Client& client) {
      return (this->*handler)(request, client);
    });
  };
  post("/v1/chat/completions", &EngineApi::chat_completions);
  post("/v1/completions", &EngineApi::completions);
  post("/v1/messages", &EngineApi::messages);
  post("/v1/responses", &EngineApi::responses);
  server.route("POST", "/v1/messages/count_tokens",
               [this](const Request& r, Client&) { return count_tokens(r); });
  server.route("POST", "/tokenize", [this](const Request& r, Client&) { return tokenize(r); });
  server.route("POST", "/detokenize", [this](const Request& r, Client&) { return detokenize(r); });
  server.route("POST", "/apply-template",
               [this](const Request& r, Client&) { return apply_template(r); });
  server.route("GET", "/v1/models", [this](const Request&, Client&) { return models(); });
  server.route("GET", "/v1/models/" + engine_.model_id(),
               [this](const Request&, Client&) { return model(); });
  for (const char* path : {"/", kPagePath}) {
    server.route("GET", path, [this](const Request& r, Client&) { return page(r); });
  }
  server.set_health([this] { return health(); });
}

// --- Requests

// Before anything is parsed: JSON has at most 6 bytes for each byte of a text (\u0061), and 12 for
// each token id. What else a request has fits into 1 MiB.
MaybeApiError EngineApi::check_body(const Request& request) const {
  const auto n_context = static_cast<std::uint64_t>(engine_.context_length());
  const std::uint64_t n_most =
      (std::uint64_t{1} << 20) + std::max(6 * engine_.max_text_bytes(), 12 * n_context);
  if (request.body.size() <= n_most) return std::nullopt;
  return ApiError{.status = 413,
                  .message = fmt::format("the body has {} bytes; a prompt for the {} tokens of the "
                                         "model's context needs at most {} bytes",
                                         request.body.size(), n_context, n_most)};
}

// Before anything is encoded: a text that is too long for the context is refused by its bytes.
MaybeApiError EngineApi::check_size(std::uint64_t n_bytes, const char* field) const {
  if (n_bytes <= engine_.max_text_bytes()) return std::nullopt;
  return ApiError{
      .message = fmt::format("{}: a text of {} bytes; the {} tokens of the model's context are at "
                             "most {} bytes",
                             field, n_bytes, engine_.context_length(), engine_.max_text_bytes()),
      .param = field,
      .code = "context_length_exceeded"};
}

// A template that knows no tools would leave them out without a word.
MaybeApiError EngineApi::check_tools(const ChatRequest& chat) const {
  if (chat.tools.empty() || engine_.takes_tools()) return std::nullopt;
  return ApiError{.message =
                      "tools: the chat template of this model knows no tools; send none, or "
                      "serve it with another template (--template)",
                  .param = "tools",
                  .code = "unsupported_parameter"};
}

MaybeApiError EngineApi::encode_chat(const ChatRequest& chat, const std::string& tenant,
                                     Dialect dialect, session::Ids& ids) const {
  std::uint64_t n_bytes = 0;
  for (const tokenizer::ChatMessage& message : chat.messages) {
    n_bytes += message.text.size() + message.fields.size();
  }
  n_bytes += chat.tools.size();
  if (MaybeApiError error = check_size(n_bytes, prompt_field(dialect))) return error;
  if (MaybeApiError error = check_tools(chat)) return error;
  auto encoded = engine_.encode_chat(chat, tenant);
  if (!encoded) return bad_request(encoded.error());
  ids = std::move(encoded).value();
  return std::nullopt;
}

// Checks the job against the model, and fills in what the client left open.
MaybeApiError EngineApi::complete_job(Job& job) const {
  GenerationRequest& request = job.request;
  const std::int64_t n_prompt = std::ssize(request.prompt);
  const std::int64_t n_context = engine_.context_length();
  const char* const field = prompt_field(job.dialect);
  if (n_prompt == 0) return ApiError{.message = "the prompt has no tokens", .param = field};
  if (n_prompt >= n_context) {
    return ApiError{.message = fmt::format("the prompt has {} tokens; the context of the model "
                                           "holds {} tokens of prompt and answer",
                                           n_prompt, n_context),
                    .param = field,
                    .code = "context_length_exceeded"};
  }
  const std::int64_t n_vocabulary = engine_.model().config.vocab_size;
  for (const std::int32_t id : request.prompt) {
    if (id < 0 || id >= n_vocabulary) {
      return ApiError{
          .message = fmt::format("token id {} is not one of the model's {}", id, n_vocabulary),
          .param = "prompt"};
    }
  }
  for (const model::LogitBias& each : job.settings.sampling.logit_bias) {
    if (each.id >= n_vocabulary) {
      return ApiError{.message = fmt::format("logit_bias: token id {} is not one of the model's {}",
                                             each.id, n_vocabulary),
                      .param = "logit_bias"};
    }
  }
  request.sampling = job.settings.sampling;
  if (!job.settings.has_seed) request.sampling.seed = random_number();
  request.max_tokens = job.settings.max_tokens.value_or(n_context);
  request.stops = job.settings.stops;
  request.one_call = request.has_tools && job.settings.one_call;
  return std::nullopt;
}

Response EngineApi::answer_chat(Dialect dialect, ChatReader read, const Request& request,
                                Client& client) {
  Job job;
  job.dialect = dialect;
  job.request.tenant = options_.tenant_of(request);
  {
    const std::lock_guard lock(reading_);
    ChatRequest chat;
    MaybeApiError error = check_body(request);
    if (!error) error = read(request.body, chat);
    if (!error) error = encode_chat(chat, job.request.tenant, dialect, job.request.prompt);
    if (error) return error_response(*error, dialect);
    job.request.conversation = conversation_digest(chat);
    job.request.has_tools = chat.settings.may_call = !chat.tools.empty();
    job.settings = std::move(chat.settings);
  }
  return run(std::move(job), client);
}

Response EngineApi::chat_completions(const Request& request, Client& client) {
  return answer_chat(Dialect::kChat, read_chat_request, request, client);
}

Response EngineApi::messages(const Request& request, Client& client) {
  const auto read = [](std::string_view body, ChatRequest& chat) {
    return read_messages_request(body, false, chat);
  };
  return answer_chat(Dialect::kMessages, read, request, client);
}

Response EngineApi::responses(const Request& request, Client& client) {
  return answer_chat(Dialect::kResponses, read_responses_request, request, client);
}

Response EngineApi::count_tokens(const Request& request) {
  const std::lock_guard lock(reading_);
  ChatRequest chat;
  session::Ids ids;
  MaybeApiError error = check_body(request);
  if (!error) error = read_messages_request(request.body, true, chat);
  if (!error) error = encode_chat(chat, options_.tenant_of(request), Dialect::kMessages, ids);
  if (error) return error_response(*error, Dialect::kMessages);
  return Response::json(200, dump({{"input_tokens", ids.size()}}));
}

Response EngineApi::completions(const Request& request, Client& client) {
  Job job;
  job.dialect = Dialect::kCompletion;
  job.request.tenant = options_.tenant_of(request);
  {
    const std::lock_guard lock(reading_);
    CompletionRequest completion;
    MaybeApiError error = check_body(request);
    if (!error) error = read_completion_request(request.body, completion);
    if (!error) error = check_size(completion.text.size(), "prompt");
    if (error) return error_response(*error);
    job.settings = std::move(completion.settings);
    job.request.prompt = std::move(completion.ids);
    if (job.request.prompt.empty()) {
      auto ids = engine_.encode_text(completion.text);
      if (!ids) return error_response(bad_request(ids.error()));
      job.request.prompt = std::move(ids).value();
    }
  }
  return run(std::move(job), client);
}

// A guess: the queue moves on by one place a second.
std::int64_t EngineApi::retry_after() const {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(engine_.queue().counts().waiting), 1,
                                  30);
}

Response EngineApi::run(Job job, Client& client) {
  const Dialect dialect = job.dialect;
  if (const MaybeApiError error = complete_job(job)) return error_response(*error, dialect);
  if (engine_.is_stopping()) return error_response(stopping(), dialect);
  std::optional<RequestQueue::Turn> turn = engine_.queue().join();
  if (!turn) {
    metrics_.add("tqcache_queue_full_total");
    const ApiError error{.status = 429,
                         .message = fmt::format("{} requests are waiting already; this server "
                                                "answers one at a time",
                                                engine_.queue().max_waiting()),
                         .type = "rate_limit_error",
                         .code = "queue_full",
                         .retry_after_s = retry_after()};
    return error_response(error, dialect);
  }
  if (job.settings.stream) {
    Response response;
    response.headers = {{"Content-Type", "text/event-stream"},
                        {"Cache-Control", "no-cache"},
                        {"X-Accel-Buffering", "no"}};
    // A std::function can be copied, a turn cannot.
    const auto shared = std::make_shared<RequestQueue::Turn>(std::move(*turn));
    response.stream = [this, job = std::move(job), shared, &client](Sink& sink) {
      try {
        return stream(job, *shared, client, sink);
      } catch (const std::exception&) {
        return false;  // nobody above catches it
      }
    };
    return response;
  }
  const Answer answer = answer_in_turn(job, *turn, client, [](std::string_view) { return true; });
  if (answer.failure) {
    const bool was_stopped = answer.stop == session::StopReason::kInterrupted;
    return error_response(was_stopped ? stopping() : server_error(*answer.failure), dialect);
  }
  const AnswerWriter writer = make_writer(dialect, job.settings, engine_.model_id());
  return Response::json(200,
                        std::visit([&](const auto& its) { return its.whole(answer); }, writer));
}

Answer EngineApi::answer_in_turn(const Job& job, RequestQueue::Turn& turn, Client& client,
                                 const Engine::OnText& on_text, const Engine::OnPrompt& on_prompt,
                                 const Engine::OnText& on_thought) {
  const auto goes_on = [&] { return !engine_.is_stopping() && !client.is_gone(); };
  metrics_.set("tqcache_queue_waiting", static_cast<double>(engine_.queue().counts().waiting));
  const bool is_its_turn = turn.wait(goes_on);
  metrics_.set("tqcache_queue_waiting", static_cast<double>(engine_.queue().counts().waiting));
  if (!is_its_turn) {
    Answer none;
    none.stop = session::StopReason::kInterrupted;
    none.failure = interrupted_error();
    return none;
  }
  Answer answer = engine_.answer(job.request, goes_on, on_text, on_prompt, on_thought);
  count(answer);
  return answer;
}

bool EngineApi::stream(const Job& job, RequestQueue::Turn& turn, Client& client, Sink& sink) {
  AnswerWriter writer = make_writer(job.dialect, job.settings, engine_.model_id());
  const auto write = [&](const auto& events_of) {
    return sink.write(std::visit(events_of, writer));
  };
  const Answer answer = answer_in_turn(
      job, turn, client,
      [&](std::string_view text) { return write([&](auto& its) { return its.piece(text); }); },
      [&](const Answer& so_far) { return write([&](auto& its) { return its.begin(so_far); }); },
      [&](std::string_view text) { return write([&](auto& its) { return its.thought(text); }); });
  if (answer.failure) {
    const bool was_stopped = answer.stop == session::StopReason::kInterrupted;
    const ApiError error = was_stopped ? stopping() : server_error(*answer.failure);
    write([&](auto& its) { return its.fail(answer, error); });
    return false;
  }
  return write([&](auto& its) { return its.end(answer); });
}

void EngineApi::count(const Answer& answer) {
  metrics_.add("tqcache_prompts_total", 1, {{"prefix", source_name(answer.source)}});
  metrics_.add("tqcache_prompt_tokens_total", static_cast<double>(answer.prompt_tokens));
  metrics_.add("tqcache_generated_tokens_total", static_cast<double>(answer.completion_tokens));
  metrics_.add("tqcache_saved_seconds_total", answer.saved_seconds);
  metrics_.add("tqcache_prefill_seconds_total", answer.prompt_seconds);
  if (answer.cached_tokens > 0) {
    metrics_.add("tqcache_reused_tokens_total", static_cast<double>(answer.cached_tokens),
                 {{"prefix", source_name(answer.source)}});
  }
}

// --- The other routes

Response EngineApi::tokenize(const Request& request) {
  const std::lock_guard lock(reading_);
  TokenizeRequest wanted;
  MaybeApiError error = check_body(request);
  if (!error) error = read_tokenize_request(request.body, wanted);
  if (!error) error = check_size(wanted.text.size(), "content");
  if (error) return error_response(*error);
  using tokenizer::Tokenizer;
  Tokenizer::EncodeOptions options;
  options.special = wanted.parse_special ? Tokenizer::Special::kParse : Tokenizer::Special::kAsText;
  options.ends = wanted.add_special ? Tokenizer::Ends::kBegin : Tokenizer::Ends::kNone;
  options.keep_going = [this] { return !engine_.is_stopping(); };
  const auto ids = engine_.model().tokenizer.encode(wanted.text, options);
  if (!ids) return error_response(bad_request(ids.error()));
  // Not by way of JSON values, which have many times the size of a token.
  return Response::json(200, fmt::format(R"({{"tokens":[{}]}})", fmt::join(*ids, ",")));
}

Response EngineApi::detokenize(const Request& request) {
  const std::lock_guard lock(reading_);
  session::Ids ids;
  MaybeApiError error = check_body(request);
  if (!error) error = read_detokenize_request(request.body, ids);
  if (error) return error_response(*error);
  return Response::json(200, dump({{"content", engine_.model().tokenizer.decode(ids)}}));
}

Response EngineApi::apply_template(const Request& request) {
  const std::lock_guard lock(reading_);
  ChatRequest chat;
  MaybeApiError error = check_body(request);
  if (!error) error = read_chat_request(request.body, chat);
  if (!error) error = check_tools(chat);
  if (error) return error_response(*error);
  const auto text = engine_.render_chat(chat);
  if (!text) return error_response(bad_request(text.error()));
  return Response::json(200, dump({{"prompt", *text}}));
}

Response EngineApi::model() const {
  return Response::json(200, dump({{"id", engine_.model_id()},
                                   {"object", "model"},
                                   {"created", started_},
                                   {"owned_by", "tqcache"},
                                   {"context_length", engine_.context_length()}}));
}

Response EngineApi::models() const {
  return Response::json(200, fmt::format(R"({{"object":"list","data":[{}]}})", model().body));
}

Response EngineApi::page(const Request& request) {
  engine_.refresh_ledger();
  const std::string tenant = options_.tenant_of(request);
  PageFacts facts;
  facts.model = engine_.model_id();
  facts.store = engine_.store_name();
  facts.shows_text = engine_.shows_text();
  facts.is_of_one_key = options_.has_keys;
  facts.now = std::time(nullptr);
  return answer_page(request, facts, engine_.ledger(),
                     options_.has_keys ? std::optional<std::string_view>(tenant) : std::nullopt,
                     options_.page_access);
}

Response EngineApi::health() const {
  const RequestQueue::Counts counts = engine_.queue().counts();
  const OrderedJson json = {{"status", engine_.is_stopping() ? "stopping" : "ok"},
                            {"model", engine_.model_id()},
                            {"queue",
                             {{"running", counts.running},
                              {"waiting", counts.waiting},
                              {"max_waiting", engine_.queue().max_waiting()}}}};
  return Response::json(engine_.is_stopping() ? 503 : 200, dump(json));
}

}  // namespace tqcache::serve
