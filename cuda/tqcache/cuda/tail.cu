#include "tqcache/cuda/check.cuh"
#include "tqcache/cuda/cuda_attention.h"

namespace tqcache::cuda {
namespace {

constexpr int kAppendThreads = 256;

bool is_row_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

// One block of threads for each sequence, so that it alone reads and changes the number of tokens.
// A row is row_chunks times 16 bytes; strides of `token` are in bytes.
__global__ void __launch_bounds__(kAppendThreads)
    append_token(const __grid_constant__ NewToken token, int row_chunks) {
  const int sequence = static_cast<int>(blockIdx.x);
  const int at = token.n_tokens[sequence];
  __syncthreads();
  if (at < 0 || at >= token.capacity) return;
  const auto copy = [&](const NewToken::Rows& rows, void* tail) {
    const auto* const from = static_cast<const std::uint8_t*>(rows.data) +
                             static_cast<long long>(sequence) * rows.sequence_stride;
    for (int i = static_cast<int>(threadIdx.x); i < token.n_kv_heads * row_chunks;
         i += kAppendThreads) {
      const int head = i / row_chunks, chunk = i % row_chunks;
      const long long row =
          (static_cast<long long>(sequence) * token.n_kv_heads + head) * token.capacity + at;
      static_cast<uint4*>(tail)[row * row_chunks + chunk] =
          reinterpret_cast<const uint4*>(from + head * rows.head_stride)[chunk];
    }
  };
  copy(token.keys, token.tail_keys);
  copy(token.values, token.tail_values);
  if (threadIdx.x == 0) token.n_tokens[sequence] = at + 1;
}

}  // namespace

Result<void> append(const NewToken& token, Stream stream) {
  if (token.n_sequences < 1 || token.n_kv_heads < 1 || token.head_dim < 1 || token.capacity < 1) {
    return invalid("append: numbers of sequences, heads, components or room");
  }
  const auto size = static_cast<std::int64_t>(dtype_size(token.dtype));
  NewToken in_bytes = token;
  bool fits = token.head_dim * size % 16 == 0 && is_row_aligned(token.tail_keys) &&
              is_row_aligned(token.tail_values);
  for (NewToken::Rows* const rows : {&in_bytes.keys, &in_bytes.values}) {
    rows->sequence_stride *= size;
    rows->head_stride *= size;
    fits = fits && is_row_aligned(rows->data) && rows->sequence_stride % 16 == 0 &&
           rows->head_stride % 16 == 0;
  }
  if (!fits) return invalid("append: rows, strides or tails that are no multiples of 16 bytes");
  append_token<<<static_cast<unsigned>(token.n_sequences), kAppendThreads, 0, stream>>>(
      in_bytes, static_cast<int>(token.head_dim * size / 16));
  return check_launch("append_token");
}

}  // namespace tqcache::cuda
