#pragma once
// tqcache/tqcache.h: the C interface: caches as files, the codec, stores and checked values.
//
//   tqcache_cache* cache = NULL;
//   tqcache_error* error = NULL;
//   if (tqcache_open("book.tqkv", NULL, &cache, &error) != TQCACHE_OK) {
//     fprintf(stderr, "%s\n", tqcache_error_message(error));
//     tqcache_error_free(error);
//     return 1;
//   }
//
// The functions of libtqcache_c.so, for C and for languages that call C. The binary interface is
// stable: functions and structs of TQCACHE_ABI 1 keep their meaning, and later versions only add.
//
// Functions: int results are codes; TQCACHE_OK is 0. `error` may be null; otherwise it receives a
//            new object if the result is another code, and is not touched if it is TQCACHE_OK.
//            Results are written only on success. No exception leaves a function.
// Structs:   fill them with TQCACHE_INIT(type), which sets `size`; 0 is the usual value of all
// other
//            fields. A library that knows more fields treats missing ones as 0.
// Strings:   UTF-8, ended by 0. Those in structs belong to the handle that returned them and are
//            valid until it is freed or used for the same call again.
// Handles:   are freed by the function named ..._free or ..._close, which accept null.
// Threads:   any number may use one tqcache_cache, tqcache_values or tqcache_profile; one at a time
//            a tqcache_writer or tqcache_store. `threads` of options: 0 is all processors.
//
// Spec: docs/reference/c_interface.md.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TQCACHE_ABI 1
#if defined(TQCACHE_C_BUILD)
#define TQCACHE_API __attribute__((visibility("default")))
#else
#define TQCACHE_API
#endif

// The ABI and the version ("0.2.0") of the library that is loaded.
TQCACHE_API int tqcache_abi(void);
TQCACHE_API const char* tqcache_version(void);

// A struct whose `size` is set, and whose other fields are 0.
#ifdef __cplusplus
#define TQCACHE_INIT(type)      \
  [] {                          \
    type known_{};              \
    known_.size = sizeof(type); \
    return known_;              \
  }()
#else
#define TQCACHE_INIT(type) \
  (type) { .size = sizeof(type) }
#endif

// --- Errors: the exit codes of the program

enum {
  TQCACHE_OK = 0,
  TQCACHE_FAILED = 1,  // the system or a server reports a failure
  TQCACHE_USAGE = 2,   // the caller asked for something impossible
  TQCACHE_NOT_FOUND = 10,
  TQCACHE_BUSY = 11,         // another process is writing the file
  TQCACHE_CORRUPT = 20,      // the bytes contradict the format or a checksum
  TQCACHE_UNSUPPORTED = 21,  // a version, kind or size that is not supported
  TQCACHE_MISMATCH = 22,     // a valid file, but of another model, or without its key
  TQCACHE_INTERRUPTED = 130  // a progress callback stopped the work
};

typedef struct tqcache_error tqcache_error;

TQCACHE_API int tqcache_error_code(const tqcache_error* error);
TQCACHE_API const char* tqcache_error_message(const tqcache_error* error);
// The file that the error concerns; "" if there is none.
TQCACHE_API const char* tqcache_error_file(const tqcache_error* error);
TQCACHE_API void tqcache_error_free(tqcache_error* error);

// --- Basic types

// Receives the work done and the total (0: unknown) from one thread at a time. Any result other
// than 0 stops the work with TQCACHE_INTERRUPTED.
typedef int (*tqcache_progress)(void* user, uint64_t done, uint64_t total);
// Receives warnings, one line each, possibly from other threads, one at a time.
typedef void (*tqcache_warning)(void* user, const char* message);

enum { TQCACHE_F32 = 0, TQCACHE_F16 = 1, TQCACHE_BF16 = 2 };
enum { TQCACHE_KEYS = 0, TQCACHE_VALUES = 1 };

// Keys or values in the caller's memory: [n_heads, n_tokens, head_dim] of dtype. Strides are
// elements; three zeros mean contiguous.
typedef struct {
  size_t size;
  void* data;
  int32_t dtype;
  int32_t reserved;
  int64_t n_heads, n_tokens, head_dim;
  int64_t head_stride, token_stride, component_stride;
} tqcache_tensor;

// Bytes that the library made, or shares with a cache.
typedef struct tqcache_bytes tqcache_bytes;

TQCACHE_API const void* tqcache_bytes_data(const tqcache_bytes* bytes);
TQCACHE_API size_t tqcache_bytes_size(const tqcache_bytes* bytes);
TQCACHE_API void tqcache_bytes_free(tqcache_bytes* bytes);

enum { TQCACHE_ROPE_NONE = 0, TQCACHE_ROPE_HALF_SPLIT = 1, TQCACHE_ROPE_INTERLEAVED = 2 };

// The model that a cache belongs to (docs/reference/format.md, "Fingerprints"). An empty
// architecture: of unknown origin. Fingerprints are 32 bytes, or null for zeros.
typedef struct {
  size_t size;
  const char* architecture;  // GGUF's name: "qwen3"
  const char* model_name;    // for display
  const char* source_format;
  const uint8_t* weights_fingerprint;
  const uint8_t* tokenizer_fingerprint;
  const uint8_t* adapter_fingerprint;  // null: no adapter
  const uint8_t* model_fingerprint;    // null: not known
  int32_t model_fingerprint_version;
  int32_t rope_style;  // of the model; keys in caches are in half-split order
  int64_t rope_dims;
  double rope_base;
  const float* rope_factors;  // [rope_dims / 2], or null: all 1
} tqcache_identity;

// The identity of a model on disk: a GGUF file, or a Hugging Face folder.
typedef struct tqcache_model tqcache_model;
TQCACHE_API int tqcache_model_identify(const char* path, tqcache_model** model,
                                       tqcache_error** error);
TQCACHE_API void tqcache_model_identity(const tqcache_model* model, tqcache_identity* identity);
TQCACHE_API void tqcache_model_free(tqcache_model* model);

// --- Reading caches: .tqkv files, and those of llama.cpp, mlx-lm, transformers, NumPy, TurboMLX

typedef struct tqcache_cache tqcache_cache;

typedef struct {
  size_t size;
  const char* key_file;  // for encrypted files
  int32_t map;           // maps a .tqkv file: only for files that nothing shortens in place
  int32_t trust;         // of a mapped file: blocks are not compared with their checksums
  int64_t first_tokens;  // only so many tokens; 0: all
  // What files of other programs leave out:
  const int32_t* tokens;  // [n_tokens]
  int64_t n_tokens;
  const tqcache_identity* identity;
  const char* model;  // GGUF file, for llama.cpp's; also gives the identity
} tqcache_open_options;

TQCACHE_API int tqcache_open(const char* path, const tqcache_open_options* options,
                             tqcache_cache** cache, tqcache_error** error);
// The same for the bytes of a file, which are copied.
TQCACHE_API int tqcache_open_bytes(const void* data, size_t size,
                                   const tqcache_open_options* options, tqcache_cache** cache,
                                   tqcache_error** error);
TQCACHE_API void tqcache_close(tqcache_cache* cache);

typedef struct {
  size_t size;
  const char* kind;  // "tqkv", "mlx-lm", "llama", "hf", "npz", "turbomlx", "store" or "memory"
  int64_t n_tokens;
  int64_t n_layers;
  const int32_t* tokens;       // [n_tokens]; null if the ids are hidden or not known
  const char* content_digest;  // of a .tqkv file or a stored prompt, in hexadecimal; else ""
  uint64_t file_bytes;         // 0: not a file
  int32_t encrypted;
  int32_t reserved;
  const char* notes;  // about the content and what was dropped, one line each
} tqcache_info;

TQCACHE_API void tqcache_get_info(const tqcache_cache* cache, tqcache_info* info);
TQCACHE_API void tqcache_get_identity(const tqcache_cache* cache, tqcache_identity* identity);

enum { TQCACHE_ATTENTION = 0, TQCACHE_WINDOW = 1, TQCACHE_STATE = 2 };

typedef struct {
  size_t size;
  int32_t kind;
  int32_t key_dtype, value_dtype;  // of values that are not quantized
  int32_t n_arrays;                // of recurrent state, or of a dense window: keys, values
  int64_t n_kv_heads, head_dim;    // 0 for recurrent state; head_dim is that of keys
  int64_t n_tokens;                // whose keys and values are held
  int64_t first_token;             // of the newest consecutive ones
  int64_t window, keep;            // of TQCACHE_WINDOW
  const char* key_codec;           // "dense", "mse:4", ...; "" for recurrent state
  const char* value_codec;
  int64_t value_dim;  // components of a value: head_dim, or of another size (MLA); 0 as head_dim
} tqcache_layer;

TQCACHE_API int tqcache_get_layer(const tqcache_cache* cache, int64_t layer, tqcache_layer* info,
                                  tqcache_error** error);

// Reads the held tokens [begin, begin + to->n_tokens) of the keys or values of a layer into the
// caller's memory, decoded and converted to its dtype. Keys are after RoPE, their components in
// half-split order.
TQCACHE_API int tqcache_read(const tqcache_cache* cache, int64_t layer, int which, int64_t begin,
                             const tqcache_tensor* to, unsigned threads, tqcache_error** error);

typedef struct {
  size_t size;
  const char* name;
  int32_t dtype;
  int32_t rank;
  int64_t shape[8];
  uint64_t n_bytes;
} tqcache_array;

TQCACHE_API int tqcache_get_array(const tqcache_cache* cache, int64_t layer, int64_t index,
                                  tqcache_array* info, tqcache_error** error);
// The bytes of an array, shared with the file where it is mapped, plain and uncompressed.
TQCACHE_API int tqcache_share_array(const tqcache_cache* cache, int64_t layer, int64_t index,
                                    tqcache_bytes** bytes, tqcache_error** error);

// Token block `block` (256 tokens) of the keys or values, if it is dense: [n_kv_heads, n, head_dim]
// of the stored dtype, shared as above. `n_tokens` receives n, or 0 if the block is quantized, and
// `bytes` null.
TQCACHE_API int tqcache_share_block(const tqcache_cache* cache, int64_t layer, int which,
                                    int64_t block, tqcache_bytes** bytes, int64_t* n_tokens,
                                    tqcache_error** error);

// A JSON object that describes the cache.
TQCACHE_API int tqcache_describe(const tqcache_cache* cache, tqcache_bytes** json,
                                 tqcache_error** error);

// --- Making caches

typedef struct tqcache_writer tqcache_writer;

// `tokens` may be null: the ids are not known. All are copied.
TQCACHE_API int tqcache_writer_new(const int32_t* tokens, int64_t n_tokens,
                                   const tqcache_identity* identity, tqcache_writer** writer,
                                   tqcache_error** error);
// Adds a layer. The memory of tensors and arrays is not copied: it has to stay unchanged until the
// writer and the caches made of it are freed.
//
// Full attention: n_tokens tokens each. A window holds min(n_tokens, window) tokens, its first
// `keep` ones and then the newest, in the order of positions. `size` of the structs is checked.
TQCACHE_API int tqcache_writer_attention(tqcache_writer* writer, const tqcache_tensor* keys,
                                         const tqcache_tensor* values, tqcache_error** error);
// Full attention whose keys and values need not be in memory: `fill` writes tokens [begin, begin +
// to->n_tokens) of the keys or values (`which`) to `to`, contiguous and of the dtype that `keys` or
// `values` has; `data` and strides of these are not used. It is called for a block of 256 tokens at
// a time, while the caches made of the writer are converted or read, by one thread at a time per
// layer and perhaps more than once for the same tokens. A result other than 0 makes that call fail
// with TQCACHE_FAILED.
typedef int (*tqcache_fill)(void* user, int which, int64_t begin, const tqcache_tensor* to);
TQCACHE_API int tqcache_writer_attention_from(tqcache_writer* writer, const tqcache_tensor* keys,
                                              const tqcache_tensor* values, tqcache_fill fill,
                                              void* user, tqcache_error** error);
TQCACHE_API int tqcache_writer_window(tqcache_writer* writer, const tqcache_tensor* keys,
                                      const tqcache_tensor* values, int64_t window, int64_t keep,
                                      tqcache_error** error);
// data[i] has the bytes of arrays[i], contiguous; n_bytes may be 0, or is their number. No arrays:
// a layer that keeps nothing of its own.
TQCACHE_API int tqcache_writer_state(tqcache_writer* writer, const tqcache_array* arrays,
                                     const void* const* data, int32_t n_arrays,
                                     tqcache_error** error);
// Tokens that hold an image, a sound or a video in place of text. Spans are added in ascending
// order; their tokens get ids below -1, which are made of everything but the placeholder
// (docs/reference/format.md, "Media"). Needs the token ids of the text.
enum { TQCACHE_IMAGE = 0, TQCACHE_AUDIO = 1, TQCACHE_VIDEO = 2 };

typedef struct {
  size_t size;
  int32_t kind;
  int32_t placeholder;      // the token id that programs write in its place; -1: none
  int64_t begin, n_tokens;  // of the cache
  const char* id;           // names what was shown: 1 to 256 printable ASCII characters
  // Positions for M-RoPE, [3, n_tokens]: time, row, column. Null: they count on by one.
  const int32_t* coordinates;
  int64_t next_position;  // of the text behind it; without coordinates it is not used
} tqcache_media;

TQCACHE_API int tqcache_writer_media(tqcache_writer* writer, const tqcache_media* media,
                                     tqcache_error** error);
// The layers so far as a cache, for tqcache_convert() and tqcache_store_put().
TQCACHE_API int tqcache_writer_cache(const tqcache_writer* writer, tqcache_cache** cache,
                                     tqcache_error** error);
TQCACHE_API void tqcache_writer_free(tqcache_writer* writer);

// --- Profiles of models: how much each layer tolerates (docs/reference/profile.md)

typedef struct tqcache_profile tqcache_profile;

TQCACHE_API int tqcache_profile_load(const char* path, tqcache_profile** profile,
                                     tqcache_error** error);
TQCACHE_API int64_t tqcache_profile_layers(const tqcache_profile* profile);
// The quantization step whose expected divergence is `kld` nats.
TQCACHE_API int tqcache_profile_step(const tqcache_profile* profile, double kld, double* step,
                                     tqcache_error** error);
TQCACHE_API void tqcache_profile_free(tqcache_profile* profile);

// --- Converting and verifying

typedef struct {
  size_t size;
  // A preset or a configuration as the program knows it: "turbo4", "k=mse:4,v=mse:3,sink=0"; "f32"
  // makes everything dense. Null keeps every layer as it is.
  const char* config;
  // Instead of config, an archive of this size, error or expected divergence (with a profile);
  // one of the three is not 0.
  double archive_bits, archive_mse, archive_kld;
  const tqcache_profile* profile;
  const char* compress;  // "zstd", "planes" or "none"; null: "zstd"
  const char* to;  // "tqkv", "hf", "mlx-lm", "npz", "llama-session", "llama-sequence"; null: tqkv
  const char* model;     // GGUF file, for llama.cpp's files
  const char* key_file;  // encrypts the new file
  int32_t hide_tokens;
  int32_t overwrite;
  uint32_t threads;
  uint32_t reserved;
  tqcache_progress progress;
  void* user;  // for `progress`
} tqcache_convert_options;

// Writes a cache to a file, which is then complete or absent. Bytes are those of `tqcache convert`.
TQCACHE_API int tqcache_convert(const tqcache_cache* cache, const char* path,
                                const tqcache_convert_options* options, tqcache_error** error);
// The bytes of the .tqkv file.
TQCACHE_API int tqcache_convert_bytes(const tqcache_cache* cache,
                                      const tqcache_convert_options* options, tqcache_bytes** bytes,
                                      tqcache_error** error);

typedef struct {
  size_t size;
  const char* key_file;
  uint64_t max_bytes;  // limit for the memory of values; 0: three quarters of the machine's
  uint32_t threads;
  uint32_t reserved;
  tqcache_progress progress;
  void* user;
} tqcache_verify_options;

typedef struct {
  size_t size;
  int64_t n_tokens;
  uint64_t sections;      // that were checked
  uint64_t bytes;         // of the file, likewise
  uint64_t n_damage;      // 0: the file is whole
  tqcache_bytes* damage;  // one line each; for tqcache_bytes_free()
  char content_digest[65];
} tqcache_verified;

// Checks every byte of a .tqkv file. Damage is no error, as long as the sections can be listed.
TQCACHE_API int tqcache_verify(const char* path, const tqcache_verify_options* options,
                               tqcache_verified* verified, tqcache_error** error);

// The names of presets, or null after the last one; and a line about one.
TQCACHE_API const char* tqcache_preset(int32_t index);
TQCACHE_API const char* tqcache_preset_description(int32_t index);

// --- The codec for blocks in memory
//
// A block is the bytes of a .tqkv file of one layer, whose other tensor is zeros: it describes
// itself, has checksums, and all functions for caches take it.

// config: "mse:4", "affine:4", ..., or as in tqcache_convert_options without "k=" and "v=". `rope`:
// of keys after RoPE, to center them before it; null: as they are.
TQCACHE_API int tqcache_encode(const tqcache_tensor* from, int which, const char* config,
                               const tqcache_identity* rope, unsigned threads,
                               tqcache_bytes** block, tqcache_error** error);
// No block of this shape is larger.
TQCACHE_API int tqcache_encode_bound(const tqcache_tensor* shape, int which, const char* config,
                                     size_t* bytes, tqcache_error** error);
// The shape and dtype that were encoded (`data` and strides are 0), and keys or values.
TQCACHE_API int tqcache_block_shape(const void* block, size_t size, tqcache_tensor* shape,
                                    int* which, tqcache_error** error);
TQCACHE_API int tqcache_decode(const void* block, size_t size, const tqcache_tensor* to,
                               unsigned threads, tqcache_error** error);
// Inner products of queries with encoded keys, without decoding them.
// Shapes: queries [n_query_heads, head_dim] f32, scores [n_query_heads, n_tokens] f32; query head h
//         belongs to kv head h / (n_query_heads / n_heads).
TQCACHE_API int tqcache_score(const void* block, size_t size, const float* queries,
                              int64_t n_query_heads, float* scores, unsigned threads,
                              tqcache_error** error);

// --- The codec of a cache that grows
//
// The codec of the keys or values of one layer, for caches in a program's own memory. Full blocks
// of 256 tokens are packed as in files (docs/reference/format.md, 6.2), all with the mean of the
// first one. It holds no values. Threads: any number at once, but for tqcache_codec_fit().

typedef struct tqcache_codec tqcache_codec;

// `shape`: heads, head_dim and dtype. config, rope: as of tqcache_encode(); the first tokens stay
// dense as "sink=N" says. `layer`: which one of a profile's, where the configuration names a
// profile.
TQCACHE_API int tqcache_codec_new(const tqcache_tensor* shape, int which, const char* config,
                                  const tqcache_identity* rope, int64_t layer,
                                  tqcache_codec** codec, tqcache_error** error);
TQCACHE_API void tqcache_codec_free(tqcache_codec* codec);
// Computes the mean, from the first block: 256 tokens. With `n` tensors from those of n prompts. A
// codec that has its mean, or none, stays as it is.
TQCACHE_API int tqcache_codec_fit(tqcache_codec* codec, const tqcache_tensor* first_blocks,
                                  int64_t n, unsigned threads, tqcache_error** error);
// Bytes of packed block `block`: the first one has the dense tokens as well.
TQCACHE_API size_t tqcache_codec_block_bytes(const tqcache_codec* codec, int64_t block);
// Packs whole blocks, `block` being the number of the first: one behind the other to `out`.
TQCACHE_API int tqcache_codec_encode(const tqcache_codec* codec, const tqcache_tensor* from,
                                     int64_t block, void* out, size_t size, unsigned threads,
                                     tqcache_error** error);
// The inverse, to a tensor of any dtype.
TQCACHE_API int tqcache_codec_decode(const tqcache_codec* codec, const void* packed, size_t size,
                                     int64_t block, const tqcache_tensor* to, unsigned threads,
                                     tqcache_error** error);

// What a codec consists of, for code that computes the same elsewhere (tqcache_cuda.h). Pointers
// are valid until the codec is fitted or freed; null: none, or not fitted yet.
typedef struct {
  size_t size;
  int32_t mode;  // 0 mse, 1 prod, 2 mixed, 3 affine, 4 trellis
  int32_t bits, rotation, rounds, scale, residual, outlier_channels, outlier_bits, group_size;
  int32_t n_sinks;
  uint64_t seed;
  const float* mean;      // [n_heads, head_dim]
  int64_t n_pairs;        // that rotate with the position; 0: the mean does not rotate
  const double* turns;    // [n_pairs]: cycles per token
  const float* cos;       // [256, n_pairs]
  const float* sin;       // likewise
  const float* factors;   // [n_heads, head_dim], of keys
  const float* inverses;  // likewise
} tqcache_codec_tables;
TQCACHE_API int tqcache_codec_read_tables(const tqcache_codec* codec, tqcache_codec_tables* tables,
                                          tqcache_error** error);

// Adds a layer of full attention that is packed already: n_tokens / 256 blocks of keys and of
// values, and the dense tokens behind them. Memory is not copied, codecs are. The cache is
// converted with no configuration, or with the one that the codecs came from.
TQCACHE_API int tqcache_writer_packed(tqcache_writer* writer, const tqcache_codec* key_codec,
                                      const void* keys, size_t key_bytes,
                                      const tqcache_codec* value_codec, const void* values,
                                      size_t value_bytes, const tqcache_tensor* key_tail,
                                      const tqcache_tensor* value_tail, tqcache_error** error);

// --- Stores of prompts (docs/reference/store.md)

typedef struct tqcache_store tqcache_store;

typedef struct {
  size_t size;
  const char* key_file;
  const char* salt;  // of a tenant
  uint32_t threads;
  uint32_t reserved;
  tqcache_warning warning;  // missing and damaged blobs
  void* user;
} tqcache_store_options;

TQCACHE_API int tqcache_store_open(const char* url, const tqcache_store_options* options,
                                   tqcache_store** store, tqcache_error** error);
TQCACHE_API void tqcache_store_free(tqcache_store* store);

typedef struct {
  size_t size;
  int64_t n_tokens;
  int64_t blocks, new_blocks;
  uint64_t bytes, new_bytes;
} tqcache_put_report;

typedef struct {
  size_t size;
  const char* name;    // null: the prompt is found by its tokens alone
  const char* config;  // quantizes it first; null: as it is
  int64_t created;     // seconds since 1970, for display
  int32_t replace;     // a prompt of that name with other content
  int32_t reserved;
  tqcache_progress progress;
  void* user;
} tqcache_put_options;

// `report` may be null.
TQCACHE_API int tqcache_store_put(tqcache_store* store, const tqcache_cache* cache,
                                  const tqcache_put_options* options, tqcache_put_report* report,
                                  tqcache_error** error);
// The length of the longest stored prefix of at most max_tokens (0: n_tokens) tokens; 0: none.
TQCACHE_API int tqcache_store_find(tqcache_store* store, const tqcache_identity* identity,
                                   const int32_t* tokens, int64_t n_tokens, int64_t max_tokens,
                                   int64_t* found, tqcache_error** error);
// That prefix; *cache is null if there is none.
TQCACHE_API int tqcache_store_get(tqcache_store* store, const tqcache_identity* identity,
                                  const int32_t* tokens, int64_t n_tokens, int64_t max_tokens,
                                  tqcache_progress progress, void* user, tqcache_cache** cache,
                                  tqcache_error** error);
// The prompt of that name; *cache is null if there is none.
TQCACHE_API int tqcache_store_get_named(tqcache_store* store, const char* name,
                                        tqcache_progress progress, void* user,
                                        tqcache_cache** cache, tqcache_error** error);
// A JSON array of the names.
TQCACHE_API int tqcache_store_names(tqcache_store* store, tqcache_bytes** json,
                                    tqcache_error** error);
TQCACHE_API int tqcache_store_remove(tqcache_store* store, const char* name, int* existed,
                                     tqcache_error** error);

// --- Checked values: bytes under keys of the caller's (docs/reference/store.md, section 20)
//
// Anything wrong is a miss: no value, other metadata, another length, a flipped bit. Damage and
// other metadata are reported to `warning` once per key.

typedef struct tqcache_values tqcache_values;

typedef struct {
  size_t size;
  const char* key_file;
  int32_t planes;  // 0: stored as they are; 2 or 4: byte planes of numbers of that size, compressed
  uint32_t threads;
  tqcache_warning warning;
  void* user;
} tqcache_values_options;

// Parts of a value; the parts of several buffers are joined.
typedef struct {
  void* data;
  size_t size;
} tqcache_part;

TQCACHE_API int tqcache_values_open(const char* url, const char* name_space,
                                    const tqcache_values_options* options, tqcache_values** values,
                                    tqcache_error** error);
TQCACHE_API void tqcache_values_free(tqcache_values* values);
// *stored: 1 if it was stored now, 0 if the key has a whole value with this metadata already.
TQCACHE_API int tqcache_values_put(tqcache_values* values, const char* key, const void* meta,
                                   size_t meta_size, const tqcache_part* parts, size_t n_parts,
                                   int* stored, tqcache_error** error);
// Fills the parts, whose sizes together are the length of the value. *found: 1, or 0 for a miss.
TQCACHE_API int tqcache_values_read(tqcache_values* values, const char* key, const void* meta,
                                    size_t meta_size, const tqcache_part* parts, size_t n_parts,
                                    int* found, tqcache_error** error);
// The value; *bytes is null for a miss.
TQCACHE_API int tqcache_values_get(tqcache_values* values, const char* key, const void* meta,
                                   size_t meta_size, tqcache_bytes** bytes, tqcache_error** error);
// exists[i] is 1 if keys[i] has a value, which is not read.
TQCACHE_API int tqcache_values_exist(tqcache_values* values, const char* const* keys, size_t n_keys,
                                     uint8_t* exists, tqcache_error** error);
TQCACHE_API int tqcache_values_remove(tqcache_values* values, const char* key, int* existed,
                                      tqcache_error** error);
// Number and bytes of the values of the namespace. Either pointer may be null.
TQCACHE_API int tqcache_values_total(tqcache_values* values, uint64_t* n_values, uint64_t* n_bytes,
                                     tqcache_error** error);
// Removes the least recently used values until at most max_bytes remain; counts what it removed.
TQCACHE_API int tqcache_values_trim(tqcache_values* values, uint64_t max_bytes, uint64_t* n_values,
                                    uint64_t* n_bytes, tqcache_error** error);

// The same envelope without a store: lossless byte planes with a checksum (planes 2 or 4), or the
// bytes with a checksum (0).
TQCACHE_API int tqcache_planes_encode(const tqcache_part* parts, size_t n_parts, int32_t planes,
                                      unsigned threads, tqcache_bytes** packed,
                                      tqcache_error** error);
// The length of the data.
TQCACHE_API int tqcache_planes_size(const void* packed, size_t size, uint64_t* n_bytes,
                                    tqcache_error** error);
TQCACHE_API int tqcache_planes_decode(const void* packed, size_t size, const tqcache_part* parts,
                                      size_t n_parts, unsigned threads, tqcache_error** error);

#ifdef __cplusplus
}
#endif
