// GGUF files with values of every type, and with what a model's has.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/seeds/seeds.h"
#include "model/tiny_files.h"
#include "tensors/gguf_builder.h"

namespace tqcache::fuzz {
namespace {

// The tokenizer alone, of a few pieces.
Bytes pieces(std::string_view kind) {
  test::GgufBuilder file;
  file.text("tokenizer.ggml.model", kind);
  file.texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "▁", "t", "h", "▁t", "▁th"});
  file.array<std::int32_t>("tokenizer.ggml.token_type", test::kI32, {2, 3, 3, 1, 1, 1, 1, 4});
  file.array<float>("tokenizer.ggml.scores", test::kF32, {0, 0, 0, -3, -4, -5, -1, -2});
  file.value<std::uint32_t>("tokenizer.ggml.unknown_token_id", test::kU32, 0);
  return file.build();
}

}  // namespace

void make_gguf(const SeedFolder& seeds) {
  seeds.add("small", test::small_gguf());
  seeds.add("empty", test::GgufBuilder().build());
  seeds.add("values", test::GgufBuilder()
                          .value<std::uint8_t>("a", test::kU8, 1)
                          .value<std::int8_t>("b", test::kI8, -1)
                          .value<std::uint16_t>("c", test::kU16, 1)
                          .value<std::int16_t>("d", test::kI16, -1)
                          .value<std::uint64_t>("e", test::kU64, 1)
                          .value<std::int64_t>("f", test::kI64, -1)
                          .value<double>("g", test::kF64, 0.5)
                          .array<std::uint8_t>("h", test::kBool, {0, 1})
                          .array<float>("i", test::kF32, {1, 2})
                          .array<std::uint64_t>("j", test::kU64, {1, 2})
                          .build());
  test::GgufBuilder model;
  model.text("general.architecture", "qwen3").text("tokenizer.ggml.model", "gpt2");
  for (const std::string_view key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length"}) {
    model.value<std::uint32_t>("qwen3." + std::string(key), test::kU32, 8);
  }
  model.value<float>("qwen3.attention.layer_norm_rms_epsilon", test::kF32, 1e-6f);
  model.value<float>("qwen3.rope.freq_base", test::kF32, 10000.0f);
  model.text("tokenizer.ggml.pre", "gpt-2");
  std::vector<std::string> tokens = tiny::byte_letters();
  tokens.insert(tokens.end(), {"he", "<|im_end|>"});
  std::vector<std::int32_t> types(tokens.size(), 1);
  types.back() = 3;
  model.texts("tokenizer.ggml.tokens", tokens);
  model.array<std::int32_t>("tokenizer.ggml.token_type", test::kI32, types);
  model.texts("tokenizer.ggml.merges", {"h e"});
  model.value<std::uint32_t>("tokenizer.ggml.eos_token_id", test::kU32, 257);
  seeds.add("model", model.build());
  seeds.add("pieces", pieces("llama"));
  seeds.add("unigram", pieces("t5"));
}

}  // namespace tqcache::fuzz
