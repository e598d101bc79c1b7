#include "tqcache/serve/slot_table.h"

#include <algorithm>
#include <utility>

namespace tqcache::serve {
namespace {

std::size_t common_bytes(std::string_view a, std::string_view b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return static_cast<std::size_t>(end - a.begin());
}

}  // namespace

void SlotTable::reset(std::size_t n_slots) {
  const std::lock_guard lock(mutex_);
  const std::vector<KnownSlot> before = std::exchange(slots_, std::vector<KnownSlot>(n_slots));
  for (std::size_t i = 0; i < std::min(before.size(), n_slots); ++i) {
    slots_[i].is_used = before[i].is_used;
  }
  released_.notify_all();
}

std::size_t SlotTable::size() const {
  const std::lock_guard lock(mutex_);
  return slots_.size();
}

std::uint64_t SlotTable::change() const {
  const std::lock_guard lock(mutex_);
  return change_;
}

bool SlotTable::observe(const std::vector<SlotState>& states, std::uint64_t change) {
  const std::lock_guard lock(mutex_);
  bool was_restarted = false;
  for (const SlotState& state : states) {
    if (state.id < 0 || state.id >= std::ssize(slots_)) continue;
    KnownSlot& slot = slots_[static_cast<std::size_t>(state.id)];
    if (slot.is_used || slot.change > change) continue;
    // Numbers of tasks only grow, until a server begins again.
    was_restarted = was_restarted || (slot.task && (!state.task || *state.task < *slot.task));
    const bool is_expected =
        slot.has_changed ? state.task.has_value() && (!slot.task || *state.task > *slot.task)
                         : state.task == slot.task;
    if (!is_expected) {
      slot.prompt.clear();
      slot.tenant.reset();
      slot.n_stored = slot.n_prompt = 0;
    }
    slot.task = state.task;
    slot.has_changed = false;
    slot.n_tokens = state.n_tokens;
    slot.has_content = state.task.has_value() && state.n_tokens > 0;
  }
  return was_restarted;
}

std::optional<SlotTable::Choice> SlotTable::choose(std::string_view prompt,
                                                   std::string_view tenant) const {
  std::optional<Choice> best, oldest;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const KnownSlot& slot = slots_[i];
    if (slot.is_used) continue;
    Choice choice{.slot = i, .before = slot};
    if (slot.tenant == tenant) choice.n_common = common_bytes(slot.prompt, prompt);
    choice.is_warm = !slot.prompt.empty() && choice.n_common == slot.prompt.size();
    if (choice.n_common > 0 && (!best || choice.n_common > best->n_common)) best = choice;
    const bool is_unused = slot.prompt.empty() && !slot.has_content;
    const bool is_older = !oldest || slot.last_use < oldest->before.last_use;
    const bool oldest_is_unused =
        oldest && oldest->before.prompt.empty() && !oldest->before.has_content;
    if (is_unused ? !oldest_is_unused || is_older : !oldest_is_unused && is_older) oldest = choice;
  }
  if (best && (best->is_warm || best->n_common * 2 >= best->before.prompt.size())) return best;
  return oldest;
}

bool SlotTable::continues_running(std::string_view prompt, std::string_view tenant) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const KnownSlot& slot) {
    return slot.is_used && !slot.running.empty() && slot.tenant == tenant &&
           prompt.size() > slot.running.size() && prompt.starts_with(slot.running);
  });
}

std::optional<SlotTable::Choice> SlotTable::acquire(std::string_view prompt,
                                                    std::string_view tenant, Client* client,
                                                    std::chrono::milliseconds limit) {
  const auto start = std::chrono::steady_clock::now();
  const auto deadline = start + limit;
  const auto patience = start + std::min(limit, patience_);
  std::unique_lock lock(mutex_);
  n_waiting_ += 1;
  std::optional<Choice> choice;
  while (true) {
    const auto now = std::chrono::steady_clock::now();
    choice = choose(prompt, tenant);
    const bool is_early = now < patience && continues_running(prompt, tenant);
    if (choice && (choice->is_warm || !is_early)) break;
    if (now >= deadline) break;
    if (client != nullptr && client->is_gone()) {
      choice.reset();
      break;
    }
    released_.wait_for(lock, std::chrono::milliseconds(50));
  }
  n_waiting_ -= 1;
  if (!choice) return choice;
  KnownSlot& slot = slots_[choice->slot];
  slot.is_used = true;
  slot.running = prompt;
  slot.tenant = tenant;
  slot.change = ++change_;
  return choice;
}

std::optional<KnownSlot> SlotTable::try_acquire(
    std::size_t slot, const std::function<bool(const KnownSlot&)>& is_wanted) {
  const std::lock_guard lock(mutex_);
  if (slot >= slots_.size() || slots_[slot].is_used || !is_wanted(slots_[slot])) {
    return std::nullopt;
  }
  KnownSlot& it = slots_[slot];
  const KnownSlot before = it;
  it.is_used = true;
  it.change = ++change_;
  // The same prompt, and one that continues it, wait until the slot is saved.
  it.running = it.prompt;
  if (!it.running.empty()) it.running.pop_back();
  return before;
}

void SlotTable::release(std::size_t slot, KnownSlot now) {
  const std::lock_guard lock(mutex_);
  if (slot < slots_.size()) {
    slots_[slot] = std::move(now);
    slots_[slot].is_used = false;
    slots_[slot].running.clear();
    slots_[slot].change = ++change_;
  }
  released_.notify_all();
}

std::vector<KnownSlot> SlotTable::snapshot() const {
  const std::lock_guard lock(mutex_);
  return slots_;
}

std::size_t SlotTable::n_waiting() const {
  const std::lock_guard lock(mutex_);
  return n_waiting_;
}

}  // namespace tqcache::serve
