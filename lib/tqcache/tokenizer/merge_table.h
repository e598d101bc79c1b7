#pragma once
// tokenizer/merge_table.h: byte pair encoding. Safe for untrusted input.
//
// A piece starts as its smallest tokens (Symbols). Among all neighbors in the merge list, the pair
// that comes earliest in the list is merged, the leftmost among equals, until no pair is left. A
// heap finds it, so a piece of n bytes takes O(n log n).
//
// Source: Sennrich et al., arXiv 1508.07909, algorithm 1; huggingface/tokenizers
//         models/bpe/word.rs, merge_all, with the same result.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/tokenizer/vocabulary.h"
#include "tqcache/tokenizer/work_budget.h"

namespace tqcache::tokenizer {

// A line of the merge list, as bytes.
struct MergeBytes {
  std::string whole;       // both parts
  std::size_t n_left = 0;  // bytes of the left one

  std::string_view left() const { return std::string_view(whole).substr(0, n_left); }
  std::string_view right() const { return std::string_view(whole).substr(n_left); }
};

// The same line as token ids.
struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

// Errors: kCorrupt when a part or a result is not a token that merging may produce, kTooLarge.
Result<std::vector<Merge>> resolve_merges(const std::vector<MergeBytes>& merges,
                                          const Vocabulary& vocabulary);

class MergeTable {
 public:
  // Errors: kCorrupt when a pair is repeated.
  static Result<MergeTable> make(const std::vector<Merge>& merges);

  // A piece and the memory to merge it, reused for every piece.
  struct Scratch {
    struct Symbol {
      std::int32_t id;  // kMerged: now part of an earlier symbol
      std::uint32_t previous;
      std::uint32_t next;
    };
    struct Candidate {
      std::uint32_t rank;
      std::uint32_t position;  // index of the left symbol
      std::int32_t result;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;  // the next merge on top

    void clear();
    void add(std::int32_t id);  // appends a symbol. Requires: fewer than 2^32 - 1
  };

  // Merges the symbols, and appends the resulting token ids to `ids`.
  // Errors: those of `budget`.
  Result<void> merge(Scratch& scratch, std::vector<std::int32_t>& ids, WorkBudget& budget) const;

  // The largest distance of any pair from the entry where its search starts.
  std::size_t longest_search() const;

 private:
  struct Entry {
    std::uint64_t key;  // left id << 32 | right id; kFree: empty
    std::uint32_t rank;
    std::int32_t result;
  };

  // The entry where the search for a pair starts.
  std::size_t first_slot(std::uint64_t key) const;
  // The index of the pair, or of the empty entry where it would be inserted.
  std::size_t slot_of(std::uint64_t key) const;
  const Entry* find(std::int32_t left, std::int32_t right) const;
  void push_candidate(std::uint32_t left, std::uint32_t right, Scratch& scratch) const;
  Result<void> merge_symbols(Scratch& scratch, WorkBudget& budget) const;

  std::uint64_t seed_ = hash_seed();
  std::vector<Entry> entries_;  // open addressing; size is a power of two, less than half is used
};

// The smallest tokens of a piece of text, before any are merged.
//
// A byte-level vocabulary has tokens for bytes, usually for all 256. A byte without a token becomes
// the unknown token, or is left out if the vocabulary has none. A SentencePiece vocabulary has
// tokens for characters; a character without a token becomes its bytes if the vocabulary has byte
// tokens, and otherwise the unknown token.

// The replacement for a character without a token.
struct UnknownRule {
  bool as_bytes = false;
  std::optional<std::int32_t> token;  // used unless as_bytes
  bool joined = false;                // one token for a run of such characters
};

class Symbols {
 public:
  // Errors:   kCorrupt when no byte has a token.
  static Result<Symbols> of_bytes(const Vocabulary& vocabulary, const UnknownRule& unknown = {});
  // Errors:   kCorrupt when a character would have no token, no byte tokens and no unknown token.
  static Result<Symbols> of_characters(const Vocabulary& vocabulary, const UnknownRule& unknown);

  // Returns whether split() leaves this byte out.
  bool leaves_out(char byte) const {
    return by_bytes_ && !unknown_.token && ids_[static_cast<unsigned char>(byte)] == kNoId;
  }

  // Replaces the contents of `scratch` by the symbols of the piece.
  // Requires: piece shorter than 2^32 - 1 bytes, and UTF-8 unless the symbols are bytes; the
  //           vocabulary that the symbols were made from.
  void split(std::string_view piece, const Vocabulary& vocabulary,
             MergeTable::Scratch& scratch) const;

 private:
  Symbols(bool by_bytes, const UnknownRule& unknown) : by_bytes_(by_bytes), unknown_(unknown) {}

  void split_bytes(std::string_view piece, MergeTable::Scratch& scratch) const;
  std::optional<std::int32_t> find(std::string_view character, const Vocabulary& vocabulary) const;
  void add_unknown(std::string_view character, bool follows_unknown,
                   MergeTable::Scratch& scratch) const;

  static constexpr std::int32_t kNoId = -1;

  bool by_bytes_;
  UnknownRule unknown_;
  // Token of the byte as a character, or else as a byte; kNoId where absent.
  std::array<std::int32_t, 256> ids_{};
  std::array<bool, 256> is_character_{};  // ASCII characters with their own token
};

// The merge list equivalent to the scores of a SentencePiece vocabulary.
//
// SentencePiece merges the two neighbors whose concatenation has the highest score in the
// vocabulary. The equivalent list contains every way to split a token into two others.
//
// Source: google/sentencepiece src/bpe_model.cc; huggingface/transformers
//         convert_slow_tokenizer.py, generate_merges, with the same order among equal scores.

inline constexpr std::size_t kMaxPieceBytes = 512;  // the longest in use have about 100

// Shapes: scores [vocabulary.size()].
// Errors: kCorrupt when the number of scores and tokens differs, or a score is not finite;
//         kTooLarge when a token or the list is too long.
Result<std::vector<Merge>> merges_from_scores(const Vocabulary& vocabulary,
                                              const std::vector<double>& scores);

}  // namespace tqcache::tokenizer
