// tools/verbs/cmd_serve.cpp: an HTTP server that keeps prompts over restarts.

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include "cli/common_flags.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "verbs/serve_embedded.h"
#ifdef TQCACHE_SERVE
#include <sys/resource.h>
#include <unistd.h>

#include "tqcache/base/cipher.h"
#include "tqcache/hash.h"
#include "tqcache/serve/hit_scores.h"
#include "tqcache/serve/http_server.h"
#include "tqcache/serve/operations.h"
#include "tqcache/serve/proxy.h"
#endif

namespace tqcache::cli {
namespace {

constexpr const char* kServeExamples =
    R"(Two servers that keep their prompts in a store, so that they survive restarts.

With --upstream, a proxy before llama-server. Start llama-server with --slot-save-path DIR, and point
clients at the proxy. Every request is passed on, and every answer back, byte for byte. For requests
that generate text, the longest stored prefix of the prompt is restored into a slot before, and slots
are saved in the background. Whatever goes wrong with that, the prompt is read as usual.

With --model alone, a server of its own: the routes of OpenAI's and Anthropic's interfaces, answered
by the reference decoder, one request at a time. A prompt begins with its longest stored prefix, and
new token blocks are added to the store in the background. Without --store only the last conversation
is kept.

--config chooses what is stored: lossless, turbo (4 bits), archive (about 3 bits, only with
--upstream), or a configuration as in convert. The types of llama-server's own keys and values are
found out by themselves.

Clients with different API keys do not find each other's prompts, unless --share-tenants is given.

GET /tqcache, and GET / without --upstream, is a page with the kept prompts; a browser sends an API
key as the password. --page-file keeps its list over restarts. GET /health says whether the server can
answer, GET /metrics has counters for Prometheus.

SIGHUP reads --api-key-file again, and asks the upstream server again which model it runs. SIGTERM and
Ctrl-C end the server after running requests are answered, at most --grace later, and after prompts
are saved.

Examples:
  llama-server -m model.gguf --slot-save-path /var/tmp/slots --port 8080
  tqcache serve --upstream http://127.0.0.1:8080 --slot-dir /var/tmp/slots --store dir:prompts
  tqcache serve --upstream http://127.0.0.1:8080
  tqcache serve --model model.gguf --store dir:prompts
  tqcache serve --model model.gguf --store dir:prompts --config turbo --api-key-file keys.txt
)";

struct ServeFlags {
  EmbeddedFlags embedded;
  std::string upstream;
  std::string upstream_key_file;
  std::optional<std::chrono::seconds> upstream_timeout;
  std::string listen = "127.0.0.1:8081";
  std::string slot_dir;
  StoreFlags store;
  std::string config = "lossless";
  const Flag* config_flag = nullptr;
  std::string profile;  // file with factors of keys
  std::string model;
  std::int64_t min_tokens = 256;
  std::optional<std::chrono::seconds> save_idle;
  std::optional<std::uint64_t> max_bytes;
  std::string max_write;
  bool share_tenants = false;
  bool shows_headers = false;
  std::string page_file;
  std::string api_key_file;
  std::string admin_key_file;
  bool page_all = false;
  std::optional<std::uint64_t> max_body;
  std::int64_t max_connections = 256;
  std::optional<std::int64_t> max_connections_per_address;
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> allowed_origins;
  std::optional<std::chrono::seconds> grace;
};

#ifdef TQCACHE_SERVE

volatile std::sig_atomic_t g_hangup = 0;
void handle_hangup(int) { g_hangup = 1; }

// "40G/day", "500MB/hour". Errors: kInvalidArgument.
Result<serve::WriteLimit> parse_write_limit(const std::string& text) {
  const std::string expected =
      fmt::format("--max-write: {} is not a size with a period such as 40G/day, 500MB/hour", text);
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return usage_error(expected);
  serve::WriteLimit limit;
  const auto bytes = parse_bytes(text.substr(0, slash));
  const std::string period = text.substr(slash + 1);
  if (!bytes || (period != "day" && period != "hour")) return usage_error(expected);
  if (*bytes == 0) return usage_error("--max-write: with 0 bytes no prompt would be kept");
  limit.bytes = *bytes;
  limit.period = std::chrono::hours(period == "day" ? 24 : 1);
  return limit;
}

// An administrator's key is a key like the others.
Result<std::vector<std::string>> accepted_keys(const ServeFlags& flags,
                                               const serve::PageAccess& access) {
  TQC_TRY_ASSIGN(std::vector<std::string> keys, read_api_keys(flags.api_key_file));
  if (!keys.empty()) {
    keys.insert(keys.end(), access.admin_keys.begin(), access.admin_keys.end());
  }
  return keys;
}

bool is_local(const ServeFlags& flags) {
  return flags.listen.starts_with("127.") || flags.listen.starts_with("[::1]") ||
         flags.listen.starts_with("localhost:");
}

Result<serve::PageAccess> page_access(const ServeFlags& flags) {
  serve::PageAccess access;
  if (flags.page_all && !flags.api_key_file.empty()) {
    return usage_error(
        "--page-all is for a server without --api-key-file; --admin-key-file names keys that see "
        "the same");
  }
  if (flags.page_all && !is_local(flags)) {
    return usage_error("--page-all needs a --listen address of this machine, as 127.0.0.1:8081");
  }
  access.is_open = flags.page_all;
  TQC_TRY_ASSIGN(access.admin_keys, read_api_keys(flags.admin_key_file));
  return access;
}

// As many as this user may have: each connection is a file, and so is each request to the upstream
// server.
void allow_more_open_files() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

Result<serve::HttpOptions> http_options(const ServeFlags& flags, const serve::PageAccess& access) {
  serve::HttpOptions options;
  options.address = flags.listen;
  if (flags.max_body) options.max_body_bytes = *flags.max_body;
  options.max_buffered_bytes = std::max(options.max_buffered_bytes, 2 * options.max_body_bytes);
  options.max_connections = static_cast<std::size_t>(flags.max_connections);
  options.max_connections_per_address =
      static_cast<std::size_t>(flags.max_connections_per_address.value_or(0));
  options.allowed_hosts = flags.allowed_hosts;
  options.allowed_origins = flags.allowed_origins;
  allow_more_open_files();
  TQC_TRY_ASSIGN(options.api_keys, accepted_keys(flags, access));
  return options;
}

// The list of kept prompts, and how often their blobs were used: --page-file keeps both over
// restarts, the second in FILE.hits.
class KeptLedger {
 public:
  KeptLedger(const Console& console, const std::string& path, const std::string& salt,
             serve::Log& log)
      : path_(path), log_(log), ledger_(key_of_page(console, salt)) {
    if (path_.empty()) return;
    const Result<void> loaded = serve::load_ledger(path_, ledger_);
    if (!loaded) {
      log_.warning("page-file", {{"file", path_},
                                 {"message", loaded.error().message + "; starting a new list"}});
    }
    if (const auto loaded_scores = serve::load_scores(scores_path(), scores_); !loaded_scores) {
      log_.warning("page-file",
                   {{"file", scores_path()}, {"message", loaded_scores.error().message}});
    }
    if (loaded) save();  // so that nothing of an older version stays in it
  }

  serve::PromptLedger& ledger() { return ledger_; }
  serve::HitScores& scores() { return scores_; }

  void save() {
    saved_ = std::chrono::steady_clock::now();
    if (path_.empty()) return;
    if (const Result<void> saved = serve::save_ledger(path_, ledger_); !saved) {
      log_.warning("page-file", {{"file", path_}, {"message", saved.error().message}});
    }
    if (!scores_.has_changed()) return;
    if (const Result<void> saved = serve::save_scores(scores_path(), scores_); !saved) {
      log_.warning("page-file", {{"file", scores_path()}, {"message", saved.error().message}});
    }
  }
  void save_now_and_then() {
    if (std::chrono::steady_clock::now() - saved_ >= std::chrono::minutes(1)) save();
  }

 private:
  std::string scores_path() const { return path_ + ".hits"; }

  // With an encrypted store the page file alone tells nothing of the prompts.
  static std::optional<SecretKey> key_of_page(const Console& console, const std::string& salt) {
    if (console.access.keys.empty()) return std::nullopt;
    const auto secret = console.access.keys.find(console.access.keys.first_id());
    return derive_key(*secret, as_bytes(salt), "tqcache serve page file");
  }

  std::string path_;
  serve::Log& log_;
  serve::PromptLedger ledger_;
  serve::HitScores scores_;
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
};

// Serves until a signal arrives.
void wait_for_end(const ServeFlags& flags, const serve::PageAccess& access,
                  serve::HttpServer& server, KeptLedger& kept, serve::Log& log,
                  const std::function<void()>& reload) {
  struct sigaction action = {};
  action.sa_handler = handle_hangup;
  sigaction(SIGHUP, &action, nullptr);
  while (!interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kept.save_now_and_then();
    if (g_hangup == 0) continue;
    g_hangup = 0;
    reload();
    auto keys = accepted_keys(flags, access);
    if (keys) {
      server.set_api_keys(std::move(*keys));
      log.info("reload", {{"what", "keys"}});
    } else {
      log.error("reload", {{"message", keys.error().message}});
    }
  }
}

// On a terminal, where a person looks: what to open in a browser, and what to give to clients.
void print_addresses(const Console& console, const ServeFlags& flags, int port) {
  if (console.quiet || ::isatty(STDERR_FILENO) == 0) return;
  // Anybody's address is not one that a browser can open.
  std::string host = flags.listen.substr(0, flags.listen.rfind(':'));
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "[::]") host = "[::1]";
  const std::string server = fmt::format("http://{}:{}", host, port);
  // A proxy that keeps nothing has no page.
  if (flags.upstream.empty() || !flags.slot_dir.empty()) {
    fmt::print(stderr, "Kept prompts: {}{}\n", server, serve::kPagePath);
  }
  fmt::print(stderr, "Base URL for clients: {}/v1\n", server);
}

void warn_if_open(const ServeFlags& flags, const serve::HttpOptions& options, serve::Log& log) {
  if (is_local(flags) || !options.api_keys.empty()) return;
  log.warning("open", {{"message",
                        "other machines can use this server without a key; "
                        "--api-key-file requires one"}});
}

// The configuration of what is stored, with the calibration of --profile.
Result<std::string> stored_configuration(const ServeFlags& flags) {
  if (flags.profile.empty()) return flags.config;
  if (flags.profile.find_first_of(",;") != std::string::npos) {
    return usage_error("--profile: a name without comma and semicolon is wanted");
  }
  const std::string base = flags.config_flag->is_given() ? flags.config : "turbo";
  return base + ",profile=" + flags.profile;
}

Result<ExitCode> run_embedded(const Console& console, const ServeFlags& flags) {
  TQC_TRY_ASSIGN(const serve::PageAccess access, page_access(flags));
  TQC_TRY_ASSIGN(serve::HttpOptions options, http_options(flags, access));
  PromptStoreFlags store_flags;
  store_flags.url = flags.store.url;
  store_flags.salt_file = flags.store.salt_file;
  TQC_TRY_ASSIGN(const std::optional<PromptStoreChoice> choice,
                 choose_prompt_store(store_flags, ""));
  EmbeddedStore store;
  std::string salt;
  if (choice) {
    store.url = choice->url;
    salt = choice->salt;
  }
  TQC_TRY_ASSIGN(store.config, stored_configuration(flags));
  store.config_is_given = flags.config_flag->is_given() || !flags.profile.empty();
  store.max_bytes = flags.max_bytes;
  serve::Metrics metrics;
  serve::Log log({}, console.quiet);
  KeptLedger kept(console, flags.page_file, salt, log);
  TQC_TRY_ASSIGN(
      std::unique_ptr<serve::Engine> engine,
      open_engine(console, flags.embedded, flags.model, store, log, kept.ledger(), kept.scores()));
  if (!flags.max_body) options.max_body_bytes = default_max_body(*engine);
  std::optional<StoreUpkeep> upkeep(std::in_place, console, store, *engine, kept.scores(), log);
  const bool has_tenants = !options.api_keys.empty() && !flags.share_tenants;
  const auto tenant_of = [&](const serve::Request& request) {
    return has_tenants ? serve::client_salt(salt, "", request.api_key) : salt;
  };
  serve::EngineApi api(
      *engine, {.tenant_of = tenant_of, .has_keys = has_tenants, .page_access = access}, metrics);
  serve::HttpServer server(options, metrics, log);
  api.add_routes(server);
  TQC_TRY(server.start());
  log.info("listening", {{"port", std::to_string(server.port())}, {"model", engine->model_id()}});
  print_addresses(console, flags, server.port());
  warn_if_open(flags, options, log);
  wait_for_end(flags, access, server, kept, log, [] {});
  log.info("stopping", {});
  server.stop(flags.grace.value_or(std::chrono::seconds(30)));
  upkeep.reset();
  engine->finish();
  kept.save();
  log.info("stopped", {});
  return ExitCode::kDone;
}

Result<ExitCode> run(const Console& console, const ServeFlags& flags) {
  if (flags.upstream.empty() && flags.model.empty()) {
    return usage_error("--upstream URL, for a proxy, or --model FILE, for a server of its own");
  }
  if (flags.upstream.empty()) {
    if (!flags.slot_dir.empty()) return usage_error("--slot-dir needs --upstream");
    if (!flags.max_write.empty()) return usage_error("--max-write needs --upstream");
    return run_embedded(console, flags);
  }
  const EmbeddedFlags& own = flags.embedded;
  if (!own.model_id.empty() || !own.templates.chosen.empty() || !own.templates.date.empty()) {
    return usage_error(
        "--model-id, --template and --date are for a server of its own, without "
        "--upstream");
  }
  TQC_TRY_ASSIGN(const serve::PageAccess access, page_access(flags));
  TQC_TRY_ASSIGN(const serve::HttpOptions options, http_options(flags, access));
  serve::Metrics metrics;
  serve::Log log({}, console.quiet);
  serve::ProxyOptions proxy_options;
  proxy_options.upstream.url = flags.upstream;
  proxy_options.keeper.share_tenants = flags.share_tenants;
  proxy_options.has_tenants = options.api_keys.size() > 1 + access.admin_keys.size();
  proxy_options.page_access = access;
  if (flags.upstream_timeout) proxy_options.upstream.idle_timeout = *flags.upstream_timeout;
  TQC_TRY_ASSIGN(const std::vector<std::string> upstream_keys,
                 read_api_keys(flags.upstream_key_file));
  if (!upstream_keys.empty()) proxy_options.upstream_key = upstream_keys.front();
  std::optional<OpenStore> store;
  if (!flags.slot_dir.empty()) {
    TQC_TRY_ASSIGN(store, open_store(console, flags.store, StoreUse::kPut));
    proxy_options.slot_dir = flags.slot_dir;
    proxy_options.backend = store->backend.get();
    proxy_options.store_name = store->name();
    proxy_options.keeper.salt = store->salt;
    TQC_TRY_ASSIGN(proxy_options.keeper.config, stored_configuration(flags));
    proxy_options.keeper.model = flags.model;
    proxy_options.keeper.memory = console.access.memory;
    proxy_options.keeper.max_bytes = flags.max_bytes;
    proxy_options.min_tokens = flags.min_tokens;
    proxy_options.shows_headers = flags.shows_headers;
    proxy_options.shows_prompts = own.shows_text;
    if (flags.save_idle) proxy_options.idle_save = *flags.save_idle;
    if (!flags.max_write.empty()) {
      TQC_TRY_ASSIGN(proxy_options.max_write, parse_write_limit(flags.max_write));
    }
  } else if (!flags.store.url.empty()) {
    return usage_error("--store needs --slot-dir, the folder of llama-server's --slot-save-path");
  } else if (!flags.max_write.empty()) {
    return usage_error("--max-write needs --slot-dir: without it nothing is written");
  }
  KeptLedger kept(console, flags.page_file, proxy_options.keeper.salt, log);
  proxy_options.ledger = &kept.ledger();
  TQC_TRY_ASSIGN(const auto proxy, serve::Proxy::open(proxy_options, metrics, log));
  serve::HttpServer server(options, metrics, log);
  proxy->attach(server);
  TQC_TRY(server.start());
  log.info("listening", {{"port", std::to_string(server.port())}, {"upstream", flags.upstream}});
  print_addresses(console, flags, server.port());
  warn_if_open(flags, options, log);
  wait_for_end(flags, access, server, kept, log, [&] { proxy->reload(); });
  log.info("stopping", {});
  const std::chrono::seconds grace = flags.grace.value_or(std::chrono::seconds(30));
  acknowledge_interrupt();  // the store refuses to work while it is set
  proxy->end_calls_within(grace);
  server.stop(grace);
  proxy->flush(grace);
  kept.save();
  log.info("stopped", {});
  return ExitCode::kDone;
}

#else

Result<ExitCode> run(const Console&, const ServeFlags&) {
  return unsupported("this program was built without serve: it needs libcurl4-openssl-dev");
}

#endif

}  // namespace

Action define_serve(FlagSet& app) {
  const auto options = std::make_shared<ServeFlags>();
  app.add("--upstream", options->upstream,
          "The llama-server to stand before; with the path of its --api-prefix, if it has one")
      ->type_name("URL")
      ->not_empty();
  add_embedded_flags(app, options->embedded);
  add_resource_flags(app, options->embedded.n_threads);
  app.add("--listen", options->listen, "Address to listen on; port 0 takes any free port")
      ->type_name("HOST:PORT")
      ->not_empty()
      ->show_default();
  const std::string keeping = "Keeping prompts";
  app.add("--slot-dir", options->slot_dir,
          "The folder of llama-server's --slot-save-path; without it nothing is kept")
      ->type_name("DIR")
      ->folder()
      ->group(keeping);
  app.add("--store", options->store.url,
          "The store: dir:PATH, redis://HOST or s3://BUCKET (or the variable TQCACHE_STORE)")
      ->type_name("URL")
      ->not_empty()
      ->group(keeping);
  app.add("--salt-file", options->store.salt_file,
          "File with the salt of the tenant (or the variable TQCACHE_STORE_SALT)")
      ->type_name("FILE")
      ->file()
      ->group(keeping);
  options->config_flag =
      app.add("--config", options->config,
              "What is stored: lossless, turbo, archive, or a configuration such as k8v4")
          ->type_name("TEXT")
          ->not_empty()
          ->show_default()
          ->group(keeping);
  app.add("--profile", options->profile,
          "Use the factors of keys in this file of tqcache profile; without --config with turbo")
      ->type_name("FILE")
      ->file()
      ->group(keeping);
  app.add(
         "-m,--model", options->model,
         "Without --upstream: the model to answer with, a GGUF file or a Hugging Face folder. With "
         "it: the GGUF file of the upstream server, if the path that it reports cannot be read "
         "here")
      ->type_name("MODEL")
      ->file()
      ->group(keeping);
  app.add("--min-tokens", options->min_tokens, "Shorter prompts are neither stored nor looked up")
      ->type_name("N")
      ->at_least(1)
      ->show_default()
      ->group(keeping);
  add_duration_flag(app, "--save-idle", options->save_idle,
                    "Save a conversation that has rested this long (default: 1s)");
  add_bytes_flag(app, "--max-bytes", options->max_bytes,
                 "Remove the least used data when the store has more than this")
      ->group(keeping);
  app.add("--max-write", options->max_write,
          "Write no more than this, to spare an SSD: 40G/day, 500MB/hour; needs --upstream")
      ->type_name("SIZE/PERIOD")
      ->not_empty()
      ->group(keeping);
  app.add("--share-tenants", options->share_tenants,
          "Clients with different API keys use the same stored prompts and slots")
      ->group(keeping);
  app.add("--headers", options->shows_headers,
          "Answers say in headers how many tokens were reused, from where, and where the prompt "
          "parts from the nearest kept one (X-Tqcache-...)")
      ->group(keeping);
  app.add("--page-file", options->page_file,
          "File that keeps the list of the page with the kept prompts over restarts")
      ->type_name("FILE")
      ->file()
      ->group(keeping);
  const std::string access = "Access and limits";
  app.add("--api-key-file", options->api_key_file,
          "File with the keys, one per line, of which every request needs one")
      ->type_name("FILE")
      ->file()
      ->group(access);
  app.add("--admin-key-file", options->admin_key_file,
          "File with keys, one per line, whose page shows the sums of all keys")
      ->type_name("FILE")
      ->file()
      ->group(access);
  app.add("--page-all", options->page_all,
          "The page shows the sums of all keys to whoever opens it on this machine without a key")
      ->group(access);
  app.add(
         "--upstream-key-file", options->upstream_key_file,
         "File with the key that the upstream server wants; by default it gets that of the request")
      ->type_name("FILE")
      ->file()
      ->group(access);
  add_bytes_flag(
      app, "--max-body", options->max_body,
      "Largest body of a request; larger ones get status 413 (default: 64MiB; with --model "
      "alone 1MiB, and 32 bytes for each token of the context)")
      ->group(access);
  app.add("--max-connections", options->max_connections,
          "Connections at a time; more get status 503")
      ->type_name("N")
      ->range(1, 4096)
      ->show_default()
      ->group(access);
  app.add("--max-connections-per-address", options->max_connections_per_address,
          "Connections of one address (default: a quarter of all, at least 8; no limit for this "
          "machine)")
      ->type_name("N")
      ->range(1, 4096)
      ->group(access);
  app.add("--allow-host", options->allowed_hosts,
          "Clients may ask for a server without keys by this name, too, not only by localhost or "
          "an address")
      ->type_name("NAME")
      ->repeats()
      ->check([](const std::string& name) -> Result<void> {
        if (!name.empty() && name.find('/') == std::string::npos) return {};
        return usage_error(fmt::format("{}: not a name such as box.example", name));
      })
      ->group(access);
  app.add("--allow-origin", options->allowed_origins,
          "Web pages of this origin may send requests (CORS); '*' stands for all. The form is that "
          "of "
          "https://chat.example:8443")
      ->type_name("ORIGIN")
      ->repeats()
      ->check([](const std::string& origin) -> Result<void> {
        const std::size_t slashes = origin.find("://");
        const bool has_path = origin.find('/', slashes + 3) != std::string::npos;
        if (origin == "*" || origin == "null") return {};
        if (slashes != std::string::npos && slashes > 0 && !has_path) return {};
        return usage_error(fmt::format(
            "{}: not SCHEME://HOST[:PORT], without a path, as browsers send it", origin));
      })
      ->group(access);
  add_duration_flag(app, "--upstream-timeout", options->upstream_timeout,
                    "Longest time without a byte from the upstream server (default: 10m)");
  add_duration_flag(app, "--grace", options->grace,
                    "Longest time that running requests get when the server ends (default: 30s)");
  app.usual({"--upstream", "--model", "--slot-dir", "--store", "--config", "--listen",
             "--max-bytes", "--api-key-file", "--key-file", "--page-file", "--template",
             "--threads"});
  app.footer(kServeExamples);
  return [options](const Console& console) { return run(console, *options); };
}

}  // namespace tqcache::cli
