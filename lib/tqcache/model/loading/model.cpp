#include "tqcache/model.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tqcache/cache/window.h"
#include "tqcache/model/attention/gated_delta_net.h"
#include "tqcache/model/linear/workers.h"
#include "tqcache/model/loading/config_readers.h"
#include "tqcache/model/loading/model_files.h"
#include "tqcache/model/loading/weights.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::model {
namespace {

constexpr std::string_view kGgufMagic = "GGUF";
constexpr const char* kNoModel = "neither a GGUF file nor a Hugging Face folder";

using TensorMap = std::map<std::string, tensors::TensorView>;

bool is_gguf(ByteView file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  return text.starts_with(kGgufMagic);
}

Result<void> check_vocabulary(const ModelConfig& config, const tokenizer::Tokenizer& tokenizer) {
  // The matrices may have spare rows that round up their height. Added tokens may lack rows: the
  // decoder refuses their ids.
  if (tokenizer.ordinary_size() <= config.vocab_size) return {};
  return Error{ErrorCode::kCorrupt, "tokenizer: " + std::to_string(tokenizer.ordinary_size()) +
                                        " tokens for " + std::to_string(config.vocab_size) +
                                        " rows of the embedding matrix"};
}

// read_weights() found every tensor it needs. Others would be biases and the like, which this
// decoder does not know and would ignore.
Result<void> refuse_surplus(const ModelConfig& config, const Weights& weights,
                            const TensorMap& tensors) {
  if (static_cast<std::int64_t>(tensors.size()) == weights.n_tensors) return {};
  return Error{ErrorCode::kUnsupported, "tensors: " + std::to_string(tensors.size()) + " where " +
                                            config.architecture + " uses " +
                                            std::to_string(weights.n_tensors)};
}

using LoadTokenizer = std::function<Result<tokenizer::Tokenizer>()>;

struct TokenizerAndIdentity {
  tokenizer::Tokenizer tokenizer;
  cache::Identity identity;
};

// What takes long of a model: the tokenizer, and the fingerprints, which read the weights. They run
// at once, in pieces, the longest first.
Result<TokenizerAndIdentity> load_parts(const ModelConfig& config, const TensorMap& tensors,
                                        const LoadTokenizer& load_tokenizer, unsigned n_threads) {
  cache::Identity identity;
  identity.architecture = config.architecture;
  identity.model_name = config.name;
  identity.rope = config.key_rope();
  identity.source_format = "tqcache";

  std::vector<const tensors::TensorView*> views;
  for (const auto& each : tensors) views.push_back(&each.second);
  std::vector<Bytes> samples(views.size());
  std::optional<Result<tokenizer::Tokenizer>> tokenizer;
  std::atomic<bool> failed = false;  // then the rest is not needed
  constexpr std::size_t kOthers = 2;
  Workers(n_threads).run(kOthers + views.size(), [&](std::size_t i) {
    if (failed) return;
    if (i == 0) {
      tokenizer.emplace(load_tokenizer());
      failed = !tokenizer->ok();
    } else if (i == 1) {
      identity.weights_fingerprint = weights_fingerprint(tensors);
    } else {
      samples[i - kOthers] = sample_checksums(*views[i - kOthers]);
    }
  });
  if (!*tokenizer) return std::move(*tokenizer).error();
  identity.model_fingerprint = {.digest = model_fingerprint(config, tensors, samples)};
  identity.tokenizer_fingerprint = (*tokenizer)->fingerprint();
  return TokenizerAndIdentity{std::move(**tokenizer), std::move(identity)};
}

Result<std::unique_ptr<Model>> assemble(ModelConfig config, ModelTensors tensors,
                                        const LoadTokenizer& load_tokenizer, unsigned n_threads) {
  TQC_TRY_ASSIGN(TokenizerAndIdentity parts,
                 load_parts(config, tensors.by_name, load_tokenizer, n_threads));
  TQC_TRY(check_vocabulary(config, parts.tokenizer));
  TQC_TRY_ASSIGN(Weights weights, read_weights(tensors.by_name, config));
  TQC_TRY(refuse_surplus(config, weights, tensors.by_name));
  return std::make_unique<Model>(Model{std::move(config),
                                       std::make_shared<const Weights>(std::move(weights)),
                                       std::move(parts.tokenizer), std::move(parts.identity),
                                       std::move(tensors.files), std::move(tensors.rearranged)});
}

Result<std::unique_ptr<Model>> load_gguf(const std::filesystem::path& path, unsigned n_threads) {
  TQC_TRY_ASSIGN(MappedFile mapped, MappedFile::open(path));
  if (!is_gguf(mapped.bytes())) {
    // Nothing says that this was a model, unless it is cut before its first word.
    const bool is_cut = mapped.bytes().size() < kGgufMagic.size();
    return Error{is_cut ? ErrorCode::kCorrupt : ErrorCode::kUnsupported, kNoModel};
  }
  TQC_TRY_ASSIGN(const tensors::Gguf file, tensors::read_gguf(mapped.bytes()));
  TQC_TRY_ASSIGN(ModelTensors tensors, map_gguf_parts(path, std::move(mapped), file));
  TQC_TRY_ASSIGN(ModelConfig config, read_gguf_config(file, tensors.by_name));
  return assemble(
      std::move(config), std::move(tensors), [&] { return tokenizer::Tokenizer::from_gguf(file); },
      n_threads);
}

Result<ModelConfig> load_hf_config(const std::filesystem::path& folder) {
  TQC_TRY_ASSIGN(const Bytes text, read_folder_file(folder, "config.json"));
  auto config = read_hf_config(text);
  if (!config) return in_context("config.json", std::move(config).error());
  if (config->name.empty()) config->name = std::filesystem::absolute(folder).filename().string();
  return config;
}

Result<tokenizer::Tokenizer> load_hf_tokenizer(const std::filesystem::path& folder) {
  TQC_TRY_ASSIGN(const Bytes text, read_folder_file(folder, "tokenizer.json"));
  TQC_TRY_ASSIGN(const Bytes config, read_folder_file_if_any(folder, "tokenizer_config.json"));
  TQC_TRY_ASSIGN(const Bytes ends, read_folder_file_if_any(folder, "generation_config.json"));
  TQC_TRY_ASSIGN(const Bytes chat, read_folder_file_if_any(folder, "chat_template.jinja"));
  return tokenizer::Tokenizer::from_json(text, config, ends, chat);
}

// Some folders that tie the output matrix to the embedding hold it all the same. If it is equal, it
// counts once. If it differs, the file has a head of its own, and transformers (since 5) and
// llama.cpp's converter take it, whatever "tie_word_embeddings" says.
void drop_tied_output(ModelConfig& config, TensorMap& tensors) {
  const auto output = tensors.find("output.weight");
  if (!config.tied_embeddings || output == tensors.end()) return;
  const auto embedding = tensors.find("token_embd.weight");
  const bool is_equal = embedding != tensors.end() &&
                        embedding->second.type == output->second.type &&
                        embedding->second.shape == output->second.shape &&
                        std::ranges::equal(embedding->second.bytes, output->second.bytes);
  if (is_equal) {
    tensors.erase(output);
  } else {
    config.tied_embeddings = false;
  }
}

Result<std::unique_ptr<Model>> load_hf(const std::filesystem::path& folder, unsigned n_threads,
                                       const MemoryBudget& memory) {
  TQC_TRY_ASSIGN(ModelConfig config, load_hf_config(folder));
  auto tensors = map_hf_tensors(folder, config, memory);
  if (!tensors) {  // an error of the tokenizer comes first
    TQC_TRY(load_hf_tokenizer(folder));
    return std::move(tensors).error();
  }
  drop_tied_output(config, tensors->by_name);
  return assemble(
      std::move(config), std::move(*tensors), [&] { return load_hf_tokenizer(folder); }, n_threads);
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(const std::filesystem::path& path, unsigned n_threads,
                                          const MemoryBudget& memory) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) ? load_hf(path, n_threads, memory)
                                                      : load_gguf(path, n_threads);
}

Result<cache::Cache> make_cache(const ModelConfig& config, cache::Identity identity, Dtype dtype) {
  std::vector<cache::LayerPlan> layers;
  for (std::int64_t i = 0; i < config.n_cache_layers(); ++i) {
    layers.push_back({config.layer(i).heads, dtype});
  }
  TQC_TRY_ASSIGN(cache::Cache cache, cache::make_cache(std::move(identity), layers));
  for (std::int64_t i = 0; i < config.n_cache_layers(); ++i) {
    const LayerConfig layer = config.layer(i);
    cache::Layer& made = cache.layers[static_cast<std::size_t>(i)];
    if (layer.kind == LayerKind::kDeltaNet) {
      made = empty_delta_state(config.delta_net);
    } else if (layer.window > 0) {
      made = cache::empty_window(layer.heads, {layer.window, 0}, dtype);
    } else {
      std::get<cache::AttentionLayer>(made).value_dim = config.value_dim();
    }
  }
  return cache;
}

Result<cache::Cache> make_cache(const Model& model, Dtype dtype) {
  return make_cache(model.config, model.identity, dtype);
}

}  // namespace tqcache::model
