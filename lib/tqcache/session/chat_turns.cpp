#include <algorithm>
#include <utility>

#include "tqcache/session.h"

namespace tqcache::session {
namespace {

using tokenizer::ChatMessage;
using tokenizer::ChatRole;
using tokenizer::ChatTemplate;
using tokenizer::ChatText;

Result<ChatTemplate> choose(const tokenizer::Tokenizer& tokenizer, std::string_view chosen,
                            bool for_tools) {
  if (ChatTemplate::is_name(chosen)) {
    for (const char* token : {"<|im_start|>", "<|im_end|>"}) {
      if (tokenizer.find_token(token)) continue;
      return unsupported("chat template " + std::string(chosen) + ": the model has no token " +
                         token);
    }
    return ChatTemplate::by_name(chosen);
  }
  if (!chosen.empty()) return ChatTemplate::parse(chosen);
  if (tokenizer.chat_template().empty()) {
    return unsupported("the model has no chat template: choose a file with one, or one of " +
                       ChatTemplate::names());
  }
  return ChatTemplate::parse(tokenizer.chat_template(for_tools));
}

// From `begin` on.
ChatText tail(const ChatText& text, std::size_t begin) {
  ChatText cut{text.text.substr(begin), {}};
  for (const tokenizer::Tokenizer::TextRange& each : text.plain) {
    if (each.end <= begin) continue;
    cut.plain.push_back({std::max(each.begin, begin) - begin, each.end - begin});
  }
  return cut;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Tokenizers differ in the spaces that they put around special tokens.
std::string without_spaces(std::string text) {
  std::erase_if(text, is_space);
  return text;
}

}  // namespace

void append_ids(Ids& ids, const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); }

Result<ChatTurns> ChatTurns::make(const tokenizer::Tokenizer& tokenizer, std::string_view chosen,
                                  std::function<bool()> keep_going) {
  TQC_TRY_ASSIGN(ChatTemplate plain, choose(tokenizer, chosen, false));
  TQC_TRY_ASSIGN(ChatTemplate for_tools, choose(tokenizer, chosen, true));
  return ChatTurns(tokenizer, std::move(plain), std::move(for_tools), std::move(keep_going));
}

Result<ChatText> ChatTurns::render(std::span<const ChatMessage> messages,
                                   const ChatOptions& options, bool asks,
                                   std::optional<std::size_t> seek) const {
  const ChatTemplate& chosen = options.tools.empty() ? template_ : tool_template_;
  return chosen.render(messages, {.asks = asks,
                                  .thinks = options.thinks,
                                  .named_tokens = tokenizer_->named_tokens(),
                                  .tools = options.tools,
                                  .now = options.now,
                                  .seek = seek});
}

Result<Ids> ChatTurns::encode(const ChatText& text, bool at_beginning) const {
  tokenizer::Tokenizer::EncodeOptions options;
  options.plain = text.plain;
  options.at_beginning = at_beginning;
  options.keep_going = keep_going_;
  return tokenizer_->encode(text.text, options);
}

Result<ChatTurns::SystemPlace> ChatTurns::find_system_place(const std::string& system,
                                                            const std::string& text,
                                                            const ChatOptions& options) const {
  const ChatMessage messages[] = {{ChatRole::kSystem, system}, {ChatRole::kUser, text}};
  TQC_TRY_ASSIGN(const ChatText both, render(messages, options, false, 0));
  TQC_TRY_ASSIGN(const ChatText user, render(messages, options, false, 1));
  if (!both.sought || !user.sought || user.sought->begin < both.sought->end) {
    return unsupported("the model's chat template does not write a system text before the user's");
  }
  SystemPlace place;
  place.before = both.text.substr(0, both.sought->begin);
  place.behind = both.text.substr(both.sought->end, user.sought->begin - both.sought->end);
  // Some templates refuse a conversation without a user's text, or begin the user's turn.
  const auto alone = render(std::span(messages).first(1), options, false, 0);
  if (alone && alone->sought && both.text.starts_with(alone->text)) {
    place.alone = alone->text.substr(alone->sought->end);
  }
  return place;
}

Result<std::optional<ChatTurns::Closing>> ChatTurns::find_closing(std::string_view text) const {
  TQC_TRY_ASSIGN(const Ids ids, encode({std::string(text), {}}, false));
  const auto special =
      std::ranges::find_if(ids, [&](std::int32_t id) { return tokenizer_->is_special(id); });
  if (special == ids.end()) return std::optional<Closing>();
  const std::string& name = tokenizer_->token_bytes(*special);
  const std::size_t begin = text.find(name);
  if (begin == std::string_view::npos) return std::optional<Closing>();
  const std::size_t end = begin + name.size();
  const bool opens = std::ranges::all_of(text.substr(end), is_space);
  return opens ? std::optional<Closing>() : std::optional(Closing{*special, begin, end});
}

bool ChatTurns::ends_answer(std::int32_t id) const {
  const std::vector<std::int32_t> ends = tokenizer_->end_tokens();
  return std::ranges::find(ends, id) != ends.end();
}

Result<std::string> ChatTurns::request_mark(const ChatOptions& options) const {
  const ChatMessage any[] = {{ChatRole::kUser, "x"}};
  ChatOptions thinking = options;
  thinking.thinks = true;
  TQC_TRY_ASSIGN(const ChatText asked, render(any, thinking, true, 0));
  std::string request = asked.sought ? asked.text.substr(asked.sought->end) : asked.text;
  TQC_TRY_ASSIGN(const std::optional<Closing> closing, find_closing(request));
  if (closing) request.erase(0, closing->end);
  return without_spaces(std::move(request));
}

Result<bool> ChatTurns::is_open(std::span<const std::int32_t> tokens,
                                const ChatOptions& options) const {
  TQC_TRY_ASSIGN(const std::string mark, request_mark(options));
  const auto is_end = [&](std::int32_t id) { return ends_answer(id); };
  const auto last_end = std::find_if(tokens.rbegin(), tokens.rend(), is_end);
  const auto n_behind = static_cast<std::size_t>(last_end - tokens.rbegin());
  const std::string text = without_spaces(tokenizer_->decode(tokens.last(n_behind)));
  return !mark.empty() && text.find(mark) != std::string::npos;
}

Result<std::optional<Ids>> ChatTurns::ask_behind_system(std::span<const std::int32_t> tokens,
                                                        const std::string& text,
                                                        const ChatOptions& options) const {
  const auto place = find_system_place("x", text, options);
  if (!place) return std::optional<Ids>();  // the template has no system text
  std::string before = without_spaces(place->before);
  for (const auto& [name, token] : tokenizer_->named_tokens()) {
    if (before.starts_with(token)) before.erase(0, token.size());
  }
  const std::string& end = place->alone.empty() ? place->behind : place->alone;
  const std::string all = tokenizer_->decode(tokens);
  const std::string marks = without_spaces(all);
  TQC_TRY_ASSIGN(const std::string request, request_mark(options));
  const bool has_system = !before.empty() && marks.find(before) != std::string::npos;
  const bool has_answer = !request.empty() && marks.find(request) != std::string::npos;
  if (!has_system || has_answer || !all.ends_with(end)) return std::optional<Ids>();
  const ChatMessage messages[] = {{ChatRole::kSystem, "x"}, {ChatRole::kUser, text}};
  TQC_TRY_ASSIGN(const ChatText rendered, render(messages, options, true, 0));
  TQC_TRY_ASSIGN(Ids ids, encode(tail(rendered, rendered.sought->end + end.size()), false));
  return std::optional(std::move(ids));
}

Result<Ids> ChatTurns::encode_behind(std::span<const std::int32_t> tokens, ChatText rest,
                                     const ChatOptions& options) const {
  const std::size_t n_before = rest.plain.empty() ? rest.text.size() : rest.plain[0].begin;
  const std::string before = rest.text.substr(0, n_before);
  TQC_TRY_ASSIGN(std::optional<Closing> closing, find_closing(before));
  // An answer that calls tools ends behind the marks of its calls, which may be special, too.
  if (closing && closing->id != tokens.back() && ends_answer(tokens.back())) {
    const std::string& end = tokenizer_->token_bytes(tokens.back());
    const std::size_t begin = before.find(end, closing->end);
    if (begin != std::string::npos) closing = {tokens.back(), begin, begin + end.size()};
  }
  const bool is_closed = closing && tokens.back() == closing->id;
  const bool is_ended = is_closed || ends_answer(tokens.back());
  bool drops_first = false;
  if (is_ended) {
    // The cache has the token that ends the answer, perhaps another one than the template's. The
    // text behind it is encoded together with it, as one text.
    if (closing) rest = tail(rest, closing->begin);
    drops_first = closing.has_value();
  } else if (closing) {
    TQC_TRY_ASSIGN(const bool open, is_open(tokens, options));
    // A text without turns has none to close, and no line end behind it.
    std::size_t begin = closing->end;
    while (begin < n_before && is_space(rest.text[begin])) ++begin;
    if (!open) rest = tail(rest, begin);
  }
  TQC_TRY_ASSIGN(Ids ids, encode(rest, false));
  // A token that ends an answer and also opens the user's turn.
  const bool is_twice = !ids.empty() && is_ended && !closing && ids[0] == tokens.back();
  if ((drops_first || is_twice) && !ids.empty()) ids.erase(ids.begin());
  return ids;
}

Result<Ids> ChatTurns::ask(std::span<const std::int32_t> tokens, const std::string& system,
                           const std::string& text, const ChatOptions& options) const {
  if (tokens.empty()) {
    std::vector<ChatMessage> messages;
    if (!system.empty()) messages.push_back({ChatRole::kSystem, system});
    messages.push_back({ChatRole::kUser, text});
    TQC_TRY_ASSIGN(const ChatText rendered, render(messages, options, true));
    return encode(rendered, true);
  }
  TQC_TRY_ASSIGN(std::optional<Ids> behind_system, ask_behind_system(tokens, text, options));
  if (behind_system) return std::move(*behind_system);
  const ChatMessage messages[] = {
      {ChatRole::kUser, "x"}, {ChatRole::kAssistant, "x"}, {ChatRole::kUser, text}};
  TQC_TRY_ASSIGN(const ChatText rendered, render(messages, options, true, 1));
  if (!rendered.sought) {
    return unsupported("the model's chat template does not write the earlier answers");
  }
  return encode_behind(tokens, tail(rendered, rendered.sought->end), options);
}

Result<Ids> ChatTurns::conversation(std::span<const ChatMessage> messages,
                                    const ChatOptions& options, KnownMessages known) const {
  const bool is_known = known.n_messages > 0 && !known.tokens.empty();
  const auto last = is_known ? std::optional(known.n_messages - 1) : std::nullopt;
  TQC_TRY_ASSIGN(const ChatText rendered, render(messages, options, true, last));
  if (!is_known || !rendered.sought) return encode(rendered, true);
  TQC_TRY_ASSIGN(const Ids more,
                 encode_behind(known.tokens, tail(rendered, rendered.sought->end), options));
  append_ids(known.tokens, more);
  return std::move(known.tokens);
}

Result<std::string> ChatTurns::conversation_text(std::span<const ChatMessage> messages,
                                                 const ChatOptions& options) const {
  TQC_TRY_ASSIGN(ChatText rendered, render(messages, options, true));
  return std::move(rendered.text);
}

Result<Ids> ChatTurns::open_system(const std::string& system, const ChatOptions& options) const {
  TQC_TRY_ASSIGN(const SystemPlace place, find_system_place(system, "x", options));
  const ChatMessage messages[] = {{ChatRole::kSystem, system}, {ChatRole::kUser, "x"}};
  TQC_TRY_ASSIGN(ChatText rendered, render(messages, options, false, 0));
  const std::string& end = place.alone.empty() ? place.behind : place.alone;
  rendered.text.resize(rendered.sought->end + end.size());
  std::erase_if(rendered.plain,
                [&](const auto& range) { return range.begin >= rendered.text.size(); });
  return encode(rendered, true);
}

}  // namespace tqcache::session
