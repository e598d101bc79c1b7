#include "tqcache/serve/prompt_history.h"

#include <algorithm>
#include <utility>

namespace tqcache::serve {
namespace {

// An entry in its list, and the block of its text.
constexpr std::size_t kEntryBytes = 96;
constexpr std::size_t kShownBytes = 24;  // on each side of a parting

std::size_t n_common(std::string_view a, std::string_view b) {
  const std::size_t n_most = std::min(a.size(), b.size());
  constexpr std::size_t kStep = 4096;
  std::size_t n = 0;
  while (n + kStep <= n_most && a.substr(n, kStep) == b.substr(n, kStep)) n += kStep;
  while (n < n_most && a[n] == b[n]) ++n;
  return n;
}

// The last place at or before `n` that is not within a UTF-8 character.
std::size_t character_begin(std::string_view text, std::size_t n) {
  const auto is_inside = [&](std::size_t i) {
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80;
  };
  std::size_t begin = n;
  while (begin > 0 && n - begin < 3 && is_inside(begin)) --begin;
  return is_inside(begin) ? n : begin;  // not UTF-8
}

std::string around(std::string_view text, std::size_t at) {
  const std::size_t begin = character_begin(text, at - std::min(at, kShownBytes));
  const std::size_t end = character_begin(text, std::min(text.size(), at + kShownBytes));
  return std::string(text.substr(begin, end - begin));
}

}  // namespace

const PromptHistory::Prompts* PromptHistory::find(std::string_view tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? nullptr : &found->second;
}

std::optional<Parting> PromptHistory::nearest(std::string_view tenant,
                                              std::string_view text) const {
  const std::lock_guard lock(mutex_);
  const Prompts* const prompts = find(tenant);
  if (prompts == nullptr) return std::nullopt;
  const auto after = std::ranges::lower_bound(*prompts, text, {}, &Prompt::text);
  const Prompt* nearest = nullptr;
  std::size_t at = 0;
  const auto compare = [&](const Prompt& prompt) {
    const std::size_t n = n_common(text, prompt.text);
    if (nearest != nullptr && (n < at || (n == at && prompt.used < nearest->used))) return;
    nearest = &prompt;
    at = n;
  };
  if (after != prompts->begin()) compare(*std::prev(after));
  if (after != prompts->end()) compare(*after);
  // Both prompts have the same bytes before `at`, so a character that begins there begins in both.
  const std::size_t begin = std::min(character_begin(text, at), character_begin(nearest->text, at));
  return Parting{begin, nearest->text.size(), around(text, begin), around(nearest->text, begin)};
}

void PromptHistory::erase(Prompts& prompts, std::size_t i) {
  n_bytes_ -= prompts[i].text.size() + kEntryBytes;
  --n_prompts_;
  prompts.erase(prompts.begin() + static_cast<std::ptrdiff_t>(i));
}

void PromptHistory::add(std::string_view tenant, std::string_view text) {
  if (text.empty() || text.size() + kEntryBytes > limits_.max_bytes) return;
  const std::lock_guard lock(mutex_);
  auto found = tenants_.find(tenant);
  if (found == tenants_.end()) found = tenants_.try_emplace(std::string(tenant)).first;
  Prompts& prompts = found->second;
  auto i = static_cast<std::size_t>(std::ranges::lower_bound(prompts, text, {}, &Prompt::text) -
                                    prompts.begin());
  if (i < prompts.size() && std::string_view(prompts[i].text).starts_with(text)) {
    prompts[i].used = ++now_;
    return;
  }
  // A beginning of the text can only be right before it: what is between them would begin with it,
  // too, and have replaced it.
  if (i > 0 && text.starts_with(prompts[i - 1].text)) erase(prompts, --i);
  prompts.insert(prompts.begin() + static_cast<std::ptrdiff_t>(i),
                 Prompt{std::string(text), ++now_});
  n_bytes_ += text.size() + kEntryBytes;
  ++n_prompts_;
  while (n_bytes_ > limits_.max_bytes || n_prompts_ > limits_.max_prompts) drop_oldest();
}

// Requires: there is a prompt.
void PromptHistory::drop_oldest() {
  auto oldest = tenants_.end();
  std::size_t at = 0;
  for (auto tenant = tenants_.begin(); tenant != tenants_.end(); ++tenant) {
    for (std::size_t i = 0; i < tenant->second.size(); ++i) {
      const bool is_older =
          oldest == tenants_.end() || tenant->second[i].used < oldest->second[at].used;
      if (!is_older) continue;
      oldest = tenant;
      at = i;
    }
  }
  erase(oldest->second, at);
  if (oldest->second.empty()) tenants_.erase(oldest);
}

std::size_t PromptHistory::n_prompts() const {
  const std::lock_guard lock(mutex_);
  return n_prompts_;
}

std::size_t PromptHistory::n_bytes() const {
  const std::lock_guard lock(mutex_);
  return n_bytes_;
}

}  // namespace tqcache::serve
