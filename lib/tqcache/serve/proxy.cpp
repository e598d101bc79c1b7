#include "tqcache/serve/proxy.h"

#include <utility>

namespace tqcache::serve {
namespace {

class ForwardingProxy : public Proxy {
 public:
  ForwardingProxy(const ProxyOptions& options, std::unique_ptr<Upstream> upstream, Metrics& metrics,
                  Log& log)
      : options_(options), upstream_(std::move(upstream)), metrics_(metrics), log_(log) {
    metrics.define("tqcache_upstream_failures_total", Metrics::Type::kCounter,
                   "Requests that the upstream server did not answer.");
  }

  void attach(HttpServer& server) override {
    server.set_health([this] { return health(); });
    server.set_fallback(
        [this](const Request& request, Client& client) { return handle(request, client); });
  }

 private:
  Response health() {
    const auto reply = upstream_->call("GET", "/health", {}, own_headers(), nullptr);
    if (reply && reply->status == 200) return Response::json(200, R"({"status":"ok"})");
    return Response::error(503, "unavailable_error", "the upstream server does not answer");
  }

  std::vector<Header> own_headers() const {
    if (options_.upstream_key.empty()) return {};
    return {{"Authorization", "Bearer " + options_.upstream_key}};
  }

  Response handle(const Request& request, Client& client) {
    Request changed = request;
    if (!options_.upstream_key.empty()) {
      std::erase_if(changed.headers, [](const Header& header) {
        return same_word(header.name, "Authorization") || same_word(header.name, "x-api-key");
      });
      changed.headers.push_back({"Authorization", "Bearer " + options_.upstream_key});
    }
    Response response = forward(*upstream_, changed, std::move(changed.body), client);
    if (response.status == 502 || response.status == 504) {
      metrics_.add("tqcache_upstream_failures_total");
      log_.warning("upstream", {{"status", std::to_string(response.status)}});
    }
    return response;
  }

  ProxyOptions options_;
  std::unique_ptr<Upstream> upstream_;
  Metrics& metrics_;
  Log& log_;
};

}  // namespace

Result<std::unique_ptr<Proxy>> Proxy::open(const ProxyOptions& options, Metrics& metrics,
                                           Log& log) {
  TQC_TRY_ASSIGN(std::unique_ptr<Upstream> upstream, Upstream::open(options.upstream));
  return std::unique_ptr<Proxy>(
      std::make_unique<ForwardingProxy>(options, std::move(upstream), metrics, log));
}

}  // namespace tqcache::serve
