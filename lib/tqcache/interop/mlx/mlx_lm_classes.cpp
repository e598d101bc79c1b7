#include "tqcache/interop/mlx/mlx_lm_classes.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string>
#include <utility>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/interop/programs.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using tensors::printable_name;

constexpr std::string_view kCacheList = "CacheList";
// What mlx-swift-lm puts before the names of classes if a file has the state of a model, too.
constexpr std::string_view kStateMark = "__mlx_lm_state_v1__:";
constexpr std::string_view kStateKey = "__mlx_lm_state_";
constexpr std::string_view kOffsetKey = "__mlx_lm_offset_";

struct ClassName {
  std::string_view name;
  MlxClass kind;
};

constexpr std::array kClasses = {
    ClassName{"KVCache", MlxClass::kKv},
    ClassName{"KVCacheSimple", MlxClass::kKv},  // mlx-swift-lm's own name for it
    ClassName{"ConcatenateKVCache", MlxClass::kConcatenate},
    ClassName{"QuantizedKVCache", MlxClass::kQuantized},
    ClassName{"RotatingKVCache", MlxClass::kRotating},
    ClassName{"ArraysCache", MlxClass::kArrays},
    ClassName{"MambaCache", MlxClass::kArrays},
    ClassName{"ChunkedKVCache", MlxClass::kChunked},
    ClassName{"BatchKVCache", MlxClass::kBatch},
    ClassName{"BatchRotatingKVCache", MlxClass::kBatchRotating},
};

// --- versions

// The versions that can be told apart by what they write, as bits of a set.
constexpr std::array<std::string_view, 4> kWriters = {
    "mlx-lm 0.19 to 0.28.0", "mlx-lm 0.28.1 to 0.30", "mlx-lm 0.31", "mlx-swift-lm"};
constexpr unsigned kLm19 = 1, kLm28 = 2, kLm31 = 4, kSwift = 8;
constexpr unsigned kPython = kLm19 | kLm28 | kLm31;

// "mlx-lm 0.19 to 0.28.0"; of several neighbors the first and the last.
std::string writers_words(unsigned writers) {
  if (writers == kPython) return "mlx-lm 0.19 to 0.31";
  if (writers == (kLm19 | kLm28)) return "mlx-lm 0.19 to 0.30";
  if (writers == (kLm28 | kLm31)) return "mlx-lm 0.28.1 to 0.31";
  if (writers == (kPython | kSwift)) return "mlx-lm 0.19 to 0.31 or mlx-swift-lm";
  std::string words;
  for (std::size_t i = 0; i < kWriters.size(); ++i) {
    if ((writers >> i & 1) == 0) continue;
    if (!words.empty()) words += " or ";
    words += kWriters[i];
  }
  return words;
}

// The numbers that a class has in the metadata, by the versions that write them.
struct NumbersLayout {
  MlxClass kind;
  unsigned writers;
  std::size_t count;
  std::array<MlxNumber, 7> numbers;
};

using enum MlxNumber;

constexpr std::array kNumbersLayouts = {
    NumbersLayout{MlxClass::kKv, kPython, 0, {}},
    NumbersLayout{MlxClass::kKv, kSwift, 1, {kNothing}},
    NumbersLayout{MlxClass::kConcatenate, kPython, 0, {}},
    NumbersLayout{MlxClass::kQuantized, kLm19 | kSwift, 4, {kStep, kOffset, kGroupSize, kBits}},
    NumbersLayout{MlxClass::kQuantized, kLm28 | kLm31, 3, {kOffset, kGroupSize, kBits}},
    NumbersLayout{MlxClass::kRotating, kLm19 | kSwift, 5, {kKeep, kMaxSize, kStep, kOffset, kNext}},
    NumbersLayout{MlxClass::kRotating, kLm28 | kLm31, 4, {kKeep, kMaxSize, kOffset, kNext}},
    NumbersLayout{
        MlxClass::kRotating, kSwift, 6, {kKeep, kMaxSize, kStep, kOffset, kNext, kOrigin}},
    NumbersLayout{MlxClass::kRotating,
                  kSwift,
                  7,
                  {kKeep, kMaxSize, kStep, kOffset, kNext, kOrigin, kWrapped}},
    NumbersLayout{MlxClass::kArrays, kPython, 0, {}},
    NumbersLayout{MlxClass::kArrays, kSwift, 1, {kNothing}},
    NumbersLayout{MlxClass::kArrays, kSwift, 2, {kNSlots, kPresent}},
    NumbersLayout{MlxClass::kArrays, kSwift, 3, {kNSlots, kPresent, kPadding}},
    NumbersLayout{MlxClass::kArrays, kSwift, 4, {kNSlots, kPresent, kPadding, kLengths}},
    NumbersLayout{MlxClass::kChunked, kPython | kSwift, 2, {kChunkSize, kStart}},
    NumbersLayout{MlxClass::kBatch, kPython, 0, {}},
    NumbersLayout{MlxClass::kBatchRotating, kPython, 4, {kMaxSize, kOffset, kNext, kRotated}},
};

// Finds out what the numbers of a cache are, and which versions write them.
// Errors: those of mlx_class(); kUnsupported (as many as no version writes).
Result<unsigned> name_numbers(MlxCache& cache) {
  // The first versions of mlx-swift-lm wrote a ChunkedKVCache under the name of its base class.
  if (cache.class_name == "KVCache" && cache.info.size() == 2) cache.class_name = "ChunkedKVCache";
  TQC_TRY_ASSIGN(const MlxClass kind, mlx_class(cache));
  for (const NumbersLayout& layout : kNumbersLayouts) {
    if (layout.kind != kind || layout.count != cache.info.size()) continue;
    cache.numbers = std::span(layout.numbers).first(layout.count);
    return layout.writers;
  }
  return unsupported(
      fmt::format("{} numbers in the metadata of a {}: as many as no version of mlx-lm or "
                  "mlx-swift-lm that is known writes",
                  cache.info.size(), cache.class_name));
}

// Names the numbers of all caches. Returns the versions that write all of them.
// Errors: those of name_numbers(); kCorrupt (no version writes them all).
Result<unsigned> name_all_numbers(std::vector<MlxCache>& caches, unsigned writers) {
  unsigned common = writers;
  const MlxCache* narrowest = nullptr;  // the last one that excluded a version
  unsigned narrow = 0;
  for (MlxCache& cache : caches) {
    auto own = name_numbers(cache);
    if (!own) return in_context(cache.place, std::move(own).error());
    if ((common & *own) == 0) {
      return corrupt(fmt::format("{}: numbers as {} writes them, but {} has them as {} does",
                                 cache.place, writers_words(*own),
                                 narrowest == nullptr ? "the file" : narrowest->place,
                                 writers_words(narrowest == nullptr ? writers : narrow)));
    }
    if ((common & *own) != common) {
      narrowest = &cache;
      narrow = *own;
    }
    common &= *own;
  }
  return common;
}

// --- the list

MlxCache sub_cache(std::size_t layer, std::size_t number, std::string class_name,
                   std::string prefix) {
  return {.place = fmt::format("layer {} cache {}", layer, number),
          .class_name = std::move(class_name),
          .prefix = std::move(prefix),
          .layer = layer,
          .is_in_list = true,
          .info = {}};
}

// Caches in one list of tensors: those of the second follow those of the first.
MlxCache flat_cache(std::size_t layer, std::size_t number, std::string class_name, int first_slot,
                    int n_slots) {
  MlxCache cache = sub_cache(layer, number, std::move(class_name), fmt::format("{}.", layer));
  cache.first_slot = first_slot;
  cache.n_slots = n_slots;
  return cache;
}

// Before 0.31 the states of all caches in a CacheList were one list, without their classes and
// numbers. Two of them can be told: pairs of keys and values of equally many tokens, and a state of
// convolutions with a recurrent one (which has three dimensions and four) before a pair.
Result<void> add_flat_list(MlxFile& file, std::size_t layer, std::vector<MlxCache>& caches) {
  std::vector<std::vector<std::uint64_t>> shapes;
  while (shapes.size() < 5 && file.has(fmt::format("{}.{}", layer, shapes.size()))) {
    shapes.push_back(file.find(fmt::format("{}.{}", layer, shapes.size()))->shape);
  }
  const auto is_pair = [&](std::size_t first) {
    return shapes[first].size() == 4 && shapes[first + 1].size() == 4 &&
           shapes[first][2] == shapes[first + 1][2];
  };
  if (shapes.size() == 4 && is_pair(2)) {
    const bool is_state = shapes[0].size() == 3 && shapes[1].size() == 4;
    if (is_state || (is_pair(0) && shapes[0][2] == shapes[2][2])) {
      caches.push_back(flat_cache(layer, 0, is_state ? "ArraysCache" : "KVCache", 0, 2));
      caches.push_back(flat_cache(layer, 1, "KVCache", 2, 2));
      return {};
    }
  }
  return unsupported(
      "a CacheList as mlx-lm saved it before 0.31: the file does not say what is in it");
}

// mlx-swift-lm: how many caches, and of each its class, how many tensors and numbers it has, and
// the numbers. The tensors of all are one list.
Result<void> add_counted_list(std::size_t layer, std::span<const std::string_view> words,
                              std::vector<MlxCache>& caches) {
  const auto n_caches = mlx_number(words[0]);
  std::size_t at = 1;
  int first_slot = 0;
  for (std::int64_t i = 0; i < n_caches.value_or(0); ++i) {
    const auto n_tensors = at + 2 < words.size() ? mlx_number(words[at + 1]) : std::nullopt;
    const auto n_numbers = at + 2 < words.size() ? mlx_number(words[at + 2]) : std::nullopt;
    if (std::ssize(caches) > cache::kMaxLayers) break;
    if (!n_tensors || !n_numbers || *n_tensors > std::int64_t{cache::kMaxArrays} ||
        *n_numbers > std::ssize(words) - static_cast<std::int64_t>(at) - 3) {
      return corrupt(fmt::format("metadata: cache {} of a list is not whole", i));
    }
    caches.push_back(flat_cache(layer, static_cast<std::size_t>(i), std::string(words[at]),
                                first_slot, static_cast<int>(*n_tensors)));
    const auto numbers = words.subspan(at + 3, static_cast<std::size_t>(*n_numbers));
    caches.back().info.assign(numbers.begin(), numbers.end());
    at += 3 + numbers.size();
    first_slot += static_cast<int>(*n_tensors);
  }
  if (n_caches && at == words.size()) return {};
  return corrupt("metadata: a list of caches with numbers that belong to none of them");
}

// Classes "<layer>.0.<i>" and numbers "<layer>.1.<i>" in the metadata, and tensors
// "<layer>.<i>.<slot>". Returns the versions that write lists like this.
Result<unsigned> add_meta_list(MlxFile& file, std::size_t layer, std::vector<MlxCache>& caches) {
  const auto words = file.meta().info_list(std::to_string(layer));
  if (!words.empty() && (words.size() > 1 || !words[0].empty())) {
    TQC_TRY(add_counted_list(layer, words, caches));
    return kSwift;
  }
  const auto classes = file.meta().info_list(fmt::format("{}.0", layer));
  if (classes.empty()) {
    TQC_TRY(add_flat_list(file, layer, caches));
    // The first versions of mlx-swift-lm say nothing of what is in a list, either.
    if (words.empty()) return kLm19 | kLm28;
    for (MlxCache& cache : caches) {
      if (cache.layer == layer) cache.info = {std::string_view()};
    }
    return kSwift;
  }
  for (std::size_t i = 0; i < classes.size(); ++i) {
    caches.push_back(sub_cache(layer, i, std::string(classes[i]), fmt::format("{}.{}.", layer, i)));
    caches.back().info = file.meta().info_list(fmt::format("{}.1.{}", layer, i));
  }
  return kLm31;
}

// Tensors "<layer>.<i>.0.<slot>", and the class "<layer>.<i>.1".
Result<void> add_scalar_list(MlxFile& file, std::size_t layer, std::vector<MlxCache>& caches) {
  for (std::size_t i = 0; std::ssize(caches) <= cache::kMaxLayers; ++i) {
    const std::string item = fmt::format("{}.{}", layer, i);
    if (!file.has(item + ".1")) return {};
    TQC_TRY_ASSIGN(std::string class_name, file.text(item + ".1"));
    caches.push_back(sub_cache(layer, i, std::move(class_name), item + ".0."));
  }
  return {};
}

Result<unsigned> add_list(MlxFile& file, std::size_t layer, std::vector<MlxCache>& caches) {
  const std::size_t n_before = caches.size();
  unsigned writers = kPython | kSwift;
  if (file.layout() == MlxLayout::kScalars) {
    TQC_TRY(add_scalar_list(file, layer, caches));
  } else {
    TQC_TRY_ASSIGN(writers, add_meta_list(file, layer, caches));
  }
  for (std::size_t i = n_before; i < caches.size(); ++i) {
    if (caches[i].class_name == kCacheList) return unsupported("a CacheList within a CacheList");
  }
  return writers;
}

std::vector<MlxCache> list_pairs(const MlxFile& file) {
  std::vector<MlxCache> caches;
  for (;;) {
    const std::size_t layer = caches.size();
    if (!file.has(fmt::format("{}_keys", layer)) || std::ssize(caches) > cache::kMaxLayers) {
      return caches;
    }
    caches.push_back({.place = fmt::format("layer {}", layer),
                      .class_name = "KVCache",
                      .prefix = fmt::format("{}_", layer),
                      .layer = layer,
                      .is_named = true,
                      .info = {}});
  }
}

// Positions of later tokens depend on this state (a model that has seen images counts otherwise),
// so the caches alone must not be resumed.
Result<void> refuse_model_state(const MlxMeta& meta) {
  const bool is_marked = !meta.classes.empty() && meta.classes[0].starts_with(kStateMark);
  std::string names;
  for (const auto& [key, value] : meta.user) {
    if (!key.starts_with(kStateKey) || !key.ends_with("_key")) continue;
    names += (names.empty() ? "" : ", ") + printable_name(value);
  }
  if (!is_marked && names.empty()) return {};
  return unsupported(fmt::format(
      "mlx-swift-lm saved the state of a model beside its caches{}{}, and the positions of later "
      "tokens depend on it (images): a cache of text alone can be converted",
      names.empty() ? "" : ": ", names));
}

// mlx-swift-lm notes the tokens of every layer in metadata of its own.
std::vector<std::optional<std::int64_t>> noted_tokens(const MlxMeta& meta) {
  std::vector<std::optional<std::int64_t>> tokens(meta.classes.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto found = meta.user.find(fmt::format("{}{}", kOffsetKey, i));
    if (found != meta.user.end()) tokens[i] = mlx_number(found->second);
  }
  return tokens;
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
  if (file.layout() == MlxLayout::kScalars) return known(state_number(file, cache, kOffset, 2));
  TQC_TRY_ASSIGN(const std::int64_t start, state_number(file, cache, kStart, 4));
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

Result<MlxClass> mlx_class(const MlxCache& cache) {
  const std::string& name = cache.class_name;
  for (const ClassName& known : kClasses) {
    if (known.name == name) return known.kind;
  }
  const std::string printable = printable_name(name);
  if (const auto named = name_class(name, cache.info.size())) {
    return unsupported(
        fmt::format("class {}, of {}: not read; {}", printable, named->program, named->advice));
  }
  return unsupported("class " + printable + " is unknown");
}

Result<MlxCaches> list_caches(MlxFile& file) {
  MlxCaches caches;
  if (file.layout() == MlxLayout::kNamedPairs) {
    caches.list = list_pairs(file);
    caches.writer = "2024, without classes";
    return caches;
  }
  TQC_TRY(refuse_model_state(file.meta()));
  unsigned writers = kPython | kSwift;
  for (std::size_t i = 0; i < file.meta().classes.size(); ++i) {
    const std::string layer = std::to_string(i);
    const std::string_view class_name = file.meta().classes[i];
    if (class_name == kCacheList) {
      auto added = add_list(file, i, caches.list);
      if (!added) return in_context("layer " + layer, std::move(added).error());
      if ((writers & *added) == 0) {
        return corrupt(
            fmt::format("layer {}: a CacheList as {} writes it, but an earlier one as {} "
                        "does",
                        i, writers_words(*added), writers_words(writers)));
      }
      writers &= *added;
    } else {
      caches.list.push_back({.place = "layer " + layer,
                             .class_name = std::string(class_name),
                             .prefix = layer + '.',
                             .layer = i,
                             .info = file.meta().info_list(layer)});
      // A text instead of a list: of no version that was released (mlx-lm pull request 1642).
      const auto text = file.meta().info.find(layer);
      if (text != file.meta().info.end() && !text->second.empty()) {
        auto kind = mlx_class(caches.list.back());
        if (!kind) return in_context("layer " + layer, std::move(kind).error());
        return unsupported(
            fmt::format("layer {}: the text {} in the metadata of a {}: as no version of mlx-lm or "
                        "mlx-swift-lm that is known writes it",
                        i, printable_name(text->second), class_name));
      }
    }
    if (std::ssize(caches.list) > cache::kMaxLayers) {
      return too_large(fmt::format("more than {} layers", cache::kMaxLayers));
    }
  }
  if (file.layout() == MlxLayout::kScalars) {
    caches.writer = "mlx-lm 0.32.0 or later";
    return caches;
  }
  TQC_TRY_ASSIGN(writers, name_all_numbers(caches.list, writers));
  caches.writer = writers_words(writers);
  caches.noted_tokens = noted_tokens(file.meta());
  return caches;
}

Result<std::optional<std::int64_t>> tokens_seen(MlxFile& file, const MlxCache& cache,
                                                std::int64_t row) {
  TQC_TRY_ASSIGN(const MlxClass kind, mlx_class(cache));
  const bool has_scalars = file.layout() == MlxLayout::kScalars;
  switch (kind) {
    case MlxClass::kKv:
      return known(has_scalars ? state_number(file, cache, kOffset, 2) : rows_of(file, cache, row));
    case MlxClass::kConcatenate:
      return known(rows_of(file, cache, row));
    case MlxClass::kQuantized:
    case MlxClass::kRotating:
      return known(state_number(file, cache, kOffset, 2));
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
