#include "tqcache/serve/embedded/engine_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "tqcache/serve/prompt_page.h"
#include "tqcache/version.h"

namespace tqcache::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Response error_response(const ApiError& error) {
  Response response = Response::json(error.status, error_json(error));
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

const char* finish_reason(session::StopReason stop) {
  const bool is_cut =
      stop == session::StopReason::kLength || stop == session::StopReason::kContextFull;
  return is_cut ? "length" : "stop";
}

OrderedJson usage_json(const Answer& answer) {
  return {{"prompt_tokens", answer.prompt_tokens},
          {"completion_tokens", answer.completion_tokens},
          {"total_tokens", answer.prompt_tokens + answer.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", answer.cached_tokens}}}};
}

const char* source_name(PrefixSource source) {
  switch (source) {
    case PrefixSource::kNothing:
      return "nothing";
    case PrefixSource::kMemory:
      return "memory";
    case PrefixSource::kStore:
      return "store";
  }
  return "nothing";
}

// As llama.cpp has them, and where the prefix came from.
OrderedJson timings_json(const Answer& answer) {
  return {{"cache_n", answer.cached_tokens},
          {"cache_source", source_name(answer.source)},
          {"cache_ms", answer.load_seconds * 1000},
          {"prompt_n", answer.prompt_tokens - answer.cached_tokens},
          {"prompt_ms", answer.prompt_seconds * 1000},
          {"predicted_n", answer.completion_tokens},
          {"predicted_ms", answer.answer_seconds * 1000}};
}

// The objects of one completion, which share an id.
class CompletionWriter {
 public:
  CompletionWriter(bool is_chat, std::string model)
      : is_chat_(is_chat),
        id_(fmt::format("{}-{:016x}", is_chat ? "chatcmpl" : "cmpl", random_number())),
        model_(std::move(model)),
        created_(std::time(nullptr)) {}

  std::string whole(const Answer& answer) const {
    OrderedJson choice = {{"index", 0}};
    if (is_chat_) {
      choice["message"] = {{"role", "assistant"}, {"content", answer.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = answer.text;
    }
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = finish_reason(answer.stop);
    OrderedJson json = head(false);
    json["choices"] = OrderedJson::array({choice});
    json["usage"] = usage_json(answer);
    json["timings"] = timings_json(answer);
    return dump(json);
  }

  // The first chunk of a chat.
  std::string role(bool with_usage) const {
    return chunk({{"role", "assistant"}, {"content", ""}}, "", nullptr, with_usage);
  }
  std::string piece(std::string_view text, bool with_usage) const {
    return chunk({{"content", text}}, text, nullptr, with_usage);
  }
  std::string finish(const Answer& answer, bool with_usage) const {
    return chunk(OrderedJson::object(), "", finish_reason(answer.stop), with_usage, &answer);
  }
  std::string usage(const Answer& answer) const {
    OrderedJson json = head(true);
    json["choices"] = OrderedJson::array();
    json["usage"] = usage_json(answer);
    return event(dump(json));
  }

  static std::string event(const std::string& data) { return "data: " + data + "\n\n"; }

 private:
  OrderedJson head(bool is_chunk) const {
    const char* object = "text_completion";
    if (is_chat_) object = is_chunk ? "chat.completion.chunk" : "chat.completion";
    return {{"id", id_},
            {"object", object},
            {"created", created_},
            {"model", model_},
            {"system_fingerprint", "tqcache-" + std::string(version())}};
  }

  std::string chunk(const OrderedJson& delta, std::string_view text, const char* reason,
                    bool with_usage, const Answer* answer = nullptr) const {
    OrderedJson choice = {{"index", 0}};
    if (is_chat_) {
      choice["delta"] = delta;
    } else {
      choice["text"] = text;
    }
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = reason == nullptr ? OrderedJson() : OrderedJson(reason);
    OrderedJson json = head(true);
    json["choices"] = OrderedJson::array({choice});
    if (with_usage) json["usage"] = nullptr;
    if (answer != nullptr) json["timings"] = timings_json(*answer);
    return event(dump(json));
  }

  bool is_chat_;
  std::string id_;
  std::string model_;
  std::int64_t created_;
};

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

MaybeApiError EngineApi::check_model(const std::string& name) const {
  if (name.empty() || name == engine_.model_id()) return std::nullopt;
  return ApiError{
      .status = 404,
      .message = fmt::format("this server has no model {}; it has {}",
                             dump(OrderedJson(name.substr(0, 100))), engine_.model_id()),
      .param = "model",
      .code = "model_not_found"};
}

// Checks the job against the model, and fills in what the client left open.
MaybeApiError EngineApi::complete_job(Job& job) const {
  if (MaybeApiError error = check_model(job.settings.model)) return error;
  GenerationRequest& request = job.request;
  const std::int64_t n_prompt = std::ssize(request.prompt);
  const std::int64_t n_context = engine_.context_length();
  if (n_prompt == 0) return ApiError{.message = "the prompt has no tokens", .param = "prompt"};
  if (n_prompt >= n_context) {
    return ApiError{.message = fmt::format("the prompt has {} tokens; the context of the model "
                                           "holds {} tokens of prompt and answer",
                                           n_prompt, n_context),
                    .param = request.is_chat ? "messages" : "prompt",
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
  return std::nullopt;
}

Response EngineApi::chat_completions(const Request& request, Client& client) {
  ChatRequest chat;
  if (const MaybeApiError error = read_chat_request(request.body, chat)) {
    return error_response(*error);
  }
  Job job;
  job.settings = chat.settings;
  job.request.is_chat = true;
  job.request.tenant = options_.tenant_of(request);
  auto ids = engine_.encode_chat(chat, job.request.tenant);
  if (!ids) return error_response(bad_request(ids.error()));
  job.request.prompt = std::move(ids).value();
  return run(std::move(job), client);
}

Response EngineApi::completions(const Request& request, Client& client) {
  CompletionRequest completion;
  if (const MaybeApiError error = read_completion_request(request.body, completion)) {
    return error_response(*error);
  }
  Job job;
  job.settings = completion.settings;
  job.request.tenant = options_.tenant_of(request);
  job.request.prompt = std::move(completion.ids);
  if (job.request.prompt.empty()) {
    auto ids = engine_.encode_text(completion.text);
    if (!ids) return error_response(bad_request(ids.error()));
    job.request.prompt = std::move(ids).value();
  }
  return run(std::move(job), client);
}

// A guess: the queue moves on by one place a second.
std::int64_t EngineApi::retry_after() const {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(engine_.queue().counts().waiting), 1,
                                  30);
}

Response EngineApi::run(Job job, Client& client) {
  if (const MaybeApiError error = complete_job(job)) return error_response(*error);
  if (engine_.is_stopping()) return error_response(stopping());
  std::optional<RequestQueue::Turn> turn = engine_.queue().join();
  if (!turn) {
    metrics_.add("tqcache_queue_full_total");
    return error_response({.status = 429,
                           .message = fmt::format("{} requests are waiting already; this server "
                                                  "answers one at a time",
                                                  engine_.queue().max_waiting()),
                           .type = "rate_limit_error",
                           .code = "queue_full",
                           .retry_after_s = retry_after()});
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
  if (answer.stop == session::StopReason::kInterrupted) return error_response(stopping());
  if (answer.failure) return error_response(server_error(*answer.failure));
  return Response::json(200,
                        CompletionWriter(job.request.is_chat, engine_.model_id()).whole(answer));
}

Answer EngineApi::answer_in_turn(const Job& job, RequestQueue::Turn& turn, Client& client,
                                 const Engine::OnText& on_text) {
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
  Answer answer = engine_.answer(job.request, goes_on, on_text);
  count(answer);
  return answer;
}

bool EngineApi::stream(const Job& job, RequestQueue::Turn& turn, Client& client, Sink& sink) {
  const CompletionWriter writer(job.request.is_chat, engine_.model_id());
  const bool with_usage = job.settings.include_usage;
  bool has_begun = false;
  const auto begin = [&] {
    if (has_begun || !job.request.is_chat) return true;
    has_begun = true;
    return sink.write(writer.role(with_usage));
  };
  const Answer answer = answer_in_turn(job, turn, client, [&](std::string_view text) {
    return begin() && sink.write(writer.piece(text, with_usage));
  });
  if (answer.failure) {
    const bool was_stopped = answer.stop == session::StopReason::kInterrupted;
    const ApiError error = was_stopped ? stopping() : server_error(*answer.failure);
    // The stream ends without [DONE], so that no client takes it for complete.
    sink.write(CompletionWriter::event(error_json(error)));
    return false;
  }
  std::string end = writer.finish(answer, with_usage);
  if (with_usage) end += writer.usage(answer);
  return begin() && sink.write(end + "data: [DONE]\n\n");
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
  TokenizeRequest wanted;
  if (const MaybeApiError error = read_tokenize_request(request.body, wanted)) {
    return error_response(*error);
  }
  using tokenizer::Tokenizer;
  Tokenizer::EncodeOptions options;
  options.special = wanted.parse_special ? Tokenizer::Special::kParse : Tokenizer::Special::kAsText;
  options.ends = wanted.add_special ? Tokenizer::Ends::kBegin : Tokenizer::Ends::kNone;
  options.keep_going = [this] { return !engine_.is_stopping(); };
  const auto ids = engine_.model().tokenizer.encode(wanted.text, options);
  if (!ids) return error_response(bad_request(ids.error()));
  return Response::json(200, dump({{"tokens", *ids}}));
}

Response EngineApi::detokenize(const Request& request) {
  session::Ids ids;
  if (const MaybeApiError error = read_detokenize_request(request.body, ids)) {
    return error_response(*error);
  }
  return Response::json(200, dump({{"content", engine_.model().tokenizer.decode(ids)}}));
}

Response EngineApi::apply_template(const Request& request) {
  ChatRequest chat;
  if (const MaybeApiError error = read_template_request(request.body, chat)) {
    return error_response(*error);
  }
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
