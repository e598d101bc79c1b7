// Requests and answers between a client, the proxy and llama-server. The first byte chooses: a
// target, a body, or the end of an answer. cpp-httplib and nlohmann::json, which llama-server uses,
// read what the proxy forwards as the proxy has judged it.

#include <httplib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "fuzz/fuzz.h"
#include "tqcache/serve/llama_answer.h"
#include "tqcache/serve/llama_request.h"

namespace tqcache::serve {
namespace {

using fuzz::require;
using Json = nlohmann::ordered_json;

std::string text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string path_read_by_httplib(const std::string& target) {
  // What is before the query, as Server::parse_request_line() takes it.
  return httplib::detail::decode_url(target.substr(0, target.find('?')), false);
}

void read_target_of(const std::string& text) {
  Target target;
  if (const auto refusal = read_target(text, target)) {
    return require(refusal->status == 400 && !refusal->message.empty(), "a refusal says why");
  }
  require(path_read_by_httplib(target.text) == target.path, "what is judged is forwarded");
  require(path_read_by_httplib(text) == target.path, "and is what the client has sent");
  const std::string_view path = std::string_view(target.text).substr(0, target.path.size());
  require(path == target.path, "no byte of the forwarded path is escaped");
  require(std::ranges::all_of(target.text, [](char c) { return c > ' ' && c <= '~' && c != '#'; }),
          "a target is printable, without a fragment");
  require((target.path + "/").find("/../") == std::string::npos &&
              (target.path + "/").find("/./") == std::string::npos &&
              target.path.find("//") == std::string::npos,
          "a path has one form");
  const std::size_t mark = text.find('?');
  require(target.query == (mark == std::string::npos ? "" : text.substr(mark + 1)),
          "a query stays as it is");
  Target again;
  require(!read_target(target.text, again) && again.text == target.text, "and is read the same");
  route_of("POST", target.path);
}

// The text as nlohmann::json reads it, if it is an object whose keys on the top are there once.
struct Reading {
  std::optional<Json> object;
  int depth = 0;
};

Reading read_by_nlohmann(const std::string& text) {
  Reading reading;
  std::set<std::string> keys;
  bool is_unique = true;
  const auto look = [&](int depth, Json::parse_event_t event, Json& value) {
    reading.depth = std::max(reading.depth, depth + 1);
    if (event == Json::parse_event_t::key && depth == 1) {
      is_unique = is_unique && keys.insert(value.get<std::string>()).second;
    }
    return true;
  };
  Json value = Json::parse(text, look, false);
  if (value.is_object() && is_unique) reading.object = std::move(value);
  return reading;
}

void check_forwarded(const std::string& forwarded, Json right,
                     std::initializer_list<std::pair<const char*, Json>> fields) {
  for (const auto& [key, value] : fields) right[key] = value;
  const Reading reading = read_by_nlohmann(forwarded);
  require(reading.object.has_value(), "a forwarded body is an object with each key once");
  // Without regard to the order of the fields.
  require(nlohmann::json(*reading.object) == nlohmann::json(right),
          "it is what the client has sent, with our fields");
  JsonBody again;
  require(!JsonBody::read(forwarded, again), "and can be read again");
}

void read_body(const std::string& text) {
  const Reading reading = read_by_nlohmann(text);
  JsonBody body;
  if (const auto refusal = JsonBody::read(text, body)) {
    require(refusal->status == 400 && !refusal->message.empty(), "a refusal says why");
    require(!reading.object || reading.depth >= kDeepestJson || reading.object->size() > 1024 ||
                text.find('\0') != std::string::npos || text.starts_with("\xef\xbb\xbf"),
            "an object with one meaning is accepted");
    return;
  }
  require(reading.object.has_value(), "what is accepted is an object with each key once");
  const Json& object = *reading.object;
  for (const auto& [key, value] : object.items()) {
    const auto own = body.value(key);
    require(own && Json::parse(*own, nullptr, false) == value, "a field has its value");
  }
  require(!body.value("\x01 not there"), "and no other is there");
  const auto steered = with_slot(body, 3, text.size() % 2 == 0);
  require(steered.has_value() != chooses_slot(body), "a client's own choice stays");
  if (steered) {
    check_forwarded(*steered, object, {{"id_slot", 3}, {"cache_prompt", text.size() % 2 == 0}});
  }
  if (object.contains("id_slot")) {
    check_forwarded(without_reuse(body), object, {{"id_slot", -1}, {"cache_prompt", false}});
  } else {
    check_forwarded(without_reuse(body), object, {{"cache_prompt", false}});
  }
}

void check_end(const AnswerEnd& end) {
  for (const auto& n : {end.n_reused, end.n_computed, end.n_predicted, end.slot}) {
    require(!n || *n >= 0, "no negative number");
  }
}

void read_answer(std::size_t cut, const std::string& text) {
  check_end(read_answer_end(text));
  check_end(read_answer_end({}, text));
  check_end(read_answer_end({}, "event: message_start\ndata: " + text + "\n\n"));
  const Json object = Json::parse(text, nullptr, false);
  if (!object.is_object() || !object.contains("timings")) return;
  const Json& timings = object.at("timings");
  if (!timings.is_object() || !timings.contains("cache_n")) return;
  const Json& n = timings.at("cache_n");
  if (!n.is_number_unsigned() || n.get<std::uint64_t>() > 1000000) return;
  // As a server writes it: at once, and as the last event.
  const std::string written = object.dump();
  const auto right = n.get<std::int64_t>();
  require(read_answer_end(written).n_reused == right, "the object's own field counts");
  require(read_answer_end("data: " + written + "\n\ndata: [DONE]\n\n").n_reused == right,
          "in a stream, too");
  const AnswerEnd rest = read_answer_end(std::string_view(written).substr(cut % written.size()));
  check_end(rest);
  require(!rest.n_reused || *rest.n_reused == right || object.contains("usage"),
          "a cut answer says the same, or less");
  const std::string other = R"(data: {"type":"message_start","message":{"usage":)"
                            R"({"cache_read_input_tokens":1000001,"input_tokens":1}}})"
                            "\n\n";
  require(read_answer_end(written, other).n_reused == right, "the end counts before the beginning");
}

}  // namespace
}  // namespace tqcache::serve

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  fuzz::Input input(fuzz::view_of(data, size));
  const unsigned choice = input.take<std::uint8_t>();
  if (choice < 64) {
    serve::read_target_of(serve::text_of(input.rest()));
  } else if (choice < 160) {
    serve::read_body(serve::text_of(input.rest()));
  } else {
    const std::size_t cut = input.take<std::uint8_t>();
    serve::read_answer(cut, serve::text_of(input.rest()));
  }
  return 0;
}
