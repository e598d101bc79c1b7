#include "tqcache/store/library/chain_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "tqcache/store/blobs/blob_format.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/chain_layout.h"
#include "tqcache/store/blobs/section_digests.h"

namespace tqcache::store {
namespace {

std::vector<StoredSection> slice(const std::vector<StoredSection>& sections, std::size_t begin,
                                 std::size_t end) {
  const auto some = std::span(sections).subspan(begin, end - begin);
  return {some.begin(), some.end()};
}

Error wrong_sections(std::int64_t block) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("token block {}: not the sections of its layers", block)};
}

// The slot of `place` that has these parameters, or gets them now; nullopt if others take all.
Result<std::optional<CandidateSlot>> place_parameters(Backend& backend, BlobReader& reader,
                                                      const Sha256& place,
                                                      const Parameters& parameters) {
  const Sha256 hash = hash_parameters(parameters);
  const auto is_same = [&](const Parameters& other) {
    return other.tokens == parameters.tokens && hash_parameters(other) == hash &&
           other.identity.model_name == parameters.identity.model_name;
  };
  return find_or_take_slot<Parameters>(backend, reader, parameters_slot_keys(place), is_same,
                                       Content(parameters));
}

}  // namespace

struct ChainWriter::Chain {
  Backend& backend;
  BlobReader reader;
  Sha256 name_space, root;
  CandidateSlot slot;
  Parameters parameters;
  PartCounts counts;
  WriteBatcher batcher;
  BlobMemory memory = {};
  std::vector<Sha256> hashes = {};
  std::set<std::size_t> put = {};          // the blocks that put_block() has put
  std::uint64_t bytes = 0, new_bytes = 0;  // of blobs that bypass the write batcher
  std::uint64_t next_bytes = 0;            // of put_nexts()
  bool is_findable = true;
  SectionDigests digests = SectionDigests(parameters.layers);

  const Sha256& last() const { return hashes.empty() ? root : hashes.back(); }
  std::int64_t n_blocks() const { return static_cast<std::int64_t>(hashes.size()); }

  Sha256 hash_next(std::span<const std::int32_t> block_tokens) const {
    return hash_chain(last(), block_tokens).front();
  }

  void count(std::uint64_t blob_bytes, bool is_new) {
    bytes += blob_bytes;
    if (is_new) new_bytes += blob_bytes;
  }

  struct KnownState {
    std::string key;
    Snapshot snapshot;
  };

  // Whether a blob is that of its key, and its content that of the digests that it states.
  bool is_good(const std::string& key, ByteView value) const {
    const auto content = decode_blob(key, SharedBytes(nullptr, value));
    if (!content || !digests.compare(*content)) return false;
    const auto* block = std::get_if<Block>(&*content);
    return block == nullptr || check_block(parameters, *block).ok();
  }

  // Whether all of these blobs exist and are good. Bad ones are removed.
  Result<bool> are_good(std::span<const std::string> keys) {
    const auto take = [](std::size_t, const Content&, std::uint64_t) { return Result<void>(); };
    const auto compare = [this](std::size_t, const Content& content) {
      return digests.compare(content);
    };
    TQC_TRY_ASSIGN(const std::vector<Found> found, reader.read(keys, take, compare));
    return std::ranges::all_of(found, [](Found each) { return each == Found::kGood; });
  }

  // A snapshot with the same tail whose data is there and whole. Otherwise it is removed.
  Result<std::optional<KnownState>> known_state(const Snapshot& wanted) {
    for (int first = 0; first < kStateSlots; first += kCandidateSlots) {
      const std::vector<std::string> keys = state_slot_keys(last(), first);
      TQC_TRY_ASSIGN(auto slots, read_slots<Snapshot>(reader, keys));
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (!slots[i] || slots[i]->tail != wanted.tail) continue;
        TQC_TRY_ASSIGN(const bool is_whole, are_good(slots[i]->data_keys));
        if (is_whole) {
          return std::optional(KnownState{keys[i], *std::move(slots[i])});
        }
        TQC_TRY(backend.remove(keys[i]));
      }
      if (!are_half_taken(slots)) break;
    }
    return std::optional<KnownState>();
  }
};

ChainWriter::ChainWriter(std::unique_ptr<Chain> chain) : chain_(std::move(chain)) {}
ChainWriter::ChainWriter(ChainWriter&&) noexcept = default;
ChainWriter& ChainWriter::operator=(ChainWriter&&) noexcept = default;
ChainWriter::~ChainWriter() = default;

const std::vector<Sha256>& ChainWriter::chain() const { return chain_->hashes; }
const std::string& ChainWriter::parameters_key() const { return chain_->slot.key; }
bool ChainWriter::has_met_others() const { return chain_->batcher.has_met_others(); }
bool ChainWriter::is_findable() const { return chain_->is_findable; }
const Sha256& ChainWriter::name_space() const { return chain_->name_space; }
const Sha256& ChainWriter::root() const { return chain_->root; }
std::int64_t ChainWriter::new_blocks() const { return chain_->batcher.new_blocks(); }
std::uint64_t ChainWriter::bytes() const { return chain_->bytes + chain_->batcher.bytes(); }
std::uint64_t ChainWriter::next_bytes() const { return chain_->next_bytes; }
std::uint64_t ChainWriter::new_bytes() const {
  return chain_->new_bytes + chain_->next_bytes + chain_->batcher.new_bytes();
}

Result<ChainWriter> ChainWriter::open(Backend& backend, std::string_view salt,
                                      Parameters parameters, OnWarning on_warning) {
  const Sha256 name_space = hash_namespace({parameters.identity, std::string(salt)});
  const Sha256 hash = hash_parameters(parameters);
  BlobReader reader(backend, BadBlobs::kRemove, std::move(on_warning));
  const PartCounts counts(parameters.layers);
  const Sha256 first = hash_first(name_space, parameters.tokens);
  // What was not checked has no slot that a search by tokens reads.
  std::optional<CandidateSlot> slot;
  if (parameters.identity.standing == cache::Standing::kNone) {
    TQC_TRY_ASSIGN(slot, place_parameters(backend, reader, first, parameters));
  }
  const bool is_findable = slot.has_value();
  if (!slot) {
    const Sha256 own = hash_own(to_hex(first), hash, parameters.identity.model_name);
    TQC_TRY_ASSIGN(slot, place_parameters(backend, reader, own, parameters));
  }
  if (!slot) return too_large("no slot is free for the parameters of this prompt");
  auto chain = std::make_unique<Chain>(Chain{backend, std::move(reader), name_space,
                                             hash_root(name_space, hash), *slot,
                                             std::move(parameters), counts, WriteBatcher(backend)});
  chain->is_findable = is_findable;
  chain->batcher.accept_others([chain = chain.get()](const std::string& block, ByteView value) {
    return chain->is_good(block, value);
  });
  chain->count(slot->bytes, slot->is_new);
  return ChainWriter(std::move(chain));
}

std::vector<std::vector<std::string>> ChainWriter::keys(
    std::span<const std::int32_t> tokens) const {
  const auto n_known = static_cast<std::size_t>(n_blocks());
  const std::vector<Sha256> hashes =
      hash_chain(chain_->last(), tokens.subspan(n_known * kBlockTokens));
  return block_keys(chain_->counts, n_blocks(), hashes);
}

Result<std::vector<bool>> ChainWriter::has(std::span<const std::int32_t> tokens) {
  const std::vector<std::vector<std::string>> blocks = keys(tokens);
  TQC_TRY_ASSIGN(const std::vector<bool> there, chain_->backend.exists(flatten(blocks)));
  std::vector<bool> has;
  std::size_t i = 0;
  for (const auto& parts : blocks) {
    bool is_there = true;
    for (std::size_t part = 0; part < parts.size(); ++part) is_there = there[i++] && is_there;
    has.push_back(is_there);
  }
  return has;
}

Result<void> ChainWriter::skip_block(std::span<const std::int32_t> block_tokens,
                                     std::uint64_t bytes) {
  chain_->count(bytes, false);
  chain_->hashes.push_back(chain_->hash_next(block_tokens));
  return {};
}

Result<void> ChainWriter::put_block(std::span<const std::int32_t> block_tokens,
                                    std::vector<StoredSection> sections,
                                    std::vector<cache::MediaSpan> media) {
  const std::int64_t index = n_blocks();
  const Sha256 hash = chain_->hash_next(block_tokens);
  const std::vector<std::size_t> ends = block_parts(chain_->parameters.layers, index);
  if (ends.back() != sections.size()) return wrong_sections(index);
  Block block{chain_->last(),
              index,
              0,
              static_cast<int>(ends.size()),
              {block_tokens.begin(), block_tokens.end()},
              {},
              std::move(media)};
  std::vector<WriteBatcher::Value> parts;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    block.sections = slice(sections, begin, end);
    if (!check_block(chain_->parameters, block)) return wrong_sections(index);
    std::string key = block_key(hash, index, block.part);
    const Content content(block);
    if (!check_content(key, content)) return wrong_sections(index);
    TQC_TRY_ASSIGN(SharedBytes bytes, make_blob(key, content, chain_->memory));
    parts.push_back({std::move(key), std::move(bytes)});
    ++block.part;
    begin = end;
  }
  TQC_TRY(chain_->batcher.add_block(std::move(parts)));
  chain_->put.insert(chain_->hashes.size());
  chain_->hashes.push_back(hash);
  return {};
}

Result<void> ChainWriter::flush() { return chain_->batcher.flush(); }

Result<void> ChainWriter::put_data(Snapshot& snapshot, std::vector<StoredSection> sections) {
  snapshot.data_keys.clear();
  snapshot.data_bytes = 0;
  std::vector<std::uint64_t> sizes;
  for (const StoredSection& section : sections) sizes.push_back(section.info.raw_bytes);
  std::size_t begin = 0;
  for (const std::size_t end : cut_into_parts(sizes)) {
    Data data{slice(sections, begin, end)};
    std::string key = data_key(chain_->name_space, data_content(data.sections));
    const Content content(std::move(data));
    TQC_TRY(check_content(key, content));
    TQC_TRY_ASSIGN(SharedBytes bytes, make_blob(key, content, chain_->memory));
    snapshot.data_keys.push_back(key);
    snapshot.data_bytes += bytes.size();
    TQC_TRY_ASSIGN(const bool is_there, chain_->are_good(std::span(&key, 1)));
    if (is_there) {
      chain_->count(bytes.size(), false);
    } else {
      TQC_TRY(chain_->batcher.add({std::move(key), std::move(bytes)}));
    }
    begin = end;
  }
  return flush();
}

Result<std::string> ChainWriter::put_snapshot(Snapshot& snapshot,
                                              std::vector<StoredSection> sections) {
  TQC_TRY(flush());
  TQC_TRY_ASSIGN(std::optional<Chain::KnownState> known, chain_->known_state(snapshot));
  if (known && snapshot.content_name == Sha256{}) {
    snapshot = std::move(known->snapshot);
    chain_->count(snapshot.data_bytes, false);
    return known->key;
  }
  TQC_TRY(put_data(snapshot, std::move(sections)));
  if (known) {
    TQC_TRY_ASSIGN(const Bytes blob, encode_blob(known->key, Content(known->snapshot)));
    chain_->count(blob.size(), false);
    return known->key;
  }
  const auto has_tail = [&](const Snapshot& other) { return other.tail == snapshot.tail; };
  for (int first = 0; first < kStateSlots; first += kCandidateSlots) {
    TQC_TRY_ASSIGN(const std::optional<CandidateSlot> slot,
                   find_or_take_slot<Snapshot>(chain_->backend, chain_->reader,
                                               state_slot_keys(chain_->last(), first), has_tail,
                                               Content(snapshot)));
    if (!slot) continue;  // others take all of these
    chain_->count(slot->bytes, slot->is_new);
    return slot->key;
  }
  return std::string();
}

Result<void> ChainWriter::put_nexts(std::span<const std::int32_t> tokens) {
  if (!can_be_cut(chain_->parameters.layers)) return {};
  // Behind a block that is new, the first slot is free, unless somebody else is as quick.
  std::vector<std::string> keys;
  std::vector<Bytes> values;
  std::vector<std::size_t> blocks;
  const auto tokens_of = [&](std::size_t block) {
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(block * kBlockTokens);
    return Next{{begin, begin + kBlockTokens}};
  };
  for (const std::size_t block : chain_->put) {
    if (block == 0) continue;  // the parameters have its tokens
    if (!chain_->put.contains(block - 1)) {
      blocks.push_back(block);
      continue;
    }
    keys.push_back(next_key(chain_->hashes[block - 1], 0));
    TQC_TRY_ASSIGN(values.emplace_back(), encode_blob(keys.back(), Content(tokens_of(block))));
  }
  std::vector<Blob> blobs;
  for (std::size_t i = 0; i < keys.size(); ++i) blobs.push_back({keys[i], values[i]});
  std::vector<PutOutcome> outcomes;
  if (!blobs.empty()) {
    TQC_TRY_ASSIGN(outcomes, chain_->backend.put(blobs));
  }
  std::size_t i = 0;
  for (const std::size_t block : chain_->put) {
    if (block == 0 || !chain_->put.contains(block - 1)) continue;
    if (outcomes[i] == PutOutcome::kExisted) {
      blocks.push_back(block);
    } else {
      chain_->next_bytes += values[i].size();
    }
    ++i;
  }
  for (const std::size_t block : blocks) {
    const Next next = tokens_of(block);
    const auto is_same = [&](const Next& other) { return other.tokens == next.tokens; };
    TQC_TRY_ASSIGN(
        const std::optional<CandidateSlot> slot,
        find_or_take_slot<Next>(chain_->backend, chain_->reader,
                                next_slot_keys(chain_->hashes[block - 1]), is_same, Content(next)));
    // If 16 others are known there, a prompt that parts within this block finds one of those.
    if (slot && slot->is_new) chain_->next_bytes += slot->bytes;
  }
  return {};
}

}  // namespace tqcache::store
