#include "tqcache/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {

namespace {

constexpr std::int32_t kMerged = -1;
constexpr std::uint32_t kNoSymbol = 0xffffffffu;
constexpr std::uint64_t kFree = ~std::uint64_t{0};  // an empty entry: ids are not negative

Error bad_merge(std::size_t merge, std::string_view what) {
  return {ErrorCode::kCorrupt, "merge " + std::to_string(merge) + ": " + std::string(what)};
}

std::uint64_t key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

// Training numbers its tokens as it finds merges, so the result of a merge is mostly the token
// behind the one before. No two ordinary tokens have the same bytes.
bool is_result(const Token& token, const MergeBytes& merge) {
  return token.kind == TokenKind::kOrdinary && token.bytes == merge.whole;
}

// std heaps keep the largest element on top: a candidate is "less" if it is merged later.
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
  std::int64_t expected = vocabulary.size();
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const MergeBytes& merge = merges[i];
    const std::optional<std::int32_t> left = vocabulary.find_ordinary(merge.left());
    const std::optional<std::int32_t> right = vocabulary.find_ordinary(merge.right());
    if (!left || !right) return bad_merge(i, "a part is not in the vocabulary");
    std::optional<std::int32_t> result = static_cast<std::int32_t>(expected);
    if (!vocabulary.contains(expected) || !is_result(vocabulary.token(expected), merge)) {
      result = vocabulary.find_ordinary(merge.whole);
    }
    if (!result) return bad_merge(i, "the result is not in the vocabulary");
    resolved.push_back({*left, *right, *result});
    expected = std::int64_t{*result} + 1;
  }
  return resolved;
}

Result<MergeTable> MergeTable::make(const std::vector<Merge>& merges) {
  MergeTable table;
  table.entries_.assign(std::bit_ceil(2 * merges.size() + 1), {kFree, 0, 0});
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::uint64_t pair = key(merges[i].left, merges[i].right);
    Entry& entry = table.entries_[table.slot_of(pair)];
    if (entry.key != kFree) return bad_merge(i, "the pair was merged before");
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
  symbols.push_back({id, place == 0 ? kNoSymbol : place - 1, kNoSymbol});
}

Result<void> MergeTable::merge(Scratch& scratch, std::vector<std::int32_t>& ids,
                               WorkBudget& budget) const {
  TQC_TRY(budget.spend(scratch.symbols.size()));
  for (std::uint32_t i = 1; i < scratch.symbols.size(); ++i) push_candidate(i - 1, i, scratch);
  TQC_TRY(merge_symbols(scratch, budget));
  for (const Scratch::Symbol& symbol : scratch.symbols) {
    if (symbol.id != kMerged) ids.push_back(symbol.id);
  }
  return {};
}

void MergeTable::push_candidate(std::uint32_t left, std::uint32_t right, Scratch& scratch) const {
  if (left == kNoSymbol || right == kNoSymbol) return;
  const Entry* entry = find(scratch.symbols[left].id, scratch.symbols[right].id);
  if (entry == nullptr) return;
  scratch.heap.push_back({entry->rank, left, entry->result});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), merges_later);
}

Result<void> MergeTable::merge_symbols(Scratch& scratch, WorkBudget& budget) const {
  while (!scratch.heap.empty()) {
    TQC_TRY(budget.spend(1));
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), merges_later);
    const Scratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();

    // A candidate is outdated if either symbol has since been merged with its other neighbor.
    Scratch::Symbol& left = scratch.symbols[best.position];
    if (left.id == kMerged || left.next == kNoSymbol) continue;
    Scratch::Symbol& right = scratch.symbols[left.next];
    const Entry* entry = find(left.id, right.id);
    if (entry == nullptr || entry->result != best.result) continue;

    left.id = best.result;
    right.id = kMerged;
    left.next = right.next;
    if (left.next != kNoSymbol) scratch.symbols[left.next].previous = best.position;
    push_candidate(left.previous, best.position, scratch);
    push_candidate(best.position, left.next, scratch);
  }
  return {};
}

const MergeTable::Entry* MergeTable::find(std::int32_t left, std::int32_t right) const {
  const Entry& entry = entries_[slot_of(key(left, right))];
  return entry.key == kFree ? nullptr : &entry;
}

// The seed enters before both products: pairs that collide with one seed do not with another.
// Source: the finalizer of MurmurHash3, fmix64.
std::size_t MergeTable::first_slot(std::uint64_t key) const {
  std::uint64_t mixed = (key ^ seed_) * 0xff51afd7ed558ccdu;
  mixed = (mixed ^ (mixed >> 32) ^ (seed_ >> 1)) * 0xc4ceb9fe1a85ec53u;
  return static_cast<std::size_t>(mixed >> 32) & (entries_.size() - 1);
}

std::size_t MergeTable::longest_search() const {
  std::size_t longest = 0;
  for (std::size_t slot = 0; slot < entries_.size(); ++slot) {
    if (entries_[slot].key == kFree) continue;
    const std::size_t distance = slot - first_slot(entries_[slot].key);
    longest = std::max(longest, distance & (entries_.size() - 1));
  }
  return longest;
}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  const std::size_t mask = entries_.size() - 1;
  std::size_t slot = first_slot(key);
  while (entries_[slot].key != kFree && entries_[slot].key != key) slot = (slot + 1) & mask;
  return slot;
}

namespace {

Error no_token(std::size_t byte) {
  return {ErrorCode::kCorrupt, "vocabulary: no token for byte " + std::to_string(byte)};
}

}  // namespace

Result<Symbols> Symbols::of_bytes(const Vocabulary& vocabulary, const UnknownRule& unknown) {
  Symbols symbols(true, unknown);
  bool has_any = false;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const std::optional<std::int32_t> id = vocabulary.find_ordinary({&c, 1});
    symbols.ids_[byte] = id.value_or(kNoId);
    has_any |= id.has_value();
  }
  if (!has_any) return Error{ErrorCode::kCorrupt, "vocabulary: no token for any byte"};
  return symbols;
}

Result<Symbols> Symbols::of_characters(const Vocabulary& vocabulary, const UnknownRule& unknown) {
  Symbols symbols(false, unknown);
  if (!unknown.as_bytes && !unknown.token) {
    return Error{ErrorCode::kCorrupt, "vocabulary: nothing for characters without a token"};
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    std::optional<std::int32_t> id;
    if (byte < 128) id = vocabulary.find_ordinary({&c, 1});
    symbols.is_character_[byte] = id.has_value();
    if (!id && unknown.as_bytes) {
      id = vocabulary.find_byte(static_cast<unsigned char>(byte));
      if (!id) return no_token(byte);
    }
    symbols.ids_[byte] = id.value_or(0);
  }
  return symbols;
}

void Symbols::split(std::string_view piece, const Vocabulary& vocabulary,
                    MergeTable::Scratch& scratch) const {
  scratch.clear();
  if (by_bytes_) {
    split_bytes(piece, scratch);
    return;
  }
  bool follows_unknown = false;
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, first_character(piece).n_bytes);
    piece.remove_prefix(character.size());
    const std::optional<std::int32_t> id = find(character, vocabulary);
    if (id) {
      scratch.add(*id);
    } else {
      add_unknown(character, follows_unknown, scratch);
    }
    follows_unknown = !id;
  }
}

// Source: huggingface/tokenizers models/bpe/model.rs, merge_word: the neighbors of a byte that is
// left out become neighbors.
void Symbols::split_bytes(std::string_view piece, MergeTable::Scratch& scratch) const {
  bool follows_unknown = false;
  for (const char c : piece) {
    const std::int32_t id = ids_[static_cast<unsigned char>(c)];
    if (id != kNoId) {
      scratch.add(id);
    } else if (unknown_.token) {
      add_unknown({&c, 1}, follows_unknown, scratch);
    }
    follows_unknown = id == kNoId;
  }
}

std::optional<std::int32_t> Symbols::find(std::string_view character,
                                          const Vocabulary& vocabulary) const {
  if (character.size() > 1) return vocabulary.find_ordinary(character);
  const auto byte = static_cast<unsigned char>(character[0]);
  if (!is_character_[byte]) return std::nullopt;
  return ids_[byte];
}

void Symbols::add_unknown(std::string_view character, bool follows_unknown,
                          MergeTable::Scratch& scratch) const {
  if (unknown_.as_bytes) {
    for (const char c : character) scratch.add(ids_[static_cast<unsigned char>(c)]);
  } else if (!unknown_.joined || !follows_unknown) {
    scratch.add(*unknown_.token);
  }
}

namespace {

struct Cut {
  Merge merge;
  double score;
  std::size_t left;  // characters
  std::size_t right;
};

bool comes_before(const Cut& a, const Cut& b) {
  return std::tie(a.score, a.left, a.right) > std::tie(b.score, b.left, b.right);
}

std::size_t count_characters(std::string_view text) {
  std::size_t n = 0;
  for (; !text.empty(); ++n) text.remove_prefix(first_character(text).n_bytes);
  return n;
}

std::string place(std::int64_t id) { return "token " + std::to_string(id); }

// All ways to split the token into two.
Result<void> add_cuts(const Vocabulary& vocabulary, std::int32_t id, double score,
                      std::vector<Cut>& cuts) {
  const std::string_view bytes = vocabulary.token(id).bytes;
  if (bytes.size() > kMaxPieceBytes) {
    return Error{ErrorCode::kTooLarge, place(id) + ": " + std::to_string(bytes.size()) + " bytes"};
  }
  const std::size_t n_characters = count_characters(bytes);
  std::size_t i = 0;
  for (std::size_t n = 1; n < n_characters; ++n) {
    i += first_character(bytes.substr(i)).n_bytes;
    const std::optional<std::int32_t> left = vocabulary.find_ordinary(bytes.substr(0, i));
    const std::optional<std::int32_t> right = vocabulary.find_ordinary(bytes.substr(i));
    if (left && right) cuts.push_back({{*left, *right, id}, score, n, n_characters - n});
  }
  if (cuts.size() <= kMaxMerges) return {};
  return Error{ErrorCode::kTooLarge, "more than " + std::to_string(kMaxMerges) + " merges"};
}

}  // namespace

Result<std::vector<Merge>> merges_from_scores(const Vocabulary& vocabulary,
                                              const std::vector<double>& scores) {
  if (scores.size() != static_cast<std::size_t>(vocabulary.size())) {
    return Error{ErrorCode::kCorrupt, "scores: " + std::to_string(scores.size()) + " for " +
                                          std::to_string(vocabulary.size()) + " tokens"};
  }
  std::vector<Cut> cuts;
  for (std::int64_t id = 0; id < vocabulary.size(); ++id) {
    const auto id32 = static_cast<std::int32_t>(id);
    const double score = scores[static_cast<std::size_t>(id)];
    if (!std::isfinite(score)) {
      return Error{ErrorCode::kCorrupt, "scores: " + place(id) + ": not a finite number"};
    }
    if (vocabulary.find_ordinary(vocabulary.token(id).bytes) != id32) continue;
    TQC_TRY(add_cuts(vocabulary, id32, score, cuts));
  }
  std::stable_sort(cuts.begin(), cuts.end(), comes_before);
  std::vector<Merge> merges;
  merges.reserve(cuts.size());
  for (const Cut& cut : cuts) merges.push_back(cut.merge);
  return merges;
}

}  // namespace tqcache::tokenizer
