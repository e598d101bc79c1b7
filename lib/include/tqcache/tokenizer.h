#pragma once
// tqcache/tokenizer.h: text to token ids and back, and the chat templates of models.
//
//   TQC_TRY_ASSIGN(const auto ids, model.tokenizer.encode("Alice was", {}));
//   std::string text = model.tokenizer.decode(ids);
//
// Safe for untrusted input. Text is first split at special tokens, then into words, and each word
// becomes tokens: by merging its bytes in the order of the vocabulary's merge list (byte-level
// BPE), by merging its characters in the same way (SentencePiece BPE), or by the highest sum of
// scores (unigram).
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
#include <utility>
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

  // The two configurations name the end tokens; tokenizer_config.json also has the chat template,
  // unless chat_template.jinja is it. Pass empty text for a missing file.
  // Errors: as from_gguf(); the message names the file.
  static Result<Tokenizer> from_json(ByteView tokenizer_json, ByteView tokenizer_config_json,
                                     ByteView generation_config_json = {},
                                     ByteView chat_template_jinja = {});

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The meaning of a control token like <|im_end|> that is spelled out in the text: the token, or
  // just its characters. (Words that the vocabulary adds without making them control tokens are
  // found either way.)
  enum class Special { kParse, kAsText };

  // Which of the tokens that the vocabulary's files put at the ends of a text are added. A prompt,
  // which will be continued, has a begin token but no end token.
  enum class Ends { kNone, kBegin, kBoth };

  struct TextRange {
    std::size_t begin;
    std::size_t end;
  };

  struct EncodeOptions {
    Special special = Special::kParse;
    Ends ends = Ends::kNone;
    // Byte ranges of the text in which control tokens are not parsed, even with kParse. Ascending,
    // not overlapping.
    std::span<const TextRange> plain{};
    bool at_beginning = true;               // false: the text continues after other tokens
    std::function<bool()> keep_going = {};  // called now and then; false ends the work
  };

  // Threads: safe to call concurrently.
  // Errors:  kCorrupt when the text is not UTF-8; kTooLarge when the pre-tokenizer's expression
  //          exceeds its match limit, when the whole text takes too many steps for its length, or
  //          when the text has more than 1 GiB; kInterrupted.
  Result<std::vector<std::int32_t>> encode(std::string_view text,
                                           const EncodeOptions& options) const;
  Result<std::vector<std::int32_t>> encode(std::string_view text, Special special) const;

  // The position of the first character of `text` that encode() leaves out, because the vocabulary
  // has no token for one of its bytes. Some byte-level vocabularies lack control characters.
  std::optional<std::size_t> find_left_out(std::string_view text) const;

  // Whether the file names no pre-tokenizer. Texts are then cut as llama.cpp cuts them by default,
  // which may not be how the texts were cut that the model was trained on.
  bool guesses_words() const;

  // The bytes of one token, which may be a part of a character. For special tokens, their name. Ids
  // outside the vocabulary have no bytes: a model's matrices may have spare rows.
  const std::string& token_bytes(std::int32_t id) const;
  // Returns whether the token is a control token.
  bool is_special(std::int32_t id) const;
  // The concatenated bytes of all tokens. If encoding puts a space before a text, a leading space
  // is dropped here.
  std::string decode(std::span<const std::int32_t> ids) const;

  std::int64_t vocab_size() const;
  // The same without the added tokens at the end: text without names of added tokens becomes ids
  // below it.
  std::int64_t ordinary_size() const;
  // Finds a token by name ("<|im_end|>"), or by the bytes of an ordinary token (" the").
  std::optional<std::int32_t> find_token(std::string_view text) const;
  // The token for the beginning of a text, whether or not encode() adds it.
  std::optional<std::int32_t> begin_token() const;
  // Returns whether Ends::kBegin adds it.
  bool adds_begin_token() const;
  // Returns whether decode() drops a leading space.
  bool drops_first_space() const;
  // The chat template of the model's files, in Jinja; empty if absent. `for_tools`: the one for
  // conversations with tools, if the files have one of its own.
  const std::string& chat_template(bool for_tools = false) const;
  // The special tokens that the model's files name, as chat templates call them: {"bos_token",
  // "<s>"}.
  const std::vector<std::pair<std::string, std::string>>& named_tokens() const;
  // The tokens that end generation, ascending.
  std::vector<std::int32_t> end_tokens() const;
  // A digest of everything that determines ids. Spec: docs/reference/format.md §Fingerprints.
  Sha256 fingerprint() const;

 private:
  struct State;
  class Encoder;
  explicit Tokenizer(std::unique_ptr<State> state);
  static Result<Tokenizer> build(TokenizerSpec spec);
  std::unique_ptr<State> state_;
};

// Removes all complete characters from `pending`, a stream of token bytes, and returns them as
// UTF-8. An incomplete character (3 bytes at most) stays for the next call. Bytes that can never
// become a character are returned as U+FFFD.
std::string take_whole_characters(std::string& pending);

// --- Chat templates
//
// A model's files hold its template as a program in Jinja. It is run, by an interpreter of this
// library, with the meaning that it has in transformers; what the interpreter lacks is refused by
// name (docs/reference/tokenizers.md).

enum class ChatRole { kSystem, kUser, kAssistant, kTool };

struct ChatMessage {
  ChatRole role;
  std::string text;
  // Other fields, for the template: a JSON object like {"tool_calls": [...]}. Empty: none.
  std::string fields = {};
};

// A text, and the ranges of it that are not the template's own. Special tokens spelled out there
// are plain text, so no user can close their own turn and speak for the model.
struct ChatText {
  std::string text;
  std::vector<Tokenizer::TextRange> plain;
  std::optional<Tokenizer::TextRange> sought = {};  // of the message that was sought
};

// A date and a time of day, for templates that write them.
struct CivilTime {
  int year = 1970;
  int month = 1;  // 1 to 12
  int day = 1;    // 1 to 31
  int hour = 0;
  int minute = 0;
  int second = 0;
};

class ChatTemplate {
 public:
  // Safe for untrusted input.
  // Errors: kUnsupported, with the line: not a program in Jinja, or one with parts that are not
  //         supported; kTooLarge.
  static Result<ChatTemplate> parse(std::string_view jinja);
  // Errors: kInvalidArgument; the message lists the known names.
  static Result<ChatTemplate> by_name(std::string_view name);
  static bool is_name(std::string_view name);
  // "chatml"
  static std::string names();

  // Whether the template can ask for an answer without thinking first.
  bool can_avoid_thinking() const;
  // Whether the template tells the model of tools.
  bool takes_tools() const;

  struct RenderOptions {
    bool asks = true;    // the model shall answer
    bool thinks = true;  // it may think first, if it supports that
    // Of the tokenizer: Tokenizer::named_tokens().
    std::vector<std::pair<std::string, std::string>> named_tokens{};
    std::string tools{};                // a JSON list of tools in OpenAI's form; empty: none
    std::optional<CivilTime> now{};     // absent: the template learns no date
    std::optional<std::size_t> seek{};  // the message whose place in the text is wanted
  };

  // Threads: safe to call concurrently. Safe for untrusted messages: steps and memory are bounded.
  // Errors: kInvalidArgument (the template refuses the messages), kUnsupported (it cannot ask for
  //         an answer without thinking, or does what is not supported; with the line), kCorrupt
  //         (`tools` or `fields` is not JSON, or a text is not UTF-8), kTooLarge.
  Result<ChatText> render(std::span<const ChatMessage> messages,
                          const RenderOptions& options) const;

 private:
  struct State;
  explicit ChatTemplate(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace tqcache::tokenizer
