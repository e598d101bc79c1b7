// A JSON object as the config.json of a Hugging Face folder, and as the metadata of a GGUF file. A
// configuration that was read is valid, and RoPE with it gives numbers.

#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "fuzz/mutate.h"
#include "tqcache/base/json.h"
#include "tqcache/model/attention/rope_table.h"
#include "tqcache/model/loading/config_readers.h"

namespace tqcache {
namespace {

using fuzz::require;

bool are_all(const Json& list, bool (Json::*is)() const noexcept) {
  return std::ranges::all_of(list, [is](const Json& value) { return (value.*is)(); });
}

tensors::GgufValue list_of(const Json& list, std::deque<std::string>& memory) {
  if (are_all(list, &Json::is_number_integer)) return list.get<std::vector<std::int64_t>>();
  if (are_all(list, &Json::is_number)) return list.get<std::vector<double>>();
  if (are_all(list, &Json::is_boolean)) return list.get<std::vector<bool>>();
  std::vector<std::string_view> texts;
  for (const Json& value : list) {
    texts.push_back(memory.emplace_back(value.is_string() ? value.get<std::string>() : ""));
  }
  return texts;
}

// A list under the name "tensor NAME" is a tensor of f32.
struct GgufFile {
  std::map<std::string, std::vector<float>> floats;
  std::deque<std::string> texts;
  tensors::Gguf file;
};

void add(const std::string& key, const Json& value, GgufFile& gguf) {
  constexpr std::string_view kTensor = "tensor ";
  if (key.starts_with(kTensor) && value.is_array() && are_all(value, &Json::is_number)) {
    std::vector<float>& floats = gguf.floats[key];
    for (const Json& number : value) floats.push_back(static_cast<float>(number.get<double>()));
    gguf.file.tensors[key.substr(kTensor.size())] = {
        tensors::TensorType::kF32, "F32", {floats.size()}, std::as_bytes(std::span(floats))};
    return;
  }
  auto& metadata = gguf.file.metadata;
  if (value.is_boolean()) metadata[key] = value.get<bool>();
  if (value.is_number_integer()) metadata[key] = value.get<std::int64_t>();
  if (value.is_number_float()) metadata[key] = value.get<double>();
  if (value.is_string()) metadata[key] = value.get<std::string>();
  if (value.is_array()) metadata[key] = list_of(value, gguf.texts);
}

bool are_numbers(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

void check_rope(const model::ModelConfig& config, const cache::Rope& rope) {
  model::RopeTable table(rope, config.rope_magnitude);
  for (const std::int64_t first : {std::int64_t{0}, cache::kMaxTokens - 2}) {
    table.set_positions(first, 2);
    std::vector<float> x(static_cast<std::size_t>(config.head_dim), 0.5f);
    table.rotate(1, x);
    require(are_numbers(x), "RoPE gives numbers");
  }
}

void check(const Result<model::ModelConfig>& read) {
  if (!read) return require(!read.error().message.empty(), "an error has a message");
  const model::ModelConfig& config = *read;
  require(model::validate(config), "a configuration that was read is valid");
  require(config.layers.empty() || std::ssize(config.layers) == config.n_layers,
          "every layer has its kind");
  require(std::isfinite(config.score_scale()) && config.score_scale() > 0, "scores have a scale");
  check_rope(config, config.rope);
  for (const std::int64_t layer : {std::int64_t{0}, config.n_layers - 1}) {
    const model::LayerConfig one = config.layer(layer);
    if (one.kind == model::LayerKind::kAttention) check_rope(config, one.rope);
    require(one.window >= 0 && one.window < config.context_length, "a window is not too wide");
  }
}

// --- changes of a JSON object

constexpr const char* kWords[] = {"default",
                                  "linear",
                                  "llama3",
                                  "longrope",
                                  "yarn",
                                  "su",
                                  "silu",
                                  "gelu_pytorch_tanh",
                                  "full_attention",
                                  "sliding_attention",
                                  "linear_attention",
                                  "llama",
                                  "mistral",
                                  "qwen2",
                                  "qwen3",
                                  "qwen3_moe",
                                  "qwen3moe",
                                  "gemma2",
                                  "gemma3",
                                  "gemma3_text",
                                  "phi3",
                                  "qwen3_next",
                                  "qwen3next",
                                  "qwen35",
                                  "none"};

constexpr const char* kKeys[] = {"rope_theta",
                                 "rope_scaling",
                                 "rope_parameters",
                                 "factor",
                                 "short_factor",
                                 "original_max_position_embeddings",
                                 "partial_rotary_factor",
                                 "rope_local_base_freq",
                                 "sliding_window",
                                 "sliding_window_pattern",
                                 "use_sliding_window",
                                 "max_window_layers",
                                 "layer_types",
                                 "full_attention_interval",
                                 "attn_logit_softcapping",
                                 "final_logit_softcapping",
                                 "query_pre_attn_scalar",
                                 "num_experts",
                                 "num_experts_per_tok",
                                 "moe_intermediate_size",
                                 "norm_topk_prob",
                                 "text_config",
                                 "rope_type",
                                 "tie_word_embeddings"};

void change(fuzz::Chance& chance, Json& value);

void change_object(fuzz::Chance& chance, Json& object) {
  if (object.empty() || chance.one_in(10)) {
    object[chance.one_of(kKeys)] = 1;
    return;
  }
  auto at = object.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(chance.below(object.size())));
  switch (chance.below(12)) {
    case 0:
      object.erase(at);
      return;
    case 1: {
      const Json copy = at.value();
      object[chance.one_of(kKeys)] = copy;
      return;
    }
    case 2:
      at.value() = nullptr;
      return;
    default:
      change(chance, at.value());
  }
}

void change_list(fuzz::Chance& chance, Json& list) {
  auto& values = list.get_ref<Json::array_t&>();
  if (!values.empty() && chance.one_in(2))
    return change(chance, values[chance.below(values.size())]);
  fuzz::change_order(chance, values, 64);
}

// To another value of its kind, or in one case of twelve of another kind.
void change(fuzz::Chance& chance, Json& value) {
  if (chance.one_in(12)) {
    const Json others[] = {
        0,       1,         -1,    0.5,          "", true, Json::array(), Json::object(),
        nullptr, {1, 2, 3}, 1e308, {0.5, 1e-300}};
    value = chance.one_of(others);
  } else if (value.is_object()) {
    change_object(chance, value);
  } else if (value.is_array()) {
    change_list(chance, value);
  } else if (value.is_number_float()) {
    auto number = value.get<double>();
    fuzz::change_number(chance, number);
    value = std::isfinite(number) ? number : 1e308;
  } else if (value.is_number()) {
    auto number = value.get<std::int64_t>();
    fuzz::change_number(chance, number);
    value = number;
  } else if (value.is_boolean()) {
    value = !value.get<bool>();
  } else if (value.is_string()) {
    value = chance.one_of(kWords);
  } else {
    value = 1;
  }
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  const ByteView text = fuzz::view_of(data, size);
  check(model::read_hf_config(text));
  const auto root = parse_json_object(text);
  if (!root) return 0;
  GgufFile gguf;
  for (const auto& [key, value] : root->items()) add(key, value, gguf);
  check(model::read_gguf_config(gguf.file));
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace tqcache;
  fuzz::Chance chance(seed);
  auto root = parse_json_object(fuzz::view_of(data, size));
  if (!root || chance.one_in(8)) return LLVMFuzzerMutate(data, size, max_size);
  for (std::size_t n = 1 + chance.below(3); n > 0; --n) change_object(chance, *root);
  const std::string text = root->dump(-1, ' ', false, Json::error_handler_t::replace);
  const ByteView bytes = as_bytes(text);
  return fuzz::give_back(Bytes(bytes.begin(), bytes.end()), data, size, max_size);
}
