// The C interface: the codec of a cache that grows, and layers that are packed already.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/capi/writer.h"
#include "tqcache/quantize.h"

using namespace tqcache;        // NOLINT(google-build-using-namespace)
using namespace tqcache::capi;  // NOLINT(google-build-using-namespace)

namespace tqcache::capi {
namespace {

using cache::kTokenBlock;

// The bytes of `n` packed blocks from `block` on.
std::size_t bytes_of(const cache::KvCodec& codec, std::int64_t block, std::int64_t n) {
  if (n == 0) return 0;
  return codec.packed_bytes(block) + to_size(n - 1) * codec.packed_bytes(block + 1);
}

// Whole blocks in the caller's memory, from `block` on.
Result<std::int64_t> count_whole_blocks(const cache::KvCodec& codec, const TensorView& view,
                                        std::int64_t block) {
  const cache::HeadShape shape = codec.shape();
  if (view.n_heads != shape.n_kv_heads || view.head_dim != shape.head_dim) {
    return invalid(fmt::format("{} heads of {}, where the codec has {} of {}", view.n_heads,
                               view.head_dim, shape.n_kv_heads, shape.head_dim));
  }
  if (view.n_tokens % kTokenBlock != 0) {
    return invalid(
        fmt::format("{} tokens, which are no whole blocks of {}", view.n_tokens, kTokenBlock));
  }
  const std::int64_t n = view.n_tokens / kTokenBlock;
  if (block < 0 || block > cache::kMaxTokens / kTokenBlock - n) {
    return invalid(fmt::format("block {}", block));
  }
  return n;
}

// Block `i` of a tensor: [n_kv_heads, 256, head_dim], contiguous.
AlignedBytes contiguous_block(const TensorView& view, std::int64_t i) {
  const std::size_t head_bytes = to_size(kTokenBlock * view.head_dim) * dtype_size(view.dtype);
  AlignedBytes values(to_size(view.n_heads) * head_bytes);
  for (std::int64_t head = 0; head < view.n_heads; ++head) {
    read_rows(view, head, i * kTokenBlock, kTokenBlock,
              std::span(values).subspan(to_size(head) * head_bytes, head_bytes));
  }
  return values;
}

Result<std::unique_ptr<tqcache_codec>> make_growing(const tqcache_tensor* shape, int which,
                                                    const char* config,
                                                    const tqcache_identity* rope,
                                                    std::int64_t layer) {
  TQC_TRY_ASSIGN(const bool is_keys, is_keys_word(which));
  TQC_TRY_ASSIGN(const TensorView view, to_tensor(shape, /*needs_data=*/false));
  TQC_TRY_ASSIGN(cache::ConvertOptions options, parse_block_options(config, is_keys, 1));
  cache::CacheDesc description;
  if (rope != nullptr) {
    TQC_TRY_ASSIGN(description.identity, to_identity(rope));
  } else {
    description.identity.rope.style = cache::RopeStyle::kNone;
  }
  // A profile has factors of all layers, and this is one of them.
  if (options.calibration != nullptr) {
    cache::Calibration own = *options.calibration;
    if (layer < 0 || layer >= std::ssize(own.key_factors)) {
      return mismatch(
          fmt::format("layer {}, where the profile has {}", layer, own.key_factors.size()));
    }
    own.key_factors = {std::move(own.key_factors[to_size(layer)])};
    options.calibration = std::make_shared<const cache::Calibration>(std::move(own));
  }
  cache::AttentionDesc attention;
  attention.shape = {view.n_heads, view.head_dim};
  description.layers.emplace_back(attention);
  TQC_TRY_ASSIGN(const auto plans, cache::plan_layers(description, options));
  const cache::TensorPlan& plan = plans[is_keys ? 0 : 1];
  if (plan.codec.mode == codec::Mode::kTrellis) {
    return unsupported("a growing cache of mode trellis, which is for files");
  }
  TQC_TRY_ASSIGN(
      cache::KvCodec codec,
      cache::make_codec(plan, is_keys ? codec::BlockOrder::kKeys : codec::BlockOrder::kValues,
                        attention.shape, view.dtype, description.identity.rope));
  auto made = std::make_unique<tqcache_codec>(tqcache_codec{std::move(codec), plan.codec});
  made->factors = cache::make_key_factors(made->codec.describe().quant->factors);
  if (made->codec.centering() == cache::Centering::kPreRope) {
    made->frequencies = cache::rope_frequencies(description.identity.rope);
    made->rope.emplace(description.identity.rope);
  }
  return made;
}

Result<void> encode_blocks(const cache::KvCodec& codec, const TensorView& view, std::int64_t block,
                           std::span<std::byte> out, unsigned threads) {
  TQC_TRY_ASSIGN(const std::int64_t n, count_whole_blocks(codec, view, block));
  if (!codec.is_fixed()) return invalid("a codec that was not fitted to a first block yet");
  if (view.dtype != codec.dtype()) return invalid("values of another dtype than the codec's");
  if (out.size() != bytes_of(codec, block, n)) {
    return invalid(fmt::format("room for {} bytes, where {} are packed", out.size(),
                               bytes_of(codec, block, n)));
  }
  if (n > 0 && out.data() == nullptr) return invalid("no room for packed blocks");
  return parallel_try(to_size(n), threads, [&](std::size_t i) -> Result<void> {
    const auto number = static_cast<std::int64_t>(i);
    const AlignedBytes values = contiguous_block(view, number);
    const cache::FullBlock full{codec.shape(), codec.dtype(), block + number, values};
    const auto packed = codec.encode(full, 1);
    if (!packed) return in_context(fmt::format("block {}", block + number), packed.error());
    std::ranges::copy(packed->view(), out.data() + bytes_of(codec, block, number));
    return {};
  });
}

Result<void> decode_blocks(const cache::KvCodec& codec, ByteView packed, std::int64_t block,
                           const TensorView& to, unsigned threads) {
  TQC_TRY_ASSIGN(const std::int64_t n, count_whole_blocks(codec, to, block));
  if (!codec.is_fixed()) return invalid("a codec that was not fitted to a first block yet");
  if (packed.size() != bytes_of(codec, block, n)) {
    return invalid(fmt::format("{} bytes, where blocks of {} are asked for", packed.size(),
                               bytes_of(codec, block, n)));
  }
  if (n > 0 && packed.data() == nullptr) return invalid("no packed blocks");
  return parallel_try(to_size(n), threads, [&](std::size_t i) -> Result<void> {
    const auto number = static_cast<std::int64_t>(i);
    // A copy, since packed blocks begin at multiples of 64 bytes.
    const ByteView from =
        packed.subspan(bytes_of(codec, block, number), codec.packed_bytes(block + number));
    AlignedBytes aligned(from.size());
    std::ranges::copy(from, aligned.begin());
    const AlignedBytes values = codec.decode_block(aligned, block + number, kTokenBlock);
    const std::size_t head_bytes = values.size() / to_size(to.n_heads);
    for (std::int64_t head = 0; head < to.n_heads; ++head) {
      write_rows(ByteView(values).subspan(to_size(head) * head_bytes, head_bytes), codec.dtype(),
                 to, head, number * kTokenBlock, kTokenBlock);
    }
    return {};
  });
}

}  // namespace
}  // namespace tqcache::capi

extern "C" {

int tqcache_codec_new(const tqcache_tensor* shape, int which, const char* config,
                      const tqcache_identity* rope, int64_t layer, tqcache_codec** codec,
                      tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(auto made, make_growing(shape, which, config, rope, layer));
    *codec = made.release();
    return {};
  });
}

void tqcache_codec_free(tqcache_codec* codec) { delete codec; }

int tqcache_codec_fit(tqcache_codec* codec, const tqcache_tensor* first_blocks, int64_t n,
                      unsigned threads, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    if (n < 1 || n > 65536) return invalid(fmt::format("{} first blocks", n));
    if (first_blocks == nullptr) return invalid("no first blocks");
    std::vector<AlignedBytes> values;
    std::vector<cache::FullBlock> blocks;
    for (std::int64_t i = 0; i < n; ++i) {
      // Elements are the caller's structs, of the caller's size.
      const auto* const each = reinterpret_cast<const tqcache_tensor*>(
          reinterpret_cast<const std::byte*>(first_blocks) + to_size(i) * first_blocks->size);
      TQC_TRY_ASSIGN(const TensorView view, to_tensor(each));
      TQC_TRY_ASSIGN(const std::int64_t count, count_whole_blocks(codec->codec, view, 0));
      if (count != 1 || view.dtype != codec->codec.dtype()) {
        return invalid("a first block of 256 tokens of the codec's dtype is needed");
      }
      values.push_back(contiguous_block(view, 0));
    }
    for (const AlignedBytes& each : values) {
      blocks.push_back({codec->codec.shape(), codec->codec.dtype(), 0, each});
    }
    codec->codec.fit(blocks, threads);
    return {};
  });
}

size_t tqcache_codec_block_bytes(const tqcache_codec* codec, int64_t block) {
  return codec->codec.packed_bytes(block);
}

int tqcache_codec_encode(const tqcache_codec* codec, const tqcache_tensor* from, int64_t block,
                         void* out, size_t size, unsigned threads, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const TensorView view, to_tensor(from));
    return encode_blocks(codec->codec, view, block, {static_cast<std::byte*>(out), size}, threads);
  });
}

int tqcache_codec_decode(const tqcache_codec* codec, const void* packed, size_t size, int64_t block,
                         const tqcache_tensor* to, unsigned threads, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const TensorView view, to_tensor(to));
    return decode_blocks(codec->codec, {static_cast<const std::byte*>(packed), size}, block, view,
                         threads);
  });
}

int tqcache_codec_read_tables(const tqcache_codec* codec, tqcache_codec_tables* tables,
                              tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    const codec::CodecSpec& spec = codec->spec;
    tqcache_codec_tables to{};
    to.mode = static_cast<std::int32_t>(spec.mode);
    to.bits = spec.bits;
    to.rotation = spec.rotation == codec::TransformKind::kHadamard ? 0 : 1;
    to.rounds = spec.rounds;
    to.scale = static_cast<std::int32_t>(spec.scale);
    to.residual = spec.residual == codec::TransformKind::kGaussian ? 0 : 1;
    to.outlier_channels = spec.outlier_channels;
    to.outlier_bits = spec.outlier_bits;
    to.group_size = spec.group_size;
    to.n_sinks = static_cast<std::int32_t>(codec->codec.n_sinks());
    to.seed = spec.seed;
    if (!codec->codec.mean().empty()) to.mean = codec->codec.mean().data();
    if (codec->rope) {
      to.n_pairs = std::ssize(codec->frequencies);
      to.turns = codec->frequencies.data();
      to.cos = codec->rope->cos(0).data();
      to.sin = codec->rope->sin(0).data();
    }
    if (codec->factors.is_there()) {
      to.factors = codec->factors.values.data();
      to.inverses = codec->factors.inverses.data();
    }
    give_fields(to, tables);
    return {};
  });
}

int tqcache_writer_packed(tqcache_writer* writer, const tqcache_codec* key_codec, const void* keys,
                          size_t key_bytes, const tqcache_codec* value_codec, const void* values,
                          size_t value_bytes, const tqcache_tensor* key_tail,
                          const tqcache_tensor* value_tail, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    const std::int64_t n_tokens = writer->description.n_tokens();
    const std::int64_t n_blocks = n_tokens / kTokenBlock;
    TQC_TRY_ASSIGN(const TensorView k, to_tensor(key_tail));
    TQC_TRY_ASSIGN(const TensorView v, to_tensor(value_tail));
    const cache::KvCodec& of_keys = key_codec->codec;
    const cache::KvCodec& of_values = value_codec->codec;
    if (of_keys.order() != codec::BlockOrder::kKeys ||
        of_values.order() != codec::BlockOrder::kValues) {
      return invalid("a codec of keys and one of values are needed, in this order");
    }
    if (k.n_tokens != n_tokens % kTokenBlock || v.n_tokens != k.n_tokens) {
      return invalid(fmt::format("{} and {} dense tokens, where {} are behind whole blocks",
                                 k.n_tokens, v.n_tokens, n_tokens % kTokenBlock));
    }
    if (k.n_heads != of_keys.shape().n_kv_heads || k.head_dim != of_keys.shape().head_dim ||
        v.n_heads != of_values.shape().n_kv_heads || v.head_dim != of_values.shape().head_dim ||
        k.n_heads != v.n_heads || k.dtype != of_keys.dtype() || v.dtype != of_values.dtype()) {
      return invalid("dense tokens of another shape or dtype than the codecs'");
    }
    if (key_bytes != bytes_of(of_keys, 0, n_blocks) ||
        value_bytes != bytes_of(of_values, 0, n_blocks)) {
      return invalid(fmt::format("{} and {} bytes of packed blocks, where {} and {} are expected",
                                 key_bytes, value_bytes, bytes_of(of_keys, 0, n_blocks),
                                 bytes_of(of_values, 0, n_blocks)));
    }
    if (n_blocks > 0 && (keys == nullptr || values == nullptr)) {
      return invalid("no packed blocks");
    }
    if (n_blocks > 0 && !(of_keys.is_fixed() && of_values.is_fixed())) {
      return invalid("codecs that were not fitted to a first block yet");
    }
    cache::AttentionDesc layer;
    layer.shape = of_keys.shape();
    layer.value_dim = cache::value_dim_of(k.head_dim, v.head_dim);
    layer.k = of_keys.describe();
    layer.v = of_values.describe();
    CallerCache::Source source{{k, v}, {}, {}, {}};
    if (n_blocks > 0) {
      source.packed = {{static_cast<const std::byte*>(keys), key_bytes},
                       {static_cast<const std::byte*>(values), value_bytes}};
    }
    writer->description.layers.emplace_back(std::move(layer));
    writer->sources.push_back(std::move(source));
    return {};
  });
}

}  // extern "C"
