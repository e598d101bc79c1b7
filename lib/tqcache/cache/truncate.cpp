#include <string>
#include <utility>

#include "tqcache/cache.h"
#include "tqcache/error.h"

namespace tqcache::cache {
namespace {

// A block that is cut becomes the dense tail; packed blocks before it stay.
void truncate_tensor(Tensor& tensor, std::int64_t n_tokens) {
  const std::int64_t n_whole = n_tokens / kTokenBlock;
  if (packed_block_count(tensor) <= n_whole) return remove_tail(tensor, n_tokens);
  auto& turbo = std::get<TurboTensor>(tensor);
  std::vector<AlignedBytes> tail;
  if (n_tokens % kTokenBlock != 0) {
    const ByteView packed = turbo.packed[static_cast<std::size_t>(n_whole)].bytes.view();
    tail.push_back(turbo.codec.decode_block(packed, n_whole, kTokenBlock));
  }
  turbo.packed.erase(turbo.packed.begin() + n_whole, turbo.packed.end());
  turbo.tail.blocks = std::move(tail);
}

Result<void> check_layer(const LayerDesc& layer, const std::string& name) {
  return std::visit(
      Overload{[](const AttentionDesc&) -> Result<void> { return {}; },
               [&](const WindowDesc&) -> Result<void> {
                 return unsupported(name + " keeps a sliding window, which cannot be cut shorter");
               },
               [&](const StateDesc&) -> Result<void> {
                 return unsupported(name + ": its state belongs to all of the tokens");
               }},
      layer);
}

template <class AnyCache>
bool has_hashes(const AnyCache& cache) {
  return cache.hidden_tokens && !cache.hidden_tokens->empty();
}

}  // namespace

Result<void> check_truncate(const CacheDesc& cache, std::int64_t n_tokens) {
  if (n_tokens < 0 || n_tokens > cache.n_tokens()) {
    return Error{ErrorCode::kInvalidArgument, std::to_string(n_tokens) + " tokens wanted of " +
                                                  std::to_string(cache.n_tokens())};
  }
  if (n_tokens == cache.n_tokens()) return {};
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    TQC_TRY(check_layer(cache.layers[i], "layer " + std::to_string(i)));
  }
  if (has_hashes(cache) && n_tokens % kTokenBlock != 0) {
    return unsupported("the tokens are hidden: they can be cut after a multiple of " +
                       std::to_string(kTokenBlock) + " tokens, not after " +
                       std::to_string(n_tokens));
  }
  return {};
}

Result<Cache> truncate(Cache cache, std::int64_t n_tokens) {
  TQC_TRY(check_truncate(describe(cache), n_tokens));
  if (n_tokens == cache.n_tokens()) return cache;
  for (Layer& layer : cache.layers) {
    AttentionLayer& attention = std::get<AttentionLayer>(layer);
    truncate_tensor(attention.k, n_tokens);
    truncate_tensor(attention.v, n_tokens);
  }
  cache.tokens.resize(static_cast<std::size_t>(n_tokens));
  cache.media = media_in(cache.media, 0, n_tokens);
  if (has_hashes(cache)) {
    cache.hidden_tokens->resize(static_cast<std::size_t>(block_count(n_tokens)));
  }
  return cache;
}

}  // namespace tqcache::cache
