#include "cli/v1_files.h"

#include <cstring>

#include "tqcache/bytes.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace {

using migrations::V1Entry;
using migrations::V1Tensor;

// [1, n_kv_heads, n_tokens, head_dim] of f16, from blocks of [n_kv_heads, 256, head_dim].
V1Tensor tensor(const std::string& name, const cache::Tensor& from, cache::HeadShape shape,
                std::int64_t n_tokens) {
  const auto& dense = std::get<cache::DenseTensor>(from);
  const auto row = static_cast<std::size_t>(shape.head_dim) * sizeof(std::uint16_t);
  V1Tensor tensor{name, V1Dtype::kF16, {}, {}};
  for (const std::int64_t size : {std::int64_t{1}, shape.n_kv_heads, n_tokens, shape.head_dim}) {
    tensor.shape.push_back(static_cast<std::uint64_t>(size));
  }
  tensor.data.resize(static_cast<std::size_t>(shape.n_kv_heads * n_tokens) * row);
  std::byte* to = tensor.data.data();
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
      const auto bytes = static_cast<std::size_t>(cache::tokens_in_block(n_tokens, block)) * row;
      const std::byte* const rows = dense.blocks[static_cast<std::size_t>(block)].data() +
                                    static_cast<std::size_t>(head * cache::kTokenBlock) * row;
      std::memcpy(to, rows, bytes);
      to += bytes;
    }
  }
  return tensor;
}

}  // namespace

std::string write_v1_twin(const std::string& file) {
  const cache::Cache cache = must(format::read_cache(*must(open_file(file))));
  migrations::V1File old;
  for (const cache::Layer& any : cache.layers) {
    const auto& layer = std::get<cache::AttentionLayer>(any);
    V1Entry entry{.class_path = "mlx_lm.models.cache.KVCache"};
    entry.state.push_back(tensor("keys", layer.k, layer.shape, cache.n_tokens()));
    entry.state.push_back(tensor("values", layer.v, layer.shape, cache.n_tokens()));
    old.entries.push_back(std::move(entry));
  }
  const cache::Identity& identity = cache.identity;
  const nlohmann::json rope = {
      {"style", "half_split"}, {"n_dims", identity.rope.n_dims}, {"base", identity.rope.base}};
  old.metadata = {{"architecture", identity.architecture},
                  {"weights_fingerprint", to_hex(identity.weights_fingerprint)},
                  {"tokenizer_fingerprint", to_hex(identity.tokenizer_fingerprint)},
                  {"rope", rope.dump()},
                  {"tokens", nlohmann::json(cache.tokens).dump()}};
  return write_v1_file(file + ".tqcache", old);
}

}  // namespace tqcache::test
