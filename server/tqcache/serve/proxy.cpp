#include "tqcache/serve/proxy.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <ctime>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "tqcache/serve/llama_answer.h"
#include "tqcache/serve/llama_request.h"
#include "tqcache/serve/prompt_history.h"
#include "tqcache/serve/prompt_page.h"
#include "tqcache/serve/prompt_reuse.h"
#include "tqcache/serve/slot_folder.h"
#include "tqcache/serve/slot_saver.h"

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Fewer tokens than announced may be reused without a warning.
constexpr std::int64_t kMissingTokens = 256;
constexpr milliseconds kRetryInterval{1000};
constexpr milliseconds kQuickly{50};
constexpr milliseconds kOrderInterval{20};
constexpr milliseconds kEndPatience{2000};
// How long a prompt waits until what it may begin with is in the store.
constexpr milliseconds kPutPatience{10'000};
constexpr std::chrono::minutes kScoresInterval{1};
constexpr std::size_t kTailBytes = std::size_t{16} << 10;

class KeepingProxy : public Proxy {
 public:
  KeepingProxy(const ProxyOptions& options, std::unique_ptr<Upstream> upstream, Metrics& metrics,
               Log& log)
      : options_(options),
        upstream_(std::move(upstream)),
        server_(*upstream_, own_headers()),
        metrics_(metrics),
        log_(log),
        warnings_(metrics, log),
        table_(options.patience),
        are_apart_(options.has_tenants && !options.keeper.share_tenants) {
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
    counter("tqcache_computed_tokens_total",
            "Tokens of prompts that the upstream server computed.");
    counter("tqcache_saved_seconds_total", "Estimated time that restores saved.");
    define_reuse_metrics(metrics);
    metrics.define("tqcache_requests_waiting", Type::kGauge, "Requests that wait for a slot.");
    metrics.define("tqcache_keeping", Type::kGauge, "1: prompts are kept.");
  }

  Result<void> begin() {
    if (options_.backend == nullptr) return {};
    TQC_TRY_ASSIGN(folder_, SlotFolder::open(options_.slot_dir));
    for (const std::string& warning : folder_->warnings()) {
      log_.warning("slot-dir", {{"message", warning}});
    }
    if (const AbandonedFiles swept = folder_->swept(); swept.files > 0) {
      log_.info("swept",
                {{"files", std::to_string(swept.files)}, {"bytes", std::to_string(swept.bytes)}});
    }
    KeeperOptions keeper = options_.keeper;
    if (keeper.max_bytes && keeper.scores.empty()) {
      keeper.scores = folder_->path_of(".tqcache-serve.hits");
    }
    TQC_TRY_ASSIGN(keeper_, PromptKeeper::open(*options_.backend, keeper, metrics_, log_));
    SlotSaver::Options saving;
    saving.min_tokens = options_.min_tokens;
    saving.ledger = options_.ledger;
    saving.on_saved = [this] { wake(false); };
    saving.history = &history_;
    if (options_.max_write) {
      budget_.emplace(*options_.max_write);
      if (const auto loaded = budget_->load(budget_path(), seconds_now()); !loaded) {
        log_.warning("max-write", {{"message", loaded.error().message}});
      }
      saving.may_write = [this](std::uint64_t bytes) { return may_write(bytes); };
      saving.wrote_file = [this](std::uint64_t bytes) {
        if (!folder_->is_in_memory()) budget_->spend(bytes, seconds_now());
      };
      saving.wrote = [this](std::uint64_t bytes) { budget_->spend(bytes, seconds_now()); };
    }
    saver_ = std::make_unique<SlotSaver>(saving, *folder_, *keeper_, server_, table_, metrics_,
                                         log_, warnings_);
    looker_ = std::thread([this] { look(); });
    putter_ = std::thread([this] { put(); });
    return {};
  }

  ~KeepingProxy() override { stop_threads(); }

  void attach(HttpServer& server) override {
    server.set_health([this] { return health(); });
    server.set_fallback(
        [this](const Request& request, Client& client) { return handle(request, client); });
    if (options_.ledger == nullptr || keeper_ == nullptr) return;
    server.route("GET", kPagePath,
                 [this](const Request& request, Client&) { return page(request); });
  }

  void reload() override { must_bind_ = true; }

  void flush(milliseconds limit) override {
    stop_threads();
    if (keeper_ == nullptr) return;
    save_scores();
    const auto deadline = Clock::now() + limit;
    saver_->go_on();
    // The slots first: they end with the server, which may be told to end, too. A server that
    // sleeps has none any more, and is not woken for nothing.
    if (has_unsaved([](const KnownSlot&) { return true; }) && !is_asleep()) {
      if (Order order(table_, *this, nullptr, deadline); order) {
        // A request that was broken off ends in the server a moment later.
        const auto patience = std::min(deadline, Clock::now() + kEndPatience);
        while (observe() && Clock::now() < patience &&
               std::ranges::any_of(table_.snapshot(), &KnownSlot::is_processing)) {
          std::this_thread::sleep_for(kOrderInterval);
        }
        saver_->save_all("shutdown");
      }
    }
    while (!saver_->put_pending(deadline) && Clock::now() < deadline) {
      std::this_thread::sleep_for(kOrderInterval);
    }
    saver_->drop_pending();
    keeper_->note_rest();
    save_budget();
  }

 private:
  static double seconds_now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  std::string budget_path() const { return folder_->path_of(".tqcache-serve.written").string(); }

  // Whether a slot file of about so many bytes may be written. What is in memory wears no disk.
  bool may_write(std::uint64_t bytes) {
    if (budget_->try_spend(folder_->is_in_memory() ? 0 : bytes, seconds_now())) {
      warnings_.clear("max-write");
      return true;
    }
    warnings_.add("max-write",
                  fmt::format("as much was written as --max-write allows: no prompt is saved for "
                              "the next {:.0f} minutes",
                              std::ceil(budget_->seconds_until(bytes, seconds_now()) / 60)));
    return false;
  }

  void save_budget() {
    if (!budget_) return;
    if (const auto saved = budget_->save(budget_path(), seconds_now()); !saved) {
      warnings_.add("max-write", saved.error().message);
    }
  }

  // --- Tasks are sent one after the other (SlotTable).

  // The right to send the next task. It ends with the object, or when the server has begun.
  class Order {
   public:
    // `client` may be null. Without the order in time, or when the client is gone, it is false.
    Order(SlotTable& table, KeepingProxy& proxy, Client* client, Clock::time_point deadline)
        : table_(table) {
      while ((number_ = table.take_order(kOrderInterval)) == 0) {
        if (Clock::now() > deadline || (client != nullptr && client->is_gone())) return;
        // Its holder waits for its answer; the server says earlier that it has begun.
        if (table.is_sending()) {
          [[maybe_unused]] const auto ignored = proxy.observe();
        }
      }
    }
    ~Order() { end(); }
    Order(Order&& other) noexcept
        : table_(other.table_), number_(std::exchange(other.number_, 0)) {}
    Order(const Order&) = delete;
    Order& operator=(const Order&) = delete;
    Order& operator=(Order&&) = delete;

    explicit operator bool() const { return number_ != 0; }
    void sending(std::optional<std::size_t> slot) { table_.sending(number_, slot); }
    std::optional<std::size_t> begun_in() const { return table_.begun_in(number_); }
    void end() { table_.end_order(std::exchange(number_, 0)); }

   private:
    SlotTable& table_;
    std::uint64_t number_ = 0;
  };

  // A slot that a request uses. The last owner gives it back.
  struct Lease {
    Lease(KeepingProxy& proxy_in, SlotTable::Choice choice_in)
        : proxy(proxy_in), choice(std::move(choice_in)), now(choice.before) {}
    ~Lease() { proxy.finish(*this); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    KeepingProxy& proxy;
    SlotTable::Choice choice;
    KnownSlot now;
    PromptReuse reuse;                   // as far as it is known before the answer
    std::vector<std::int32_t> restored;  // these tokens
    std::string tail;                    // of the answer
    bool was_touched = false;            // the slot holds something else than before
    bool was_sent = false;
  };

  // What is found out about a prompt before a slot is chosen for it.
  struct Lookup {
    std::vector<std::int32_t> tokens = {};             // empty: too short to be kept
    std::int64_t n_tokens = 0;                         // of the prompt, or a guess
    std::int64_t common_bytes = 0, common_tokens = 0;  // SlotTable::Wanted
    std::optional<Parting> parting = {};               // from the nearest known prompt
    bool has_stored = false;                           // SlotTable::worth_storing()
    PromptKeeper::Found found = {};
  };

  std::vector<Header> own_headers() const {
    if (options_.upstream_key.empty()) return {};
    return {{"Authorization", "Bearer " + options_.upstream_key}};
  }

  Response health() {
    const auto reply = upstream_->call("GET", "/health", {}, own_headers(), nullptr);
    if (!reply || reply->status != 200) {
      return Response::error(503, "unavailable_error", "the upstream server does not answer");
    }
    const bool is_keeping = keeper_ != nullptr && keeper_->bound() != nullptr;
    return Response::json(200, fmt::format(R"({{"status":"ok","keeping":{}}})", is_keeping));
  }

  // The prompts of the client's key.
  Response page(const Request& request) {
    const std::string tenant = tenant_of(request);
    PageFacts facts;
    facts.model = keeper_->bound() ? keeper_->model_name() : "no model yet";
    facts.store = options_.store_name;
    facts.is_of_one_key = !tenant.empty();
    facts.shows_text = options_.shows_prompts;
    facts.now = std::time(nullptr);
    return answer_page(request, facts, *options_.ledger, tenant, options_.page_access);
  }

  std::string tenant_of(const Request& request) const {
    return options_.keeper.share_tenants ? std::string() : request.api_key;
  }

  // --- The upstream server

  // Whether prompts can be kept now. Asks the upstream server who it is, at first and after it was
  // restarted. A request waits while that is found out.
  bool is_ready() {
    if (keeper_ == nullptr) return false;
    if (!must_bind_) return keeper_->bound() != nullptr;
    const std::lock_guard lock(bind_mutex_);
    if (!must_bind_) return keeper_->bound() != nullptr;
    if (Clock::now() < next_bind_) return false;
    const auto start = Clock::now();
    const Result<void> bound = bind();
    // A server that refuses connections may be there with the next request.
    const bool may_be_there =
        !bound && bound.error().code == ErrorCode::kIo && Clock::now() - start < kQuickly;
    next_bind_ = Clock::now() + (may_be_there ? milliseconds(0) : kRetryInterval);
    metrics_.set("tqcache_keeping", bound ? 1 : 0);
    if (!bound) {
      const Error& error = bound.error();
      warnings_.add("bind", error.file.empty() ? error.message : error.file + ": " + error.message);
      return false;
    }
    warnings_.clear("bind");
    next_bind_ = {};
    must_bind_ = false;
    return true;
  }

  Result<void> bind() {
    TQC_TRY_ASSIGN(const ServerProps props, server_.props());
    const bool is_same = props.model_path == props_.model_path && props.n_slots == props_.n_slots &&
                         props.n_ctx == props_.n_ctx && props.adapters == props_.adapters;
    // It goes on with what it was. What the slots hold is known.
    if (is_same && has_seen_server_ && keeper_->bound() != nullptr) return {};
    keeper_->unbind();
    if (props.is_router) {
      return unsupported(
          "the upstream server is a router for several models, which has no slots: start a "
          "tqcache serve for each of its servers; requests are passed on");
    }
    TQC_TRY_ASSIGN(PromptKeeper::Bound model, keeper_->read_model(props));
    table_.reset(static_cast<std::size_t>(props.n_slots));
    TQC_TRY(observe());
    if (!has_seen_server_.exchange(true)) {
      // Later the proxy's own tasks are there.
      is_older_ = std::ranges::any_of(table_.snapshot(),
                                      [](const KnownSlot& slot) { return slot.task.has_value(); });
    }
    if (!props.adapters.empty()) has_adapters_ = true;
    TQC_TRY_ASSIGN(const PromptKeeper::BoundModel bound, probe(std::move(model), props));
    props_ = props;
    set_rules();
    const SlotFileFormat& format = bound->format;
    log_.info("bound", {{"model", props.model_path},
                        {"slots", std::to_string(props.n_slots)},
                        {"unified", table_.rules().is_unified ? "yes" : "no"},
                        {"keys", format.k_type},
                        {"values", format.v_type},
                        {"version", std::to_string(format.version)}});
    return {};
  }

  void set_rules() {
    const PromptKeeper::BoundModel bound = keeper_->bound();
    SlotTable::Rules rules;
    rules.is_unified = table_.size() > 1 && bound != nullptr && bound->format.n_streams == 1;
    rules.may_use_ram = !are_apart_ && !has_adapters_;
    rules.is_older = is_older_;
    table_.set_rules(rules);
  }

  // Looks at the slots. Returns whether the server was restarted.
  Result<bool> observe() {
    const std::uint64_t change = table_.change();
    TQC_TRY_ASSIGN(const std::vector<SlotState> states, server_.slots());
    const bool was_restarted = table_.observe(states, change);
    if (was_restarted) {
      must_bind_ = true;  // maybe with another model
      has_seen_server_ = has_adapters_ = false;
    }
    return was_restarted;
  }

  bool is_asleep() const {
    const Result<bool> asleep = server_.is_sleeping();
    return !asleep || *asleep;
  }

  // Lets the server write a slot file, to see what it looks like, and read it again.
  Result<PromptKeeper::BoundModel> probe(PromptKeeper::Bound model, const ServerProps& props) {
    Order order(table_, *this, nullptr, Clock::now() + milliseconds(2000));
    // A slot that holds something, best little: a task would make llama-server clear others. If all
    // are empty, any.
    const std::vector<KnownSlot> slots = table_.snapshot();
    std::optional<std::size_t> least;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].is_used || slots[i].is_processing) continue;
      const auto rank = [&](std::size_t slot) {
        const std::int64_t n = slots[slot].n_tokens;
        return n == 0 ? std::numeric_limits<std::int64_t>::max() : n;
      };
      if (!least || rank(i) < rank(*least)) least = i;
    }
    auto now = least && order ? table_.try_take(*least, [](const KnownSlot&) { return true; })
                              : std::nullopt;
    if (!now) return Error{ErrorCode::kBusy, "all slots are in use"};
    auto bound = write_probe(std::move(model), props, *least, *now);
    now->prompt.clear();
    now->has_changed = now->n_tokens == 0;
    table_.release(*least, *now);
    [[maybe_unused]] const auto ignored = observe();
    if (!bound) keeper_->unbind();
    return bound;
  }

  Result<PromptKeeper::BoundModel> write_probe(PromptKeeper::Bound model, const ServerProps& props,
                                               std::size_t which, const KnownSlot& now) {
    const auto slot = static_cast<std::int64_t>(which);
    const bool was_empty = now.n_tokens == 0;
    if (was_empty) {
      TQC_TRY_ASSIGN(const std::vector<std::int32_t> tokens, server_.tokenize("a b c d", nullptr));
      TQC_TRY(server_.read(slot, tokens));
    }
    const SlotFile saved(*folder_);
    TQC_TRY(saved.create());
    TQC_TRY_ASSIGN(const std::int64_t n_saved, server_.save(slot, saved.name()));
    TQC_TRY_ASSIGN(const std::shared_ptr<const ByteSource> file, saved.open());
    if (n_saved > 0 && file->size() == 0) {
      return unsupported(fmt::format(
          "the upstream server does not save slots to {}: start it with --slot-save-path",
          options_.slot_dir.string()));
    }
    TQC_TRY_ASSIGN(PromptKeeper::BoundModel bound, keeper_->bind(std::move(model), props, file));
    if (!was_empty) return bound;  // a conversation may go on there
    const Result<void> restored = try_restore(*bound, slot, file);
    TQC_TRY(server_.erase(slot));
    if (!restored) return restored.error();
    return bound;
  }

  // Whether the server takes a slot file that was read and written again, and what that changes.
  Result<void> try_restore(const PromptKeeper::Bound& model, std::int64_t slot,
                           const std::shared_ptr<const ByteSource>& saved) {
    const SlotFile ours(*folder_), again(*folder_);
    TQC_TRY(PromptKeeper::rewrite(model, saved, ours.path()));
    TQC_TRY(server_.restore(slot, ours.name(), nullptr));
    if (!model.can_cut()) return {};  // the files may have other checkpoints
    TQC_TRY(again.create());
    TQC_TRY(server_.save(slot, again.name()));
    TQC_TRY_ASSIGN(const std::shared_ptr<const ByteSource> written, again.open());
    if (saved->size() != written->size()) {
      return corrupt("the upstream server saves another slot file than the one it has restored");
    }
    Bytes before(static_cast<std::size_t>(saved->size())), after(before.size());
    TQC_TRY(saved->read_at(0, before));
    TQC_TRY(written->read_at(0, after));
    std::size_t n_other = 0;
    for (std::size_t i = 0; i < before.size(); ++i) n_other += before[i] != after[i];
    log_.info("probe",
              {{"bytes", std::to_string(before.size())}, {"changed", std::to_string(n_other)}});
    return {};
  }

  // --- Requests

  Response pass_on(const Request& request, std::string body, Client& client) {
    Request changed = request;
    if (!options_.upstream_key.empty()) {
      std::erase_if(changed.headers, [](const Header& header) {
        return same_word(header.name, "Authorization") || same_word(header.name, "x-api-key");
      });
      changed.headers.push_back({"Authorization", "Bearer " + options_.upstream_key});
    }
    Response response = forward(*upstream_, changed, std::move(body), client);
    if (response.status == 502 || response.status == 504) {
      metrics_.add("tqcache_upstream_failures_total");
      log_.warning("upstream", {{"status", std::to_string(response.status)}});
      // It may be another one when it answers again. One that is late is the same.
      if (response.status == 502) {
        must_bind_ = true;
        has_seen_server_ = false;
      }
    }
    return response;
  }

  // Passes on what computes in a slot that the proxy does not choose. What the other slots hold is
  // saved before, because the server may clear them.
  Response pass_on_unsteered(const Request& request, const Route& route, const JsonBody& body,
                             Client& client, const char* why) {
    if (route.kind == RouteKind::kGenerates) {
      metrics_.add("tqcache_prompts_total", 1, {{"outcome", why}});
    }
    std::string text = request.body;
    if (are_apart_ && route.reads_slot_fields) text = without_reuse(body);
    if (keeper_ == nullptr || keeper_->bound() == nullptr) {
      if (are_apart_ && !route.reads_slot_fields) {
        return Response::error(403, "permission_error",
                               "llama-server itself does not keep clients with different keys "
                               "apart on this path; tqcache serve does while it keeps prompts "
                               "(--slot-dir)");
      }
      return pass_on(request, std::move(text), client);
    }
    const auto deadline = Clock::now() + options_.slot_timeout;
    std::optional<Order> order;
    while (true) {
      const std::uint64_t change = table_.change();
      order.emplace(table_, *this, &client, deadline);
      if (!*order) return not_in_time(client);
      [[maybe_unused]] const auto ignored = observe();
      saver_->save_all("evict");
      if (route.reads_slot_fields || erase_others(tenant_of(request))) break;
      order.reset();
      table_.wait_for_change(change, milliseconds(200));
    }
    order->sending(std::nullopt);
    struct Foreign {
      Foreign(KeepingProxy& proxy_in, bool is_doubtful_in)
          : proxy(proxy_in), is_doubtful(is_doubtful_in) {
        if (is_doubtful) proxy.table_.begin_foreign();
      }
      ~Foreign() {
        if (is_doubtful) proxy.table_.end_foreign();
        proxy.wake(true);
      }
      Foreign(const Foreign&) = delete;
      Foreign& operator=(const Foreign&) = delete;
      KeepingProxy& proxy;
      bool is_doubtful;
    };
    // An embedding, or a prompt for a slot that the client has chosen, has the values of the plain
    // model, and tokens that are compared.
    const bool is_plain = route.kind == RouteKind::kComputes || why == std::string_view("steered");
    const auto foreign = std::make_shared<Foreign>(*this, are_apart_ || !is_plain);
    Response response = pass_on(request, std::move(text), client);
    order.reset();
    if (response.stream) {
      response.stream = [foreign, inner = std::move(response.stream)](Sink& sink) {
        return inner(sink);
      };
    }
    return response;
  }

  // Of a request that llama-server places itself, it would tell how much of it others have sent.
  // Returns false if one of them is in use, or cannot be erased. Requires: the order of tasks is
  // held.
  bool erase_others(const std::string& tenant) {
    if (!are_apart_) return true;
    const std::vector<KnownSlot> slots = table_.snapshot();
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      const auto is_of_another = [&](const KnownSlot& each) {
        return each.tenant != tenant && (each.n_tokens > 0 || each.has_changed || each.tenant);
      };
      if (slots[slot].tenant == tenant) continue;
      if (slots[slot].is_used || slots[slot].is_processing) return false;
      auto now = table_.try_take(slot, is_of_another);
      if (!now) continue;
      const auto erased = server_.erase(static_cast<std::int64_t>(slot));
      if (erased) {
        KnownSlot empty;
        empty.task = now->task;
        empty.epoch = now->epoch;
        *now = empty;
      } else {
        warnings_.add("erase", erased.error().message);
      }
      table_.release(slot, *std::move(now));
      if (!erased) return false;
    }
    return true;
  }

  Response not_in_time(Client& client) const {
    if (client.is_gone()) return upstream_failure(interrupted_error());
    return Response::error(503, "unavailable_error", "no slot became free in time");
  }

  // Takes note of the key of a request that counts: one that computes, or changes something.
  // Whether clients have different keys, and must not notice each other.
  bool is_apart(const Request& request, bool counts) {
    if (options_.keeper.share_tenants || are_apart_) return are_apart_;
    const std::lock_guard lock(mutex_);
    if (counts && !first_key_) first_key_ = request.api_key;
    const bool is_another = first_key_ && *first_key_ != request.api_key;
    if (counts && is_another) {
      are_apart_ = true;
      if (keeper_ != nullptr) set_rules();
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
    const Route route = route_of(judged.method, judged.path);
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
        has_adapters_ = true;
        must_bind_ = true;
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
    if (!is_ready()) return pass_on_unsteered(judged, route, body, client, "not_ready");
    if (route.reads_slot_fields && chooses_slot(body)) {
      return pass_on_unsteered(judged, route, body, client, "steered");
    }
    const LlamaServer server(*upstream_, headers_for(judged));
    const auto asked = server.ask(route.api, judged.body, &client);
    if (!asked) {
      if (asked.error().code == ErrorCode::kInterrupted) return upstream_failure(asked.error());
      return pass_on_unsteered(judged, route, body, client, "not_understood");
    }
    if (asked->has_adapters && !has_adapters_.exchange(true)) {
      // llama-server's RAM does not know with which adapters a prompt was computed.
      set_rules();
    }
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
    const auto deadline = start + options_.slot_timeout;
    const auto patience = start + std::min(options_.slot_timeout, table_.patience());
    std::optional<Lookup> lookup;
    std::shared_ptr<Lease> lease;
    std::optional<Order> order;
    std::optional<Waiting> waiting(std::in_place, *this);
    while (lease == nullptr) {
      const std::uint64_t change = table_.change();
      order.emplace(table_, *this, &client, deadline);
      if (!*order) return not_in_time(client);
      const auto was_restarted = observe();
      if (!was_restarted || must_bind_) {
        order.reset();
        if (!was_restarted || !is_ready()) {
          return pass_on_unsteered(request, route, body, client, "not_ready");
        }
        lookup.reset();
        continue;
      }
      auto choice = table_.take_continued(asked.prompt, tenant);
      if (!choice && lookup) {
        const SlotTable::Wanted wanted{asked.prompt,         tenant,
                                       lookup->n_tokens,     lookup->found.n_tokens(),
                                       lookup->common_bytes, lookup->common_tokens};
        const auto shared = table_.worth_storing(wanted);
        if (shared && !std::exchange(lookup->has_stored, true)) {
          saver_->save_one(*shared, "share");
          order.reset();
          look_up(*lookup, asked, tenant, server, client);
          continue;
        }
        choice = table_.take(wanted, Clock::now() < patience);
      }
      if (choice) {
        lease = std::make_shared<Lease>(*this, std::move(*choice));
        break;
      }
      if (!lookup) {
        // What slots hold may be the beginning of this prompt. It is stored with the place where
        // this prompt parts.
        lookup.emplace();
        lookup->parting = history_.nearest(tenant, asked.prompt);
        history_.add(tenant, asked.prompt);
        saver_->save_all("share", [&](const KnownSlot& slot) {
          const auto end = std::ranges::mismatch(slot.prompt, asked.prompt).in1;
          return slot.tenant == tenant && end - slot.prompt.begin() >= options_.min_tokens;
        });
        order.reset();
        look_up(*lookup, asked, tenant, server, client);
        continue;
      }
      order.reset();
      table_.wait_for_change(change, milliseconds(200));
    }
    waiting.reset();
    const bool may_reuse = prepare(*lease, lookup, tenant, server, client, deadline, order);
    if (client.is_gone()) return upstream_failure(interrupted_error());
    const SlotTable::From from = lease->choice.from;
    const std::string_view outcome = from == SlotTable::From::kSlot      ? "warm"
                                     : from == SlotTable::From::kNothing ? "cold"
                                                                         : name_of(from);
    metrics_.add("tqcache_prompts_total", 1, {{"outcome", std::string(outcome)}});
    lease->reuse = expected_reuse(asked, tenant, *lease, lookup, server);
    const auto slot = static_cast<std::int64_t>(lease->choice.slot);
    if (!order || !*order) return not_in_time(client);
    if (!route.reads_slot_fields && (!may_reuse || !erase_others(tenant))) {
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

    KnownSlot& now = lease->now;
    const bool is_placed = route.reads_slot_fields;
    order->sending(is_placed ? std::optional(lease->choice.slot) : std::nullopt);
    lease->was_sent = lease->was_touched = true;
    now.has_changed = true;
    Response response = pass_on(request, *steered, client);
    now.was_answered = response.status == 200;
    if (!is_placed && now.was_answered) {
      if (!order->begun_in()) {
        [[maybe_unused]] const auto ignored = observe();
      }
      const auto used = order->begun_in();
      if (used && *used != lease->choice.slot &&
          table_.move(lease->choice.slot, lease->choice.before, *used)) {
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
    history_.add(tenant, asked.prompt);
    if (options_.shows_headers) {
      for (Header& header : reuse_headers(lease->reuse)) response.headers.push_back(header);
    }
    if (response.stream) {
      response.stream = [lease, inner = std::move(response.stream)](Sink& sink) {
        TailSink watched(sink, lease->tail);
        return inner(watched);
      };
    }
    return response;
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
      proxy_.metrics_.set("tqcache_requests_waiting",
                          static_cast<double>(proxy_.n_waiting_.fetch_add(n) + n));
    }
    KeepingProxy& proxy_;
  };

  // Own requests on behalf of a client have its key.
  std::vector<Header> headers_for(const Request& request) const {
    if (!options_.upstream_key.empty()) return own_headers();
    std::vector<Header> headers;
    for (const Header& header : request.headers) {
      if (same_word(header.name, "Authorization") || same_word(header.name, "x-api-key")) {
        headers.push_back(header);
      }
    }
    return headers;
  }

  // Passes an answer on and remembers its end.
  class TailSink : public Sink {
   public:
    TailSink(Sink& sink, std::string& tail) : sink_(sink), tail_(tail) {}
    bool write(std::string_view bytes) override {
      tail_ += bytes;
      if (tail_.size() > 2 * kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
      return sink_.write(bytes);
    }

   private:
    Sink& sink_;
    std::string& tail_;
  };

  // What the store has of a prompt.
  void look_up(Lookup& lookup, const Asked& asked, const std::string& tenant,
               const LlamaServer& server, Client& client) {
    lookup.n_tokens = std::ssize(asked.prompt) / 4 + 1;
    const auto find = [&]() -> Result<void> {
      std::vector<std::int32_t> tokens = asked.tokens;
      // A text with fewer bytes has fewer tokens.
      if (tokens.empty()) {
        if (std::ssize(asked.prompt) < options_.min_tokens) return {};
        TQC_TRY_ASSIGN(tokens, server.tokenize(asked.prompt, &client));
      }
      lookup.n_tokens = std::ssize(tokens);
      metrics_.add("tqcache_prompt_tokens_total", static_cast<double>(lookup.n_tokens));
      if (lookup.n_tokens < options_.min_tokens) return {};
      lookup.tokens = std::move(tokens);
      lookup.common_bytes = table_.longest_common(asked.prompt, tenant);
      if (lookup.common_bytes > 0) {
        const auto size = static_cast<std::size_t>(lookup.common_bytes);
        TQC_TRY_ASSIGN(const auto begin, server.tokens_of(asked.prompt.substr(0, size),
                                                          !asked.tokens.empty(), &client));
        lookup.common_tokens = std::ssize(begin);
      }
      saver_->wait_for(asked.prompt, tenant, client, kPutPatience);
      TQC_TRY_ASSIGN(lookup.found, keeper_->find(lookup.tokens, tenant));
      metrics_.add("tqcache_store_lookups_total");
      if (lookup.found.n_tokens() > 0) metrics_.add("tqcache_store_hits_total");
      const std::lock_guard lock(mutex_);
      if (usage_.size() < 1000) usage_.emplace_back(lookup.n_tokens, lookup.found.n_tokens());
      return {};
    };
    if (const Result<void> found = find(); found) {
      warnings_.clear("lookup");
    } else if (found.error().code != ErrorCode::kInterrupted) {
      warnings_.add("lookup", found.error().message);
    }
  }

  // Saves what the chosen slot, and others, would lose, and brings the beginning of the prompt into
  // the slot. Returns whether the request may reuse what the slot holds. `order` is held at the
  // end, unless another one keeps it for too long.
  bool prepare(Lease& lease, std::optional<Lookup>& lookup, const std::string& tenant,
               const LlamaServer& server, Client& client, Clock::time_point deadline,
               std::optional<Order>& order) {
    using From = SlotTable::From;
    SlotTable::Choice& choice = lease.choice;
    KnownSlot& now = lease.now;
    const auto slot = static_cast<std::int64_t>(choice.slot);
    const bool goes_on = choice.from == From::kSlot && !lookup;
    if (table_.rules().is_unified) saver_->save_all("evict");
    lease.was_touched = !goes_on;
    if (!goes_on && saver_->is_unsaved(now)) saver_->save(choice.slot, now, "evict");

    // Unknown content may be of another client, or of adapters.
    const bool is_own = now.tenant ? *now.tenant == tenant : !are_apart_ && !has_adapters_;
    if (choice.from == From::kSlot && is_own) {
      now.n_stored = std::min(now.n_stored, choice.n_tokens);
      return true;
    }
    now.is_doubtful = choice.is_doubtful;
    now.n_stored = choice.from == From::kRam ? lookup->found.n_tokens() : 0;
    now.prompt.clear();
    const bool may_use_ram = table_.rules().may_use_ram;
    if (!is_own || (now.n_tokens > 0 && !may_use_ram && choice.from != From::kSlot)) {
      // The server would reuse what two prompts have in common, and so tell one client what another
      // has sent; or look into its RAM.
      if (const auto erased = server_.erase(slot); !erased) {
        warnings_.add("erase", erased.error().message);
        return false;
      }
      warnings_.clear("erase");
    }
    if (choice.from == From::kStore) {
      const Result<std::int64_t> n = restore(lease, *lookup, server, client, deadline, order);
      if (n) {
        warnings_.clear("restore");
      } else {
        if (n.error().code != ErrorCode::kInterrupted) {
          warnings_.add("restore", n.error().message);
        }
        choice.from = From::kNothing;
        choice.n_tokens = 0;
      }
    } else if (choice.must_prime) {
      // llama-server looks into its RAM only for a slot that holds something else.
      const std::int32_t first = lookup->tokens.empty() ? 1 : lookup->tokens[0];
      [[maybe_unused]] const auto ignored = server_.read(slot, {first == 1 ? 2 : 1});
    }
    return true;
  }

  // Writes the slot file without the order of tasks, since that may take a while.
  Result<std::int64_t> restore(Lease& lease, Lookup& lookup, const LlamaServer& server,
                               Client& client, Clock::time_point deadline,
                               std::optional<Order>& order) {
    const auto start = Clock::now();
    order.reset();
    const SlotFile file(*folder_);
    const auto written = keeper_->write_slot_file(lookup.found, lookup.tokens, file.path());
    order.emplace(table_, *this, &client, deadline);
    if (!*order) return interrupted_error();
    // Meanwhile others may have ended, or the server was restarted with another model.
    if (const auto was_restarted = observe(); !was_restarted || must_bind_) {
      return Error{ErrorCode::kBusy, "the upstream server was restarted meanwhile"};
    }
    if (table_.rules().is_unified) saver_->save_all("evict");
    if (!written) return written.error();
    const auto slot = static_cast<std::int64_t>(lease.choice.slot);
    auto restored = server.restore(slot, file.name(), &client);
    if (!restored && table_.rules().is_unified) {
      // There may be no room beside the idle slots, which llama-server clears when a task begins.
      [[maybe_unused]] const auto ignored = server_.read(slot, {1});
      restored = server.restore(slot, file.name(), &client);
    }
    if (!restored || *restored != *written) {
      // The slot holds what nobody knows.
      [[maybe_unused]] const Result<void> ignored = server_.erase(slot);
      if (!restored) return restored.error();
      return corrupt(fmt::format("{} of {} tokens were restored", *restored, *written));
    }
    lease.restored.assign(lookup.tokens.begin(), lookup.tokens.begin() + *written);
    lease.now.n_stored = lease.choice.n_tokens = *written;
    metrics_.add("tqcache_restores_total");
    metrics_.add("tqcache_restored_tokens_total", static_cast<double>(*written));
    metrics_.add("tqcache_restore_seconds_total", seconds_since(start));
    log_.info("restore", {{"slot", std::to_string(slot)},
                          {"tokens", std::to_string(*written)},
                          {"of", std::to_string(lookup.n_tokens)},
                          {"seconds", fmt::format("{:.3f}", seconds_since(start))}});
    return *written;
  }

  // What can be said of a prompt before it is computed.
  PromptReuse expected_reuse(const Asked& asked, const std::string& tenant, const Lease& lease,
                             const std::optional<Lookup>& lookup, const LlamaServer& server) const {
    PromptReuse reuse;
    reuse.time = std::time(nullptr);
    reuse.n_reused = lease.choice.n_tokens;
    reuse.from = lease.choice.from;
    if (!lookup) return reuse;
    reuse.n_tokens = lookup->n_tokens;
    const std::optional<Parting>& parting = lookup->parting;
    if (!parting && options_.ledger != nullptr) {
      // After a restart the texts are gone, and blocks of tokens can be compared.
      const auto kept = options_.ledger->nearest({tenant, keeper_->model_name()}, lookup->tokens);
      if (kept && kept->n_common + cache::kTokenBlock < kept->n_tokens) {
        reuse.parts_at = kept->n_common;
        reuse.parts_of = kept->n_tokens;
      }
    }
    if (!parting || parting->at >= parting->of || parting->at >= asked.prompt.size()) return reuse;
    const auto begin =
        server.tokens_of(asked.prompt.substr(0, parting->at), !asked.tokens.empty(), nullptr);
    reuse.parts_at = begin ? std::ssize(*begin) : 0;
    const double per_byte =
        static_cast<double>(reuse.n_tokens) / static_cast<double>(asked.prompt.size());
    reuse.parts_of = static_cast<std::int64_t>(per_byte * static_cast<double>(parting->of));
    if (options_.shows_prompts) {
      reuse.here = parting->here;
      reuse.there = parting->there;
    }
    return reuse;
  }

  // The end of a request that used a slot.
  void finish(Lease& lease) {
    using From = SlotTable::From;
    KnownSlot& now = lease.now;
    const AnswerEnd end = read_answer_end(lease.tail);
    if (end.n_computed) {
      const std::int64_t n_reused = end.n_reused.value_or(0), n_computed = *end.n_computed;
      metrics_.add("tqcache_computed_tokens_total", static_cast<double>(n_computed));
      now.n_prompt = n_reused + n_computed;
      now.n_expected = end.n_predicted ? now.n_prompt + *end.n_predicted - 1 : 0;
      now.n_tokens = std::max(now.n_prompt, now.n_expected);  // until the server is asked
      if (lease.choice.from == From::kNothing && n_reused > 0 && has_adapters_) {
        now.is_doubtful = true;
      }
      if (n_reused == 0) now.is_doubtful = false;
      now.is_doubtful = now.is_doubtful || end.truncated;
      if (n_computed >= 16 && end.prompt_ms) {
        seconds_per_token_ = *end.prompt_ms / 1000 / static_cast<double>(n_computed);
      }
      report(lease, n_reused);
      const std::string tenant = now.tenant.value_or("");
      if (lease.choice.from == From::kRam && lease.choice.n_tokens > 0) {
        table_.note_ram(now.prompt, tenant, 2 * n_reused >= lease.choice.n_tokens);
      } else if (lease.choice.from == From::kRam && 2 * n_reused < n_computed) {
        table_.note_nothing_older();
        is_older_ = false;
      }
      if (lease.choice.from == From::kStore) {
        const double n_seconds = static_cast<double>(n_reused) * seconds_per_token_.load();
        metrics_.add("tqcache_saved_seconds_total", n_seconds);
        if (options_.ledger != nullptr) {
          options_.ledger->hit({tenant, keeper_->model_name()}, lease.restored, n_reused, n_seconds,
                               std::time(nullptr));
        }
        if (n_reused + kMissingTokens < lease.choice.n_tokens) {
          warnings_.add("reuse", fmt::format("the upstream server used {} of {} restored tokens",
                                             n_reused, lease.choice.n_tokens));
        }
      }
    }
    // Nothing has happened to the slot: the client left before.
    if (!lease.was_touched) now = lease.choice.before;
    if (!lease.restored.empty() && now.prompt.empty()) {
      // Nobody has used what was restored, and nothing would show whose it is.
      [[maybe_unused]] const auto ignored =
          server_.erase(static_cast<std::int64_t>(lease.choice.slot));
      now.n_tokens = 0;
    }
    now.last_use = Clock::now();
    table_.release(lease.choice.slot, std::move(now));
    wake(lease.was_sent);
  }

  // Tells where the tokens of a prompt came from.
  void report(Lease& lease, std::int64_t n_reused) {
    PromptReuse& reuse = lease.reuse;
    reuse.n_tokens = lease.now.n_prompt;
    reuse.n_reused = n_reused;
    if (n_reused == 0) reuse.from = ReuseSource::kNothing;
    if (n_reused > 0 && reuse.from == ReuseSource::kNothing) reuse.from = ReuseSource::kSlot;
    count_reuse(metrics_, reuse);
    log_.info("prompt", reuse_fields(reuse));
    if (options_.ledger != nullptr) options_.ledger->note(lease.now.tenant.value_or(""), reuse);
  }

  // --- The background threads

  void wake(bool must_look) {
    const std::lock_guard lock(mutex_);
    must_look_ = must_look_ || must_look;
    wake_.notify_all();
  }

  bool has_unsaved(const std::function<bool(const KnownSlot&)>& is_wanted) const {
    return std::ranges::any_of(table_.snapshot(), [&](const KnownSlot& slot) {
      return !slot.is_used && saver_->is_unsaved(slot) && is_wanted(slot);
    });
  }

  // Looks at the slots after each request, and saves what has rested. The server is not asked
  // without need: that would wake it.
  void look() {
    std::unique_lock lock(mutex_);
    while (!must_stop_) {
      wake_.wait_for(lock, look_interval(), [this] { return must_stop_ || must_look_; });
      if (must_stop_) return;
      const bool must_look = std::exchange(must_look_, false);
      lock.unlock();
      if (must_bind_) {
        if (const auto asleep = server_.is_sleeping(); !asleep || !*asleep) is_ready();
      } else if (must_look) {
        [[maybe_unused]] const auto ignored = observe();
      }
      if (!must_bind_) save_resting();
      lock.lock();
    }
  }

  // Requires: mutex_ is held.
  milliseconds look_interval() const {
    const milliseconds most(1000);
    return must_bind_ ? most : std::clamp(options_.idle_save / 4, milliseconds(10), most);
  }

  void save_resting() {
    const auto has_rested = [&](const KnownSlot& slot) {
      return !slot.has_changed && Clock::now() - slot.last_use >= options_.idle_save;
    };
    if (!has_unsaved(has_rested) || is_asleep()) return;
    Order order(table_, *this, nullptr, Clock::now() + milliseconds(1000));
    if (!order) return;
    const auto was_restarted = observe();
    if (was_restarted && !*was_restarted) saver_->save_all("idle", has_rested);
  }

  // Puts saved slots into the store.
  void put() {
    auto next_scores = Clock::now() + kScoresInterval;
    bool has_failed = false;  // the store, or the upstream server, could not be reached
    std::unique_lock lock(mutex_);
    while (!must_stop_) {
      wake_.wait_for(lock, milliseconds(1000),
                     [&] { return must_stop_ || (!has_failed && saver_->has_pending()); });
      if (must_stop_) return;
      const auto usage = std::exchange(usage_, {});
      lock.unlock();
      has_failed = !saver_->put_pending(Clock::time_point::max());
      for (const auto& [n_wanted, n_found] : usage) keeper_->note_usage(n_wanted, n_found);
      if (Clock::now() >= next_scores) {
        save_scores();
        save_budget();
        keeper_->note_rest();
        next_scores = Clock::now() + kScoresInterval;
      }
      lock.lock();
    }
  }

  void save_scores() {
    if (const auto saved = keeper_->save_scores(); !saved) {
      warnings_.add("scores", saved.error().message);
    } else {
      warnings_.clear("scores");
    }
  }

  void stop_threads() {
    {
      const std::lock_guard lock(mutex_);
      must_stop_ = true;
      wake_.notify_all();
    }
    if (saver_ != nullptr) saver_->stop();
    if (looker_.joinable()) looker_.join();
    if (putter_.joinable()) putter_.join();
  }

  const ProxyOptions options_;
  std::unique_ptr<Upstream> upstream_;
  LlamaServer server_;
  Metrics& metrics_;
  Log& log_;
  Warnings warnings_;
  std::unique_ptr<PromptKeeper> keeper_;
  std::unique_ptr<SlotFolder> folder_;
  SlotTable table_;
  std::unique_ptr<SlotSaver> saver_;
  std::optional<WriteBudget> budget_;
  PromptHistory history_;

  std::mutex bind_mutex_;
  std::atomic<bool> must_bind_ = true;
  Clock::time_point next_bind_;
  ServerProps props_;  // of the server that is bound

  std::atomic<double> seconds_per_token_ = 0;
  std::atomic<int> n_waiting_ = 0;
  std::atomic<bool> are_apart_;                // clients have different keys
  std::atomic<bool> is_older_ = false;         // SlotTable::Rules
  std::atomic<bool> has_seen_server_ = false;  // since it was started, as far as is known
  std::atomic<bool> has_adapters_ = false;     // a request since then had some

  std::mutex mutex_;  // of all below
  std::optional<std::string> first_key_;
  std::condition_variable wake_;
  std::vector<std::pair<std::int64_t, std::int64_t>> usage_;
  bool must_look_ = false, must_stop_ = false;
  std::thread looker_, putter_;
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
