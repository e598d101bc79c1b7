// Any bytes as tokenizer.json, tokenizer_config.json and generation_config.json. A tokenizer that
// is taken has to give ids of its own, and the text back if it takes nothing of it away.

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "model/tiny_files.h"
#include "tqcache/tokenizer.h"
#include "tqcache/tokenizer/tokenizer_spec.h"

namespace tqcache {
namespace {

using fuzz::require;
using tokenizer::Tokenizer;

// Two bytes that no JSON holds: one parts the files; the other stands for the 256 letters of the
// byte alphabet with their ids, which every good file lists and which would make it long.
constexpr std::byte kBorder{0x1e};
constexpr std::byte kLetters{0x1f};

// The files' pattern may take time that grows with 2^n of a text of n characters: these are short.
constexpr std::string_view kTexts[] = {
    "", " a1", "he llo\n", "\xc3\xa9\xcc\x81", "<|im_end|>", "in  \xe2\x96\x81the </s> the"};

// Everything before `border`; takes it off `rest`, and the border too.
ByteView next_piece(ByteView& rest, std::byte border) {
  const void* found = rest.empty() ? nullptr : std::memchr(rest.data(), int(border), rest.size());
  const auto n = found == nullptr
                     ? rest.size()
                     : static_cast<std::size_t>(static_cast<const std::byte*>(found) - rest.data());
  const ByteView piece = rest.first(n);
  rest = rest.subspan(std::min(n + 1, rest.size()));
  return piece;
}

std::string make_letters() {
  std::string all;
  const std::vector<std::string> letters = tiny::byte_letters();
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const bool is_escaped = letters[i] == "\"" || letters[i] == "\\";
    all += (i == 0 ? "\"" : ",\"") + (is_escaped ? "\\" : std::string()) + letters[i] +
           "\":" + std::to_string(i);
  }
  return all;
}

// With the first kLetters written out.
std::string written_out(ByteView file) {
  static const std::string letters = make_letters();
  const auto append = [](std::string& text, ByteView bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  std::string text;
  ByteView rest = file;
  append(text, next_piece(rest, kLetters));
  if (text.size() < file.size()) text += letters;
  append(text, rest);
  return text;
}

void check_ids(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  for (const std::int32_t id : ids) {
    require(id >= 0 && id < tokenizer.vocab_size(), "an id is one of the vocabulary");
  }
}

void check_round_trip(const Tokenizer& tokenizer, std::string_view text, bool keeps_text) {
  for (const auto special : {Tokenizer::Special::kParse, Tokenizer::Special::kAsText}) {
    const auto ids = tokenizer.encode(text, special);
    if (!ids) continue;  // the pattern's match limit
    check_ids(tokenizer, *ids);
    if (keeps_text) require(tokenizer.decode(*ids) == text, "a text comes back");
  }
}

// The same with tokens at the ends, and with a part that is to stay text.
void check_ranges(const Tokenizer& tokenizer, std::string_view text) {
  const Tokenizer::TextRange range{text.size() / 3, text.size()};
  Tokenizer::EncodeOptions options;
  options.ends = Tokenizer::Ends::kBoth;
  options.plain = {&range, 1};
  options.at_beginning = text.size() % 2 == 0;
  if (const auto ids = tokenizer.encode(text, options)) check_ids(tokenizer, *ids);
}

// Bytes without a token are left out, or become the unknown token.
bool has_all_bytes(const tokenizer::TokenizerSpec& spec) {
  std::set<char> bytes;
  for (const tokenizer::Token& token : spec.tokens) {
    const bool is_byte = token.kind == tokenizer::TokenKind::kOrdinary && token.bytes.size() == 1;
    if (is_byte) bytes.insert(token.bytes[0]);
  }
  return bytes.size() == 256;
}

// Whether a text can be had back: no step takes anything away, and nothing is unknown.
bool keeps_text(const tokenizer::TokenizerSpec& spec) {
  const bool strips = std::any_of(spec.tokens.begin(), spec.tokens.end(), [](const auto& token) {
    return token.strips_left || token.strips_right;
  });
  return spec.algorithm == tokenizer::Algorithm::kByteLevel && spec.normalizer.empty() && !strips &&
         !spec.drops_first_space && has_all_bytes(spec);
}

void check(const Tokenizer& tokenizer, bool keeps_text) {
  for (const std::string_view text : kTexts) {
    check_round_trip(tokenizer, text, keeps_text);
    check_ranges(tokenizer, text);
  }
  for (const std::int32_t id : tokenizer.end_tokens()) {
    require(id >= 0 && id < tokenizer.vocab_size(), "an end token is one of the vocabulary");
  }
  require(tokenizer.token_bytes(-1).empty() && !tokenizer.is_special(-1), "-1 is no token");
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  ByteView rest = fuzz::view_of(data, size);
  const std::string tokenizer_json = written_out(next_piece(rest, kBorder));
  const ByteView tokenizer_config = next_piece(rest, kBorder);
  const ByteView generation_config = rest;
  const auto tokenizer =
      Tokenizer::from_json(as_bytes(tokenizer_json), tokenizer_config, generation_config);
  if (!tokenizer) {
    fuzz::require(!tokenizer.error().message.empty(), "an error has a message");
    return 0;
  }
  const auto spec = tokenizer::read_json_tokenizer(as_bytes(tokenizer_json), {}, {});
  check(*tokenizer, keeps_text(*spec));
  return 0;
}
