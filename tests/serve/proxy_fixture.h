#pragma once
// tests/serve/proxy_fixture.h: a proxy between a test and an upstream server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "serve/fake_llama.h"
#include "serve/raw_socket.h"
#include "support/temp_dir.h"
#include "tqcache/serve/http_server.h"
#include "tqcache/serve/proxy.h"
#include "tqcache/store.h"

namespace tqcache::test {

// A proxy with its server; as a process that can be started again.
class RunningProxy {
 public:
  RunningProxy(serve::ProxyOptions options, serve::HttpOptions http = {}) {
    auto opened = serve::Proxy::open(options, metrics, log_);
    if (!opened) throw std::runtime_error(opened.error().message);
    proxy = std::move(*opened);
    http.address = "127.0.0.1:0";
    server = std::make_unique<serve::HttpServer>(http, metrics, log_);
    proxy->attach(*server);
    const auto started = server->start();
    if (!started) throw std::runtime_error(started.error().message);
  }
  ~RunningProxy() { server.reset(); }

  int port() const { return server->port(); }
  std::string logged() {
    const std::lock_guard lock(mutex_);
    return logged_;
  }
  std::size_t n_logged(const std::string& text) {
    const std::string all = logged();
    std::size_t n = 0;
    for (std::size_t at = 0; (at = all.find(text, at)) != std::string::npos; ++at) ++n;
    return n;
  }

  serve::Metrics metrics;

 private:
  std::mutex mutex_;
  std::string logged_;
  serve::Log log_{[this](std::string_view line) {
    const std::lock_guard lock(mutex_);
    logged_ += line;
  }};

 public:
  std::unique_ptr<serve::Proxy> proxy;
  std::unique_ptr<serve::HttpServer> server;
};

// Waits for what happens in the background. False after 280 s: the machine may be busy.
inline bool wait_until(const std::function<bool()>& is_true) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(280);
  while (!is_true()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

class ProxyTest : public testing::Test {
 protected:
  using Json = nlohmann::json;

  TempDir dir_;
  std::filesystem::path slot_dir_ = make_folder("slots");
  const ReservedPort llama_port_;
  std::unique_ptr<store::Backend> backend_ = std::move(*store::open_backend("memory:", {}));
  std::unique_ptr<FakeLlama> llama_;
  std::unique_ptr<RunningProxy> proxy_;
  serve::ProxyOptions options_;
  std::chrono::milliseconds idle_save_{0};  // slots are saved after each answer

  std::filesystem::path make_folder(const char* name) {
    std::filesystem::create_directory(dir_ / name);
    return dir_ / name;
  }

  void start_llama(std::size_t n_slots = 2) {
    llama_.reset();
    llama_ = std::make_unique<FakeLlama>(slot_dir_, n_slots, llama_port_.port());
  }
  void start_proxy(const std::string& prefix = {}) {
    proxy_.reset();
    options_.upstream.url = llama_->url() + prefix;
    options_.slot_dir = slot_dir_;
    options_.backend = backend_.get();
    options_.slot_timeout = options_.patience = std::chrono::hours(24 * 365);
    options_.idle_save = idle_save_;
    proxy_ = std::make_unique<RunningProxy>(options_);
  }
  double metric(const char* name, const serve::Metrics::Labels& labels = {}) const {
    return proxy_->metrics.value(name, labels);
  }
  // What is in the folder that is shared with the upstream server.
  std::vector<std::string> entry_names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(slot_dir_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  // Waits until the prompt of the last request is in the store.
  bool wait_for_saves(std::size_t n) {
    return wait_until([&] { return proxy_->n_logged("event=keep slot=") >= n; });
  }

  static Json chat(const std::vector<std::pair<std::string, std::string>>& messages,
                   bool stream = false) {
    Json list = Json::array();
    for (const auto& [role, content] : messages) {
      list.push_back({{"role", role}, {"content", content}});
    }
    return {{"messages", list}, {"stream", stream}};
  }
  std::string send(const Json& body, const std::string& headers = {}) {
    return raw_exchange(proxy_->port(), post_text("/v1/chat/completions", body.dump(), headers));
  }
  // The answer to messages, checked; the number of tokens that were not computed goes to
  // `n_cached`.
  std::string ask(const std::vector<std::pair<std::string, std::string>>& messages,
                  std::int64_t& n_cached, const std::string& headers = {}) {
    const std::string answer = send(chat(messages), headers);
    EXPECT_EQ(status_of(answer), 200) << answer;
    const Json json = Json::parse(body_of(answer), nullptr, false);
    if (json.is_discarded()) return {};
    n_cached = json.at("timings").at("cache_n");
    const std::string text = json.at("content");
    EXPECT_EQ(text, FakeLlama::answer_to(
                        FakeLlama::tokens_of(FakeLlama::render(chat(messages).at("messages")))));
    return text;
  }
  static std::string long_text(int seed, std::size_t n) {
    std::string text;
    for (std::size_t i = 0; text.size() < n; ++i) {
      text += "sentence " + std::to_string(i * 7919 + static_cast<std::size_t>(seed)) + ". ";
    }
    return text.substr(0, n);
  }
};

}  // namespace tqcache::test
