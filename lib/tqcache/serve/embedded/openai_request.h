#pragma once
// serve/embedded/openai_request.h: what a client asks for, read from the JSON of OpenAI's API.
//
// A parameter that would change the answer and is not implemented is refused by name. Parameters
// that cannot change it are ignored. Safe for untrusted input.
//
// Spec: docs/reference/http.md.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/sampler.h"
#include "tqcache/tokenizer.h"

namespace tqcache::serve {

// A failed request, as OpenAI's error object tells it.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param = {};          // the field to blame; empty: null
  std::string code = {};           // empty: null
  std::int64_t retry_after_s = 0;  // of the header Retry-After; 0: none
};

// {"error": {...}}
std::string error_json(const ApiError& error);

// How to answer, common to both kinds of completions.
struct GenerationSettings {
  std::string model;  // empty: not named
  model::SamplerOptions sampling;
  bool has_seed = false;
  std::optional<std::int64_t> max_tokens;
  std::vector<std::string> stops;  // not empty each
  bool stream = false;
  bool include_usage = false;  // in a last chunk of the stream
};

struct ChatRequest {
  GenerationSettings settings;
  std::vector<tokenizer::ChatMessage>
      messages;  // at least one; only the first may be of the system
  bool thinks = true;
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
using MaybeApiError = std::optional<ApiError>;
MaybeApiError read_chat_request(std::string_view body, ChatRequest& request);
MaybeApiError read_completion_request(std::string_view body, CompletionRequest& request);
MaybeApiError read_tokenize_request(std::string_view body, TokenizeRequest& request);
MaybeApiError read_detokenize_request(std::string_view body, std::vector<std::int32_t>& ids);
// Messages and the model alone: {"messages": [...]}.
MaybeApiError read_template_request(std::string_view body, ChatRequest& request);

}  // namespace tqcache::serve
