#include "tqcache/interop/mlx/mlx_lm_classes.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using tensors::printable_name;

constexpr std::string_view kCacheList = "CacheList";
constexpr std::uint64_t kMaxBatch = 65'536;

struct ClassName {
  std::string_view name;
  MlxClass kind;
};

constexpr std::array kClasses = {
    ClassName{"KVCache", MlxClass::kKv},
    ClassName{"ConcatenateKVCache", MlxClass::kConcatenate},
    ClassName{"QuantizedKVCache", MlxClass::kQuantized},
    ClassName{"RotatingKVCache", MlxClass::kRotating},
    ClassName{"ArraysCache", MlxClass::kArrays},
    ClassName{"MambaCache", MlxClass::kArrays},
    ClassName{"ChunkedKVCache", MlxClass::kChunked},
    ClassName{"BatchKVCache", MlxClass::kBatch},
    ClassName{"BatchRotatingKVCache", MlxClass::kBatchRotating},
};

// --- the list

MlxCache sub_cache(const std::string& layer, std::size_t number, std::string class_name,
                   std::string prefix) {
  return {.place = fmt::format("layer {} cache {}", layer, number),
          .class_name = std::move(class_name),
          .prefix = std::move(prefix),
          .info = {}};
}

// Before 0.31 the states of all caches in a CacheList were one flat list, without their classes.
// Four tensors of four dimensions can only be two pairs of keys and values: convolution states have
// three dimensions.
Result<void> add_flat_list(MlxFile& file, const std::string& layer, std::vector<MlxCache>& caches) {
  const auto name = [&](int slot) { return fmt::format("{}.{}", layer, slot); };
  bool is_pairs = file.has(name(3)) && !file.has(name(4));
  for (int slot = 0; is_pairs && slot < 4; ++slot) {
    TQC_TRY_ASSIGN(const auto* place, file.tensor(name(slot)));
    is_pairs = place->shape.size() == 4;
  }
  if (!is_pairs) {
    return unsupported(
        "a CacheList as mlx-lm saved it before 0.31: the file does not say what is in it");
  }
  for (std::size_t i = 0; i < 2; ++i) {
    caches.push_back(sub_cache(layer, i, "KVCache", layer + '.'));
    caches.back().first_slot = static_cast<int>(2 * i);
  }
  return {};
}

// Tensors "<layer>.<i>.<slot>"; classes "<layer>.0.<i>" and numbers "<layer>.1.<i>" in the
// metadata.
Result<void> add_meta_list(MlxFile& file, const std::string& layer, std::vector<MlxCache>& caches) {
  const auto classes = file.meta().info_list(layer + ".0");
  if (classes.empty()) return add_flat_list(file, layer, caches);
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::string number = std::to_string(i);
    caches.push_back(sub_cache(layer, i, std::string(classes[i]), layer + '.' + number + '.'));
    caches.back().info = file.meta().info_list(layer + ".1." + number);
  }
  return {};
}

// Tensors "<layer>.<i>.0.<slot>", and the class "<layer>.<i>.1".
Result<void> add_scalar_list(MlxFile& file, const std::string& layer,
                             std::vector<MlxCache>& caches) {
  for (std::size_t i = 0; std::ssize(caches) <= cache::kMaxLayers; ++i) {
    const std::string item = fmt::format("{}.{}", layer, i);
    if (!file.has(item + ".1")) return {};
    TQC_TRY_ASSIGN(std::string class_name, file.text(item + ".1"));
    caches.push_back(sub_cache(layer, i, std::move(class_name), item + ".0."));
  }
  return {};
}

Result<void> add_list(MlxFile& file, const std::string& layer, std::vector<MlxCache>& caches) {
  const std::size_t n_before = caches.size();
  if (file.layout() == MlxLayout::kScalars) {
    TQC_TRY(add_scalar_list(file, layer, caches));
  } else {
    TQC_TRY(add_meta_list(file, layer, caches));
  }
  for (std::size_t i = n_before; i < caches.size(); ++i) {
    if (caches[i].class_name == kCacheList) return unsupported("a CacheList within a CacheList");
  }
  return {};
}

Result<std::vector<MlxCache>> list_pairs(const MlxFile& file) {
  std::vector<MlxCache> caches;
  for (;;) {
    const std::string layer = std::to_string(caches.size());
    if (!file.has(layer + "_keys") || std::ssize(caches) > cache::kMaxLayers) return caches;
    caches.push_back({.place = "layer " + layer,
                      .class_name = "KVCache",
                      .prefix = layer + '_',
                      .is_named = true,
                      .info = {}});
  }
}

// --- tokens seen

using Tokens = std::optional<std::int64_t>;

Result<Tokens> known(Result<std::int64_t> n) {
  if (!n) return std::move(n).error();
  return Tokens(*n);
}

Result<std::int64_t> rows_of(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  TQC_TRY_ASSIGN(const MlxGrid keys, state_grid(file, cache.slot(0), row));
  return keys.n_rows;
}

// Before 0.32 the number was not saved, and the saved tensors have spare room once the first chunk
// is dropped.
Result<Tokens> chunked_tokens(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  if (file.layout() == MlxLayout::kScalars) return known(state_number(file, cache, 0, 2));
  TQC_TRY_ASSIGN(const std::int64_t start, state_number(file, cache, 1, 4));
  if (start > 0) return Tokens();
  return known(rows_of(file, cache, row));
}

Result<std::int64_t> batch_tokens(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  TQC_TRY_ASSIGN(const auto offsets, file.numbers(cache.slot(2), kMaxBatch));
  if (row < 0 || row >= std::ssize(offsets)) {
    return invalid(fmt::format("row {} of a batch of {}", row, offsets.size()));
  }
  const std::int64_t offset = offsets[static_cast<std::size_t>(row)];
  if (offset >= 0 && offset <= cache::kMaxTokens) return offset;
  return corrupt(fmt::format("an offset of {}", offset));
}

}  // namespace

Result<MlxClass> mlx_class(std::string_view name) {
  for (const ClassName& known : kClasses) {
    if (known.name == name) return known.kind;
  }
  return unsupported("class " + printable_name(name) + " is unknown");
}

Result<std::vector<MlxCache>> list_caches(MlxFile& file) {
  if (file.layout() == MlxLayout::kNamedPairs) return list_pairs(file);
  std::vector<MlxCache> caches;
  for (std::size_t i = 0; i < file.meta().classes.size(); ++i) {
    const std::string layer = std::to_string(i);
    const std::string_view class_name = file.meta().classes[i];
    if (class_name == kCacheList) {
      auto added = add_list(file, layer, caches);
      if (!added) return in_context("layer " + layer, std::move(added).error());
    } else {
      caches.push_back({.place = "layer " + layer,
                        .class_name = std::string(class_name),
                        .prefix = layer + '.',
                        .info = file.meta().info_list(layer)});
    }
    if (std::ssize(caches) > cache::kMaxLayers) {
      return too_large(fmt::format("more than {} layers", cache::kMaxLayers));
    }
  }
  return caches;
}

Result<std::optional<std::int64_t>> tokens_seen(MlxFile& file, const MlxCache& cache,
                                                std::int64_t row) {
  TQC_TRY_ASSIGN(const MlxClass kind, mlx_class(cache.class_name));
  const bool has_scalars = file.layout() == MlxLayout::kScalars;
  switch (kind) {
    case MlxClass::kKv:
      return known(has_scalars ? state_number(file, cache, 0, 2) : rows_of(file, cache, row));
    case MlxClass::kConcatenate:
      return known(rows_of(file, cache, row));
    case MlxClass::kQuantized:
      return known(state_number(file, cache, 0, 2));
    case MlxClass::kRotating:
      return known(state_number(file, cache, 2, 2));
    case MlxClass::kChunked:
      return chunked_tokens(file, cache, row);
    case MlxClass::kBatch:
    case MlxClass::kBatchRotating:
      return known(batch_tokens(file, cache, row));
    case MlxClass::kArrays:
      break;
  }
  return Tokens();
}

}  // namespace tqcache::interop
