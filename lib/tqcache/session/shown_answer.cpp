#include <utility>

#include "tqcache/session.h"

namespace tqcache::session {

AnswerParts::AnswerParts(const tokenizer::Tokenizer& tokenizer) : tokenizer_(&tokenizer) {
  channel_ = tokenizer.find_token("<|channel|>");
  message_ = tokenizer.find_token("<|message|>");
  if (!has_channels()) return;
  start_ = tokenizer.find_token("<|start|>");
  end_ = tokenizer.find_token("<|end|>");
  call_ = tokenizer.find_token("<|call|>");
}

AnswerParts::Piece AnswerParts::add(std::int32_t id) {
  const std::string& bytes = tokenizer_->token_bytes(id);
  if (!has_channels()) return {Kind::kText, bytes};
  if (id == channel_) {
    place_ = Place::kChannel;
    name_.clear();
    return {kind_};
  }
  if (id == message_) return begin_message();
  if (id == start_) {
    place_ = Place::kRole;
    role_.clear();
  }
  if (id == start_ || id == end_ || id == call_) return {kind_};
  if (place_ == Place::kStart) {
    // The prompt ends behind the role, and " to=RECEIVER" may follow; else it is text.
    constexpr std::string_view kReceiver = " to=";
    role_ += bytes;
    if (role_.starts_with(kReceiver)) place_ = Place::kRole;
    if (kReceiver.starts_with(role_) || place_ == Place::kRole) return {kind_};
    place_ = Place::kText;
    return {kind_, std::exchange(role_, {})};
  }
  if (place_ == Place::kText) return {kind_, bytes};
  (place_ == Place::kRole ? role_ : name_) += bytes;
  return {kind_};
}

AnswerParts::Piece AnswerParts::begin_message() {
  constexpr std::string_view kTo = "to=", kFunction = "to=functions.";
  const std::string header = role_ + "\n" + name_;
  const std::size_t function = header.find(kFunction);
  const bool is_for_others = header.find(kTo) != std::string::npos;
  if (place_ != Place::kChannel || name_.starts_with("final")) {
    kind_ = Kind::kText;
  } else if (!name_.starts_with("commentary")) {
    kind_ = Kind::kThoughts;
  } else if (function != std::string::npos) {
    kind_ = Kind::kCall;
    function_ = header.substr(function + kFunction.size());
    function_.resize(std::min(function_.find_first_of(" \n<"), function_.size()));
  } else {
    kind_ = is_for_others ? Kind::kThoughts : Kind::kText;
  }
  place_ = Place::kText;
  role_.clear();
  name_.clear();
  return {kind_, {}, true};
}

std::string ShownAnswer::add(std::int32_t id) {
  AnswerParts::Piece piece = parts_.add(id);
  const bool thinks = piece.kind != AnswerParts::Kind::kText;
  if (!piece.begins || thinks == std::exchange(thinks_, thinks)) return std::move(piece.text);
  return thinks ? "<think>\n" : "\n</think>\n\n";
}

}  // namespace tqcache::session
