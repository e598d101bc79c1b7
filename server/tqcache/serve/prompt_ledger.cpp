#include "tqcache/serve/prompt_ledger.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "tqcache/base/json.h"
#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/file.h"
#include "tqcache/hash.h"
#include "tqcache/tensors/foreign_json.h"

namespace tqcache::serve {
namespace {

using Chain = std::vector<std::uint64_t>;
using Mac = std::array<std::byte, 32>;

// Hashes of the complete token blocks of a text, without a key.
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

std::string plain_digest_of(std::string_view tenant) {
  const std::string text = "tqcache serve tenant of a page\n" + std::string(tenant);
  return to_hex(sha256(as_bytes(text))).substr(0, 32);
}

// The label says what the message is, so that no two kinds of messages are equal.
Mac hmac_sha256(const SecretKey& key, std::string_view label, ByteView message) {
  ByteWriter bytes;
  bytes.append(as_bytes(label));
  bytes.append(message);
  Mac mac{};
  unsigned n = 0;
  const ByteView all = bytes.bytes();
  if (::HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(key.bytes().size()),
             reinterpret_cast<const unsigned char*>(all.data()), all.size(),
             reinterpret_cast<unsigned char*>(mac.data()), &n) == nullptr) {
    throw std::bad_alloc();
  }
  return mac;
}

std::string keyed_tenant(const SecretKey& key, const std::string& plain_digest) {
  const Mac mac = hmac_sha256(key, "tenant\n", as_bytes(plain_digest));
  return to_hex(ByteView(mac).first(16));
}

// Tells in a file which key it was written with, and nothing of the key.
std::string key_check(const SecretKey& key) {
  const Mac mac = hmac_sha256(key, "check\n", {});
  return to_hex(ByteView(mac).first(16));
}

SecretKey random_key() {
  std::array<std::byte, SecretKey::kBytes> bytes{};
  if (!fill_random(bytes)) throw std::runtime_error("the system has no random bytes");
  SecretKey key(bytes);
  wipe_bytes(bytes);
  return key;
}

std::size_t n_shared_blocks(const Chain& a, const Chain& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

PromptLedger::PromptLedger(std::optional<SecretKey> key)
    : key_(key ? std::move(*key) : random_key()), key_is_in_file_(!key) {}

std::string PromptLedger::digest_of(std::string_view tenant) const {
  return keyed_tenant(key_, plain_digest_of(tenant));
}

std::uint64_t PromptLedger::keyed(std::uint64_t block) const {
  ByteWriter bytes;
  bytes.write(block);
  const Mac mac = hmac_sha256(key_, "block\n", bytes.bytes());
  std::uint64_t first = 0;
  std::memcpy(&first, mac.data(), sizeof(first));
  return first;
}

PromptLedger::Chain PromptLedger::chain_of(std::span<const std::int32_t> tokens) const {
  Chain chain = block_chain(tokens);
  for (std::uint64_t& block : chain) block = keyed(block);
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

// The newest of those that share the most blocks; absent: none shares one.
std::optional<std::size_t> PromptLedger::nearest_slot(const std::string& tenant,
                                                      const std::string& model,
                                                      const Chain& chain) const {
  std::optional<std::size_t> nearest;
  std::size_t n_shared = 1;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const KeptPrompt& prompt = slots_[i].prompt;
    if (prompt.tenant != tenant || prompt.model != model) continue;
    const std::size_t n = n_shared_blocks(prompt.chain, chain);
    if (n < n_shared) continue;
    nearest = i;
    n_shared = n;
  }
  return nearest;
}

PromptLedger::Slot& PromptLedger::add_slot(std::string tenant, const std::string& model,
                                           std::int64_t now) {
  return slots_.emplace_back(Slot{.prompt = {.id = next_++,
                                             .tenant = std::move(tenant),
                                             .model = model,
                                             .created = now,
                                             .used = now}});
}

void PromptLedger::hit(const PromptOwner& owner, std::span<const std::int32_t> prompt,
                       std::int64_t cached_tokens, double saved_seconds, std::int64_t now) {
  const std::lock_guard lock(mutex_);
  std::string tenant = digest_of(owner.tenant);
  Chain chain = chain_of(prompt);
  const std::optional<std::size_t> nearest = nearest_slot(tenant, owner.model, chain);
  Slot* source = nearest ? &slots_[*nearest] : nullptr;
  const std::int64_t n_kept = std::clamp<std::int64_t>(cached_tokens, 0, std::ssize(prompt));
  const auto n_blocks = static_cast<std::size_t>(n_kept / cache::kTokenBlock);
  const std::size_t n_known = source ? n_shared_blocks(source->prompt.chain, chain) : 0;
  if (n_known < n_blocks) {
    chain.resize(n_blocks);
    source = &add_slot(std::move(tenant), owner.model, now);
    source->prompt.n_tokens = n_kept;
    source->prompt.chain = std::move(chain);
  }
  if (source == nullptr) return;
  ++source->prompt.hits;
  source->prompt.hit_tokens += cached_tokens;
  source->prompt.saved_seconds += saved_seconds;
  source->prompt.used = now;
  drop_oldest();
}

PromptLedger::Id PromptLedger::keep(const PromptOwner& owner, std::span<const std::int32_t> tokens,
                                    std::string text, std::int64_t now) {
  const std::lock_guard lock(mutex_);
  std::string tenant = digest_of(owner.tenant);
  Chain chain = chain_of(tokens);
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
  if (continued == nullptr) continued = &add_slot(std::move(tenant), owner.model, now);
  KeptPrompt& prompt = continued->prompt;
  if (!text.empty()) prompt.text = std::move(text);
  prompt.n_tokens = std::max<std::int64_t>(prompt.n_tokens, std::ssize(tokens));
  prompt.chain = std::move(chain);
  prompt.used = now;
  const Id id = prompt.id;
  drop_oldest();
  return id;
}

std::optional<PromptLedger::Nearest> PromptLedger::nearest(
    const PromptOwner& owner, std::span<const std::int32_t> prompt) const {
  const std::lock_guard lock(mutex_);
  const Chain chain = chain_of(prompt);
  const auto i = nearest_slot(digest_of(owner.tenant), owner.model, chain);
  if (!i) return std::nullopt;
  const KeptPrompt& its = slots_[*i].prompt;
  const auto n = static_cast<std::int64_t>(n_shared_blocks(its.chain, chain));
  return Nearest{n * cache::kTokenBlock, its.n_tokens};
}

void PromptLedger::set_bytes(Id id, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (Slot* const slot = find(id)) slot->prompt.stored_bytes = slot->finished_bytes + bytes;
}

void PromptLedger::add_bytes(Id id, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (Slot* const slot = find(id)) slot->prompt.stored_bytes = slot->finished_bytes += bytes;
}

void PromptLedger::note(std::string_view tenant, PromptReuse reuse) {
  const std::lock_guard lock(mutex_);
  recent_.push_back({digest_of(tenant), std::move(reuse)});
  const auto is_its = [&](const Recent& each) { return each.tenant == recent_.back().tenant; };
  if (static_cast<std::size_t>(std::ranges::count_if(recent_, is_its)) > kMaxRecent) {
    recent_.erase(std::ranges::find_if(recent_, is_its));
  }
  if (recent_.size() > kMaxAllRecent) recent_.pop_front();
}

std::vector<KeptPrompt> PromptLedger::entries(std::optional<std::string_view> tenant) const {
  std::vector<KeptPrompt> found;
  {
    const std::lock_guard lock(mutex_);
    const std::string wanted = tenant ? digest_of(*tenant) : std::string();
    for (const Slot& slot : slots_) {
      if (!tenant || slot.prompt.tenant == wanted) found.push_back(slot.prompt);
    }
  }
  std::ranges::sort(found, std::ranges::greater(),
                    [](const KeptPrompt& each) { return std::pair(each.used, each.id); });
  return found;
}

std::vector<PromptReuse> PromptLedger::recent(std::optional<std::string_view> tenant) const {
  std::vector<PromptReuse> found;
  const std::lock_guard lock(mutex_);
  const std::string wanted = tenant ? digest_of(*tenant) : std::string();
  for (auto each = recent_.rbegin(); each != recent_.rend() && found.size() < kMaxRecent; ++each) {
    if (!tenant || each->tenant == wanted) found.push_back(each->reuse);
  }
  return found;
}

std::vector<TenantTotal> PromptLedger::totals() const {
  std::map<std::string_view, TenantTotal> by_tenant;
  std::vector<TenantTotal> all;
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    TenantTotal& total = by_tenant[slot.prompt.tenant];
    ++total.n_prompts;
    total.stored_bytes += slot.prompt.stored_bytes;
    total.hits += slot.prompt.hits;
    total.hit_tokens += slot.prompt.hit_tokens;
    total.saved_seconds += slot.prompt.saved_seconds;
    total.used = std::max(total.used, slot.prompt.used);
  }
  for (const auto& [tenant, total] : by_tenant) all.push_back(total);
  std::ranges::stable_sort(all, std::ranges::greater(), &TenantTotal::used);
  return all;
}

bool PromptLedger::has_others(std::string_view tenant) const {
  const std::lock_guard lock(mutex_);
  const std::string own = digest_of(tenant);
  return std::ranges::any_of(slots_, [&](const Slot& s) { return s.prompt.tenant != own; }) ||
         std::ranges::any_of(recent_, [&](const Recent& each) { return each.tenant != own; });
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

std::optional<SecretKey> key_of_hex(std::string_view text) {
  std::array<std::byte, SecretKey::kBytes> bytes{};
  if (text.size() != 2 * bytes.size()) return std::nullopt;
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    bytes[i / 2] |= static_cast<std::byte>(i % 2 == 0 ? digit << 4 : digit);
  }
  SecretKey key(bytes);
  wipe_bytes(bytes);
  return key;
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
  nlohmann::json all = {{"tqcache_prompts", 2}, {"entries", std::move(entries)}};
  if (key_is_in_file_) {
    all["key"] = to_hex(key_.bytes());
  } else {
    all["key_check"] = key_check(key_);
  }
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<void> PromptLedger::add_json(std::string_view text) {
  TQC_TRY_ASSIGN(const nlohmann::json all,
                 tensors::parse_json(text, {.max_bytes = kMaxLedgerBytes,
                                            .max_depth = 4,
                                            .max_values = std::size_t{8} << 20}));
  if (!all.is_object()) return corrupt("not a list of prompts");
  TQC_TRY_ASSIGN(const std::int64_t version, get_int(all, "tqcache_prompts"));
  if (version != 1 && version != 2) return unsupported("a list of prompts of a later version");
  TQC_TRY_ASSIGN(const nlohmann::json* const entries, get_array(all, "entries"));
  std::vector<Slot> read;
  for (const nlohmann::json& entry : *entries) {
    TQC_TRY_ASSIGN(KeptPrompt prompt, read_entry(entry));
    const std::uint64_t bytes = prompt.stored_bytes;
    read.push_back({.prompt = std::move(prompt), .finished_bytes = bytes});
  }
  const std::lock_guard lock(mutex_);
  assert(slots_.empty());
  if (version == 2) {
    TQC_TRY_ASSIGN(const std::string its_key, get_string_or(all, "key", ""));
    TQC_TRY_ASSIGN(const std::string its_check, get_string_or(all, "key_check", ""));
    if (its_key.empty() == its_check.empty()) return corrupt("expected key or key_check");
    if (!its_key.empty()) {
      std::optional<SecretKey> key = key_of_hex(its_key);
      if (!key) return corrupt("key: expected 64 hexadecimal digits");
      if (!key_is_in_file_) {
        return Error{ErrorCode::kNoKey, "it was written by a server without the key of the store"};
      }
      key_ = *std::move(key);
    } else if (key_is_in_file_ || its_check != key_check(key_)) {
      return Error{ErrorCode::kNoKey, "it was written with another key or salt of the store"};
    }
  }
  for (Slot& slot : read) {
    if (version == 1) {  // its digests had no key
      slot.prompt.tenant = keyed_tenant(key_, slot.prompt.tenant);
      for (std::uint64_t& block : slot.prompt.chain) block = keyed(block);
    }
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
