#include "tqcache/tokenizer/chat_formats.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tqcache::tokenizer {
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

// Mistral's forms differ in spaces alone.
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

// A Jinja program, in which a line end in a string is a line end.
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
  // Whether a string of the program ends with it, or is it, in quotes of either kind.
  bool ends_string(std::string_view part) const {
    return has(std::string(part) + "'") || has(std::string(part) + "\"");
  }
  bool is_string(std::string_view part) const {
    return has("'" + std::string(part) + "'") || has("\"" + std::string(part) + "\"");
  }
  // What stands between two marks in the same string. Requires: close begins with '<'.
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
  // Since 3.1 a system turn is always there. The date is the template's own, when nobody gives one.
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
