#pragma once
// cuda/cuda_attention.h: attention of one decode step on packed keys and values in GPU memory.
//
// Packed codes are never decoded to memory: keys are scored as R q against the centroids of their
// codes, values are summed as codes, and the sum is rotated back once. Sequences are split over
// tokens among all multiprocessors; a second kernel joins the splits.
//
// A mean that was subtracted from keys before RoPE comes back as a sum of sinusoids: one factor per
// query head, block and frequency, times a table that is the same for every block.
//
// Spec: docs/reference/codec.md §8 and §9. Source: arXiv 2307.08691 for the running maximum.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tqcache/bytes.h"
#include "tqcache/cuda/cuda_codec.h"
#include "tqcache/error.h"

namespace tqcache::cuda {

struct SinusoidTables;  // cuda/sinusoids.h

// The sinusoids of one RoPE over the tokens of a block, in the memory of the current device.
//
// A value: copies share the same memory, which is freed with the last of them. It has to live until
// the work that uses it is done.
class DeviceSinusoids {
 public:
  // Copies the tables and waits for the copy.
  // Shapes: turns [n_pairs]: full turns per token of each pair of components, in host memory.
  // Errors: kUnsupported for more than 128 pairs; kInvalidArgument for none, or turns that are not
  //         finite; kIo when the CUDA runtime reports an error.
  static Result<DeviceSinusoids> make(std::span<const double> turns);

  const SinusoidTables& tables() const { return *tables_; }

 private:
  explicit DeviceSinusoids(std::shared_ptr<const SinusoidTables> tables)
      : tables_(std::move(tables)) {}

  std::shared_ptr<const SinusoidTables> tables_;
};

// K or V of one layer of all sequences, in pages of 256 tokens.
struct AttentionPages {
  // Null: pages are dense f16, [n_kv_heads, 256, head_dim] (keys only).
  const DeviceCodec* codec = nullptr;
  const std::byte* data = nullptr;
  std::int64_t page_bytes = 0;
  const std::int32_t* page_table = nullptr;  // [n_sequences, max_blocks]; null: in this order
  // Of a mean that turns, `turns`, `cos` and `sin` are not used: `sinusoids` has them.
  Centering center = {};
  const DeviceSinusoids* sinusoids = nullptr;  // keys whose mean rotates: of its pairs
};

// Dense tokens behind the packed ones, [n_sequences, n_kv_heads, capacity, head_dim].
struct DenseTail {
  const void* keys = nullptr;
  const void* values = nullptr;
  Dtype dtype = Dtype::kF16;
  int capacity = 0;                        // 0: no tail
  const std::int32_t* n_tokens = nullptr;  // [n_sequences], each at most capacity
};

// A token of each sequence that is to be put behind its tail.
struct NewToken {
  // [n_sequences, n_kv_heads, head_dim]; components are contiguous, strides count elements.
  struct Rows {
    const void* data = nullptr;
    std::int64_t sequence_stride = 0;
    std::int64_t head_stride = 0;
  };
  int n_sequences = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  Rows keys;
  Rows values;
  void* tail_keys = nullptr;  // as DenseTail
  void* tail_values = nullptr;
  Dtype dtype = Dtype::kF16;  // of all of them
  int capacity = 0;
  std::int32_t* n_tokens = nullptr;  // [n_sequences]
};

// Copies the rows to place n_tokens[s] of each sequence's tail and counts one more. The numbers of
// tokens are read on the GPU, so that one captured graph serves all steps. A full tail stays as it
// is: attend() would not see the token, so the caller has to pack blocks in time.
//
// Errors: kInvalidArgument for rows, strides or tails that are no multiples of 16 bytes; kIo when
//         the launch fails.
Result<void> append(const NewToken& token, Stream stream);

struct AttentionStep {
  int n_sequences = 0;
  int n_query_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;    // 64, 96, 128 or 256
  int max_blocks = 0;  // packed blocks of a sequence, at most
  float scale = 0;     // of scores: usually 1 / sqrt(head_dim)

  const void* queries = nullptr;  // [n_sequences, n_query_heads, head_dim], after RoPE
  void* output = nullptr;         // likewise
  Dtype dtype = Dtype::kF16;      // of both

  const std::int32_t* n_packed = nullptr;  // [n_sequences]: tokens in packed pages
  int n_sinks = 0;                         // dense tokens at the end of each first page
  Dtype sink_dtype = Dtype::kF16;
  AttentionPages keys;
  AttentionPages values;
  DenseTail tail;
};

// The compute capability that attend()'s code for the current device was compiled for: 80 for 8.0.
// It may be less than the device's own. Errors: kIo when there is no code for the device.
Result<int> attention_architecture();

// The current device, for people who ask what was found.
struct DeviceInfo {
  std::string name;
  int capability = 0;  // 90 for 9.0
  int code = 0;        // attention_architecture()
  int driver = 0;      // the newest CUDA that the driver knows: 13020 for 13.2; 0: no driver
  int runtime = 0;     // the CUDA of this library, likewise
};

// Errors: kUnsupported where there is no driver or no GPU, and where no code fits the GPU; kIo for
//         other errors of the CUDA runtime.
Result<DeviceInfo> describe_device();

// Bytes of workspace that attend() needs. Errors: as attend().
Result<std::size_t> attention_workspace_bytes(const AttentionStep& step);

// output = softmax(scale * queries keys^T) values, over packed tokens and tail. A sequence without
// tokens gives zeros. Token i of a sequence has position i.
//
// Shapes: workspace [attention_workspace_bytes(step)], aligned to 16 bytes.
// Errors: kUnsupported for a head_dim or widths of codes that have no kernel, values whose mean
//         turns, or code for a GPU with more shared memory than this one has; kInvalidArgument for
//         arguments that do not fit; kIo when a launch fails.
// Bytes:  the same on every run; products of f16 numbers added in f32.
Result<void> attend(const AttentionStep& step, void* workspace, Stream stream);

}  // namespace tqcache::cuda
