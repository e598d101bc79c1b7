#include "tqcache/model/tokenizer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tqcache/model/merge_table.h"
#include "tqcache/model/normalizer.h"
#include "tqcache/model/pretokenizer.h"
#include "tqcache/model/special_splitter.h"
#include "tqcache/model/tokenizer_spec.h"
#include "tqcache/model/utf8.h"
#include "tqcache/model/vocabulary.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

// Positions in a piece are 32 bits wide, and NFC may make a text three times as long.
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

// The names to cut out before the normalizer runs, or after it, as the normalizer leaves them.
Result<SpecialSplitter> make_splitter(const Vocabulary& vocabulary, bool normalized,
                                      Normalizer normalizer) {
  std::vector<SpecialSplitter::Name> names;
  for (std::int64_t id = 0; id < vocabulary.size(); ++id) {
    const Token& token = vocabulary.token(id);
    const bool is_added =
        token.kind == TokenKind::kControl || token.kind == TokenKind::kUserDefined;
    if (!is_added || token.normalized != normalized) continue;
    if (valid_utf8_bytes(token.bytes) != token.bytes.size()) {
      return Error{ErrorCode::kCorrupt, "token " + std::to_string(id) + ": its name is not UTF-8"};
    }
    TQC_TRY_ASSIGN(std::string name,
                   normalize(normalized ? normalizer : Normalizer::kNone, token.bytes));
    names.push_back({std::move(name), static_cast<std::int32_t>(id)});
  }
  return SpecialSplitter(std::move(names));
}

Result<std::vector<std::int32_t>> find_end_tokens(const TokenizerSpec& spec,
                                                  const Vocabulary& vocabulary) {
  std::set<std::int32_t> ends;
  for (const std::int64_t id : spec.end_ids) {
    if (!vocabulary.contains(id)) {
      return Error{ErrorCode::kCorrupt, "end token " + std::to_string(id) + ": no such token"};
    }
    ends.insert(static_cast<std::int32_t>(id));
  }
  if (!spec.end_name.empty()) {
    const std::optional<std::int32_t> id = vocabulary.find_added(spec.end_name);
    if (!id) {
      return Error{ErrorCode::kCorrupt,
                   "end token " + tensors::printable_name(spec.end_name) + ": not an added token"};
    }
    ends.insert(*id);
  }
  // The end of a ChatML turn, and of a text: a model may write either.
  for (const char* name : {"<|im_end|>", "<|endoftext|>"}) {
    const std::optional<std::int32_t> id = vocabulary.find_added(name);
    if (id && vocabulary.token(*id).kind == TokenKind::kControl) ends.insert(*id);
  }
  return std::vector<std::int32_t>(ends.begin(), ends.end());
}

}  // namespace

struct Tokenizer::State {
  Vocabulary vocabulary;
  MergeTable merges;
  Pretokenizer pretokenizer;
  Normalizer normalizer;
  bool ignore_merges;
  SpecialSplitter before_normalizer;
  SpecialSplitter after_normalizer;
  std::vector<std::int32_t> end_tokens;
  Sha256 fingerprint;
  std::string no_bytes;  // of ids outside the vocabulary
};

// One call of encode(): the text goes down the steps in pieces that get smaller, and each step
// appends to `ids_`.
class Tokenizer::Encoder {
 public:
  Encoder(const State& tokenizer, Special special)
      : tokenizer_(tokenizer), special_(special), matcher_(tokenizer.pretokenizer) {}

  Result<std::vector<std::int32_t>> run(std::string_view text) {
    TQC_TRY(split(tokenizer_.before_normalizer, text, &Encoder::encode_raw));
    return std::move(ids_);
  }

 private:
  using Step = Result<void> (Encoder::*)(std::string_view text);

  // Cuts `text` at special tokens, and gives what lies between to the next step.
  Result<void> split(const SpecialSplitter& splitter, std::string_view text, Step next) {
    std::size_t done = 0;
    std::size_t search = 0;
    while (const auto match = splitter.find(text, search)) {
      search = match->end;
      if (stays_text(match->id)) continue;
      TQC_TRY((this->*next)(text.substr(done, match->begin - done)));
      ids_.push_back(match->id);
      done = match->end;
    }
    return (this->*next)(text.substr(done));
  }

  bool stays_text(std::int32_t id) const {
    return special_ == Special::kAsText &&
           tokenizer_.vocabulary.token(id).kind == TokenKind::kControl;
  }

  Result<void> encode_raw(std::string_view text) {
    if (tokenizer_.normalizer == Normalizer::kNone) return encode_normalized(text);
    TQC_TRY_ASSIGN(const std::string normalized, normalize(tokenizer_.normalizer, text));
    return encode_normalized(normalized);
  }

  Result<void> encode_normalized(std::string_view text) {
    return split(tokenizer_.after_normalizer, text, &Encoder::encode_words);
  }

  Result<void> encode_words(std::string_view text) {
    return matcher_.split(text, [this](std::string_view piece) { encode_piece(piece); });
  }

  void encode_piece(std::string_view piece) {
    if (tokenizer_.ignore_merges) {
      if (const auto id = tokenizer_.vocabulary.find_ordinary(piece)) return ids_.push_back(*id);
    }
    tokenizer_.merges.merge(piece, scratch_, ids_);
  }

  const State& tokenizer_;
  const Special special_;
  Pretokenizer::Matcher matcher_;
  MergeTable::Scratch scratch_;
  std::vector<std::int32_t> ids_;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::from_gguf(const tensors::Gguf& file) {
  TQC_TRY_ASSIGN(TokenizerSpec spec, read_gguf_tokenizer(file));
  return build(std::move(spec));
}

Result<Tokenizer> Tokenizer::from_json(ByteView tokenizer_json, ByteView tokenizer_config_json,
                                       ByteView generation_config_json) {
  TQC_TRY_ASSIGN(TokenizerSpec spec, read_json_tokenizer(tokenizer_json, tokenizer_config_json,
                                                         generation_config_json));
  return build(std::move(spec));
}

Result<Tokenizer> Tokenizer::build(TokenizerSpec spec) {
  TQC_TRY_ASSIGN(Vocabulary vocabulary, Vocabulary::make(std::move(spec.tokens)));
  TQC_TRY_ASSIGN(const std::vector<Merge> merges, resolve_merges(spec.merges, vocabulary));
  TQC_TRY_ASSIGN(MergeTable merge_table, MergeTable::make(merges, vocabulary));
  TQC_TRY_ASSIGN(Pretokenizer pretokenizer, Pretokenizer::compile(spec.pattern));
  TQC_TRY_ASSIGN(SpecialSplitter before, make_splitter(vocabulary, false, spec.normalizer));
  TQC_TRY_ASSIGN(SpecialSplitter after, make_splitter(vocabulary, true, spec.normalizer));
  TQC_TRY_ASSIGN(std::vector<std::int32_t> ends, find_end_tokens(spec, vocabulary));
  const Sha256 fingerprint = tokenizer_fingerprint(spec, vocabulary, merges);
  return Tokenizer(std::make_unique<State>(State{std::move(vocabulary),
                                                 std::move(merge_table),
                                                 std::move(pretokenizer),
                                                 spec.normalizer,
                                                 spec.ignore_merges,
                                                 std::move(before),
                                                 std::move(after),
                                                 std::move(ends),
                                                 fingerprint,
                                                 {}}));
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, Special special) const {
  if (text.size() > kMaxTextBytes) {
    return Error{ErrorCode::kTooLarge, "text: " + std::to_string(text.size()) + " bytes"};
  }
  const std::size_t n_valid = valid_utf8_bytes(text);
  if (n_valid != text.size()) {
    return Error{ErrorCode::kCorrupt, "text: byte " + std::to_string(n_valid) + ": not UTF-8"};
  }
  return Encoder(*state_, special).run(text);
}

const std::string& Tokenizer::token_bytes(std::int32_t id) const {
  return state_->vocabulary.contains(id) ? state_->vocabulary.token(id).bytes : state_->no_bytes;
}

bool Tokenizer::is_special(std::int32_t id) const {
  return state_->vocabulary.contains(id) &&
         state_->vocabulary.token(id).kind == TokenKind::kControl;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string bytes;
  for (const std::int32_t id : ids) bytes += token_bytes(id);
  return bytes;
}

std::int64_t Tokenizer::vocab_size() const { return state_->vocabulary.size(); }

std::optional<std::int32_t> Tokenizer::find_token(std::string_view text) const {
  if (const auto id = state_->vocabulary.find_added(text)) return id;
  return state_->vocabulary.find_ordinary(text);
}

std::vector<std::int32_t> Tokenizer::end_tokens() const { return state_->end_tokens; }

Sha256 Tokenizer::fingerprint() const { return state_->fingerprint; }

std::string take_whole_characters(std::string& pending) {
  std::string whole;
  std::string_view rest = pending;
  while (!rest.empty()) {
    const Utf8Character character = first_character(rest);
    if (character.status == Utf8Status::kCut) break;
    const bool is_whole = character.status == Utf8Status::kWhole;
    whole += is_whole ? rest.substr(0, character.n_bytes) : kReplacementCharacter;
    rest.remove_prefix(character.n_bytes);
  }
  pending.erase(0, pending.size() - rest.size());
  return whole;
}

}  // namespace tqcache::model
