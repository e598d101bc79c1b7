#pragma once
// server/tqcache/serve/embedded/answer_writer.h: writers of an answer in each dialect, whole or as
// a stream.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "tqcache/serve/embedded/client_request.h"
#include "tqcache/serve/embedded/engine.h"

namespace tqcache::serve {

// "memory", "store", "nothing"
const char* source_name(PrefixSource source);

// OpenAI's chat completions, and completions.
class CompletionWriter {
 public:
  CompletionWriter(bool is_chat, std::string model, bool with_usage);

  std::string whole(const Answer& answer) const;
  // A stream: begin() once the prompt was read, the pieces of thoughts and text, and end() or
  // fail().
  std::string begin(const Answer& so_far) const;
  std::string piece(std::string_view text) const;
  std::string thought(std::string_view text) const;
  std::string end(const Answer& answer) const;
  std::string fail(const Answer& answer, const ApiError& error) const;

 private:
  nlohmann::ordered_json head(bool is_chunk) const;
  std::string chunk(std::string_view text, const nlohmann::ordered_json& delta,
                    const Answer* finished) const;

  bool is_chat_;
  std::string id_;
  std::string model_;
  bool with_usage_;
  std::int64_t created_;
};

// Anthropic's messages.
class MessagesWriter {
 public:
  explicit MessagesWriter(std::string model);

  std::string whole(const Answer& answer) const;
  std::string begin(const Answer& so_far);
  std::string piece(std::string_view text);
  std::string thought(std::string_view text);
  std::string end(const Answer& answer);
  std::string fail(const Answer& answer, const ApiError& error) const;

 private:
  nlohmann::ordered_json message(const Answer& answer) const;
  std::string open_block(const nlohmann::ordered_json& block);
  std::string close_block();

  std::string id_;
  std::string model_;
  std::string open_;             // the type of the block that was begun
  std::int64_t next_block_ = 0;  // counts those that were closed
};

// OpenAI's responses.
class ResponsesWriter {
 public:
  ResponsesWriter(const GenerationSettings& settings, std::string model);

  std::string whole(const Answer& answer) const;
  std::string begin(const Answer& so_far);
  std::string piece(std::string_view text);
  std::string thought(std::string_view text);
  std::string end(const Answer& answer);
  std::string fail(const Answer& answer, const ApiError& error);

 private:
  // The text, if there is any, or nothing else.
  bool has_message(const Answer& answer) const;
  nlohmann::ordered_json message(const std::string& text, const char* status) const;
  nlohmann::ordered_json reasoning(const std::string& thoughts) const;
  std::string open_item(const std::string& type);
  std::string close_item(const char* status);
  std::string call_events(const ToolCall& call);
  // `status`: "in_progress", "completed", "incomplete", "failed"
  nlohmann::ordered_json response(const Answer& answer, const char* status) const;
  std::string event(const char* type, const nlohmann::ordered_json& fields);

  std::string id_;
  std::string item_id_;
  std::string thoughts_id_;
  std::string model_;
  GenerationSettings settings_;
  std::int64_t created_;
  std::int64_t next_event_ = 0;
  std::string open_;            // the type of the item that was begun
  std::int64_t next_item_ = 0;  // counts those that were closed
  std::string shown_;           // of the item that was begun
};

using AnswerWriter = std::variant<CompletionWriter, MessagesWriter, ResponsesWriter>;
// `model`: the one that answers, whatever the client has asked for.
AnswerWriter make_writer(Dialect dialect, const GenerationSettings& settings, std::string model);

}  // namespace tqcache::serve
