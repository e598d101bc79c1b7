#pragma once
// tests/support/scripted_reader.h: a reader whose description, blocks and bytes a test makes up.

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "tqcache/cache/blocks.h"
#include "tqcache/reader.h"

namespace tqcache::test {

class ScriptedReader : public cache::CacheReader {
 public:
  using Read = std::function<Result<void>(std::size_t block, AlignedBytes& raw)>;

  ScriptedReader(cache::CacheDesc description, std::vector<cache::BlockInfo> blocks, Read read)
      : description_(std::move(description)), blocks_(std::move(blocks)), read_(std::move(read)) {}
  // With the blocks of another reader.
  ScriptedReader(const cache::CacheReader& like, Read read)
      : ScriptedReader(like.description(), like.blocks(), std::move(read)) {}
  // With the dense blocks that the description implies.
  ScriptedReader(cache::CacheDesc description, Read read)
      : description_(std::move(description)), read_(std::move(read)) {
    for (const cache::BlockKey& key :
         cache::plan_blocks(description_.layers, description_.n_tokens())) {
      blocks_.push_back(cache::make_block(description_, key, /*packed=*/false));
    }
  }

  const cache::CacheDesc& description() const override { return description_; }
  const std::vector<cache::BlockInfo>& blocks() const override { return blocks_; }
  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    return read_(block, raw);
  }

 private:
  cache::CacheDesc description_;
  std::vector<cache::BlockInfo> blocks_;
  Read read_;
};

}  // namespace tqcache::test
