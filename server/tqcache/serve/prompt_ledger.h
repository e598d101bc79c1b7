#pragma once
// server/tqcache/serve/prompt_ledger.h: the prompts that a server keeps, with their hits, for its
// page; and what was reused of the last ones.
//
// An entry is a chain of whole token blocks: a text that continues all blocks of another takes over
// its entry, as a conversation does with each turn. Entries hold no tokens, only hashes of blocks.
//
// Hashes and tenants are digests with a secret key (HMAC-SHA-256), so that nobody can ask a file of
// the ledger whether it has a prompt or a tenant, nor compare two files. Beneath are hashes that
// are not cryptographic: statistics alone depend on them.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/cipher.h"
#include "tqcache/error.h"
#include "tqcache/serve/prompt_reuse.h"

namespace tqcache::serve {

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
  std::vector<std::uint64_t> chain = {};  // digests: each covers all tokens up to the block's end
};

// All kept prompts of a tenant.
struct TenantTotal {
  std::int64_t n_prompts = 0;
  std::uint64_t stored_bytes = 0;
  std::int64_t hits = 0, hit_tokens = 0;
  double saved_seconds = 0;
  std::int64_t used = 0;
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
  static constexpr std::size_t kMaxRecent = 50;     // of one tenant; the oldest are dropped
  static constexpr std::size_t kMaxAllRecent = 5000;

  // The key of the digests, which is then not in the file. Absent: a random key, which is.
  explicit PromptLedger(std::optional<SecretKey> key = {});

  // A prompt begins with tokens that did not have to be computed. Counts for the entry that shares
  // the most token blocks with it. If none has all blocks of these tokens, they become an entry:
  // they were kept before the ledger began. `now`: seconds since 1970.
  void hit(const PromptOwner& owner, std::span<const std::int32_t> prompt,
           std::int64_t cached_tokens, double saved_seconds, std::int64_t now);

  // These tokens are kept now. Adds an entry, or extends the one that they continue. Returns its
  // id. `text`: how they begin, or empty.
  Id keep(const PromptOwner& owner, std::span<const std::int32_t> tokens, std::string text,
          std::int64_t now);

  // The entry that shares the most token blocks with a prompt, as after a restart, when nothing
  // else knows older prompts. Absent: none shares one.
  struct Nearest {
    std::int64_t n_common = 0;  // tokens of these blocks: the prompts part behind them
    std::int64_t n_tokens = 0;  // of the entry
  };
  std::optional<Nearest> nearest(const PromptOwner& owner,
                                 std::span<const std::int32_t> prompt) const;

  // Sets the bytes that a prompt added to the store, in addition to those of add_bytes().
  void set_bytes(Id id, std::uint64_t bytes);
  // Adds to the bytes for good, and ends set_bytes().
  void add_bytes(Id id, std::uint64_t bytes);

  // What was reused of a prompt that was answered. In memory only.
  void note(std::string_view tenant, PromptReuse reuse);

  // Entries of a tenant, or of all, the most recently used first.
  std::vector<KeptPrompt> entries(std::optional<std::string_view> tenant) const;
  // The last prompts of a tenant, or of all; the newest first, at most kMaxRecent.
  std::vector<PromptReuse> recent(std::optional<std::string_view> tenant) const;
  // Of each tenant with entries, without names; the most recently used first.
  std::vector<TenantTotal> totals() const;
  // Whether another tenant than this one has entries, or recent prompts.
  bool has_others(std::string_view tenant) const;

  // All entries as JSON, without texts; and back. Requires of add_json(): nothing was kept yet.
  // Errors: kCorrupt; kTooLarge; kNoKey (it was written with another key). Safe for untrusted
  // input.
  std::string to_json() const;
  Result<void> add_json(std::string_view text);

 private:
  using Chain = std::vector<std::uint64_t>;
  struct Slot {
    KeptPrompt prompt;
    std::uint64_t finished_bytes = 0;
  };
  struct Recent {
    std::string tenant;  // a digest
    PromptReuse reuse;
  };

  // With mutex_ locked.
  std::string digest_of(std::string_view tenant) const;
  std::uint64_t keyed(std::uint64_t block) const;
  Chain chain_of(std::span<const std::int32_t> tokens) const;
  std::optional<std::size_t> nearest_slot(const std::string& tenant, const std::string& model,
                                          const Chain& chain) const;
  Slot* find(Id id);
  Slot& add_slot(std::string tenant, const std::string& model, std::int64_t now);
  void drop_oldest();

  mutable std::mutex mutex_;
  SecretKey key_;
  bool key_is_in_file_ = true;
  std::vector<Slot> slots_;
  std::deque<Recent> recent_;  // the newest last
  Id next_ = 1;
};

// The ledger in a file. Errors: those of files and of add_json(); a missing file is no error.
Result<void> load_ledger(const std::string& path, PromptLedger& ledger);
Result<void> save_ledger(const std::string& path, const PromptLedger& ledger);

}  // namespace tqcache::serve
