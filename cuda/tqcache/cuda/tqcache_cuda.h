/* cuda/tqcache_cuda.h: the C interface of the kernels for NVIDIA GPUs.
 *
 * The same functions as in cuda_codec.h, cuda_attention.h and cuda_planes.h, whose comments hold
 * here: device pointers in, device pointers out, work enqueued on the caller's stream, a workspace
 * from the caller. No exception leaves a function, and no C++ type is in this header, so that any
 * language can call it.
 *
 *   tqcache_cuda_codec_spec spec = {.head_dim = 128, .bits = 4, .rounds = 1};
 *   tqcache_cuda_codec* keys;
 *   if (tqcache_cuda_codec_new(&spec, &keys) != TQCACHE_CUDA_OK) puts(tqcache_cuda_error());
 *
 * Structs are used as they are: fill them with zeros first. A field that is added later has 0 as
 * its usual value.
 */
#ifndef TQCACHE_CUDA_H
#define TQCACHE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. tqcache_cuda_error() has the words. */
typedef enum {
  TQCACHE_CUDA_OK = 0,
  TQCACHE_CUDA_CORRUPT = 1,          /* a value is not finite */
  TQCACHE_CUDA_UNSUPPORTED = 2,      /* no kernel for it */
  TQCACHE_CUDA_INVALID_ARGUMENT = 3, /* arguments that do not fit */
  TQCACHE_CUDA_FAILED = 4            /* the CUDA runtime reports an error, or memory is short */
} tqcache_cuda_status;

/* The message of the last error of this thread, valid until its next call. Never null. */
const char* tqcache_cuda_error(void);

typedef enum {
  TQCACHE_CUDA_F32 = 0,
  TQCACHE_CUDA_F16 = 1,
  TQCACHE_CUDA_BF16 = 2
} tqcache_cuda_dtype;

/* The current device, and whether there are kernels for it. Versions are those of CUDA: 13020 for
 * 13.2. Fails with TQCACHE_CUDA_UNSUPPORTED where there is no GPU, or none that the kernels run on.
 */
typedef struct {
  char name[256];
  int capability; /* 90 for 9.0 */
  int code;       /* the capability that the kernels were compiled for */
  int driver, runtime;
} tqcache_cuda_device_info;

int tqcache_cuda_device(tqcache_cuda_device_info* info);

/* --- Codecs: docs/reference/codec.md §1 */

typedef struct tqcache_cuda_codec tqcache_cuda_codec;

typedef struct {
  int head_dim;
  int mode; /* 0 mse, 1 prod, 2 mixed, 3 affine */
  int bits;
  int is_values;                      /* 0: codes in the order of keys */
  uint64_t seed;                      /* 0: the default seed */
  int rotation;                       /* 0 Hadamard, 1 dense */
  int rounds;                         /* of Hadamard: 1 to 3 */
  int scale;                          /* 0 unbiased, 1 norm, 2 raw */
  int residual;                       /* of prod: 0 Gaussian, 1 dense */
  int outlier_channels, outlier_bits; /* of mixed */
  int group_size;                     /* of affine */
} tqcache_cuda_codec_spec;

int tqcache_cuda_codec_new(const tqcache_cuda_codec_spec* spec, tqcache_cuda_codec** codec);
void tqcache_cuda_codec_free(tqcache_cuda_codec* codec);
int64_t tqcache_cuda_page_bytes(const tqcache_cuda_codec* codec, int n_kv_heads, int n_sinks,
                                int sink_dtype);

/* --- Encoding and decoding */

typedef struct {
  const float* mean; /* [n_kv_heads, head_dim], or null */
  int n_pairs;       /* 0: the mean does not rotate */
  const double* turns;
  const float* cos;
  const float* sin;
  const float* factors; /* of keys, with their inverses, or null: [n_kv_heads, head_dim] */
  const float* inverses;
} tqcache_cuda_centering;

typedef struct {
  void* data;
  int dtype;
  int64_t token_stride, head_stride; /* elements */
} tqcache_cuda_rows;

typedef struct {
  void* data;
  int64_t page_bytes;
  const int32_t* page_ids; /* or null */
} tqcache_cuda_pages;

typedef struct {
  int64_t n_tokens, first_block;
  int n_kv_heads, n_skipped;
  const uint16_t* channel_order; /* of mode mixed, or null */
} tqcache_cuda_run;

/* `center` may be null: no mean. `stream` is a cudaStream_t. */
size_t tqcache_cuda_codec_workspace_bytes(const tqcache_cuda_codec* codec,
                                          const tqcache_cuda_centering* center,
                                          const tqcache_cuda_run* run);
/* status: a word in device memory that was set to 0xffffffff. */
int tqcache_cuda_encode(const tqcache_cuda_codec* codec, const tqcache_cuda_rows* rows,
                        const tqcache_cuda_run* run, const tqcache_cuda_centering* center,
                        const tqcache_cuda_pages* pages, void* workspace, uint32_t* status,
                        void* stream);
int tqcache_cuda_encode_status(uint32_t word);
int tqcache_cuda_decode(const tqcache_cuda_codec* codec, const tqcache_cuda_pages* pages,
                        const tqcache_cuda_run* run, const tqcache_cuda_centering* center,
                        const tqcache_cuda_rows* rows, void* workspace, void* stream);

/* --- Attention of one decode step */

typedef struct tqcache_cuda_sinusoids tqcache_cuda_sinusoids;

/* turns [n_pairs] in host memory. */
int tqcache_cuda_sinusoids_new(const double* turns, int n_pairs,
                               tqcache_cuda_sinusoids** sinusoids);
void tqcache_cuda_sinusoids_free(tqcache_cuda_sinusoids* sinusoids);

typedef struct {
  const tqcache_cuda_codec* codec; /* null: dense f16 keys */
  const void* data;
  int64_t page_bytes;
  const int32_t* page_table; /* [n_sequences, max_blocks], or null */
  const float* mean;         /* or null */
  int n_pairs;               /* of keys whose mean rotates; then with sinusoids */
  const tqcache_cuda_sinusoids* sinusoids;
  const float* inverses; /* of the factors of keys, or null */
} tqcache_cuda_attention_pages;

typedef struct {
  int n_sequences, n_query_heads, n_kv_heads, head_dim, max_blocks;
  float scale;
  const void* queries;
  void* output;
  int dtype;
  const int32_t* n_packed;
  int n_sinks, sink_dtype;
  tqcache_cuda_attention_pages keys, values;
  const void* tail_keys;
  const void* tail_values;
  int tail_dtype, tail_capacity;
  const int32_t* tail_tokens;
} tqcache_cuda_attention;

int tqcache_cuda_attention_workspace_bytes(const tqcache_cuda_attention* step, size_t* bytes);
int tqcache_cuda_attend(const tqcache_cuda_attention* step, void* workspace, void* stream);

/* Puts a token of each sequence behind its tail: keys and values [n_sequences, n_kv_heads,
 * head_dim] of tail_dtype, whose components are contiguous and whose strides are in elements. Then
 * n_tokens[s] is one more. A tail that is full stays as it is. Rows are multiples of 16 bytes. */
typedef struct {
  int n_sequences, n_kv_heads, head_dim;
  const void* keys;
  const void* values;
  int64_t key_sequence_stride, key_head_stride;
  int64_t value_sequence_stride, value_head_stride;
  void* tail_keys;
  void* tail_values;
  int tail_dtype, tail_capacity;
  int32_t* tail_tokens;
} tqcache_cuda_token;

int tqcache_cuda_append(const tqcache_cuda_token* token, void* stream);

/* --- What the kernels reach on the current device: cuda_measure.h */

typedef struct {
  int64_t n_tokens; /* of each sequence: whole blocks of 256 */
  int n_sequences, n_kv_heads, n_query_heads, n_runs;
} tqcache_cuda_workload;

/* Seconds for keys and values of one layer together. */
typedef struct {
  uint64_t dense_bytes, packed_bytes;
  double copy_seconds, encode_seconds, decode_seconds;
  double attend_seconds; /* 0: there is no kernel for it */
} tqcache_cuda_rates;

/* Allocates the memory that it needs, and waits for the device. */
int tqcache_cuda_measure(const tqcache_cuda_codec_spec* keys, const tqcache_cuda_codec_spec* values,
                         const tqcache_cuda_workload* work, tqcache_cuda_rates* rates);

/* --- Planes of bytes: docs/reference/format.md §6.5 */

int tqcache_cuda_split_planes(const void* numbers, int64_t n, int width, void* const* planes,
                              void* stream);
int tqcache_cuda_join_planes(const void* const* planes, int64_t n, int width, void* numbers,
                             void* stream);

#ifdef __cplusplus
}
#endif

#endif
