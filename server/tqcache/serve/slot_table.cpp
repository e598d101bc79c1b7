#include "tqcache/serve/slot_table.h"

#include <algorithm>
#include <utility>

namespace tqcache::serve {
namespace {

// A prompt that goes on by no more bytes than this needs no look into the store.
constexpr std::size_t kShortRest = 2048;
// So many common tokens make it worthwhile to take over the slot of another conversation.
constexpr std::int64_t kLeastShare = 64;
// llama-server loads a prompt from its RAM only if at least this part of it is used.
constexpr std::int64_t kRamLeastPart = 4;
// Its default for --cache-ram. It drops the oldest prompts first.
constexpr double kRamBytes = 8.0 * (1 << 30);
constexpr std::size_t kMostInRam = 256;

std::int64_t common_bytes(std::string_view a, std::string_view b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

// Tokens of the first bytes of a prompt, as far as a slot has them.
std::int64_t tokens_in(const SlotTable::Wanted& wanted, std::int64_t n_bytes, std::int64_t n_held) {
  // Known at the beginning, at the place that was counted, and at the end; between them in
  // proportion.
  const bool is_behind = n_bytes > wanted.common_bytes;
  const std::int64_t from = is_behind ? wanted.common_bytes : 0;
  const std::int64_t to = is_behind ? std::ssize(wanted.prompt) : wanted.common_bytes;
  const std::int64_t n_from = is_behind ? wanted.common_tokens : 0;
  const std::int64_t n_to = is_behind ? wanted.n_tokens : wanted.common_tokens;
  const double part = static_cast<double>(n_bytes - from) /
                      static_cast<double>(std::max<std::int64_t>(to - from, 1));
  const double n = static_cast<double>(n_to - n_from) * part;
  return std::min(n_held, n_from + static_cast<std::int64_t>(n));
}

}  // namespace

void SlotTable::reset(std::size_t n_slots) {
  const std::lock_guard lock(mutex_);
  ++epoch_;
  const std::vector<KnownSlot> before = std::exchange(slots_, std::vector<KnownSlot>(n_slots));
  for (std::size_t i = 0; i < std::min(before.size(), n_slots); ++i) {
    slots_[i].is_used = before[i].is_used;
  }
  foreign_at_take_.assign(n_slots, 0);
  ram_.clear();
  ram_is_seen_ = false;
  released_.notify_all();
}

std::size_t SlotTable::size() const {
  const std::lock_guard lock(mutex_);
  return slots_.size();
}

void SlotTable::set_rules(const Rules& rules) {
  const std::lock_guard lock(mutex_);
  const double bytes_per_token = rules_.bytes_per_token;
  rules_ = rules;
  rules_.bytes_per_token = bytes_per_token;
}

void SlotTable::set_bytes_per_token(double bytes) {
  const std::lock_guard lock(mutex_);
  rules_.bytes_per_token = bytes;
}

SlotTable::Rules SlotTable::rules() const {
  const std::lock_guard lock(mutex_);
  return rules_;
}

std::uint64_t SlotTable::change() const {
  const std::lock_guard lock(mutex_);
  return change_;
}

// llama-server drops a prompt that is a beginning of one that it saves, and the oldest ones when
// they take too much memory.
void SlotTable::remember_in_ram(const KnownSlot& slot) {
  if (slot.prompt.empty() || !slot.tenant || slot.n_tokens == 0) return;
  std::erase_if(ram_, [&](const KnownSlot& each) {
    return each.tenant == slot.tenant && slot.prompt.starts_with(each.prompt);
  });
  ram_.push_back(slot);
  double n_tokens = 0;
  std::size_t n = 0;
  while (n < std::min(ram_.size(), kMostInRam)) {
    n_tokens += static_cast<double>(ram_[ram_.size() - 1 - n].n_tokens);
    if (n_tokens * rules_.bytes_per_token > kRamBytes) break;
    ++n;
  }
  ram_.erase(ram_.begin(), ram_.end() - static_cast<std::ptrdiff_t>(n));
}

bool SlotTable::observe(const std::vector<SlotState>& states, std::uint64_t change) {
  const std::lock_guard lock(mutex_);
  note_begun(states);
  bool was_restarted = false;
  for (const SlotState& state : states) {
    if (state.id < 0 || state.id >= std::ssize(slots_)) continue;
    KnownSlot& slot = slots_[static_cast<std::size_t>(state.id)];
    if (slot.is_used || slot.change > change) continue;
    // Numbers of tasks only grow, until a server begins again.
    was_restarted = was_restarted || (slot.task && (!state.task || *state.task < *slot.task));
    // A request that was refused has left the slot as it was.
    const bool is_expected = slot.has_changed && state.task != slot.task
                                 ? state.task && (!slot.task || *state.task > *slot.task)
                                 : state.task == slot.task && !slot.was_answered;
    const bool was_cleared = state.n_tokens == 0 && slot.n_tokens > 0;
    if (is_expected && was_cleared) {
      remember_in_ram(slot);
      // A request that was broken off may have left nothing.
      if (!slot.has_changed || slot.was_answered) ram_is_seen_ = true;
    }
    if (!is_expected) remember_in_ram(slot);
    if (!is_expected || state.n_tokens == 0) {
      slot.prompt.clear();
      slot.tenant.reset();
      slot.n_stored = slot.n_prompt = slot.n_expected = 0;
      slot.is_doubtful = false;
    }
    slot.task = state.task;
    slot.has_changed = slot.was_answered = false;
    slot.is_processing = state.is_processing;
    slot.n_tokens = state.task ? state.n_tokens : 0;
    if (slot.n_expected > 0 && slot.n_tokens + kSameTokens < slot.n_expected) {
      slot.is_doubtful = true;
    }
    slot.n_expected = 0;
  }
  return was_restarted;
}

// --- The order of tasks

std::uint64_t SlotTable::take_order(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  const auto is_free = [this] {
    const bool is_late = order_.is_sent && !order_.slot &&
                         std::chrono::steady_clock::now() - order_.sent > kSendingLimit;
    return order_.number == 0 || is_late;
  };
  if (!released_.wait_for(lock, limit, is_free)) return 0;
  order_ = {};
  order_.number = ++last_order_;
  return order_.number;
}

void SlotTable::sending(std::uint64_t order, std::optional<std::size_t> slot) {
  const std::lock_guard lock(mutex_);
  if (order == 0 || order_.number != order) return;
  order_.is_sent = true;
  order_.slot = slot;
  order_.sent = std::chrono::steady_clock::now();
  if (slot && *slot < slots_.size()) slots_[*slot].is_sent = true;
  for (const KnownSlot& each : slots_) order_.tasks.push_back(each.task);
}

std::optional<std::size_t> SlotTable::begun_in(std::uint64_t order) const {
  const std::lock_guard lock(mutex_);
  return order != 0 && begun_order_ == order ? std::optional(begun_slot_) : std::nullopt;
}

void SlotTable::end_order(std::uint64_t order) {
  const std::lock_guard lock(mutex_);
  if (order == 0 || order_.number != order) return;
  order_ = {};
  released_.notify_all();
}

bool SlotTable::is_sending() const {
  const std::lock_guard lock(mutex_);
  return order_.number != 0 && order_.is_sent;
}

void SlotTable::note_begun(const std::vector<SlotState>& states) {
  if (order_.number == 0 || !order_.is_sent) return;
  for (const SlotState& state : states) {
    if (state.id < 0 || state.id >= std::ssize(slots_)) continue;
    const auto id = static_cast<std::size_t>(state.id);
    if (id >= order_.tasks.size() || (order_.slot && *order_.slot != id)) continue;
    // The tasks of slots that others use are not known.
    const bool is_of_another = !order_.slot && slots_[id].is_used && slots_[id].is_sent;
    if (!is_of_another && state.task && state.task != order_.tasks[id]) {
      if (!order_.slot) {
        begun_order_ = order_.number;
        begun_slot_ = id;
      }
      order_ = {};
      released_.notify_all();
      return;
    }
  }
}

// --- Choosing

SlotTable::Choice SlotTable::take_slot(std::size_t slot, From from, std::int64_t n_tokens,
                                       std::string_view prompt, std::string_view tenant) {
  KnownSlot& it = slots_[slot];
  Choice choice{.slot = slot, .before = it, .from = from, .n_tokens = n_tokens};
  choice.must_prime = from == From::kRam && it.n_tokens == 0;
  // llama-server saves what a slot holds to RAM before it computes another prompt there.
  const bool is_replaced = from == From::kRam || from == From::kNothing;
  if (is_replaced) remember_in_ram(it);
  mark_in_use(slot);
  it.running = prompt;
  it.tenant = tenant;
  choice.before.epoch = epoch_;
  return choice;
}

void SlotTable::mark_in_use(std::size_t slot) {
  slots_[slot].is_used = true;
  slots_[slot].is_sent = false;
  slots_[slot].change = ++change_;
  foreign_at_take_[slot] = n_foreign_;
}

bool SlotTable::move(std::size_t from, const KnownSlot& before, std::size_t to) {
  const std::lock_guard lock(mutex_);
  if (from >= slots_.size() || to >= slots_.size() || slots_[to].is_used) return false;
  KnownSlot moved = slots_[from];
  slots_[from] = before;
  slots_[from].is_used = false;
  slots_[from].change = ++change_;
  slots_[to] = moved;
  mark_in_use(to);
  released_.notify_all();
  return true;
}

std::optional<SlotTable::Choice> SlotTable::take_continued(std::string_view prompt,
                                                           std::string_view tenant) {
  const std::lock_guard lock(mutex_);
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const KnownSlot& slot = slots_[i];
    // Of a request that was broken off it is not known how much the slot holds of the prompt.
    const bool is_whole = slot.n_prompt > 0 && slot.n_tokens >= slot.n_prompt;
    if (slot.is_used || slot.is_processing || slot.has_changed || slot.tenant != tenant ||
        slot.prompt.empty() || !is_whole || !prompt.starts_with(slot.prompt) ||
        prompt.size() - slot.prompt.size() > kShortRest) {
      continue;
    }
    // Without RAM of its own for the clients llama-server would look for the prompts of others if
    // less than half of the slot is used.
    if (!rules_.may_use_ram && slot.n_prompt * 2 < slot.n_tokens + 2) continue;
    if (!best || slot.prompt.size() > slots_[*best].prompt.size()) best = i;
  }
  if (!best) return std::nullopt;
  return take_slot(*best, From::kSlot, slots_[*best].n_prompt, prompt, tenant);
}

SlotTable::Candidates SlotTable::candidates(const Wanted& wanted) const {
  Candidates found;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const KnownSlot& slot = slots_[i];
    // What a slot holds that was not looked at since its last request is not known.
    if (slot.is_used || slot.is_processing || slot.has_changed) continue;
    std::int64_t n = 0;
    bool is_continued = false;
    if (slot.tenant == wanted.tenant && slot.n_tokens > 0) {
      const std::int64_t n_bytes = common_bytes(slot.prompt, wanted.prompt);
      n = tokens_in(wanted, n_bytes, slot.n_tokens);
      is_continued = n_bytes > 0 && n_bytes == std::ssize(slot.prompt);
    }
    const bool half_is_used = 2 * n >= slot.n_tokens;
    if (n > found.n_best && (rules_.may_use_ram || half_is_used)) {
      found.best = i;
      found.n_best = n;
      found.best_is_continued = is_continued;
    }
    const auto is_older = [&](const std::optional<std::size_t>& than) {
      return !than || slot.last_use < slots_[*than].last_use;
    };
    if (is_older(found.oldest)) found.oldest = i;
    if (slot.n_tokens == 0 && is_older(found.empty)) found.empty = i;
    if (slot.n_tokens > 0 && !half_is_used && is_older(found.other)) found.other = i;
  }
  return found;
}

std::optional<SlotTable::Choice> SlotTable::take(const Wanted& wanted, bool is_patient) {
  if (is_patient && continues_running(wanted.prompt, wanted.tenant)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  Candidates found = candidates(wanted);
  if (!found.oldest) return std::nullopt;
  // Of what cannot be cut and goes on otherwise, the store knows better what can be used.
  const bool only_continued = !rules_.can_cut && wanted.n_stored >= kSameTokens;
  if (only_continued && !found.best_is_continued) {
    found.best.reset();
    found.n_best = 0;
  }
  std::int64_t n_ram = 0;
  bool ram_is_doubtful = false, ram_is_continued = false;
  for (const KnownSlot& each : ram_) {
    if (!rules_.may_use_ram || each.tenant != wanted.tenant) continue;
    const std::int64_t n_bytes = common_bytes(each.prompt, wanted.prompt);
    bool is_continued = n_bytes == std::ssize(each.prompt);
    std::int64_t n = tokens_in(wanted, n_bytes, each.n_tokens);
    if (only_continued) {
      // The last checkpoint is before the answer, if there is one at all behind a short rest of a
      // prompt. Of a request that was broken off it is not known where its answer began.
      if (!is_continued || each.n_prompt == 0) continue;
      n = std::min(n, each.n_prompt);
      // What was stored of prompt and answer shows whether this prompt goes on from both.
      is_continued = wanted.n_stored + kSameTokens >= each.n_tokens;
    }
    if (n * kRamLeastPart < each.n_tokens || n <= n_ram) continue;
    n_ram = n;
    ram_is_doubtful = each.is_doubtful;
    ram_is_continued = is_continued;
  }
  const auto choose = [&](std::size_t slot, From from, std::int64_t n) {
    Choice choice = take_slot(slot, from, n, wanted.prompt, wanted.tenant);
    choice.is_doubtful = from == From::kRam && ram_is_doubtful;
    return choice;
  };
  const std::size_t free = found.empty.value_or(*found.oldest);

  if (found.best && found.n_best + kSameTokens >= std::max(n_ram, wanted.n_stored)) {
    if (!is_useful_to_others(found)) return choose(*found.best, From::kSlot, found.n_best);
    if (wanted.n_stored >= kSameTokens && wanted.n_stored + kSameTokens >= found.n_best) {
      return choose(*found.empty, From::kStore, wanted.n_stored);
    }
    if (found.n_best >= kLeastShare) return choose(*found.best, From::kSlot, found.n_best);
    return choose(*found.empty, From::kNothing, 0);
  }
  // RAM is quicker than the store, but only a belief. Of a prompt there that goes on otherwise than
  // this one, llama-server takes the greatest part, and not the most tokens: an older turn of the
  // conversation, which is still there as a whole, would hide the last one.
  const bool only_ram = n_ram > wanted.n_stored + kSameTokens;
  const bool has_as_much = n_ram > 0 && n_ram + kSameTokens >= wanted.n_stored;
  if (only_ram || (ram_is_seen_ && ram_is_continued && has_as_much)) {
    if (found.other) return choose(*found.other, From::kRam, n_ram);
    if (only_ram) return choose(free, From::kRam, n_ram);
  }
  // What is not known may be in a slot or in RAM, which an empty slot would hide. Of what cannot be
  // cut the store often has the beginning alone, as of a system prompt.
  const bool has_enough =
      rules_.can_cut ? 2 * wanted.n_stored >= wanted.n_tokens : wanted.n_stored >= kSameTokens;
  const bool may_be_there = rules_.is_older && rules_.may_use_ram && !has_enough;
  if (may_be_there) return choose(found.other.value_or(free), From::kRam, 0);
  if (wanted.n_stored >= kSameTokens) return choose(free, From::kStore, wanted.n_stored);
  return choose(free, From::kNothing, 0);
}

std::int64_t SlotTable::longest_common(std::string_view prompt, std::string_view tenant) const {
  const std::lock_guard lock(mutex_);
  std::int64_t longest = 0;
  for (const std::vector<KnownSlot>* const held : {&slots_, &ram_}) {
    for (const KnownSlot& each : *held) {
      if (each.tenant == tenant && each.n_tokens > 0) {
        longest = std::max(longest, common_bytes(each.prompt, prompt));
      }
    }
  }
  return longest;
}

bool SlotTable::continues_running(std::string_view prompt, std::string_view tenant) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(slots_.begin(), slots_.end(), [&](const KnownSlot& slot) {
    return slot.is_used && !slot.running.empty() && slot.tenant == tenant &&
           prompt.size() > slot.running.size() && prompt.starts_with(slot.running);
  });
}

std::optional<KnownSlot> SlotTable::try_take(
    std::size_t slot, const std::function<bool(const KnownSlot&)>& is_wanted) {
  const std::lock_guard lock(mutex_);
  if (slot >= slots_.size() || slots_[slot].is_used || slots_[slot].is_processing ||
      !is_wanted(slots_[slot])) {
    return std::nullopt;
  }
  KnownSlot& it = slots_[slot];
  KnownSlot before = it;
  before.epoch = epoch_;
  mark_in_use(slot);
  // The same prompt, and one that continues it, wait until the slot is saved.
  it.running = it.prompt;
  if (!it.running.empty()) it.running.pop_back();
  return before;
}

void SlotTable::note_task(std::size_t slot, std::int64_t task) {
  const std::lock_guard lock(mutex_);
  if (slot < slots_.size()) slots_[slot].task = task;
}

void SlotTable::release(std::size_t slot, KnownSlot now) {
  const std::lock_guard lock(mutex_);
  // What was taken before everything was forgotten says nothing about the slot of now.
  if (slot < slots_.size() && now.epoch != epoch_) {
    slots_[slot] = {};
    slots_[slot].change = ++change_;
  } else if (slot < slots_.size()) {
    if (now.has_changed && (n_foreign_running_ > 0 || foreign_at_take_[slot] != n_foreign_)) {
      now.is_doubtful = true;
      if (!rules_.may_use_ram) now.tenant.reset();
    }
    slots_[slot] = std::move(now);
    slots_[slot].is_used = false;
    slots_[slot].running.clear();
    slots_[slot].change = ++change_;
  }
  released_.notify_all();
}

void SlotTable::wait_for_change(std::uint64_t change, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  released_.wait_for(lock, limit, [&] { return change_ != change; });
}

void SlotTable::note_ram(std::string_view prompt, std::string_view tenant, bool was_there) {
  const std::lock_guard lock(mutex_);
  ram_is_seen_ = was_there;
  // The one that shares most with the prompt has left the RAM. If it was not there, older ones are
  // gone as well.
  auto nearest = ram_.end();
  for (auto each = ram_.begin(); each != ram_.end(); ++each) {
    if (each->tenant != tenant) continue;
    if (nearest == ram_.end() ||
        common_bytes(each->prompt, prompt) > common_bytes(nearest->prompt, prompt)) {
      nearest = each;
    }
  }
  if (nearest != ram_.end()) ram_.erase(was_there ? nearest : ram_.begin(), nearest + 1);
}

void SlotTable::note_nothing_older() {
  const std::lock_guard lock(mutex_);
  rules_.is_older = false;
}

void SlotTable::begin_foreign() {
  const std::lock_guard lock(mutex_);
  for (KnownSlot& slot : slots_) {
    if (slot.is_used || !slot.has_changed) continue;
    slot.is_doubtful = true;
    if (!rules_.may_use_ram) slot.tenant.reset();
  }
  ++n_foreign_;
  ++n_foreign_running_;
}

void SlotTable::end_foreign() {
  const std::lock_guard lock(mutex_);
  --n_foreign_running_;
}

std::vector<KnownSlot> SlotTable::snapshot() const {
  const std::lock_guard lock(mutex_);
  return slots_;
}

}  // namespace tqcache::serve
