#include "tqcache/interop/llama/llama_export_rules.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

std::string layer_name(std::size_t layer) { return "layer " + std::to_string(layer); }

Result<void> check_version(const LlamaExport& options) {
  const bool is_session = options.kind == LlamaFile::kSession;
  const std::uint32_t first = is_session ? 9 : 2;
  const std::uint32_t last = first + 2;
  if (options.version >= first && options.version <= last) return {};
  return invalid(std::string(is_session ? "session" : "sequence") + " files of version " +
                 std::to_string(options.version) + ", only " + std::to_string(first) + " to " +
                 std::to_string(last) + " are written");
}

Result<const LlamaRowType*> row_type(std::string_view name) {
  const LlamaRowType* type = find_row_type(name);
  if (type == nullptr) return invalid("row type " + tensors::printable_name(name));
  return type;
}

// llama.cpp takes quantized types only when they divide a head vector, not just a row.
Result<void> check_blocks(const LlamaRowType& type, std::int64_t head_dim) {
  const auto block = static_cast<std::int64_t>(type.block_values);
  if (head_dim % block == 0) return {};
  return invalid(std::string(type.name) + " has blocks of " + std::to_string(block) +
                 " values, which do not divide a head_dim of " + std::to_string(head_dim));
}

Result<void> check_kind(LlamaLayerKind of_model, const cache::LayerDesc& layer) {
  if (of_model == LlamaLayerKind::kRecurrent) {
    return Error{ErrorCode::kUnsupported,
                 "recurrent state, from which llama-server does not go on"};
  }
  if (of_model == LlamaLayerKind::kSlidingWindow ||
      std::holds_alternative<cache::WindowDesc>(layer)) {
    return Error{ErrorCode::kUnsupported,
                 "a sliding window, from which llama-server does not go on"};
  }
  if (std::holds_alternative<cache::AttentionDesc>(layer)) return {};
  return mismatch("no attention layer, as the model has it");
}

Result<void> check_shape(const LlamaLayer& of_model, cache::HeadShape shape) {
  if (of_model.n_kv_heads == shape.n_kv_heads && of_model.k_head_dim == shape.head_dim &&
      of_model.v_head_dim == shape.head_dim) {
    return {};
  }
  return mismatch(std::to_string(shape.n_kv_heads) + " kv heads of " +
                  std::to_string(shape.head_dim) + ", the model has " +
                  std::to_string(of_model.n_kv_heads) + " with keys of " +
                  std::to_string(of_model.k_head_dim) + " and values of " +
                  std::to_string(of_model.v_head_dim));
}

Result<void> check_layer(const LlamaLayer& of_model, const cache::LayerDesc& layer,
                         const LlamaRowTypes& types) {
  TQC_TRY(check_kind(of_model.kind, layer));
  const cache::HeadShape shape = std::get<cache::AttentionDesc>(layer).shape;
  TQC_TRY(check_shape(of_model, shape));
  TQC_TRY(check_blocks(*types.k, shape.head_dim));
  return check_blocks(*types.v, shape.head_dim);
}

Result<void> check_architecture(const std::string& of_cache, const std::string& of_model) {
  if (of_cache.empty() || of_cache == of_model) return {};
  return mismatch("a cache of architecture " + tensors::printable_name(of_cache) +
                  " for a model of architecture " + tensors::printable_name(of_model));
}

}  // namespace

Result<LlamaRowTypes> check_export_options(const LlamaExport& options) {
  TQC_TRY(check_version(options));
  LlamaRowTypes types{};
  TQC_TRY_ASSIGN(types.k, row_type(options.k_type));
  TQC_TRY_ASSIGN(types.v, row_type(options.v_type));
  if (!options.flash_attention && !types.v->dense) {
    return invalid("values of type " + std::string(types.v->name) + " without flash attention");
  }
  if (options.server_tokens && options.kind == LlamaFile::kSession) {
    return invalid("a session file with the tokens of llama-server, which writes sequences");
  }
  if (options.next_token && *options.next_token < 0) {
    return invalid("next token " + std::to_string(*options.next_token));
  }
  return types;
}

Result<void> check_export_cache(const format::Manifest& manifest, const LlamaGeometry& model,
                                const LlamaRowTypes& types) {
  if (manifest.hidden_tokens) return invalid("the cache hides its tokens, which llama.cpp needs");
  TQC_TRY(check_architecture(manifest.identity.architecture, model.architecture));
  if (manifest.layers.size() != model.layers.size()) {
    return mismatch(std::to_string(manifest.layers.size()) + " layers, the model has " +
                    std::to_string(model.layers.size()));
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    auto checked = check_layer(model.layers[i], manifest.layers[i], types);
    if (!checked) return in_context(layer_name(i), std::move(checked).error());
  }
  return {};
}

}  // namespace tqcache::interop
