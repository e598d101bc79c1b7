#pragma once
// tqcache/upkeep.h: the upkeep of a store: statistics, checks, garbage collection and copies.
//
//   tqcache::store::CollectOptions options{.max_bytes = std::uint64_t{20} << 30};
//   TQC_TRY_ASSIGN(const auto report, tqcache::store::collect(*backend, options));
//
// Spec: docs/reference/store.md, "What a store holds", "Checking", "Keeping it small", "Forgetting
// a tenant" and "Copying".

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/progress.h"
#include "tqcache/store.h"

namespace tqcache::store {

// --- Named prompts and statistics

struct KindTotal {
  std::uint64_t blobs = 0;
  std::uint64_t bytes = 0;
};

// Passes each named prompt whose key begins with `prefix` (record_prefix(); "n/": all tenants) to
// `sink`, in the order of the keys. Damaged ones are reported. `sink` must not call the backend.
// Errors: those of the backend and of `sink`.
using RecordSink = std::function<Result<void>(const Entry& entry, const PromptRecord& record)>;
Result<void> list_prompts(Backend& backend, const std::string& prefix, const OnWarning& on_warning,
                          const RecordSink& sink);

// Totals of a store. Bytes are as the backend counts them.
// Spec: docs/reference/store.md, "What a store holds".
struct StoreStats {
  std::array<KindTotal, kBlobKinds> kinds{};  // by BlobKind
  KindTotal others;                           // under foreign keys
  Backend::Leftovers leftovers;               // of killed writers, older than an hour

  std::uint64_t prompts = 0;  // named prompts of all tenants
  std::uint64_t prompt_tokens = 0;
  std::uint64_t bytes_alone = 0;     // of these prompts, if nothing was shared
  std::uint64_t bytes_needed = 0;    // of these prompts, with sharing
  std::uint64_t bytes_unneeded = 0;  // that no named prompt needs

  // Hit statistics of the runs that looked for a prompt.
  std::uint64_t runs = 0;
  std::uint64_t runs_that_found = 0;
  std::uint64_t wanted_tokens = 0, found_tokens = 0;
  std::uint64_t read_bytes = 0, stored_bytes = 0;

  std::uint64_t bytes_saved() const { return bytes_alone - bytes_needed; }
};

// Damaged notes are ignored.
// Progress: in blobs read.
// Errors: those of the backend and of read_named_prompts(); kInterrupted.
Result<StoreStats> read_stats(Backend& backend, const Progress& progress = {});

// --- Missing blobs of named prompts, and damaged blobs

struct Finding {
  std::string prompt;     // the damaged prompt; empty if no named prompt needs the blob
  std::string key;        // of the missing or damaged blob
  Error error;            // kNotFound: missing; otherwise the error of decode_blob()
  bool repaired = false;  // the blob was removed
};

struct CheckOptions {
  bool read_data = false;  // read and decode every blob, and not only records and parameters
  // Remove damaged blobs, and blocks that lack a part: the next put stores them again.
  bool repair = false;
  std::function<void(const Finding& finding)> on_finding = {};
};

struct CheckReport {
  KindTotal blobs;  // all blobs of the store
  KindTotal read;   // blobs that were read
  std::uint64_t prompts = 0;
  std::uint64_t prompts_damaged = 0;  // that cannot be fetched completely
  std::uint64_t missing = 0;          // blobs that a named prompt, or the rest of a block, needs
  std::uint64_t damaged = 0;
  std::uint64_t repaired = 0;  // blobs that were removed
  std::uint64_t later = 0;     // blobs of a later version, which are not damaged
  // Blobs that cannot be found: parts without part 0, snapshots without their block; with read_data
  // also blocks without their predecessor, and data that no snapshot names. gc removes them.
  KindTotal unfindable;
  KindTotal others;  // under foreign keys
  // Of killed writers, older than an hour; `repair` removes them.
  Backend::Leftovers leftovers;

  bool is_whole() const { return missing == 0 && damaged == 0; }
};

// A blob that another process removes or evicts meanwhile can be reported as missing. A missing
// blob is looked for a second time before it is reported.
//
// Memory:   that of Inventory and of one get().
// Progress: in blobs read.
// Errors:   those of the backend; kInterrupted. Damage is a finding, not an error.
Result<CheckReport> check(Backend& backend, const CheckOptions& options,
                          const Progress& progress = {});

// --- Garbage collection: the least recently used blobs that no named prompt needs

struct CollectOptions {
  std::optional<std::uint64_t> max_bytes = {};  // limit for the whole store, as the backend counts
  std::optional<std::chrono::seconds> max_age = {};    // since the last use; for named prompts, too
  std::chrono::seconds grace = std::chrono::hours(1);  // blobs used within this time are kept
  bool drop_prompts =
      false;  // named prompts may be removed for max_bytes, after all unneeded blobs
  bool dry_run = false;
  // The order in which blobs go for max_bytes: those with the longest time first. Receives a key
  // without the part of a block ("b/000012/HEX"), and the time since its last use, which counts if
  // this is empty. Negative times are allowed.
  std::function<std::chrono::seconds(std::string_view name, std::chrono::seconds idle)> order_by =
      {};
  // Receives the name of each prompt that is removed.
  std::function<void(const std::string& name)> on_prompt = {};
  // Receives the name of each prompt that was put meanwhile and lost blobs that it needs.
  std::function<void(const std::string& name)> on_loss = {};
};

struct CollectReport {
  std::uint64_t bytes_before = 0, bytes_after = 0;
  std::uint64_t prompts = 0;                    // named prompts before
  std::uint64_t prompts_removed = 0;            // those that were removed
  std::array<KindTotal, kBlobKinds> removed{};  // by BlobKind; in a dry run, what would be removed
  std::uint64_t bytes_needed = 0;               // by remaining named prompts, with their records
  std::uint64_t bytes_in_grace = 0;             // kept only because of the grace period
  Backend::Leftovers leftovers;                 // of killed writers, removed; not in bytes_before
  bool above_limit = false;                     // more than max_bytes remains
};

// Lists the store, makes a plan, and removes: prompts before the blobs that they need, and part 0
// of a block first. Concurrent puts are safe if `grace` is longer than a put takes, because a put
// touches the blobs that it reuses.
//
// Progress: in blobs.
// Errors: those of the backend and of read_named_prompts(): a record that is damaged or of a later
//         version ends it before anything is removed. kInterrupted: some blobs may have been
//         removed.
Result<CollectReport> collect(Backend& backend, const CollectOptions& options,
                              const Progress& progress = {});

// --- Removal of everything that one tenant has stored

struct ForgetReport {
  std::uint64_t prompts = 0;                    // named ones
  std::array<KindTotal, kBlobKinds> removed{};  // by BlobKind; in a dry run, what would be removed
  std::uint64_t unread = 0;  // damaged blobs, of which nobody can tell whose they are
};

// Removes every blob that belongs to one of these salts (LibraryOptions::salt), named or not, with
// no regard to its age. Reads a blob of everything that the store has, because keys tell nobody
// whose they are. What is put meanwhile may stay: end the writers first.
//
// Progress: in blobs read; the total is unknown (0).
// Errors:   those of the backend; kNoKey (an encrypted store without its key). kInterrupted: some
//           blobs may have been removed, and the rest is found the next time.
Result<ForgetReport> forget(Backend& backend, std::span<const std::string> salts, bool dry_run,
                            const Progress& progress = {});

// --- Copies from one store to another

struct CopyOptions {
  bool replace = false;  // replace prompts of the same name with other content
  // Receives a message for each blob or prompt that could not be copied. The copy continues.
  std::function<void(const std::string& message)> on_warning = {};
};

struct CopyReport {
  std::uint64_t prompts = 0;           // that were copied
  std::uint64_t prompts_existed = 0;   // that the target already had
  std::uint64_t prompts_failed = 0;    // that could not be copied
  std::uint64_t blobs = 0, bytes = 0;  // that were copied
  std::uint64_t blobs_existed = 0;
  std::uint64_t blobs_failed = 0;  // missing or damaged in the source

  bool is_whole() const { return prompts_failed == 0 && blobs_failed == 0; }
};

// Copies everything except hit statistics, also blobs that no prompt needs. Every blob is decoded
// before it is put; damaged ones are left out. Parameters and snapshots may get other slots, which
// records then name; everything else is copied byte for byte. A record is put after everything it
// needs.
//
// Progress: in bytes of `from`.
// Errors:   those of the backends; kInterrupted. A blob that cannot be copied is no error.
Result<CopyReport> copy_store(Backend& from, Backend& to, const CopyOptions& options,
                              const Progress& progress = {});

// Copies prompts, given by the keys of their records. Missing ones are reported to on_warning.
// Progress: in bytes of the blobs that the prompts need.
Result<CopyReport> copy_prompts(Backend& from, Backend& to,
                                const std::vector<std::string>& record_keys,
                                const CopyOptions& options, const Progress& progress = {});

}  // namespace tqcache::store
