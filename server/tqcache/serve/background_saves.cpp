#include "tqcache/serve/background_saves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "tqcache/serve/task_order.h"

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kOrderInterval{20};
constexpr milliseconds kEndPatience{2000};
// How long a server may take at the end of the program to say whether it is there.
constexpr milliseconds kAnswerPatience{1000};
constexpr std::chrono::minutes kScoresInterval{1};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<std::pair<std::int64_t, std::int64_t>> take_usage(ProxyState& state) {
  const std::lock_guard lock(state.usage_mutex);
  return std::exchange(state.usage, {});
}

}  // namespace

BackgroundSaves::~BackgroundSaves() {
  state_.upstream->end_calls_at(Clock::now());
  stop_threads();
}

void BackgroundSaves::begin() {
  const ProxyOptions& options = state_.options;
  SlotSaver::Options saving;
  saving.min_tokens = options.min_tokens;
  saving.ledger = options.ledger;
  saving.on_saved = [this] { wake(false); };
  if (options.max_write) {
    budget_.emplace(*options.max_write);
    if (const auto loaded = budget_->load(budget_path(), seconds_now()); !loaded) {
      state_.log.warning("max-write", {{"message", loaded.error().message}});
    }
    saving.may_write = [this](std::uint64_t bytes) { return may_write(bytes); };
    saving.wrote_file = [this](std::uint64_t bytes) {
      if (!state_.folder->is_in_memory()) budget_->spend(bytes, seconds_now());
    };
    saving.wrote = [this](std::uint64_t bytes) { budget_->spend(bytes, seconds_now()); };
  }
  state_.saver =
      std::make_unique<SlotSaver>(saving, *state_.folder, *state_.keeper, state_.server,
                                  state_.table, state_.metrics, state_.log, state_.warnings);
  looker_ = std::thread([this] { look(); });
  putter_ = std::thread([this] { put(); });
}

std::string BackgroundSaves::budget_path() const {
  return state_.folder->path_of(".tqcache-serve.written").string();
}

// Whether a slot file of about so many bytes may be written. What is in memory wears no disk.
bool BackgroundSaves::may_write(std::uint64_t bytes) {
  if (budget_->try_spend(state_.folder->is_in_memory() ? 0 : bytes, seconds_now())) {
    state_.warnings.clear("max-write");
    return true;
  }
  state_.warnings.add(
      "max-write", fmt::format("as much was written as --max-write allows: no prompt is saved for "
                               "the next {:.0f} minutes",
                               std::ceil(budget_->seconds_until(bytes, seconds_now()) / 60)));
  return false;
}

void BackgroundSaves::save_budget() {
  if (!budget_) return;
  if (const auto saved = budget_->save(budget_path(), seconds_now()); !saved) {
    state_.warnings.add("max-write", saved.error().message);
  }
}

void BackgroundSaves::wake(bool must_look) {
  const std::lock_guard lock(mutex_);
  must_look_ = must_look_ || must_look;
  wake_.notify_all();
}

void BackgroundSaves::flush(milliseconds limit) {
  // A thread may wait for the server.
  state_.upstream->end_calls_at(Clock::now() + kAnswerPatience);
  stop_threads();
  if (state_.keeper == nullptr) return;
  save_scores();
  const auto deadline = Clock::now() + limit;
  state_.saver->go_on();
  const bool is_unsaved = state_.saver->has_unsaved();
  if (is_unsaved || state_.saver->has_pending()) save_rest(deadline, is_unsaved);
  state_.saver->drop_pending();
  state_.keeper->note_rest();
  save_budget();
}

void BackgroundSaves::save_rest(Clock::time_point deadline, bool is_unsaved) {
  // A server that does not say in time whether it sleeps would not save a slot either.
  state_.upstream->end_calls_at(std::min(deadline, Clock::now() + kAnswerPatience));
  const Result<bool> asleep = state_.server.is_sleeping();
  if (asleep) state_.upstream->end_calls_at(deadline);
  // The slots first: they end with the server, which may be told to end, too. A server that
  // sleeps has none any more, and is not woken for nothing.
  if (is_unsaved && asleep && !*asleep) {
    if (TaskOrder order(state_.table, bound_, nullptr, deadline); order) {
      // A request that was broken off ends in the server a moment later.
      const auto patience = std::min(deadline, Clock::now() + kEndPatience);
      while (bound_.observe() && Clock::now() < patience &&
             std::ranges::any_of(state_.table.snapshot(), &KnownSlot::is_processing)) {
        std::this_thread::sleep_for(kOrderInterval);
      }
      state_.saver->save_all("shutdown");
    }
  }
  while (!state_.saver->put_pending(deadline) && asleep && Clock::now() < deadline) {
    std::this_thread::sleep_for(kOrderInterval);
  }
}

// Looks at the slots after each request, and saves what has rested. The server is not asked
// without need: that would wake it.
void BackgroundSaves::look() {
  std::unique_lock lock(mutex_);
  while (!must_stop_) {
    wake_.wait_for(lock, look_interval(), [this] { return must_stop_ || must_look_; });
    if (must_stop_) return;
    const bool must_look = std::exchange(must_look_, false);
    lock.unlock();
    if (bound_.must_bind()) {
      if (const auto asleep = state_.server.is_sleeping(); !asleep || !*asleep) bound_.is_ready();
    } else if (must_look) {
      [[maybe_unused]] const auto ignored = bound_.observe();
    }
    if (!bound_.must_bind()) save_resting();
    lock.lock();
  }
}

// Requires: mutex_ is held.
milliseconds BackgroundSaves::look_interval() const {
  const milliseconds most(1000);
  return bound_.must_bind() ? most
                            : std::clamp(state_.options.idle_save / 4, milliseconds(10), most);
}

void BackgroundSaves::save_resting() {
  const auto has_rested = [&](const KnownSlot& slot) {
    return !slot.has_changed && Clock::now() - slot.last_use >= state_.options.idle_save;
  };
  if (!state_.saver->has_unsaved(has_rested) || bound_.is_asleep()) return;
  TaskOrder order(state_.table, bound_, nullptr, Clock::now() + milliseconds(1000));
  if (!order) return;
  const auto was_restarted = bound_.observe();
  if (was_restarted && !*was_restarted) state_.saver->save_all("idle", has_rested);
}

// Puts saved slots into the store.
void BackgroundSaves::put() {
  auto next_scores = Clock::now() + kScoresInterval;
  bool has_failed = false;  // the store, or the upstream server, could not be reached
  std::unique_lock lock(mutex_);
  while (!must_stop_) {
    wake_.wait_for(lock, milliseconds(1000),
                   [&] { return must_stop_ || (!has_failed && state_.saver->has_pending()); });
    if (must_stop_) return;
    lock.unlock();
    has_failed = !state_.saver->put_pending(Clock::time_point::max());
    for (const auto& [n_wanted, n_found] : take_usage(state_)) {
      state_.keeper->note_usage(n_wanted, n_found);
    }
    if (Clock::now() >= next_scores) {
      save_scores();
      save_budget();
      state_.keeper->note_rest();
      next_scores = Clock::now() + kScoresInterval;
    }
    lock.lock();
  }
}

void BackgroundSaves::save_scores() {
  if (const auto saved = state_.keeper->save_scores(); !saved) {
    state_.warnings.add("scores", saved.error().message);
  } else {
    state_.warnings.clear("scores");
  }
}

void BackgroundSaves::stop_threads() {
  {
    const std::lock_guard lock(mutex_);
    must_stop_ = true;
    wake_.notify_all();
  }
  if (state_.saver != nullptr) state_.saver->stop();
  if (looker_.joinable()) looker_.join();
  if (putter_.joinable()) putter_.join();
}

}  // namespace tqcache::serve
