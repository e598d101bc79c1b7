#include "tqcache/tokenizer/chat_template.h"

#include <optional>
#include <utility>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/chat_formats.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {
namespace {

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(leading_white_space(text));
  return text.substr(0, text.size() - trailing_white_space(text));
}

// Writes messages one after another.
class Writer {
 public:
  Writer(const ChatFormat& format, const ChatTemplate::RenderOptions& options)
      : format_(format), options_(options) {}

  Result<ChatText> write(std::span<const ChatMessage> messages) {
    if (options_.begins && format_.begins_with_token) mark(options_.begin_token);
    TQC_TRY_ASSIGN(messages, take_system(messages));
    for (const ChatMessage& message : messages) TQC_TRY(write_turn(message));
    if (options_.asks) TQC_TRY(ask());
    return std::move(out_);
  }

 private:
  void mark(std::string_view text) { out_.text += text; }

  void say(std::string_view text, bool trims) {
    if (trims) text = trimmed(text);
    if (text.empty()) return;
    out_.plain.push_back({out_.text.size(), out_.text.size() + text.size()});
    out_.text += text;
  }

  // The system's message, or what the family says in its place.
  Result<std::span<const ChatMessage>> take_system(std::span<const ChatMessage> messages) {
    const bool has_message = !messages.empty() && messages[0].role == ChatRole::kSystem;
    std::string text = has_message ? messages[0].text : format_.default_system;
    if (has_message) messages = messages.subspan(1);
    if (!has_message && (!options_.begins || (text.empty() && !format_.always_system))) {
      return messages;
    }
    if (!format_.has_system) {
      return Error{ErrorCode::kUnsupported, "the model's chat template has no system turn"};
    }
    if (format_.system_in_user) {
      system_ = std::move(text);
      return messages;
    }
    mark(format_.system_open);
    say(text, format_.trims_system);
    mark(format_.system_close);
    return messages;
  }

  Result<void> write_turn(const ChatMessage& message) {
    if (message.role == ChatRole::kSystem) {
      return Error{ErrorCode::kInvalidArgument, "chat: a system message behind others"};
    }
    const bool is_user = message.role == ChatRole::kUser;
    mark(is_user ? format_.user_open : format_.assistant_open);
    if (is_user && system_) {
      mark(format_.system_open);
      say(*system_, format_.trims_system);
      mark(format_.system_close);
      system_.reset();
    }
    say(message.text, format_.trims);
    mark(is_user ? format_.user_close : format_.assistant_close);
    return {};
  }

  Result<void> ask() {
    if (!options_.thinks && format_.asks_silent.empty()) {
      return Error{ErrorCode::kUnsupported,
                   "the model's chat template has no way to answer without thinking first"};
    }
    mark(options_.thinks ? format_.asks : format_.asks_silent);
    return {};
  }

  const ChatFormat& format_;
  const ChatTemplate::RenderOptions& options_;
  std::optional<std::string> system_;  // waits for the first user's turn
  ChatText out_;
};

}  // namespace

Result<ChatTemplate> ChatTemplate::by_name(std::string_view name) {
  for (const ChatFormat& format : chat_formats()) {
    if (format.name == name) return ChatTemplate(format);
  }
  return Error{ErrorCode::kInvalidArgument,
               "chat template " + tensors::printable_name(name) + ": none of " + names()};
}

Result<ChatTemplate> ChatTemplate::recognize(std::string_view jinja) {
  if (std::optional<ChatFormat> format = recognize_chat_format(jinja)) {
    return ChatTemplate(std::move(*format));
  }
  return Error{ErrorCode::kUnsupported, "the model's chat template is none of " + names()};
}

std::string ChatTemplate::names() {
  std::string all;
  for (const ChatFormat& format : chat_formats()) {
    all.append(all.empty() ? "" : ", ").append(format.name);
  }
  return all;
}

Result<ChatText> ChatTemplate::render(std::span<const ChatMessage> messages,
                                      const RenderOptions& options) const {
  return Writer(format_, options).write(messages);
}

}  // namespace tqcache::tokenizer
