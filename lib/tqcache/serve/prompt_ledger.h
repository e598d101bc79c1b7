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

#include "tqcache/error.h"

namespace tqcache::serve {

// Hashes of the complete token blocks of a text: each covers all tokens up to its end.
std::vector<std::uint64_t> block_chain(std::span<const std::int32_t> tokens);

struct KeptPrompt {
  std::uint64_t id = 0;
  std::string tenant;  // a digest
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

// Whose prompts they are, and of which model. The ledger keeps a digest of the tenant only.
struct PromptOwner {
  std::string tenant;
  std::string model;
};

// Threads: any number.
class PromptLedger {
 public:
  using Id = std::uint64_t;
  static constexpr std::size_t kMaxEntries = 1000;  // the least recently used are dropped

  // A prompt begins with tokens that did not have to be computed. Counts for the entry that shares
  // the most token blocks with it, if there is one. `now`: seconds since 1970.
  void hit(const PromptOwner& owner, std::span<const std::int32_t> prompt,
           std::int64_t cached_tokens, double saved_seconds, std::int64_t now);

  // These tokens are kept now. Adds an entry, or extends the one that they continue. Returns its
  // id. `text`: how they begin, or empty.
  Id keep(const PromptOwner& owner, std::span<const std::int32_t> tokens, std::string text,
          std::int64_t now);

  // Sets the bytes that a prompt added to the store, in addition to those of add_bytes().
  void set_bytes(Id id, std::uint64_t bytes);
  // Adds to the bytes for good, and ends set_bytes().
  void add_bytes(Id id, std::uint64_t bytes);

  // Entries of a tenant, or of all, the most recently used first.
  std::vector<KeptPrompt> entries(std::optional<std::string_view> tenant) const;

  // All entries as JSON, without their texts; and back. Entries of before stay.
  // Errors: kCorrupt; kTooLarge. Safe for untrusted input.
  std::string to_json() const;
  Result<void> add_json(std::string_view text);

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

// The ledger in a file. Errors: those of files and of add_json(); a missing file is no error.
Result<void> load_ledger(const std::string& path, PromptLedger& ledger);
Result<void> save_ledger(const std::string& path, const PromptLedger& ledger);

}  // namespace tqcache::serve
