#include "tqcache/serve/embedded/parameters.h"

#include <algorithm>
#include <string>

namespace tqcache::serve {
namespace {

constexpr std::string_view kNo;
constexpr std::string_view kRead = "read";
constexpr std::string_view kIgnored = "ignored";
constexpr std::string_view kUseTools = "send tools and tool_choice";
constexpr std::string_view kKeepsNone =
    "it keeps no responses; send the whole conversation as input";

constexpr Parameter kParameters[] = {
    // name, chat, completions, messages, responses
    {"model", {kRead, kRead, kRead, kRead}},
    // The prompt.
    {"messages", {kRead, kNo, kRead, kNo}},
    {"messages[].role", {kRead, kNo, kRead, kNo}},
    {"messages[].content", {kRead, kNo, kRead, kNo}},
    {"messages[].content[].type", {kRead, kNo, kRead, kNo}},
    {"messages[].content[].text", {kRead, kNo, kRead, kNo}},
    {"messages[].content[].thinking", {kNo, kNo, kRead, kNo}},
    {"messages[].content[].signature", {kNo, kNo, kIgnored, kNo}},
    {"messages[].content[].cache_control", {kIgnored, kNo, kIgnored, kNo}},
    {"messages[].content[].citations", {kNo, kNo, "only []", kNo}},
    // Calls of tools and their results, of Anthropic.
    {"messages[].content[].id", {kNo, kNo, kRead, kNo}},
    {"messages[].content[].name", {kNo, kNo, kRead, kNo}},
    {"messages[].content[].input", {kNo, kNo, kRead, kNo}},
    {"messages[].content[].tool_use_id", {kNo, kNo, kRead, kNo}},
    {"messages[].content[].content", {kNo, kNo, kRead, kNo}},
    {"messages[].content[].content[].type", {kNo, kNo, kRead, kNo}},
    {"messages[].content[].content[].text", {kNo, kNo, kRead, kNo}},
    {"messages[].content[].content[].cache_control", {kNo, kNo, kIgnored, kNo}},
    {"messages[].content[].is_error", {kNo, kNo, kRead, kNo}},
    {"messages[].cache_control", {kIgnored, kNo, kIgnored, kNo}},
    // What the answers of OpenAI's own clients carry along. Absent values are null there.
    {"messages[].name", {kRead, kNo, kNo, kNo}},
    {"messages[].tool_call_id", {kRead, kNo, kNo, kNo}},
    {"messages[].reasoning_content", {kRead, kNo, kNo, kNo}},
    {"messages[].tool_calls", {kRead, kNo, kNo, kNo}},
    {"messages[].tool_calls[].id", {kRead, kNo, kNo, kNo}},
    {"messages[].tool_calls[].index", {kIgnored, kNo, kNo, kNo}},
    {"messages[].tool_calls[].type", {kRead, kNo, kNo, kNo}},
    {"messages[].tool_calls[].function", {kRead, kNo, kNo, kNo}},
    {"messages[].tool_calls[].function.name", {kRead, kNo, kNo, kNo}},
    {"messages[].tool_calls[].function.arguments", {kRead, kNo, kNo, kNo}},
    {"messages[].annotations", {"only []", kNo, kNo, kNo}},
    {"messages[].refusal", {"only null", kNo, kNo, kNo}},
    {"messages[].audio", {"only null", kNo, kNo, kNo}},
    {"messages[].function_call", {"only null", kNo, kNo, kNo}},
    {"system", {kNo, kNo, kRead, kNo}},
    {"system[].type", {kNo, kNo, kRead, kNo}},
    {"system[].text", {kNo, kNo, kRead, kNo}},
    {"system[].cache_control", {kNo, kNo, kIgnored, kNo}},
    {"system[].citations", {kNo, kNo, "only []", kNo}},
    {"prompt", {kNo, kRead, kNo, kNo}},
    {"input", {kNo, kNo, kNo, kRead}},
    {"input[].type", {kNo, kNo, kNo, kRead}},
    {"input[].role", {kNo, kNo, kNo, kRead}},
    {"input[].content", {kNo, kNo, kNo, kRead}},
    {"input[].call_id", {kNo, kNo, kNo, kRead}},
    {"input[].name", {kNo, kNo, kNo, kRead}},
    {"input[].arguments", {kNo, kNo, kNo, kRead}},
    {"input[].output", {kNo, kNo, kNo, kRead}},
    {"input[].output[].type", {kNo, kNo, kNo, kRead}},
    {"input[].output[].text", {kNo, kNo, kNo, kRead}},
    {"input[].summary", {kNo, kNo, kNo, kIgnored}},
    {"input[].encrypted_content", {kNo, kNo, kNo, "only null"}},
    {"input[].content[].type", {kNo, kNo, kNo, kRead}},
    {"input[].content[].text", {kNo, kNo, kNo, kRead}},
    {"input[].content[].annotations", {kNo, kNo, kNo, "only []"}},
    {"input[].content[].logprobs", {kNo, kNo, kNo, "only []"}},
    {"input[].content[].cache_control", {kNo, kNo, kNo, kIgnored}},
    {"input[].cache_control", {kNo, kNo, kNo, kIgnored}},
    {"input[].id", {kNo, kNo, kNo, kIgnored}},
    {"input[].status", {kNo, kNo, kNo, kIgnored}},
    {"input[].phase", {kNo, kNo, kNo, kIgnored}},
    {"instructions", {kNo, kNo, kNo, kRead}},
    // How to choose tokens, and when to end.
    {"max_tokens", {kRead, kRead, kRead, kNo}},
    {"max_completion_tokens", {kRead, kNo, kNo, kNo}},
    {"max_output_tokens", {kNo, kNo, kNo, kRead}},
    {"temperature", {kRead, kRead, kRead, kRead}},
    {"top_p", {kRead, kRead, kRead, kRead}},
    {"top_k", {kRead, kRead, kRead, kRead}},
    {"min_p", {kRead, kRead, kRead, kRead}},
    {"repeat_penalty", {kRead, kRead, kRead, kRead}},
    {"repeat_last_n", {kRead, kRead, kRead, kRead}},
    {"seed", {kRead, kRead, kRead, kRead}},
    {"logit_bias", {kRead, kRead, kRead, kRead}},
    {"stop", {kRead, kRead, kNo, kRead}},
    {"stop_sequences", {kNo, kNo, kRead, kNo}},
    {"ignore_eos", {"only false", "only false", "only false", "only false"}},
    {"n", {"only 1", "only 1", kNo, kNo}},
    {"best_of", {kNo, "only 1", kNo, kNo}},
    {"frequency_penalty", {"only 0", "only 0", kNo, "only 0"}},
    {"presence_penalty", {"only 0", "only 0", kNo, "only 0"}},
    // Whether the model thinks before it answers.
    {"chat_template_kwargs", {kRead, kNo, kRead, kRead}},
    {"chat_template_kwargs.enable_thinking", {kRead, kNo, kRead, kRead}},
    {"reasoning_effort", {kRead, kIgnored, kNo, kNo}},
    {"reasoning", {kRead, kIgnored, kNo, kRead}},
    {"reasoning.effort", {kRead, kNo, kNo, kRead}},
    {"reasoning.*", {kIgnored, kNo, kNo, kIgnored}},
    {"thinking", {kRead, kIgnored, kRead, kNo}},
    {"thinking.type", {kRead, kNo, kRead, kNo}},
    {"thinking.*", {kIgnored, kNo, kIgnored, kNo}},
    // The form of the answer.
    {"stream", {kRead, kRead, kRead, kRead}},
    {"stream_options", {kRead, kRead, kNo, kIgnored}},
    {"stream_options.include_usage", {kRead, kRead, kNo, kNo}},
    {"stream_options.include_obfuscation", {kIgnored, kIgnored, kNo, kNo}},
    {"response_format", {R"(only {"type": "text"})", kNo, kNo, kNo}},
    {"modalities", {R"(only ["text"])", kNo, kNo, kNo}},
    {"text", {kNo, kNo, kNo, kRead}},
    {"text.format", {kNo, kNo, kNo, R"(only {"type": "text"})"}},
    {"text.verbosity", {kNo, kNo, kNo, kIgnored}},
    {"output_config", {kNo, kNo, kRead, kNo}},
    {"output_config.effort", {kNo, kNo, kIgnored, kNo}},
    {"logprobs", {"only false", "only null", kNo, kNo}},
    {"top_logprobs", {"only 0", kNo, kNo, "only 0"}},
    {"echo", {kNo, "only false", kNo, kNo}},
    {"suffix", {kNo, R"(only "")", kNo, kNo}},
    {"include", {kNo, kNo, kNo, R"(only [] or ["reasoning.encrypted_content"])"}},
    {"truncation", {kNo, kNo, kNo, R"(only "disabled")"}},
    // Tools.
    {"tools", {kRead, kNo, kRead, kRead}},
    {"tools[].type", {kRead, kNo, kRead, kRead}},
    {"tools[].name", {kNo, kNo, kRead, kRead}},
    {"tools[].description", {kNo, kNo, kRead, kRead}},
    {"tools[].input_schema", {kNo, kNo, kRead, kNo}},
    {"tools[].parameters", {kNo, kNo, kNo, kRead}},
    {"tools[].strict", {kNo, kNo, kNo, kIgnored}},
    {"tools[].function", {kRead, kNo, kNo, kNo}},
    {"tools[].function.name", {kRead, kNo, kNo, kNo}},
    {"tools[].function.description", {kRead, kNo, kNo, kNo}},
    {"tools[].function.parameters", {kRead, kNo, kNo, kNo}},
    {"tools[].function.strict", {kIgnored, kNo, kNo, kNo}},
    {"tools[].cache_control", {kIgnored, kNo, kIgnored, kNo}},
    {"tool_choice", {kRead, kNo, kRead, kRead}},
    {"tool_choice.type", {kNo, kNo, kRead, kNo}},
    {"tool_choice.disable_parallel_tool_use", {kNo, kNo, kRead, kNo}},
    {"functions", {"only []", kNo, kNo, kNo}, kUseTools},
    {"function_call", {R"(only "none" or "auto")", kNo, kNo, kNo}, kUseTools},
    {"parallel_tool_calls", {kRead, kIgnored, kNo, kRead}},
    {"max_tool_calls", {kIgnored, kIgnored, kNo, kIgnored}},
    // Responses that a server keeps.
    {"store", {kIgnored, kIgnored, kNo, "only false"}, kKeepsNone},
    {"previous_response_id", {kNo, kNo, kNo, "only null"}, kKeepsNone},
    {"conversation", {kNo, kNo, kNo, "only null"}, kKeepsNone},
    {"background", {kNo, kNo, kNo, "only false"}, kKeepsNone},
    // Of other servers, and of their accounting.
    {"verbosity", {kIgnored, kIgnored, kNo, kIgnored}},
    {"metadata", {kIgnored, kIgnored, kIgnored, kIgnored}},
    {"user", {kIgnored, kIgnored, kIgnored, kIgnored}},
    {"safety_identifier", {kIgnored, kIgnored, kNo, kIgnored}},
    {"service_tier", {kIgnored, kIgnored, kIgnored, kIgnored}},
    {"inference_geo", {kNo, kNo, kIgnored, kNo}},
    {"speed", {kNo, kNo, kIgnored, kNo}},
    {"cache_control", {kIgnored, kIgnored, kIgnored, kIgnored}},
    {"prompt_cache_key", {kIgnored, kIgnored, kNo, kIgnored}},
    {"prompt_cache_options", {kIgnored, kIgnored, kNo, kIgnored}},
    {"prompt_cache_retention", {kIgnored, kIgnored, kNo, kIgnored}},
    {"prediction", {kIgnored, kIgnored, kNo, kNo}},
    {"keep_alive", {kIgnored, kIgnored, kIgnored, kIgnored}},
    {"cache_prompt", {kIgnored, kIgnored, kIgnored, kIgnored}},
    {"id_slot", {kIgnored, kIgnored, kIgnored, kIgnored}},
    {"timings_per_token", {kIgnored, kIgnored, kIgnored, kIgnored}},
};

// "messages[]." of "messages[3].".
std::string without_indices(std::string_view place) {
  std::string plain;
  bool is_index = false;
  for (const char c : place) {
    if (c == ']') is_index = false;
    if (!is_index) plain += c;
    if (c == '[') is_index = true;
  }
  return plain;
}

const Parameter* find_row(std::string_view name) {
  const auto* const found = std::ranges::find(kParameters, name, &Parameter::name);
  return found == std::end(kParameters) ? nullptr : found;
}

}  // namespace

std::span<const Parameter> parameters() { return kParameters; }

const Parameter* find_parameter(std::string_view place, std::string_view key) {
  // A key like "thinking.type" is one name, and not a field of `thinking`.
  if (key.find_first_of(".[]*") != std::string_view::npos) return nullptr;
  const std::string plain = without_indices(place);
  if (const Parameter* const row = find_row(plain + std::string(key))) return row;
  return plain.empty() ? nullptr : find_row(plain + "*");
}

}  // namespace tqcache::serve
