#pragma once
// server/tqcache/serve/slot_table.h: what a proxy knows about the slots of llama-server, and where
// the next prompt is best computed.
//
// llama-server with its default options copies idle slots to its prompt cache in RAM when a task
// starts, and clears them (--cache-idle-slots). So a slot holds what llama-server said last, and
// tasks are sent one after the other: the next one is decided when the last one has begun.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/serve/http_message.h"
#include "tqcache/serve/llama_server.h"
#include "tqcache/serve/prompt_reuse.h"

namespace tqcache::serve {

// A slot as the proxy believes it to be. A wrong belief costs time only: llama-server compares the
// tokens of a prompt with those of the slot itself.
struct KnownSlot {
  std::string prompt;                 // the last one that was sent to it; empty: unknown, or none
  bool is_tokens = false;             // that prompt was given as tokens (Asked)
  std::optional<std::string> tenant;  // whose tokens it holds; absent: unknown
  std::int64_t n_tokens = 0;          // that it held when that was last asked; 0: it is empty
  std::int64_t n_stored = 0;          // of these, known to be in the store
  std::int64_t n_prompt = 0;          // of the last prompt; the answer follows. 0: unknown
  // Tokens of the last prompt and its answer. If the slot holds fewer, its context was shifted. 0:
  // unknown, or compared already.
  std::int64_t n_expected = 0;
  // Values that were computed behind tokens which have left the slot, or in another way than the
  // prompt alone would be. The slot may go on, but is not stored.
  bool is_doubtful = false;
  std::optional<std::int64_t> task;
  std::string running;         // the prompt of the request that uses it
  std::uint64_t change = 0;    // SlotTable::change() when it was taken or released last
  std::uint64_t epoch = 0;     // number of SlotTable::reset() when it was taken
  bool is_used = false;        // by a request, or while it is saved
  bool is_sent = false;        // the request that uses it was sent
  bool is_processing = false;  // as llama-server says, for whomever
  bool has_changed = false;    // by a request since `task` was last read
  bool was_answered = false;   // that request was: if `task` is the same, another slot was used
  std::chrono::steady_clock::time_point last_use;
};

// Threads: any number.
class SlotTable {
 public:
  // How long a prompt waits for the running request that it continues.
  static constexpr std::chrono::milliseconds kPatience{2000};
  // Differences of so many tokens do not matter.
  static constexpr std::int64_t kSameTokens = 16;

  explicit SlotTable(std::chrono::milliseconds patience = kPatience) : patience_(patience) {}

  // Forgets everything, for instance because the upstream server was restarted. Slots in use stay
  // so until they are released.
  void reset(std::size_t n_slots);
  std::size_t size() const;

  // What decides about slots beside what they hold.
  struct Rules {
    // All slots share one memory, so that llama-server may clear idle ones when a task starts.
    bool is_unified = false;
    // Prompts in llama-server's RAM may be used. It does not know whose they are, nor with which
    // adapters they were computed.
    bool may_use_ram = true;
    // A prompt can be cut anywhere: all layers have full attention. Otherwise llama-server goes
    // back to a checkpoint where a prompt goes on otherwise than a slot, and nothing is known of
    // those.
    bool can_cut = true;
    // The server has worked before this proxy began: slots and RAM may have prompts of which
    // nothing is known.
    bool is_older = false;
    double bytes_per_token = 0;  // of a slot; 0: unknown
  };
  // All but bytes_per_token.
  void set_rules(const Rules& rules);
  void set_bytes_per_token(double bytes);
  Rules rules() const;

  // Grows whenever a slot is taken or released.
  std::uint64_t change() const;

  // Takes note of what the server says about its slots. A slot that did something that this proxy
  // did not ask for, or that lost its history in a restart, has unknown content from then on. A
  // slot that was cleared is empty, and what it held is expected in the server's RAM. Returns
  // whether the server has been restarted.
  //
  // `change` is that of the moment before the server was asked: what it says about slots that were
  // used since then is out of date.
  bool observe(const std::vector<SlotState>& states, std::uint64_t change);

  // --- The order of tasks. A task is sent only while its sender holds the order, which another
  // one gets when the server has begun that task.

  // Waits until nobody holds the order, and takes it. Returns a number for the calls below; 0: not
  // within `limit`.
  std::uint64_t take_order(std::chrono::milliseconds limit);
  // The task is about to be sent, to this slot, or to one that the server chooses. The order ends
  // when observe() sees that it has begun, or with end_order(). If the server chooses, it ends
  // after kSendingLimit, because the server may let the task wait for a slot.
  void sending(std::uint64_t order, std::optional<std::size_t> slot);
  static constexpr std::chrono::milliseconds kSendingLimit{2000};
  // The slot in which the last task began that was sent without one; absent: not seen.
  std::optional<std::size_t> begun_in(std::uint64_t order) const;
  // Ends the order, unless it has ended already.
  void end_order(std::uint64_t order);
  // Whether the holder waits for the server, which should be asked then.
  bool is_sending() const;

  // --- Choosing

  using From = ReuseSource;
  // A prompt, and what the store has of it.
  struct Wanted {
    std::string_view prompt;
    std::string_view tenant;
    std::int64_t n_tokens = 0;
    std::int64_t n_stored = 0;
    // The tokens of its first longest_common() bytes: those of other places are estimated.
    std::int64_t common_bytes = 0;
    std::int64_t common_tokens = 0;
  };
  struct Choice {
    std::size_t slot = 0;
    KnownSlot before = {};       // its state at that moment
    bool is_doubtful = false;    // what is in RAM: KnownSlot
    From from = From::kNothing;  // where the beginning of the prompt is
    std::int64_t n_tokens = 0;   // of that beginning, about
    // The slot is empty, and llama-server looks into its RAM only for slots that are not.
    bool must_prime = false;
  };
  // Takes the free slot that holds a prompt which this one continues by little: then nothing else
  // can be better. nullopt: there is none.
  std::optional<Choice> take_continued(std::string_view prompt, std::string_view tenant);
  // Takes a free slot for the way that computes the fewest tokens. A slot with another conversation
  // is left alone while one is empty, if it keeps its content. nullopt: all slots are in use, or
  // the prompt should wait for the running request that it continues.
  std::optional<Choice> take(const Wanted& wanted, bool is_patient);
  // The most bytes that a prompt has in common with what a slot holds, or the server's RAM.
  std::int64_t longest_common(std::string_view prompt, std::string_view tenant) const;
  // Whether such a request runs.
  bool continues_running(std::string_view prompt, std::string_view tenant) const;
  // Takes this slot if nobody uses it and its state is the wanted one. A slot that is not wanted is
  // not in use for a moment: a request that comes then would take another one.
  std::optional<KnownSlot> try_take(std::size_t slot,
                                    const std::function<bool(const KnownSlot&)>& is_wanted);

  // The last task of a slot that its taker uses for more than one.
  void note_task(std::size_t slot, std::int64_t task);
  // Gives a slot back, with what is known about it now. Requires: taken.
  void release(std::size_t slot, KnownSlot now);
  // Another slot than the one that was taken is used: gives the first one back as it was before.
  // Returns false if the other one is in use.
  bool move(std::size_t from, const KnownSlot& before, std::size_t to);
  // Waits until a slot is taken or released after `change`, at most so long.
  void wait_for_change(std::uint64_t change, std::chrono::milliseconds limit);

  // What came of a choice From::kRam of a known prompt: that it was not there shows that the server
  // has less RAM for prompts than was thought, or none.
  void note_ram(std::string_view prompt, std::string_view tenant, bool was_there);
  // A prompt was looked for that may have been there from before this proxy began
  // (Rules::is_older), and was not: the next ones are not looked for.
  void note_nothing_older();

  // A request that the proxy cannot follow begins to run. What is in use until it ends is doubtful.
  void begin_foreign();
  void end_foreign();

  std::vector<KnownSlot> snapshot() const;
  std::chrono::milliseconds patience() const { return patience_; }

 private:
  struct Order {
    std::uint64_t number = 0;  // 0: nobody holds it
    bool is_sent = false;
    std::optional<std::size_t> slot;
    std::vector<std::optional<std::int64_t>> tasks = {};  // of all slots, before
    std::chrono::steady_clock::time_point sent = {};
  };

  // The free slots that a prompt could use.
  struct Candidates {
    std::optional<std::size_t> best;    // shares most with the prompt
    std::int64_t n_best = 0;            // tokens
    bool best_is_continued = false;     // the prompt goes on from what it holds
    std::optional<std::size_t> oldest;  // was used longest ago
    std::optional<std::size_t> empty;
    // Not empty, used longest ago, and less than half of it is used: then llama-server looks into
    // its RAM.
    std::optional<std::size_t> other;
  };
  Candidates candidates(const Wanted& wanted) const;
  void mark_in_use(std::size_t slot);
  // Where idle slots are cleared anyway, nobody loses by their use.
  bool is_useful_to_others(const Candidates& found) const {
    return !found.best_is_continued && !(rules_.is_unified && ram_is_seen_) && found.empty;
  }
  Choice take_slot(std::size_t slot, From from, std::int64_t n_tokens, std::string_view prompt,
                   std::string_view tenant);
  void remember_in_ram(const KnownSlot& slot);
  void note_begun(const std::vector<SlotState>& states);

  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::vector<KnownSlot> slots_;
  Rules rules_;
  std::uint64_t change_ = 0;
  Order order_;
  std::uint64_t last_order_ = 0;
  std::uint64_t begun_order_ = 0;  // the last one without a slot that was seen to begin
  std::size_t begun_slot_ = 0;
  std::uint64_t epoch_ = 0;
  // What llama-server is expected to have in RAM, the oldest first.
  std::vector<KnownSlot> ram_;
  bool ram_is_seen_ = false;  // it was seen to clear a slot, or to find a prompt there
  int n_foreign_running_ = 0;
  std::uint64_t n_foreign_ = 0;
  std::vector<std::uint64_t> foreign_at_take_;  // n_foreign_ when each slot was taken
};

}  // namespace tqcache::serve
