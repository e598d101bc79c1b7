#pragma once
// server/tqcache/serve/embedded/request_fields.h: reader of the fields of a JSON object that a
// client sent, and of the parts that dialects have in common.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/json.h"
#include "tqcache/serve/embedded/client_request.h"
#include "tqcache/serve/embedded/parameters.h"

namespace tqcache::serve {

// Reads the fields of one object and keeps the first error. A field that is null counts as absent,
// and so does one that the table of parameters does not call "read": finish() says what becomes of
// that.
//
//   FieldReader fields(object, Dialect::kChat, "");
//   const bool stream = fields.flag("stream", false);
//   fields.finish();
//   return fields.take_error();
class FieldReader {
 public:
  // `place` comes before each name: "messages[0].". Without a dialect every field that is asked for
  // is read, and others are unknown. `object` must outlive this.
  FieldReader(const Json& object, std::optional<Dialect> dialect, std::string place)
      : object_(object), dialect_(dialect), place_(std::move(place)) {}

  const Json* find(const char* key);
  bool flag(const char* key, bool fallback);
  std::string text(const char* key, std::string fallback);
  std::optional<std::int64_t> whole(const char* key, std::int64_t least, std::int64_t most);
  float number(const char* key, float least, float most, float fallback);

  // The fields of an object in this one. It must be finished, and given back to adopt().
  FieldReader inside(const Json& object, const std::string& name) const {
    return {object, dialect_, place_ + name + "."};
  }
  void adopt(FieldReader& inner) {
    if (!error_) error_ = inner.take_error();
  }

  void fail(const std::string& key, const std::string& message, std::string code = {});
  // Refuses every field that was not asked for and is not ignored.
  void finish();

  std::optional<Dialect> dialect() const { return dialect_; }
  bool failed() const { return error_.has_value(); }
  MaybeApiError take_error() { return std::move(error_); }

 private:
  bool is_read(std::string_view key) const;
  void finish_field(const std::string& key, const Json& value);

  const Json& object_;
  std::optional<Dialect> dialect_;
  std::string place_;
  std::set<std::string, std::less<>> known_;
  MaybeApiError error_;
};

// The object that a body is; where asked for, also with the client's order of keys, which templates
// show.
MaybeApiError parse_body(std::string_view body, Json& out,
                         nlohmann::ordered_json* ordered = nullptr);

// Sampling, limits and stop strings, by the names of all dialects.
void read_settings(FieldReader& fields, GenerationSettings& settings);

// Whether to think, by the names of all dialects.
Thinking read_thinking(FieldReader& fields);

// A string, or a list of parts that are text, which are joined.
std::string read_text_parts(FieldReader& fields, const char* key);

// Calls read(message, index) for each object of the list `key`, of 1 to 16,384.
void read_each_message(FieldReader& fields, const char* key,
                       const std::function<void(FieldReader& message, std::size_t index)>& read);

// One {"role", "content"}.
void read_message(FieldReader& fields, std::vector<tokenizer::ChatMessage>& messages);

// The list `key` of such.
void read_messages(FieldReader& fields, const char* key,
                   std::vector<tokenizer::ChatMessage>& messages);

// Whether the model may call tools: "tool_choice" of OpenAI.
bool read_tool_choice(FieldReader& fields);

std::string json_text(const nlohmann::ordered_json& json);

// Whether it is the text of a JSON object.
bool is_json_object(std::string_view text);

// The list "tools" of {"type", "name", "description", `schema_key`}, as OpenAI's chat completions
// have it, which chat templates know; empty: none. `ordered`: the request with the client's order
// of keys, which templates show. `type`: the only one, and the default.
std::string read_flat_tools(FieldReader& fields, const nlohmann::ordered_json& ordered,
                            const char* type, const char* schema_key);

// A list of token ids.
void read_ids(FieldReader& fields, const char* key, const Json& list,
              std::vector<std::int32_t>& ids);

}  // namespace tqcache::serve
