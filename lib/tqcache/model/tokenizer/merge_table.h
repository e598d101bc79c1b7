#pragma once
// model/tokenizer/merge_table.h: byte pair encoding: which two neighbors become one token, and in
// what order. Safe for untrusted input.
//
// A piece starts as its smallest tokens (symbols.h). Of all neighbors that the list holds, the
// pair earliest in the list is merged, the leftmost among equals, until none is left. A heap finds
// it, so that a piece of n bytes takes n log n steps.
//
// Source: Sennrich et al., arXiv 1508.07909, algorithm 1; huggingface/tokenizers
// models/bpe/word.rs, merge_all, whose result this equals.

#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/model/tokenizer/vocabulary.h"

namespace tqcache::model {

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
  void merge(Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  struct Entry {
    std::uint64_t key;  // left id << 32 | right id; kFree: none
    std::uint32_t rank;
    std::int32_t result;
  };

  // Where the pair is, or the free place where it would be.
  std::size_t slot_of(std::uint64_t key) const;
  const Entry* find(std::int32_t left, std::int32_t right) const;
  void push_candidate(std::uint32_t left, std::uint32_t right, Scratch& scratch) const;
  void merge_symbols(Scratch& scratch) const;

  std::vector<Entry> entries_;  // open addressing; a power of two, less than half of it taken
};

}  // namespace tqcache::model
