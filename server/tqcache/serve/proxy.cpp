#include "tqcache/serve/proxy.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <utility>

#include "tqcache/serve/background_saves.h"
#include "tqcache/serve/bound_server.h"
#include "tqcache/serve/llama_request.h"
#include "tqcache/serve/prompt_lookup.h"
#include "tqcache/serve/prompt_page.h"
#include "tqcache/serve/prompt_reuse.h"
#include "tqcache/serve/proxy_state.h"
#include "tqcache/serve/slot_lease.h"
#include "tqcache/serve/task_order.h"

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void define_proxy_metrics(Metrics& metrics) {
  using Type = Metrics::Type;
  const auto counter = [&](const char* name, const char* help, bool start_at_zero = true) {
    metrics.define(name, Type::kCounter, help, start_at_zero);
  };
  counter("tqcache_upstream_failures_total", "Requests that the upstream server did not answer.");
  counter("tqcache_prompts_total", "Requests that generate text, by what became of them.", false);
  counter("tqcache_prompt_tokens_total", "Tokens of the prompts that were looked up.");
  counter("tqcache_store_lookups_total", "Prompts that were looked up in the store.");
  counter("tqcache_store_hits_total", "Lookups that found a prefix.");
  counter("tqcache_restores_total", "Prefixes restored into a slot.");
  counter("tqcache_restored_tokens_total", "Tokens restored into slots.");
  counter("tqcache_restore_seconds_total", "Time that restores took.");
  counter("tqcache_computed_tokens_total", "Tokens of prompts that the upstream server computed.");
  counter("tqcache_common_tokens_total",
          "Of the computed tokens, those that were computed and saved before the rest of a prompt, "
          "because others begin with them.");
  counter("tqcache_saved_seconds_total", "Estimated time that restores saved.");
  define_reuse_metrics(metrics);
  metrics.define("tqcache_requests_waiting", Type::kGauge, "Requests that wait for a slot.");
  metrics.define("tqcache_keeping", Type::kGauge, "1: prompts are kept.");
}

class KeepingProxy : public Proxy {
 public:
  KeepingProxy(const ProxyOptions& options, std::unique_ptr<Upstream> upstream, Metrics& metrics,
               Log& log)
      : state_(options, std::move(upstream), metrics, log), bound_(state_), saves_(state_, bound_) {
    define_proxy_metrics(metrics);
    state_.on_request_end = [this](bool was_sent) { saves_.wake(was_sent); };
  }

  Result<void> begin() {
    const ProxyOptions& options = state_.options;
    if (options.backend == nullptr) return {};
    TQC_TRY_ASSIGN(state_.folder, SlotFolder::open(options.slot_dir));
    for (const std::string& warning : state_.folder->warnings()) {
      state_.log.warning("slot-dir", {{"message", warning}});
    }
    if (const AbandonedFiles swept = state_.folder->swept(); swept.files > 0) {
      state_.log.info("swept", {{"files", std::to_string(swept.files)},
                                {"bytes", std::to_string(swept.bytes)}});
    }
    KeeperOptions keeper = options.keeper;
    if (keeper.max_bytes && keeper.scores.empty()) {
      keeper.scores = state_.folder->path_of(".tqcache-serve.hits");
    }
    TQC_TRY_ASSIGN(state_.keeper,
                   PromptKeeper::open(*options.backend, keeper, state_.metrics, state_.log));
    saves_.begin();
    return {};
  }

  void attach(HttpServer& server) override {
    server.set_health([this] { return health(); });
    server.set_fallback(
        [this](const Request& request, Client& client) { return handle(request, client); });
    if (state_.options.ledger == nullptr || state_.keeper == nullptr) return;
    server.route("GET", kPagePath,
                 [this](const Request& request, Client&) { return page(request); });
  }

  void reload() override { bound_.ask_again(); }

  void end_calls_within(milliseconds grace) override {
    state_.upstream->end_calls_at(Clock::now() + grace);
  }

  void flush(milliseconds limit) override { saves_.flush(limit); }

 private:
  Response health() {
    const auto reply = state_.upstream->call("GET", state_.upstream->prefix() + "/health", {},
                                             state_.own_headers(), nullptr);
    if (!reply || reply->status != 200) {
      return Response::error(503, "unavailable_error", "the upstream server does not answer");
    }
    const bool is_keeping = state_.keeper != nullptr && state_.keeper->bound() != nullptr;
    return Response::json(200, fmt::format(R"({{"status":"ok","keeping":{}}})", is_keeping));
  }

  // The prompts of the client's key.
  Response page(const Request& request) {
    const std::string tenant = tenant_of(request);
    PageFacts facts;
    facts.model = state_.keeper->bound() ? state_.keeper->model_name() : "no model yet";
    facts.store = state_.options.store_name;
    facts.is_of_one_key = !tenant.empty();
    facts.shows_text = state_.options.shows_prompts;
    facts.now = std::time(nullptr);
    return answer_page(request, facts, *state_.options.ledger, tenant, state_.options.page_access);
  }

  std::string tenant_of(const Request& request) const {
    return state_.options.keeper.share_tenants ? std::string() : request.api_key;
  }

  Response pass_on(const Request& request, std::string body, Client& client) {
    Request changed = request;
    if (!state_.options.upstream_key.empty()) {
      std::erase_if(changed.headers, [](const Header& header) {
        return same_word(header.name, "Authorization") || same_word(header.name, "x-api-key");
      });
      changed.headers.push_back({"Authorization", "Bearer " + state_.options.upstream_key});
    }
    Response response = forward(*state_.upstream, changed, std::move(body), client);
    if (response.status == 502 || response.status == 504) {
      state_.metrics.add("tqcache_upstream_failures_total");
      state_.log.warning("upstream", {{"status", std::to_string(response.status)}});
      // It may be another one when it answers again. One that is late is the same.
      if (response.status == 502) bound_.note_lost();
    }
    return response;
  }

  // Passes on what computes in a slot that the proxy does not choose. What the other slots hold is
  // saved before, because the server may clear them.
  Response pass_on_unsteered(const Request& request, const Route& route, const JsonBody& body,
                             Client& client, const char* why) {
    if (route.kind == RouteKind::kGenerates) {
      state_.metrics.add("tqcache_prompts_total", 1, {{"outcome", why}});
    }
    std::string text = request.body;
    if (state_.are_apart && route.reads_slot_fields) text = without_reuse(body);
    if (state_.keeper == nullptr || state_.keeper->bound() == nullptr) {
      if (state_.are_apart && !route.reads_slot_fields) {
        return Response::error(403, "permission_error",
                               "llama-server itself does not keep clients with different keys "
                               "apart on this path; tqcache serve does while it keeps prompts "
                               "(--slot-dir)");
      }
      return pass_on(request, std::move(text), client);
    }
    const auto deadline = Clock::now() + state_.options.slot_timeout;
    std::optional<TaskOrder> order;
    while (true) {
      const std::uint64_t change = state_.table.change();
      order.emplace(state_.table, bound_, &client, deadline);
      if (!*order) return not_in_time(client);
      [[maybe_unused]] const auto ignored = bound_.observe();
      state_.saver->save_all("evict");
      if (route.reads_slot_fields || erase_others(state_, tenant_of(request))) break;
      order.reset();
      state_.table.wait_for_change(change, milliseconds(200));
    }
    order->sending(std::nullopt);
    struct Foreign {
      Foreign(KeepingProxy& proxy_in, bool is_doubtful_in)
          : proxy(proxy_in), is_doubtful(is_doubtful_in) {
        if (is_doubtful) proxy.state_.table.begin_foreign();
      }
      ~Foreign() {
        if (is_doubtful) proxy.state_.table.end_foreign();
        proxy.saves_.wake(true);
      }
      Foreign(const Foreign&) = delete;
      Foreign& operator=(const Foreign&) = delete;
      KeepingProxy& proxy;
      bool is_doubtful;
    };
    // An embedding, or a prompt for a slot that the client has chosen, has the values of the plain
    // model, and tokens that are compared.
    const bool is_plain = route.kind == RouteKind::kComputes || why == std::string_view("steered");
    const auto foreign = std::make_shared<Foreign>(*this, state_.are_apart || !is_plain);
    Response response = pass_on(request, std::move(text), client);
    order.reset();
    if (response.stream) {
      response.stream = [foreign, inner = std::move(response.stream)](Sink& sink) {
        return inner(sink);
      };
    }
    return response;
  }

  Response not_in_time(Client& client) const {
    if (client.is_gone()) return upstream_failure(interrupted_error());
    return Response::error(503, "unavailable_error", "no slot became free in time");
  }

  // Takes note of the key of a request that counts: one that computes, or changes something.
  // Whether clients have different keys, and must not notice each other.
  bool is_apart(const Request& request, bool counts) {
    if (state_.options.keeper.share_tenants || state_.are_apart) return state_.are_apart;
    const std::lock_guard lock(key_mutex_);
    if (counts && !first_key_) first_key_ = request.api_key;
    const bool is_another = first_key_ && *first_key_ != request.api_key;
    if (counts && is_another) {
      state_.are_apart = true;
      if (state_.keeper != nullptr) bound_.set_rules();
    }
    return is_another;
  }

  Response handle(const Request& request, Client& client) {
    Target target;
    if (const auto refusal = read_target(request.target, target)) {
      return Response::error(refusal->status, "invalid_request_error", refusal->message);
    }
    // What is judged here is what is sent.
    Request judged = request;
    judged.target = target.text;
    judged.path = target.path;
    judged.query = target.query;
    const Route route = route_of(judged.method, judged.path, state_.upstream->prefix());
    const bool computes = route.kind == RouteKind::kGenerates || route.kind == RouteKind::kComputes;
    // A page or a monitor that looks without a key is not another client.
    const bool is_look = judged.method == "GET" || judged.method == "HEAD";
    if (is_apart(judged, route.kind != RouteKind::kHarmless && !is_look)) {
      if (route.kind == RouteKind::kShared || route.kind == RouteKind::kUnknown) {
        return Response::error(
            403, "permission_error",
            "clients with other keys use this server, too: slots, settings and unknown paths are "
            "refused (--share-tenants allows them)");
      }
    }
    if (!computes) {
      Response response = pass_on(judged, judged.body, client);
      if (route.changes_model) {
        // What slots and RAM hold may be of other adapters than the next requests.
        bound_.note_adapters();
        bound_.ask_again();
      }
      return response;
    }
    JsonBody body;
    if (route.reads_slot_fields || route.kind == RouteKind::kGenerates) {
      if (const auto refusal = JsonBody::read(judged.body, body)) {
        return Response::error(refusal->status, "invalid_request_error", refusal->message);
      }
    }
    if (route.kind == RouteKind::kComputes) {
      return pass_on_unsteered(judged, route, body, client, "unsteered");
    }
    if (!bound_.is_ready()) return pass_on_unsteered(judged, route, body, client, "not_ready");
    if (route.reads_slot_fields && chooses_slot(body)) {
      return pass_on_unsteered(judged, route, body, client, "steered");
    }
    const LlamaServer server(*state_.upstream, headers_for(judged));
    const auto asked = server.ask(route.api, judged.body, &client);
    if (!asked) {
      if (asked.error().code == ErrorCode::kInterrupted) return upstream_failure(asked.error());
      return pass_on_unsteered(judged, route, body, client, "not_understood");
    }
    if (asked->has_adapters) bound_.note_adapters();
    if (asked->is_steered || asked->has_adapters || asked->is_media) {
      const char* const why = asked->is_media       ? "media"
                              : asked->has_adapters ? "adapter"
                                                    : "steered";
      return pass_on_unsteered(judged, route, body, client, why);
    }
    if (asked->prompt.empty()) {
      return pass_on_unsteered(judged, route, body, client, "not_understood");
    }
    return steer(judged, route, body, *asked, server, client);
  }

  // Chooses a slot for a prompt, prepares it, and passes the request on.
  Response steer(const Request& request, const Route& route, const JsonBody& body,
                 const Asked& asked, const LlamaServer& server, Client& client) {
    const std::string tenant = tenant_of(request);
    const auto start = Clock::now();
    const auto deadline = start + state_.options.slot_timeout;
    const auto patience = start + std::min(state_.options.slot_timeout, state_.table.patience());
    std::optional<PromptLookup> lookup;
    std::shared_ptr<SlotLease> lease;
    std::optional<TaskOrder> order;
    std::optional<Waiting> waiting(std::in_place, *this);
    while (lease == nullptr) {
      const std::uint64_t change = state_.table.change();
      order.emplace(state_.table, bound_, &client, deadline);
      if (!*order) return not_in_time(client);
      const auto was_restarted = bound_.observe();
      if (!was_restarted || bound_.must_bind()) {
        order.reset();
        if (!was_restarted || !bound_.is_ready()) {
          return pass_on_unsteered(request, route, body, client, "not_ready");
        }
        lookup.reset();
        continue;
      }
      auto choice = state_.table.take_continued(asked.prompt, tenant);
      if (!choice && lookup) {
        const SlotTable::Wanted wanted{asked.prompt,         tenant,
                                       lookup->n_tokens,     lookup->found.n_tokens(),
                                       lookup->common_bytes, lookup->common_tokens};
        choice = state_.table.take(wanted, Clock::now() < patience);
      }
      if (choice) {
        lease = std::make_shared<SlotLease>(state_, bound_, std::move(*choice));
        break;
      }
      if (!lookup) {
        // What slots hold may be the beginning of this prompt.
        lookup.emplace();
        lookup->parting = state_.history.nearest(tenant, asked.prompt);
        state_.history.add(tenant, asked.prompt);
        state_.saver->save_all("share", [&](const KnownSlot& slot) {
          const auto end = std::ranges::mismatch(slot.prompt, asked.prompt).in1;
          return slot.tenant == tenant && end - slot.prompt.begin() >= state_.options.min_tokens;
        });
        order.reset();
        look_up(state_, *lookup, asked, tenant, server, client);
        continue;
      }
      order.reset();
      state_.table.wait_for_change(change, milliseconds(200));
    }
    waiting.reset();
    const bool may_reuse = lease->prepare(lookup, tenant, server, client, deadline, order);
    if (lookup && may_reuse && route.reads_slot_fields && order && *order) {
      lease->compute_common(*lookup, asked, tenant, server, client, deadline, order);
    }
    if (client.is_gone()) return upstream_failure(interrupted_error());
    const SlotTable::From from = lease->choice.from;
    const std::string_view outcome = from == SlotTable::From::kSlot      ? "warm"
                                     : from == SlotTable::From::kNothing ? "cold"
                                                                         : name_of(from);
    state_.metrics.add("tqcache_prompts_total", 1, {{"outcome", std::string(outcome)}});
    lease->reuse =
        expected_reuse(state_, asked, tenant, lease->choice, lookup ? &*lookup : nullptr, server);
    const auto slot = static_cast<std::int64_t>(lease->choice.slot);
    if (!order || !*order) return not_in_time(client);
    if (!route.reads_slot_fields && (!may_reuse || !erase_others(state_, tenant))) {
      lease.reset();
      order.reset();
      return pass_on_unsteered(request, route, body, client, "steered");
    }
    // Where the fields do not count, llama-server chooses the slot that holds most of the prompt,
    // which is this one.
    const std::optional<std::string> steered =
        route.reads_slot_fields ? with_slot(body, slot, may_reuse) : request.body;
    if (!steered) {
      lease.reset();
      order.reset();
      return pass_on_unsteered(request, route, body, client, "steered");
    }

    // Meanwhile the request in another slot may have ended. When this task begins, llama-server
    // clears that one, too.
    if (state_.table.rules().is_unified && state_.saver->has_unsaved() && bound_.observe()) {
      state_.saver->save_all("evict");
    }

    KnownSlot& now = lease->now;
    const bool is_placed = route.reads_slot_fields;
    order->sending(is_placed ? std::optional(lease->choice.slot) : std::nullopt);
    lease->note_sent();
    Response response = pass_on(request, *steered, client);
    now.was_answered = response.status == 200;
    if (!is_placed && now.was_answered) {
      if (!order->begun_in()) {
        [[maybe_unused]] const auto ignored = bound_.observe();
      }
      const auto used = order->begun_in();
      if (used && *used != lease->choice.slot &&
          state_.table.move(lease->choice.slot, lease->choice.before, *used)) {
        lease->choice.slot = *used;
        now.task.reset();
      }
    }
    order.reset();
    if (response.status >= 400 && response.status != 499 && response.status < 500) {
      // Nothing was computed; what was restored stays there without a name.
      if (lease->choice.from != SlotTable::From::kSlot) now.prompt.clear();
      return response;
    }
    now.prompt = asked.prompt;
    now.is_tokens = !asked.tokens.empty();
    now.n_prompt = 0;
    now.tenant = tenant;
    state_.history.add(tenant, asked.prompt);
    if (state_.options.shows_headers) {
      for (Header& header : reuse_headers(lease->reuse)) response.headers.push_back(header);
    }
    const bool is_first = route.api == Api::kMessages;
    return SlotLease::watched(std::move(response), std::move(lease), is_first);
  }

  // Counts a request that waits for a slot.
  class Waiting {
   public:
    explicit Waiting(KeepingProxy& proxy) : proxy_(proxy) { change(1); }
    ~Waiting() { change(-1); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    void change(int n) {
      proxy_.state_.metrics.set("tqcache_requests_waiting",
                                static_cast<double>(proxy_.n_waiting_.fetch_add(n) + n));
    }
    KeepingProxy& proxy_;
  };

  // Own requests on behalf of a client have its key.
  std::vector<Header> headers_for(const Request& request) const {
    if (!state_.options.upstream_key.empty()) return state_.own_headers();
    std::vector<Header> headers;
    for (const Header& header : request.headers) {
      if (same_word(header.name, "Authorization") || same_word(header.name, "x-api-key")) {
        headers.push_back(header);
      }
    }
    return headers;
  }

  ProxyState state_;
  BoundServer bound_;
  BackgroundSaves saves_;
  std::atomic<int> n_waiting_ = 0;
  std::mutex key_mutex_;
  std::optional<std::string> first_key_;
};

}  // namespace

Result<std::unique_ptr<Proxy>> Proxy::open(const ProxyOptions& options, Metrics& metrics,
                                           Log& log) {
  TQC_TRY_ASSIGN(std::unique_ptr<Upstream> upstream, Upstream::open(options.upstream));
  auto proxy = std::make_unique<KeepingProxy>(options, std::move(upstream), metrics, log);
  TQC_TRY(proxy->begin());
  return std::unique_ptr<Proxy>(std::move(proxy));
}

}  // namespace tqcache::serve
