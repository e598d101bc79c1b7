#include "tqcache/tokenizer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/merge_table.h"
#include "tqcache/tokenizer/tokenizer_encoder.h"
#include "tqcache/tokenizer/tokenizer_spec.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {
namespace {

// Positions in a piece have 32 bits, and NFC can triple the length of a text.
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

// Tokens that end an answer or a text in the known families: a model may generate any of them, and
// not all files list them.
constexpr const char* kKnownEnds[] = {"<|im_end|>",    "<|endoftext|>", "<|eot_id|>", "<|eom_id|>",
                                      "<end_of_turn>", "<|end|>",       "<|return|>", "<|call|>"};

// The names to split off before the normalizer runs; or those after it, in normalized spelling.
Result<SpecialSplitter> make_splitter(const Vocabulary& vocabulary, bool normalized,
                                      const Normalizers& normalizer) {
  std::vector<SpecialSplitter::Name> names;
  for (std::int64_t id = 0; id < vocabulary.size(); ++id) {
    const Token& token = vocabulary.token(id);
    const bool is_added =
        token.kind == TokenKind::kControl || token.kind == TokenKind::kUserDefined;
    if (!is_added || token.normalized != normalized) continue;
    if (valid_utf8_bytes(token.name()) != token.name().size()) {
      return Error{ErrorCode::kCorrupt, "token " + std::to_string(id) + ": its name is not UTF-8"};
    }
    TQC_TRY_ASSIGN(std::string name,
                   normalize(normalized ? normalizer : Normalizers{}, token.name()));
    if (!name.empty()) names.push_back({std::move(name), static_cast<std::int32_t>(id)});
  }
  return SpecialSplitter(std::move(names));
}

Result<std::int32_t> check_id(const Vocabulary& vocabulary, std::int64_t id, const char* what) {
  if (vocabulary.contains(id)) return static_cast<std::int32_t>(id);
  return Error{ErrorCode::kCorrupt,
               std::string(what) + " " + std::to_string(id) + ": no such token"};
}

Result<std::optional<std::int32_t>> check_id(const Vocabulary& vocabulary,
                                             std::optional<std::int64_t> id, const char* what) {
  if (!id) return std::optional<std::int32_t>();
  TQC_TRY_ASSIGN(const std::int32_t checked, check_id(vocabulary, *id, what));
  return std::optional(checked);
}

Result<std::vector<std::int32_t>> find_end_tokens(const TokenizerSpec& spec,
                                                  const Vocabulary& vocabulary) {
  std::set<std::int32_t> ends;
  for (const std::int64_t id : spec.end_ids) {
    TQC_TRY_ASSIGN(const std::int32_t end, check_id(vocabulary, id, "end token"));
    ends.insert(end);
  }
  if (!spec.end_name.empty()) {
    const std::optional<std::int32_t> id = vocabulary.find_added(spec.end_name);
    if (!id) {
      return Error{ErrorCode::kCorrupt,
                   "end token " + tensors::printable_name(spec.end_name) + ": not an added token"};
    }
    ends.insert(*id);
  }
  // In gpt-oss's vocabulary <|end|> ends one channel of an answer, and others follow.
  const bool has_channels =
      vocabulary.find_added("<|return|>") && vocabulary.find_added("<|channel|>");
  for (const char* name : kKnownEnds) {
    if (has_channels && std::string_view(name) == "<|end|>") continue;
    const std::optional<std::int32_t> id = vocabulary.find_added(name);
    if (id && vocabulary.token(*id).kind == TokenKind::kControl) ends.insert(*id);
  }
  return std::vector<std::int32_t>(ends.begin(), ends.end());
}

Result<UnknownRule> unknown_rule(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  TQC_TRY_ASSIGN(const auto token, check_id(vocabulary, spec.unknown_id, "unknown token"));
  return UnknownRule{spec.bytes_for_unknown, token, spec.joins_unknown};
}

Result<std::vector<Merge>> make_merges(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  const bool from_scores = spec.algorithm == Algorithm::kPieces && !spec.scores.empty();
  return from_scores ? merges_from_scores(vocabulary, spec.scores)
                     : resolve_merges(spec.merges, vocabulary);
}

bool has_all_bytes(const Vocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (!vocabulary.find_ordinary({&c, 1})) return false;
  }
  return true;
}

// Returns whether every token is a word or a part of one, where a space begins a word. Then merging
// never crosses word boundaries, and a text can be merged word by word, which is much faster.
bool has_words_only(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  if (spec.algorithm != Algorithm::kPieces || spec.ignore_merges) return false;
  if (!spec.bytes_for_unknown && !vocabulary.find_ordinary(" ")) return false;
  for (std::int64_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view bytes = vocabulary.token(id).bytes;
    if (vocabulary.find_ordinary(bytes) != static_cast<std::int32_t>(id)) continue;
    if (find_word_end(bytes) != bytes.size()) return false;
  }
  return true;
}

Result<PieceMerger> make_merger(const TokenizerSpec& spec, const Vocabulary& vocabulary,
                                const std::vector<Merge>& merges) {
  TQC_TRY_ASSIGN(MergeTable table, MergeTable::make(merges));
  TQC_TRY_ASSIGN(const UnknownRule unknown, unknown_rule(spec, vocabulary));
  TQC_TRY_ASSIGN(const Symbols symbols, spec.algorithm == Algorithm::kByteLevel
                                            ? Symbols::of_bytes(vocabulary, unknown)
                                            : Symbols::of_characters(vocabulary, unknown));
  return PieceMerger{symbols, std::move(table), spec.ignore_merges,
                     has_words_only(spec, vocabulary)};
}

Result<Unigram> make_unigram(TokenizerSpec& spec, const Vocabulary& vocabulary) {
  TQC_TRY_ASSIGN(const UnknownRule unknown, unknown_rule(spec, vocabulary));
  return Unigram::make(vocabulary, std::move(spec.scores), unknown);
}

Result<std::vector<Pretokenizer>> compile_patterns(const TokenizerSpec& spec) {
  std::vector<Pretokenizer> all;
  if (spec.algorithm != Algorithm::kByteLevel) return all;
  TQC_TRY_ASSIGN(Pretokenizer first, Pretokenizer::compile(spec.pattern));
  all.push_back(std::move(first));
  for (const std::string& pattern : spec.later_patterns) {
    TQC_TRY_ASSIGN(Pretokenizer later, Pretokenizer::compile(pattern));
    all.push_back(std::move(later));
  }
  return all;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::from_gguf(const tensors::Gguf& file) {
  TQC_TRY_ASSIGN(TokenizerSpec spec, read_gguf_tokenizer(file));
  return build(std::move(spec));
}

Result<Tokenizer> Tokenizer::from_json(ByteView tokenizer_json, ByteView tokenizer_config_json,
                                       ByteView generation_config_json,
                                       ByteView chat_template_jinja) {
  TQC_TRY_ASSIGN(TokenizerSpec spec, read_json_tokenizer(tokenizer_json, tokenizer_config_json,
                                                         generation_config_json));
  if (!chat_template_jinja.empty()) {
    spec.chat_template.assign(reinterpret_cast<const char*>(chat_template_jinja.data()),
                              chat_template_jinja.size());
    spec.tool_template.clear();
  }
  return build(std::move(spec));
}

Result<Tokenizer> Tokenizer::build(TokenizerSpec spec) {
  TQC_TRY_ASSIGN(Vocabulary vocabulary, Vocabulary::make(std::move(spec.tokens)));
  if (spec.algorithm == Algorithm::kByteLevel && has_all_bytes(vocabulary)) {
    spec.unknown_id.reset();  // no text is unknown
  }
  TQC_TRY_ASSIGN(const std::vector<Merge> merges, make_merges(spec, vocabulary));
  TQC_TRY_ASSIGN(std::vector<Pretokenizer> pretokenizers, compile_patterns(spec));
  TQC_TRY_ASSIGN(SpecialSplitter before, make_splitter(vocabulary, false, spec.normalizer));
  TQC_TRY_ASSIGN(SpecialSplitter after, make_splitter(vocabulary, true, spec.normalizer));
  TQC_TRY_ASSIGN(const auto begin, check_id(vocabulary, spec.begin_id, "begin token"));
  TQC_TRY_ASSIGN(const auto added_end, check_id(vocabulary, spec.added_end_id, "end token"));
  TQC_TRY_ASSIGN(std::vector<std::int32_t> ends, find_end_tokens(spec, vocabulary));
  const Sha256 fingerprint = tokenizer_fingerprint(spec, vocabulary, merges);
  std::optional<PieceMerger> merger;
  std::optional<Unigram> unigram;
  if (spec.algorithm == Algorithm::kUnigram) {
    TQC_TRY_ASSIGN(unigram, make_unigram(spec, vocabulary));
  } else {
    TQC_TRY_ASSIGN(merger, make_merger(spec, vocabulary, merges));
  }
  return Tokenizer(std::make_unique<State>(State{std::move(vocabulary),
                                                 std::move(merger),
                                                 std::move(unigram),
                                                 std::move(pretokenizers),
                                                 spec.words,
                                                 std::move(spec.normalizer),
                                                 std::move(before),
                                                 std::move(after),
                                                 begin,
                                                 spec.adds_begin && begin,
                                                 added_end,
                                                 spec.drops_first_space,
                                                 spec.guesses_words,
                                                 std::move(ends),
                                                 std::move(spec.chat_template),
                                                 std::move(spec.tool_template),
                                                 std::move(spec.named_tokens),
                                                 fingerprint,
                                                 {}}));
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text,
                                                    const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return Error{ErrorCode::kTooLarge, "text: " + std::to_string(text.size()) + " bytes"};
  }
  const std::size_t n_valid = valid_utf8_bytes(text);
  if (n_valid != text.size()) {
    return Error{ErrorCode::kCorrupt, "text: byte " + std::to_string(n_valid) + ": not UTF-8"};
  }
  return Encoder(*state_, options, text.size()).run(text);
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, Special special) const {
  EncodeOptions options;
  options.special = special;
  return encode(text, options);
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
  if (state_->drops_first_space && bytes.starts_with(' ')) bytes.erase(0, 1);
  return bytes;
}

std::optional<std::size_t> Tokenizer::find_left_out(std::string_view text) const {
  if (!state_->merger) return std::nullopt;
  const Symbols& symbols = state_->merger->symbols;
  const auto found = std::ranges::find_if(text, [&](char c) { return symbols.leaves_out(c); });
  if (found == text.end()) return std::nullopt;
  auto at = static_cast<std::size_t>(found - text.begin());
  while (at > 0 && (text[at] & 0xc0) == 0x80) --at;  // to the first byte of the character
  return at;
}

bool Tokenizer::guesses_words() const { return state_->guesses_words; }

std::int64_t Tokenizer::vocab_size() const { return state_->vocabulary.size(); }

std::int64_t Tokenizer::ordinary_size() const {
  std::int64_t n = vocab_size();
  const auto is_made_of_text = [&](std::int64_t id) {
    const TokenKind kind = state_->vocabulary.token(id).kind;
    return kind == TokenKind::kOrdinary || kind == TokenKind::kByte;
  };
  while (n > 0 && !is_made_of_text(n - 1)) --n;
  return n;
}

std::optional<std::int32_t> Tokenizer::find_token(std::string_view text) const {
  if (const auto id = state_->vocabulary.find_added(text)) return id;
  return state_->vocabulary.find_ordinary(text);
}

std::optional<std::int32_t> Tokenizer::begin_token() const { return state_->begin_token; }

bool Tokenizer::adds_begin_token() const { return state_->adds_begin; }

bool Tokenizer::drops_first_space() const { return state_->drops_first_space; }

const std::string& Tokenizer::chat_template(bool for_tools) const {
  const bool is_other = for_tools && !state_->tool_template.empty();
  return is_other ? state_->tool_template : state_->chat_template;
}

const std::vector<std::pair<std::string, std::string>>& Tokenizer::named_tokens() const {
  return state_->named_tokens;
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

}  // namespace tqcache::tokenizer
