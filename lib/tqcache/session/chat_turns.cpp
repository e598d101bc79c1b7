#include <algorithm>
#include <utility>

#include "tqcache/session.h"

namespace tqcache::session {
namespace {

using tokenizer::ChatMessage;
using tokenizer::ChatRole;
using tokenizer::ChatTemplate;

Result<ChatTemplate> choose(const tokenizer::Tokenizer& tokenizer, std::string_view name) {
  if (!name.empty()) return ChatTemplate::by_name(name);
  if (!tokenizer.chat_template().empty()) {
    return ChatTemplate::recognize(tokenizer.chat_template());
  }
  if (tokenizer.find_token("<|im_start|>") && tokenizer.find_token("<|im_end|>")) {
    return ChatTemplate::by_name("chatml");
  }
  return Error{ErrorCode::kUnsupported,
               "the model has no chat template and no ChatML tokens: its turns may be one of " +
                   ChatTemplate::names()};
}

// The end token and the text after it, usually a line end.
std::string closing_text(const tokenizer::ChatFormat& format) {
  return format.assistant_close.substr(format.assistant_close.find(format.end_token));
}

}  // namespace

void append_ids(Ids& ids, const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); }

Result<ChatTurns> ChatTurns::make(const tokenizer::Tokenizer& tokenizer, std::string_view name,
                                  std::function<bool()> keep_going) {
  TQC_TRY_ASSIGN(ChatTemplate chosen, choose(tokenizer, name));
  const tokenizer::ChatFormat& format = chosen.format();
  for (const std::string& mark : {format.turn_mark, format.end_token}) {
    const bool may_be_text = mark.starts_with('[');
    if (may_be_text || tokenizer.find_token(mark)) continue;
    return Error{ErrorCode::kUnsupported,
                 "chat template " + format.name + ": the model has no token " + mark};
  }
  const std::int32_t end = *tokenizer.find_token(format.end_token);
  return ChatTurns(tokenizer, std::move(chosen), end, std::move(keep_going));
}

Result<Ids> ChatTurns::encode(const tokenizer::ChatText& text, bool at_beginning) const {
  tokenizer::Tokenizer::EncodeOptions options;
  options.plain = text.plain;
  options.at_beginning = at_beginning;
  options.keep_going = keep_going_;
  return tokenizer_->encode(text.text, options);
}

Result<Ids> ChatTurns::encode_behind(std::span<const std::int32_t> tokens,
                                     const tokenizer::ChatText& text) const {
  const Closing closing = find_closing(tokens);
  tokenizer::ChatText whole{closing.text + text.text, text.plain};
  for (tokenizer::Tokenizer::TextRange& range : whole.plain) {
    range.begin += closing.text.size();
    range.end += closing.text.size();
  }
  TQC_TRY_ASSIGN(Ids ids, encode(whole, tokens.empty()));
  if (closing.has_end) ids.erase(ids.begin());
  return ids;
}

ChatTemplate::RenderOptions ChatTurns::render_options(bool begins) const {
  ChatTemplate::RenderOptions options;
  options.begins = begins;
  const std::optional<std::int32_t> begin = tokenizer_->begin_token();
  if (begin) options.begin_token = tokenizer_->token_bytes(*begin);
  return options;
}

Result<Ids> ChatTurns::ask(std::span<const std::int32_t> tokens, const std::string& system,
                           const std::string& text, bool thinks) const {
  ChatTemplate::RenderOptions options = render_options(tokens.empty());
  options.thinks = thinks;
  options.in_user_turn = ends_with_system(tokens);
  std::vector<ChatMessage> messages;
  if (options.begins && !system.empty()) messages.push_back({ChatRole::kSystem, system});
  messages.push_back({ChatRole::kUser, text});
  TQC_TRY_ASSIGN(const tokenizer::ChatText rendered, template_.render(messages, options));
  return options.in_user_turn ? encode(rendered, false) : encode_behind(tokens, rendered);
}

Result<Ids> ChatTurns::add_messages(Ids tokens, std::span<const ChatMessage> messages,
                                    bool thinks) const {
  ChatTemplate::RenderOptions options = render_options(tokens.empty());
  options.thinks = thinks;
  TQC_TRY_ASSIGN(const tokenizer::ChatText rendered, template_.render(messages, options));
  TQC_TRY_ASSIGN(const Ids more, encode_behind(tokens, rendered));
  append_ids(tokens, more);
  return tokens;
}

Result<Ids> ChatTurns::conversation(std::span<const ChatMessage> messages, bool thinks,
                                    const FindAnswers& find_answers) const {
  constexpr int kMaxFailures = 8;  // each costs an encoding of the messages before it
  Ids ids;
  std::size_t n_done = 0;  // messages that `ids` holds
  int n_failures = 0;
  for (std::size_t i = 0; find_answers && i < messages.size(); ++i) {
    if (messages[i].role != ChatRole::kAssistant || n_failures == kMaxFailures) continue;
    const auto answers = find_answers(messages[i].text);
    if (answers.empty()) continue;
    TQC_TRY_ASSIGN(Ids before, add_messages(ids, messages.subspan(n_done, i - n_done), thinks));
    const auto same = std::find_if(answers.begin(), answers.end(),
                                   [&](const auto& each) { return each->before == before; });
    if (same == answers.end()) {
      ++n_failures;
      continue;
    }
    ids = std::move(before);
    append_ids(ids, (*same)->ids);
    n_done = i + 1;
  }
  return add_messages(std::move(ids), messages.subspan(n_done), thinks);
}

Result<std::string> ChatTurns::conversation_text(std::span<const ChatMessage> messages,
                                                 bool thinks) const {
  ChatTemplate::RenderOptions options = render_options(true);
  options.thinks = thinks;
  TQC_TRY_ASSIGN(tokenizer::ChatText rendered, template_.render(messages, options));
  return std::move(rendered.text);
}

Result<Ids> ChatTurns::open_system(const std::string& system) const {
  ChatTemplate::RenderOptions options = render_options(true);
  options.asks = false;
  const ChatMessage message{ChatRole::kSystem, system};
  TQC_TRY_ASSIGN(const tokenizer::ChatText rendered,
                 template_.render(std::span(&message, 1), options));
  return encode(rendered, true);
}

Result<Ids> ChatTurns::open_turn(ChatRole role) const {
  const tokenizer::ChatFormat& format = template_.format();
  return encode({role == ChatRole::kUser ? format.user_open : format.asks, {}}, false);
}

Result<Ids> ChatTurns::closing(std::span<const std::int32_t> tokens) const {
  return encode_behind(tokens, {});
}

std::string ChatTurns::open_text(std::span<const std::int32_t> tokens) const {
  const auto end = std::find(tokens.rbegin(), tokens.rend(), end_);
  return tokenizer_->decode(tokens.last(static_cast<std::size_t>(end - tokens.rbegin())));
}

bool ChatTurns::ends_with_system(std::span<const std::int32_t> tokens) const {
  const tokenizer::ChatFormat& format = template_.format();
  if (!format.system_in_user || tokens.empty()) return false;
  const std::string text = open_text(tokens);
  return text.find(format.turn_mark) != std::string::npos && text.ends_with(format.system_close) &&
         text.find(format.user_close) == std::string::npos;
}

ChatTurns::Closing ChatTurns::find_closing(std::span<const std::int32_t> tokens) const {
  const tokenizer::ChatFormat& format = template_.format();
  if (!tokens.empty() && tokens.back() == end_) return {closing_text(format), true};
  const bool is_open = open_text(tokens).find(format.turn_mark) != std::string::npos;
  return {is_open ? closing_text(format) : std::string(), false};
}

}  // namespace tqcache::session
