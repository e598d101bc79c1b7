#include "tqcache/format/predicted_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/manifest.h"
#include "tqcache/hash.h"
#include "tqcache/predict/predictor.h"

namespace tqcache::format {
namespace {

using predict::BlockCoder;
using predict::BlockRope;
using predict::Predictor;

// A token block of a cache, on its way through the coder.
struct BlockWork {
  BlockWork(const Predictor& predictor, const cache::CacheDesc& cache, float step,
            std::int64_t n_sinks, std::int64_t block)
      : shape(predictor.profile().shape),
        n(to_size(cache::tokens_in_block(cache.n_tokens(), block))),
        n_dense(std::min(n, to_size(cache::sinks_in_block(n_sinks, block)))),
        dim(to_size(predictor.profile().channels())),
        n_tensors(predictor.profile().tensors.size()),
        rope(cache.identity.rope, shape, block * cache::kTokenBlock, n),
        coder(predictor, step,
              std::span(cache.tokens).subspan(to_size(block * cache::kTokenBlock), n), n_dense) {}

  // Bytes of the sink tokens of a section.
  std::size_t dense_bytes(Dtype dtype) const { return n_dense * dim * dtype_size(dtype); }

  cache::HeadShape shape;
  std::size_t n;        // tokens
  std::size_t n_dense;  // sink tokens among them
  std::size_t dim;
  std::size_t n_tensors;
  BlockRope rope;
  BlockCoder coder;
};

// Rows of vectors to the bytes of a section, with the sink tokens as they were.
void finish_section(const BlockWork& work, bool is_key, Dtype dtype, ByteView sinks,
                    std::span<float> rows, AlignedBytes& raw) {
  if (is_key) work.rope.rotate(rows);
  predict::rows_of_values(work.shape, dtype, sinks, rows.first(work.n_dense * work.dim));
  raw.resize(rows.size() * dtype_size(dtype));
  predict::values_of_rows(work.shape, dtype, rows, raw);
}

Result<PredictedBlock> decode_block(const Manifest& manifest, const Predictor& predictor,
                                    std::int64_t block, const ReadStored& read) {
  const Prediction& prediction = *manifest.prediction;
  BlockWork work(predictor, manifest, prediction.step, prediction.n_sinks, block);
  PredictedBlock result;
  result.raw.resize(work.n_tensors);
  AlignedFloats rows(work.n * work.dim);
  AlignedBytes stored;
  for (std::size_t tensor = 0; tensor < work.n_tensors; ++tensor) {
    const std::size_t index = to_size(block) * work.n_tensors + tensor;
    const SectionInfo& section = manifest.sections[index];
    const auto decode = [&]() -> Result<void> {
      TQC_TRY(read(section, stored));
      const Dtype dtype = predicted_dtype(manifest, tensor);
      const std::size_t n_dense = work.dense_bytes(dtype);
      if (stored.size() < n_dense) return corrupt("shorter than its sink tokens");
      const ByteView bytes = stored;
      TQC_TRY(work.coder.decode(bytes.subspan(n_dense), rows));
      finish_section(work, tensor % 2 == 0, dtype, bytes.first(n_dense), rows, result.raw[tensor]);
      return {};
    };
    if (auto done = decode(); !done) {
      return in_context(cache::block_place(index, section), std::move(done).error());
    }
  }
  return result;
}

Result<PredictedBlock> encode_block(const cache::CacheReader& source, const Predictor& predictor,
                                    float step, std::int64_t n_sinks, std::int64_t block) {
  const cache::CacheDesc& cache = source.description();
  BlockWork work(predictor, cache, step, n_sinks, block);
  PredictedBlock result;
  result.raw.resize(work.n_tensors);
  result.coded.resize(work.n_tensors);
  AlignedFloats rows(work.n * work.dim), decoded(work.n * work.dim);
  AlignedFloats sink_rows(work.n_dense * work.dim);
  for (std::size_t tensor = 0; tensor < work.n_tensors; ++tensor) {
    const std::size_t index = to_size(block) * work.n_tensors + tensor;
    const Dtype dtype = predicted_dtype(cache, tensor);
    TQC_TRY_ASSIGN(const SharedBytes values, source.share(index));
    predict::rows_of_values(work.shape, dtype, values.view(), rows);
    Bytes& coded = result.coded[tensor];
    coded.resize(work.dense_bytes(dtype));
    std::copy_n(rows.begin(), sink_rows.size(), sink_rows.begin());
    predict::values_of_rows(work.shape, dtype, sink_rows, coded);
    if (tensor % 2 == 0) work.rope.rotate_back(rows);
    auto done = work.coder.encode(rows, coded, decoded);
    if (!done) {
      return in_context(cache::block_place(index, source.blocks()[index]), std::move(done).error());
    }
    const Bytes sinks(coded.begin(),
                      coded.begin() + static_cast<std::ptrdiff_t>(work.dense_bytes(dtype)));
    finish_section(work, tensor % 2 == 0, dtype, sinks, decoded, result.raw[tensor]);
  }
  return result;
}

class PredictingReader : public cache::CacheReader {
 public:
  PredictingReader(std::shared_ptr<const cache::CacheReader> source,
                   std::shared_ptr<const Predictor> predictor, float step, std::int64_t n_sinks)
      : source_(std::move(source)), predictor_(std::move(predictor)) {
    prediction_.profile = predictor_->digest();
    prediction_.step = step;
    prediction_.n_sinks = n_sinks;
  }

  const cache::CacheDesc& description() const override { return source_->description(); }
  const std::vector<cache::BlockInfo>& blocks() const override { return source_->blocks(); }
  std::optional<Prediction> prediction() const override { return prediction_; }

  Result<void> read(std::size_t index, AlignedBytes& raw) const override {
    TQC_TRY_ASSIGN(const auto block, block_of(index));
    raw = block->raw[index % predictor_->profile().tensors.size()];
    return {};
  }

  Result<std::optional<cache::StoredBlock>> stored(std::size_t index,
                                                   const cache::Room& room) const override {
    TQC_TRY_ASSIGN(const auto block, block_of(index));
    const std::size_t tensor = index % predictor_->profile().tensors.size();
    const Bytes& coded = block->coded[tensor];
    if (coded.size() >= source_->blocks()[index].raw_bytes) {
      return unsupported(
          fmt::format("{}: its code is not smaller than its values; use a larger step",
                      cache::block_place(index, source_->blocks()[index])));
    }
    std::ranges::copy(coded, room(coded.size()).begin());
    return std::optional(
        cache::StoredBlock{Compression::kPredicted, xxh3_128(coded), sha256(block->raw[tensor])});
  }

 private:
  Result<std::shared_ptr<const PredictedBlock>> block_of(std::size_t index) const {
    const std::int64_t n_blocks = cache::block_count(source_->n_tokens());
    return made_.get(source_->blocks()[index].block, n_blocks, [this](std::int64_t block) {
      return encode_block(*source_, *predictor_, prediction_.step, prediction_.n_sinks, block);
    });
  }

  std::shared_ptr<const cache::CacheReader> source_;
  std::shared_ptr<const Predictor> predictor_;
  Prediction prediction_;
  mutable PredictedBlocks made_;
};

}  // namespace

Dtype predicted_dtype(const cache::CacheDesc& cache, std::size_t tensor) {
  const auto& layer = std::get<cache::AttentionDesc>(cache.layers[tensor / 2]);
  return (tensor % 2 == 0 ? layer.k : layer.v).dtype;
}

Result<std::shared_ptr<const PredictedBlock>> PredictedBlocks::get(std::int64_t block,
                                                                   std::int64_t n_blocks,
                                                                   const Make& make) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto found = entries_.find(block);
    if (found != entries_.end() && found->second) return *found->second;
    std::int64_t next = block;
    if (found == entries_.end()) {
      make_room(block, n_blocks);
    } else {
      while (next < n_blocks && entries_.contains(next)) ++next;
      if (next == n_blocks || !make_room(block, block)) {
        changed_.wait(lock);
        continue;
      }
    }
    entries_.emplace(next, std::nullopt);
    lock.unlock();
    std::optional<Result<PredictedBlock>> tried;
    try {
      tried = make(next);
    } catch (...) {  // no memory: another thread may try again
      lock.lock();
      entries_.erase(next);
      changed_.notify_all();
      throw;
    }
    Result<PredictedBlock>& made = *tried;
    lock.lock();
    if (made) {
      entries_[next] = std::make_shared<const PredictedBlock>(std::move(*made));
    } else {
      entries_[next] = std::move(made).error();
    }
    changed_.notify_all();
  }
}

bool PredictedBlocks::make_room(std::int64_t block, std::int64_t end) {
  const std::size_t most = thread_count(0) + 2;
  for (auto each = entries_.begin(); entries_.size() >= most && each != entries_.end();) {
    if (each->first >= end) break;
    const bool is_done = each->second && each->first != block;
    each = is_done ? entries_.erase(each) : std::next(each);
  }
  return entries_.size() < most;
}

Result<std::shared_ptr<const Predictor>> PredictedBlocks::predictor(const Manifest& manifest) {
  const std::lock_guard lock(mutex_);
  if (predictor_ != nullptr) return predictor_;
  TQC_TRY_ASSIGN(auto predictor, profiles_.find(manifest.prediction->profile, memory_));
  TQC_TRY(predict::check_profile(predictor->profile(), manifest));
  predictor_ = std::move(predictor);
  return predictor_;
}

std::int64_t predicted_block_count(const Manifest& manifest) {
  std::int64_t count = 0;
  for (const SectionInfo& section :
       std::span(manifest.sections).first(count_cache_sections(manifest))) {
    if (section.compression == Compression::kPredicted) count = section.block + 1;
  }
  return count;
}

Result<void> read_predicted(const Manifest& manifest, const SectionInfo& section,
                            const ReadStored& read, AlignedBytes& raw) {
  PredictedBlocks& blocks = *manifest.predicted;
  TQC_TRY_ASSIGN(const auto predictor, blocks.predictor(manifest));
  const auto make = [&](std::int64_t block) {
    return decode_block(manifest, *predictor, block, read);
  };
  TQC_TRY_ASSIGN(const auto block,
                 blocks.get(section.block, predicted_block_count(manifest), make));
  raw = block->raw[2 * to_size(section.layer) + static_cast<std::size_t>(section.tensor)];
  return {};
}

Result<std::shared_ptr<const cache::CacheReader>> predict_cache(
    std::shared_ptr<const cache::CacheReader> source, std::shared_ptr<const Predictor> predictor,
    float step, std::int64_t n_sinks) {
  TQC_TRY(predictor->prepare_encoding(0));
  return std::shared_ptr<const cache::CacheReader>(
      std::make_shared<PredictingReader>(std::move(source), std::move(predictor), step, n_sinks));
}

Result<void> check_predictable(const cache::CacheDesc& cache, const predict::Profile& profile) {
  TQC_TRY(predict::check_profile(profile, cache));
  if (cache.n_tokens() < cache::kTokenBlock) {
    return unsupported(fmt::format("the cache has {} tokens; prediction needs at least {}",
                                   cache.n_tokens(), cache::kTokenBlock));
  }
  for (const cache::LayerDesc& layer : cache.layers) {
    const auto& attention = std::get<cache::AttentionDesc>(layer);
    if (attention.k.quant || attention.v.quant) {
      return unsupported("keys or values are quantized already");
    }
  }
  return {};
}

}  // namespace tqcache::format
