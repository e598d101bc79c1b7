// Views of a CacheReader: dequantize(), first_tokens(), with_identity().

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/kv_codec.h"
#include "tqcache/reader.h"

namespace tqcache::cache {
namespace {

// The codec of the tensor that a packed block belongs to.
const KvCodec& codec_of(const std::vector<LayerCodecs>& codecs, const BlockInfo& block) {
  const LayerCodecs& layer = codecs[to_size(block.layer)];
  return block.tensor == TensorKind::kKeys ? *layer.k : *layer.v;
}

// --- dequantize()

bool is_quantized_window(const LayerDesc& layer) {
  const auto* window = std::get_if<WindowDesc>(&layer);
  return window != nullptr && is_quantized(window->attention);
}

class Dequantized : public CacheReader {
 public:
  // `checkpoints`: those of the source, dequantized.
  Dequantized(std::shared_ptr<const CacheReader> source, std::vector<LayerCodecs> codecs,
              std::vector<Checkpoint> checkpoints)
      : source_(std::move(source)),
        codecs_(std::move(codecs)),
        checkpoints_(std::move(checkpoints)),
        description_(source_->description()) {
    for (LayerDesc& layer : description_.layers) {
      AttentionDesc* const attention = attention_of(layer);
      if (attention == nullptr) continue;
      attention->k.quant.reset();
      attention->v.quant.reset();
    }
    // Token blocks of a quantized window become parts of its arrays.
    const std::vector<BlockInfo>& blocks = source_->blocks();
    std::map<BlockKey, std::vector<std::size_t>> origins;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      BlockKey key = key_of(blocks[i]);
      if (is_quantized_window(source_layer(blocks[i]))) {
        key = {key.layer, TensorKind::kArray, static_cast<std::int64_t>(key.tensor)};
      }
      origins[key].push_back(i);
    }
    for (const BlockKey& key : plan_blocks(description_.layers, n_tokens())) {
      origins_.push_back(std::move(origins[key]));
      BlockInfo block = make_block(description_, key, /*packed=*/false);
      if (!is_quantized_window(source_layer(block))) {
        const BlockInfo& origin = blocks[origins_.back().front()];
        if (!origin.packed) block.stored_bytes = origin.stored_bytes;
      }
      blocks_.push_back(block);
    }
  }

  const CacheDesc& description() const override { return description_; }
  const std::vector<BlockInfo>& blocks() const override { return blocks_; }

  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    if (is_quantized_window(source_layer(blocks_[block]))) return read_window(block, raw);
    return read_block(origins_[block].front(), raw);
  }

  Result<SharedBytes> share(std::size_t block) const override {
    const bool is_window = is_quantized_window(source_layer(blocks_[block]));
    if (is_window || source_->blocks()[origins_[block].front()].packed) {
      return CacheReader::share(block);
    }
    return source_->share(origins_[block].front());
  }

  std::span<const Checkpoint> checkpoints() const override { return checkpoints_; }

 private:
  const LayerDesc& source_layer(const BlockInfo& block) const {
    return source_->description().layers[to_size(block.layer)];
  }

  Result<void> read_block(std::size_t in_source, AlignedBytes& raw) const {
    const BlockInfo& block = source_->blocks()[in_source];
    if (!block.packed) return source_->read(in_source, raw);
    TQC_TRY_ASSIGN(const SharedBytes packed, source_->share(in_source));
    raw = codec_of(codecs_, block).decode_block(packed.view(), block.block, kTokenBlock);
    return {};
  }

  // Copies the window's rows out of its token blocks.
  Result<void> read_window(std::size_t block, AlignedBytes& raw) const {
    const BlockInfo& info = blocks_[block];
    const auto& window = std::get<WindowDesc>(description_.layers[to_size(info.layer)]);
    const bool is_keys = info.block == 0;
    const AttentionDesc& attention = window.attention;
    const HeadShape shape = is_keys ? attention.shape : attention.value_shape();
    const Dtype dtype = (is_keys ? attention.k : attention.v).dtype;
    const std::int64_t begin = window_begin(window.window, n_tokens());
    const auto bytes_of = [&](std::int64_t n) {
      return to_size(n * shape.head_dim) * dtype_size(dtype);
    };
    raw.resize(info.raw_bytes);
    AlignedBytes token_block;
    for (const std::size_t in_source : origins_[block]) {
      TQC_TRY(read_block(in_source, token_block));
      const std::int64_t number = source_->blocks()[in_source].block;
      const std::int64_t n_left = tokens_before(begin, number);
      const std::int64_t n_in_block = tokens_in_block(n_tokens(), number);
      const std::size_t at = bytes_of(number * kTokenBlock + n_left - begin);
      for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
        std::memcpy(raw.data() + to_size(head) * bytes_of(n_tokens() - begin) + at,
                    token_block.data() + to_size(head) * bytes_of(n_in_block) + bytes_of(n_left),
                    bytes_of(n_in_block - n_left));
      }
    }
    return {};
  }

  std::shared_ptr<const CacheReader> source_;
  std::vector<LayerCodecs> codecs_;
  std::vector<Checkpoint> checkpoints_;
  CacheDesc description_;
  std::vector<BlockInfo> blocks_;
  // [n_blocks]: indices of the source's blocks; those of a window in the order of its token blocks.
  std::vector<std::vector<std::size_t>> origins_;
};

// --- first_tokens()

class FirstTokens : public CacheReader {
 public:
  // Requires: check_truncate() allows it. So the source has no checkpoints.
  FirstTokens(std::shared_ptr<const CacheReader> source, std::vector<LayerCodecs> codecs,
              std::int64_t n_tokens)
      : source_(std::move(source)),
        codecs_(std::move(codecs)),
        description_(source_->description()),
        n_kept_(n_tokens % kTokenBlock) {
    description_.tokens.resize(to_size(n_tokens));
    description_.media = media_in(description_.media, 0, n_tokens);
    if (description_.hidden_tokens && !description_.hidden_tokens->empty()) {
      description_.hidden_tokens->resize(to_size(block_count(n_tokens)));
    }
    const std::vector<LayerDesc>& layers = description_.layers;
    first_cut_ = count_blocks(layers, n_tokens - n_kept_);
    blocks_.assign(
        source_->blocks().begin(),
        source_->blocks().begin() + static_cast<std::ptrdiff_t>(count_blocks(layers, n_tokens)));
    for (BlockInfo& block : std::span(blocks_).subspan(first_cut_)) {
      block = make_block(description_, key_of(block), /*packed=*/false);
    }
  }

  const CacheDesc& description() const override { return description_; }
  const std::vector<BlockInfo>& blocks() const override { return blocks_; }

  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    if (block < first_cut_) return source_->read(block, raw);
    const BlockInfo& in_source = source_->blocks()[block];
    if (in_source.packed) {
      TQC_TRY_ASSIGN(const SharedBytes packed, source_->share(block));
      raw = codec_of(codecs_, in_source).decode_block(packed.view(), in_source.block, n_kept_);
      return {};
    }
    TQC_TRY_ASSIGN(const SharedBytes whole, source_->share(block));
    const LayerDesc& layer = description_.layers[to_size(in_source.layer)];
    first_rows(whole.view(), shape_of(layer, in_source.tensor),
               tensor_of(layer, in_source.tensor).dtype,
               tokens_in_block(source_->n_tokens(), in_source.block), n_kept_, raw);
    return {};
  }

  Result<SharedBytes> share(std::size_t block) const override {
    return block < first_cut_ ? source_->share(block) : CacheReader::share(block);
  }

  Result<std::optional<StoredBlock>> stored(std::size_t block, const Room& room) const override {
    return block < first_cut_ ? source_->stored(block, room) : CacheReader::stored(block, room);
  }

  // That of whole token blocks: without one, nothing is predicted.
  std::optional<Prediction> prediction() const override {
    return n_tokens() < kTokenBlock ? std::nullopt : source_->prediction();
  }

 private:
  std::shared_ptr<const CacheReader> source_;
  std::vector<LayerCodecs> codecs_;
  CacheDesc description_;
  std::vector<BlockInfo> blocks_;
  std::size_t first_cut_ = 0;  // index of the first block that is cut; all later ones are cut too
  std::int64_t n_kept_;        // tokens kept of the token block that is cut
};

// --- with_identity()

class WithIdentity : public CacheReader {
 public:
  WithIdentity(std::shared_ptr<const CacheReader> source, const Identity& identity)
      : source_(std::move(source)), description_(source_->description()) {
    description_.identity = identity;
    for (const Checkpoint& checkpoint : source_->checkpoints()) {
      checkpoints_.push_back(
          {with_identity(checkpoint.state, identity), checkpoint.first_position});
    }
  }

  const CacheDesc& description() const override { return description_; }
  const std::vector<BlockInfo>& blocks() const override { return source_->blocks(); }
  Result<void> read(std::size_t block, AlignedBytes& raw) const override {
    return source_->read(block, raw);
  }
  Result<SharedBytes> share(std::size_t block) const override { return source_->share(block); }
  Result<std::optional<StoredBlock>> stored(std::size_t block, const Room& room) const override {
    return source_->stored(block, room);
  }
  std::optional<Prediction> prediction() const override { return source_->prediction(); }
  std::span<const Checkpoint> checkpoints() const override { return checkpoints_; }

 private:
  std::shared_ptr<const CacheReader> source_;
  CacheDesc description_;
  std::vector<Checkpoint> checkpoints_;
};

using ReaderResult = Result<std::shared_ptr<const CacheReader>>;

// "it has checkpoints at 84, 596 tokens", at most the last eight of them.
std::string checkpoint_list(const CacheReader& cache) {
  auto checkpoints = cache.checkpoints();
  std::string text = "it has checkpoints at ";
  if (checkpoints.size() > 8) text += "..., ";
  checkpoints = checkpoints.last(std::min<std::size_t>(checkpoints.size(), 8));
  for (const Checkpoint& checkpoint : checkpoints) {
    text += std::to_string(checkpoint.n_tokens());
    text += &checkpoint == &checkpoints.back() ? " tokens" : ", ";
  }
  return text;
}

}  // namespace

ReaderResult dequantize(std::shared_ptr<const CacheReader> source) {
  const CacheDesc& cache = source->description();
  TQC_TRY_ASSIGN(std::vector<LayerCodecs> codecs, make_codecs(cache.layers, cache.identity.rope));
  TQC_TRY_ASSIGN(std::vector<Checkpoint> checkpoints, map_checkpoints(*source, dequantize));
  return ReaderResult(std::make_shared<const Dequantized>(std::move(source), std::move(codecs),
                                                          std::move(checkpoints)));
}

ReaderResult first_tokens(std::shared_ptr<const CacheReader> source, std::int64_t n_tokens) {
  const CacheDesc& cache = source->description();
  const auto checkpoints = source->checkpoints();
  for (std::size_t i = 0; i < checkpoints.size() && n_tokens < cache.n_tokens(); ++i) {
    if (checkpoints[i].n_tokens() == n_tokens) return at_checkpoint(std::move(source), i);
  }
  if (auto checked = check_truncate(cache, n_tokens); !checked) {
    if (checkpoints.empty()) return std::move(checked).error();
    return unsupported(checked.error().message + "; " + checkpoint_list(*source));
  }
  if (n_tokens == cache.n_tokens()) return source;
  TQC_TRY_ASSIGN(std::vector<LayerCodecs> codecs, make_codecs(cache.layers, cache.identity.rope));
  return ReaderResult(
      std::make_shared<const FirstTokens>(std::move(source), std::move(codecs), n_tokens));
}

std::shared_ptr<const CacheReader> with_identity(std::shared_ptr<const CacheReader> source,
                                                 Identity identity) {
  return std::make_shared<const WithIdentity>(std::move(source), identity);
}

}  // namespace tqcache::cache
