#pragma once
// tests/model/tiny_files.h: a tokenizer and a model small enough to write down as files, and to
// break.

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/temp_dir.h"
#include "tqcache/bytes.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::tiny {

using Json = nlohmann::json;

inline std::string utf8(char32_t c) {
  const auto tail = [](char32_t bits) { return static_cast<char>(0x80 | (bits & 0x3f)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0 | (c >> 6)), tail(c)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | (c >> 12)), tail(c >> 6), tail(c)};
  return {static_cast<char>(0xf0 | (c >> 18)), tail(c >> 12), tail(c >> 6), tail(c)};
}

// The letters of the 256 bytes, in the order of the bytes. GPT-2's rule, told anew.
inline std::vector<std::string> byte_letters() {
  std::vector<std::string> letters;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    letters.push_back(utf8(printable ? byte : next++));
  }
  return letters;
}

// Ids of the tokenizer, whose first 256 are the bytes.
enum Id : std::int32_t {
  kHe = 256,
  kLl = 257,
  kHell = 258,
  kHello = 259,
  kSpaceHello = 260,
  kStart = 261,  // <|im_start|>
  kEnd = 262,    // <|im_end|>
  kTool = 263,   // <tool>, user-defined
};
inline constexpr std::int64_t kVocabSize = 264;

inline std::vector<std::string> merges() { return {"h e", "l l", "he ll", "hell o", "Ġ hello"}; }

inline Json added_token(std::int64_t id, const std::string& name, bool special) {
  return {{"id", id},        {"content", name},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// A post-processor; "$A" is the text.
inline Json template_processing(const std::vector<std::string>& places) {
  Json single = Json::array();
  for (const std::string& place : places) {
    const bool is_text = place == "$A";
    single.push_back(
        {{is_text ? "Sequence" : "SpecialToken", {{"id", is_text ? "A" : place}, {"type_id", 0}}}});
  }
  return {{"type", "TemplateProcessing"}, {"single", single}};
}

// tokenizer.json
inline Json tokenizer() {
  Json vocab;
  const std::vector<std::string> letters = byte_letters();
  for (std::size_t byte = 0; byte < letters.size(); ++byte) vocab[letters[byte]] = byte;
  vocab["he"] = int{kHe};
  vocab["ll"] = int{kLl};
  vocab["hell"] = int{kHell};
  vocab["hello"] = int{kHello};
  vocab["Ġhello"] = int{kSpaceHello};
  Json root;
  root["added_tokens"] = {added_token(kStart, "<|im_start|>", true),
                          added_token(kEnd, "<|im_end|>", true),
                          added_token(kTool, "<tool>", false)};
  root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  root["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges()}};
  return root;
}

// Views of texts that live as long as the program, as arrays of GGUF files have them.
inline std::vector<std::string_view> kept(std::vector<std::string> texts) {
  static std::deque<std::vector<std::string>> all;
  all.push_back(std::move(texts));
  return {all.back().begin(), all.back().end()};
}

// The same tokenizer, and the shape of the model, as the metadata of a GGUF file.
inline tensors::Gguf gguf() {
  std::vector<std::string> tokens = byte_letters();
  std::vector<std::int64_t> types(256 + 5, 1);
  tokens.insert(tokens.end(), {"he", "ll", "hell", "hello", "Ġhello"});
  tokens.insert(tokens.end(), {"<|im_start|>", "<|im_end|>", "<tool>"});
  types.insert(types.end(), {3, 3, 4});
  tensors::Gguf file;
  file.metadata = {
      {"general.architecture", std::string("qwen3")},
      {"general.name", std::string("tiny")},
      {"qwen3.block_count", std::int64_t{2}},
      {"qwen3.context_length", std::int64_t{512}},
      {"qwen3.embedding_length", std::int64_t{8}},
      {"qwen3.feed_forward_length", std::int64_t{12}},
      {"qwen3.attention.head_count", std::int64_t{2}},
      {"qwen3.attention.head_count_kv", std::int64_t{1}},
      {"qwen3.attention.key_length", std::int64_t{6}},
      {"qwen3.attention.value_length", std::int64_t{6}},
      {"qwen3.attention.layer_norm_rms_epsilon", 1e-6},
      {"qwen3.rope.freq_base", 10000.0},
      {"tokenizer.ggml.model", std::string("gpt2")},
      {"tokenizer.ggml.pre", std::string("gpt-2")},
      {"tokenizer.ggml.tokens", kept(std::move(tokens))},
      {"tokenizer.ggml.token_type", types},
      {"tokenizer.ggml.merges", kept(merges())},
      {"tokenizer.ggml.eos_token_id", std::int64_t{kEnd}},
  };
  return file;
}

// config.json
inline Json config() {
  return {{"model_type", "qwen3"},
          {"architectures", {"Qwen3ForCausalLM"}},
          {"num_hidden_layers", 2},
          {"max_position_embeddings", 512},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 6},
          {"vocab_size", kVocabSize},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true},
          {"hidden_act", "silu"}};
}

using Shapes = std::map<std::string, std::vector<std::int64_t>>;  // by Hugging Face name

inline Shapes shapes() {
  Shapes all = {{"model.embed_tokens.weight", {kVocabSize, 8}}, {"model.norm.weight", {8}}};
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string at = layer;
    all[at + "input_layernorm.weight"] = {8};
    all[at + "self_attn.q_proj.weight"] = {12, 8};
    all[at + "self_attn.k_proj.weight"] = {6, 8};
    all[at + "self_attn.v_proj.weight"] = {6, 8};
    all[at + "self_attn.o_proj.weight"] = {8, 12};
    all[at + "self_attn.q_norm.weight"] = {6};
    all[at + "self_attn.k_norm.weight"] = {6};
    all[at + "post_attention_layernorm.weight"] = {8};
    all[at + "mlp.gate_proj.weight"] = {12, 8};
    all[at + "mlp.up_proj.weight"] = {12, 8};
    all[at + "mlp.down_proj.weight"] = {8, 12};
  }
  return all;
}

// A safetensors file of F32 tensors, whose values count up by eighths.
inline Bytes safetensors(const Shapes& tensor_shapes) {
  Json header = Json::object();
  ByteWriter data;
  for (const auto& [name, shape] : tensor_shapes) {
    const std::size_t begin = data.bytes().size();
    std::int64_t count = 1;
    for (const std::int64_t n : shape) count *= n;
    for (std::int64_t i = 0; i < count; ++i) data.write(static_cast<float>(i) / 8);
    header[name]["dtype"] = "F32";
    header[name]["shape"] = shape;
    header[name]["data_offsets"] = std::vector<std::size_t>{begin, data.bytes().size()};
  }
  ByteWriter out;
  out.append_sized(as_bytes(header.dump()));
  out.append(data.bytes());
  return std::move(out).take();
}

// A whole folder of the model.
inline void write_model(const std::filesystem::path& folder) {
  test::write_all(folder / "config.json", config().dump());
  test::write_all(folder / "tokenizer.json", tokenizer().dump());
  test::write_all(folder / "model.safetensors", safetensors(shapes()));
}

}  // namespace tqcache::tiny
