#include "tqcache/serve/prompt_ledger.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "tqcache/base/json.h"
#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/file.h"
#include "tqcache/hash.h"
#include "tqcache/tensors/json.h"

namespace tqcache::serve {
namespace {

using Chain = std::vector<std::uint64_t>;

// Tenants are salts, which are secret.
std::string digest_of(std::string_view tenant) {
  const std::string text = "tqcache serve tenant of a page\n" + std::string(tenant);
  return to_hex(sha256(as_bytes(text))).substr(0, 32);
}

std::size_t n_shared_blocks(const Chain& a, const Chain& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

Chain block_chain(std::span<const std::int32_t> tokens) {
  Chain chain;
  const auto block = static_cast<std::size_t>(cache::kTokenBlock);
  for (; tokens.size() >= block; tokens = tokens.subspan(block)) {
    ByteWriter bytes;
    bytes.write(chain.empty() ? std::uint64_t{0} : chain.back());
    bytes.append(std::as_bytes(tokens.first(block)));
    chain.push_back(xxh3_64(bytes.bytes()));
  }
  return chain;
}

PromptLedger::Slot* PromptLedger::find(Id id) {
  const auto found =
      std::ranges::find_if(slots_, [&](const Slot& slot) { return slot.prompt.id == id; });
  return found == slots_.end() ? nullptr : &*found;
}

void PromptLedger::drop_oldest() {
  if (slots_.size() <= kMaxEntries) return;
  slots_.erase(std::ranges::min_element(slots_, std::ranges::less(), [](const Slot& slot) {
    return std::pair(slot.prompt.used, slot.prompt.id);
  }));
}

void PromptLedger::hit(const PromptOwner& owner, std::span<const std::int32_t> prompt,
                       std::int64_t cached_tokens, double saved_seconds, std::int64_t now) {
  const std::string tenant = digest_of(owner.tenant);
  const Chain chain = block_chain(prompt);
  const std::lock_guard lock(mutex_);
  Slot* source = nullptr;  // the newest of those that share the most blocks
  std::size_t n_shared = 1;
  for (Slot& slot : slots_) {
    if (slot.prompt.tenant != tenant || slot.prompt.model != owner.model) continue;
    const std::size_t n = n_shared_blocks(slot.prompt.chain, chain);
    if (n < n_shared) continue;
    source = &slot;
    n_shared = n;
  }
  if (source == nullptr) return;
  ++source->prompt.hits;
  source->prompt.hit_tokens += cached_tokens;
  source->prompt.saved_seconds += saved_seconds;
  source->prompt.used = now;
}

PromptLedger::Id PromptLedger::keep(const PromptOwner& owner, std::span<const std::int32_t> tokens,
                                    std::string text, std::int64_t now) {
  std::string tenant = digest_of(owner.tenant);
  Chain chain = block_chain(tokens);
  const std::lock_guard lock(mutex_);
  Slot* continued = nullptr;  // the longest one that the tokens continue
  for (Slot& slot : slots_) {
    const KeptPrompt& each = slot.prompt;
    if (each.tenant != tenant || each.model != owner.model || each.chain.empty()) continue;
    const bool is_prefix = n_shared_blocks(each.chain, chain) == each.chain.size();
    if (is_prefix &&
        (continued == nullptr || each.chain.size() >= continued->prompt.chain.size())) {
      continued = &slot;
    }
  }
  if (continued == nullptr) {
    slots_.push_back(
        {.prompt = {
             .id = next_++, .tenant = std::move(tenant), .model = owner.model, .created = now}});
    continued = &slots_.back();
  }
  KeptPrompt& prompt = continued->prompt;
  if (!text.empty()) prompt.text = std::move(text);
  prompt.n_tokens = std::max(prompt.n_tokens, std::ssize(tokens));
  prompt.chain = std::move(chain);
  prompt.used = now;
  const Id id = prompt.id;
  drop_oldest();
  return id;
}

void PromptLedger::set_bytes(Id id, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (Slot* const slot = find(id)) slot->prompt.stored_bytes = slot->finished_bytes + bytes;
}

void PromptLedger::add_bytes(Id id, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (Slot* const slot = find(id)) slot->prompt.stored_bytes = slot->finished_bytes += bytes;
}

std::vector<KeptPrompt> PromptLedger::entries(std::optional<std::string_view> tenant) const {
  std::vector<KeptPrompt> found;
  const std::string wanted = tenant ? digest_of(*tenant) : std::string();
  {
    const std::lock_guard lock(mutex_);
    for (const Slot& slot : slots_) {
      if (!tenant || slot.prompt.tenant == wanted) found.push_back(slot.prompt);
    }
  }
  std::ranges::sort(found, std::ranges::greater(),
                    [](const KeptPrompt& each) { return std::pair(each.used, each.id); });
  return found;
}

// --- The file

namespace {

constexpr std::size_t kMaxLedgerBytes = std::size_t{64} << 20;
constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 20;  // of one entry

Result<KeptPrompt> read_entry(const nlohmann::json& entry) {
  KeptPrompt prompt;
  TQC_TRY_ASSIGN(prompt.tenant, get_string(entry, "tenant"));
  TQC_TRY_ASSIGN(prompt.model, get_string(entry, "model"));
  TQC_TRY_ASSIGN(prompt.n_tokens, get_int(entry, "tokens"));
  TQC_TRY_ASSIGN(const std::int64_t bytes, get_int(entry, "stored_bytes"));
  TQC_TRY_ASSIGN(prompt.hits, get_int(entry, "hits"));
  TQC_TRY_ASSIGN(prompt.hit_tokens, get_int(entry, "hit_tokens"));
  TQC_TRY_ASSIGN(prompt.saved_seconds, get_number_or(entry, "saved_seconds", 0));
  TQC_TRY_ASSIGN(prompt.created, get_int(entry, "created"));
  TQC_TRY_ASSIGN(prompt.used, get_int(entry, "used"));
  TQC_TRY_ASSIGN(const nlohmann::json* const chain, get_array(entry, "chain"));
  constexpr std::int64_t kMostCount = std::int64_t{1} << 50;
  constexpr std::int64_t kLastTime = 253'402'300'799;  // the year 9999
  const auto is_count = [&](std::int64_t n) { return n >= 0 && n <= kMostCount; };
  const auto is_time = [&](std::int64_t n) { return n >= 0 && n <= kLastTime; };
  if (!is_count(prompt.n_tokens) || !is_count(bytes) || !is_count(prompt.hits) ||
      !is_count(prompt.hit_tokens) || !is_time(prompt.created) || !is_time(prompt.used) ||
      !(prompt.saved_seconds >= 0 && prompt.saved_seconds < 1e12) ||
      std::ssize(*chain) > kMaxBlocks) {
    return corrupt("a number is out of range");
  }
  prompt.stored_bytes = static_cast<std::uint64_t>(bytes);
  for (const nlohmann::json& hash : *chain) {
    if (!hash.is_number_unsigned()) return corrupt("chain: expected hashes");
    prompt.chain.push_back(hash.get<std::uint64_t>());
  }
  return prompt;
}

}  // namespace

std::string PromptLedger::to_json() const {
  nlohmann::json entries = nlohmann::json::array();
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    const KeptPrompt& prompt = slot.prompt;
    entries.push_back({{"tenant", prompt.tenant},
                       {"model", prompt.model},
                       {"tokens", prompt.n_tokens},
                       {"stored_bytes", prompt.stored_bytes},
                       {"hits", prompt.hits},
                       {"hit_tokens", prompt.hit_tokens},
                       {"saved_seconds", prompt.saved_seconds},
                       {"created", prompt.created},
                       {"used", prompt.used},
                       {"chain", prompt.chain}});
  }
  const nlohmann::json all = {{"tqcache_prompts", 1}, {"entries", std::move(entries)}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<void> PromptLedger::add_json(std::string_view text) {
  TQC_TRY_ASSIGN(const nlohmann::json all,
                 tensors::parse_json(text, {.max_bytes = kMaxLedgerBytes,
                                            .max_depth = 4,
                                            .max_values = std::size_t{8} << 20}));
  if (!all.is_object()) return corrupt("not a list of prompts");
  TQC_TRY_ASSIGN(const std::int64_t version, get_int(all, "tqcache_prompts"));
  if (version != 1) return unsupported("a list of prompts of a later version");
  TQC_TRY_ASSIGN(const nlohmann::json* const entries, get_array(all, "entries"));
  std::vector<Slot> read;
  for (const nlohmann::json& entry : *entries) {
    TQC_TRY_ASSIGN(KeptPrompt prompt, read_entry(entry));
    const std::uint64_t bytes = prompt.stored_bytes;
    read.push_back({.prompt = std::move(prompt), .finished_bytes = bytes});
  }
  const std::lock_guard lock(mutex_);
  for (Slot& slot : read) {
    slot.prompt.id = next_++;
    slots_.push_back(std::move(slot));
    drop_oldest();
  }
  return {};
}

Result<void> load_ledger(const std::string& path, PromptLedger& ledger) {
  auto bytes = read_file(path, kMaxLedgerBytes);
  if (!bytes && bytes.error().code == ErrorCode::kNotFound) return {};
  if (!bytes) return in_file(path, std::move(bytes).error());
  return in_file(path,
                 ledger.add_json({reinterpret_cast<const char*>(bytes->data()), bytes->size()}));
}

Result<void> save_ledger(const std::string& path, const PromptLedger& ledger) {
  const std::string text = ledger.to_json();
  TQC_TRY_ASSIGN(AtomicFile file, in_file(path, AtomicFile::create(path, Overwrite::kAllow)));
  Result<void> written = file.write(as_bytes(text));
  if (written) written = file.commit();
  return written ? Result<void>() : in_file(path, std::move(written).error());
}

}  // namespace tqcache::serve
