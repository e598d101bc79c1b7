#include "tqcache/serve/proxy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "tqcache/serve/prompt_page.h"

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A restore has to save the reading of more tokens than this, and a save has to keep as many.
constexpr std::int64_t kLeastGain = 256;
constexpr std::size_t kMaxPendingFiles = 4;
constexpr milliseconds kRetryInterval{5000};
constexpr std::chrono::minutes kScoresInterval{1};
constexpr std::size_t kTailBytes = std::size_t{16} << 10;

// The object behind the last "timings" of an answer; null if there is none.
nlohmann::json timings_in(std::string_view tail) {
  constexpr std::string_view kName = "\"timings\":";
  const std::size_t at = tail.rfind(kName);
  if (at == std::string_view::npos) return {};
  const std::size_t begin = tail.find('{', at);
  const std::size_t end = tail.find('}', at);
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return {};
  nlohmann::json object =
      nlohmann::json::parse(tail.substr(begin, end - begin + 1), nullptr, false);
  return object.is_object() ? object : nlohmann::json();
}

// A number of tokens or milliseconds; 0 if there is none that makes sense.
double number_in(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  const double n = found != object.end() && found->is_number() ? found->get<double>() : 0;
  return n >= 0 && n <= 1e12 ? n : 0;
}

// The folder that is shared with llama-server. Its files are removed when they are not needed any
// more, those of a proxy that was killed when the next one begins.
class SlotFolder {
 public:
  static Result<std::unique_ptr<SlotFolder>> open(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      return Error{ErrorCode::kNotFound, "the folder of --slot-save-path does not exist",
                   path.string()};
    }
    auto folder = std::make_unique<SlotFolder>();
    folder->path_ = path;
    const std::string lock = (path / ".tqcache-serve.lock").string();
    folder->lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (folder->lock_ < 0) {
      return Error{ErrorCode::kIo, fmt::format("cannot write there: {}", std::strerror(errno)),
                   path.string()};
    }
    if (::flock(folder->lock_, LOCK_EX | LOCK_NB) != 0) {
      return Error{ErrorCode::kBusy, "another tqcache serve uses this folder", path.string()};
    }
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("tqcache-") && name.ends_with(".slot")) {
        std::filesystem::remove(entry.path(), error);
      }
    }
    std::random_device device;
    folder->prefix_ = fmt::format("tqcache-{:08x}{:08x}", device(), device());
    return folder;
  }
  ~SlotFolder() {
    if (lock_ >= 0) ::close(lock_);
  }

  std::string new_name() { return fmt::format("{}-{}.slot", prefix_, ++n_files_); }
  std::filesystem::path path_of(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
  std::string prefix_;
  int lock_ = -1;
  std::atomic<std::uint64_t> n_files_ = 0;
};

// A file in that folder, which is removed at the end.
class SlotFile {
 public:
  explicit SlotFile(SlotFolder& folder) : name_(folder.new_name()), path_(folder.path_of(name_)) {}
  ~SlotFile() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }
  SlotFile(SlotFile&& other) noexcept
      : name_(std::move(other.name_)), path_(std::exchange(other.path_, {})) {}
  SlotFile(const SlotFile&) = delete;
  SlotFile& operator=(const SlotFile&) = delete;
  SlotFile& operator=(SlotFile&&) = delete;

  const std::string& name() const { return name_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::string name_;
  std::filesystem::path path_;
};

// A slot file that waits to be put into the store.
struct PendingFile {
  SlotFile file;
  std::size_t slot;
  std::int64_t n_prompt;  // KnownSlot
  std::string tenant;
  std::string reason;
};

class KeepingProxy : public Proxy {
 public:
  KeepingProxy(const ProxyOptions& options, std::unique_ptr<Upstream> upstream, Metrics& metrics,
               Log& log)
      : options_(options),
        upstream_(std::move(upstream)),
        server_(*upstream_, own_headers()),
        metrics_(metrics),
        log_(log),
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
    counter("tqcache_reused_tokens_total", "Tokens that the upstream server did not compute.");
    counter("tqcache_computed_tokens_total", "Tokens of prompts that it did compute.");
    counter("tqcache_saved_seconds_total", "Estimated time that restores saved.");
    counter("tqcache_saves_total", "Slots saved, by reason.", false);
    metrics.define("tqcache_requests_waiting", Type::kGauge, "Requests that wait for a slot.");
    metrics.define("tqcache_keeping", Type::kGauge, "1: prompts are kept.");
  }

  Result<void> begin() {
    if (options_.backend == nullptr) return {};
    TQC_TRY_ASSIGN(folder_, SlotFolder::open(options_.slot_dir));
    KeeperOptions keeper = options_.keeper;
    if (keeper.max_bytes && keeper.scores.empty()) {
      keeper.scores = folder_->path_of(".tqcache-serve.hits");
    }
    TQC_TRY_ASSIGN(keeper_, PromptKeeper::open(*options_.backend, keeper, metrics_, log_));
    worker_ = std::thread([this] { work(); });
    return {};
  }

  ~KeepingProxy() override { stop_worker(); }

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
    stop_worker();
    if (keeper_ == nullptr) return;
    save_scores();
    if (!keeper_->is_bound()) return;
    const auto deadline = Clock::now() + limit;
    put_pending(deadline);
    [[maybe_unused]] const auto ignored = observe();
    for (std::size_t slot = 0; slot < table_.size() && Clock::now() < deadline; ++slot) {
      save_if_unsaved(slot, "shutdown", 1);
      put_pending(deadline);
    }
    const std::lock_guard lock(mutex_);
    pending_.clear();
  }

 private:
  // A slot that a request uses. The last owner gives it back.
  struct Lease {
    Lease(KeepingProxy& proxy_in, std::size_t slot_in, KnownSlot now_in)
        : proxy(proxy_in), slot(slot_in), now(std::move(now_in)) {}
    ~Lease() { proxy.finish(*this); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    KeepingProxy& proxy;
    std::size_t slot;
    KnownSlot now;
    std::int64_t n_restored = 0;
    std::vector<std::int32_t> restored;  // these tokens
    std::string tail;                    // of the answer
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
    const bool is_keeping = keeper_ != nullptr && keeper_->is_bound();
    return Response::json(200, fmt::format(R"({{"status":"ok","keeping":{}}})", is_keeping));
  }

  // The prompts of the client's key.
  Response page(const Request& request) {
    const std::string tenant = options_.keeper.share_tenants ? "" : request.api_key;
    PageFacts facts;
    facts.model = keeper_->is_bound() ? keeper_->model_name() : "no model yet";
    facts.store = options_.store_name;
    facts.is_of_one_key = !tenant.empty();
    facts.now = std::time(nullptr);
    return answer_page(request, facts, *options_.ledger, tenant, options_.page_access);
  }

  // Logs a warning, and no other of its kind until something of that kind has succeeded.
  void warn_once(const std::string& what, const std::string& message) {
    metrics_.add("tqcache_store_failures_total", 1, {{"what", what}});
    const std::lock_guard lock(warned_mutex_);
    if (!warned_.insert(what).second) return;
    log_.warning(what, {{"message", message}});
  }
  void clear_warning(const std::string& what) {
    const std::lock_guard lock(warned_mutex_);
    warned_.erase(what);
  }

  // --- The upstream server

  // Whether prompts can be kept now. Asks the upstream server who it is, at first and after it was
  // restarted.
  bool is_ready() {
    if (keeper_ == nullptr) return false;
    const std::lock_guard lock(bind_mutex_);
    if (!must_bind_) return keeper_->is_bound();
    if (Clock::now() < next_bind_) return false;
    next_bind_ = Clock::now() + kRetryInterval;
    keeper_->unbind();
    const Result<void> bound = bind();
    metrics_.set("tqcache_keeping", bound ? 1 : 0);
    if (!bound) {
      const Error& error = bound.error();
      warn_once("bind", error.file.empty() ? error.message : error.file + ": " + error.message);
      return false;
    }
    clear_warning("bind");
    next_bind_ = {};
    must_bind_ = false;
    return true;
  }

  Result<void> bind() {
    TQC_TRY_ASSIGN(const ServerProps props, server_.props());
    TQC_TRY(keeper_->bind_model(props));
    table_.reset(static_cast<std::size_t>(props.n_slots));
    TQC_TRY(observe());
    TQC_TRY(probe(props));
    log_.info("bound", {{"model", props.model_path},
                        {"slots", std::to_string(props.n_slots)},
                        {"keys", keeper_->format().k_type},
                        {"values", keeper_->format().v_type},
                        {"version", std::to_string(keeper_->format().version)}});
    return {};
  }

  // Looks at the slots. Returns whether the server was restarted.
  Result<bool> observe() {
    const std::uint64_t change = table_.change();
    TQC_TRY_ASSIGN(const std::vector<SlotState> states, server_.slots());
    return table_.observe(states, change);
  }

  // Lets the server write a slot file, to see what it looks like.
  Result<void> probe(const ServerProps& props) {
    TQC_TRY_ASSIGN(const std::vector<std::int32_t> tokens, server_.tokenize("a b c d", nullptr));
    const auto choice = table_.acquire({}, {}, nullptr, milliseconds(2000));
    if (!choice) return Error{ErrorCode::kBusy, "all slots are in use"};
    KnownSlot now = choice->before;
    const auto slot = static_cast<std::int64_t>(choice->slot);
    const auto write = [&]() -> Result<void> {
      if (!now.has_content) {
        TQC_TRY(server_.read(slot, tokens));
        now.has_changed = now.has_content = true;
      }
      const SlotFile file(*folder_);
      TQC_TRY(server_.save(slot, file.name()));
      if (!std::filesystem::exists(file.path())) {
        return unsupported(fmt::format(
            "the upstream server does not save slots to {}: start it with --slot-save-path",
            options_.slot_dir.string()));
      }
      TQC_TRY(keeper_->bind_format(props, file.path()));
      return try_restore(slot, file);
    };
    const Result<void> written = write();
    table_.release(choice->slot, now);
    return written;
  }

  // Whether the server takes a slot file that was read and written again, and what that changes.
  Result<void> try_restore(std::int64_t slot, const SlotFile& saved) {
    const SlotFile ours(*folder_), again(*folder_);
    TQC_TRY(keeper_->rewrite(saved.path(), ours.path()));
    TQC_TRY(server_.restore(slot, ours.name(), nullptr));
    if (!keeper_->can_cut()) return {};  // the files may have other checkpoints
    TQC_TRY(server_.save(slot, again.name()));
    constexpr std::uint64_t kMost = std::uint64_t{1} << 28;
    const auto before = read_file(saved.path(), kMost), after = read_file(again.path(), kMost);
    if (!before || !after) return {};  // a large one, of a slot that was in use
    if (before->size() != after->size()) {
      return corrupt("the upstream server saves another slot file than the one it has restored");
    }
    std::size_t n_other = 0;
    for (std::size_t i = 0; i < before->size(); ++i) n_other += (*before)[i] != (*after)[i];
    log_.info("probe",
              {{"bytes", std::to_string(before->size())}, {"changed", std::to_string(n_other)}});
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
      must_bind_ = true;
    }
    return response;
  }

  // Passes a generating request on without choosing a slot.
  Response pass_on_unsteered(const Request& request, Client& client, const char* why) {
    metrics_.add("tqcache_prompts_total", 1, {{"outcome", why}});
    if (!are_apart_) return pass_on(request, request.body, client);
    const std::optional<std::string> body = without_reuse(request.body);
    if (body) return pass_on(request, *body, client);
    return Response::error(400, "invalid_request_error",
                           "the body is not a JSON object, or is nested too deeply");
  }

  // Takes note of the key of a generating request. Whether clients have different ones, and must
  // not notice each other.
  bool is_apart(const Request& request, bool is_generating) {
    if (options_.keeper.share_tenants || are_apart_) return are_apart_;
    const std::lock_guard lock(mutex_);
    if (is_generating && !first_key_) first_key_ = request.api_key;
    const bool is_another = first_key_ && *first_key_ != request.api_key;
    if (is_generating && is_another) are_apart_ = true;
    return is_another;
  }

  Response handle(const Request& request, Client& client) {
    if (keeper_ == nullptr) return pass_on(request, request.body, client);
    const std::string path = decoded_path(request.path);
    const Api api = api_of(request.method, path);
    if (is_apart(request, api != Api::kNone) && path.find("/slots") != std::string::npos) {
      return Response::error(403, "permission_error",
                             "the slots are used by clients with other keys, too "
                             "(--share-tenants allows it)");
    }
    if (api == Api::kNone) return pass_on(request, request.body, client);
    if (api == Api::kInfill) return pass_on_unsteered(request, client, "steered");
    if (!is_ready()) return pass_on_unsteered(request, client, "not_ready");
    const LlamaServer server(*upstream_, headers_for(request));
    const auto asked = server.ask(api, request.body, &client);
    if (!asked) {
      if (asked.error().code == ErrorCode::kInterrupted) return upstream_failure(asked.error());
      return pass_on_unsteered(request, client, "not_understood");
    }
    if (asked->is_steered) return pass_on_unsteered(request, client, "steered");
    if (const auto was_restarted = observe(); was_restarted && *was_restarted) {
      must_bind_ = true;  // maybe with another model
      if (!is_ready()) return pass_on_unsteered(request, client, "not_ready");
    }
    const std::string tenant = options_.keeper.share_tenants ? "" : request.api_key;
    metrics_.set("tqcache_requests_waiting", static_cast<double>(table_.n_waiting() + 1));
    auto choice = table_.acquire(asked->prompt, tenant, &client, options_.slot_timeout);
    metrics_.set("tqcache_requests_waiting", static_cast<double>(table_.n_waiting()));
    if (!choice) {
      if (client.is_gone()) return upstream_failure(interrupted_error());
      return Response::error(503, "unavailable_error", "no slot became free in time");
    }
    const auto lease = std::make_shared<Lease>(*this, choice->slot, std::move(choice->before));
    const bool may_reuse = prepare(*choice, *lease, *asked, tenant, server, client);
    lease->now.prompt = asked->prompt;
    lease->now.n_prompt = 0;
    lease->now.tenant = tenant;
    lease->now.has_changed = lease->now.has_content = true;
    std::string body = with_slot(request.body, static_cast<std::int64_t>(choice->slot));
    if (!may_reuse) body = without_reuse(body).value_or(body);
    Response response = pass_on(request, std::move(body), client);
    if (response.status != 200) lease->now.prompt.clear();
    if (response.stream) {
      response.stream = [lease, inner = std::move(response.stream)](Sink& sink) {
        TailSink watched(sink, lease->tail);
        return inner(watched);
      };
    }
    return response;
  }

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

  // Saves what the slot would lose, and restores a stored prefix into it. Returns whether the
  // request may reuse what the slot holds.
  bool prepare(const SlotTable::Choice& choice, Lease& lease, const Asked& asked,
               const std::string& tenant, const LlamaServer& server, Client& client) {
    KnownSlot& now = lease.now;
    if (choice.is_warm) {
      metrics_.add("tqcache_prompts_total", 1, {{"outcome", "warm"}});
      return true;
    }
    if (now.has_content && now.n_tokens - now.n_stored >= options_.min_tokens &&
        !now.prompt.empty()) {
      save(choice.slot, now, "evict");
    }
    now.n_stored = 0;
    const bool is_own = now.tenant ? *now.tenant == tenant : !are_apart_;
    if (now.has_content && !is_own) {
      // The server would reuse what two prompts have in common, and so tell one client what another
      // has sent.
      if (const auto erased = server_.erase(static_cast<std::int64_t>(choice.slot)); !erased) {
        metrics_.add("tqcache_prompts_total", 1, {{"outcome", "cold"}});
        warn_once("erase", erased.error().message);
        return false;
      }
      clear_warning("erase");
    }
    metrics_.add("tqcache_prompts_total", 1, {{"outcome", "cold"}});
    if (asked.prompt.empty()) return true;
    const Result<std::int64_t> n = restore(choice, lease, asked, tenant, server, client);
    if (n) {
      clear_warning("restore");
    } else {
      warn_once("restore", n.error().message);
    }
    return true;
  }

  Result<std::int64_t> restore(const SlotTable::Choice& choice, Lease& lease, const Asked& asked,
                               const std::string& tenant, const LlamaServer& server,
                               Client& client) {
    std::vector<std::int32_t> tokens = asked.tokens;
    if (tokens.empty()) {
      // A text with fewer bytes has fewer tokens.
      if (std::ssize(asked.prompt) < options_.min_tokens) return 0;
      TQC_TRY_ASSIGN(tokens, server.tokenize(asked.prompt, &client));
    }
    const std::int64_t n_wanted = std::ssize(tokens);
    metrics_.add("tqcache_prompt_tokens_total", static_cast<double>(n_wanted));
    if (n_wanted < options_.min_tokens) return 0;
    const auto start = Clock::now();
    TQC_TRY_ASSIGN(PromptKeeper::Found found, keeper_->find(tokens, tenant));
    metrics_.add("tqcache_store_lookups_total");
    if (found.n_tokens() > 0) metrics_.add("tqcache_store_hits_total");
    lease.now.n_stored = found.n_tokens();
    note_usage(n_wanted, found.n_tokens());
    // Tokens that the slot has in common with the prompt, estimated from the bytes.
    const std::int64_t n_common = static_cast<std::int64_t>(
        static_cast<double>(choice.n_common) / static_cast<double>(asked.prompt.size()) *
        static_cast<double>(n_wanted));
    if (found.n_tokens() < n_common + kLeastGain) return 0;
    const SlotFile file(*folder_);
    TQC_TRY_ASSIGN(const std::int64_t n_written,
                   keeper_->write_slot_file(found, tokens, file.path()));
    const auto slot = static_cast<std::int64_t>(choice.slot);
    const auto restored = server_.restore(slot, file.name(), &client);
    if (!restored || *restored != n_written) {
      // The slot holds what nobody knows.
      [[maybe_unused]] const Result<void> ignored = server_.erase(slot);
      lease.now.n_stored = 0;
      if (!restored) return restored.error();
      return corrupt(fmt::format("{} of {} tokens were restored", *restored, n_written));
    }
    lease.n_restored = n_written;
    lease.restored.assign(tokens.begin(), tokens.begin() + n_written);
    lease.now.n_stored = n_written;
    metrics_.add("tqcache_restores_total");
    metrics_.add("tqcache_restored_tokens_total", static_cast<double>(n_written));
    metrics_.add("tqcache_restore_seconds_total", seconds_since(start));
    log_.info("restore", {{"slot", std::to_string(slot)},
                          {"tokens", std::to_string(n_written)},
                          {"of", std::to_string(n_wanted)},
                          {"seconds", fmt::format("{:.3f}", seconds_since(start))}});
    return n_written;
  }

  // The end of a request that used a slot.
  void finish(Lease& lease) {
    const nlohmann::json timings = timings_in(lease.tail);
    if (timings.is_object()) {
      const double n_reused = number_in(timings, "cache_n");
      const double n_computed = number_in(timings, "prompt_n");
      metrics_.add("tqcache_reused_tokens_total", n_reused);
      metrics_.add("tqcache_computed_tokens_total", n_computed);
      lease.now.n_prompt = static_cast<std::int64_t>(n_reused + n_computed);
      if (n_computed >= 16) {
        seconds_per_token_ = number_in(timings, "prompt_ms") / 1000 / n_computed;
      }
      if (lease.n_restored > 0) {
        const double n_seconds = n_reused * seconds_per_token_.load();
        metrics_.add("tqcache_saved_seconds_total", n_seconds);
        if (options_.ledger != nullptr) {
          options_.ledger->hit({lease.now.tenant.value_or(""), keeper_->model_name()},
                               lease.restored, static_cast<std::int64_t>(n_reused), n_seconds,
                               std::time(nullptr));
        }
        if (n_reused + static_cast<double>(kLeastGain) < static_cast<double>(lease.n_restored)) {
          warn_once("reuse", fmt::format("the upstream server used {} of {} restored tokens",
                                         n_reused, lease.n_restored));
        }
      }
    }
    lease.now.last_use = Clock::now();
    table_.release(lease.slot, std::move(lease.now));
    const std::lock_guard lock(mutex_);
    must_look_ = true;
    wake_.notify_all();
  }

  // --- Saving

  // Lets the server write the slot into a file, which is put into the store later. Requires: the
  // slot is acquired; `now` is its state.
  void save(std::size_t slot, KnownSlot& now, const char* reason) {
    {
      const std::lock_guard lock(mutex_);
      if (pending_.size() >= kMaxPendingFiles) {
        metrics_.add("tqcache_saves_total", 1, {{"reason", "dropped"}});
        return;
      }
    }
    SlotFile file(*folder_);
    const auto saved = server_.save(static_cast<std::int64_t>(slot), file.name());
    if (!saved) {
      warn_once("save", saved.error().message);
      now.n_stored = now.n_tokens;  // not again for the same tokens
      return;
    }
    clear_warning("save");
    metrics_.add("tqcache_saves_total", 1, {{"reason", reason}});
    now.n_stored = *saved;
    const std::lock_guard lock(mutex_);
    pending_.push_back({std::move(file), slot, now.n_prompt, now.tenant.value_or(""), reason});
    wake_.notify_all();
  }

  // Saves a slot with at least so many tokens that are not in the store.
  void save_if_unsaved(std::size_t slot, const char* reason, std::int64_t least) {
    auto now = table_.try_acquire(slot, [&](const KnownSlot& its) {
      return its.has_content && !its.prompt.empty() && its.n_tokens >= options_.min_tokens &&
             its.n_tokens - its.n_stored >= least;
    });
    if (!now) return;
    save(slot, *now, reason);
    table_.release(slot, *std::move(now));
  }

  // Where the next prompt is likely to part from the tokens of a slot: where the answer began,
  // which a template may change, and where the text of these tokens has other tokens when it is
  // read again. (A model may write other tokens than a tokenizer reads.)
  std::vector<std::int64_t> likely_ends(std::span<const std::int32_t> tokens,
                                        std::int64_t n_prompt) const {
    std::vector<std::int64_t> ends;
    if (n_prompt > 0) ends.push_back(n_prompt);
    const auto text = server_.detokenize(tokens);
    if (!text) return ends;
    const auto read = server_.tokenize(*text, nullptr);
    if (!read) return ends;
    // The first token may be in the text already, and be added once more.
    std::span<const std::int32_t> again(*read);
    if (again.size() > 1 && tokens.size() > 1 && again[0] == again[1] && tokens[0] != tokens[1]) {
      again = again.subspan(1);
    }
    ends.push_back(std::ranges::mismatch(tokens, again).in1 - tokens.begin());
    return ends;
  }

  void put_pending(Clock::time_point deadline) {
    while (Clock::now() < deadline) {
      std::optional<PendingFile> next;
      {
        const std::lock_guard lock(mutex_);
        if (pending_.empty()) return;
        next.emplace(std::move(pending_.front()));
        // It counts until it is in the store.
      }
      const auto start = Clock::now();
      const auto kept = keeper_->keep(next->file.path(), next->tenant, [&](const auto& tokens) {
        return likely_ends(tokens, next->n_prompt);
      });
      if (kept) {
        clear_warning("keep");
        if (options_.ledger != nullptr) {
          const PromptLedger::Id id = options_.ledger->keep({next->tenant, keeper_->model_name()},
                                                            kept->tokens, "", std::time(nullptr));
          options_.ledger->add_bytes(id, kept->new_bytes);
        }
        log_.info("keep", {{"slot", std::to_string(next->slot)},
                           {"reason", next->reason},
                           {"tokens", std::to_string(kept->n_stored)},
                           {"file_bytes", std::to_string(kept->file_bytes)},
                           {"new_bytes", std::to_string(kept->new_bytes)},
                           {"seconds", fmt::format("{:.3f}", seconds_since(start))}});
      } else {
        warn_once("keep", kept.error().message);
      }
      const std::lock_guard lock(mutex_);
      pending_.pop_front();
    }
  }

  void note_usage(std::int64_t n_wanted, std::int64_t n_found) {
    const std::lock_guard lock(mutex_);
    if (usage_.size() < 1000) usage_.emplace_back(n_wanted, n_found);
  }

  // The background thread: looks at the slots after each request, and once a second.
  void work() {
    auto next_scores = Clock::now() + kScoresInterval;
    std::unique_lock lock(mutex_);
    while (!must_stop_) {
      wake_.wait_for(lock, std::chrono::seconds(1),
                     [this] { return must_stop_ || must_look_ || !pending_.empty(); });
      if (must_stop_) return;
      const bool must_look = std::exchange(must_look_, false);
      const auto usage = std::exchange(usage_, {});
      lock.unlock();
      if (must_look && keeper_->is_bound()) look_at_slots();
      save_resting();
      put_pending(Clock::time_point::max());
      for (const auto& [n_wanted, n_found] : usage) keeper_->note_usage(n_wanted, n_found);
      if (Clock::now() >= next_scores) {
        save_scores();
        next_scores = Clock::now() + kScoresInterval;
      }
      lock.lock();
    }
  }

  void save_scores() {
    if (const auto saved = keeper_->save_scores(); !saved) {
      warn_once("scores", saved.error().message);
    } else {
      clear_warning("scores");
    }
  }

  void look_at_slots() {
    const auto was_restarted = observe();
    if (!was_restarted) return;
    if (*was_restarted) {
      must_bind_ = true;  // maybe with another model; the next request would not see it any more
      return;
    }
    const std::vector<KnownSlot> slots = table_.snapshot();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const KnownSlot& slot = slots[i];
      if (slot.is_used) continue;
      const bool is_cold = slot.n_stored == 0;
      const bool is_at_frontier =
          slot.n_tokens / options_.save_every > slot.n_stored / options_.save_every;
      if (is_cold || is_at_frontier) {
        save_if_unsaved(i, is_cold ? "cold" : "continued", kLeastGain);
      }
    }
  }

  void save_resting() {
    const std::vector<KnownSlot> slots = table_.snapshot();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (Clock::now() - slots[i].last_use < options_.idle_save) continue;
      // A short conversation is saved after each turn, a long one after a token block.
      save_if_unsaved(i, "idle", std::min(kLeastGain, slots[i].n_tokens / 64 + 1));
    }
  }

  void stop_worker() {
    {
      const std::lock_guard lock(mutex_);
      must_stop_ = true;
      wake_.notify_all();
    }
    if (worker_.joinable()) worker_.join();
  }

  ProxyOptions options_;
  std::unique_ptr<Upstream> upstream_;
  LlamaServer server_;
  Metrics& metrics_;
  Log& log_;
  std::unique_ptr<PromptKeeper> keeper_;
  std::unique_ptr<SlotFolder> folder_;
  SlotTable table_;

  std::mutex bind_mutex_;
  std::atomic<bool> must_bind_ = true;
  Clock::time_point next_bind_;

  std::mutex warned_mutex_;
  std::set<std::string> warned_;
  std::atomic<double> seconds_per_token_ = 0;

  std::atomic<bool> are_apart_;  // clients have different keys

  std::mutex mutex_;  // of all below
  std::optional<std::string> first_key_;
  std::condition_variable wake_;
  std::deque<PendingFile> pending_;
  std::vector<std::pair<std::int64_t, std::int64_t>> usage_;
  bool must_look_ = false, must_stop_ = false;
  std::thread worker_;
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
