#pragma once
// tokenizer/merge_table.h: byte pair encoding. Safe for untrusted input.
//
// A piece starts as its smallest tokens (Symbols). Of all neighbors that the list holds, the
// pair earliest in the list is merged, the leftmost among equals, until none is left. A heap finds
// it, so that a piece of n bytes takes n log n steps.
//
// Source: Sennrich et al., arXiv 1508.07909, algorithm 1; huggingface/tokenizers
// models/bpe/word.rs, merge_all, whose result this equals.

#include <array>
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
  std::string left;
  std::string right;
};

// The same as token ids.
struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

// Errors: kCorrupt when a part or a result is no token that merging may make, kTooLarge.
Result<std::vector<Merge>> resolve_merges(const std::vector<MergeBytes>& merges,
                                          const Vocabulary& vocabulary);

class MergeTable {
 public:
  // Errors: kCorrupt when a pair comes twice.
  static Result<MergeTable> make(const std::vector<Merge>& merges);

  // A piece, and the memory to merge it, used again from piece to piece.
  struct Scratch {
    struct Symbol {
      std::int32_t id;  // kMerged: part of an earlier symbol now
      std::uint32_t previous;
      std::uint32_t next;
    };
    struct Candidate {
      std::uint32_t rank;
      std::uint32_t position;  // of the left symbol
      std::int32_t result;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;  // the best on top

    void clear();
    void add(std::int32_t id);  // the next symbol. Requires: fewer than 2^32 - 1
  };

  // Merges the symbols, and appends the token ids of what is left to `ids`.
  // Errors: those of `budget`.
  Result<void> merge(Scratch& scratch, std::vector<std::int32_t>& ids, WorkBudget& budget) const;

  // The most places that any pair is away from where it was looked for first.
  std::size_t longest_search() const;

 private:
  struct Entry {
    std::uint64_t key;  // left id << 32 | right id; kFree: none
    std::uint32_t rank;
    std::int32_t result;
  };

  // Where the pair is, or the free place where it would be.
  std::size_t first_slot(std::uint64_t key) const;
  std::size_t slot_of(std::uint64_t key) const;
  const Entry* find(std::int32_t left, std::int32_t right) const;
  void push_candidate(std::uint32_t left, std::uint32_t right, Scratch& scratch) const;
  Result<void> merge_symbols(Scratch& scratch, WorkBudget& budget) const;

  std::uint64_t seed_ = hash_seed();
  std::vector<Entry> entries_;  // open addressing; a power of two, less than half of it taken
};

// The smallest tokens of a piece of text, before any are merged.
//
// A byte-level vocabulary has a token for every byte. One of SentencePiece has tokens for
// characters; a character without one becomes its bytes, where the vocabulary has tokens for
// bytes, and otherwise the unknown token.

// What a character without a token becomes.
struct UnknownRule {
  bool as_bytes = false;
  std::optional<std::int32_t> token;  // used unless as_bytes
  bool joined = false;                // one token for a run of such characters
};

class Symbols {
 public:
  // Errors:   kCorrupt when a byte has no token.
  static Result<Symbols> of_bytes(const Vocabulary& vocabulary);
  // Errors:   kCorrupt when a character would have neither a token, nor tokens of its bytes, nor
  //           the unknown token.
  static Result<Symbols> of_characters(const Vocabulary& vocabulary, const UnknownRule& unknown);

  // Puts the symbols of the piece into `scratch`, in the place of what it held.
  // Requires: piece shorter than 2^32 - 1 bytes, and UTF-8 unless the symbols are bytes; the
  //           vocabulary that they were made of.
  void split(std::string_view piece, const Vocabulary& vocabulary,
             MergeTable::Scratch& scratch) const;

 private:
  Symbols(bool by_bytes, const UnknownRule& unknown) : by_bytes_(by_bytes), unknown_(unknown) {}

  std::optional<std::int32_t> find(std::string_view character, const Vocabulary& vocabulary) const;

  void add_unknown(std::string_view character, bool follows_unknown,
                   MergeTable::Scratch& scratch) const;

  bool by_bytes_;
  UnknownRule unknown_;
  std::array<std::int32_t, 256> ids_{};   // of the byte as a character, or else as a byte
  std::array<bool, 256> is_character_{};  // ASCII characters that have a token of their own
};

// The merge list equivalent to the scores of a SentencePiece vocabulary.
//
// SentencePiece merges two neighbors when what they make together is in the vocabulary, the
// highest score first. Written as a list, that is every way to cut a token into two others.
//
// Source: google/sentencepiece src/bpe_model.cc; huggingface/transformers
// convert_slow_tokenizer.py, generate_merges, whose order among equal scores this has.

inline constexpr std::size_t kMaxPieceBytes = 512;  // the longest in use have about 100

// Shapes: scores [vocabulary.size()].
// Errors: kCorrupt when the scores are not as many as tokens, or not finite; kTooLarge when a token
//         or the list is too long.
Result<std::vector<Merge>> merges_from_scores(const Vocabulary& vocabulary,
                                              const std::vector<double>& scores);

}  // namespace tqcache::tokenizer
