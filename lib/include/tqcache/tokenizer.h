#pragma once
// tqcache/tokenizer.h: text to token ids and back, and the chat formats of models.
//
//   TQC_TRY_ASSIGN(const auto ids, model.tokenizer.encode("Alice was", {}));
//   std::string text = model.tokenizer.decode(ids);
//
// Safe for untrusted input. Text is first divided at special tokens, then into words, and each word
// becomes tokens: by merging its bytes in the order of the vocabulary's merge list (byte-level
// BPE), its characters likewise (SentencePiece's BPE), or by the highest sum of scores (unigram).
//
// Source: openai/gpt-2 encoder.py (byte alphabet, merges); google/sentencepiece; llama.cpp
//         src/llama-vocab.cpp for GGUF files; huggingface/tokenizers for the parts of
//         tokenizer.json.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"

namespace tqcache::tensors {
struct Gguf;  // not for users of the library
}

namespace tqcache::tokenizer {

struct TokenizerSpec;

class Tokenizer {
 public:
  // Errors: kUnsupported (another kind of tokenizer; an unknown pre-tokenizer; any part of the file
  //         that would change ids and is not implemented), kCorrupt, kTooLarge.
  static Result<Tokenizer> from_gguf(const tensors::Gguf& file);

  // The two configurations name the end tokens, the first one also the chat format, unless
  // chat_template.jinja does. Empty if there is none.
  // Errors: as from_gguf(); the message names which of the files it is.
  static Result<Tokenizer> from_json(ByteView tokenizer_json, ByteView tokenizer_config_json,
                                     ByteView generation_config_json = {},
                                     ByteView chat_template_jinja = {});

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // What a control token like <|im_end|>, spelled out in the text, means: the token, or just its
  // characters. (Words that the vocabulary adds without making them control tokens are found
  // either way.)
  enum class Special { kParse, kAsText };

  // Which of the tokens that the vocabulary's files put at the ends of a text are added. A prompt,
  // which will be continued, has a beginning and no end.
  enum class Ends { kNone, kBegin, kBoth };

  struct TextRange {
    std::size_t begin;
    std::size_t end;
  };

  struct EncodeOptions {
    Special special = Special::kParse;
    Ends ends = Ends::kNone;
    // Bytes of the text in which control tokens are not found, even with kParse. Ascending, apart.
    std::span<const TextRange> plain{};
    bool at_beginning = true;  // false: the text continues after other tokens
    std::function<bool()> keep_going = {};  // called now and then; false ends the work
  };

  // Threads: safe to call from several.
  // Errors:  kCorrupt when the text is not UTF-8; kTooLarge when the pre-tokenizer's expression
  //          passes its match limit, when all of it takes too many steps for a text of this
  //          length, or the text has more than 1 GiB; kInterrupted.
  Result<std::vector<std::int32_t>> encode(std::string_view text,
                                           const EncodeOptions& options) const;
  Result<std::vector<std::int32_t>> encode(std::string_view text, Special special) const;

  // The bytes of one token, which may be a part of a character. Special tokens give their name.
  // Ids outside the vocabulary have no bytes: a model's matrices may have rows to spare.
  const std::string& token_bytes(std::int32_t id) const;
  // Whether the token is a control token.
  bool is_special(std::int32_t id) const;
  // The bytes of all tokens, one after another. Where encoding puts a space before a text, one that
  // the text begins with is dropped.
  std::string decode(std::span<const std::int32_t> ids) const;

  std::int64_t vocab_size() const;
  // By name ("<|im_end|>"), or by the bytes of an ordinary token (" the").
  std::optional<std::int32_t> find_token(std::string_view text) const;
  // The token for the beginning of a text, whether or not texts get it.
  std::optional<std::int32_t> begin_token() const;
  // Whether Ends::kBegin adds it.
  bool adds_begin_token() const;
  // Whether decode() drops a first space.
  bool drops_first_space() const;
  // The chat template of the model's files, in Jinja; empty if they have none.
  const std::string& chat_template() const;
  // Generation ends at any of these. Ascending.
  std::vector<std::int32_t> end_tokens() const;
  // Of all that decides ids. Spec: docs/reference/format.md §Fingerprints.
  Sha256 fingerprint() const;

 private:
  struct State;
  class Encoder;
  explicit Tokenizer(std::unique_ptr<State> state);
  static Result<Tokenizer> build(TokenizerSpec spec);
  std::unique_ptr<State> state_;
};

// Takes all complete characters from `pending`, a stream of token bytes, and returns them as UTF-8.
// An incomplete character (3 bytes at most) stays for the next call. Bytes that can never become a
// character are returned as U+FFFD.
std::string take_whole_characters(std::string& pending);

// --- Chat formats
//
// A model's files hold its template as a Jinja program. It is never run: the families that there
// are differ in a few marks and spaces, so the program is recognized by what it contains, and the
// family's own form is written (docs/reference/tokenizers.md). An unknown template is refused; a
// format can be chosen by name instead.

enum class ChatRole { kSystem, kUser, kAssistant };

struct ChatMessage {
  ChatRole role;
  std::string text;
};

// A text, and the ranges of it that a person wrote. Special tokens spelled out there are plain
// text, so nobody can close their own turn and speak for the model.
struct ChatText {
  std::string text;
  std::vector<Tokenizer::TextRange> plain;
};

// The texts around turns in a family of models. An end token, like </s>, is a part of them by its
// name.
struct ChatFormat {
  std::string name;
  bool begins_with_token = false;  // the tokenizer's token for the beginning of a text
  std::string system_open;
  std::string system_close;
  bool system_in_user = false;  // no turn of its own: the first turn of the user begins with it
  bool has_system = true;
  bool always_system = false;  // there is a system turn even if it is empty
  std::string user_open;
  std::string user_close;
  std::string assistant_open;  // of an answer that is known
  std::string assistant_close;
  std::string asks;         // the text after which the model answers
  std::string asks_silent;  // the same, without thinking first; empty: not possible
  std::string end_token;    // with which an answer ends
  std::string turn_mark;    // a text in every turn, by which an open turn is recognized
  bool trims = false;       // white space around texts of user and model is removed
  bool trims_system = false;
  std::string default_system;  // used if there is no system message
};

class ChatTemplate {
 public:
  // Errors: kInvalidArgument; the message has the names that there are.
  static Result<ChatTemplate> by_name(std::string_view name);
  // Safe for untrusted input. Errors: kUnsupported, with the names.
  static Result<ChatTemplate> recognize(std::string_view jinja);

  // "chatml, gemma, ..."
  static std::string names();

  const ChatFormat& format() const { return format_; }

  struct RenderOptions {
    bool begins = true;         // a conversation begins, instead of going on
    bool asks = true;           // the model is to answer
    bool thinks = true;         // it may think first, if it does that
    std::string begin_token{};  // the name of the tokenizer's, empty when it has none
  };

  // Errors: kUnsupported when there is a system message and the family has none, or cannot be asked
  // not to think; kInvalidArgument when a system message is not the first of all.
  Result<ChatText> render(std::span<const ChatMessage> messages,
                          const RenderOptions& options) const;

 private:
  explicit ChatTemplate(ChatFormat format) : format_(std::move(format)) {}

  ChatFormat format_;
};

// The known chat formats, which docs/reference/tokenizers.md describes.
std::vector<ChatFormat> chat_formats();

// Recognizes the format of a Jinja template; nullopt when it is unknown. Safe for untrusted input.
std::optional<ChatFormat> recognize_chat_format(std::string_view jinja);

}  // namespace tqcache::tokenizer
