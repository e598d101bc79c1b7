#pragma once
// tests/support/checkpoint_reader.h: a cache with context checkpoints.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/reader.h"

namespace tqcache::test {

// What a cache of as many tokens would keep of `cache`: the layers that cannot go back.
inline cache::Checkpoint checkpoint_of(cache::Cache cache, std::int64_t first_position = 0) {
  std::erase_if(cache.layers, [](const cache::Layer& layer) {
    return std::holds_alternative<cache::AttentionLayer>(layer);
  });
  cache.tokens.assign(cache.tokens.size(), cache::kUnknownToken);
  cache.hidden_tokens.emplace();
  return {cache::reader_of(std::make_shared<const cache::Cache>(std::move(cache))), first_position};
}

// The same with an opaque layer of words behind its layers.
class WithOpaqueLayer : public cache::CacheReader {
 public:
  // `words`: number of them in each array.
  WithOpaqueLayer(std::shared_ptr<const cache::CacheReader> source,
                  const std::vector<std::uint64_t>& words)
      : source_(std::move(source)),
        description_(source_->description()),
        blocks_(source_->blocks()) {
    const auto layer = static_cast<std::int64_t>(description_.layers.size());
    cache::StateDesc opaque{{}, true};
    for (const std::uint64_t n : words) {
      blocks_.push_back({layer, cache::TensorKind::kArray,
                         static_cast<std::int64_t>(opaque.arrays.size()), false, 4 * n, 0});
      opaque.arrays.push_back({"opaque." + std::to_string(n), Dtype::kF32, {n}});
    }
    description_.layers.emplace_back(std::move(opaque));
  }

  const cache::CacheDesc& description() const override { return description_; }
  const std::vector<cache::BlockInfo>& blocks() const override { return blocks_; }
  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    if (block < source_->blocks().size()) return source_->read(block, raw);
    raw.assign(blocks_[block].raw_bytes, static_cast<std::byte>(0xa0 + block));
    return {};
  }

 private:
  std::shared_ptr<const cache::CacheReader> source_;
  cache::CacheDesc description_;
  std::vector<cache::BlockInfo> blocks_;
};

class CheckpointReader : public cache::CacheReader {
 public:
  CheckpointReader(cache::Cache cache, std::vector<cache::Checkpoint> checkpoints)
      : source_(cache::reader_of(std::make_shared<const cache::Cache>(std::move(cache)))),
        checkpoints_(std::move(checkpoints)) {}

  const cache::CacheDesc& description() const override { return source_->description(); }
  const std::vector<cache::BlockInfo>& blocks() const override { return source_->blocks(); }
  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    return source_->read(block, raw);
  }
  std::span<const cache::Checkpoint> checkpoints() const override { return checkpoints_; }

 private:
  std::shared_ptr<const cache::CacheReader> source_;
  std::vector<cache::Checkpoint> checkpoints_;
};

}  // namespace tqcache::test
