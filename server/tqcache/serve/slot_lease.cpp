#include "tqcache/serve/slot_lease.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <string_view>
#include <utility>

#include "tqcache/serve/llama_answer.h"

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;

// Fewer tokens than announced may be reused without a warning.
constexpr std::int64_t kMissingTokens = 256;
// It is worth a file to compute so many tokens never again.
constexpr std::int64_t kLeastCommon = 256;
constexpr std::size_t kTailBytes = std::size_t{16} << 10;
// Of a stream whose first event says what was reused.
constexpr std::size_t kHeadBytes = std::size_t{4} << 10;

}  // namespace

// Passes an answer on and remembers its beginning and its end.
class SlotLease::WatchingSink : public Sink {
 public:
  WatchingSink(Sink& sink, SlotLease& lease, bool is_first)
      : sink_(sink), lease_(lease), is_first_(is_first) {}
  bool write(std::string_view bytes) override {
    std::string& head = lease_.head_;
    if (is_first_ && head.size() < kHeadBytes) head += bytes.substr(0, kHeadBytes - head.size());
    std::string& tail = lease_.tail_;
    tail += bytes;
    if (tail.size() > 2 * kTailBytes) tail.erase(0, tail.size() - kTailBytes);
    return sink_.write(bytes);
  }

 private:
  Sink& sink_;
  SlotLease& lease_;
  const bool is_first_;
};

Response SlotLease::watched(Response response, std::shared_ptr<SlotLease> lease, bool is_first) {
  if (!response.stream) return response;
  response.stream = [lease = std::move(lease), is_first,
                     inner = std::move(response.stream)](Sink& sink) {
    WatchingSink watching(sink, *lease, is_first);
    return inner(watching);
  };
  return response;
}

void SlotLease::note_sent() {
  was_sent_ = was_touched_ = true;
  now.has_changed = true;
}

bool SlotLease::prepare(std::optional<PromptLookup>& lookup, const std::string& tenant,
                        const LlamaServer& server, Client& client, Clock::time_point deadline,
                        std::optional<TaskOrder>& order) {
  using From = SlotTable::From;
  const auto slot = static_cast<std::int64_t>(choice.slot);
  const bool goes_on = choice.from == From::kSlot && !lookup;
  if (state_.table.rules().is_unified) state_.saver->save_all("evict");
  was_touched_ = !goes_on;
  if (!goes_on && state_.saver->is_unsaved(now)) state_.saver->save(choice.slot, now, "evict");

  // Unknown content may be of another client, or of adapters.
  const bool is_own =
      now.tenant ? *now.tenant == tenant : !state_.are_apart && !bound_.has_adapters();
  if (choice.from == From::kSlot && is_own) {
    now.n_stored = std::min(now.n_stored, choice.n_tokens);
    return true;
  }
  now.is_doubtful = choice.is_doubtful;
  now.n_stored = choice.from == From::kRam ? lookup->found.n_tokens() : 0;
  now.prompt.clear();
  const bool may_use_ram = state_.table.rules().may_use_ram;
  if (!is_own || (now.n_tokens > 0 && !may_use_ram && choice.from != From::kSlot)) {
    // The server would reuse what two prompts have in common, and so tell one client what another
    // has sent; or look into its RAM.
    if (const auto erased = state_.server.erase(slot); !erased) {
      state_.warnings.add("erase", erased.error().message);
      return false;
    }
    state_.warnings.clear("erase");
  }
  if (choice.from == From::kStore) {
    const Result<std::int64_t> n = restore(*lookup, server, client, deadline, order);
    if (n) {
      state_.warnings.clear("restore");
    } else {
      if (n.error().code != ErrorCode::kInterrupted) {
        state_.warnings.add("restore", n.error().message);
      }
      choice.from = From::kNothing;
      choice.n_tokens = 0;
    }
  } else if (choice.must_prime) {
    // llama-server looks into its RAM only for a slot that holds something else.
    read_another(lookup->tokens);
  }
  return true;
}

// Computes a token that the prompt does not begin with.
void SlotLease::read_another(std::span<const std::int32_t> prompt) {
  const std::array<std::int32_t, 1> token = {!prompt.empty() && prompt[0] == 1 ? 2 : 1};
  [[maybe_unused]] const auto ignored =
      state_.server.read(static_cast<std::int64_t>(choice.slot), token, nullptr);
}

void SlotLease::compute_common(const PromptLookup& lookup, const Asked& asked,
                               const std::string& tenant, const LlamaServer& server, Client& client,
                               Clock::time_point deadline, std::optional<TaskOrder>& order) {
  const std::int64_t n =
      std::min<std::int64_t>(lookup.found.prefix.n_known, std::ssize(lookup.tokens) - 1);
  const std::int64_t n_there = std::max(
      lookup.found.n_tokens(), choice.from == SlotTable::From::kNothing ? 0 : choice.n_tokens);
  if (state_.table.rules().can_cut ||
      n < std::max(state_.options.min_tokens, n_there + kLeastCommon)) {
    return;
  }
  const auto slot = static_cast<std::int64_t>(choice.slot);
  order->sending(choice.slot);
  note_sent();
  now.prompt.clear();
  const auto computed =
      server.read(slot, std::span(lookup.tokens).first(static_cast<std::size_t>(n)), &client);
  // Others could take the order when that task had begun.
  order.emplace(state_.table, bound_, &client, deadline);
  if (!computed) {
    if (computed.error().code != ErrorCode::kInterrupted) {
      state_.warnings.add("common", computed.error().message);
    }
    return;
  }
  n_ahead_ = *computed;
  state_.metrics.add("tqcache_computed_tokens_total", static_cast<double>(n_ahead_));
  state_.metrics.add("tqcache_common_tokens_total", static_cast<double>(n_ahead_));
  if (!*order) return;
  // Meanwhile the server may have been restarted, or another task has begun and cleared the slot.
  if (const auto was_restarted = bound_.observe(); !was_restarted || bound_.must_bind()) return;
  const auto states = state_.server.slots();
  if (!states) return;
  const auto state = std::ranges::find(*states, slot, &SlotState::id);
  if (state == states->end() || !state->task) return;
  now.task = state->task;
  now.n_tokens = state->n_tokens;
  now.n_stored = 0;
  state_.table.note_task(choice.slot, *now.task);
  if (now.n_tokens == 0) return read_another(lookup.tokens);  // llama-server has it in its RAM
  KnownSlot common = now;
  common.prompt = asked.prompt;
  common.is_tokens = !asked.tokens.empty();
  common.tenant = tenant;
  common.is_doubtful = false;
  state_.saver->save(choice.slot, common, "common");
  now.n_stored = common.n_stored;
}

// Writes the slot file without the order of tasks, since that may take a while.
Result<std::int64_t> SlotLease::restore(PromptLookup& lookup, const LlamaServer& server,
                                        Client& client, Clock::time_point deadline,
                                        std::optional<TaskOrder>& order) {
  const auto start = Clock::now();
  order.reset();
  const SlotFile file(*state_.folder);
  const auto written = state_.keeper->write_slot_file(lookup.found, lookup.tokens, file.path());
  order.emplace(state_.table, bound_, &client, deadline);
  if (!*order) return interrupted_error();
  // Meanwhile others may have ended, or the server was restarted with another model.
  if (const auto was_restarted = bound_.observe(); !was_restarted || bound_.must_bind()) {
    return Error{ErrorCode::kBusy, "the upstream server was restarted meanwhile"};
  }
  if (state_.table.rules().is_unified) state_.saver->save_all("evict");
  if (!written) return written.error();
  const auto slot = static_cast<std::int64_t>(choice.slot);
  auto restored = server.restore(slot, file.name(), &client);
  if (!restored && state_.table.rules().is_unified) {
    // There may be no room beside the idle slots, which llama-server clears when a task begins.
    read_another({});
    restored = server.restore(slot, file.name(), &client);
  }
  if (!restored || *restored != *written) {
    // The slot holds what nobody knows.
    [[maybe_unused]] const Result<void> ignored = state_.server.erase(slot);
    if (!restored) return restored.error();
    return corrupt(fmt::format("{} of {} tokens were restored", *restored, *written));
  }
  restored_.assign(lookup.tokens.begin(), lookup.tokens.begin() + *written);
  now.n_stored = choice.n_tokens = *written;
  state_.metrics.add("tqcache_restores_total");
  state_.metrics.add("tqcache_restored_tokens_total", static_cast<double>(*written));
  state_.metrics.add("tqcache_restore_seconds_total", seconds_since(start));
  state_.log.info("restore", {{"slot", std::to_string(slot)},
                              {"tokens", std::to_string(*written)},
                              {"of", std::to_string(lookup.n_tokens)},
                              {"seconds", fmt::format("{:.3f}", seconds_since(start))}});
  return *written;
}

// Tells where the tokens of a prompt came from.
void SlotLease::report(std::int64_t n_reused) {
  reuse.n_tokens = now.n_prompt;
  reuse.n_reused = n_reused;
  if (n_reused == 0) reuse.from = ReuseSource::kNothing;
  if (n_reused > 0 && reuse.from == ReuseSource::kNothing) reuse.from = ReuseSource::kSlot;
  count_reuse(state_.metrics, reuse);
  state_.log.info("prompt", reuse_fields(reuse));
  if (state_.options.ledger != nullptr) state_.options.ledger->note(now.tenant.value_or(""), reuse);
}

// What the answer said about the tokens of the prompt and of the slot.
void SlotLease::read_answer() {
  using From = SlotTable::From;
  const AnswerEnd end = read_answer_end(tail_, head_);
  if (!end.n_computed) return;
  const std::int64_t n_computed = *end.n_computed;
  const std::int64_t n_reused = std::max<std::int64_t>(end.n_reused.value_or(0) - n_ahead_, 0);
  state_.metrics.add("tqcache_computed_tokens_total", static_cast<double>(n_computed));
  now.n_prompt = end.n_reused.value_or(0) + n_computed;
  now.n_expected = end.n_predicted ? now.n_prompt + *end.n_predicted - 1 : 0;
  now.n_tokens = std::max(now.n_prompt, now.n_expected);  // until the server is asked
  if (choice.from == From::kNothing && n_reused > 0 && bound_.has_adapters()) {
    now.is_doubtful = true;
  }
  if (n_reused == 0) now.is_doubtful = false;
  now.is_doubtful = now.is_doubtful || end.truncated;
  if (n_computed >= 16 && end.prompt_ms) {
    state_.seconds_per_token = *end.prompt_ms / 1000 / static_cast<double>(n_computed);
  }
  report(n_reused);
  const std::string tenant = now.tenant.value_or("");
  if (choice.from == From::kRam && choice.n_tokens > 0) {
    state_.table.note_ram(now.prompt, tenant, 2 * n_reused >= choice.n_tokens);
  } else if (choice.from == From::kRam && 2 * n_reused < n_computed) {
    bound_.note_nothing_older();
  }
  if (choice.from == From::kStore) {
    const double n_seconds = static_cast<double>(n_reused) * state_.seconds_per_token.load();
    state_.metrics.add("tqcache_saved_seconds_total", n_seconds);
    if (state_.options.ledger != nullptr) {
      state_.options.ledger->hit({tenant, state_.keeper->model_name()}, restored_, n_reused,
                                 n_seconds, std::time(nullptr));
    }
    if (n_reused + kMissingTokens < choice.n_tokens) {
      state_.warnings.add("reuse", fmt::format("the upstream server used {} of {} restored tokens",
                                               n_reused, choice.n_tokens));
    }
  }
}

SlotLease::~SlotLease() {
  read_answer();
  // Nothing has happened to the slot: the client left before.
  if (!was_touched_) now = choice.before;
  if (!restored_.empty() && now.prompt.empty()) {
    // Nobody has used what was restored, and nothing would show whose it is.
    [[maybe_unused]] const auto ignored =
        state_.server.erase(static_cast<std::int64_t>(choice.slot));
    now.n_tokens = 0;
  }
  now.last_use = Clock::now();
  state_.table.release(choice.slot, std::move(now));
  state_.on_request_end(was_sent_);
}

bool erase_others(ProxyState& state, const std::string& tenant) {
  if (!state.are_apart) return true;
  const std::vector<KnownSlot> slots = state.table.snapshot();
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    const auto is_of_another = [&](const KnownSlot& each) {
      return each.tenant != tenant && (each.n_tokens > 0 || each.has_changed || each.tenant);
    };
    if (slots[slot].tenant == tenant) continue;
    if (slots[slot].is_used || slots[slot].is_processing) return false;
    auto now = state.table.try_take(slot, is_of_another);
    if (!now) continue;
    const auto erased = state.server.erase(static_cast<std::int64_t>(slot));
    if (erased) {
      KnownSlot empty;
      empty.task = now->task;
      empty.epoch = now->epoch;
      *now = empty;
    } else {
      state.warnings.add("erase", erased.error().message);
    }
    state.table.release(slot, *std::move(now));
    if (!erased) return false;
  }
  return true;
}

}  // namespace tqcache::serve
