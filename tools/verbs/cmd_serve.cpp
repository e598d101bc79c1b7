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
#include "tqcache/serve/http_server.h"
#include "tqcache/serve/operations.h"
#include "tqcache/serve/proxy.h"
#endif

namespace tqcache::cli {
namespace {

constexpr const char* kServeExamples =
    R"(With --upstream, a proxy before llama-server. It passes every request on, and every answer back,
byte for byte. With --model, a server of its own: the routes of OpenAI's interface, answered by the
reference decoder, one request at a time.

With --store (or the variable TQCACHE_STORE) a prompt begins with the longest prefix that the store
has, and new token blocks are added to it. Without a store, --model keeps only the last conversation.
Each key of --api-key-file has prompts of its own.

GET / is a page with the prompts that --model keeps. GET /health says whether the server can answer,
GET /metrics has counters for Prometheus. SIGHUP reads --api-key-file again. SIGTERM and Ctrl-C end the server after running requests are answered, at
most --grace later.

Examples:
  tqcache serve --upstream http://127.0.0.1:8080
  tqcache serve --model model.gguf --store dir:prompts
  tqcache serve --model model.gguf --store dir:prompts --config turbo --api-key-file keys.txt
)";

struct ServeFlags {
  EmbeddedFlags embedded;
  PromptStoreFlags store;
  std::optional<std::string> config;
  bool share_tenants = false;
  std::string upstream;
  std::string upstream_key_file;
  std::optional<std::chrono::seconds> upstream_timeout;
  std::string listen = "127.0.0.1:8081";
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

// Serves until a signal arrives.
void wait_for_end(const ServeFlags& flags, serve::HttpServer& server, serve::Log& log) {
  struct sigaction action = {};
  action.sa_handler = handle_hangup;
  sigaction(SIGHUP, &action, nullptr);
  while (!interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (g_hangup == 0) continue;
    g_hangup = 0;
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
  TQC_TRY_ASSIGN(const serve::HttpOptions options, http_options(flags));
  TQC_TRY_ASSIGN(const std::optional<PromptStoreChoice> choice,
                 choose_prompt_store(flags.store, ""));
  EmbeddedStore store;
  std::string salt;
  if (choice) {
    store.url = choice->url;
    store.read_only = choice->read_only;
    salt = choice->salt;
  }
  store.config_is_given = flags.config.has_value();
  store.config = flags.config.value_or(store.config);
  serve::Metrics metrics;
  serve::Log log({}, console.quiet);
  TQC_TRY_ASSIGN(const std::unique_ptr<serve::Engine> engine,
                 open_engine(console, flags.embedded, store, log));
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
  wait_for_end(flags, server, log);
  log.info("stopping", {});
  server.stop(flags.grace.value_or(std::chrono::seconds(30)));
  return ExitCode::kDone;
}

Result<ExitCode> run(const Console& console, const ServeFlags& flags) {
  if (flags.upstream.empty() == flags.embedded.model.empty()) {
    return usage_error(
        "either --upstream URL, for a proxy, or --model FILE, for a server of its own, is "
        "required");
  }
  if (!flags.embedded.model.empty()) return run_embedded(console, flags);
  TQC_TRY_ASSIGN(const serve::HttpOptions options, http_options(flags));
  serve::Metrics metrics;
  serve::Log log({}, console.quiet);
  serve::ProxyOptions proxy_options;
  proxy_options.upstream.url = flags.upstream;
  if (flags.upstream_timeout) proxy_options.upstream.idle_timeout = *flags.upstream_timeout;
  TQC_TRY_ASSIGN(const std::vector<std::string> upstream_keys, read_keys(flags.upstream_key_file));
  if (!upstream_keys.empty()) proxy_options.upstream_key = upstream_keys.front();
  TQC_TRY_ASSIGN(const auto proxy, serve::Proxy::open(proxy_options, metrics, log));
  serve::HttpServer server(options, metrics, log);
  proxy->attach(server);
  TQC_TRY(server.start());
  log.info("listening", {{"port", std::to_string(server.port())}, {"upstream", flags.upstream}});
  warn_if_open(flags, options, log);
  wait_for_end(flags, server, log);
  log.info("stopping", {});
  server.stop(flags.grace.value_or(std::chrono::seconds(30)));
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
  add_prompt_store_flags(app, options->store, StoreNames::kWithoutName);
  app.add("--config", options->config,
          "What is stored: lossless, turbo (4 bits), or a configuration as for convert")
      ->type_name("TEXT")
      ->not_empty()
      ->group("Store");
  app.add("--share-tenants", options->share_tenants,
          "Clients with different keys use the same prompts")
      ->group("Store");
  app.add("--listen", options->listen, "Address to listen on; port 0 takes any free port")
      ->type_name("HOST:PORT")
      ->not_empty()
      ->show_default();
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
                 "Largest body of a request; larger ones get status 413 (default: 64MiB)")
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
