#pragma once
// tests/serve/fake_llama.h: a llama-server without a model, with slots and slot files.
//
// A byte of text is a token. Keys and values follow from a token and its position, so that a
// restored slot can be compared with what it has to be, value by value.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tensors/gguf_builder.h"
#include "tqcache/cache.h"
#include "tqcache/interop.h"
#include "tqcache/reader.h"
#include "tqcache/serve/http_server.h"
#include "tqcache/serve/llama_server.h"

namespace tqcache::test {

class FakeLlama {
 public:
  using Json = nlohmann::json;

  struct Slot {
    std::vector<std::int32_t> tokens;
    std::int64_t task = -1;
    bool is_busy = false;
  };

  FakeLlama(std::filesystem::path slot_dir, std::size_t n_slots, int port)
      : slot_dir_(std::move(slot_dir)),
        slots_(n_slots),
        geometry_(*interop::read_llama_geometry(write_model())),
        server_({.address = "127.0.0.1:" + std::to_string(port)}, metrics_, log_) {
    server_.set_fallback([this](const serve::Request& request, serve::Client& client) {
      return handle(request, client);
    });
    const auto started = server_.start();
    if (!started) throw std::runtime_error(started.error().message);
  }

  // A file with shapes and no weights: tqcache cannot run such a model, and keeps its prompts.
  std::filesystem::path model_path() const { return slot_dir_.parent_path() / "model.gguf"; }
  int port() const { return server_.port(); }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port()); }

  // What a test looks at, or sets.
  std::atomic<int> n_restores = 0, n_saves = 0, n_erased = 0, n_generated = 0, n_cancelled = 0;
  std::atomic<int> n_wrong_restores = 0;  // whose values were not those of their tokens
  std::atomic<int> saves_fail_with = 0, restores_fail_with = 0, erases_fail_with = 0;
  std::atomic<double> cache_n_says = -1;  // in place of the number of reused tokens
  std::atomic<bool> breaks_off = false;   // in the middle of an answer
  std::atomic<bool> answers_garbage = false;
  std::atomic<int> piece_delay_ms = 0;
  std::atomic<bool> is_endless = false;  // a stream has an end only when its client is gone
  // Answers are so many times as long, and from this character on their tokens are others than
  // those of their text, as those of a real model may be.
  std::atomic<int> n_repeats = 1;
  std::atomic<bool> clears_idle_slots = false;  // when a task starts
  std::atomic<bool> shifts_context = false;     // the first half of a slot goes after an answer
  std::atomic<bool> is_router = false, is_sleeping = false, is_loading = false;
  std::atomic<int> n_wakes = 0;  // requests that a server which sleeps would wake for
  std::atomic<std::size_t> others_from = SIZE_MAX;
  std::function<void()> before_restore = [] {};
  std::atomic<bool> hangs = false;  // requests have no answer while their client is there
  std::atomic<int> n_hanging = 0;   // of these, now
  std::atomic<int> n_saves_that_hang = 0;
  std::string prefix;  // of all paths
  std::string k_type = "f16";
  std::uint32_t n_streams = 1;

  Slot slot(std::size_t i) {
    const std::lock_guard lock(mutex_);
    return slots_[i];
  }
  void put_into_slot(std::size_t i, std::vector<std::int32_t> tokens) {
    const std::lock_guard lock(mutex_);
    slots_[i].tokens = std::move(tokens);
  }

  // The answer to a prompt: what another prompt's answer would not be.
  static std::string answer_to(const std::vector<std::int32_t>& tokens) {
    std::uint64_t hash = 1469598103934665603u;
    for (const std::int32_t token : tokens) {
      hash = (hash ^ static_cast<std::uint64_t>(token)) * 1099511628211u;
    }
    return "answer-" + std::to_string(hash);
  }
  static std::vector<std::int32_t> tokens_of(const std::string& text) {
    std::vector<std::int32_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c) + 3);
    return tokens;
  }
  // Of both kinds of tokens.
  static std::string text_of(const std::vector<std::int32_t>& tokens) {
    std::string text;
    for (const std::int32_t token : tokens) {
      text += static_cast<char>((token >= kOther ? token - kOther : token) - 3);
    }
    return text;
  }
  static std::string render(const Json& messages) {
    std::string text;
    for (const Json& message : messages) {
      text += "<" + message.at("role").get<std::string>() + ">" +
              message.at("content").get<std::string>();
    }
    return text + "<assistant>";
  }

 private:
  static constexpr std::int32_t kOther = 1000;

  std::filesystem::path write_model() const {
    const Bytes bytes = GgufBuilder()
                            .text("general.architecture", "qwen3")
                            .value<std::uint32_t>("qwen3.block_count", kU32, 2)
                            .value<std::uint32_t>("qwen3.attention.head_count", kU32, 1)
                            .value<std::uint32_t>("qwen3.attention.head_count_kv", kU32, 1)
                            .value<std::uint32_t>("qwen3.attention.key_length", kU32, 64)
                            .value<std::uint32_t>("qwen3.attention.value_length", kU32, 64)
                            .tensor("norm.weight", {8}, kTensorF32, 32)
                            .build();
    const auto written = write_file_atomically(model_path(), bytes, Overwrite::kAllow);
    if (!written) throw std::runtime_error(written.error().message);
    return model_path();
  }

  static float value_of(std::int32_t token, std::size_t position, std::size_t layer,
                        std::size_t i) {
    const std::size_t mixed =
        static_cast<std::size_t>(token) * 31 + position * 7 + layer * 13 + i * 5;
    return static_cast<float>(mixed % 257) / 128.0f - 1;
  }

  cache::Cache cache_of(const std::vector<std::int32_t>& tokens) const {
    cache::Cache cache;
    cache.identity.architecture = geometry_.architecture;
    cache.tokens = tokens;
    for (std::size_t l = 0; l < geometry_.layers.size(); ++l) {
      const cache::HeadShape shape{geometry_.layers[l].n_kv_heads, geometry_.layers[l].k_head_dim};
      cache::AttentionLayer layer{shape, cache::DenseTensor{Dtype::kF16, {}},
                                  cache::DenseTensor{Dtype::kF16, {}}};
      const auto width = static_cast<std::size_t>(shape.n_kv_heads * shape.head_dim);
      for (std::size_t begin = 0; begin < tokens.size(); begin += 256) {
        const std::size_t n = std::min<std::size_t>(256, tokens.size() - begin);
        std::vector<float> rows(n * width);
        for (std::size_t t = 0; t < n; ++t) {
          for (std::size_t i = 0; i < width; ++i) {
            rows[t * width + i] = value_of(tokens[begin + t], begin + t, l, i);
          }
        }
        cache::append(layer.k, shape, static_cast<std::int64_t>(begin), rows);
        cache::append(layer.v, shape, static_cast<std::int64_t>(begin), rows);
      }
      cache.layers.emplace_back(std::move(layer));
    }
    return cache;
  }

  interop::LlamaExport export_options() const {
    return {.kind = interop::LlamaFile::kSequence,
            .version = 4,
            .k_type = k_type,
            .v_type = k_type,
            .server_tokens = true,
            .n_streams = n_streams,
            .overwrite = Overwrite::kAllow};
  }

  serve::Response handle(const serve::Request& request, serve::Client& client) {
    using serve::Response;
    if (answers_garbage) return Response::text(200, "]] not JSON [[");
    if (hangs) wait_for_end(client);
    if (!request.path.starts_with(prefix)) {
      return Response::error(404, "not_found_error", "no such path");
    }
    const std::string path = request.path.substr(prefix.size());
    if (is_loading) return Response::error(503, "unavailable_error", "Loading model");
    if (path == "/health") return Response::json(200, R"({"status":"ok"})");
    if (path != "/props" && is_sleeping) n_wakes += 1;
    if (path == "/props" && is_router) {
      return Response::json(200, R"({"role":"router","build_info":"fake"})");
    }
    if (path == "/props") {
      return Response::json(200, Json{{"model_path", model_path().string()},
                                      {"total_slots", slots_.size()},
                                      {"is_sleeping", is_sleeping.load()},
                                      {"default_generation_settings", {{"n_ctx", 4096}}}}
                                     .dump());
    }
    if (path == "/lora-adapters") return Response::json(200, "[]");
    if (path == "/slots") return list_slots();
    if (path.starts_with("/slots/")) {
      if (request.query == "action=save" && n_saves_that_hang > 0) {
        n_saves_that_hang -= 1;
        wait_for_end(client);
      }
      return act(request, std::stoul(path.substr(7)));
    }
    constexpr std::array kPaths = {"/tokenize",   "/detokenize",          "/apply-template",
                                   "/completion", "/v1/chat/completions", "/api/chat",
                                   "/v1/messages"};
    if (std::find(kPaths.begin(), kPaths.end(), path) == kPaths.end()) {
      return Response::error(404, "not_found_error", "no such path");
    }
    const Json body = Json::parse(request.body, nullptr, false);
    if (body.is_discarded()) return Response::error(400, "invalid_request_error", "bad JSON");
    if (path == "/tokenize") {
      return Response::json(200, Json{{"tokens", tokens_of(body.at("content"))}}.dump());
    }
    if (path == "/detokenize") {
      return Response::json(200, Json{{"content", text_of(body.at("tokens"))}}.dump());
    }
    if (path == "/apply-template") {
      return Response::json(200, Json{{"prompt", render(body.at("messages"))}}.dump());
    }
    if (path == "/completion") {
      const Json& prompt = body.at("prompt");
      return generate(
          body, prompt.is_string() ? tokens_of(prompt) : prompt.get<std::vector<std::int32_t>>(),
          client);
    }
    if (path == "/v1/messages") {
      Json messages = body.at("messages");
      if (body.contains("system")) {
        const Json system = {{"role", "system"}, {"content", body.at("system")}};
        messages.insert(messages.begin(), system);
      }
      // Fields of other routes do not count.
      return generate({{"stream", body.value("stream", false)}, {"is_anthropic", true}},
                      tokens_of(render(messages)), client);
    }
    return generate(body, tokens_of(render(body.at("messages"))), client);
  }

  void wait_for_end(serve::Client& client) {
    n_hanging += 1;
    while (!client.is_gone()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    n_hanging -= 1;
  }

  serve::Response list_slots() {
    const std::lock_guard lock(mutex_);
    Json list = Json::array();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      Json each = {{"id", i}, {"is_processing", slots_[i].is_busy}};
      if (slots_[i].task >= 0) {
        each["id_task"] = slots_[i].task;
        each["n_prompt_tokens"] = slots_[i].tokens.size();
      }
      list.push_back(each);
    }
    return serve::Response::json(200, list.dump());
  }

  serve::Response act(const serve::Request& request, std::size_t slot) {
    using serve::Response;
    const Json body = Json::parse(request.body, nullptr, false);
    if (request.query == "action=restore") before_restore();
    const std::lock_guard lock(mutex_);
    Slot& it = slots_.at(slot);
    if (request.query == "action=erase") {
      if (erases_fail_with != 0) return Response::error(erases_fail_with, "server_error", "no");
      n_erased += 1;
      it.tokens.clear();
      return Response::json(200, "{}");
    }
    const std::filesystem::path file = slot_dir_ / body.at("filename").get<std::string>();
    if (request.query == "action=save") {
      if (saves_fail_with != 0)
        return Response::error(saves_fail_with, "server_error", "disk full");
      n_saves += 1;
      const cache::Cache cache = cache_of(it.tokens);
      const auto written =
          interop::export_llama_state(*cache::reader_of(cache), geometry_, file, export_options());
      if (!written) return Response::error(500, "server_error", written.error().message);
      return Response::json(200, Json{{"n_saved", it.tokens.size()}}.dump());
    }
    if (restores_fail_with != 0) {
      return Response::error(restores_fail_with, "server_error", "no space");
    }
    return restore(it, file);
  }

  // Takes a file only if it has what this server would have written.
  serve::Response restore(Slot& slot, const std::filesystem::path& file) {
    interop::OpenHints hints;
    hints.geometry = geometry_;
    const auto opened = interop::open_any(file, hints);
    if (!opened) return serve::Response::error(400, "invalid", opened.error().message);
    const std::vector<std::int32_t> tokens = opened->cache->description().tokens;
    const std::filesystem::path own = file.string() + ".own";
    const cache::Cache cache = cache_of(tokens);
    const auto written =
        interop::export_llama_state(*cache::reader_of(cache), geometry_, own, export_options());
    const Result<Bytes> given = read_file(file, 1 << 30);
    const Result<Bytes> right = read_file(own, 1 << 30);
    std::error_code ignored;
    std::filesystem::remove(own, ignored);
    // A test may take the folder away meanwhile.
    if (!written || !given || !right) {
      return serve::Response::error(400, "invalid", "the slot folder is gone");
    }
    if (*given != *right) n_wrong_restores += 1;
    n_restores += 1;
    slot.tokens = tokens;
    return serve::Response::json(200, Json{{"n_restored", tokens.size()}}.dump());
  }

  // Of a stream of /v1/messages.
  static std::string event(const std::string& type, Json fields) {
    fields["type"] = type;
    return "event: " + type + "\ndata: " + fields.dump() + "\n\n";
  }

  serve::Response generate(const Json& body, std::vector<std::int32_t> tokens,
                           serve::Client& client) {
    std::unique_lock lock(mutex_);
    std::size_t id = 0;
    if (body.value("id_slot", -1) >= 0) {
      id = body.at("id_slot").get<std::size_t>();
    } else {
      // The one that shares most, or was used longest ago.
      const auto common = [&](const Slot& each) {
        return std::ranges::mismatch(tokens, each.tokens).in1 - tokens.begin();
      };
      for (std::size_t i = 1; i < slots_.size(); ++i) {
        const auto n = common(slots_[i]), n_best = common(slots_[id]);
        if (n > n_best || (n == n_best && slots_[i].task < slots_[id].task)) id = i;
      }
    }
    Slot& slot = slots_.at(id);
    const auto end =
        std::mismatch(tokens.begin(), tokens.end(), slot.tokens.begin(), slot.tokens.end());
    const bool may_reuse = body.value("cache_prompt", true);
    const auto n_cached = may_reuse ? static_cast<std::size_t>(end.first - tokens.begin()) : 0;
    slot.task = ++last_task_;
    for (Slot& other : slots_) {
      if (clears_idle_slots && &other != &slot && !other.is_busy) other.tokens.clear();
    }
    std::string text;
    for (int i = 0; i < n_repeats; ++i) text += answer_to(tokens);
    slot.tokens = tokens;
    const int n_predict = body.value("n_predict", 1);
    if (n_predict > 0) {
      n_generated += 1;
      const std::vector<std::int32_t> answer = tokens_of(text);
      for (std::size_t i = 0; i < answer.size(); ++i) {
        slot.tokens.push_back(answer[i] + (i >= others_from ? kOther : 0));
      }
    }
    if (shifts_context) {
      slot.tokens.erase(slot.tokens.begin(), slot.tokens.begin() + std::ssize(slot.tokens) / 2);
    }
    slot.is_busy = true;
    lock.unlock();
    const double told = cache_n_says;
    const Json timings = {{"cache_n", told < 0 ? Json(n_cached) : Json(told)},
                          {"prompt_n", tokens.size() - n_cached},
                          {"prompt_ms", 1.0 * static_cast<double>(tokens.size() - n_cached)}};
    const auto finish = [this, id] {
      const std::lock_guard guard(mutex_);
      slots_.at(id).is_busy = false;
    };
    const bool is_anthropic = body.value("is_anthropic", false);
    Json usage = {{"cache_read_input_tokens", n_cached},
                  {"input_tokens", tokens.size() - n_cached},
                  {"output_tokens", text.size()}};
    if (!body.value("stream", false)) {
      finish();
      if (is_anthropic) {
        return serve::Response::json(200, Json{{"content", text}, {"usage", usage}}.dump());
      }
      return serve::Response::json(200, Json{{"content", text}, {"timings", timings}}.dump());
    }
    serve::Response response;
    response.headers = {{"Content-Type", "text/event-stream"}, {"X-Fake", "yes"}};
    response.stream = [this, text, timings, finish, &client, is_anthropic,
                       usage](serve::Sink& sink) {
      bool is_sent = true;
      if (is_anthropic) {
        Json start = usage;
        start["output_tokens"] = 0;
        is_sent = sink.write(event("message_start", {{"message", {{"usage", start}}}}));
      }
      for (std::size_t i = 0; is_sent; i += 4) {
        if (i >= text.size()) {
          if (!is_endless) break;
          i = 0;
        }
        if (breaks_off && i > 4) {
          finish();
          return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(piece_delay_ms));
        is_sent = !client.is_gone() &&
                  sink.write("data: " + Json{{"content", text.substr(i, 4)}}.dump() + "\n\n");
      }
      finish();
      if (!is_sent) n_cancelled += 1;
      if (is_anthropic) {
        return is_sent &&
               sink.write(event("message_delta",
                                {{"usage", {{"output_tokens", usage.at("output_tokens")}}}})) &&
               sink.write(event("message_stop", Json::object()));
      }
      return is_sent && sink.write("data: " + Json{{"timings", timings}}.dump() + "\n\n") &&
             sink.write("data: [DONE]\n\n");
    };
    return response;
  }

  std::filesystem::path slot_dir_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::int64_t last_task_ = 0;
  interop::LlamaGeometry geometry_;
  serve::Metrics metrics_;
  serve::Log log_{[](std::string_view) {}};
  serve::HttpServer server_;
};

}  // namespace tqcache::test
