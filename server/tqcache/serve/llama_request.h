#pragma once
// server/tqcache/serve/llama_request.h: what llama-server reads in a request: path, route and body.
//
// A proxy judges a request, and llama-server acts on it. If the two read it differently, the
// judgment is about another request. So a request is accepted only if it has one meaning, and what
// is forwarded is written from what was judged.
//
//   Target target;
//   if (const auto refusal = read_target(request.target, target)) return answer(*refusal);
//   const Route route = route_of(request.method, target.path);
//
// llama-server reads paths with cpp-httplib and bodies with nlohmann::json.
// Source: ggml-org/llama.cpp tools/server, build b11549.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/serve/http_message.h"

namespace tqcache::serve {

// --- Path

struct Target {
  std::string path;   // decoded; this is judged
  std::string query;  // as it was sent, without "?"
  std::string text;   // path and query as they are forwarded: no byte of the path is escaped
};

// Reads the target of a request: a path, and maybe a query.
//
// The path may have the characters of RFC 3986 (pchar and "/"), and escapes %XX of these but "/".
// An escape is replaced by its character, so that no reader has to decode the forwarded path.
// Refused (400): every other escape (%uXXXX, which cpp-httplib decodes; %00; %2F; %25, which a
// second reader would decode again) and every other byte; an empty segment, and segments "." and
// ".."; a fragment. In the query: bytes that are not printable ASCII, "#", and a "%" without two
// hexadecimal digits.
std::optional<Refusal> read_target(std::string_view text, Target& target);

// --- Route

// The requests that generate text. The prompt of kInfill is not known.
enum class Api { kNone, kChat, kCompletion, kResponses, kMessages, kInfill };

enum class RouteKind {
  kUnknown,    // not of llama-server, or of another version. Refused while tenants are apart
  kGenerates,  // text, from a prompt that is known (Route::api)
  kComputes,   // with the model, in a slot, from a prompt that is not known
  kHarmless,   // changes nothing, and tells nothing of other clients
  kShared,     // tells of other clients, or changes what they get: an administrator's
};

struct Route {
  RouteKind kind = RouteKind::kUnknown;
  Api api = Api::kNone;
  // Whether "id_slot" and "cache_prompt" of the body count. If not, llama-server chooses a slot,
  // and reuses what any client has left there.
  bool reads_slot_fields = false;
  // Afterwards the model, its adapters or its properties may be others.
  bool changes_model = false;
};

// The route of a request. `path` is Target::path. `prefix` is that of llama-server's --api-prefix;
// a path without it is unknown, as a path with a prefix is where none was given.
//
// HEAD is as GET, and OPTIONS of a known path is harmless.
Route route_of(std::string_view method, std::string_view path, std::string_view prefix = {});

// --- Body

// JSON that is nested more deeply is refused. Writing or copying it takes a call for each level.
constexpr int kDeepestJson = 256;

// A body that is one JSON object, and the places of its fields. `text` stays as it was sent.
class JsonBody {
 public:
  // Refused (400): what is not one object; anything but white space before or behind it (NUL, too,
  // which nlohmann::json takes as the end, and a byte order mark); text that is not UTF-8; a key
  // that the object has twice; more than 1,024 keys; more than
  // kDeepestJson levels.
  static std::optional<Refusal> read(std::string text, JsonBody& body);

  const std::string& text() const { return text_; }
  // A field's value as JSON; nullopt: there is no such field.
  std::optional<std::string_view> value(std::string_view key) const;

  // The body with these fields, whose values are JSON. A field that is there gets the new value in
  // its place, others are put in front. So each key stays the only one of its name.
  std::string with(const std::vector<std::pair<std::string, std::string>>& fields) const;

 private:
  struct Field {
    std::string key;
    std::size_t begin, end;  // of the value in text_
  };

  std::string text_ = "{}";
  std::size_t open_ = 0;  // the place of the first brace
  std::vector<Field> fields_;
};

// Whether the client chooses a slot itself. {"id_slot": -1} is llama-server's "any".
bool chooses_slot(const JsonBody& body);

// The body for this slot. `may_reuse`: whether tokens that the slot holds may be reused.
// nullopt: the client chooses a slot itself, so this request is not steered.
std::optional<std::string> with_slot(const JsonBody& body, std::int64_t slot, bool may_reuse);

// The body with which llama-server chooses the slot, and takes no token from it.
std::string without_reuse(const JsonBody& body);

}  // namespace tqcache::serve
