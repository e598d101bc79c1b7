#include "tqcache/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/cache/rope_angles.h"
#include "tqcache/cache/tensor_loss.h"
#include "tqcache/cache/window.h"
#include "tqcache/kv_codec.h"

namespace tqcache::cache {
namespace {

constexpr std::array<TensorKind, 2> kKeysAndValues = {TensorKind::kKeys, TensorKind::kValues};

// Fit::kPrompt: with 8,192 tokens the mean is off by 1% of the standard deviation: 1e-4 of the
// energy that is left.
constexpr std::int64_t kMostFittedBlocks = 32;

// The codecs of K and V of each layer, [2 n_layers]; nullopt: the tensor stays as it is.
using Codecs = std::vector<std::optional<KvCodec>>;

// The inputs of a view of some layers of a cache, besides its source.
struct Conversion {
  std::span<const std::optional<KvCodec>> codecs;  // of the source's layers, fixed or not
  KvTables tables;
  Fit fit = Fit::kFirstBlock;
  unsigned n_threads = 0;
  MemoryBudget memory = {};
  std::int64_t first_layer = 0;  // number of the source's first layer, for messages
  std::shared_ptr<LossLog> losses = {};
};

class Quantized : public CacheReader {
 public:
  Quantized(std::shared_ptr<const CacheReader> source, const Conversion& conversion)
      : source_(std::move(source)),
        index_(source_->blocks()),
        description_(source_->description()),
        codecs_(conversion.codecs.begin(), conversion.codecs.end()),
        n_threads_(conversion.n_threads),
        first_layer_(conversion.first_layer),
        losses_(conversion.losses) {
    const Rope& rope = description_.identity.rope;
    if (!losses_) return;
    for (const LayerDesc& layer : description_.layers) {
      const auto* const attention = std::get_if<AttentionDesc>(&layer);
      if (attention == nullptr || !can_rotate(rope, attention->shape.head_dim)) continue;
      rope_ = std::make_shared<const RopeTable>(rope);
      break;
    }
  }

  // Fixes the codecs, for which it reads the blocks that they are fitted to, and packs windows.
  Result<void> prepare(const Conversion& conversion, const Progress& progress) {
    std::vector<std::size_t> windows;
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < description_.layers.size(); ++i) {
      if (!codec_of(i, TensorKind::kKeys) && !codec_of(i, TensorKind::kValues)) continue;
      if (is_dense_window(i)) {
        windows.push_back(i);
        continue;
      }
      for (const TensorKind kind : kKeysAndValues) {
        std::optional<KvCodec>& codec = codec_of(i, kind);
        if (!codec) continue;
        const TensorDesc& tensor = tensor_of(layer_of(i), kind);
        if (tensor.quant) {
          TQC_TRY_ASSIGN(
              codec, KvCodec::make(tensor, shape_of(i, kind), order_of(kind), conversion.tables));
        }
        if (codec->is_fixed()) continue;
        tensors.push_back({i, kind, fit_blocks(conversion.fit, n_tokens(), begin_of(i))});
        if (tensors.back().sample.empty()) tensors.pop_back();
      }
    }

    std::uint64_t window_bytes = 0, total = 0;
    for (const std::size_t layer : windows) window_bytes += bytes_of_window(layer);
    TQC_TRY(conversion.memory.check(window_bytes, "windows"));
    total = window_bytes;
    for (const Tensor& tensor : tensors) total += bytes_of(tensor);
    ProgressCounter counter(progress, total);
    for (const std::size_t layer : windows) {
      TQC_TRY(pack_window(layer, conversion.fit));
      TQC_TRY(counter.add(bytes_of_window(layer)));
    }
    // Many tensors at once where each needs a single block; else the blocks of one tensor.
    const std::size_t at_once = conversion.fit == Fit::kPrompt ? 1 : slot_count(n_threads_);
    for (std::size_t begin = 0; begin < tensors.size(); begin += at_once) {
      const auto some =
          std::span(tensors).subspan(begin, std::min(at_once, tensors.size() - begin));
      std::vector<std::vector<std::pair<BlockKey, SharedBytes>>> packed(some.size());
      TQC_TRY(parallel_try(some.size(), n_threads_,
                           [&](std::size_t i) { return fit(some[i], packed[i]); }));
      for (std::size_t i = 0; i < some.size(); ++i) {
        for (auto& [key, bytes] : packed[i]) made_blocks_.emplace(key, std::move(bytes));
        TQC_TRY(counter.add(bytes_of(some[i])));
      }
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
    if (const auto made = made_blocks_.find(key_of(blocks_[block])); made != made_blocks_.end()) {
      return made->second;
    }
    const std::optional<std::size_t> origin = origins_[block];
    if (source_->blocks()[*origin].packed == blocks_[block].packed) return source_->share(*origin);
    return pack(*origin);
  }

  std::span<const Checkpoint> checkpoints() const override { return checkpoints_; }
  void set_checkpoints(std::vector<Checkpoint> checkpoints) {
    checkpoints_ = std::move(checkpoints);
  }

 private:
  // K or V in token blocks, whose codec is not fixed yet.
  struct Tensor {
    std::size_t layer;
    TensorKind kind;
    std::vector<std::int64_t> sample;  // token blocks that the codec is fitted to
  };

  std::optional<KvCodec>& codec_of(std::size_t layer, TensorKind kind) {
    return codecs_[2 * layer + static_cast<std::size_t>(kind)];
  }
  const LayerDesc& layer_of(std::size_t layer) const {
    return source_->description().layers[layer];
  }
  HeadShape shape_of(std::size_t layer, TensorKind kind) const {
    return cache::shape_of(layer_of(layer), kind);
  }
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

  std::uint64_t bytes_of_window(std::size_t layer) const {
    return source_->blocks()[origin_of(layer, TensorKind::kArray, 0)].raw_bytes +
           source_->blocks()[origin_of(layer, TensorKind::kArray, 1)].raw_bytes;
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
    return {shape_of(layer, kind), tensor_of(layer_of(layer), kind).dtype, block, values,
            tokens_before(begin_of(layer), block)};
  }

  // Fits the codec of one tensor. A single block is packed at once, so that it is read only once.
  Result<void> fit(const Tensor& tensor, std::vector<std::pair<BlockKey, SharedBytes>>& packed) {
    std::vector<SharedBytes> raw(tensor.sample.size());
    TQC_TRY(parallel_try(raw.size(), n_threads_, [&](std::size_t i) -> Result<void> {
      TQC_TRY_ASSIGN(raw[i],
                     source_->share(origin_of(tensor.layer, tensor.kind, tensor.sample[i])));
      return {};
    }));
    std::vector<FullBlock> sample;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      sample.push_back(full_block(tensor.layer, tensor.kind, tensor.sample[i], raw[i].view()));
    }
    KvCodec& codec = *codec_of(tensor.layer, tensor.kind);
    codec.fit(sample, n_threads_);
    if (sample.size() > 1) return {};
    auto block = codec.encode(sample.front(), n_threads_);
    if (!block) {
      return in_block(tensor.layer, tensor.kind, tensor.sample.front(), std::move(block).error());
    }
    log_loss(tensor.layer, tensor.kind, sample.front(), block->view());
    const BlockKey key{static_cast<std::int64_t>(tensor.layer), tensor.kind, tensor.sample.front()};
    packed.emplace_back(key, *std::move(block));
    return {};
  }

  // Files store a dense window as arrays and a quantized one as token blocks. Windows are short, so
  // these blocks are made at once and kept in memory until they are read.
  Result<void> pack_window(std::size_t layer, Fit fit) {
    const Window size = std::get<WindowDesc>(layer_of(layer)).window;
    for (const TensorKind kind : kKeysAndValues) {
      const Dtype dtype = tensor_of(layer_of(layer), kind).dtype;
      TQC_TRY_ASSIGN(
          const SharedBytes array,
          source_->share(origin_of(layer, TensorKind::kArray, static_cast<std::int64_t>(kind))));
      const DenseTensor dense =
          scatter_window(shape_of(layer, kind), size, dtype, array.view(), n_tokens());
      const auto full = [&](std::int64_t block) {
        return full_block(layer, kind, block, dense.blocks[to_size(block)]);
      };
      std::optional<KvCodec>& codec = codec_of(layer, kind);
      if (codec && !codec->is_fixed()) {
        std::vector<FullBlock> sample;
        for (const std::int64_t block : fit_blocks(fit, n_tokens(), begin_of(layer))) {
          sample.push_back(full(block));
        }
        if (!sample.empty()) codec->fit(sample, n_threads_);
      }
      for (std::int64_t block = first_window_block(size, n_tokens());
           block < block_count(n_tokens()); ++block) {
        SharedBytes& bytes = made_blocks_[{static_cast<std::int64_t>(layer), kind, block}];
        const std::int64_t n_valid = tokens_in_block(n_tokens(), block);
        if (!codec || n_valid < kTokenBlock) {
          AlignedBytes rows;
          const ByteView valid = first_rows(dense.blocks[to_size(block)], shape_of(layer, kind),
                                            dtype, kTokenBlock, n_valid, rows);
          if (rows.empty()) rows.assign(valid.begin(), valid.end());
          bytes = SharedBytes(std::move(rows));
          continue;
        }
        auto packed = codec->encode(full(block), n_threads_);
        if (!packed) return in_block(layer, kind, block, std::move(packed).error());
        log_loss(layer, kind, full(block), packed->view());
        bytes = *std::move(packed);
      }
    }
    return {};
  }

  // Measures the loss of the first, the middle and the last full block.
  void log_loss(std::size_t layer, TensorKind kind, const FullBlock& block, ByteView packed) const {
    if (!losses_) return;
    const std::int64_t first = fit_blocks(Fit::kFirstBlock, n_tokens(), begin_of(layer)).front();
    const std::int64_t last = n_tokens() / kTokenBlock - 1;
    if (block.index != first && block.index != (first + last) / 2 && block.index != last) return;
    // The RoPE of windows may be another than that of the cache (Gemma 3).
    const bool has_rope = kind == TensorKind::kKeys &&
                          std::holds_alternative<AttentionDesc>(description_.layers[layer]) &&
                          can_rotate(description_.identity.rope, block.shape.head_dim);
    TensorLoss loss = measure_loss(*codecs_[2 * layer + static_cast<std::size_t>(kind)], block,
                                   packed, has_rope ? rope_ : nullptr);
    loss.layer = first_layer_ + static_cast<std::int64_t>(layer);
    loss.kind = kind;
    losses_->add(loss);
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
      if (key.tensor != TensorKind::kArray && codec_of(to_size(key.layer), key.tensor)) {
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
    TQC_TRY_ASSIGN(const SharedBytes raw, source_->share(origin));
    const KvCodec& codec = *codecs_[2 * layer + static_cast<std::size_t>(info.tensor)];
    const FullBlock block = full_block(layer, info.tensor, info.block, raw.view());
    auto packed = codec.encode(block, 1);
    if (packed) log_loss(layer, info.tensor, block, packed->view());
    if (packed) return packed;
    return in_block(layer, info.tensor, info.block, std::move(packed).error());
  }

  std::shared_ptr<const CacheReader> source_;
  BlockIndex index_;  // of the source's blocks
  CacheDesc description_;
  Codecs codecs_;
  std::vector<BlockInfo> blocks_;
  std::vector<std::optional<std::size_t>> origins_;  // [n_blocks]: index in the source
  // Blocks that were packed to prepare: those of windows, and those that codecs were fitted to.
  std::map<BlockKey, SharedBytes> made_blocks_;
  std::vector<Checkpoint> checkpoints_;
  unsigned n_threads_;
  std::int64_t first_layer_;
  std::shared_ptr<LossLog> losses_;
  std::shared_ptr<const RopeTable> rope_;  // for losses
};

// The codecs of these plans, not fixed yet.
Result<Codecs> planned_codecs(const CacheDesc& cache, std::span<const TensorPlan> plans,
                              KvTables tables) {
  Codecs codecs(plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].dense) continue;
    const LayerDesc& layer = cache.layers[i / 2];
    const TensorKind kind = kKeysAndValues[i % 2];
    TQC_TRY_ASSIGN(codecs[i], make_codec(plans[i], order_of(kind), shape_of(layer, kind),
                                         tensor_of(layer, kind).dtype, tables));
  }
  return codecs;
}

// The codecs of `like`, for the dtypes of the cache.
Result<Codecs> codecs_like(const CacheDesc& cache, const std::vector<LayerDesc>& like,
                           KvTables tables) {
  if (like.size() != cache.layers.size()) {
    return invalid("the codecs are those of " + std::to_string(like.size()) +
                   " layers, and the cache has " + std::to_string(cache.layers.size()));
  }
  Codecs codecs(2 * like.size());
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    const std::size_t layer = i / 2;
    const TensorKind kind = kKeysAndValues[i % 2];
    const auto fail = [&](const std::string& what) {
      return invalid("layer " + std::to_string(layer) +
                     (kind == TensorKind::kKeys ? " k: " : " v: ") + what);
    };
    const AttentionDesc* const from = attention_of(like[layer]);
    const AttentionDesc* const to = attention_of(cache.layers[layer]);
    if ((from == nullptr) != (to == nullptr) || (from != nullptr && !same_shapes(*from, *to))) {
      return fail("the codec is that of another kind or shape of layer");
    }
    if (from == nullptr) continue;
    const TensorDesc& wanted = tensor_of(like[layer], kind);
    const TensorDesc& tensor = tensor_of(cache.layers[layer], kind);
    if (!wanted.quant) {
      if (tensor.quant) return fail("is packed already, and should be dense");
      continue;
    }
    if (tensor.quant && !same_bits(*tensor.quant, *wanted.quant)) {
      return fail("is packed already, with another codec");
    }
    auto made = KvCodec::make({tensor.dtype, wanted.quant}, shape_of(cache.layers[layer], kind),
                              order_of(kind), tables);
    if (!made) return fail(made.error().message);
    codecs[i] = *std::move(made);
  }
  return codecs;
}

using ReaderResult = Result<std::shared_ptr<const CacheReader>>;

ReaderResult make_view(std::shared_ptr<const CacheReader> source, const Conversion& conversion,
                       const Progress& progress) {
  auto view = std::make_shared<Quantized>(source, conversion);
  TQC_TRY(view->prepare(conversion, progress));
  if (source->checkpoints().empty()) return ReaderResult(std::move(view));
  // Layers of checkpoints are treated as those of the cache.
  Codecs codecs;
  for (const std::size_t layer : checkpoint_layers(source->description().layers)) {
    codecs.insert(codecs.end(), {conversion.codecs[2 * layer], conversion.codecs[2 * layer + 1]});
  }
  const CacheDesc& first = source->checkpoints().front().state->description();
  codecs.resize(2 * first.layers.size());  // none for an opaque layer
  const Conversion of_checkpoints{codecs, conversion.tables, conversion.fit, conversion.n_threads};
  const auto make = [&](std::shared_ptr<const CacheReader> state) {
    return make_view(std::move(state), of_checkpoints, {});
  };
  TQC_TRY_ASSIGN(std::vector<Checkpoint> checkpoints, map_checkpoints(*source, make));
  view->set_checkpoints(std::move(checkpoints));
  return ReaderResult(std::move(view));
}

}  // namespace

std::vector<std::int64_t> fit_blocks(Fit fit, std::int64_t n_tokens, std::int64_t begin) {
  const std::int64_t n_full = n_tokens / kTokenBlock;
  const std::int64_t first_whole = block_count(begin);
  const std::int64_t first = first_whole < n_full ? first_whole : begin / kTokenBlock;
  const std::int64_t n_blocks = std::max<std::int64_t>(n_full - first, 0);
  const std::int64_t n_most = fit == Fit::kPrompt ? kMostFittedBlocks : 1;
  std::vector<std::int64_t> blocks(to_size(std::min(n_blocks, n_most)));
  const auto n = static_cast<std::int64_t>(blocks.size());
  for (std::int64_t i = 0; i < n; ++i) blocks[to_size(i)] = first + i * n_blocks / n;
  return blocks;
}

ReaderResult quantize(std::shared_ptr<const CacheReader> source, const ConvertOptions& options,
                      const Progress& progress) {
  const CacheDesc& cache = source->description();
  const KvTables tables(cache.identity.rope);
  TQC_TRY_ASSIGN(const std::vector<TensorPlan> plans, plan_layers(cache, options));
  TQC_TRY_ASSIGN(const Codecs codecs, planned_codecs(cache, plans, tables));
  return make_view(
      std::move(source),
      {codecs, tables, options.fit, options.n_threads, options.memory, 0, options.losses},
      progress);
}

ReaderResult quantize_like(std::shared_ptr<const CacheReader> source,
                           const std::vector<LayerDesc>& like, unsigned n_threads) {
  const CacheDesc& cache = source->description();
  const KvTables tables(cache.identity.rope);
  TQC_TRY_ASSIGN(const Codecs codecs, codecs_like(cache, like, tables));
  return make_view(std::move(source), {codecs, tables, Fit::kFirstBlock, n_threads}, {});
}

Result<Cache> convert(Cache cache, const ConvertOptions& options, const Progress& progress) {
  TQC_TRY(validate(cache));
  const CacheDesc description = describe(cache);
  TQC_TRY_ASSIGN(const std::vector<TensorPlan> plans, plan_layers(description, options));
  const KvTables tables(cache.identity.rope);
  TQC_TRY_ASSIGN(const Codecs codecs, planned_codecs(description, plans, tables));
  Conversion conversion{{}, tables,        options.fit, options.n_threads, options.memory,
                        0,  options.losses};
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
    one->media = cache.media;
    one->layers.push_back(std::move(cache.layers[i]));
    conversion.codecs = std::span(codecs).subspan(2 * i, 2);
    conversion.first_layer = static_cast<std::int64_t>(i);
    TQC_TRY_ASSIGN(const auto view,
                   make_view(reader_of(std::shared_ptr<const Cache>(one)), conversion, {}));
    const auto watch = [&](std::uint64_t part, std::uint64_t all) {
      // The product of two byte counts can exceed 64 bits.
      const double fraction = all == 0 ? 1 : static_cast<double>(part) / static_cast<double>(all);
      const auto of_layer = std::llround(fraction * static_cast<double>(layer_bytes[i]));
      return !progress || progress(done + static_cast<std::uint64_t>(of_layer), total);
    };
    TQC_TRY_ASSIGN(Cache packed, load(*view, {options.memory, options.n_threads}, watch));
    cache.layers[i] = std::move(packed.layers.front());
    done += layer_bytes[i];
  }
  return cache;
}

}  // namespace tqcache::cache
