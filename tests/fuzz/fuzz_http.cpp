// Any bytes as HTTP: heads and bodies of clients' requests, and what a server behind the proxy
// answers. The first byte chooses. What is accepted has one meaning, and an answer that is passed
// on is as long as its head says.

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fake_network.h"
#include "fuzz/fuzz.h"
#include "tqcache/serve/embedded/client_request.h"
#include "tqcache/serve/embedded/tool_calls.h"
#include "tqcache/serve/http_message.h"
#include "tqcache/serve/http_server.h"
#include "tqcache/serve/llama_server.h"
#include "tqcache/serve/upstream.h"

namespace tqcache::serve {
namespace {

using fuzz::require;

constexpr std::size_t kMostConnections = 3;
constexpr std::uint64_t kMostBody = 1000;

std::string text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_token(std::string_view name) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::ranges::all_of(name, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != '\0' && kMarks.find(c) != std::string_view::npos);
  });
}

bool has_control(std::string_view text) {
  return std::ranges::any_of(
      text, [](char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 0x7f; });
}

void check_headers(const std::vector<Header>& headers) {
  for (const Header& header : headers) {
    require(is_token(header.name), "the name of a header is a word");
    require(!has_control(header.value), "a header has no control character");
  }
}

void check_passed_on(const std::vector<Header>& headers) {
  check_headers(headers);
  for (const Header& header : headers) {
    for (const char* own : {"Connection", "Content-Length", "Transfer-Encoding", "Host"}) {
      require(!same_word(header.name, own), "headers of one connection stay on it");
    }
  }
}

void check_error(const Error& error) {
  require(!error.message.empty(), "an error has a message");
  require(std::ranges::all_of(error.message, [](char c) { return c >= ' ' && c <= '~'; }),
          "a message is printable");
}

// --- requests of clients

void check_refusal(const Refusal& refusal) {
  require(refusal.status >= 400 && refusal.status < 600, "a refusal has a status of its own");
  require(!refusal.message.empty(), "and a message");
}

std::string written(const Request& request) {
  std::string text =
      request.method + " " + request.target + " HTTP/1." + std::to_string(request.minor_version);
  text += "\r\n";
  for (const auto& [name, value] : request.headers) text += name + ": " + value + "\r\n";
  return text + "\r\n";
}

void read_head(const std::string& text) {
  const HeadLimits limits{.max_bytes = 1024, .max_headers = 16, .max_target_bytes = 200};
  Head head;
  if (const auto refusal = parse_head(text, limits, head)) return check_refusal(*refusal);
  const Request& request = head.request;
  require(text.size() <= limits.max_bytes && request.headers.size() <= limits.max_headers &&
              request.target.size() <= limits.max_target_bytes,
          "limits hold");
  require(is_token(request.method), "the method is a word");
  require(request.target.starts_with('/') && !has_control(request.target), "a target is a path");
  const std::string query = request.target.size() > request.path.size() ? "?" + request.query : "";
  require(request.target == request.path + query, "a target is a path and a query");
  require(!head.is_chunked || !head.content_length, "a body has one length");
  check_headers(request.headers);
  check_passed_on(end_to_end_headers(request.headers));

  Head again;
  require(!parse_head(written(request), {}, again), "what was read can be written, and read");
  require(again.request.headers == request.headers && again.request.target == request.target &&
              again.content_length == head.content_length && again.is_chunked == head.is_chunked &&
              again.keep_alive == head.keep_alive,
          "and means the same");
  require(api_key_of(request).size() <= text.size(), "a key is in the head");
  if (const auto at = parse_host_port(request.header("Host"))) {
    require(at->port >= 0 && at->port <= 65535, "a port has 16 bits");
  }
}

// In pieces of `n` bytes; 0: all at once.
struct Decoded {
  std::string body;
  std::size_t n_used = 0;
  bool is_complete = false;
  int refused = 0;

  bool operator==(const Decoded&) const = default;
};

Decoded decode_chunks(std::string_view text, std::size_t n) {
  ChunkDecoder decoder(kMostBody);
  Decoded decoded;
  while (decoded.n_used < text.size() && !decoder.is_complete() && !decoder.refusal()) {
    const std::string_view rest = text.substr(decoded.n_used);
    const std::string_view piece = rest.substr(0, n == 0 ? rest.size() : n);
    const std::size_t used = decoder.feed(piece, decoded.body);
    require(used <= piece.size(), "no more is used than there is");
    require(used == piece.size() || decoder.is_complete() || decoder.refusal().has_value(),
            "all is used until the body ends");
    decoded.n_used += used;
  }
  decoded.is_complete = decoder.is_complete();
  if (decoder.refusal()) {
    check_refusal(*decoder.refusal());
    decoded.refused = decoder.refusal()->status;
  }
  return decoded;
}

void read_chunks(fuzz::Input& input) {
  const std::size_t n = 1 + input.below(32);
  const std::string text = text_of(input.rest());
  const Decoded whole = decode_chunks(text, 0);
  require(whole.body.size() <= kMostBody, "a body is within the limit");
  require(!whole.is_complete || whole.refused == 0, "a refused body is not complete");
  require(whole == decode_chunks(text, n), "pieces make the same body");
}

template <class Request>
bool accepts(MaybeApiError (*read)(std::string_view, Request&), const std::string& body,
             Request& request) {
  const auto error = read(body, request);
  if (!error) return true;
  require(error->status >= 400 && error->status < 500, "the client is to blame");
  require(!error->message.empty(), "an error has a message");
  for (const Dialect dialect : {Dialect::kChat, Dialect::kMessages}) {
    require(nlohmann::json::accept(error_json(*error, dialect)), "which is written as JSON");
  }
  return false;
}

// Each field at the top of a body that was accepted has a meaning in its dialect, or has none.
void check_fields(Dialect dialect, const std::string& body) {
  const auto object = nlohmann::json::parse(body, nullptr, false);
  require(object.is_object(), "what is accepted is an object");
  for (const auto& field : object.items()) {
    if (field.value().is_null()) continue;
    const auto known = [&](const Parameter& row) {
      return row.name == field.key() && !row.treatment(dialect).empty();
    };
    require(std::ranges::any_of(parameters(), known), "a field that is accepted is known");
  }
}

MaybeApiError read_messages(std::string_view body, ChatRequest& request) {
  return read_messages_request(body, false, request);
}
MaybeApiError read_counted_messages(std::string_view body, ChatRequest& request) {
  return read_messages_request(body, true, request);
}

// A body as the text of an answer, in which calls of tools are looked for.
void take_calls(const std::string& text) {
  const auto take = [&](std::size_t size, ToolCallReader& reader) {
    std::string shown;
    for (std::size_t at = 0; at < text.size(); at += size)
      shown += reader.add(text.substr(at, size));
    return shown + reader.end();
  };
  ToolCallReader whole, in_pieces;
  const std::string shown = take(std::max<std::size_t>(text.size(), 1), whole);
  require(take(7, in_pieces) == shown, "pieces are the same text");
  require(in_pieces.calls().size() == whole.calls().size(), "with the same calls");
  require(!whole.calls().empty() || shown == text, "a text without calls stays as it is");
  for (const ToolCall& call : whole.calls()) {
    require(text.find(call.arguments) != std::string::npos, "arguments are the model's");
    require(nlohmann::json::parse(call.arguments).is_object(), "and an object");
  }
}

// What the chat template gets beside the texts.
void check_template_fields(const ChatRequest& chat, const std::string& body) {
  for (const tokenizer::ChatMessage& message : chat.messages) {
    if (message.fields.empty()) continue;
    require(nlohmann::json::parse(message.fields).is_object(), "fields are an object");
  }
  if (chat.tools.empty()) return;
  require(nlohmann::json::parse(chat.tools) == nlohmann::json::parse(body)["tools"],
          "tools are those of the body");
}

void read_client_request(unsigned choice, const std::string& body) {
  ChatRequest chat;
  CompletionRequest completion;
  TokenizeRequest text;
  std::vector<std::int32_t> ids;
  const auto check_ids = [](const std::vector<std::int32_t>& all) {
    require(std::ranges::all_of(all, [](std::int32_t id) { return id >= 0; }), "no negative token");
  };
  const auto check_settings = [](const GenerationSettings& settings) {
    require(settings.max_tokens.value_or(0) >= 0, "no negative count");
    require(std::ranges::none_of(settings.stops, &std::string::empty), "no empty stop");
  };
  const auto check_chat = [&](Dialect dialect) {
    require(!chat.messages.empty(), "a chat has a message");
    for (std::size_t i = 1; i < chat.messages.size(); ++i) {
      require(chat.messages[i].role != tokenizer::ChatRole::kSystem, "a system text comes first");
    }
    check_settings(chat.settings);
    check_fields(dialect, body);
  };
  // Later readers have numbers of their own, so that older inputs keep their meaning.
  if (choice == 109 || choice == 110) {
    const auto read = choice == 109 ? read_messages : read_counted_messages;
    if (!accepts(read, body, chat)) return;
    require(chat.messages.back().role == tokenizer::ChatRole::kUser, "the user speaks last");
    require(choice == 110 || chat.settings.max_tokens.has_value(), "an answer has a limit");
    return check_chat(Dialect::kMessages);
  }
  if (choice == 111) {
    if (!accepts(read_responses_request, body, chat)) return;
    return check_chat(Dialect::kResponses);
  }
  switch (choice % 5) {
    case 0:
    case 4:
      take_calls(body);
      if (!accepts(read_chat_request, body, chat)) return;
      check_template_fields(chat, body);
      return check_chat(Dialect::kChat);
    case 1:
      if (!accepts(read_completion_request, body, completion)) return;
      check_ids(completion.ids);
      check_fields(Dialect::kCompletion, body);
      return check_settings(completion.settings);
    case 2:
      accepts(read_tokenize_request, body, text);
      return;
    default:
      if (accepts(read_detokenize_request, body, ids)) check_ids(ids);
  }
}

constexpr Api kApis[] = {Api::kChat, Api::kCompletion, Api::kResponses, Api::kMessages};

// As the proxy reads its prompt.
void read_request_body(unsigned choice, const std::string& body) {
  const std::string chat = as_chat(kApis[choice % 4], body);
  const auto accepted = nlohmann::json::parse(chat, nullptr, false);
  require(chat.empty() || accepted.is_object(), "a chat is an object");
}

// --- answers of a server

class PatientClient : public Client {
 public:
  bool is_gone() override { return false; }
};

class CountingSink : public Sink {
 public:
  bool write(std::string_view bytes) override {
    n_bytes += bytes.size();
    return true;
  }
  std::uint64_t n_bytes = 0;
};

std::unique_ptr<Upstream> open_upstream() {
  UpstreamOptions options;
  options.connect_timeout = std::chrono::milliseconds(1000);
  options.idle_timeout = std::chrono::milliseconds(50);  // no server keeps silent
  return fuzz::must(Upstream::open(options), "a good URL");
}

void pass_on(unsigned choice, ByteView answers) {
  const fuzz::FakeNetwork network(fuzz::parts_of(answers, kMostConnections));
  const auto upstream = open_upstream();
  constexpr const char* kMethods[] = {"GET", "POST", "HEAD", "DELETE"};
  Request request;
  request.method = kMethods[choice % 4];
  request.target = request.path = "/v1/models";
  request.headers = {{"Accept", "*/*"}, {"Connection", "close, X-Own"}, {"X-Own", "1"}};
  PatientClient client;
  const Response response = forward(*upstream, request, choice % 4 == 1 ? "{}" : "", client);
  require(response.status >= 200 && response.status < 1000, "a status has three digits");
  check_passed_on(response.headers);
  if (!response.stream) return;
  CountingSink sink;
  const bool is_whole = response.stream(sink);
  if (!response.stream_length || request.method == "HEAD") return;
  require(sink.n_bytes <= *response.stream_length, "a body is not longer than its head says");
  require(!is_whole || sink.n_bytes == *response.stream_length, "nor shorter, if it is whole");
}

void ask_server(unsigned choice, ByteView answers) {
  const fuzz::FakeNetwork network(fuzz::parts_of(answers, kMostConnections));
  const auto upstream = open_upstream();
  const LlamaServer server(*upstream, {{"Authorization", "Bearer key"}});
  const auto check = [](const auto& result) {
    if (!result) check_error(result.error());
  };
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}]})";
  switch (choice % 7) {
    case 0: {
      const auto props = server.props();
      require(!props || props->is_router || (props->n_slots > 0 && props->n_slots <= 1024),
              "a server has slots");
      return check(props);
    }
    case 1:
      return check(server.slots());
    case 2:
      return check(server.ask(kApis[choice / 7 % 4], body, nullptr));
    case 3: {
      const auto tokens = server.tokenize("text", nullptr);
      check(tokens);
      require(!tokens || std::ranges::all_of(*tokens, [](std::int32_t id) { return id >= 0; }),
              "no negative token");
      return;
    }
    case 4:
      return check(server.save(0, "file"));
    case 5:
      return check(server.restore(0, "file", nullptr));
    default:
      return check(server.read(0, std::array<std::int32_t, 2>{1, 2}, nullptr));
  }
}

}  // namespace
}  // namespace tqcache::serve

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  fuzz::Input input(fuzz::view_of(data, size));
  const unsigned choice = input.take<std::uint8_t>();
  if (choice < 64) {
    serve::read_head(serve::text_of(input.rest()));
  } else if (choice < 96) {
    serve::read_chunks(input);
  } else if (choice < 112) {
    serve::read_client_request(choice, serve::text_of(input.rest()));
  } else if (choice < 128) {
    serve::read_request_body(choice, serve::text_of(input.rest()));
  } else if (choice < 192) {
    serve::pass_on(choice, input.rest());
  } else {
    serve::ask_server(choice - 192, input.rest());
  }
  return 0;
}
