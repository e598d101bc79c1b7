#pragma once
// eval/predicted.h: a filter that replaces keys and values by what a predicted archive would hold.
//
// Spec: docs/reference/eval.md, "ppl and kld"; docs/reference/codec.md §11.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tqcache/decoder.h"
#include "tqcache/description.h"
#include "tqcache/predict.h"

namespace tqcache::eval {

// The bytes of the sections that the filter has encoded, without those of sink tokens.
struct PredictedSize {
  std::uint64_t bytes = 0;
  std::uint64_t value_bytes = 0;  // of values alone, among them
  std::uint64_t values = 0;       // coded components of keys and values

  double bits_per_value() const {
    return values == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(values);
  }
};

// Encodes and decodes each chunk of a prefill as a token block. So errors propagate: a layer sees
// what was decoded of the layers before it.
//
// Shapes:   ids: the tokens of the prefill, from position 0 on.
// Requires: the arguments outlive the filter; the profile belongs to the model; the prefill has one
//           filter, and runs all layers for a chunk before the next one.
// Errors:   of the filter: those of BlockCoder::encode().
model::KvFilter predicted_filter(std::shared_ptr<const predict::Predictor> predictor,
                                 const cache::Rope& rope, float step, std::int64_t n_sinks,
                                 std::span<const std::int32_t> ids, PredictedSize& size);

}  // namespace tqcache::eval
