#pragma once
// serve/prompt_ledger.h: the prompts that a server keeps, with their hits, for its page.
//
// An entry is a chain of whole token blocks: a text that continues all blocks of another takes over
// its entry, as a conversation does with each turn. Entries hold no tokens, only hashes of blocks.
// These are not cryptographic: statistics alone depend on them.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tqcache::serve {

// Hashes of the complete token blocks of a text: each covers all tokens up to its end.
std::vector<std::uint64_t> block_chain(std::span<const std::int32_t> tokens);

struct KeptPrompt {
  std::uint64_t id = 0;
  std::string tenant;  // as given to PromptLedger::note()
  std::string model;
  std::string text = {};  // how it begins; empty unless the server may show it
  std::int64_t n_tokens = 0;
  std::uint64_t stored_bytes = 0;  // that it added to the store
  std::int64_t hits = 0;           // prompts that began with tokens of this one
  std::int64_t hit_tokens = 0;     // that they did not compute
  double saved_seconds = 0;        // what computing them would have taken, at a guess
  std::int64_t created = 0;        // seconds since 1970
  std::int64_t used = 0;
  std::vector<std::uint64_t> chain = {};
};

// What happened to one prompt.
struct PromptEvent {
  std::string tenant;
  std::string model;
  std::string text = {};
  std::int64_t prompt_tokens = 0;  // of `tokens`; the rest is the answer
  std::span<const std::int32_t> tokens;
  std::int64_t cached_tokens = 0;
  double saved_seconds = 0;
  std::int64_t now = 0;  // seconds since 1970
};

// Threads: any number.
class PromptLedger {
 public:
  using Id = std::uint64_t;
  static constexpr std::size_t kMaxEntries = 1000;  // the least recently used are dropped

  // Counts a hit for the entry that shares the most token blocks with the prompt, if tokens were
  // cached. Then adds an entry, or extends the one that the text continues. Returns its id.
  Id note(const PromptEvent& event);

  // Sets the bytes that a prompt added to the store, in addition to those of finish_bytes().
  void set_bytes(Id id, std::uint64_t bytes);
  // Adds to the bytes for good, and ends set_bytes().
  void finish_bytes(Id id, std::uint64_t bytes);

  // Entries of a tenant, or of all, the most recently used first.
  std::vector<KeptPrompt> entries(std::optional<std::string_view> tenant) const;

 private:
  struct Slot {
    KeptPrompt prompt;
    std::uint64_t finished_bytes = 0;
  };
  Slot* find(Id id);
  void drop_oldest();

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  Id next_ = 1;
};

}  // namespace tqcache::serve
