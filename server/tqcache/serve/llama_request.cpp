#include "tqcache/serve/llama_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

namespace tqcache::serve {
namespace {

using Json = nlohmann::json;

Refusal refused(std::string message) { return {400, std::move(message)}; }

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// pchar of RFC 3986, section 3.3, without escapes.
bool is_path_character(char c) {
  constexpr std::string_view kMarks = "-._~!$&'()*+,;=:@";
  return is_letter_or_digit(c) || (c != '\0' && kMarks.find(c) != std::string_view::npos);
}

// The value of a hexadecimal digit; -1: not one.
int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte of the escape at text[i]; -1: not %XX.
int escaped_byte(std::string_view text, std::size_t i) {
  if (text.size() - i < 3) return -1;
  const int high = hex_value(text[i + 1]), low = hex_value(text[i + 2]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

std::optional<Refusal> read_target(std::string_view text, Target& target) {
  const std::size_t mark = text.find('?');
  const std::string_view raw = text.substr(0, mark);
  const bool has_query = mark != std::string_view::npos;
  const std::string_view query = has_query ? text.substr(mark + 1) : std::string_view();
  if (!raw.starts_with('/')) return refused("the path does not begin with \"/\"");

  std::string path;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] == '%') {
      const int byte = escaped_byte(raw, i);
      if (byte < 0 || byte > 0x7f || !is_path_character(static_cast<char>(byte))) {
        return refused("the path has an escape (%) that is refused: send the character itself");
      }
      path += static_cast<char>(byte);
      i += 2;
    } else if (raw[i] == '/' || is_path_character(raw[i])) {
      path += raw[i];
    } else {
      return refused("the path has a character that does not belong into a path");
    }
  }
  // Dots may have been escaped, so segments are looked at when they are decoded.
  for (std::size_t begin = 1; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view segment = std::string_view(path).substr(begin, end - begin);
    // The path "/", and a slash at the end, are no empty segments.
    if (segment == "." || segment == ".." || (segment.empty() && end < path.size())) {
      return refused("the path has an empty segment, \".\" or \"..\": send it without them");
    }
    begin = end + 1;
  }
  for (std::size_t i = 0; i < query.size(); ++i) {
    const bool is_printable = query[i] > ' ' && query[i] <= '~' && query[i] != '#';
    if (!is_printable || (query[i] == '%' && escaped_byte(query, i) < 0)) {
      return refused("the query is not well-formed: escape other characters as %XX");
    }
  }
  target.path = path;
  target.query = query;
  target.text = has_query ? fmt::format("{}?{}", path, query) : path;
  return std::nullopt;
}

namespace {

struct KnownRoute {
  std::string_view method, path;
  Route route;
};

constexpr Route kHarmless = {.kind = RouteKind::kHarmless};
constexpr Route kShared = {.kind = RouteKind::kShared};
constexpr Route kChangesModel = {.kind = RouteKind::kShared, .changes_model = true};
constexpr Route kComputes = {.kind = RouteKind::kComputes};

constexpr Route generates(Api api) {
  // The conversion of Anthropic's requests drops the fields that it does not know.
  return {.kind = RouteKind::kGenerates, .api = api, .reads_slot_fields = api != Api::kMessages};
}

constexpr KnownRoute kRoutes[] = {
    {"POST", "/v1/chat/completions", generates(Api::kChat)},
    {"POST", "/chat/completions", generates(Api::kChat)},
    {"POST", "/api/chat", generates(Api::kChat)},  // of older builds
    {"POST", "/completion", generates(Api::kCompletion)},
    {"POST", "/completions", generates(Api::kCompletion)},
    {"POST", "/v1/completions", generates(Api::kCompletion)},
    {"POST", "/v1/responses", generates(Api::kResponses)},
    {"POST", "/responses", generates(Api::kResponses)},
    {"POST", "/v1/messages", generates(Api::kMessages)},
    {"POST",
     "/infill",
     {.kind = RouteKind::kComputes, .api = Api::kInfill, .reads_slot_fields = true}},

    {"POST", "/embedding", kComputes},
    {"POST", "/embeddings", kComputes},
    {"POST", "/v1/embeddings", kComputes},
    {"POST", "/rerank", kComputes},
    {"POST", "/reranking", kComputes},
    {"POST", "/v1/rerank", kComputes},
    {"POST", "/v1/reranking", kComputes},
    {"POST", "/v1/audio/transcriptions", kComputes},  // the body is multipart/form-data
    {"POST", "/audio/transcriptions", kComputes},
    {"POST", "/v1/systemone", kComputes},

    {"GET", "/", kHarmless},
    {"GET", "/health", kHarmless},
    {"GET", "/v1/health", kHarmless},
    {"GET", "/metrics", kHarmless},
    {"GET", "/props", kHarmless},
    {"GET", "/models", kHarmless},
    {"GET", "/v1/models", kHarmless},
    {"GET", "/lora-adapters", kHarmless},
    {"POST", "/tokenize", kHarmless},
    {"POST", "/detokenize", kHarmless},
    {"POST", "/apply-template", kHarmless},
    {"POST", "/chat/completions/input_tokens", kHarmless},
    {"POST", "/v1/chat/completions/input_tokens", kHarmless},
    {"POST", "/responses/input_tokens", kHarmless},
    {"POST", "/v1/responses/input_tokens", kHarmless},
    {"POST", "/v1/messages/count_tokens", kHarmless},

    {"GET", "/slots", kShared},
    // Ends the thoughts of another request, by its id.
    {"POST", "/v1/chat/completions/control", kShared},
    // What a request has generated is read again, by an id that its client chose.
    {"GET", "/v1/stream", kShared},
    {"DELETE", "/v1/stream", kShared},
    {"GET", "/v1/streams", kShared},
    {"POST", "/v1/streams/lookup", kShared},
    {"GET", "/tools", kShared},
    {"POST", "/tools", kShared},
    {"GET", "/cors-proxy", kShared},
    {"POST", "/cors-proxy", kShared},
    {"GET", "/models/sse", kShared},
    {"POST", "/props", kChangesModel},
    {"POST", "/lora-adapters", kChangesModel},
    {"POST", "/models", kChangesModel},
    {"DELETE", "/models", kChangesModel},
    {"POST", "/models/load", kChangesModel},
    {"POST", "/models/unload", kChangesModel},
};

// A file of llama-server's web page, or of the folder of its --path.
bool is_page_file(std::string_view path) {
  constexpr std::array<std::string_view, 11> kExtensions = {
      ".html", ".js",          ".css", ".svg",   ".png", ".ico",
      ".json", ".webmanifest", ".map", ".woff2", ".txt"};
  return std::ranges::any_of(kExtensions,
                             [&](std::string_view end) { return path.ends_with(end); });
}

// What comes behind this beginning, if that is one segment.
bool is_one_below(std::string_view path, std::string_view begin) {
  return path.size() > begin.size() && path.starts_with(begin) &&
         path.find('/', begin.size()) == std::string_view::npos;
}

}  // namespace

Route route_of(std::string_view method, std::string_view path, std::string_view prefix) {
  if (!path.starts_with(prefix)) return {};
  path.remove_prefix(prefix.size());
  if (method == "HEAD") method = "GET";
  bool is_known_path = false;
  for (const KnownRoute& known : kRoutes) {
    if (known.path != path) continue;
    if (known.method == method) return known.route;
    is_known_path = true;
  }
  if (method == "POST" && is_one_below(path, "/slots/")) return kShared;
  if ((method == "GET" || method == "DELETE") && is_one_below(path, "/v1/stream/")) return kShared;
  if (method == "GET" && path.starts_with('/') && is_page_file(path)) return kHarmless;
  return method == "OPTIONS" && is_known_path ? kHarmless : Route{};
}

namespace {

constexpr std::size_t kMostFields = 1024;

// A value takes many times its bytes when it is read (an empty list of lists, for instance).
constexpr std::size_t kMostValues = std::size_t{1} << 20;

// Looks at nothing but how many values there are, and how deep they are nested.
class SizeCheck : public nlohmann::json_sax<Json> {
 public:
  bool is_too_deep() const { return depth_ > kDeepestJson; }
  bool has_too_many() const { return n_values_ > kMostValues; }

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return count(); }
  bool key(string_t&) override { return true; }
  bool start_object(std::size_t) override { return count() && ++depth_ <= kDeepestJson; }
  bool start_array(std::size_t) override { return count() && ++depth_ <= kDeepestJson; }
  bool end_object() override { return --depth_ >= 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  bool count() { return ++n_values_ <= kMostValues; }

  int depth_ = 0;
  std::size_t n_values_ = 0;
};

// The functions below walk over text that is known to be JSON.

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

std::size_t skip_space(std::string_view text, std::size_t i) {
  while (is_space(text[i])) ++i;
  return i;
}

// Behind the string that begins at `i`.
std::size_t skip_string(std::string_view text, std::size_t i) {
  for (++i; text[i] != '"'; ++i) {
    if (text[i] == '\\') ++i;
  }
  return i + 1;
}

// Behind the value that begins at `i`.
std::size_t skip_value(std::string_view text, std::size_t i) {
  int depth = 0;
  do {
    const char c = text[i];
    if (c == '"') {
      i = skip_string(text, i);
      continue;
    }
    if (depth == 0 && c != '{' && c != '[') return text.find_first_of(",} \t\r\n", i);
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    ++i;
  } while (depth > 0);
  return i;
}

}  // namespace

std::optional<Refusal> JsonBody::read(std::string text, JsonBody& body) {
  const std::size_t open = text.find_first_not_of(" \t\r\n");
  if (open == std::string::npos || text[open] != '{') return refused("the body is no JSON object");
  if (text.find('\0') != std::string::npos) return refused("the body has a NUL byte");
  SizeCheck check;
  if (!Json::sax_parse(text, &check)) {
    if (check.has_too_many()) {
      return refused(fmt::format("the body has more than {} values of JSON", kMostValues));
    }
    return refused(check.is_too_deep()
                       ? fmt::format("the body has more than {} levels of JSON", kDeepestJson)
                       : "the body is not one JSON object in UTF-8");
  }
  std::vector<Field> fields;
  std::set<std::string> keys;
  for (std::size_t i = skip_space(text, open + 1); text[i] != '}';) {
    if (text[i] == ',') i = skip_space(text, i + 1);
    const std::size_t key_end = skip_string(text, i);
    // A key may be written with escapes.
    std::string key = Json::parse(std::string_view(text).substr(i, key_end - i));
    const std::size_t begin = skip_space(text, skip_space(text, key_end) + 1);
    const std::size_t end = skip_value(text, begin);
    if (fields.size() == kMostFields) {
      return refused(fmt::format("the body has more than {} fields", kMostFields));
    }
    if (!keys.insert(key).second) return refused("the body has a field twice: send it once");
    fields.push_back({std::move(key), begin, end});
    i = skip_space(text, end);
  }
  body.text_ = std::move(text);
  body.open_ = open;
  body.fields_ = std::move(fields);
  return std::nullopt;
}

std::optional<std::string_view> JsonBody::value(std::string_view key) const {
  const auto found = std::ranges::find(fields_, key, &Field::key);
  if (found == fields_.end()) return std::nullopt;
  return std::string_view(text_).substr(found->begin, found->end - found->begin);
}

std::string JsonBody::with(const std::vector<std::pair<std::string, std::string>>& fields) const {
  const std::string_view text = text_;
  std::string changed(text.substr(0, open_ + 1));
  bool is_first = true;
  for (const auto& [key, json] : fields) {
    if (value(key)) continue;
    changed += fmt::format("{}{}:{}", is_first ? "" : ",", Json(key).dump(), json);
    is_first = false;
  }
  if (!is_first && !fields_.empty()) changed += ',';
  std::size_t at = open_ + 1;  // up to here the text is in `changed`
  for (const Field& field : fields_) {
    const auto it =
        std::ranges::find_if(fields, [&](const auto& f) { return f.first == field.key; });
    if (it == fields.end()) continue;
    changed += text.substr(at, field.begin - at);
    changed += it->second;
    at = field.end;
  }
  return changed.append(text.substr(at));
}

bool chooses_slot(const JsonBody& body) {
  const auto slot = body.value("id_slot");
  if (!slot || *slot == "null") return false;
  // As a number, however it is written: -1.0 is "any", too.
  double number = 0;
  const auto [end, error] = std::from_chars(slot->data(), slot->data() + slot->size(), number);
  return error != std::errc() || end != slot->data() + slot->size() || number != -1;
}

std::optional<std::string> with_slot(const JsonBody& body, std::int64_t slot, bool may_reuse) {
  if (chooses_slot(body)) return std::nullopt;
  return body.with(
      {{"id_slot", std::to_string(slot)}, {"cache_prompt", may_reuse ? "true" : "false"}});
}

std::string without_reuse(const JsonBody& body) {
  // A slot that the client has chosen is not.
  if (!body.value("id_slot")) return body.with({{"cache_prompt", "false"}});
  return body.with({{"id_slot", "-1"}, {"cache_prompt", "false"}});
}

}  // namespace tqcache::serve
