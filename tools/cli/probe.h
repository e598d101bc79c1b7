#pragma once
// tools/cli/probe.h: a check of a cache: the last tokens are recomputed and compared.
//
// Fingerprints show which model a cache claims to come from. The probe verifies the claim: it
// removes the last tokens, lets the model compute them again, and compares the new keys and values
// with those in the file.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/progress.h"
#include "tqcache/reader.h"

namespace tqcache::cli {

// Limits of the error of dense values: of caches that tqcache computed (rounding to f16 or bf16 and
// the order of sums), of caches that another program computed in 16 bits, and of those that it
// quantized to as little as 2 bits: half of the difference of unrelated values.
inline constexpr double kDenseLimit = 0.01;
inline constexpr double kForeignLimit = 0.05;
inline constexpr double kForeignQuantizedLimit = 0.7;
// The same as kForeignLimit for a model of quantized weights: llama.cpp multiplies them with
// activations of 8 bits. (Measured: 0.051 with Q4_1.)
inline constexpr double kForeignBlocksLimit = 0.15;

// The error to expect from a cache that another program computed with this model's weights.
double foreign_limit(const model::Model& model, bool is_quantized);

struct ProbeLayer {
  std::int64_t layer = 0;
  double k_error = 0;  // |new - old| / |old| over all probed head vectors
  double v_error = 0;
  bool is_state = false;  // recurrent: k for the inputs of the convolution, v for the matrices
  double k_limit = 0;     // errors up to this are expected
  double v_limit = 0;
};

// What a probe could compare.
enum class ProbeScope : std::uint8_t {
  kLastTokens,  // all layers of the last tokens, computed behind those before them in the cache
  kWhole,       // the same, computed behind nothing: all tokens are computed again
  kFirstLayer,  // layer 0 alone: the others depend on tokens that are gone
  kNothing,
};
// "last_tokens", "whole", "first_layer", "nothing"
std::string_view name_of(ProbeScope scope);

struct ProbeReport {
  ProbeScope scope = ProbeScope::kLastTokens;
  std::int64_t first_token = 0;
  std::int64_t n_tokens = 0;
  std::vector<ProbeLayer> layers;
  // The first token whose keys or values in layer 0 are those of another token.
  std::optional<std::int64_t> wrong_token;

  // The first layer beyond its limit, or the wrong token: "layer 3 k: computed again, ...".
  std::optional<std::string> complaint() const;
};

// The largest error of all layers; NaN counts as larger than any number.
double largest_error(const ProbeReport& report);

// Whether a cache can be truncated for the probe: recurrent state, and tokens that left a sliding
// window, cannot be restored.
bool can_probe(const cache::Cache& cache);
// Whether this holds for all caches of a model.
bool has_full_attention_alone(const model::ModelConfig& config);

// Checks that all token ids of a cache are in the model's vocabulary.
// Errors: kMismatch, naming the first one that is not. Hidden tokens have no ids to check.
Result<void> check_token_ids(const cache::CacheDesc& cache, const model::ModelConfig& config);

// Probes the last `n_last` tokens, or those in the last token block if they are fewer. They may lie
// beyond the context of the model.
//
// Token ids before them are checked by layer 0, if it has attention: its keys and values depend
// only on the token and its position, also in a sliding window, which has the last ones. Those of
// another token are found if they differ by more than four times the limit, or 1.2.
//
// `dense_limit` is the error to expect from dense values. The caller chooses it, not the file. K or
// V quantized with b bits adds 3.3 * 2^-b, at most 1: both the compared values and those that
// attention reads have the codec's error. (Measured: 1.8 * 2^-b; unrelated values differ by 1.4.)
// Dense values of layer 0 depend only on the token, so no codec counts there.
//
// Requires: the cache passed cache::check_identity with this model, and can_probe().
// Errors:   kInvalidArgument (an empty cache), those of the decoder.
Result<ProbeReport> probe(cache::Cache cache, const model::Model& model, std::int64_t n_last,
                          double dense_limit, unsigned n_threads, const Progress& progress);

// The tokens of the last earlier state of a cache, such as a context checkpoint, from which
// probe_behind() can start: at most 4,096 tokens follow it. nullopt if there is none.
std::optional<std::int64_t> tokens_of_earlier_state(const cache::CacheReader& cache);

// Probes a cache that cannot be truncated from an earlier state of it, such as a context
// checkpoint. All tokens behind that state are computed again. Compared are keys and values of the
// last ones, at most `n_last`, also in sliding windows, and recurrent state.
//
// Requires: as probe(), but for can_probe(); `earlier` has the first tokens of `cache`, and fewer.
// Errors:   those of the decoder.
Result<ProbeReport> probe_behind(cache::Cache earlier, cache::Cache cache,
                                 const model::Model& model, std::int64_t n_last, double dense_limit,
                                 unsigned n_threads, const Progress& progress);

// Probes a cache that cannot be truncated and has no such state.
//
// Of up to 1,024 tokens, all are computed again, and keys and values of the last ones, also in
// windows, and recurrent state are compared; both sides have the errors of all tokens before, so
// the limit is four times `dense_limit`, at most 0.5. Of more tokens, what depends on the last
// tokens alone is compared: keys and values of a window in layer 0, and the inputs of a convolution
// in layer 0. If layer 0 has neither, nothing is.
//
// Requires, errors: as probe(), but for can_probe(). kMismatch: recurrent state that is not of this
//                   model's layers.
Result<ProbeReport> probe_alone(cache::Cache cache, const model::Model& model, std::int64_t n_last,
                                double dense_limit, unsigned n_threads, const Progress& progress);

// The error of the first tokens, at most 256, against those that the model computes from these
// tokens alone. After a context shift of llama.cpp it is large: the values were computed behind
// tokens that are gone, though the last tokens fit them. (Measured: 0.40 in values after a shift of
// SmolLM2, 0.05 without one.)
//
// Requires, errors: as probe().
Result<double> error_of_beginning(const cache::Cache& cache, const model::Model& model,
                                  unsigned n_threads);
// Of dense values; half of what was measured after a shift.
inline constexpr double kShiftedLimit = 0.2;

}  // namespace tqcache::cli
