#include "tqcache/model/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>

namespace tqcache::model {
namespace {

constexpr std::int32_t kMerged = -1;
constexpr std::uint32_t kNone = 0xffffffffu;
constexpr std::uint64_t kFree = ~std::uint64_t{0};  // no pair: ids are not negative

Error corrupt(std::size_t merge, std::string_view what) {
  return {ErrorCode::kCorrupt, "merge " + std::to_string(merge) + ": " + std::string(what)};
}

std::uint64_t key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

// std heaps keep the largest on top: a candidate is "less" when it is to be merged later.
bool merges_later(const MergeTable::Scratch::Candidate& a,
                  const MergeTable::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

Result<std::vector<Merge>> resolve_merges(const std::vector<MergeBytes>& merges,
                                          const Vocabulary& vocabulary) {
  if (merges.size() > kMaxMerges) {
    return Error{ErrorCode::kTooLarge, "merges: " + std::to_string(merges.size())};
  }
  std::vector<Merge> resolved;
  resolved.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const MergeBytes& merge = merges[i];
    const std::optional<std::int32_t> left = vocabulary.find_ordinary(merge.left);
    const std::optional<std::int32_t> right = vocabulary.find_ordinary(merge.right);
    if (!left || !right) return corrupt(i, "a part is not in the vocabulary");
    const std::optional<std::int32_t> result = vocabulary.find_ordinary(merge.left + merge.right);
    if (!result) return corrupt(i, "the result is not in the vocabulary");
    resolved.push_back({*left, *right, *result});
  }
  return resolved;
}

Result<MergeTable> MergeTable::make(const std::vector<Merge>& merges) {
  MergeTable table;
  table.entries_.assign(std::bit_ceil(2 * merges.size() + 1), {kFree, 0, 0});
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::uint64_t pair = key(merges[i].left, merges[i].right);
    Entry& entry = table.entries_[table.slot_of(pair)];
    if (entry.key != kFree) return corrupt(i, "the pair was merged before");
    entry = {pair, static_cast<std::uint32_t>(i), merges[i].result};
  }
  return table;
}

void MergeTable::Scratch::clear() {
  symbols.clear();
  heap.clear();
}

void MergeTable::Scratch::add(std::int32_t id) {
  const auto place = static_cast<std::uint32_t>(symbols.size());
  if (place > 0) symbols.back().next = place;
  symbols.push_back({id, place == 0 ? kNone : place - 1, kNone});
}

void MergeTable::merge(Scratch& scratch, std::vector<std::int32_t>& ids) const {
  for (std::uint32_t i = 1; i < scratch.symbols.size(); ++i) push_candidate(i - 1, i, scratch);
  merge_symbols(scratch);
  for (const Scratch::Symbol& symbol : scratch.symbols) {
    if (symbol.id != kMerged) ids.push_back(symbol.id);
  }
}

void MergeTable::push_candidate(std::uint32_t left, std::uint32_t right, Scratch& scratch) const {
  if (left == kNone || right == kNone) return;
  const Entry* entry = find(scratch.symbols[left].id, scratch.symbols[right].id);
  if (entry == nullptr) return;
  scratch.heap.push_back({entry->rank, left, entry->result});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), merges_later);
}

void MergeTable::merge_symbols(Scratch& scratch) const {
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), merges_later);
    const Scratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();

    // A candidate is out of date when either symbol was merged with its other neighbor since.
    Scratch::Symbol& left = scratch.symbols[best.position];
    if (left.id == kMerged || left.next == kNone) continue;
    Scratch::Symbol& right = scratch.symbols[left.next];
    const Entry* entry = find(left.id, right.id);
    if (entry == nullptr || entry->result != best.result) continue;

    left.id = best.result;
    right.id = kMerged;
    left.next = right.next;
    if (left.next != kNone) scratch.symbols[left.next].previous = best.position;
    push_candidate(left.previous, best.position, scratch);
    push_candidate(best.position, left.next, scratch);
  }
}

const MergeTable::Entry* MergeTable::find(std::int32_t left, std::int32_t right) const {
  const Entry& entry = entries_[slot_of(key(left, right))];
  return entry.key == kFree ? nullptr : &entry;
}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  const std::size_t mask = entries_.size() - 1;
  // Ids are small and dense; without mixing, pairs with the same right id would crowd together.
  const std::uint64_t mixed = (key ^ (key >> 32)) * 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
  std::size_t slot = static_cast<std::size_t>(mixed >> 29) & mask;
  while (entries_[slot].key != kFree && entries_[slot].key != key) slot = (slot + 1) & mask;
  return slot;
}

}  // namespace tqcache::model
