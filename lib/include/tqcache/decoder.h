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
// where each prefill() began, and not on whether the cache was in a file meanwhile.
//
// Sliding-window and recurrent layers cannot be rolled back: their new state takes effect only when
// the whole chunk is done.

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

// --- Filters: keys and values changed on their way into a cache
//
// They show what a codec costs a model: every key and value is quantized before attention sees it,
// those of the current token included. A cache in use is kinder: its tail is dense.

// Changes the keys and values of some tokens before layer `layer` takes them.
//
// Shapes: k, v [n, n_kv_heads, head_dim], of the tokens at positions [first, first + n), which are
//         in one token block; keys are after RoPE.
// Errors: end the prefill.
using KvFilter = std::function<Result<void>(std::int64_t layer, std::int64_t first,
                                            std::span<float> k, std::span<float> v)>;

// Replaces keys and values by what `cache` would keep of them: encoded and decoded with its codecs,
// means and outlier channels. Sink tokens, dense K and V, and layers with a window stay as they
// are.
//
// Requires: `cache` outlives the filter; its layers have the shapes of the model's.
// Errors:   of the filter: kInvalidArgument if K or V has no packed block, so that its mean or its
//           outlier channels are not known; those of cache::KvCodec::encode. The message names the
//           layer and K or V.
KvFilter coding_filter(const cache::Cache& cache);

// --- The decoder

// How quantized keys are scored: in f32, or with queries and centroids rounded to integers where
// the CPU multiplies those faster (docs/reference/codec.md, "Kernels", has the error bounds).
using Scorer = codec::Precision;

// How attention reads a cache on this CPU, for reports.
struct KernelPath {
  // Decode steps: "dense" (no block is quantized), "packed_int8" or "packed_f32" (codes are scored
  // without decoding them, in integers or in f32). The slowest of K and V of all layers.
  std::string_view step = "dense";

  // Prompts, many tokens at once: "dense", or "decoded": each block is decoded once for all
  // queries.
  std::string_view prompt = "dense";

  // Why decode steps are slower than requested, for the first K or V where they are: "layer 0 k: no
  // kernels of whole numbers on scalar". Empty if they are not.
  std::string fallback;
};

KernelPath kernel_path(const cache::Cache& cache, Scorer scorer);

// Called with the logits [n, vocab_size] of tokens [first, first + n) of the prompt.
using LogitsSink =
    std::function<void(std::int64_t first, std::int64_t n, std::span<const float> logits)>;

// Called with the queries [n, n_heads, head_dim] of some tokens in a layer, after RoPE. An error
// ends the work.
using QuerySink = std::function<Result<void>(std::int64_t layer, std::span<const float> queries)>;

class Decoder {
 public:
  // Requires: what it is given outlives the decoder; read_weights made `weights` for `config`.
  //           n_threads 0: all processors.
  Decoder(const ModelConfig& config, const Weights& weights, unsigned n_threads,
          Scorer scorer = Scorer::kFast);
  Decoder(const Model& model, unsigned n_threads, Scorer scorer = Scorer::kFast)
      : Decoder(model.config, *model.weights, n_threads, scorer) {}
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  // Appends `ids` to the cache, in token order after those it holds.
  //
  // Gives the logits of the last token: [vocab_size], valid until the next call.
  // Progress: tokens of `ids` done; asked before each layer: before the first, with it whole.
  // Requires: ids not empty; the cache passed cache::check_identity with this model.
  // Errors:   kInvalidArgument (an id out of range; more tokens than the context holds, and how
  //           many fit), kUnsupported (hidden tokens), those of check_layers() and
  //           adopt_delta_state(), kInterrupted, kNotFound (several tokens, and no OpenBLAS is
  //           installed), those of cache::pack_full_tail, kCorrupt (hidden states, queries, keys,
  //           values or logits that are not finite, because those of the cache or of the weights
  //           overflow; the message names layer and token). After an error the cache holds the
  //           tokens of the chunks that were finished, and is valid.
  // Threads:  one call at a time.
  // Bytes:    the same for any number of threads, on one kind of CPU.
  Result<std::span<const float>> prefill(cache::Cache& cache, std::span<const std::int32_t> ids,
                                         const Progress& progress = {});

  // The same, giving every token's logits to `sink`, for evaluation. The filter, if there is one,
  // changes keys and values before the cache takes them; its errors come out here.
  Result<void> prefill_all_logits(cache::Cache& cache, std::span<const std::int32_t> ids,
                                  const LogitsSink& sink, const Progress& progress = {},
                                  const KvFilter& filter = {});

  // Appends one token. Logits, requirements and errors as prefill().
  Result<std::span<const float>> decode_step(cache::Cache& cache, std::int32_t id);

  // The logits of the last token that the cache holds, by doing its decode step again without
  // appending: a loaded cache is continued from them. The same bits as when the token was appended,
  // unless its block has been packed since.
  // Requires: the cache holds a token.
  // Errors:   as queries().
  Result<std::span<const float>> last_logits(const cache::Cache& cache);

  // The queries of tokens [first, first + n), by running them again over what the cache holds up to
  // them, without appending.
  //
  // Requires: the cache holds them, in one token block; they are two or more, or its last token.
  // Only layers with full attention report their queries.
  // Errors:   kUnsupported (hidden tokens), those of check_layers() and check_can_run_again(),
  //           kInvalidArgument (an id out of range), kNotFound (no OpenBLAS), kCorrupt as
  //           prefill(), those of `sink`.
  Result<void> queries(const cache::Cache& cache, std::int64_t first, std::int64_t n,
                       const QuerySink& sink);

  // Bytes of scratch memory in use.
  std::uint64_t scratch_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Checks that the layers of a cache are those of the model, by kind and shape.
//
// A sliding window may have the size of the model's, or one token less: then it has what the next
// token sees (as transformers keeps it), but not all that the last one has seen.
//
// Errors: kMismatch (counts, shapes, windows, full attention where the model has none),
//         kInvalidArgument (recurrent state or a sliding window where the model has full
//         attention). The message names the layer.
Result<void> check_layers(const cache::Cache& cache, const ModelConfig& config);
// The same by a description, before values are read.
Result<void> check_layers(std::span<const cache::LayerDesc> layers, const ModelConfig& config);

// Whether tokens from `first` on can be computed again over what the cache holds.
// Errors: kUnsupported when a layer keeps only the state behind the last token, or when its window
//         has left what these tokens have seen. The message names the layer.
Result<void> check_can_run_again(const cache::Cache& cache, std::int64_t first,
                                 const ModelConfig& config);

}  // namespace tqcache::model
