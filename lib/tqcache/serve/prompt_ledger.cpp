#include "tqcache/serve/prompt_ledger.h"

#include <algorithm>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/hash.h"

namespace tqcache::serve {
namespace {

using Chain = std::vector<std::uint64_t>;

std::size_t n_shared_blocks(const Chain& a, const Chain& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

Chain block_chain(std::span<const std::int32_t> tokens) {
  Chain chain;
  const auto block = static_cast<std::size_t>(cache::kTokenBlock);
  for (; tokens.size() >= block; tokens = tokens.subspan(block)) {
    ByteWriter bytes;
    bytes.write(chain.empty() ? std::uint64_t{0} : chain.back());
    bytes.append(std::as_bytes(tokens.first(block)));
    chain.push_back(xxh3_64(bytes.bytes()));
  }
  return chain;
}

PromptLedger::Slot* PromptLedger::find(Id id) {
  const auto found =
      std::ranges::find_if(slots_, [&](const Slot& slot) { return slot.prompt.id == id; });
  return found == slots_.end() ? nullptr : &*found;
}

void PromptLedger::drop_oldest() {
  if (slots_.size() <= kMaxEntries) return;
  slots_.erase(std::ranges::min_element(slots_, std::ranges::less(), [](const Slot& slot) {
    return std::pair(slot.prompt.used, slot.prompt.id);
  }));
}

PromptLedger::Id PromptLedger::note(const PromptEvent& event) {
  Chain chain = block_chain(event.tokens);
  const Chain prompt_chain = block_chain(
      event.tokens.first(static_cast<std::size_t>(std::max<std::int64_t>(event.prompt_tokens, 0))));
  const std::lock_guard lock(mutex_);
  Slot* source = nullptr;     // the newest of those that share the most blocks
  Slot* continued = nullptr;  // the longest one that the text continues
  std::size_t n_shared = 0;
  for (Slot& slot : slots_) {
    const KeptPrompt& each = slot.prompt;
    if (each.tenant != event.tenant || each.model != event.model) continue;
    const std::size_t n = n_shared_blocks(each.chain, prompt_chain);
    if (n > 0 && n >= n_shared) {
      source = &slot;
      n_shared = n;
    }
    const bool is_prefix =
        !each.chain.empty() && n_shared_blocks(each.chain, chain) == each.chain.size();
    if (is_prefix &&
        (continued == nullptr || each.chain.size() >= continued->prompt.chain.size())) {
      continued = &slot;
    }
  }
  if (source != nullptr && event.cached_tokens > 0) {
    ++source->prompt.hits;
    source->prompt.hit_tokens += event.cached_tokens;
    source->prompt.saved_seconds += event.saved_seconds;
    source->prompt.used = event.now;
  }
  if (continued == nullptr) {
    slots_.push_back({.prompt = {.id = next_++,
                                 .tenant = event.tenant,
                                 .model = event.model,
                                 .text = event.text,
                                 .created = event.now}});
    continued = &slots_.back();
  }
  KeptPrompt& prompt = continued->prompt;
  prompt.n_tokens = std::max(prompt.n_tokens, std::ssize(event.tokens));
  prompt.chain = std::move(chain);
  prompt.used = event.now;
  const Id id = prompt.id;
  drop_oldest();
  return id;
}

void PromptLedger::set_bytes(Id id, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (Slot* const slot = find(id)) slot->prompt.stored_bytes = slot->finished_bytes + bytes;
}

void PromptLedger::finish_bytes(Id id, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (Slot* const slot = find(id)) slot->prompt.stored_bytes = slot->finished_bytes += bytes;
}

std::vector<KeptPrompt> PromptLedger::entries(std::optional<std::string_view> tenant) const {
  std::vector<KeptPrompt> found;
  {
    const std::lock_guard lock(mutex_);
    for (const Slot& slot : slots_) {
      if (!tenant || slot.prompt.tenant == *tenant) found.push_back(slot.prompt);
    }
  }
  std::ranges::sort(found, std::ranges::greater(),
                    [](const KeptPrompt& each) { return std::pair(each.used, each.id); });
  return found;
}

}  // namespace tqcache::serve
