// The C interface: opening, describing and reading of caches.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/capi/handles.h"
#include "tqcache/interop.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/media_json.h"
#include "tqcache/model.h"
#include "tqcache/tqkv.h"

using namespace tqcache;        // NOLINT(google-build-using-namespace)
using namespace tqcache::capi;  // NOLINT(google-build-using-namespace)

namespace tqcache::capi {
namespace {

using cache::kTokenBlock;
using cache::TensorKind;
using interop::FileKind;

const char* kind_word(FileKind kind) {
  switch (kind) {
    case FileKind::kTqkv:
    case FileKind::kTqkvVersion1:
      return "tqkv";
    case FileKind::kMlxLm:
      return "mlx-lm";
    case FileKind::kLlama:
      return "llama";
    case FileKind::kHf:
      return "hf";
    case FileKind::kNpz:
      return "npz";
    case FileKind::kTurboMlx:
      return "turbomlx";
  }
  return "";
}

Result<interop::OpenHints> to_hints(const tqcache_open_options& options) {
  interop::OpenHints hints;
  TQC_TRY_ASSIGN(hints.access, make_access(options.key_file));
  if (options.first_tokens > 0) hints.first_tokens = options.first_tokens;
  if (options.tokens != nullptr) {
    if (options.n_tokens < 0 || options.n_tokens > cache::kMaxTokens) {
      return invalid(fmt::format("{} tokens", options.n_tokens));
    }
    hints.tokens.emplace(options.tokens, options.tokens + options.n_tokens);
  }
  if (options.identity != nullptr) {
    TQC_TRY_ASSIGN(hints.identity, to_identity(options.identity));
  }
  if (options.model == nullptr) return hints;
  if (!std::filesystem::is_directory(options.model)) {
    TQC_TRY_ASSIGN(hints.geometry,
                   in_file(options.model, interop::read_llama_geometry(options.model)));
  }
  auto model = model::load_model(options.model);
  // The shapes are enough for models that the decoder does not know.
  if (!model && model.error().code != ErrorCode::kUnsupported) {
    return in_file(options.model, std::move(model).error());
  }
  if (model && !hints.identity) hints.identity = (*model)->identity;
  return hints;
}

// A .tqkv file, whole: with its sections, so that they can be used in place.
Result<std::unique_ptr<tqcache_cache>> open_own(std::shared_ptr<const ByteSource> file,
                                                SharedBytes mapped, bool trust,
                                                const format::Access& access) {
  tqcache_cache cache;
  cache.kind = "tqkv";
  cache.file_bytes = file->size();
  std::shared_ptr<const format::SectionReader> sections;
  if (mapped.size() > 0) {
    TQC_TRY_ASSIGN(auto opened, format::SectionReader::open_mapped(mapped, !trust, access,
                                                                   format::Digests::kTrust));
    sections = std::make_shared<const format::SectionReader>(std::move(opened));
  } else {
    TQC_TRY_ASSIGN(auto opened, format::SectionReader::open(std::move(file), access));
    sections = std::make_shared<const format::SectionReader>(std::move(opened));
  }
  cache.content_digest = to_hex(sections->info().content_name);
  cache.encrypted = sections->info().encryption.has_value();
  cache.reader = sections;
  cache.sections = std::move(sections);
  cache.mapped = std::move(mapped);
  cache.trusted = trust;
  return finish_cache(std::move(cache));
}

Result<std::unique_ptr<tqcache_cache>> open_source(std::shared_ptr<const ByteSource> file,
                                                   const tqcache_open_options& options,
                                                   SharedBytes mapped) {
  TQC_TRY_ASSIGN(const interop::OpenHints hints, to_hints(options));
  const bool is_whole = !hints.first_tokens && !hints.identity;
  if (is_whole && format::looks_like_cache_file(*file)) {
    return open_own(std::move(file), std::move(mapped), options.trust != 0, hints.access);
  }
  tqcache_cache cache;
  cache.file_bytes = file->size();
  TQC_TRY_ASSIGN(interop::OpenedCache opened, interop::open_any(std::move(file), hints));
  cache.kind = kind_word(opened.kind);
  cache.reader = std::move(opened.cache);
  if (opened.kind == FileKind::kTqkv && hints.identity) {
    cache::Identity identity = *hints.identity;
    const cache::Identity& of_file = cache.reader->description().identity;
    if (interop::has_halves_in_v(of_file, identity)) {
      return unsupported(
          "rotated parts of DeepSeek V3 as transformers has them: convert transformers' cache "
          "itself, with the model");
    }
    identity.llama_streams = of_file.llama_streams;
    identity.source_layout = of_file.source_layout;
    cache.reader = cache::with_identity(cache.reader, std::move(identity));
  }
  for (const auto* list : {&opened.notes, &opened.dropped_fields}) {
    for (const std::string& line : *list) cache.notes += line + "\n";
  }
  return finish_cache(std::move(cache));
}

// K or V of a layer, or an error for recurrent state and layers that do not exist.
Result<const cache::AttentionDesc*> attention_at(const tqcache_cache& cache, std::int64_t layer) {
  const auto& layers = cache.reader->description().layers;
  if (layer < 0 || layer >= std::ssize(layers)) {
    return invalid(fmt::format("layer {} of {}", layer, layers.size()));
  }
  const cache::AttentionDesc* attention = cache::attention_of(layers[to_size(layer)]);
  if (attention == nullptr) return invalid(fmt::format("layer {} has no keys and values", layer));
  return attention;
}

Result<TensorKind> to_kind(int which) {
  if (which == TQCACHE_KEYS) return TensorKind::kKeys;
  if (which == TQCACHE_VALUES) return TensorKind::kValues;
  return invalid(fmt::format("tensor {}: neither keys nor values", which));
}

// Where the first held token of a layer in token blocks is.
std::int64_t first_held(const cache::LayerDesc& layer, std::int64_t n_tokens) {
  const auto* window = std::get_if<cache::WindowDesc>(&layer);
  return window == nullptr ? 0 : cache::window_begin(window->window, n_tokens);
}

// Tokens [begin, begin + to.n_tokens) of a dense window, which is one array.
Result<void> read_window(const tqcache_cache& cache, std::int64_t layer, TensorKind which,
                         std::int64_t begin, std::int64_t held, const TensorView& to) {
  const std::int64_t array = which == TensorKind::kKeys ? 0 : 1;
  TQC_TRY_ASSIGN(const SharedBytes bytes,
                 share_in_place(cache, cache.index->at({layer, TensorKind::kArray, array})));
  const cache::AttentionDesc& desc =
      *cache::attention_of(cache.reader->description().layers[to_size(layer)]);
  const Dtype dtype = (array == 0 ? desc.k : desc.v).dtype;
  const std::size_t row = to_size(to.head_dim) * dtype_size(dtype);
  for (std::int64_t head = 0; head < to.n_heads; ++head) {
    write_rows(bytes.view().subspan(to_size(head * held + begin) * row), dtype, to, head, 0,
               to.n_tokens);
  }
  return {};
}

// The tokens of one token block that lie in [begin, begin + to.n_tokens).
Result<void> read_token_block(const tqcache_cache& cache, const cache::BlockKey& key,
                              std::int64_t begin, const TensorView& to) {
  const std::size_t index = cache.index->at(key);
  const cache::BlockInfo& info = cache.reader->blocks()[index];
  const std::int64_t block_begin = key.block * kTokenBlock;
  const std::int64_t n_in_block = cache::tokens_in_block(cache.reader->n_tokens(), key.block);
  const std::int64_t first = std::max(begin - block_begin, std::int64_t{0});
  const std::int64_t end = std::min(begin + to.n_tokens - block_begin, n_in_block);
  const std::int64_t out = block_begin + first - begin;
  TQC_TRY_ASSIGN(const SharedBytes bytes, share_in_place(cache, index));
  if (!info.packed) {
    const cache::AttentionDesc& desc =
        *cache::attention_of(cache.reader->description().layers[to_size(key.layer)]);
    const Dtype dtype = (key.tensor == TensorKind::kKeys ? desc.k : desc.v).dtype;
    const std::size_t row = to_size(to.head_dim) * dtype_size(dtype);
    for (std::int64_t head = 0; head < to.n_heads; ++head) {
      write_rows(bytes.view().subspan(to_size(head * n_in_block + first) * row), dtype, to, head,
                 out, end - first);
    }
    return {};
  }
  TQC_TRY_ASSIGN(const auto* codecs, codecs_of(cache));
  const cache::LayerCodecs& layer = (*codecs)[to_size(key.layer)];
  const cache::KvCodec& codec = key.tensor == TensorKind::kKeys ? *layer.k : *layer.v;
  AlignedFloats values(to_size(end * to.head_dim));
  const auto row_bytes = to_size(to.head_dim) * sizeof(float);
  for (std::int64_t head = 0; head < to.n_heads; ++head) {
    codec.decode(bytes.view(), key.block, head, values);
    write_rows(std::as_bytes(std::span(values)).subspan(to_size(first) * row_bytes), Dtype::kF32,
               to, head, out, end - first);
  }
  return {};
}

Result<void> read_tensor(const tqcache_cache& cache, std::int64_t layer, int which,
                         std::int64_t begin, const tqcache_tensor* to, unsigned threads) {
  TQC_TRY_ASSIGN(const cache::AttentionDesc* const attention, attention_at(cache, layer));
  TQC_TRY_ASSIGN(const TensorKind kind, to_kind(which));
  TQC_TRY_ASSIGN(const TensorView view, to_tensor(to));
  const std::int64_t n_tokens = cache.reader->n_tokens();
  const cache::LayerDesc& desc = cache.reader->description().layers[to_size(layer)];
  const std::int64_t held = cache::tokens_held(desc, n_tokens);
  const cache::HeadShape shape =
      kind == TensorKind::kKeys ? attention->shape : attention->value_shape();
  if (view.n_heads != shape.n_kv_heads || view.head_dim != shape.head_dim) {
    return invalid(fmt::format("layer {} has {} heads of {} components, not {} of {}", layer,
                               shape.n_kv_heads, shape.head_dim, view.n_heads, view.head_dim));
  }
  if (begin < 0 || begin > held || view.n_tokens > held - begin) {
    return invalid(fmt::format("{} tokens from token {} on, of {} that layer {} holds",
                               view.n_tokens, begin, held, layer));
  }
  if (view.n_tokens == 0) return {};
  if (!cache::is_in_token_blocks(desc)) {
    return read_window(cache, layer, kind, begin, held, view);
  }
  const std::int64_t first = first_held(desc, n_tokens) + begin;
  const std::int64_t first_block = first / kTokenBlock;
  const std::int64_t end_block = cache::block_count(first + view.n_tokens);
  return parallel_try(to_size(end_block - first_block), threads, [&](std::size_t i) {
    return read_token_block(cache, {layer, kind, first_block + static_cast<std::int64_t>(i)}, first,
                            view);
  });
}

Result<std::pair<const cache::ArrayDesc*, std::size_t>> array_at(const tqcache_cache& cache,
                                                                 std::int64_t layer,
                                                                 std::int64_t index) {
  if (layer < 0 || layer >= std::ssize(cache.texts)) {
    return invalid(fmt::format("layer {} of {}", layer, cache.texts.size()));
  }
  const auto& arrays = cache.texts[to_size(layer)].arrays;
  if (index < 0 || index >= std::ssize(arrays)) {
    return invalid(fmt::format("array {} of the {} of layer {}", index, arrays.size(), layer));
  }
  return std::pair(&arrays[to_size(index)], cache.index->at({layer, TensorKind::kArray, index}));
}

nlohmann::ordered_json layer_json(const tqcache_cache& cache, std::size_t i) {
  const cache::CacheDesc& description = cache.reader->description();
  const cache::LayerDesc& layer = description.layers[i];
  nlohmann::ordered_json json;
  json["kind"] = std::visit(Overload{[](const cache::AttentionDesc&) { return "attention"; },
                                     [](const cache::WindowDesc&) { return "window"; },
                                     [](const cache::StateDesc&) { return "state"; }},
                            layer);
  if (const cache::AttentionDesc* attention = cache::attention_of(layer)) {
    json["n_kv_heads"] = attention->shape.n_kv_heads;
    json["head_dim"] = attention->shape.head_dim;
    if (attention->value_dim != 0) json["value_dim"] = attention->value_dim;
    json["n_tokens"] = cache::tokens_held(layer, description.n_tokens());
    json["key_dtype"] = dtype_name(attention->k.dtype);
    json["value_dtype"] = dtype_name(attention->v.dtype);
    json["key_codec"] = cache.texts[i].key_codec;
    json["value_codec"] = cache.texts[i].value_codec;
  }
  if (const auto* window = std::get_if<cache::WindowDesc>(&layer)) {
    json["window"] = window->window.size;
    json["keep"] = window->window.keep;
  }
  for (const cache::ArrayDesc& array : cache.texts[i].arrays) {
    json["arrays"].push_back(
        {{"name", array.name}, {"dtype", dtype_name(array.dtype)}, {"shape", array.shape}});
  }
  return json;
}

std::string describe_json(const tqcache_cache& cache) {
  const cache::CacheDesc& description = cache.reader->description();
  const cache::Identity& identity = description.identity;
  nlohmann::ordered_json json;
  json["kind"] = cache.kind;
  json["n_tokens"] = description.n_tokens();
  json["tokens_known"] = !description.hidden_tokens.has_value();
  json["file_bytes"] = cache.file_bytes;
  json["value_bytes"] = cache::total_raw_bytes(cache.reader->blocks());
  if (!cache.content_digest.empty()) json["content_digest"] = cache.content_digest;
  json["encrypted"] = cache.encrypted;
  json["architecture"] = identity.architecture;
  json["model_name"] = identity.model_name;
  json["source_format"] = identity.source_format;
  if (!identity.source_layout.empty()) json["source_layout"] = identity.source_layout;
  json["weights_fingerprint"] = to_hex(identity.weights_fingerprint);
  json["tokenizer_fingerprint"] = to_hex(identity.tokenizer_fingerprint);
  if (!description.media.empty()) json["media"] = interop::media_json(description.media);
  json["next_position"] = cache::position_of(description.media, description.n_tokens());
  json["layers"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < description.layers.size(); ++i) {
    json["layers"].push_back(layer_json(cache, i));
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace
}  // namespace tqcache::capi

extern "C" {

int tqcache_model_identify(const char* path, tqcache_model** model, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const auto loaded, in_file(path, model::load_model(path)));
    *model = new tqcache_model{loaded->identity};
    return {};
  });
}

void tqcache_model_identity(const tqcache_model* model, tqcache_identity* identity) {
  give_fields(from_identity(model->identity), identity);
}

void tqcache_model_free(tqcache_model* model) { delete model; }

int tqcache_open(const char* path, const tqcache_open_options* options, tqcache_cache** cache,
                 tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const tqcache_open_options known, known_fields(options));
    SharedBytes mapped;
    std::shared_ptr<const ByteSource> file;
    if (known.map != 0) {
      TQC_TRY_ASSIGN(mapped, in_file(path, map_file(path)));
      file = memory_source(mapped);
    } else {
      TQC_TRY_ASSIGN(file, in_file(path, open_file(path)));
    }
    TQC_TRY_ASSIGN(auto opened, in_file(path, open_source(std::move(file), known, mapped)));
    opened->path = path;
    *cache = opened.release();
    return {};
  });
}

int tqcache_open_bytes(const void* data, size_t size, const tqcache_open_options* options,
                       tqcache_cache** cache, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const tqcache_open_options known, known_fields(options));
    const auto* const bytes = static_cast<const std::byte*>(data);
    std::shared_ptr<const ByteSource> file = memory_source(Bytes(bytes, bytes + size));
    TQC_TRY_ASSIGN(auto opened, open_source(std::move(file), known, {}));
    *cache = opened.release();
    return {};
  });
}

void tqcache_close(tqcache_cache* cache) { delete cache; }

void tqcache_get_info(const tqcache_cache* cache, tqcache_info* info) {
  const cache::CacheDesc& description = cache->reader->description();
  tqcache_info known{};
  known.kind = cache->kind.c_str();
  known.n_tokens = description.n_tokens();
  known.n_layers = std::ssize(description.layers);
  known.tokens = description.hidden_tokens ? nullptr : description.tokens.data();
  known.content_digest = cache->content_digest.c_str();
  known.file_bytes = cache->file_bytes;
  known.encrypted = cache->encrypted ? 1 : 0;
  known.notes = cache->notes.c_str();
  give_fields(known, info);
}

void tqcache_get_identity(const tqcache_cache* cache, tqcache_identity* identity) {
  give_fields(from_identity(cache->reader->description().identity), identity);
}

int tqcache_get_layer(const tqcache_cache* cache, int64_t layer, tqcache_layer* info,
                      tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    const cache::CacheDesc& description = cache->reader->description();
    if (layer < 0 || layer >= std::ssize(description.layers)) {
      return invalid(fmt::format("layer {} of {}", layer, description.layers.size()));
    }
    const cache::LayerDesc& desc = description.layers[to_size(layer)];
    const tqcache_cache::LayerText& text = cache->texts[to_size(layer)];
    tqcache_layer known{};
    known.kind = static_cast<std::int32_t>(desc.index());
    known.n_arrays = static_cast<std::int32_t>(text.arrays.size());
    known.n_tokens = cache::tokens_held(desc, description.n_tokens());
    known.key_codec = text.key_codec.c_str();
    known.value_codec = text.value_codec.c_str();
    if (const cache::AttentionDesc* attention = cache::attention_of(desc)) {
      known.key_dtype = static_cast<std::int32_t>(attention->k.dtype);
      known.value_dtype = static_cast<std::int32_t>(attention->v.dtype);
      known.n_kv_heads = attention->shape.n_kv_heads;
      known.head_dim = attention->shape.head_dim;
      known.value_dim = attention->value_shape().head_dim;
    }
    if (const auto* window = std::get_if<cache::WindowDesc>(&desc)) {
      known.window = window->window.size;
      known.keep = window->window.keep;
      known.first_token = cache::window_begin(window->window, description.n_tokens());
    }
    give_fields(known, info);
    return {};
  });
}

int tqcache_read(const tqcache_cache* cache, int64_t layer, int which, int64_t begin,
                 const tqcache_tensor* to, unsigned threads, tqcache_error** error) {
  return guarded(error, [&] { return read_tensor(*cache, layer, which, begin, to, threads); });
}

int tqcache_get_array(const tqcache_cache* cache, int64_t layer, int64_t index, tqcache_array* info,
                      tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const auto found, array_at(*cache, layer, index));
    const cache::ArrayDesc& array = *found.first;
    tqcache_array known{};
    known.name = array.name.c_str();
    known.dtype = static_cast<std::int32_t>(array.dtype);
    known.rank = static_cast<std::int32_t>(array.shape.size());
    for (std::size_t i = 0; i < array.shape.size(); ++i) {
      known.shape[i] = static_cast<std::int64_t>(array.shape[i]);
    }
    known.n_bytes = cache->reader->blocks()[found.second].raw_bytes;
    give_fields(known, info);
    return {};
  });
}

int tqcache_share_array(const tqcache_cache* cache, int64_t layer, int64_t index,
                        tqcache_bytes** bytes, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const auto found, array_at(*cache, layer, index));
    TQC_TRY_ASSIGN(SharedBytes shared, share_in_place(*cache, found.second));
    *bytes = new tqcache_bytes{std::move(shared), {}};
    return {};
  });
}

int tqcache_share_block(const tqcache_cache* cache, int64_t layer, int which, int64_t block,
                        tqcache_bytes** bytes, int64_t* n_tokens, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY(attention_at(*cache, layer));
    TQC_TRY_ASSIGN(const TensorKind kind, to_kind(which));
    const auto index = cache->index->find({layer, kind, block});
    if (!index) return invalid(fmt::format("layer {} has no token block {}", layer, block));
    if (cache->reader->blocks()[*index].packed) {
      *bytes = nullptr;
      *n_tokens = 0;
      return {};
    }
    TQC_TRY_ASSIGN(SharedBytes shared, share_in_place(*cache, *index));
    *bytes = new tqcache_bytes{std::move(shared), {}};
    *n_tokens = cache::tokens_in_block(cache->reader->n_tokens(), block);
    return {};
  });
}

int tqcache_describe(const tqcache_cache* cache, tqcache_bytes** json, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    const std::string text = describe_json(*cache);
    const ByteView bytes = as_bytes(text);
    *json = new tqcache_bytes{{}, Bytes(bytes.begin(), bytes.end())};
    return {};
  });
}

}  // extern "C"
