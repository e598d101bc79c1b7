// Writes a small cache, and checks what became of it: what a program outside the tree can do.
//
// usage: small_cache write|check FILE

#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/file.h"
#include "tqcache/tqkv.h"

namespace {

using tqcache::Error;
using tqcache::ErrorCode;
using tqcache::Result;
using tqcache::cache::AttentionLayer;

constexpr tqcache::cache::HeadShape kShape{.n_kv_heads = 2, .head_dim = 64};
constexpr std::int64_t kTokens = 300;  // one whole token block, and a tail

void append_tokens(tqcache::cache::Tensor& tensor) {
  std::vector<float> row(static_cast<std::size_t>(kShape.n_kv_heads * kShape.head_dim));
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = std::sin(static_cast<float>(i) * 0.7F + static_cast<float>(token));
    }
    tqcache::cache::append(tensor, kShape, token, row);
  }
}

Result<void> write(const char* path) {
  const tqcache::cache::LayerPlan plan{.shape = kShape, .dtype = tqcache::Dtype::kF16};
  tqcache::cache::Identity identity;
  identity.architecture = "qwen3";
  identity.rope = {.n_dims = kShape.head_dim, .base = 10000};
  TQC_TRY_ASSIGN(auto cache, tqcache::cache::make_cache(std::move(identity), {&plan, 1}));
  auto& layer = std::get<AttentionLayer>(cache.layers.at(0));
  append_tokens(layer.k);
  append_tokens(layer.v);
  cache.tokens.assign(static_cast<std::size_t>(kTokens), 7);
  return tqcache::format::write_cache_file(cache, path, {});
}

Result<void> check(const char* path) {
  TQC_TRY_ASSIGN(const auto source, tqcache::open_file(path));
  TQC_TRY_ASSIGN(const auto cache, tqcache::format::read_cache(*source));
  const auto& layer = std::get<AttentionLayer>(cache.layers.at(0));
  const bool as_expected = cache.n_tokens() == kTokens &&
                           tqcache::cache::packed_block_count(layer.k) == 1 &&
                           tqcache::cache::packed_block_count(layer.v) == 1;
  if (!as_expected) return Error{ErrorCode::kMismatch, "not what the example was to make"};
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto done = std::string_view(argv[1]) == "write" ? write(argv[2]) : check(argv[2]);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
