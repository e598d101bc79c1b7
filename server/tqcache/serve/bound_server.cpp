#include "tqcache/serve/bound_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "tqcache/serve/task_order.h"

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kRetryInterval{1000};
constexpr milliseconds kQuickly{50};

}  // namespace

bool BoundServer::is_ready() {
  if (state_.keeper == nullptr) return false;
  if (!must_bind_) return state_.keeper->bound() != nullptr;
  const std::lock_guard lock(mutex_);
  if (!must_bind_) return state_.keeper->bound() != nullptr;
  if (Clock::now() < next_bind_) return false;
  const auto start = Clock::now();
  const Result<void> bound = bind();
  // A server that refuses connections, or loads its model, may be there with the next request.
  const auto failed_with = [&](ErrorCode code) { return !bound && bound.error().code == code; };
  const bool may_be_there = failed_with(ErrorCode::kBusy) ||
                            (failed_with(ErrorCode::kIo) && Clock::now() - start < kQuickly);
  next_bind_ = Clock::now() + (may_be_there ? milliseconds(0) : kRetryInterval);
  state_.metrics.set("tqcache_keeping", bound ? 1 : 0);
  if (!bound) {
    const Error& error = bound.error();
    state_.warnings.add("bind",
                        error.file.empty() ? error.message : error.file + ": " + error.message);
    return false;
  }
  state_.warnings.clear("bind");
  next_bind_ = {};
  must_bind_ = false;
  return true;
}

Result<void> BoundServer::bind() {
  TQC_TRY_ASSIGN(const ServerProps props, state_.server.props());
  const bool is_same = props.model_path == props_.model_path && props.n_slots == props_.n_slots &&
                       props.n_ctx == props_.n_ctx && props.adapters == props_.adapters;
  // It goes on with what it was. What the slots hold is known.
  if (is_same && has_seen_server_ && state_.keeper->bound() != nullptr) return {};
  state_.keeper->unbind();
  if (props.is_router) {
    return unsupported(
        "the upstream server is a router for several models, which has no slots: start a "
        "tqcache serve for each of its servers; requests are passed on");
  }
  TQC_TRY_ASSIGN(PromptKeeper::Bound model, state_.keeper->read_model(props));
  state_.table.reset(static_cast<std::size_t>(props.n_slots));
  TQC_TRY(observe());
  if (!has_seen_server_.exchange(true)) {
    // Later the proxy's own tasks are there.
    is_older_ = std::ranges::any_of(state_.table.snapshot(),
                                    [](const KnownSlot& slot) { return slot.task.has_value(); });
  }
  if (!props.adapters.empty()) has_adapters_ = true;
  TQC_TRY_ASSIGN(const PromptKeeper::BoundModel bound, probe(std::move(model), props));
  props_ = props;
  set_rules();
  const SlotFileFormat& format = bound->format;
  state_.log.info("bound", {{"model", props.model_path},
                            {"slots", std::to_string(props.n_slots)},
                            {"unified", state_.table.rules().is_unified ? "yes" : "no"},
                            {"keys", format.k_type},
                            {"values", format.v_type},
                            {"version", std::to_string(format.version)}});
  return {};
}

void BoundServer::set_rules() {
  const PromptKeeper::BoundModel bound = state_.keeper->bound();
  SlotTable::Rules rules;
  rules.is_unified = state_.table.size() > 1 && bound != nullptr && bound->format.n_streams == 1;
  rules.may_use_ram = !state_.are_apart && !has_adapters_;
  rules.can_cut = bound == nullptr || bound->can_cut();
  rules.is_older = is_older_;
  state_.table.set_rules(rules);
}

Result<bool> BoundServer::observe() {
  const std::uint64_t change = state_.table.change();
  TQC_TRY_ASSIGN(const std::vector<SlotState> states, state_.server.slots());
  const bool was_restarted = state_.table.observe(states, change);
  if (was_restarted) {
    must_bind_ = true;  // maybe with another model
    has_seen_server_ = has_adapters_ = false;
  }
  return was_restarted;
}

bool BoundServer::is_asleep() const {
  const Result<bool> asleep = state_.server.is_sleeping();
  return !asleep || *asleep;
}

// Lets the server write a slot file, to see what it looks like, and read it again.
Result<PromptKeeper::BoundModel> BoundServer::probe(PromptKeeper::Bound model,
                                                    const ServerProps& props) {
  TaskOrder order(state_.table, *this, nullptr, Clock::now() + milliseconds(2000));
  // A slot that holds something, best little: a task would make llama-server clear others. If all
  // are empty, any.
  const std::vector<KnownSlot> slots = state_.table.snapshot();
  std::optional<std::size_t> least;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].is_used || slots[i].is_processing) continue;
    const auto rank = [&](std::size_t slot) {
      const std::int64_t n = slots[slot].n_tokens;
      return n == 0 ? std::numeric_limits<std::int64_t>::max() : n;
    };
    if (!least || rank(i) < rank(*least)) least = i;
  }
  auto now = least && order ? state_.table.try_take(*least, [](const KnownSlot&) { return true; })
                            : std::nullopt;
  if (!now) return Error{ErrorCode::kBusy, "all slots are in use"};
  auto bound = write_probe(std::move(model), props, *least, *now);
  now->prompt.clear();
  now->has_changed = now->n_tokens == 0;
  state_.table.release(*least, *now);
  [[maybe_unused]] const auto ignored = observe();
  if (!bound) state_.keeper->unbind();
  return bound;
}

Result<PromptKeeper::BoundModel> BoundServer::write_probe(PromptKeeper::Bound model,
                                                          const ServerProps& props,
                                                          std::size_t which, const KnownSlot& now) {
  const auto slot = static_cast<std::int64_t>(which);
  const bool was_empty = now.n_tokens == 0;
  if (was_empty) {
    TQC_TRY_ASSIGN(const std::vector<std::int32_t> tokens,
                   state_.server.tokenize("a b c d", nullptr));
    TQC_TRY(state_.server.read(slot, tokens, nullptr));
  }
  const SlotFile saved(*state_.folder);
  TQC_TRY(saved.create());
  TQC_TRY_ASSIGN(const std::int64_t n_saved, state_.server.save(slot, saved.name()));
  TQC_TRY_ASSIGN(const std::shared_ptr<const ByteSource> file, saved.open());
  if (n_saved > 0 && file->size() == 0) {
    return unsupported(
        fmt::format("the upstream server does not save slots to {}: start it with --slot-save-path",
                    state_.options.slot_dir.string()));
  }
  TQC_TRY_ASSIGN(PromptKeeper::BoundModel bound,
                 state_.keeper->bind(std::move(model), props, file));
  if (!was_empty) return bound;  // a conversation may go on there
  const Result<void> restored = try_restore(*bound, slot, file);
  TQC_TRY(state_.server.erase(slot));
  if (!restored) return restored.error();
  return bound;
}

// Whether the server takes a slot file that was read and written again, and what that changes.
Result<void> BoundServer::try_restore(const PromptKeeper::Bound& model, std::int64_t slot,
                                      const std::shared_ptr<const ByteSource>& saved) {
  const SlotFile ours(*state_.folder), again(*state_.folder);
  TQC_TRY(PromptKeeper::rewrite(model, saved, ours.path()));
  TQC_TRY(state_.server.restore(slot, ours.name(), nullptr));
  if (!model.can_cut()) return {};  // the files may have other checkpoints
  TQC_TRY(again.create());
  TQC_TRY(state_.server.save(slot, again.name()));
  TQC_TRY_ASSIGN(const std::shared_ptr<const ByteSource> written, again.open());
  if (saved->size() != written->size()) {
    return corrupt("the upstream server saves another slot file than the one it has restored");
  }
  Bytes before(static_cast<std::size_t>(saved->size())), after(before.size());
  TQC_TRY(saved->read_at(0, before));
  TQC_TRY(written->read_at(0, after));
  std::size_t n_other = 0;
  for (std::size_t i = 0; i < before.size(); ++i) n_other += before[i] != after[i];
  state_.log.info("probe",
                  {{"bytes", std::to_string(before.size())}, {"changed", std::to_string(n_other)}});
  return {};
}

void BoundServer::note_lost() {
  must_bind_ = true;
  has_seen_server_ = false;
}

void BoundServer::note_adapters() {
  // llama-server's RAM does not know with which adapters a prompt was computed.
  if (!has_adapters_.exchange(true) && state_.keeper != nullptr) set_rules();
}

void BoundServer::note_nothing_older() {
  state_.table.note_nothing_older();
  is_older_ = false;
}

}  // namespace tqcache::serve
