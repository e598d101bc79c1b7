#include "tqcache/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/base/memory_budget.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/cache/window.h"
#include "tqcache/kv_codec.h"

namespace tqcache::cache {
namespace {

// Blocks that a codec is fitted to and that are packed later are read, decrypted and decompressed
// once as long as they fit into this much memory.
constexpr std::uint64_t kMostKeptBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kKeptPartOfBudget = 16;  // and into this part of the memory budget

constexpr std::array<TensorKind, 2> kKeysAndValues = {TensorKind::kKeys, TensorKind::kValues};

// The inputs of a view of some layers of a cache, besides its source.
struct Conversion {
  std::span<const SidePlan> plans;  // [2 n_layers] of the source
  KvTables tables;
  unsigned n_threads = 0;
  std::int64_t first_layer = 0;  // number of the source's first layer, for messages
};

class Quantized : public CacheReader {
 public:
  Quantized(std::shared_ptr<const CacheReader> source, const Conversion& conversion)
      : source_(std::move(source)),
        index_(source_->blocks()),
        description_(source_->description()),
        codecs_(2 * description_.layers.size()),
        n_threads_(conversion.n_threads),
        first_layer_(conversion.first_layer) {}

  // Reads everything that must be known before the first block can be quantized.
  Result<void> prepare(const Conversion& conversion, const Progress& progress) {
    std::vector<DenseWindow> windows;
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < description_.layers.size(); ++i) {
      const std::span<const SidePlan> plans = conversion.plans.subspan(2 * i, 2);
      if (plans[0].dense && plans[1].dense) continue;
      if (is_dense_window(i)) {
        windows.push_back({i, plans});
        continue;
      }
      for (const TensorKind kind : kKeysAndValues) {
        const SidePlan& plan = plans[static_cast<std::size_t>(kind)];
        if (plan.dense) continue;
        TQC_TRY_ASSIGN(codec_of(i, kind), make_codec_of(i, kind, plan, conversion.tables));
        tensors.push_back(
            {i, kind, plan.outlier_policy,
             codec_of(i, kind)->blocks_to_fit(plan.outlier_policy, n_tokens(), begin_of(i))});
      }
    }

    std::uint64_t window_bytes = 0, total = 0;
    for (const DenseWindow& window : windows) window_bytes += bytes_of(window);
    if (window_bytes > LoadOptions{}.max_bytes) {
      return too_large("windows of " + std::to_string(window_bytes) + " bytes");
    }
    total = window_bytes;
    for (const Tensor& tensor : tensors) total += bytes_of(tensor);
    ProgressCounter counter(progress, total);
    for (const DenseWindow& window : windows) {
      TQC_TRY(pack_window(window, conversion.tables));
      TQC_TRY(counter.add(bytes_of(window)));
    }
    for (const Tensor& tensor : tensors) {
      if (tensor.sample.empty()) continue;
      TQC_TRY(fit(tensor));
      TQC_TRY(counter.add(bytes_of(tensor)));
    }
    describe_target();
    return {};
  }

  const CacheDesc& description() const override { return description_; }
  const std::vector<BlockInfo>& blocks() const override { return blocks_; }

  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    const std::optional<std::size_t> origin = origins_[block];
    if (origin && source_->blocks()[*origin].packed == blocks_[block].packed) {
      return source_->read(*origin, raw);
    }
    TQC_TRY_ASSIGN(const SharedBytes shared, share(block));
    raw.assign(shared.view().begin(), shared.view().end());
    return {};
  }

  Result<SharedBytes> share(std::size_t block) const override {
    const std::optional<std::size_t> origin = origins_[block];
    if (!origin) return window_blocks_.at(key_of(blocks_[block]));
    if (source_->blocks()[*origin].packed == blocks_[block].packed) return source_->share(*origin);
    return pack(*origin);
  }

  std::span<const Checkpoint> checkpoints() const override { return checkpoints_; }
  void set_checkpoints(std::vector<Checkpoint> checkpoints) {
    checkpoints_ = std::move(checkpoints);
  }

 private:
  // A dense window that is to be quantized.
  struct DenseWindow {
    std::size_t layer;
    std::span<const SidePlan> plans;  // [2]
  };

  // K or V in token blocks, to be quantized or already quantized.
  struct Tensor {
    std::size_t layer;
    TensorKind kind;
    OutlierPolicy policy;
    std::vector<std::int64_t> sample;  // token blocks that the codec is fitted to
  };

  std::optional<KvCodec>& codec_of(std::size_t layer, TensorKind kind) {
    return codecs_[2 * layer + static_cast<std::size_t>(kind)];
  }
  const LayerDesc& layer_of(std::size_t layer) const {
    return source_->description().layers[layer];
  }
  HeadShape shape_of(std::size_t layer) const { return attention_of(layer_of(layer))->shape; }
  std::int64_t begin_of(std::size_t layer) const {
    const auto* window = std::get_if<WindowDesc>(&layer_of(layer));
    return window == nullptr ? 0 : window_begin(window->window, n_tokens());
  }
  bool is_dense_window(std::size_t layer) const {
    const auto* window = std::get_if<WindowDesc>(&layer_of(layer));
    return window != nullptr && !is_quantized(window->attention);
  }
  std::size_t origin_of(std::size_t layer, TensorKind kind, std::int64_t block) const {
    return index_.at({static_cast<std::int64_t>(layer), kind, block});
  }
  std::string name_of(std::size_t layer, TensorKind kind) const {
    return "layer " + std::to_string(first_layer_ + static_cast<std::int64_t>(layer)) +
           (kind == TensorKind::kKeys ? " k" : " v");
  }
  Error in_block(std::size_t layer, TensorKind kind, std::int64_t block, Error error) const {
    return in_context(name_of(layer, kind) + ": token block " + std::to_string(block),
                      std::move(error));
  }

  Result<KvCodec> make_codec_of(std::size_t layer, TensorKind kind, const SidePlan& plan,
                                const KvTables& tables) const {
    const TensorDesc& tensor = tensor_of(layer_of(layer), kind);
    if (tensor.quant) return KvCodec::make(tensor, shape_of(layer), order_of(kind), tables);
    return make_codec(plan, order_of(kind), shape_of(layer), tensor.dtype, tables);
  }

  std::uint64_t bytes_of(const DenseWindow& window) const {
    return source_->blocks()[origin_of(window.layer, TensorKind::kArray, 0)].raw_bytes +
           source_->blocks()[origin_of(window.layer, TensorKind::kArray, 1)].raw_bytes;
  }
  std::uint64_t bytes_of(const Tensor& tensor) const {
    std::uint64_t bytes = 0;
    for (const std::int64_t block : tensor.sample) {
      bytes += source_->blocks()[origin_of(tensor.layer, tensor.kind, block)].raw_bytes;
    }
    return bytes;
  }

  FullBlock full_block(std::size_t layer, TensorKind kind, std::int64_t block,
                       ByteView values) const {
    return {shape_of(layer), tensor_of(layer_of(layer), kind).dtype, block, values,
            tokens_before(begin_of(layer), block)};
  }

  Result<void> fit(const Tensor& tensor) {
    std::vector<SharedBytes> raw(tensor.sample.size());
    const auto origin = [&](std::size_t i) {
      return origin_of(tensor.layer, tensor.kind, tensor.sample[i]);
    };
    TQC_TRY(parallel_try(raw.size(), n_threads_, [&](std::size_t i) -> Result<void> {
      TQC_TRY_ASSIGN(raw[i], source_->share(origin(i)));
      return {};
    }));
    for (std::size_t i = 0; i < raw.size(); ++i) keep(origin(i), raw[i]);
    std::vector<FullBlock> sample;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      sample.push_back(full_block(tensor.layer, tensor.kind, tensor.sample[i], raw[i].view()));
    }
    codec_of(tensor.layer, tensor.kind)->fit(sample, tensor.policy, n_threads_);
    return {};
  }

  // Keeps a block that was read for fitting until it is packed, while there is room.
  void keep(std::size_t origin, const SharedBytes& raw) {
    const std::uint64_t most =
        std::min(kMostKeptBytes, memory_budget().bytes() / kKeptPartOfBudget);
    if (kept_bytes_ + raw.size() > most) return;
    if (kept_.emplace(origin, raw).second) kept_bytes_ += raw.size();
  }

  // A block of the source. A kept one is given away: packing it frees it.
  Result<SharedBytes> share_source(std::size_t origin) const {
    {
      const std::lock_guard lock(kept_mutex_);
      if (auto kept = kept_.extract(origin)) return std::move(kept.mapped());
    }
    return source_->share(origin);
  }

  // Files store a dense window as arrays and a quantized one as token blocks. Windows are short, so
  // these blocks are made at once and kept in memory until they are read.
  Result<void> pack_window(const DenseWindow& window, const KvTables& tables) {
    const std::size_t layer = window.layer;
    const Window size = std::get<WindowDesc>(layer_of(layer)).window;
    for (const TensorKind kind : kKeysAndValues) {
      const SidePlan& plan = window.plans[static_cast<std::size_t>(kind)];
      const Dtype dtype = tensor_of(layer_of(layer), kind).dtype;
      TQC_TRY_ASSIGN(
          const SharedBytes array,
          source_->share(origin_of(layer, TensorKind::kArray, static_cast<std::int64_t>(kind))));
      const DenseSide dense =
          scatter_window(shape_of(layer), size, dtype, array.view(), n_tokens());
      const auto full = [&](std::int64_t block) {
        return full_block(layer, kind, block, dense.blocks[to_size(block)]);
      };
      if (!plan.dense) {
        TQC_TRY_ASSIGN(KvCodec codec,
                       make_codec(plan, order_of(kind), shape_of(layer), dtype, tables));
        std::vector<FullBlock> sample;
        for (const std::int64_t block :
             codec.blocks_to_fit(plan.outlier_policy, n_tokens(), begin_of(layer))) {
          sample.push_back(full(block));
        }
        if (!sample.empty()) codec.fit(sample, plan.outlier_policy, n_threads_);
        codec_of(layer, kind) = std::move(codec);
      }
      for (std::int64_t block = first_window_block(size, n_tokens());
           block < block_count(n_tokens()); ++block) {
        SharedBytes& bytes = window_blocks_[{static_cast<std::int64_t>(layer), kind, block}];
        const std::int64_t n_valid = tokens_in_block(n_tokens(), block);
        if (plan.dense || n_valid < kTokenBlock) {
          AlignedBytes rows;
          const ByteView valid = first_rows(dense.blocks[to_size(block)], shape_of(layer), dtype,
                                            kTokenBlock, n_valid, rows);
          if (rows.empty()) rows.assign(valid.begin(), valid.end());
          bytes = SharedBytes(std::move(rows));
          continue;
        }
        auto packed = codec_of(layer, kind)->encode(full(block), n_threads_);
        if (!packed) return in_block(layer, kind, block, std::move(packed).error());
        bytes = *std::move(packed);
      }
    }
    return {};
  }

  // Sets the description and blocks once all codecs are known.
  void describe_target() {
    for (std::size_t i = 0; i < description_.layers.size(); ++i) {
      for (const TensorKind kind : kKeysAndValues) {
        const std::optional<KvCodec>& codec = codec_of(i, kind);
        if (codec) tensor_of(description_.layers[i], kind) = codec->describe();
      }
    }
    for (const BlockKey& key : plan_blocks(description_.layers, n_tokens())) {
      const std::optional<std::size_t> origin = index_.find(key);
      const BlockInfo* const before = origin ? &source_->blocks()[*origin] : nullptr;
      bool packed = before != nullptr && before->packed;
      if (key.side != TensorKind::kArray && codec_of(to_size(key.layer), key.side)) {
        packed = tokens_in_block(n_tokens(), key.block) == kTokenBlock;
      }
      BlockInfo block = make_block(description_, key, packed);
      if (before != nullptr && before->packed == packed) block.stored_bytes = before->stored_bytes;
      blocks_.push_back(block);
      origins_.push_back(origin);
    }
  }

  // Uses one thread: other blocks run on the other threads.
  Result<SharedBytes> pack(std::size_t origin) const {
    const BlockInfo& info = source_->blocks()[origin];
    const auto layer = to_size(info.layer);
    TQC_TRY_ASSIGN(const SharedBytes raw, share_source(origin));
    const KvCodec& codec = *codecs_[2 * layer + static_cast<std::size_t>(info.side)];
    auto packed = codec.encode(full_block(layer, info.side, info.block, raw.view()), 1);
    if (packed) return packed;
    return in_block(layer, info.side, info.block, std::move(packed).error());
  }

  std::shared_ptr<const CacheReader> source_;
  BlockIndex index_;  // of the source's blocks
  CacheDesc description_;
  std::vector<std::optional<KvCodec>> codecs_;  // [2 n_layers]; for tensors quantized here
  std::vector<BlockInfo> blocks_;
  std::vector<std::optional<std::size_t>> origins_;  // [n_blocks]: index in the source
  std::map<BlockKey, SharedBytes> window_blocks_;    // blocks without an origin
  mutable std::mutex kept_mutex_;                    // for kept_, once blocks are shared
  mutable std::map<std::size_t, SharedBytes> kept_;  // by index in the source; see keep()
  std::uint64_t kept_bytes_ = 0;                     // all that were ever kept
  std::vector<Checkpoint> checkpoints_;
  unsigned n_threads_;
  std::int64_t first_layer_;
};

using ReaderResult = Result<std::shared_ptr<const CacheReader>>;

ReaderResult make_view(std::shared_ptr<const CacheReader> source, const Conversion& conversion,
                       const Progress& progress) {
  auto view = std::make_shared<Quantized>(source, conversion);
  TQC_TRY(view->prepare(conversion, progress));
  if (source->checkpoints().empty()) return ReaderResult(std::move(view));
  // Layers of checkpoints are treated as those of the cache.
  std::vector<SidePlan> plans;
  for (const std::size_t layer : checkpoint_layers(source->description().layers)) {
    plans.insert(plans.end(), {conversion.plans[2 * layer], conversion.plans[2 * layer + 1]});
  }
  const Conversion of_checkpoints{plans, conversion.tables, conversion.n_threads};
  const auto make = [&](std::shared_ptr<const CacheReader> state) {
    return make_view(std::move(state), of_checkpoints, {});
  };
  TQC_TRY_ASSIGN(std::vector<Checkpoint> checkpoints, map_checkpoints(*source, make));
  view->set_checkpoints(std::move(checkpoints));
  return ReaderResult(std::move(view));
}

}  // namespace

ReaderResult quantize(std::shared_ptr<const CacheReader> source, const ConvertOptions& options,
                      const Progress& progress) {
  const CacheDesc& cache = source->description();
  TQC_TRY_ASSIGN(const std::vector<SidePlan> plans, plan_layers(cache, options));
  const Conversion conversion{plans, KvTables(cache.identity.rope), options.n_threads};
  return make_view(std::move(source), conversion, progress);
}

Result<Cache> convert(Cache cache, const ConvertOptions& options, const Progress& progress) {
  TQC_TRY(validate(cache));
  const CacheDesc description = describe(cache);
  TQC_TRY_ASSIGN(const std::vector<SidePlan> plans, plan_layers(description, options));
  Conversion conversion{{}, KvTables(cache.identity.rope), options.n_threads};
  const auto plans_of = [&](std::size_t layer) { return std::span(plans).subspan(2 * layer, 2); };
  const auto is_planned = [&](std::size_t layer) {
    return !plans_of(layer)[0].dense || !plans_of(layer)[1].dense;
  };

  std::uint64_t total = 0, done = 0;
  std::vector<std::uint64_t> layer_bytes(cache.layers.size());
  for (const BlockInfo& block : blocks_of(cache, description)) {
    const auto layer = to_size(block.layer);
    if (!is_planned(layer) || block.packed) continue;
    layer_bytes[layer] += block.raw_bytes;
    total += block.raw_bytes;
  }
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    if (!is_planned(i)) continue;
    const auto one = std::make_shared<Cache>();
    one->identity = cache.identity;
    one->tokens = cache.tokens;
    one->hidden_tokens = cache.hidden_tokens;
    one->layers.push_back(std::move(cache.layers[i]));
    conversion.plans = plans_of(i);
    conversion.first_layer = static_cast<std::int64_t>(i);
    TQC_TRY_ASSIGN(const auto view,
                   make_view(reader_of(std::shared_ptr<const Cache>(one)), conversion, {}));
    const auto watch = [&](std::uint64_t part, std::uint64_t all) {
      // The product of two byte counts can exceed 64 bits.
      const double fraction = all == 0 ? 1 : static_cast<double>(part) / static_cast<double>(all);
      const auto of_layer = std::llround(fraction * static_cast<double>(layer_bytes[i]));
      return !progress || progress(done + static_cast<std::uint64_t>(of_layer), total);
    };
    TQC_TRY_ASSIGN(Cache packed, load(*view, {.n_threads = options.n_threads}, watch));
    cache.layers[i] = std::move(packed.layers.front());
    done += layer_bytes[i];
  }
  return cache;
}

}  // namespace tqcache::cache
