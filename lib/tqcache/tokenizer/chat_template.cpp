#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {

namespace {

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(leading_white_space(text));
  return text.substr(0, text.size() - trailing_white_space(text));
}

// Writes messages in order.
class Writer {
 public:
  Writer(const ChatFormat& format, const ChatTemplate::RenderOptions& options)
      : format_(format), options_(options) {}

  Result<ChatText> write(std::span<const ChatMessage> messages) {
    if (options_.begins && format_.begins_with_token) mark(options_.begin_token);
    TQC_TRY_ASSIGN(messages, take_system(messages));
    bool is_open = options_.in_user_turn;
    for (const ChatMessage& message : messages) {
      TQC_TRY(write_turn(message, is_open));
      is_open = false;
    }
    if (system_) {
      mark(format_.user_open);
      write_system();
    }
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

  // Takes the system message, or the family's default.
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

  // Inside a user turn.
  void write_system() {
    mark(format_.system_open);
    say(*system_, format_.trims_system);
    mark(format_.system_close);
    system_.reset();
  }

  Result<void> write_turn(const ChatMessage& message, bool is_open) {
    if (message.role == ChatRole::kSystem) {
      return Error{ErrorCode::kInvalidArgument, "chat: a system message behind others"};
    }
    const bool is_user = message.role == ChatRole::kUser;
    if (!is_open) mark(is_user ? format_.user_open : format_.assistant_open);
    if (is_user && system_) write_system();
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
  std::optional<std::string> system_;  // inserted into the first user turn
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

namespace {

ChatFormat chatml() {
  ChatFormat format;
  format.name = "chatml";
  format.system_open = "<|im_start|>system\n";
  format.user_open = "<|im_start|>user\n";
  format.assistant_open = format.asks = "<|im_start|>assistant\n";
  format.asks_silent = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
  format.system_close = format.user_close = format.assistant_close = "<|im_end|>\n";
  format.end_token = "<|im_end|>";
  format.turn_mark = "<|im_start|>";
  return format;
}

ChatFormat gemma() {
  ChatFormat format;
  format.name = "gemma";
  format.begins_with_token = true;
  format.system_in_user = true;
  format.system_close = "\n\n";
  format.user_open = "<start_of_turn>user\n";
  format.assistant_open = format.asks = "<start_of_turn>model\n";
  format.user_close = format.assistant_close = "<end_of_turn>\n";
  format.end_token = "<end_of_turn>";
  format.turn_mark = "<start_of_turn>";
  format.trims = true;
  return format;
}

ChatFormat llama2() {
  ChatFormat format;
  format.name = "llama2";
  format.system_in_user = true;
  format.system_open = "<<SYS>>\n";
  format.system_close = "\n<</SYS>>\n\n";
  format.user_open = "<s>[INST] ";
  format.user_close = " [/INST]";
  format.assistant_open = " ";
  format.assistant_close = " </s>";
  format.end_token = "</s>";
  format.turn_mark = "[INST]";
  format.trims = true;
  return format;
}

ChatFormat llama3() {
  ChatFormat format;
  format.name = "llama3";
  format.begins_with_token = true;
  format.system_open = "<|start_header_id|>system<|end_header_id|>\n\n";
  format.user_open = "<|start_header_id|>user<|end_header_id|>\n\n";
  format.assistant_open = format.asks = "<|start_header_id|>assistant<|end_header_id|>\n\n";
  format.system_close = format.user_close = format.assistant_close = "<|eot_id|>";
  format.end_token = "<|eot_id|>";
  format.turn_mark = "<|start_header_id|>";
  format.trims = format.trims_system = true;
  return format;
}

ChatFormat phi3() {
  ChatFormat format;
  format.name = "phi3";
  format.system_open = "<|system|>\n";
  format.user_open = "<|user|>\n";
  format.assistant_open = format.asks = "<|assistant|>\n";
  format.system_close = format.user_close = format.assistant_close = "<|end|>\n";
  format.end_token = "<|end|>";
  format.turn_mark = "<|assistant|>";
  return format;
}

// Mistral's formats differ only in spaces.
ChatFormat mistral(const char* name, const char* open, const char* close, const char* answer) {
  ChatFormat format;
  format.name = name;
  format.begins_with_token = true;
  format.system_in_user = true;
  format.system_close = "\n\n";
  format.user_open = open;
  format.user_close = close;
  format.assistant_open = answer;
  format.assistant_close = "</s>";
  format.end_token = "</s>";
  format.turn_mark = "[INST]";
  return format;
}

std::vector<ChatFormat> all_formats() {
  return {chatml(),
          gemma(),
          llama2(),
          llama3(),
          mistral("mistral", "[INST] ", " [/INST]", ""),
          mistral("mistral-v1", " [INST] ", " [/INST]", " "),
          mistral("mistral-v3", "[INST] ", "[/INST]", " "),
          mistral("mistral-tekken", "[INST]", "[/INST]", ""),
          phi3()};
}

ChatFormat format_of(std::string_view name) {
  const std::vector<ChatFormat> formats = all_formats();
  return *std::find_if(formats.begin(), formats.end(),
                       [&](const ChatFormat& format) { return format.name == name; });
}

// A Jinja program in which a line end inside a string is a line end.
class Jinja {
 public:
  explicit Jinja(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool is_line_end = text.substr(i, 2) == "\\n";
      text_ += is_line_end ? '\n' : text[i];
      i += is_line_end ? 1 : 0;
    }
  }

  bool has(std::string_view part) const { return text_.find(part) != std::string::npos; }
  // Returns whether a string of the program, in either kind of quotes, is or ends with `part`.
  bool ends_string(std::string_view part) const {
    return has(std::string(part) + "'") || has(std::string(part) + "\"");
  }
  bool is_string(std::string_view part) const {
    return has("'" + std::string(part) + "'") || has("\"" + std::string(part) + "\"");
  }
  // The text between two marks in the same string. Requires: close begins with '<'.
  std::string text_between(std::string_view open, std::string_view close) const;
  Jinja behind_last(std::string_view part) const {
    const std::size_t at = text_.rfind(part);
    Jinja rest("");
    if (at != std::string::npos) rest.text_ = text_.substr(at);
    return rest;
  }

 private:
  std::string text_;
};

std::string Jinja::text_between(std::string_view open, std::string_view close) const {
  for (std::size_t at = text_.find(open); at != std::string::npos; at = text_.find(open, at + 1)) {
    const std::size_t begin = at + open.size();
    const std::size_t end = text_.find_first_of("'\"{}<", begin);
    if (end == std::string::npos) return {};
    if (end > begin && text_.compare(end, close.size(), close) == 0) {
      return text_.substr(begin, end - begin);
    }
  }
  return {};
}

ChatFormat recognize_chatml(const Jinja& jinja) {
  ChatFormat format = format_of("chatml");
  format.default_system = jinja.text_between("<|im_start|>system\n", "<|im_end|>");
  if (jinja.behind_last("add_generation_prompt").ends_string("<think>\n")) {
    format.asks += "<think>\n";
  }
  if (!jinja.has("enable_thinking")) format.asks_silent.clear();
  return format;
}

ChatFormat recognize_llama3(const Jinja& jinja) {
  ChatFormat format = format_of("llama3");
  if (!jinja.has("Cutting Knowledge Date")) return format;
  // Since 3.1 a system turn is always present. The date is the template's default.
  format.system_open += "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  format.always_system = true;
  return format;
}

ChatFormat recognize_gemma(const Jinja& jinja) {
  ChatFormat format = format_of("gemma");
  format.has_system = !jinja.has("System role not supported");
  return format;
}

ChatFormat recognize_mistral(const Jinja& jinja) {
  const char* name = "mistral-tekken";
  if (jinja.is_string(" [INST] ")) {
    name = "mistral-v1";
  } else if (jinja.ends_string("[INST] ")) {
    name = jinja.has(" [/INST]") ? "mistral" : "mistral-v3";
  }
  ChatFormat format = format_of(name);
  if (jinja.has("eos_token + ' '")) format.assistant_close += ' ';
  return format;
}

}  // namespace

std::vector<ChatFormat> chat_formats() { return all_formats(); }

std::optional<ChatFormat> recognize_chat_format(std::string_view text) {
  const Jinja jinja(text);
  const auto marked = [&](ChatFormat format) {
    format.begins_with_token = jinja.has("bos_token") && format.name != "llama2";
    return format;
  };
  if (jinja.has("<|im_sep|>") || jinja.has("[SYSTEM_PROMPT]")) return std::nullopt;
  if (jinja.has("<|im_start|>") && jinja.has("<|im_end|>")) return marked(recognize_chatml(jinja));
  if (jinja.has("<|start_header_id|>")) return marked(recognize_llama3(jinja));
  if (jinja.has("<start_of_turn>")) return marked(recognize_gemma(jinja));
  if (jinja.has("<|user|>") && jinja.has("<|end|>")) return marked(format_of("phi3"));
  if (!jinja.has("[INST]")) return std::nullopt;
  return marked(jinja.has("<<SYS>>") ? format_of("llama2") : recognize_mistral(jinja));
}

}  // namespace tqcache::tokenizer
