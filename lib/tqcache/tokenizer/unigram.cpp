#include "tqcache/tokenizer/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score
constexpr double kUnreached = -std::numeric_limits<double>::infinity();

Error bad_scores(std::string what) { return {ErrorCode::kCorrupt, "scores: " + std::move(what)}; }

Result<void> check(const Vocabulary& vocabulary, const std::vector<double>& scores,
                   const UnknownRule& unknown) {
  if (scores.size() != static_cast<std::size_t>(vocabulary.size())) {
    return bad_scores(std::to_string(scores.size()) + " for " + std::to_string(vocabulary.size()) +
                      " tokens");
  }
  const auto odd = std::find_if(scores.begin(), scores.end(),
                                [](double score) { return !std::isfinite(score); });
  if (odd != scores.end()) {
    return bad_scores("token " + std::to_string(odd - scores.begin()) + ": not a finite number");
  }
  if (!unknown.token) return bad_scores("no unknown token");
  return {};
}

PrefixIndex index_pieces(const Vocabulary& vocabulary) {
  std::vector<PrefixIndex::Name> names;
  for (std::int64_t id = 0; id < vocabulary.size(); ++id) {
    const Token& token = vocabulary.token(id);
    const auto id32 = static_cast<std::int32_t>(id);
    if (vocabulary.find_ordinary(token.bytes) == id32) names.push_back({token.bytes, id32});
  }
  return PrefixIndex(std::move(names));
}

}  // namespace

Result<Unigram> Unigram::make(const Vocabulary& vocabulary, std::vector<double> scores,
                              const UnknownRule& unknown) {
  TQC_TRY(check(vocabulary, scores, unknown));
  Unigram unigram(index_pieces(vocabulary), std::move(scores), unknown);
  for (std::size_t byte = 0; unknown.as_bytes && byte < 256; ++byte) {
    const auto id = vocabulary.find_byte(static_cast<unsigned char>(byte));
    if (!id) {
      return Error{ErrorCode::kCorrupt, "vocabulary: no token for byte " + std::to_string(byte)};
    }
    unigram.byte_ids_.push_back(*id);
  }
  return unigram;
}

Unigram::Unigram(PrefixIndex pieces, std::vector<double> scores, const UnknownRule& unknown)
    : pieces_(std::move(pieces)), scores_(std::move(scores)), unknown_(unknown) {
  unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
}

Result<void> Unigram::encode(std::string_view piece, Scratch& scratch,
                             std::vector<std::int32_t>& ids, WorkBudget& budget) const {
  TQC_TRY(find_best(piece, scratch, budget));
  trace_back(scratch);
  for (auto part = scratch.path.rbegin(); part != scratch.path.rend(); ++part) {
    if (part->id == *unknown_.token) {
      add_unknown(piece.substr(part->begin, part->end - part->begin), ids);
    } else {
      ids.push_back(part->id);
    }
  }
  return {};
}

void Unigram::trace_back(Scratch& scratch) const {
  scratch.path.clear();
  for (std::size_t end = scratch.best.size() - 1; end > 0; end = scratch.best[end].from) {
    const Scratch::Step& step = scratch.best[end];
    const bool joins = unknown_.joined && !scratch.path.empty() && step.id == *unknown_.token &&
                       scratch.path.back().id == *unknown_.token;
    if (joins) {
      scratch.path.back().begin = step.from;
    } else {
      scratch.path.push_back({step.from, end, step.id});
    }
  }
}

void Unigram::add_unknown(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (!unknown_.as_bytes) return ids.push_back(*unknown_.token);
  for (const char c : text) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
}

Result<void> Unigram::find_best(std::string_view piece, Scratch& scratch,
                                WorkBudget& budget) const {
  scratch.best.assign(piece.size() + 1, {kUnreached, 0, 0});
  scratch.best[0].score = 0;
  const auto offer = [&](std::size_t from, std::size_t size, double score, std::int32_t id) {
    Scratch::Step& end = scratch.best[from + size];
    const double sum = scratch.best[from].score + score;
    if (sum > end.score) end = {sum, from, id};
  };
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t n_bytes = first_character(piece.substr(at)).n_bytes;
    bool has_character = false;
    const std::size_t n_read =
        pieces_.find(piece.substr(at), [&](std::size_t size, std::int32_t id) {
          offer(at, size, scores_[static_cast<std::size_t>(id)], id);
          has_character |= size == n_bytes;
        });
    TQC_TRY(budget.spend(n_read));
    if (!has_character) offer(at, n_bytes, unknown_score_, *unknown_.token);
    at += n_bytes;
  }
  return {};
}

}  // namespace tqcache::tokenizer
