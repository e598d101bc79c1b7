#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/interop/media_json.h"
#include "tqcache/interop/mlx/mlx_lm.h"
#include "tqcache/interop/mlx/mlx_lm_classes.h"
#include "tqcache/interop/mlx/mlx_lm_layers.h"
#include "tqcache/interop/mlx/mlx_lm_layout.h"
#include "tqcache/interop/mlx/mlx_lm_state.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

constexpr std::size_t kMaxModelBytes = 1024;  // limit of a text in a .tqkv file
constexpr std::size_t kMaxShownBytes = 256;
constexpr std::size_t kMaxShownKeys = 32;
// What tqcache.mlx notes of images. mlx-lm keeps no token ids, so a file alone has no use for them.
constexpr std::string_view kMediaKey = "tqcache.media";

// --- tokens

// The number of tokens that the caller and all caches which know it agree on.
Result<std::int64_t> count_tokens(MlxFile& file, const MlxCaches& caches,
                                  const MlxLmImport& options) {
  std::optional<std::int64_t> n_tokens;
  const MlxCache* first = nullptr;
  for (const MlxCache& cache : caches.list) {
    auto seen = tokens_seen(file, cache, options.row);
    if (!seen) return in_context(cache.place, std::move(seen).error());
    const auto noted =
        cache.layer < caches.noted_tokens.size() ? caches.noted_tokens[cache.layer] : std::nullopt;
    if (!*seen && !cache.is_in_list) *seen = noted;
    if (!*seen) continue;
    if (noted && !cache.is_in_list && *noted != **seen) {
      return corrupt(fmt::format("{}: {} tokens, but the metadata notes {} for it", cache.place,
                                 **seen, *noted));
    }
    if (n_tokens && **seen != *n_tokens) {
      return corrupt(fmt::format("{}: {} tokens, but {} has {}", cache.place, **seen, first->place,
                                 *n_tokens));
    }
    if (!n_tokens) first = &cache;
    n_tokens = *seen;
  }
  if (options.n_tokens && n_tokens.value_or(*options.n_tokens) != *options.n_tokens) {
    return invalid(fmt::format("{} tokens of a cache of {}", *options.n_tokens, *n_tokens));
  }
  if (!n_tokens) n_tokens = options.n_tokens;
  if (n_tokens) return *n_tokens;
  return unsupported("no layer says how many tokens it has seen");
}

// Files of 2024 do not state the position of a ring, and the earliest ones ended with rows that
// hold no tokens.
Result<void> check_named_pairs(MlxFile& file, const std::vector<MlxCache>& caches,
                               std::int64_t n_tokens) {
  if (file.layout() != MlxLayout::kNamedPairs || n_tokens == 0) return {};
  const auto limit = file.meta().user.find("max_kv_size");
  const auto max_size = limit == file.meta().user.end() ? std::nullopt : mlx_number(limit->second);
  if (max_size && n_tokens >= *max_size) {
    return unsupported(fmt::format(
        "a ring of {} tokens: in files of 2024 nothing says where it begins", *max_size));
  }
  TQC_TRY_ASSIGN(const MlxGrid keys, state_grid(file, caches[0].slot(0), 0));
  TQC_TRY_ASSIGN(const Dtype dtype, float_dtype(keys.type, keys.type_name));
  Bytes last(static_cast<std::size_t>(keys.width) * dtype_size(dtype));
  const auto row = static_cast<std::uint64_t>(n_tokens - 1);
  TQC_TRY(file.bytes()->read_at(keys.offset + row * last.size(), last));
  if (std::ranges::any_of(last, [](std::byte b) { return b != std::byte{0}; })) return {};
  return unsupported(caches[0].place +
                     ": its last row is zeros, so it holds more rows than tokens");
}

// --- metadata for display

// "12 ArraysCache, 4 KVCache"
std::string count_classes(const std::vector<MlxCache>& caches) {
  std::map<std::string_view, std::size_t> counts;
  for (const MlxCache& cache : caches) ++counts[cache.class_name];
  std::string words;
  for (const auto& [name, count] : counts) {
    if (!words.empty()) words += ", ";
    words += std::to_string(count).append(" ").append(name);
  }
  return words;
}

std::string_view user_text(const MlxMeta& meta, std::string_view key) {
  const auto found = meta.user.find(key);
  return found == meta.user.end() ? std::string_view() : found->second;
}

void tell_metadata(const MlxMeta& meta, ForeignCache& cache) {
  std::string keys;
  std::size_t n_keys = 0;
  for (const auto& [key, value] : meta.user) {
    if (key == "model" || key == kMediaKey || key.starts_with("__mlx_lm_offset_")) continue;
    if (++n_keys > kMaxShownKeys) continue;
    if (!keys.empty()) keys += ", ";
    keys += tensors::printable_name(key);
  }
  if (n_keys == 0) return;
  if (n_keys > kMaxShownKeys) keys += ", ...";
  cache.metadata.emplace_back("metadata", keys);
  cache.dropped_fields.push_back("the metadata " + keys + " is not kept");
}

void tell(const MlxFile& file, const MlxCaches& caches, ForeignCache& cache) {
  const std::string_view model = user_text(file.meta(), "model");
  cache.identity.source_format = caches.writer == "mlx-swift-lm" ? "mlx-swift-lm" : "mlx-lm";
  cache.identity.model_name = mlx_text(model, kMaxModelBytes);
  cache.metadata.emplace_back("format", "mlx-lm prompt cache");
  cache.metadata.emplace_back("written by", caches.writer);
  if (!model.empty()) cache.metadata.emplace_back("model", mlx_text(model, kMaxShownBytes));
  cache.metadata.emplace_back("classes", count_classes(caches.list));
  tell_metadata(file.meta(), cache);
}

// --- layers

// The objects, as an export writes them.
std::vector<MlxObject> objects_of(const std::vector<MlxCache>& caches,
                                  const std::vector<std::int64_t>& chunk_sizes,
                                  const std::vector<MlxObject>& plain) {
  std::vector<MlxObject> objects;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const MlxCache& cache = caches[i];
    MlxMember member = plain[i].members[0];
    if (cache.class_name == "ConcatenateKVCache") member.class_name = cache.class_name;
    if (chunk_sizes[i] > 0) member = {"ChunkedKVCache", chunk_sizes[i]};
    const bool continues = i > 0 && cache.is_in_list && caches[i - 1].layer == cache.layer;
    if (!continues) objects.push_back({.members = {}, .is_list = cache.is_in_list});
    objects.back().members.push_back(std::move(member));
  }
  return objects;
}

// Notes what the kinds of the layers do not tell.
Result<void> note_layout(MlxFile& file, const std::vector<MlxCache>& caches, ForeignCache& cache) {
  std::vector<std::int64_t> chunk_sizes;
  std::vector<MlxObject> plain;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    TQC_TRY_ASSIGN(const MlxClass kind, mlx_class(caches[i]));
    chunk_sizes.push_back(0);
    if (kind == MlxClass::kChunked && caches[i].number_text(MlxNumber::kChunkSize) != "None") {
      TQC_TRY_ASSIGN(chunk_sizes.back(), state_number(file, caches[i], MlxNumber::kChunkSize, 3));
    }
    const cache::LayerDesc& layer = cache.layers[i].description;
    const char* const name = std::holds_alternative<cache::AttentionDesc>(layer) ? "KVCache"
                             : std::holds_alternative<cache::WindowDesc>(layer)  ? "RotatingKVCache"
                                                                                 : "ArraysCache";
    plain.push_back({.members = {{.class_name = name}}});
  }
  const std::vector<MlxObject> objects = objects_of(caches, chunk_sizes, plain);
  if (objects == plain) return {};
  std::string text = format_objects(objects);
  if (text.size() > cache::kMaxTextBytes) {
    cache.dropped_fields.push_back(
        "the classes CacheList, ConcatenateKVCache and ChunkedKVCache are not kept: too many "
        "different layers");
    return {};
  }
  cache.identity.source_layout = std::move(text);
  return {};
}

// Checks that all caches have the same batch size. Records the rows that are not imported.
Result<void> check_batch(const MlxFile& file, const std::vector<MlxCache>& caches, std::int64_t row,
                         std::vector<std::string>& dropped_fields) {
  const std::uint64_t batch = caches.empty() ? 1 : batch_size(file, caches[0]);
  for (const MlxCache& cache : caches) {
    if (batch_size(file, cache) == batch) continue;
    return corrupt(fmt::format("{}: a batch of {}, but {} has one of {}", cache.place,
                               batch_size(file, cache), caches[0].place, batch));
  }
  if (batch < 2) return {};
  dropped_fields.push_back(
      fmt::format("all rows but row {} of a batch of {} are left out", row, batch));
  return {};
}

Result<void> add_layers(MlxFile& file, const std::vector<MlxCache>& caches, std::int64_t row,
                        ForeignCache& result) {
  for (const MlxCache& cache : caches) {
    auto layer = make_layer(file, cache, result.n_tokens, row, result.dropped_fields);
    if (!layer) return in_context(cache.place, std::move(layer).error());
    result.layers.push_back(std::move(layer).value());
  }
  return file.check_all_used();
}

void remove_repeated(std::vector<std::string>& lines) {
  std::vector<std::string> once;
  for (std::string& line : lines) {
    if (std::ranges::find(once, line) == once.end()) once.push_back(std::move(line));
  }
  lines = std::move(once);
}

}  // namespace

bool is_mlx_lm(const tensors::SafetensorsIndex& index) { return mlx_layout(index).has_value(); }

Result<ForeignCache> import_mlx_lm(std::shared_ptr<const ByteSource> file,
                                   const MlxLmImport& options) {
  TQC_TRY_ASSIGN(MlxFile opened, MlxFile::open(std::move(file)));
  TQC_TRY_ASSIGN(const MlxCaches listed, list_caches(opened));
  const std::vector<MlxCache>& caches = listed.list;
  ForeignCache result;
  TQC_TRY_ASSIGN(result.n_tokens, count_tokens(opened, listed, options));
  TQC_TRY(check_named_pairs(opened, caches, result.n_tokens));
  tell(opened, listed, result);
  if (const std::string_view media = user_text(opened.meta(), kMediaKey); !media.empty()) {
    auto spans = parse_media(media);
    if (!spans) return in_context("metadata \"tqcache.media\"", std::move(spans).error());
    result.media = *std::move(spans);
  }
  result.is_quantized = std::ranges::any_of(
      caches, [](const MlxCache& cache) { return cache.class_name == "QuantizedKVCache"; });
  TQC_TRY(check_batch(opened, caches, options.row, result.dropped_fields));
  TQC_TRY(add_layers(opened, caches, options.row, result));
  TQC_TRY(note_layout(opened, caches, result));
  remove_repeated(result.dropped_fields);
  return result;
}

}  // namespace tqcache::interop
