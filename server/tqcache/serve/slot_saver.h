#pragma once
// server/tqcache/serve/slot_saver.h: what the slots of llama-server hold, put into the store.
//
// llama-server writes a slot into a file of the slot folder, which takes a moment. The file is put
// into the store in the background, after its tokens were compared with the prompt.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/serve/llama_server.h"
#include "tqcache/serve/operations.h"
#include "tqcache/serve/prompt_keeper.h"
#include "tqcache/serve/prompt_ledger.h"
#include "tqcache/serve/slot_folder.h"
#include "tqcache/serve/slot_table.h"

namespace tqcache::serve {

// Warnings of which the log shows one until something of its kind has succeeded.
//
// Threads: any number.
class Warnings {
 public:
  Warnings(Metrics& metrics, Log& log) : metrics_(metrics), log_(log) {}

  // Counts a failure of that kind, and logs it unless that was done already.
  void add(const std::string& kind, const std::string& message);
  void clear(const std::string& kind);

 private:
  Metrics& metrics_;
  Log& log_;
  std::mutex mutex_;
  std::set<std::string> shown_;
};

// Threads: any number.
class SlotSaver {
 public:
  struct Options {
    std::int64_t min_tokens = 256;   // shorter prompts are not kept
    PromptLedger* ledger = nullptr;  // learns what is kept; may be null
    // Whether so many bytes may be written now; takes them from the budget. May be empty.
    std::function<bool(std::uint64_t bytes)> may_write = {};
    std::function<void(std::uint64_t bytes)> wrote = {};  // into the store
    std::function<void(std::uint64_t bytes)> wrote_file =
        {};                               // more than may_write() was asked for
    std::function<void()> on_saved = {};  // called when the queue has one more
  };
  // All must outlive it.
  SlotSaver(Options options, SlotFolder& folder, PromptKeeper& keeper, const LlamaServer& server,
            SlotTable& table, Metrics& metrics, Log& log, Warnings& warnings);

  // Whether a slot holds tokens that should be in the store and are not.
  bool is_unsaved(const KnownSlot& slot) const;

  // Whether nobody uses such a slot, of those that `is_wanted` names.
  bool has_unsaved(const std::function<bool(const KnownSlot&)>& is_wanted = {}) const;

  // Lets llama-server write the slot into a file, and queues it. Requires: the order of tasks is
  // held; the slot is taken, and `now` is its state, which is updated.
  void save(std::size_t slot, KnownSlot& now, const char* reason);
  // The same for all free slots that are unsaved, or for those that `is_wanted` names. Requires:
  // the order of tasks is held, and the slots were just observed.
  void save_all(const char* reason, const std::function<bool(const KnownSlot&)>& is_wanted = {});

  // Puts the files of the queue into the store.
  // Returns false if a file stays in the queue, because the store or llama-server could not be
  // reached: it is tried again later.
  bool put_pending(std::chrono::steady_clock::time_point deadline);
  // Makes put_pending() return after the file that it is putting.
  void stop() { is_stopping_ = true; }
  void go_on() { is_stopping_ = false; }
  bool has_pending() const;
  // Waits until what this prompt may begin with is in the store; at most so long, and not for a
  // client that is gone.
  void wait_for(std::string_view prompt, std::string_view tenant, Client& client,
                std::chrono::milliseconds limit);
  void drop_pending();

 private:
  struct Pending {
    SlotFile file;
    std::size_t slot;
    KnownSlot known;
    std::shared_ptr<const PromptKeeper::Bound> bound;  // the model that has computed it
    std::string reason;
    int n_failed = 0;
  };

  Result<void> put(Pending& next);

  const Options options_;
  SlotFolder& folder_;
  PromptKeeper& keeper_;
  const LlamaServer& server_;
  SlotTable& table_;
  Metrics& metrics_;
  Log& log_;
  Warnings& warnings_;

  mutable std::mutex mutex_;  // of the queue
  std::condition_variable was_put_;
  std::deque<Pending> pending_;  // the first one counts until it is in the store
  std::mutex put_mutex_;         // one at a time
  std::atomic<bool> is_stopping_ = false;
};

}  // namespace tqcache::serve
