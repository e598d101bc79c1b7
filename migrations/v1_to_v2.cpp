#include "migrations/v1_to_v2.h"

#include <string>
#include <utility>

#include "migrations/v1_classes.h"
#include "migrations/v1_facts.h"
#include "migrations/v1_layers.h"

namespace tqcache::migrations {
namespace {

std::string layer_name(std::size_t i) { return "layer " + std::to_string(i); }

Result<MigratedLayer> migrate_layer(const V1Entry& entry, std::string_view place,
                                    Context& context) {
  TQC_TRY_ASSIGN(const V1Class kind, class_of(entry.class_path));
  if (kind != V1Class::kTurbo && !(entry.extra_state.empty() && entry.extra_meta.empty())) {
    return Error{ErrorCode::kCorrupt, "extra_state of a class that has none"};
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

// Layers that say how many tokens they have seen have to agree with each other, and with the ids.
class TokenCount {
 public:
  explicit TokenCount(const std::optional<std::vector<std::int32_t>>& tokens) {
    if (tokens) count_ = static_cast<std::int64_t>(tokens->size());
  }

  Result<void> add(std::optional<std::int64_t> n_tokens) {
    if (!n_tokens) return {};
    if (count_ == kUnknown) count_ = *n_tokens;
    if (count_ == *n_tokens) return {};
    return Error{ErrorCode::kCorrupt,
                 std::to_string(*n_tokens) + " tokens where " + std::to_string(count_) + " belong"};
  }

  Result<std::int64_t> get() const {
    if (count_ != kUnknown) return count_;
    return Error{ErrorCode::kUnsupported, "nothing says how many tokens the cache holds"};
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

Result<Migration> v1_to_v2(const V1File& file, const V1ToV2Options& options) {
  TQC_TRY_ASSIGN(V1Facts facts, read_facts(file.metadata));
  Context context{.codecs = {}, .notes = {}, .bytes_left = options.max_cache_bytes};
  if (facts.is_origin_partial) {
    context.notes.push_back("architecture or fingerprints missing; origin unknown");
  }
  Migration migration;
  migration.cache.identity = std::move(facts.identity);
  TokenCount n_tokens(facts.tokens);
  for (std::size_t i = 0; i < file.entries.size(); ++i) {
    const std::string place = layer_name(i);
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
