#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <type_traits>

#include "tqcache/cuda/attention_args.cuh"
#include "tqcache/cuda/attention_parts.cuh"
#include "tqcache/cuda/check.cuh"
#include "tqcache/cuda/codec_tables.h"
#include "tqcache/cuda/cuda_attention.h"
#include "tqcache/cuda/sinusoids.h"

namespace tqcache::cuda {
namespace {

const Choice* find_choice(int head_dim, int key_bits, int value_bits) {
  for (const auto choices :
       {choices_of_64(), choices_of_96(), choices_of_128(), choices_of_256(), dense_choices_of_64(),
        dense_choices_of_128(), dense_choices_of_256()}) {
    for (const Choice& one : choices) {
      if (one.head_dim == head_dim && one.key_bits == key_bits && one.value_bits == value_bits) {
        return &one;
      }
    }
  }
  return nullptr;
}

// What is asked for once for each device.
struct Device {
  std::once_flag once;
  cudaError_t error = cudaSuccess;
  int multiprocessors = 0;
  int shared = 0;        // bytes that a block may have
  int architecture = 0;  // compute capability that its code was compiled for: 80 for 8.0
};
constexpr int kMaxDevices = 64;

Result<int> current_device() {
  int device = 0;
  TQC_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
  if (device >= kMaxDevices) return unsupported("device " + std::to_string(device));
  return device;
}

Result<const Device*> find_device() {
  static Device devices[kMaxDevices];
  TQC_TRY_ASSIGN(const int number, current_device());
  Device& device = devices[number];
  std::call_once(device.once, [&] {
    device.error =
        cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, number);
    if (device.error != cudaSuccess) return;
    device.error =
        cudaDeviceGetAttribute(&device.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
    if (device.error != cudaSuccess) return;
    // Not the GPU's: a newer GPU runs code for an older one, which is laid out for that one.
    cudaFuncAttributes attributes = {};
    device.error = cudaFuncGetAttributes(&attributes, attend_dense<64>);
    device.architecture = attributes.ptxVersion;
  });
  TQC_TRY(check(device.error, "attention: attributes of the GPU and its kernels"));
  return &device;
}

// Calls `body` with the head_dim of a choice as a constant.
template <class Body>
Result<void> with_dim(int head_dim, const Body& body) {
  switch (head_dim) {
    case 64:
      return body(std::integral_constant<int, 64>());
    case 96:
      return body(std::integral_constant<int, 96>());
    case 128:
      return body(std::integral_constant<int, 128>());
    default:
      return body(std::integral_constant<int, 256>());
  }
}

// Kernels that follow one with much shared memory start sooner if they do not change its size.
template <int kDim>
Result<void> keep_shared_size() {
  for (const Kernel kernel : {attend_dense<kDim>, join_splits<kDim>}) {
    TQC_TRY(check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared),
                  "cudaFuncSetAttribute"));
  }
  return {};
}

// Once for each kernel and device.
Result<void> allow_shared(const Choice& choice, int size) {
  TQC_TRY_ASSIGN(const int number, current_device());
  const std::uint64_t bit = std::uint64_t{1} << number;
  if ((choice.allowed->load(std::memory_order_relaxed) & bit) != 0) return {};
  for (const Choice::Variant& variant : choice.variants) {
    TQC_TRY(check(cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       variant.launches[size].shared),
                  "cudaFuncSetAttribute"));
  }
  TQC_TRY(with_dim(choice.head_dim, [](auto dim) { return keep_shared_size<dim>(); }));
  choice.allowed->fetch_or(bit, std::memory_order_relaxed);
  return {};
}

bool has_kernel(const CodecTables& tables, int head_dim) {
  const PartTables& part = tables.part0;
  return tables.n_parts == 1 && !part.has_bias && tables.head_dim == head_dim &&
         (part.transform == codec::TransformKind::kHadamard ||
          part.transform == codec::TransformKind::kNone);
}

Result<TensorArgs> tensor_args(const AttentionPages& pages, const AttentionStep& step,
                               bool is_values) {
  if (pages.page_bytes < 0 || pages.page_bytes > INT32_MAX) {
    return invalid("attention: bytes of a page");
  }
  TensorArgs tensor;
  tensor.data = reinterpret_cast<const std::uint8_t*>(pages.data);
  tensor.page_bytes = pages.page_bytes;
  tensor.table = pages.page_table;
  if (pages.codec == nullptr) {
    if (is_values) return unsupported("dense values");
    return tensor;
  }
  const CodecTables& tables = pages.codec->tables();
  if (!has_kernel(tables, step.head_dim) || tables.is_values != is_values) {
    return unsupported("attention: a codec other than mse of head_dim " +
                       std::to_string(step.head_dim));
  }
  const bool turns = pages.center.mean != nullptr && pages.center.n_pairs != 0;
  if (turns && is_values) return unsupported("attention: a mean of values that turns with RoPE");
  tensor.centroids = tables.part0.centroids;
  tensor.signs = tables.part0.signs;
  tensor.cas = tables.part0.cas;
  tensor.rounds =
      tables.part0.transform == codec::TransformKind::kHadamard ? tables.part0.rounds : 0;
  tensor.code_bytes = tables.code_bytes;
  tensor.scales_at = tables.code_bytes * step.n_kv_heads;
  tensor.row_bytes = tables.n_scale_rows * kPageTokens * 2;
  tensor.mean = pages.center.mean;
  tensor.first_still = turns ? 2 * pages.center.n_pairs : 0;
  if (pages.center.inverses != nullptr && is_values) {
    return unsupported("attention: factors of values");
  }
  tensor.inverses = pages.center.inverses;
  return tensor;
}

// n_steps is 0 unless the keys' mean rotates.
Result<SinusoidArgs> sinusoid_args(const AttentionStep& step) {
  SinusoidArgs args;
  const Centering& center = step.keys.center;
  if (step.keys.codec == nullptr || center.mean == nullptr || center.n_pairs == 0) return args;
  if (step.keys.sinusoids == nullptr)
    return invalid("attention: no sinusoids of a mean that turns");
  const SinusoidTables& tables = step.keys.sinusoids->tables();
  if (tables.n_pairs != center.n_pairs || 2 * center.n_pairs > step.head_dim) {
    return invalid("attention: sinusoids of other pairs than the mean's");
  }
  args.n_steps = tables.n_steps;
  args.n_pairs = tables.n_pairs;
  args.n_fast = tables.n_fast;
  args.turns = tables.turns;
  args.joins = tables.joins;
  args.rows = tables.rows;
  return args;
}

// The number of blocks of threads. A block that takes tiles of two heads has to join its sums and
// begin again with empty buffers, which takes as long as a tenth of 131,072 tokens, and the others
// wait for it. So with equal sequences each head has its own blocks, or each block whole heads, if
// that leaves at most an eighth of the multiprocessors idle.
int count_ctas(std::int64_t n_segments, int multiprocessors) {
  const std::int64_t most = multiprocessors, per_cta = (n_segments + most - 1) / most;
  const std::int64_t even =
      n_segments <= most ? most / n_segments * n_segments : (n_segments + per_cta - 1) / per_cta;
  return 8 * even >= 7 * most ? static_cast<int>(even) : multiprocessors;
}

std::string capability(int architecture) {
  return std::to_string(architecture / 10) + "." + std::to_string(architecture % 10);
}

struct Plan {
  AttendArgs args;
  const Choice* choice = nullptr;
  Kernel kernel = nullptr;
  int memory_size = 0;  // of kMemorySizes
  Choice::Launch launch = {};
  std::size_t split_bytes = 0;
  std::size_t dense_bytes = 0;
  std::size_t factor_bytes = 0;
};

Result<Plan> make_plan(const AttentionStep& step) {
  if (step.n_sequences < 1 || step.n_kv_heads < 1 || step.n_query_heads < 1 ||
      step.n_query_heads % step.n_kv_heads != 0 || step.max_blocks < 0) {
    return invalid("attention: numbers of sequences, heads or blocks");
  }
  if (step.n_sequences > kMaxSequences) {
    return unsupported("attention: more than " + std::to_string(kMaxSequences) + " sequences");
  }
  const std::int64_t most_tiles =
      (std::int64_t{step.max_blocks} * kBlockTiles + 1) * step.n_sequences * step.n_query_heads;
  if (most_tiles >= std::int64_t{1} << 30) return unsupported("attention: so many tokens");
  Plan plan;
  AttendArgs& p = plan.args;
  TQC_TRY_ASSIGN(p.k, tensor_args(step.keys, step, false));
  TQC_TRY_ASSIGN(p.v, tensor_args(step.values, step, true));
  TQC_TRY_ASSIGN(p.sinusoids, sinusoid_args(step));
  p.head_dim = step.head_dim;
  const int key_bits =
      step.keys.codec == nullptr ? kDenseBits : step.keys.codec->tables().part0.bits;
  const int value_bits = step.values.codec->tables().part0.bits;
  plan.choice = find_choice(step.head_dim, key_bits, value_bits);
  if (plan.choice == nullptr) {
    return unsupported("attention: head_dim " + std::to_string(step.head_dim) + " with keys of " +
                       std::to_string(key_bits) + " and values of " + std::to_string(value_bits) +
                       " bits");
  }
  p.n_sequences = step.n_sequences;
  p.n_query_heads = step.n_query_heads;
  p.n_kv_heads = step.n_kv_heads;
  p.group = step.n_query_heads / step.n_kv_heads;
  p.n_columns = (p.group + kColumns - 1) / kColumns;
  p.max_blocks = step.max_blocks;
  p.sinusoids.block_bytes = static_cast<unsigned>(p.n_kv_heads * p.n_columns * p.sinusoids.n_steps *
                                                  32 * static_cast<int>(sizeof(uint2)));
  p.scale = step.scale * 1.44269504088896341f;
  p.dtype = step.dtype;
  p.queries = step.queries;
  p.output = step.output;
  p.n_packed = step.n_packed;
  p.n_sinks = step.n_sinks;
  p.sink_dtype = step.sink_dtype;
  p.tail = step.tail;
  p.n_tail_chunks = (step.tail.capacity + kDenseChunk - 1) / kDenseChunk;
  p.n_dense_chunks = p.n_tail_chunks + (step.n_sinks + kDenseChunk - 1) / kDenseChunk;
  TQC_TRY_ASSIGN(const Device* const device, find_device());
  plan.memory_size = memory_size_of(device->architecture);
  const bool turns = p.sinusoids.n_steps != 0 && p.max_blocks > 0;
  const Choice::Variant& variant = plan.choice->variants[turns ? 1 : 0];
  plan.kernel = variant.kernel;
  plan.launch = variant.launches[plan.memory_size];
  if (plan.launch.shared > device->shared) {
    return unsupported("attention was compiled for compute capability " +
                       capability(device->architecture) + " and takes " +
                       std::to_string(plan.launch.shared) +
                       " bytes of shared memory, of which this GPU has " +
                       std::to_string(device->shared) + ": compile it for this GPU");
  }
  p.n_ctas = count_ctas(std::int64_t{step.n_sequences} * p.n_kv_heads * p.n_columns,
                        device->multiprocessors);
  p.can_overlap = device->architecture >= 90;  // as wait_for_previous_kernel() is compiled
  const std::size_t split = static_cast<std::size_t>(split_floats(step.head_dim)) * sizeof(float);
  const std::size_t segments = static_cast<std::size_t>(step.n_sequences) *
                               static_cast<std::size_t>(p.n_kv_heads) *
                               static_cast<std::size_t>(p.n_columns);
  plan.split_bytes = (segments + static_cast<std::size_t>(p.n_ctas)) * split;
  plan.dense_bytes = segments * static_cast<std::size_t>(p.n_dense_chunks) * split;
  plan.factor_bytes = segments * static_cast<std::size_t>(step.max_blocks) *
                      static_cast<std::size_t>(p.sinusoids.n_steps) * 32 * sizeof(uint2);
  return plan;
}

// A kernel that may start before the one before it in the stream is done.
Result<void> launch_behind(Kernel kernel, const AttendArgs& p, dim3 grid, dim3 block,
                           std::size_t shared, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = p.can_overlap ? 1 : 0;
  return check(cudaLaunchKernelEx(&config, kernel, p), "attention");
}

template <int kDim>
Result<void> launch_rest(const AttendArgs& p, cudaStream_t stream) {
  if (p.n_dense_chunks > 0) {
    const dim3 grid(static_cast<unsigned>(p.n_dense_chunks),
                    static_cast<unsigned>(p.n_kv_heads * p.n_columns),
                    static_cast<unsigned>(p.n_sequences));
    TQC_TRY(launch_behind(attend_dense<kDim>, p, grid, 128, 0, stream));
  }
  const dim3 grid(static_cast<unsigned>(p.n_query_heads), static_cast<unsigned>(p.n_sequences));
  // With few heads, many threads share the splits of one.
  const int blocks = p.n_query_heads * p.n_sequences;
  const int wanted = 2 * blocks <= p.n_ctas ? kMostJoinRows : blocks <= 2 * p.n_ctas ? 4 : 1;
  const auto rows = static_cast<unsigned>(std::min(wanted, 1024 / kDim));
  return launch_behind(join_splits<kDim>, p, grid, dim3(kDim, rows), 0, stream);
}

}  // namespace

Result<int> attention_architecture() {
  TQC_TRY_ASSIGN(const Device* const device, find_device());
  return device->architecture;
}

Result<DeviceInfo> describe_device() {
  DeviceInfo info;
  int n = 0, device = 0;
  TQC_TRY(check(cudaDriverGetVersion(&info.driver), "cudaDriverGetVersion"));
  TQC_TRY(check(cudaRuntimeGetVersion(&info.runtime), "cudaRuntimeGetVersion"));
  if (info.driver == 0) return unsupported("no driver for NVIDIA GPUs");
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) return unsupported("no NVIDIA GPU");
  TQC_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
  cudaDeviceProp properties = {};
  TQC_TRY(check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  info.name = properties.name;
  info.capability = 10 * properties.major + properties.minor;
  const auto code = attention_architecture();
  if (!code) {
    return unsupported(info.name + " of compute capability " + capability(info.capability) +
                       ": no kernel runs on it (" + code.error().message + ")");
  }
  info.code = *code;
  return info;
}

Result<std::size_t> attention_workspace_bytes(const AttentionStep& step) {
  TQC_TRY_ASSIGN(const Plan plan, make_plan(step));
  return plan.split_bytes + plan.dense_bytes + plan.factor_bytes;
}

Result<void> attend(const AttentionStep& step, void* workspace, Stream stream) {
  TQC_TRY_ASSIGN(Plan plan, make_plan(step));
  AttendArgs& p = plan.args;
  p.splits = static_cast<float*>(workspace);
  p.dense_splits = p.splits + plan.split_bytes / sizeof(float);
  TQC_TRY(allow_shared(*plan.choice, plan.memory_size));
  const auto threads = static_cast<unsigned>(plan.launch.threads);
  const auto ctas = static_cast<unsigned>(p.n_ctas);
  const auto shared = static_cast<std::size_t>(plan.launch.shared);
  if (p.sinusoids.n_steps != 0 && p.max_blocks > 0) {
    p.sinusoids.factors =
        reinterpret_cast<uint2*>(p.dense_splits + plan.dense_bytes / sizeof(float));
    const int n_heads = p.n_kv_heads * p.n_columns;
    const int per_block = kFactorWarps * factor_heads(p.group);
    const dim3 grid(static_cast<unsigned>((p.max_blocks + kFactorBlocks - 1) / kFactorBlocks),
                    static_cast<unsigned>((n_heads + per_block - 1) / per_block),
                    static_cast<unsigned>(p.n_sequences));
    TQC_TRY(with_dim(step.head_dim, [&](auto dim) {
      make_factors<dim><<<grid, kFactorThreads, 0, stream>>>(p);
      return check_launch("make_factors");
    }));
    TQC_TRY(launch_behind(plan.kernel, p, ctas, threads, shared, stream));
  } else {
    plan.kernel<<<ctas, threads, shared, stream>>>(p);
    TQC_TRY(check_launch("attend_packed"));
  }
  return with_dim(step.head_dim, [&](auto dim) { return launch_rest<dim>(p, stream); });
}

}  // namespace tqcache::cuda
