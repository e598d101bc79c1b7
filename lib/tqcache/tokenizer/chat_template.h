#pragma once
// tokenizer/chat_template.h: conversations written in the chat format of a model.
//
// A model's files hold its template as a Jinja program. It is never run: the families that there
// are differ in a few marks and spaces, so the program is recognized by what it contains, and the
// family's own form is written (docs/reference/tokenizers.md has them all). An unknown
// template is refused; a format can be chosen by name instead.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/tokenizer/tokenizer.h"

namespace tqcache::tokenizer {

enum class ChatRole { kSystem, kUser, kAssistant };

struct ChatMessage {
  ChatRole role;
  std::string text;
};

// A text, and the parts of it that somebody said: marks spelled out there are no marks, so nobody
// can close their own turn and speak for the model.
struct ChatText {
  std::string text;
  std::vector<Tokenizer::TextRange> plain;
};

// The marks of a family. Where an end token, like </s>, is a part of one, it stands there by name.
struct ChatFormat {
  std::string name;
  bool begins_with_token = false;  // the tokenizer's token for the beginning of a text
  std::string system_open;
  std::string system_close;
  bool system_in_user = false;  // not a turn of its own: the first user's turn begins with it
  bool has_system = true;
  bool always_system = false;  // a system turn is there even if nothing is said in it
  std::string user_open;
  std::string user_close;
  std::string assistant_open;  // of an answer that is known
  std::string assistant_close;
  std::string asks;         // after which the model answers
  std::string asks_silent;  // the same, telling it not to think first; empty: no such way
  std::string end_token;    // with which an answer ends
  std::string turn_mark;    // what every turn has: how one that is open is known
  bool trims = false;       // white space around texts of user and model is left out
  bool trims_system = false;
  std::string default_system;  // said when nothing else is
};

class ChatTemplate {
 public:
  // Errors: kInvalidArgument; the message has the names that there are.
  static Result<ChatTemplate> by_name(std::string_view name);
  // Safe for untrusted input. Errors: kUnsupported, with the names.
  static Result<ChatTemplate> recognize(std::string_view jinja);

  // "chatml, gemma, ..."
  static std::string names();

  const ChatFormat& format() const { return format_; }

  struct RenderOptions {
    bool begins = true;         // a conversation begins, instead of going on
    bool asks = true;           // the model is to answer
    bool thinks = true;         // it may think first, if it does that
    std::string begin_token{};  // the name of the tokenizer's, empty when it has none
  };

  // Errors: kUnsupported when there is a system message and the family has none, or cannot be told
  //         not to think; kInvalidArgument when a system message is not the first of all.
  Result<ChatText> render(std::span<const ChatMessage> messages,
                          const RenderOptions& options) const;

 private:
  explicit ChatTemplate(ChatFormat format) : format_(std::move(format)) {}

  ChatFormat format_;
};

// The known chat formats, which docs/reference/tokenizers.md describes.
std::vector<ChatFormat> chat_formats();

// Recognizes the format of a Jinja template; nullopt when it is unknown. Safe for untrusted input.
std::optional<ChatFormat> recognize_chat_format(std::string_view jinja);

}  // namespace tqcache::tokenizer
