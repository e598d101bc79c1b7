#include "tqcache/session.h"

namespace tqcache::session {

ShownAnswer::ShownAnswer(const tokenizer::Tokenizer& tokenizer) : tokenizer_(&tokenizer) {
  channel_ = tokenizer.find_token("<|channel|>");
  message_ = tokenizer.find_token("<|message|>");
  if (!channel_ || !message_) return;
  start_ = tokenizer.find_token("<|start|>");
  end_ = tokenizer.find_token("<|end|>");
}

std::string ShownAnswer::add(std::int32_t id) {
  const std::string& bytes = tokenizer_->token_bytes(id);
  if (!channel_ || !message_) return bytes;
  if (id == channel_) {
    place_ = Place::kChannel;
    name_.clear();
    return {};
  }
  if (id == message_) return begin_message();
  if (id == start_) place_ = Place::kRole;
  if (id == start_ || id == end_) return {};
  if (place_ == Place::kText) return bytes;
  if (place_ == Place::kChannel) name_ += bytes;
  return {};
}

std::string ShownAnswer::begin_message() {
  const bool is_final = place_ != Place::kChannel || name_.starts_with("final");
  place_ = Place::kText;
  if (is_final == !thinks_) return {};
  thinks_ = !is_final;
  return thinks_ ? "<think>\n" : "\n</think>\n\n";
}

}  // namespace tqcache::session
