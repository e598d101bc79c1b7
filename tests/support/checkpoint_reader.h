#pragma once
// tests/support/checkpoint_reader.h: a cache with context checkpoints.

#include <cstdint>
#include <memory>
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
