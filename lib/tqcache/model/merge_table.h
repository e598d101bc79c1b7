#pragma once
// model/merge_table.h: byte pair encoding: which two neighbours become one token, and in what
// order. Safe for untrusted input.
//
// A piece starts as one token a byte. Of all neighbours that the list holds, the pair earliest in
// the list is merged, the leftmost among equals, until none is left. A heap finds it, so that a
// piece of n bytes takes n log n steps.
//
// Source: Sennrich et al., arXiv 1508.07909, algorithm 1; huggingface/tokenizers
// models/bpe/word.rs, merge_all, whose result this equals.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/model/vocabulary.h"

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
  // Errors: kCorrupt when a pair comes twice, or one of the 256 bytes has no token.
  static Result<MergeTable> make(const std::vector<Merge>& merges, const Vocabulary& vocabulary);

  // Memory that merge() uses again from piece to piece.
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
  };

  // Appends the token ids of one piece to `ids`.
  // Requires: piece shorter than 2^32 - 1 bytes.
  void merge(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  struct Entry {
    std::uint32_t rank;
    std::int32_t result;
  };
  struct KeyHash {
    std::size_t operator()(std::uint64_t key) const;
  };

  const Entry* find(std::int32_t left, std::int32_t right) const;
  void split_into_bytes(std::string_view piece, Scratch& scratch) const;
  void push_candidate(std::uint32_t left, std::uint32_t right, Scratch& scratch) const;
  void merge_symbols(Scratch& scratch) const;

  std::unordered_map<std::uint64_t, Entry, KeyHash> entries_;  // by left id << 32 | right id
  std::array<std::int32_t, 256> byte_ids_{};
};

}  // namespace tqcache::model
