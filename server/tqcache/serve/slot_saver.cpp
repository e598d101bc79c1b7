#include "tqcache/serve/slot_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

namespace tqcache::serve {
namespace {

using Clock = std::chrono::steady_clock;

// Files that wait for the store; more are not written.
constexpr std::size_t kMaxPending = 16;
// The last tokens of a prompt may be others in the slot, because words are joined at its end.
constexpr std::int64_t kOtherEnd = 16;

}  // namespace

void Warnings::add(const std::string& kind, const std::string& message) {
  metrics_.add("tqcache_store_failures_total", 1, {{"what", kind}});
  const std::lock_guard lock(mutex_);
  if (shown_.insert(kind).second) log_.warning(kind, {{"message", message}});
}

void Warnings::clear(const std::string& kind) {
  const std::lock_guard lock(mutex_);
  shown_.erase(kind);
}

SlotSaver::SlotSaver(Options options, SlotFolder& folder, PromptKeeper& keeper,
                     const LlamaServer& server, SlotTable& table, Metrics& metrics, Log& log,
                     Warnings& warnings)
    : options_(std::move(options)),
      folder_(folder),
      keeper_(keeper),
      server_(server),
      table_(table),
      metrics_(metrics),
      log_(log),
      warnings_(warnings) {
  metrics.define("tqcache_saves_total", Metrics::Type::kCounter, "Slots saved, by reason.", false);
}

bool SlotSaver::is_unsaved(const KnownSlot& slot) const {
  return !slot.prompt.empty() && !slot.is_doubtful && slot.n_tokens >= options_.min_tokens &&
         slot.n_tokens > slot.n_stored;
}

bool SlotSaver::has_unsaved(const std::function<bool(const KnownSlot&)>& is_wanted) const {
  return std::ranges::any_of(table_.snapshot(), [&](const KnownSlot& slot) {
    return !slot.is_used && is_unsaved(slot) && (!is_wanted || is_wanted(slot));
  });
}

void SlotSaver::save(std::size_t slot, KnownSlot& now, const char* reason) {
  const auto drop = [&](const char* why) {
    metrics_.add("tqcache_saves_total", 1, {{"reason", why}});
  };
  {
    const std::lock_guard lock(mutex_);
    if (pending_.size() >= kMaxPending || keeper_.bound() == nullptr) return drop("dropped");
  }
  const auto bytes = static_cast<std::uint64_t>(table_.rules().bytes_per_token *
                                                static_cast<double>(now.n_tokens));
  if (options_.may_write && !options_.may_write(bytes)) {
    now.n_stored = now.n_tokens;  // not again for the same tokens
    return drop("over_budget");
  }
  SlotFile file(folder_);
  Result<void> written = file.create();
  if (written) {
    const auto saved = server_.save(static_cast<std::int64_t>(slot), file.name());
    if (!saved) {
      written = saved.error();
    } else {
      now.n_stored = *saved;
    }
  }
  if (!written) {
    if (written.error().code == ErrorCode::kInterrupted) return;  // it is tried once more
    warnings_.add("save", written.error().message);
    now.n_stored = now.n_tokens;  // not again for the same tokens
    return;
  }
  warnings_.clear("save");
  metrics_.add("tqcache_saves_total", 1, {{"reason", reason}});
  std::error_code ignored;
  const std::uintmax_t size = std::filesystem::file_size(file.path(), ignored);
  if (!ignored && now.n_stored > 0) {
    table_.set_bytes_per_token(static_cast<double>(size) / static_cast<double>(now.n_stored));
    if (size > bytes && options_.wrote_file) options_.wrote_file(size - bytes);
  }
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back({std::move(file), slot, now, keeper_.bound(), reason});
  }
  if (options_.on_saved) options_.on_saved();
}

void SlotSaver::save_all(const char* reason,
                         const std::function<bool(const KnownSlot&)>& is_wanted) {
  for (std::size_t slot = 0; slot < table_.size(); ++slot) {
    auto now = table_.try_take(slot, [&](const KnownSlot& each) {
      return is_unsaved(each) && (!is_wanted || is_wanted(each));
    });
    if (!now) continue;
    save(slot, *now, reason);
    table_.release(slot, *std::move(now));
  }
}

Result<void> SlotSaver::put(Pending& next) {
  const auto start = Clock::now();
  const KnownSlot& known = next.known;
  const std::string tenant = known.tenant.value_or("");
  TQC_TRY_ASSIGN(const std::shared_ptr<const ByteSource> file, next.file.open());
  TQC_TRY_ASSIGN(const std::vector<std::int32_t> prompt,
                 server_.tokens_of(known.prompt, known.is_tokens, nullptr));
  bool is_it = false;
  const auto check = [&](std::span<const std::int32_t> tokens) {
    // A request that was broken off has left a part of its prompt.
    const std::int64_t n =
        std::min<std::int64_t>(std::ssize(tokens), std::ssize(prompt) - kOtherEnd);
    is_it = n > 0 && std::equal(prompt.begin(), prompt.begin() + n, tokens.begin());
    return is_it;
  };
  const SlotFile scratch(folder_);
  const auto kept = keeper_.keep(next.bound, file, scratch.path(), tenant, check);
  if (!kept && kept.error().code == ErrorCode::kMismatch) {
    // Somebody else used the slot, or its context was shifted.
    log_.info("drop",
              {{"slot", std::to_string(next.slot)}, {"why", "the slot holds another prompt"}});
    return {};
  }
  if (!kept) return kept.error();
  if (options_.wrote) options_.wrote(kept->new_bytes);
  if (options_.ledger != nullptr) {
    const PromptLedger::Id id =
        options_.ledger->keep({tenant, keeper_.model_name()}, kept->tokens, "", std::time(nullptr));
    options_.ledger->add_bytes(id, kept->new_bytes);
  }
  log_.info("keep", {{"slot", std::to_string(next.slot)},
                     {"reason", next.reason},
                     {"tokens", std::to_string(kept->n_stored)},
                     {"file_bytes", std::to_string(kept->file_bytes)},
                     {"new_bytes", std::to_string(kept->new_bytes)},
                     {"seconds", fmt::format("{:.3f}", seconds_since(start))}});
  return {};
}

bool SlotSaver::put_pending(Clock::time_point deadline) {
  constexpr int kMostFailures = 30;
  const std::lock_guard one(put_mutex_);
  while (Clock::now() < deadline && !is_stopping_) {
    Pending* next = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (pending_.empty()) return true;
      next = &pending_.front();  // stays in its place while others are added
    }
    const Result<void> done = put(*next);
    if (done) {
      warnings_.clear("keep");
    } else if (done.error().code == ErrorCode::kInterrupted) {
      return false;  // the program ends; the queue is put at its end, when the store works again
    } else {
      warnings_.add("keep", done.error().message);
      const bool may_be_there_later =
          done.error().code == ErrorCode::kIo || done.error().code == ErrorCode::kBusy;
      if (may_be_there_later && ++next->n_failed < kMostFailures) return false;
    }
    const std::lock_guard lock(mutex_);
    pending_.pop_front();
    was_put_.notify_all();
  }
  return !has_pending();
}

bool SlotSaver::has_pending() const {
  const std::lock_guard lock(mutex_);
  return !pending_.empty();
}

void SlotSaver::wait_for(std::string_view prompt, std::string_view tenant, Client& client,
                         std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::unique_lock lock(mutex_);
  const auto is_there = [&] {
    return std::ranges::none_of(pending_, [&](const Pending& each) {
      const std::string_view other = each.known.prompt;
      const auto n = std::mismatch(other.begin(), other.end(), prompt.begin(), prompt.end()).first -
                     other.begin();
      return each.known.tenant == tenant && n > 0 &&
             n * 4 >= static_cast<std::ptrdiff_t>(std::min(other.size(), prompt.size()));
    });
  };
  while (!is_there() && Clock::now() < deadline && !client.is_gone()) {
    was_put_.wait_for(lock, std::chrono::milliseconds(50));
  }
}

void SlotSaver::drop_pending() {
  const std::lock_guard one(put_mutex_);
  const std::lock_guard lock(mutex_);
  pending_.clear();
}

}  // namespace tqcache::serve
