#pragma once
// interop/head_rows.h: keys, values and arrays that stand whole in a foreign file, and how a token
// block of them is read. Safe for untrusted input.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/interop/foreign_cache.h"

namespace tqcache::interop {

// What [n_kv_heads, n_rows, head_dim] says of the heads, in a file whose side has `n_rows` rows.
//
// Errors: kCorrupt (another number of dimensions or of rows), kTooLarge.
Result<cache::HeadShape> head_shape_of(std::span<const std::uint64_t> shape, std::int64_t n_rows);

// Fills `out` from byte `offset` of a tensor on.
using ReadTensor = std::function<Result<void>(std::uint64_t offset, std::span<std::byte> out)>;

// The tensor that begins at byte `begin` of a file.
ReadTensor tensor_at(std::shared_ptr<const ByteSource> file, std::uint64_t begin);

// Rows of a tensor [n_kv_heads, n_tokens, head_dim].
// Requires: it has as many bytes as that takes.
ReadRows rows_of(ReadTensor tensor, cache::HeadShape shape, std::int64_t n_tokens,
                 std::size_t value_bytes);

}  // namespace tqcache::interop
