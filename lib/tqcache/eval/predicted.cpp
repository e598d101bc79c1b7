#include "tqcache/eval/predicted.h"

#include <algorithm>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/predict/predictor.h"

namespace tqcache::eval {
namespace {

struct PredictedRun {
  std::shared_ptr<const predict::Predictor> predictor;
  const cache::Rope& rope;
  float step;
  std::int64_t n_sinks;
  std::span<const std::int32_t> ids;
  PredictedSize& size;
  std::unique_ptr<predict::BlockCoder> coder = {};
  std::unique_ptr<const predict::BlockRope> rope_of_block = {};

  Result<void> code(std::span<float> rows, std::size_t n_dense) {
    const std::size_t first = n_dense * to_size(predictor->profile().channels());
    Bytes coded;
    AlignedFloats decoded(rows.size());
    TQC_TRY(coder->encode(rows, coded, decoded));
    std::copy(decoded.begin() + static_cast<std::ptrdiff_t>(first), decoded.end(),
              rows.begin() + static_cast<std::ptrdiff_t>(first));
    size.bytes += coded.size();
    if (coder->next_tensor() % 2 == 0) size.value_bytes += coded.size();
    size.values += rows.size() - first;
    return {};
  }

  Result<void> replace(std::int64_t layer, std::int64_t first, std::span<float> k,
                       std::span<float> v) {
    const predict::Profile& profile = predictor->profile();
    const std::size_t n = k.size() / to_size(profile.channels());
    const std::size_t n_dense =
        to_size(std::clamp<std::int64_t>(n_sinks - first, 0, static_cast<std::int64_t>(n)));
    if (layer == 0) {
      TQC_TRY(predictor->prepare_encoding(0));
      coder = std::make_unique<predict::BlockCoder>(*predictor, step,
                                                    ids.subspan(to_size(first), n), n_dense);
      rope_of_block = std::make_unique<const predict::BlockRope>(rope, profile.shape, first, n);
    }
    AlignedFloats keys(k.begin(), k.end());
    rope_of_block->rotate_back(keys);
    TQC_TRY(code(keys, n_dense));
    rope_of_block->rotate(keys);
    const auto n_kept = static_cast<std::ptrdiff_t>(n_dense * to_size(profile.channels()));
    std::copy(keys.begin() + n_kept, keys.end(), k.begin() + n_kept);
    return code(v, n_dense);
  }
};

}  // namespace

model::KvFilter predicted_filter(std::shared_ptr<const predict::Predictor> predictor,
                                 const cache::Rope& rope, float step, std::int64_t n_sinks,
                                 std::span<const std::int32_t> ids, PredictedSize& size) {
  const auto run = std::make_shared<PredictedRun>(
      PredictedRun{std::move(predictor), rope, step, n_sinks, ids, size});
  return [run](std::int64_t layer, std::int64_t first, std::span<float> k, std::span<float> v) {
    return run->replace(layer, first, k, v);
  };
}

}  // namespace tqcache::eval
