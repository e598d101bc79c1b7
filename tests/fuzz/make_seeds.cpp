// Writes what fuzzing begins with: small files of every kind that the targets read. Run by hand, as
// docs/fuzzing.md tells; the corpora in this folder have grown from it.
//
// usage: make_seeds FOLDER     writes FOLDER/TARGET/NAME

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "model/tiny_files.h"
#include "support/cache_builder.h"
#include "support/gaussian.h"
#include "support/temp_dir.h"
#include "support/v1_builder.h"
#include "support/v1_writer.h"
#include "tensors/gguf_builder.h"
#include "tensors/safetensors_builder.h"
#include "tqcache/base/bytes.h"
#include "tqcache/format/cache_file.h"

namespace tqcache::fuzz {
namespace {

class SeedFolder {
 public:
  SeedFolder(const std::filesystem::path& root, std::string_view target) : folder_(root / target) {
    std::filesystem::create_directories(folder_);
  }
  void add(std::string_view name, ByteView bytes) const { test::write_all(folder_ / name, bytes); }
  void add(std::string_view name, std::string_view text) const { add(name, as_bytes(text)); }

 private:
  std::filesystem::path folder_;
};

void make_safetensors(const SeedFolder& seeds) {
  seeds.add("small", test::small_safetensors());
  seeds.add("empty", test::safetensors_file("{}", 0));
  std::string header = R"({"__metadata__":null)";
  std::uint64_t end = 0;
  for (const std::string_view dtype : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16",
                                       "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64"}) {
    header += ',' + test::tensor_entry(dtype, dtype, "0", end, end);
  }
  seeds.add("types", test::safetensors_file(header + "}", 0));
  seeds.add("shapes",
            test::safetensors_file('{' + test::tensor_entry("scalar", "U8", "", 0, 1) + ',' +
                                       test::tensor_entry("deep", "I64", "1,2,1", 1, 17) + '}',
                                   17));
}

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
}

// With the letters of the byte alphabet as the target has them: one byte.
std::string shortened(const tiny::Json& tokenizer) {
  tiny::Json root = tokenizer;
  for (const std::string& letter : tiny::byte_letters()) root["model"]["vocab"].erase(letter);
  root["model"]["vocab"]["#"] = 0;
  std::string text = root.dump();
  return text.replace(text.find("\"#\":0"), 5, "\x1f");
}

void make_tokenizer_json(const SeedFolder& seeds) {
  tiny::Json root = tiny::tokenizer();
  seeds.add("tiny", shortened(root));
  seeds.add("with_configs", shortened(root) + "\x1e{\"eos_token\":\"<|im_end|>\"}\x1e" +
                                R"({"eos_token_id":[261,262]})");
  root["normalizer"] = {{"type", "NFC"}};
  root["post_processor"] = {{"type", "ByteLevel"}};
  const tiny::Json split = {{"type", "Split"},
                            {"pattern", {{"Regex", "\\p{N}|[^\\s]+|\\s+(?!\\S)"}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
  const tiny::Json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  seeds.add("split_and_nfc", shortened(root));
  root["model"]["vocab"] = {{"a", 0}};
  root["model"]["merges"] = tiny::Json::array({tiny::Json::array({"a", "a"})});
  root["model"]["ignore_merges"] = true;
  root["added_tokens"] = tiny::Json::array({tiny::added_token(1, "<x>", true)});
  seeds.add("short", root.dump());
}

void make_numbers(const SeedFolder& seeds) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    test::SplitMix64 random(seed);
    Bytes bytes(16 + 8 * seed);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    seeds.add(std::to_string(seed), bytes);
  }
}

// All codes and scales become zero, so that a packed block takes a few bytes of zstd.
cache::Cache with_zero_codes(cache::Cache cache) {
  for (cache::Layer& any : cache.layers) {
    auto* layer = std::get_if<cache::AttentionLayer>(&any);
    if (layer == nullptr) continue;
    for (cache::Side* side : {&layer->k, &layer->v}) {
      auto* turbo = std::get_if<cache::TurboSide>(side);
      if (turbo == nullptr) continue;
      for (cache::TurboBlock& block : turbo->packed) {
        block.bytes = SharedBytes(AlignedBytes(block.bytes.size()));
      }
    }
  }
  return cache;
}

test::CacheBuilder small_builder(std::int64_t n_tokens) {
  test::CacheBuilder builder(n_tokens);
  builder.identity().rope = {cache::RopeStyle::kHalfSplit, 2, 100.0, {}};
  return builder;
}

struct NamedCache {
  std::string name;
  cache::Cache cache;
};

// A cache of each kind of layer and of side, none larger than it has to be.
std::vector<NamedCache> small_caches() {
  std::vector<NamedCache> all;
  all.push_back({"empty", small_builder(0).build()});
  all.push_back({"dense", small_builder(3).dense({1, 4}).dense({2, 3}, Dtype::kBF16).build()});
  all.push_back({"arrays", small_builder(2).arrays().build()});
  all.push_back({"rotating", small_builder(5).rotating({{1, 4}, 3, 1}).build()});
  all.push_back({"hidden", small_builder(4).dense({1, 2}).hide_tokens().build()});
  all.push_back({"forgotten", small_builder(4).dense({1, 2}).forget_tokens().build()});
  const std::vector<std::pair<std::string, codec::CodecSpec>> modes = {
      {"mse", {.mode = codec::Mode::kMse, .bits = 1}},
      {"prod", {.mode = codec::Mode::kProd, .bits = 2}},
      {"mixed", {.mode = codec::Mode::kMixed, .bits = 1, .outlier_channels = 8, .outlier_bits = 2}},
      {"affine", {.mode = codec::Mode::kAffine, .bits = 1, .group_size = 32}},
      {"trellis", {.mode = codec::Mode::kTrellis, .step = 0.5f}}};
  for (const auto& [name, codec] : modes) {
    cache::SidePlan plan{.codec = codec, .center = cache::Centring::kNone};
    cache::Cache packed =
        small_builder(257).sides({1, 32}, Dtype::kF16, plan, Dtype::kF16, plan).build();
    all.push_back({name, with_zero_codes(std::move(packed))});
    plan.center = cache::Centring::kPreRope;
    plan.n_sinks = 1;
    plan.fit_maps = codec.mode == codec::Mode::kTrellis;
    packed = small_builder(256).sides({1, 32}, Dtype::kF16, plan, Dtype::kBF16, plan).build();
    all.push_back({name + "_centred", with_zero_codes(std::move(packed))});
  }
  return all;
}

void make_containers(const SeedFolder& files, const SeedFolder& manifests) {
  for (const NamedCache& each : small_caches()) {
    const Bytes file = test::must(format::write_cache_bytes(each.cache, {.n_threads = 1}));
    files.add(each.name, file);
    const auto info = test::must(format::read_cache_info(*memory_source(file)));
    manifests.add(each.name, test::must(format::encode_manifest(info)));
  }
}

std::vector<std::pair<std::string, migrations::V1File>> small_v1_files() {
  using test::V1Builder;
  using test::V1Dtype;
  std::vector<std::pair<std::string, migrations::V1File>> all;
  const test::V1Affine affine{.bits = 2, .group_size = 32};
  all.emplace_back("empty", V1Builder(0).build());
  all.emplace_back("dense", V1Builder(3).dense({1, 4}, V1Dtype::kBf16).facts().build());
  all.emplace_back("quantized", V1Builder(3).quantized({1, 32}, affine).build());
  all.emplace_back("rotating", V1Builder(5).rotating({1, 4}, {3, 1, 3, 2}).build());
  all.emplace_back("arrays", V1Builder(2).arrays().build());
  all.emplace_back("mse", V1Builder(3).turbo({1, 32}, {.bits = 1}).build());
  all.emplace_back("wht", V1Builder(257).turbo({1, 32}, {.bits = 1, .wht = true}).build());
  all.emplace_back("prod", V1Builder(2).turbo({1, 32}, {.bits = 2, .prod = true}).build());
  all.emplace_back("mixed", V1Builder(2).turbo({1, 32}, {.mixed = test::V1Mixed{}}).build());
  all.emplace_back(
      "calibrating",
      V1Builder(2).turbo({1, 32}, {.mixed = test::V1Mixed{}, .calibrating = true}).build());
  all.emplace_back("affine",
                   V1Builder(2).turbo({1, 32}, {.wht = true, .affine_values = affine}).build());
  return all;
}

void make_v1(const SeedFolder& readers, const SeedFolder& migrated) {
  for (const auto& [name, file] : small_v1_files()) {
    const Bytes bytes = test::write_v1(file);
    readers.add(name, bytes);
    migrated.add(name, bytes);
  }
}

void make_all(const std::filesystem::path& root) {
  make_containers({root, "container"}, {root, "manifest"});
  make_v1({root, "v1"}, {root, "migrate"});
  make_safetensors({root, "safetensors"});
  make_gguf({root, "gguf"});
  make_tokenizer_json({root, "tokenizer_json"});
  for (const char* target : {"kernels_agree", "write_read_equal"}) make_numbers({root, target});
}

}  // namespace
}  // namespace tqcache::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds FOLDER\n");
    return 2;
  }
  try {
    tqcache::fuzz::make_all(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_seeds: %s\n", error.what());
    return 1;
  }
}
