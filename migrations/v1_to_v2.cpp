
#include "migrations/v1_to_v2.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "migrations/v1_layers.h"
#include "migrations/v1_metadata.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::migrations {

namespace {

// Where each class was defined at some time; kPaths and kClasses have the same order. mlx-lm kept
// its caches in models/base.py, and Mamba's beside the model, until October 2024.
constexpr std::array<std::string_view, 9> kPaths = {
    "turbomlx.mlx_runtime.cache.TurboQuantKVCache",
    "mlx_lm.models.cache.KVCache",
    "mlx_lm.models.base.KVCache",
    "mlx_lm.models.cache.QuantizedKVCache",
    "mlx_lm.models.cache.RotatingKVCache",
    "mlx_lm.models.base.RotatingKVCache",
    "mlx_lm.models.cache.ArraysCache",
    "mlx_lm.models.cache.MambaCache",
    "mlx_lm.models.mamba.MambaCache",
};
constexpr std::array<V1Class, kPaths.size()> kClasses = {
    V1Class::kTurbo,    V1Class::kDense,  V1Class::kDense,  V1Class::kQuantized, V1Class::kRotating,
    V1Class::kRotating, V1Class::kArrays, V1Class::kArrays, V1Class::kArrays,
};

}  // namespace

std::span<const std::string_view> known_class_paths() { return kPaths; }

Result<V1Class> class_of(std::string_view class_path) {
  const auto found = std::ranges::find(kPaths, class_path);
  if (found != kPaths.end()) return kClasses[static_cast<std::size_t>(found - kPaths.begin())];
  return unsupported("class " + tensors::printable_name(class_path) + ": not known");
}

namespace {

Result<MigratedLayer> migrate_layer(const V1Entry& entry, std::string_view place,
                                    MigrationContext& context) {
  TQC_TRY_ASSIGN(const V1Class kind, class_of(entry.class_path));
  if (kind != V1Class::kTurbo && !(entry.extra_state.empty() && entry.extra_meta.empty())) {
    return corrupt("extra_state of a class that has none");
  }
  switch (kind) {
    case V1Class::kTurbo:
      return turbo_layer(entry, place, context);
    case V1Class::kDense:
      return dense_layer(entry, context);
    case V1Class::kQuantized:
      return quantized_layer(entry, place, context);
    case V1Class::kRotating:
      return rotating_layer(entry, context);
    case V1Class::kArrays:
      break;
  }
  return arrays_layer(entry, context);
}

// Layers that store how many tokens they have seen must agree with each other, and with the ids.
class TokenCount {
 public:
  explicit TokenCount(const std::optional<std::vector<std::int32_t>>& tokens) {
    if (tokens) count_ = static_cast<std::int64_t>(tokens->size());
  }

  Result<void> add(std::optional<std::int64_t> n_tokens) {
    if (!n_tokens) return {};
    if (count_ == kUnknown) count_ = *n_tokens;
    if (count_ == *n_tokens) return {};
    return corrupt(fmt::format("{} tokens where {} belong", *n_tokens, count_));
  }

  Result<std::int64_t> get() const {
    if (count_ != kUnknown) return count_;
    return unsupported("nothing says how many tokens the cache holds");
  }

 private:
  static constexpr std::int64_t kUnknown = -1;
  std::int64_t count_ = kUnknown;
};

void set_tokens(std::optional<std::vector<std::int32_t>> tokens, std::int64_t n_tokens,
                cache::Cache& cache) {
  if (tokens) {
    cache.tokens = std::move(*tokens);
    return;
  }
  cache.tokens.assign(static_cast<std::size_t>(n_tokens), cache::kUnknownToken);
  cache.hidden_tokens.emplace();
}

}  // namespace

Result<Migration> v1_to_v2(const V1File& file, const MemoryBudget& memory) {
  TQC_TRY_ASSIGN(V1Metadata facts, read_metadata(file.metadata));
  MigrationContext context{.codecs = {}, .notes = {}, .bytes_left = memory.bytes()};
  if (facts.is_origin_partial) {
    context.notes.push_back("architecture or fingerprints missing; origin unknown");
  }
  Migration migration;
  migration.cache.identity = std::move(facts.identity);
  TokenCount n_tokens(facts.tokens);
  for (std::size_t i = 0; i < file.entries.size(); ++i) {
    const std::string place = "layer " + std::to_string(i);
    auto layer = migrate_layer(file.entries[i], place, context);
    if (!layer) return in_context(place, std::move(layer).error());
    if (auto same = n_tokens.add(layer->n_tokens); !same) {
      return in_context(place, std::move(same).error());
    }
    migration.cache.layers.push_back(std::move(layer->layer));
  }
  TQC_TRY_ASSIGN(const std::int64_t count, n_tokens.get());
  set_tokens(std::move(facts.tokens), count, migration.cache);
  TQC_TRY(cache::validate(migration.cache));
  migration.notes = std::move(context.notes);
  return migration;
}

}  // namespace tqcache::migrations
