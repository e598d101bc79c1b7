// tools/verbs/cmd_serve.cpp: an HTTP server that keeps prompts over restarts.

#include <fmt/format.h>
#include <sys/stat.h>

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
  std::string model;
  std::int64_t min_tokens = 512;
  std::int64_t save_every = 2048;
  std::optional<std::chrono::seconds> save_idle;
  std::optional<std::uint64_t> max_bytes;
  bool share_tenants = false;
  std::string page_file;
  std::string api_key_file;
  std::optional<std::uint64_t> max_body;
  std::int64_t max_connections = 256;
  std::optional<std::chrono::seconds> grace;
};

#ifdef TQCACHE_SERVE

volatile std::sig_atomic_t g_hangup = 0;
void handle_hangup(int) { g_hangup = 1; }

// The lines of a file, one key each. Empty without a file.
// Errors: those of reading; kInvalidArgument (no key).
Result<std::vector<std::string>> read_keys(const std::string& file) {
  std::vector<std::string> keys;
  if (file.empty()) return keys;
  struct stat info = {};
  if (::stat(file.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    warn(file, "other users can use this file: chmod 600");
  }
  TQC_TRY_ASSIGN(const Bytes bytes, in_file(file, read_file(file, std::uint64_t{1} << 20)));
  std::string line;
  const auto end_line = [&] {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) keys.push_back(line);
    line.clear();
  };
  for (const std::byte byte : bytes) {
    const char c = static_cast<char>(byte);
    if (c == '\n') {
      end_line();
    } else {
      line += c;
    }
  }
  end_line();
  if (keys.empty()) return Error{ErrorCode::kInvalidArgument, "the file has no key", file};
  return keys;
}

Result<serve::HttpOptions> http_options(const ServeFlags& flags) {
  serve::HttpOptions options;
  options.address = flags.listen;
  if (flags.max_body) options.max_body_bytes = *flags.max_body;
  options.max_buffered_bytes = std::max(options.max_buffered_bytes, 2 * options.max_body_bytes);
  options.max_connections = static_cast<std::size_t>(flags.max_connections);
  TQC_TRY_ASSIGN(options.api_keys, read_keys(flags.api_key_file));
  return options;
}

// The list of kept prompts, and how often their blobs were used: --page-file keeps both over
// restarts, the second in FILE.hits.
class KeptLedger {
 public:
  KeptLedger(const std::string& path, serve::Log& log) : path_(path), log_(log) {
    if (path_.empty()) return;
    if (const Result<void> loaded = serve::load_ledger(path_, ledger_); !loaded) {
      log_.warning("page-file", {{"file", path_},
                                 {"message", loaded.error().message + "; starting a new list"}});
    }
    if (const Result<void> loaded = serve::load_scores(scores_path(), scores_); !loaded) {
      log_.warning("page-file", {{"file", scores_path()}, {"message", loaded.error().message}});
    }
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

  std::string path_;
  serve::Log& log_;
  serve::PromptLedger ledger_;
  serve::HitScores scores_;
  std::chrono::steady_clock::time_point saved_ = std::chrono::steady_clock::now();
};

// Serves until a signal arrives.
void wait_for_end(const ServeFlags& flags, serve::HttpServer& server, KeptLedger& kept,
                  serve::Log& log, const std::function<void()>& reload) {
  struct sigaction action = {};
  action.sa_handler = handle_hangup;
  sigaction(SIGHUP, &action, nullptr);
  while (!interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kept.save_now_and_then();
    if (g_hangup == 0) continue;
    g_hangup = 0;
    reload();
    auto keys = read_keys(flags.api_key_file);
    if (keys) {
      server.set_api_keys(std::move(*keys));
      log.info("reload", {{"what", "keys"}});
    } else {
      log.error("reload", {{"message", keys.error().message}});
    }
  }
}

void warn_if_open(const ServeFlags& flags, const serve::HttpOptions& options, serve::Log& log) {
  const bool is_local = flags.listen.starts_with("127.") || flags.listen.starts_with("[::1]") ||
                        flags.listen.starts_with("localhost:");
  if (is_local || !options.api_keys.empty()) return;
  log.warning("open", {{"message",
                        "other machines can use this server without a key; "
                        "--api-key-file requires one"}});
}

// The salt of a client with this key, as the proxy has it.
std::string key_salt(const std::string& salt, const std::string& api_key) {
  if (api_key.empty()) return salt;
  return salt + std::string("\0serve client\0", 14) + to_hex(sha256(as_bytes(api_key)));
}

Result<ExitCode> run_embedded(const Console& console, const ServeFlags& flags) {
  TQC_TRY_ASSIGN(serve::HttpOptions options, http_options(flags));
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
  store.config = flags.config;
  store.config_is_given = flags.config_flag->is_given();
  store.max_bytes = flags.max_bytes;
  serve::Metrics metrics;
  serve::Log log({}, console.quiet);
  KeptLedger kept(flags.page_file, log);
  TQC_TRY_ASSIGN(
      std::unique_ptr<serve::Engine> engine,
      open_engine(console, flags.embedded, flags.model, store, log, kept.ledger(), kept.scores()));
  if (!flags.max_body) options.max_body_bytes = default_max_body(*engine);
  std::optional<StoreUpkeep> upkeep(std::in_place, console, store, *engine, kept.scores(), log);
  const bool has_tenants = !options.api_keys.empty() && !flags.share_tenants;
  const auto tenant_of = [&](const serve::Request& request) {
    return has_tenants ? key_salt(salt, request.api_key) : salt;
  };
  serve::EngineApi api(*engine, {.tenant_of = tenant_of, .has_keys = has_tenants}, metrics);
  serve::HttpServer server(options, metrics, log);
  api.add_routes(server);
  TQC_TRY(server.start());
  log.info("listening", {{"port", std::to_string(server.port())}, {"model", engine->model_id()}});
  warn_if_open(flags, options, log);
  wait_for_end(flags, server, kept, log, [] {});
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
    return run_embedded(console, flags);
  }
  const EmbeddedFlags& own = flags.embedded;
  if (!own.model_id.empty() || !own.chat_template.empty() || own.shows_text) {
    return usage_error(
        "--model-id, --template and --show-prompts are for a server of its own, without "
        "--upstream");
  }
  TQC_TRY_ASSIGN(const serve::HttpOptions options, http_options(flags));
  serve::Metrics metrics;
  serve::Log log({}, console.quiet);
  KeptLedger kept(flags.page_file, log);
  serve::ProxyOptions proxy_options;
  proxy_options.ledger = &kept.ledger();
  proxy_options.upstream.url = flags.upstream;
  proxy_options.has_tenants = options.api_keys.size() > 1;
  if (flags.upstream_timeout) proxy_options.upstream.idle_timeout = *flags.upstream_timeout;
  TQC_TRY_ASSIGN(const std::vector<std::string> upstream_keys, read_keys(flags.upstream_key_file));
  if (!upstream_keys.empty()) proxy_options.upstream_key = upstream_keys.front();
  std::optional<OpenStore> store;
  if (!flags.slot_dir.empty()) {
    TQC_TRY_ASSIGN(store, open_store(console, flags.store, StoreUse::kPut));
    proxy_options.slot_dir = flags.slot_dir;
    proxy_options.backend = store->backend.get();
    proxy_options.store_name = store->name();
    proxy_options.keeper.salt = store->salt;
    proxy_options.keeper.config = flags.config;
    proxy_options.keeper.model = flags.model;
    proxy_options.keeper.share_tenants = flags.share_tenants;
    proxy_options.keeper.max_bytes = flags.max_bytes;
    proxy_options.min_tokens = flags.min_tokens;
    proxy_options.save_every = flags.save_every;
    if (flags.save_idle) proxy_options.idle_save = *flags.save_idle;
  } else if (!flags.store.url.empty()) {
    return usage_error("--store needs --slot-dir, the folder of llama-server's --slot-save-path");
  }
  TQC_TRY_ASSIGN(const auto proxy, serve::Proxy::open(proxy_options, metrics, log));
  serve::HttpServer server(options, metrics, log);
  proxy->attach(server);
  TQC_TRY(server.start());
  log.info("listening", {{"port", std::to_string(server.port())}, {"upstream", flags.upstream}});
  warn_if_open(flags, options, log);
  wait_for_end(flags, server, kept, log, [&] { proxy->reload(); });
  log.info("stopping", {});
  const std::chrono::seconds grace = flags.grace.value_or(std::chrono::seconds(30));
  acknowledge_interrupt();  // the store refuses to work while it is set
  server.stop(grace);
  proxy->flush(grace);
  kept.save();
  log.info("stopped", {});
  return ExitCode::kDone;
}

#else

Result<ExitCode> run(const Console&, const ServeFlags&) {
  return unsupported("this program was built without serve: it needs libcpp-httplib-dev");
}

#endif

}  // namespace

Action define_serve(FlagSet& app) {
  const auto options = std::make_shared<ServeFlags>();
  app.add("--upstream", options->upstream, "The llama-server to stand before")
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
  app.add("--save-every", options->save_every,
          "Save a growing conversation each time it passes a multiple of this many tokens")
      ->type_name("N")
      ->at_least(256)
      ->show_default()
      ->group(keeping);
  add_duration_flag(app, "--save-idle", options->save_idle,
                    "Save a conversation that has rested this long (default: 30s)");
  add_bytes_flag(app, "--max-bytes", options->max_bytes,
                 "Remove the least used data when the store has more than this")
      ->group(keeping);
  app.add("--share-tenants", options->share_tenants,
          "Clients with different API keys use the same stored prompts and slots")
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
  app.add(
         "--upstream-key-file", options->upstream_key_file,
         "File with the key that the upstream server wants; by default it gets that of the request")
      ->type_name("FILE")
      ->file()
      ->group(access);
  add_bytes_flag(app, "--max-body", options->max_body,
                 "Largest body of a request; larger ones get status 413 (default: 64MiB; with --model "
                 "alone 1MiB, and 32 bytes for each token of the context)")
      ->group(access);
  app.add("--max-connections", options->max_connections,
          "Connections at a time; more get status 503")
      ->type_name("N")
      ->range(1, 4096)
      ->show_default()
      ->group(access);
  add_duration_flag(app, "--upstream-timeout", options->upstream_timeout,
                    "Longest time without a byte from the upstream server (default: 10m)");
  add_duration_flag(app, "--grace", options->grace,
                    "Longest time that running requests get when the server ends (default: 30s)");
  app.footer(kServeExamples);
  return [options](const Console& console) { return run(console, *options); };
}

}  // namespace tqcache::cli
