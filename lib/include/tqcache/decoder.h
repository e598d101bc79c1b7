#pragma once
// tqcache/decoder.h: the reference decoder, which runs a model over tokens and a prompt cache.
//
//   tqcache::model::Decoder decoder(model, 0);
//   TQC_TRY_ASSIGN(auto logits, decoder.prefill(cache, ids));
//   TQC_TRY_ASSIGN(logits, decoder.decode_step(cache, next));
//
// The code follows the papers: norm, q k v, RoPE, cache append, attention, output, feed-forward.
// The cache belongs to the caller; the decoder keeps only scratch memory.
//
// Resume is exact: the last token of a prompt always goes through decode_step's arithmetic, the
// others in chunks that end at token-block borders. So logits depend on the tokens, the cache and
// the start of each prefill(), but not on whether the cache has been stored in a file.
//
// Sliding-window and recurrent layers cannot be rolled back: their new state takes effect only
// after the whole chunk is done.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tqcache/cache.h"
#include "tqcache/codec_spec.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/progress.h"

namespace tqcache::model {

// --- Filters: changes to keys and values before they enter a cache
//
// Filters measure what a codec costs a model: every key and value is quantized before attention
// sees it, including those of the current token. A real cache loses less, because its tail is
// dense.

// Changes the keys and values of some tokens before layer `layer` stores them.
//
// Shapes: k, v [n, n_kv_heads, head_dim], for positions [first, first + n) within one token block;
//         keys are after RoPE.
// Errors: abort the prefill.
using KvFilter = std::function<Result<void>(std::int64_t layer, std::int64_t first,
                                            std::span<float> k, std::span<float> v)>;

// Replaces keys and values by their quantized approximation in `cache`: encoded and decoded with
// its codecs, means and outlier channels. Sink tokens, dense K and V, and sliding-window layers are
// unchanged.
//
// Requires: `cache` outlives the filter; its layers have the model's shapes.
// Errors:   returned by the filter: kInvalidArgument if K or V has no quantized block, so that its
//           mean or its outlier channels are unknown; those of cache::KvCodec::encode. The message
//           names the layer and K or V.
KvFilter coding_filter(const cache::Cache& cache);

// --- The decoder

// How quantized keys are scored: in f32, or with queries and centroids rounded to integers where
// that is faster on the CPU (error bounds: docs/reference/codec.md, "Kernels").
using Scorer = codec::Precision;

// The integers to which a decode step rounds the inputs of products with quantized weights. 16 bits
// cost nothing that can be measured; 8 bits are faster and cost accuracy (docs/explain/quality.md).
// Prompts, read many tokens at once, multiply in f32.
enum class ActivationBits { k16, k8 };

// The kernels that attention uses for a cache on this CPU, for reports.
struct KernelPath {
  // Decode steps: "dense" (no block is quantized), "packed_int8" or "packed_f32" (codes are scored
  // without decoding them, in integers or in f32). The slowest path of K and V of all layers.
  std::string_view step = "dense";

  // Prompts, many tokens at once: "dense", or "decoded": each block is decoded once for all
  // queries.
  std::string_view prompt = "dense";

  // Why decode steps are slower than requested, for the first affected K or V: "layer 0 k: no
  // kernels of whole numbers on scalar". Empty if they are not slower.
  std::string fallback;
};

KernelPath kernel_path(const cache::Cache& cache, Scorer scorer);

// Receives the logits [n, vocab_size] of tokens [first, first + n) of the prompt.
using LogitsSink =
    std::function<void(std::int64_t first, std::int64_t n, std::span<const float> logits)>;

// Receives the queries [n, n_heads, head_dim] of some tokens in a layer, after RoPE. An error
// aborts the computation.
using QuerySink = std::function<Result<void>(std::int64_t layer, std::span<const float> queries)>;

class Decoder {
 public:
  // Requires: the arguments outlive the decoder; read_weights made `weights` for `config`.
  //           n_threads 0: all processors.
  Decoder(const ModelConfig& config, const Weights& weights, unsigned n_threads,
          Scorer scorer = Scorer::kFast, ActivationBits activations = ActivationBits::k16);
  Decoder(const Model& model, unsigned n_threads, Scorer scorer = Scorer::kFast,
          ActivationBits activations = ActivationBits::k16)
      : Decoder(model.config, *model.weights, n_threads, scorer, activations) {}
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  // Appends `ids` to the cache, after the tokens it holds.
  //
  // Returns the logits of the last token: [vocab_size], valid until the next call.
  // Progress: tokens of `ids` done; called before each layer, first before any work and last with
  //           all tokens done.
  // Requires: ids not empty; the cache passed cache::check_identity with this model.
  // Errors:   kInvalidArgument (an id out of range; more tokens than the context holds, with the
  //           number that fits), kUnsupported (hidden tokens), those of check_layers() and
  //           adopt_delta_state(), kInterrupted, those of cache::pack_full_tail, kCorrupt (hidden
  //           states, queries, keys, values or logits that are not finite, because values of the
  //           cache or of the weights overflow; the message names layer and token). After an error
  //           the cache is valid and holds the tokens of the finished chunks.
  // Threads:  one call at a time.
  // Bytes:    identical for any number of threads on the same kind of CPU.
  Result<std::span<const float>> prefill(cache::Cache& cache, std::span<const std::int32_t> ids,
                                         const Progress& progress = {});

  // As prefill(), but passes the logits of every token to `sink`, for evaluation. If a filter is
  // given, it changes keys and values before the cache stores them; its errors are returned. So are
  // those of `queries`, which gets the queries of each layer with full attention.
  Result<void> prefill_all_logits(cache::Cache& cache, std::span<const std::int32_t> ids,
                                  const LogitsSink& sink, const Progress& progress = {},
                                  const KvFilter& filter = {}, const QuerySink& queries = {});

  // Appends one token. Result, requirements and errors as prefill().
  Result<std::span<const float>> decode_step(cache::Cache& cache, std::int32_t id);

  // Recomputes the logits of the last token in the cache, by repeating its decode step without
  // appending. Generation from a loaded cache starts here. The result has the same bits as when the
  // token was appended, unless its block has been quantized since.
  // Requires: the cache holds a token.
  // Errors:   as queries().
  Result<std::span<const float>> last_logits(const cache::Cache& cache);

  // Recomputes the queries of tokens [first, first + n) over the cache contents up to them, without
  // appending.
  //
  // Requires: the cache holds these tokens, in one token block; there are at least two, or it is
  //           the last token of the cache. Only layers with full attention report their queries.
  // Errors:   kUnsupported (hidden tokens), those of check_layers() and check_can_run_again(),
  //           kInvalidArgument (an id out of range), kIo and kCorrupt as prefill(), those of
  //           `sink`.
  Result<void> queries(const cache::Cache& cache, std::int64_t first, std::int64_t n,
                       const QuerySink& sink);

  // Bytes of scratch memory in use.
  std::uint64_t scratch_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Checks that the layers of a cache match the model in kind and shape.
//
// A sliding window may have the size of the model's, or one token less (as transformers keeps it):
// then it holds what the next token sees, but not all that the last one has seen.
//
// Errors: kMismatch (counts, shapes, windows, full attention where the model has none),
//         kInvalidArgument (recurrent state or a sliding window where the model has full
//         attention). The message names the layer.
Result<void> check_layers(const cache::Cache& cache, const ModelConfig& config);
// The same by a description, before values are read.
Result<void> check_layers(std::span<const cache::LayerDesc> layers, const ModelConfig& config);

// Checks by its description that a cache belongs to the model and has its layers.
// Errors: those of cache::check_identity() and check_layers().
Result<void> check_fits(const cache::CacheDesc& cache, const Model& model);

// Checks that tokens from `first` on can be recomputed from the cache contents.
// Errors: kUnsupported when a layer keeps only the state after the last token, or when its window
//         no longer holds what these tokens have seen. The message names the layer.
Result<void> check_can_run_again(const cache::Cache& cache, std::int64_t first,
                                 const ModelConfig& config);

}  // namespace tqcache::model
