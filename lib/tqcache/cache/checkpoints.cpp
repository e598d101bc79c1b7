// Context checkpoints: their rules, and the view of a cache at one of them.

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/reader.h"

namespace tqcache::cache {
namespace {

Result<void> check_counts(const CacheDesc& cache, const CheckpointDesc& checkpoint,
                          std::int64_t previous) {
  if (checkpoint.n_tokens < 1 || checkpoint.n_tokens > cache.n_tokens()) {
    return corrupt("at " + std::to_string(checkpoint.n_tokens) + " tokens of " +
                   std::to_string(cache.n_tokens()));
  }
  if (checkpoint.n_tokens <= previous) {
    return corrupt("at " + std::to_string(checkpoint.n_tokens) + " tokens, after one at " +
                   std::to_string(previous));
  }
  if (checkpoint.first_position < 0 || checkpoint.first_position >= checkpoint.n_tokens) {
    return corrupt("first position " + std::to_string(checkpoint.first_position) + " of " +
                   std::to_string(checkpoint.n_tokens) + " tokens");
  }
  return {};
}

// Requires: `of_cache` cannot go back.
Result<void> check_kind(const LayerDesc& of_cache, const LayerDesc& of_checkpoint) {
  if (const auto* window = std::get_if<WindowDesc>(&of_cache)) {
    const auto* other = std::get_if<WindowDesc>(&of_checkpoint);
    const bool is_same = other != nullptr && other->window == window->window &&
                         same_shapes(other->attention, window->attention);
    return is_same ? Result<void>() : corrupt("not the sliding window of the cache");
  }
  const auto* other = std::get_if<StateDesc>(&of_checkpoint);
  const bool is_same = other != nullptr && !other->is_opaque &&
                       other->arrays == std::get<StateDesc>(of_cache).arrays;
  return is_same ? Result<void>() : corrupt("not the recurrent state of the cache");
}

Result<void> check_layers(const CacheDesc& cache, const std::vector<std::size_t>& numbers,
                          const CheckpointDesc& checkpoint) {
  const std::size_t n_opaque = opaque_layer(checkpoint.layers) != nullptr ? 1 : 0;
  if (checkpoint.layers.size() - n_opaque != numbers.size()) {
    return corrupt(std::to_string(checkpoint.layers.size()) + " layers, the cache has " +
                   std::to_string(numbers.size()) + " that cannot go back");
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    auto checked = check_kind(cache.layers[numbers[i]], checkpoint.layers[i]);
    if (!checked) return in_context("layer " + std::to_string(i), std::move(checked).error());
  }
  return validate_layers(checkpoint.layers, cache.identity.rope, checkpoint.n_tokens);
}

// Some layers of another reader, without its checkpoints.
class SomeLayers : public CacheReader {
 public:
  SomeLayers(std::shared_ptr<const CacheReader> source, const std::vector<std::size_t>& layers)
      : source_(std::move(source)), description_(source_->description()) {
    description_.layers.clear();
    for (const std::size_t layer : layers) {
      description_.layers.push_back(source_->description().layers[layer]);
    }
    const BlockIndex index(source_->blocks());
    for (const BlockKey& key : plan_blocks(description_.layers, n_tokens())) {
      const auto layer = static_cast<std::int64_t>(layers[to_size(key.layer)]);
      origins_.push_back(index.at({layer, key.tensor, key.block}));
      blocks_.push_back(source_->blocks()[origins_.back()]);
      blocks_.back().layer = key.layer;
    }
  }

  const CacheDesc& description() const override { return description_; }
  const std::vector<BlockInfo>& blocks() const override { return blocks_; }
  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    return source_->read(origins_[block], raw);
  }
  Result<SharedBytes> share(std::size_t block) const override {
    return source_->share(origins_[block]);
  }
  Result<std::optional<StoredBlock>> stored(std::size_t block, const Room& room) const override {
    return source_->stored(origins_[block], room);
  }

 private:
  std::shared_ptr<const CacheReader> source_;
  CacheDesc description_;
  std::vector<BlockInfo> blocks_;
  std::vector<std::size_t> origins_;  // [n_blocks]: index in the source
};

// The layers of two readers of equally many tokens, as one cache.
class Joined : public CacheReader {
 public:
  struct Part {
    std::shared_ptr<const CacheReader> reader;
    std::vector<std::size_t> layers;  // their numbers in the joined cache
  };

  // Tokens and identity are those of the first part.
  Joined(Part first, Part second, std::vector<Checkpoint> checkpoints)
      : first_(std::move(first)),
        second_(std::move(second)),
        checkpoints_(std::move(checkpoints)),
        description_(first_.reader->description()) {
    description_.layers.assign(first_.layers.size() + second_.layers.size(), StateDesc{});
    std::vector<std::pair<const Part*, std::int64_t>> places(description_.layers.size());
    for (const Part* part : {&first_, &second_}) {
      for (std::size_t i = 0; i < part->layers.size(); ++i) {
        description_.layers[part->layers[i]] = part->reader->description().layers[i];
        places[part->layers[i]] = {part, static_cast<std::int64_t>(i)};
      }
    }
    const BlockIndex in_first(first_.reader->blocks()), in_second(second_.reader->blocks());
    for (const BlockKey& key : plan_blocks(description_.layers, n_tokens())) {
      const auto [part, layer] = places[to_size(key.layer)];
      const BlockIndex& index = part == &first_ ? in_first : in_second;
      const std::size_t origin = index.at({layer, key.tensor, key.block});
      origins_.emplace_back(part->reader.get(), origin);
      blocks_.push_back(part->reader->blocks()[origin]);
      blocks_.back().layer = key.layer;
    }
  }

  const CacheDesc& description() const override { return description_; }
  const std::vector<BlockInfo>& blocks() const override { return blocks_; }
  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    return origins_[block].first->read(origins_[block].second, raw);
  }
  Result<SharedBytes> share(std::size_t block) const override {
    return origins_[block].first->share(origins_[block].second);
  }
  Result<std::optional<StoredBlock>> stored(std::size_t block, const Room& room) const override {
    return origins_[block].first->stored(origins_[block].second, room);
  }
  std::span<const Checkpoint> checkpoints() const override { return checkpoints_; }

 private:
  Part first_, second_;
  std::vector<Checkpoint> checkpoints_;
  CacheDesc description_;
  std::vector<BlockInfo> blocks_;
  std::vector<std::pair<const CacheReader*, std::size_t>> origins_;  // [n_blocks]
};

class WithoutCheckpoints : public CacheReader {
 public:
  explicit WithoutCheckpoints(std::shared_ptr<const CacheReader> source)
      : source_(std::move(source)) {}

  const CacheDesc& description() const override { return source_->description(); }
  const std::vector<BlockInfo>& blocks() const override { return source_->blocks(); }
  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    return source_->read(block, raw);
  }
  Result<SharedBytes> share(std::size_t block) const override { return source_->share(block); }
  Result<std::optional<StoredBlock>> stored(std::size_t block, const Room& room) const override {
    return source_->stored(block, room);
  }
  std::optional<Prediction> prediction() const override { return source_->prediction(); }

 private:
  std::shared_ptr<const CacheReader> source_;
};

bool is_attention(const LayerDesc& layer) { return std::holds_alternative<AttentionDesc>(layer); }

}  // namespace

std::vector<std::size_t> checkpoint_layers(const std::vector<LayerDesc>& layers) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!is_attention(layers[i])) numbers.push_back(i);
  }
  return numbers;
}

const StateDesc* opaque_layer(const std::vector<LayerDesc>& layers) {
  const auto* last = layers.empty() ? nullptr : std::get_if<StateDesc>(&layers.back());
  return last != nullptr && last->is_opaque ? last : nullptr;
}

CacheDesc describe(const CacheDesc& cache, const CheckpointDesc& checkpoint) {
  CacheDesc description;
  description.identity = cache.identity;
  description.tokens.assign(to_size(checkpoint.n_tokens), kUnknownToken);
  description.hidden_tokens.emplace();
  description.layers = checkpoint.layers;
  return description;
}

CheckpointDesc describe(const Checkpoint& checkpoint) {
  const CacheDesc& state = checkpoint.state->description();
  return {state.n_tokens(), checkpoint.first_position, state.layers};
}

Result<void> validate_checkpoints(const CacheDesc& cache,
                                  std::span<const CheckpointDesc> checkpoints) {
  if (checkpoints.empty()) return {};
  if (checkpoints.size() > kMaxCheckpoints) {
    return too_large(std::to_string(checkpoints.size()) + " checkpoints");
  }
  const std::vector<std::size_t> numbers = checkpoint_layers(cache.layers);
  if (numbers.empty()) return corrupt("checkpoints of a cache whose layers can all go back");
  std::int64_t previous = 0, total = 0;
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    Result<void> checked = check_counts(cache, checkpoints[i], previous);
    if (checked) checked = check_layers(cache, numbers, checkpoints[i]);
    if (checked && checkpoints[i].layers.size() != checkpoints[0].layers.size()) {
      checked = corrupt("an opaque layer in some checkpoints alone");
    }
    if (!checked) return in_context(checkpoint_place(i), std::move(checked).error());
    previous = checkpoints[i].n_tokens;
    total += previous;
  }
  if (total <= kMaxCheckpointTokens) return {};
  return too_large("checkpoints of " + std::to_string(total) + " tokens together");
}

std::vector<BlockInfo> all_blocks(const CacheReader& reader) {
  std::vector<BlockInfo> blocks = reader.blocks();
  auto first_layer = std::ssize(reader.description().layers);
  for (const Checkpoint& checkpoint : reader.checkpoints()) {
    for (BlockInfo block : checkpoint.state->blocks()) {
      block.layer += first_layer;
      blocks.push_back(block);
    }
    first_layer += std::ssize(checkpoint.state->description().layers);
  }
  return blocks;
}

namespace {

// `of`(reader, block) for the reader that one of all_blocks() belongs to: the cache or a
// checkpoint.
template <class Function>
auto for_any(const CacheReader& reader, std::size_t block, Function of)
    -> decltype(of(reader, block)) {
  if (block < reader.blocks().size()) return of(reader, block);
  block -= reader.blocks().size();
  const auto checkpoints = reader.checkpoints();
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    const CacheReader& state = *checkpoints[i].state;
    if (block < state.blocks().size()) {
      auto result = of(state, block);
      if (result) return result;
      return in_context(checkpoint_place(i), std::move(result).error());
    }
    block -= state.blocks().size();
  }
  return invalid("no such block");
}

}  // namespace

Result<SharedBytes> share_any(const CacheReader& reader, std::size_t block) {
  return for_any(reader, block, [](const CacheReader& of, std::size_t i) { return of.share(i); });
}

Result<std::optional<StoredBlock>> stored_any(const CacheReader& reader, std::size_t block,
                                              const Room& room) {
  return for_any(reader, block,
                 [&](const CacheReader& of, std::size_t i) { return of.stored(i, room); });
}

std::shared_ptr<const CacheReader> some_layers(std::shared_ptr<const CacheReader> source,
                                               const std::vector<std::size_t>& layers) {
  return std::make_shared<const SomeLayers>(std::move(source), layers);
}

std::int64_t last_state_before(const CacheReader& cache, std::int64_t n_tokens) {
  const CacheDesc& description = cache.description();
  if (n_tokens >= cache.n_tokens()) return cache.n_tokens();
  if (std::ranges::all_of(description.layers, is_attention))
    return std::max<std::int64_t>(0, n_tokens);
  const bool has_hashes = description.hidden_tokens && !description.hidden_tokens->empty();
  std::int64_t last = 0;
  for (const Checkpoint& checkpoint : cache.checkpoints()) {
    const std::int64_t n = checkpoint.n_tokens();
    if (n <= n_tokens && (!has_hashes || n % kTokenBlock == 0)) last = n;
  }
  return last;
}

Result<std::shared_ptr<const CacheReader>> at_checkpoint(std::shared_ptr<const CacheReader> source,
                                                         std::size_t number) {
  const Checkpoint& checkpoint = source->checkpoints()[number];
  const std::vector<LayerDesc>& layers = source->description().layers;
  Joined::Part state{checkpoint.state, checkpoint_layers(layers)};
  if (opaque_layer(checkpoint.state->description().layers) != nullptr) {
    std::vector<std::size_t> of_cache(state.layers.size());
    std::iota(of_cache.begin(), of_cache.end(), std::size_t{0});
    state.reader = some_layers(checkpoint.state, of_cache);
  }
  Joined::Part attention;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (is_attention(layers[i])) attention.layers.push_back(i);
  }
  // Keeps the source alive, and with it its checkpoints.
  attention.reader = some_layers(source, attention.layers);
  TQC_TRY_ASSIGN(attention.reader,
                 first_tokens(std::move(attention.reader), checkpoint.n_tokens()));
  const auto earlier = source->checkpoints().first(number);
  return std::shared_ptr<const CacheReader>(
      std::make_shared<const Joined>(std::move(attention), std::move(state),
                                     std::vector<Checkpoint>(earlier.begin(), earlier.end())));
}

std::shared_ptr<const CacheReader> without_checkpoints(std::shared_ptr<const CacheReader> source) {
  if (source->checkpoints().empty()) return source;
  return std::make_shared<const WithoutCheckpoints>(std::move(source));
}

}  // namespace tqcache::cache
