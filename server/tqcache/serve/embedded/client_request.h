#pragma once
// server/tqcache/serve/embedded/client_request.h: what a client asks for, read from the JSON of any
// dialect.
//
// A conversation is a ChatRequest, whoever asks for it. parameters.h decides which parameters are
// read, ignored and refused. Safe for untrusted input.
//
// Spec: docs/reference/http.md.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/sampler.h"
#include "tqcache/serve/embedded/api_error.h"
#include "tqcache/tokenizer.h"

namespace tqcache::serve {

// How to answer, common to all dialects.
struct GenerationSettings {
  std::string model;  // empty: not named
  model::SamplerOptions sampling;
  bool has_seed = false;
  std::optional<std::int64_t> max_tokens;
  std::vector<std::string> stops;  // not empty each
  bool stream = false;
  bool include_usage = false;  // in a last chunk of OpenAI's streams
  bool one_call = false;       // the answer ends with its first call of a tool
  bool may_call = false;       // there are tools
};

// Whether a reasoning model may think before it answers.
enum class Thinking : std::uint8_t {
  kAllowed,
  kAvoided,    // not, if the chat template knows how to ask for that
  kForbidden,  // not, and otherwise the request fails
};

struct ChatRequest {
  GenerationSettings settings;
  std::vector<tokenizer::ChatMessage>
      messages;  // at least one; only the first may be of the system
  Thinking thinking = Thinking::kAllowed;
  std::string tools = {};  // a JSON list in OpenAI's form; empty: none
};

struct CompletionRequest {
  GenerationSettings settings;
  std::string text;  // the prompt, unless `ids` is given
  std::vector<std::int32_t> ids;
};

struct TokenizeRequest {
  std::string text;
  bool add_special = false;   // the tokens that begin a text
  bool parse_special = true;  // names of control tokens become these tokens
};

// Each returns the first error, and fills in the request if there is none.
MaybeApiError read_chat_request(std::string_view body, ChatRequest& request);
MaybeApiError read_completion_request(std::string_view body, CompletionRequest& request);
// With `counts`, as /v1/messages/count_tokens: max_tokens may be missing.
MaybeApiError read_messages_request(std::string_view body, bool counts, ChatRequest& request);
MaybeApiError read_responses_request(std::string_view body, ChatRequest& request);
MaybeApiError read_tokenize_request(std::string_view body, TokenizeRequest& request);
MaybeApiError read_detokenize_request(std::string_view body, std::vector<std::int32_t>& ids);

}  // namespace tqcache::serve
