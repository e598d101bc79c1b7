#pragma once
// tools/cli/probe.h: A check of a cache: the last tokens are computed again and compared.
//
// Fingerprints say that a cache claims to be of a model. The probe sees that it is: it takes the
// last tokens out, lets the model run over them again, and looks at how far the new keys and
// values are from the ones in the file.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/progress.h"

namespace tqcache::cli {

struct ProbeLayer {
  std::int64_t layer = 0;
  double k_error = 0;  // |new - old| / |old| over all probed head vectors
  double v_error = 0;
  double k_limit = 0;  // errors up to here are expected
  double v_limit = 0;
};

struct ProbeReport {
  std::int64_t first_token = 0;
  std::int64_t n_tokens = 0;
  std::vector<ProbeLayer> layers;

  // The first layer beyond its limit: "layer 3 k: computed again, ...".
  std::optional<std::string> complaint() const;
};

// Whether a cache can be cut shorter to be probed: state of layers without attention, and what a
// sliding window has left behind, cannot be taken back.
bool can_probe(const cache::Cache& cache);
// Whether that goes for all caches of a model.
bool has_full_attention_alone(const model::ModelConfig& config);

// Probes the last `n_last` tokens, or those in the last token block, if they are fewer.
//
// Errors of 0.01 are expected while everything is dense (rounding to f16 or bf16 and the order of
// sums); 0.05 in caches that another program computed, and 0.7 where it had them quantized, which
// Identity::source_format tells: "mlx-lm", "mlx-lm (quantized)". With a packed side of b bits it
// is 3.3 * 2^-b more, at most 1: both the values compared and those that attention reads carry the
// codec's error. (Measured: 1.8 * 2^-b; values that have nothing to do with each other differ
// by 1.4.) Dense values of layer 0 depend on the token alone, so there no codec counts. Requires:
// the cache passed cache::check_identity with this model, and can_probe(). Errors:
// kInvalidArgument (an empty cache), those of the decoder.
Result<ProbeReport> probe(cache::Cache cache, const model::Model& model, std::int64_t n_last,
                          unsigned n_threads, const Progress& progress);

}  // namespace tqcache::cli
