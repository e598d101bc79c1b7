#include <exception>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "tqcache/codec/head_codec.h"
#include "tqcache/cuda/cuda_attention.h"
#include "tqcache/cuda/cuda_codec.h"
#include "tqcache/cuda/cuda_measure.h"
#include "tqcache/cuda/cuda_planes.h"
#include "tqcache/cuda/tqcache_cuda.h"

struct tqcache_cuda_codec {
  tqcache::cuda::DeviceCodec codec;
};
struct tqcache_cuda_sinusoids {
  tqcache::cuda::DeviceSinusoids sinusoids;
};

namespace tqcache::cuda {
namespace {

std::string& last_message() {
  thread_local std::string message;
  return message;
}

int status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCorrupt:
      return TQCACHE_CUDA_CORRUPT;
    case ErrorCode::kUnsupported:
      return TQCACHE_CUDA_UNSUPPORTED;
    case ErrorCode::kInvalidArgument:
      return TQCACHE_CUDA_INVALID_ARGUMENT;
    default:
      return TQCACHE_CUDA_FAILED;
  }
}

// The status of what `call` returns, a Result<void>. No exception leaves.
template <class Call>
int guarded(const Call& call) noexcept {
  try {
    const Result<void> result = call();
    if (result) return TQCACHE_CUDA_OK;
    last_message() = result.error().message;
    return status_of(result.error().code);
  } catch (const std::exception& error) {
    try {
      last_message() = error.what();
    } catch (...) {
    }
  } catch (...) {
  }
  return TQCACHE_CUDA_FAILED;
}

// A number that has to be one of an enumeration's first n.
template <class Enum>
Result<Enum> to_enum(int value, int n, const char* what) {
  if (value < 0 || value >= n) return invalid(std::string(what) + " " + std::to_string(value));
  return static_cast<Enum>(value);
}

Result<Dtype> to_dtype(int value) { return to_enum<Dtype>(value, 3, "dtype"); }

Result<codec::CodecSpec> to_spec(const tqcache_cuda_codec_spec& from) {
  codec::CodecSpec spec;
  spec.head_dim = from.head_dim;
  TQC_TRY_ASSIGN(spec.mode, to_enum<codec::Mode>(from.mode, 4, "mode"));
  spec.bits = from.bits;
  if (from.seed != 0) spec.seed = from.seed;
  TQC_TRY_ASSIGN(const int rotation, to_enum<int>(from.rotation, 2, "rotation"));
  spec.rotation = rotation == 0 ? codec::TransformKind::kHadamard : codec::TransformKind::kDenseQr;
  spec.rounds = from.rounds;
  TQC_TRY_ASSIGN(spec.scale, to_enum<codec::ScaleRule>(from.scale, 3, "scale"));
  TQC_TRY_ASSIGN(const int residual, to_enum<int>(from.residual, 2, "residual"));
  spec.residual = residual == 0 ? codec::TransformKind::kGaussian : codec::TransformKind::kDenseQr;
  spec.outlier_channels = from.outlier_channels;
  spec.outlier_bits = from.outlier_bits;
  if (from.group_size != 0) spec.group_size = from.group_size;
  return spec;
}

Centering to_centering(const tqcache_cuda_centering* from) {
  if (from == nullptr) return {};
  return {from->mean, from->n_pairs, from->turns,   from->cos,
          from->sin,  from->factors, from->inverses};
}

TokenRun to_run(const tqcache_cuda_run& from) {
  return {from.n_tokens, from.first_block, from.n_kv_heads, from.n_skipped, from.channel_order};
}

PackedPages to_pages(const tqcache_cuda_pages& from) {
  return {static_cast<std::byte*>(from.data), from.page_bytes, from.page_ids};
}

Result<DenseRows> to_rows(const tqcache_cuda_rows& from) {
  TQC_TRY_ASSIGN(const Dtype dtype, to_dtype(from.dtype));
  return DenseRows{from.data, dtype, from.token_stride, from.head_stride};
}

AttentionPages to_attention_pages(const tqcache_cuda_attention_pages& from) {
  AttentionPages pages;
  if (from.codec != nullptr) pages.codec = &from.codec->codec;
  pages.data = static_cast<const std::byte*>(from.data);
  pages.page_bytes = from.page_bytes;
  pages.page_table = from.page_table;
  pages.center.mean = from.mean;
  pages.center.n_pairs = from.n_pairs;
  pages.center.inverses = from.inverses;
  if (from.sinusoids != nullptr) pages.sinusoids = &from.sinusoids->sinusoids;
  return pages;
}

Result<AttentionStep> to_step(const tqcache_cuda_attention& from) {
  AttentionStep step;
  step.n_sequences = from.n_sequences;
  step.n_query_heads = from.n_query_heads;
  step.n_kv_heads = from.n_kv_heads;
  step.head_dim = from.head_dim;
  step.max_blocks = from.max_blocks;
  step.scale = from.scale;
  step.queries = from.queries;
  step.output = from.output;
  TQC_TRY_ASSIGN(step.dtype, to_dtype(from.dtype));
  step.n_packed = from.n_packed;
  step.n_sinks = from.n_sinks;
  TQC_TRY_ASSIGN(step.sink_dtype, to_dtype(from.sink_dtype));
  step.keys = to_attention_pages(from.keys);
  step.values = to_attention_pages(from.values);
  step.tail.keys = from.tail_keys;
  step.tail.values = from.tail_values;
  TQC_TRY_ASSIGN(step.tail.dtype, to_dtype(from.tail_dtype));
  step.tail.capacity = from.tail_capacity;
  step.tail.n_tokens = from.tail_tokens;
  return step;
}

Result<BytePlanes> to_planes(const void* const* planes, int width) {
  if (width != 2 && width != 4) return invalid("planes: numbers that have neither 2 nor 4 bytes");
  BytePlanes out{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(width); ++i) {
    out[i] = static_cast<std::byte*>(const_cast<void*>(planes[i]));
  }
  return out;
}

Stream to_stream(void* stream) { return static_cast<Stream>(stream); }

}  // namespace
}  // namespace tqcache::cuda

using namespace tqcache;        // NOLINT(google-build-using-namespace)
using namespace tqcache::cuda;  // NOLINT(google-build-using-namespace)

extern "C" {

const char* tqcache_cuda_error(void) { return last_message().c_str(); }

int tqcache_cuda_device(tqcache_cuda_device_info* info) {
  return guarded([&]() -> Result<void> {
    TQC_TRY_ASSIGN(const DeviceInfo found, describe_device());
    *info = {};
    found.name.copy(info->name, sizeof info->name - 1);
    info->capability = found.capability;
    info->code = found.code;
    info->driver = found.driver;
    info->runtime = found.runtime;
    return {};
  });
}

int tqcache_cuda_codec_new(const tqcache_cuda_codec_spec* spec, tqcache_cuda_codec** codec) {
  *codec = nullptr;
  return guarded([&]() -> Result<void> {
    TQC_TRY_ASSIGN(const codec::CodecSpec from, to_spec(*spec));
    TQC_TRY_ASSIGN(const codec::HeadCodec head,
                   codec::HeadCodec::make(from, spec->is_values != 0 ? codec::BlockOrder::kValues
                                                                     : codec::BlockOrder::kKeys));
    TQC_TRY_ASSIGN(DeviceCodec device, DeviceCodec::make(head));
    *codec = new tqcache_cuda_codec{std::move(device)};
    return {};
  });
}

void tqcache_cuda_codec_free(tqcache_cuda_codec* codec) { delete codec; }

int64_t tqcache_cuda_page_bytes(const tqcache_cuda_codec* codec, int n_kv_heads, int n_sinks,
                                int sink_dtype) {
  return codec->codec.page_bytes(n_kv_heads, n_sinks,
                                 sink_dtype == TQCACHE_CUDA_F32 ? Dtype::kF32 : Dtype::kF16);
}

size_t tqcache_cuda_codec_workspace_bytes(const tqcache_cuda_codec* codec,
                                          const tqcache_cuda_centering* center,
                                          const tqcache_cuda_run* run) {
  return codec_workspace_bytes(codec->codec, to_centering(center), to_run(*run));
}

int tqcache_cuda_encode(const tqcache_cuda_codec* codec, const tqcache_cuda_rows* rows,
                        const tqcache_cuda_run* run, const tqcache_cuda_centering* center,
                        const tqcache_cuda_pages* pages, void* workspace, uint32_t* status,
                        void* stream) {
  return guarded([&]() -> Result<void> {
    TQC_TRY_ASSIGN(const DenseRows dense, to_rows(*rows));
    return encode(codec->codec, dense, to_run(*run), to_centering(center), to_pages(*pages),
                  workspace, status, to_stream(stream));
  });
}

int tqcache_cuda_encode_status(uint32_t word) {
  return guarded([&] { return encode_status(word); });
}

int tqcache_cuda_decode(const tqcache_cuda_codec* codec, const tqcache_cuda_pages* pages,
                        const tqcache_cuda_run* run, const tqcache_cuda_centering* center,
                        const tqcache_cuda_rows* rows, void* workspace, void* stream) {
  return guarded([&]() -> Result<void> {
    TQC_TRY_ASSIGN(const DenseRows dense, to_rows(*rows));
    return decode(codec->codec, to_pages(*pages), to_run(*run), to_centering(center), dense,
                  workspace, to_stream(stream));
  });
}

int tqcache_cuda_sinusoids_new(const double* turns, int n_pairs,
                               tqcache_cuda_sinusoids** sinusoids) {
  *sinusoids = nullptr;
  return guarded([&]() -> Result<void> {
    if (n_pairs < 0) return invalid("sinusoids: number of pairs");
    TQC_TRY_ASSIGN(DeviceSinusoids device,
                   DeviceSinusoids::make({turns, static_cast<std::size_t>(n_pairs)}));
    *sinusoids = new tqcache_cuda_sinusoids{std::move(device)};
    return {};
  });
}

void tqcache_cuda_sinusoids_free(tqcache_cuda_sinusoids* sinusoids) { delete sinusoids; }

int tqcache_cuda_attention_workspace_bytes(const tqcache_cuda_attention* step, size_t* bytes) {
  *bytes = 0;
  return guarded([&]() -> Result<void> {
    TQC_TRY_ASSIGN(const AttentionStep from, to_step(*step));
    TQC_TRY_ASSIGN(*bytes, attention_workspace_bytes(from));
    return {};
  });
}

int tqcache_cuda_attend(const tqcache_cuda_attention* step, void* workspace, void* stream) {
  return guarded([&]() -> Result<void> {
    TQC_TRY_ASSIGN(const AttentionStep from, to_step(*step));
    return attend(from, workspace, to_stream(stream));
  });
}

int tqcache_cuda_append(const tqcache_cuda_token* token, void* stream) {
  return guarded([&]() -> Result<void> {
    NewToken to;
    to.n_sequences = token->n_sequences;
    to.n_kv_heads = token->n_kv_heads;
    to.head_dim = token->head_dim;
    to.keys = {token->keys, token->key_sequence_stride, token->key_head_stride};
    to.values = {token->values, token->value_sequence_stride, token->value_head_stride};
    to.tail_keys = token->tail_keys;
    to.tail_values = token->tail_values;
    TQC_TRY_ASSIGN(to.dtype, to_dtype(token->tail_dtype));
    to.capacity = token->tail_capacity;
    to.n_tokens = token->tail_tokens;
    return append(to, to_stream(stream));
  });
}

int tqcache_cuda_measure(const tqcache_cuda_codec_spec* keys, const tqcache_cuda_codec_spec* values,
                         const tqcache_cuda_workload* work, tqcache_cuda_rates* rates) {
  *rates = {};
  return guarded([&]() -> Result<void> {
    TQC_TRY_ASSIGN(const codec::CodecSpec of_keys, to_spec(*keys));
    TQC_TRY_ASSIGN(const codec::CodecSpec of_values, to_spec(*values));
    TQC_TRY_ASSIGN(codec::HeadCodec key_codec,
                   codec::HeadCodec::make(of_keys, codec::BlockOrder::kKeys));
    TQC_TRY_ASSIGN(codec::HeadCodec value_codec,
                   codec::HeadCodec::make(of_values, codec::BlockOrder::kValues));
    TQC_TRY_ASSIGN(const Rates found, measure({std::move(key_codec), std::move(value_codec),
                                               work->n_tokens, work->n_sequences, work->n_kv_heads,
                                               work->n_query_heads, work->n_runs}));
    *rates = {found.dense_bytes,    found.packed_bytes,   found.copy_seconds,
              found.encode_seconds, found.decode_seconds, found.attend_seconds};
    return {};
  });
}

int tqcache_cuda_split_planes(const void* numbers, int64_t n, int width, void* const* planes,
                              void* stream) {
  return guarded([&]() -> Result<void> {
    TQC_TRY_ASSIGN(const BytePlanes to, to_planes(planes, width));
    return split_planes(numbers, n, width, to, to_stream(stream));
  });
}

int tqcache_cuda_join_planes(const void* const* planes, int64_t n, int width, void* numbers,
                             void* stream) {
  return guarded([&]() -> Result<void> {
    TQC_TRY_ASSIGN(const BytePlanes from, to_planes(planes, width));
    return join_planes(from, n, width, numbers, to_stream(stream));
  });
}

}  // extern "C"
