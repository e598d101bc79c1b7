// The C interface: the codec for blocks in memory, as .tqkv files of one layer.

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/centering_score.h"
#include "tqcache/cache/kv_attention.h"
#include "tqcache/capi/handles.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

using namespace tqcache;        // NOLINT(google-build-using-namespace)
using namespace tqcache::capi;  // NOLINT(google-build-using-namespace)

namespace tqcache::capi {

Result<bool> is_keys_word(int which) {
  if (which == TQCACHE_KEYS || which == TQCACHE_VALUES) return which == TQCACHE_KEYS;
  return invalid(fmt::format("tensor {}: neither keys nor values", which));
}

// A block may be any part of a prompt, so no first tokens stay dense unless the text says so.
Result<cache::ConvertOptions> parse_block_options(const char* config, bool is_keys,
                                                  unsigned threads) {
  std::string text = config == nullptr ? "mse:4" : config;
  const std::string first = text.substr(0, text.find(','));
  if (first.find(':') != std::string::npos && first.find('=') == std::string::npos) {
    text.insert(0, is_keys ? "k=" : "v=");
  }
  TQC_TRY_ASSIGN(const cache::Configuration parsed, cache::parse_configuration(text));
  const cache::TensorPlan& plan = is_keys ? parsed.options.keys : parsed.options.values;
  if (plan.dense) return invalid(fmt::format("'{}' quantizes nothing", text));
  cache::ConvertOptions options;
  options.keys.dense = !is_keys;
  options.values.dense = is_keys;
  cache::TensorPlan& own = is_keys ? options.keys : options.values;
  own = plan;
  if (text.find("sink=") == std::string::npos) own.n_sinks = 0;
  options.fit = parsed.options.fit;
  options.calibration = is_keys ? parsed.options.calibration : nullptr;
  options.n_threads = threads;
  return options;
}

namespace {

using cache::kTokenBlock;
using cache::TensorKind;

// Says in a block's description which of its tensors was encoded.
constexpr std::string_view kKeysMark = "tqcache block keys";
constexpr std::string_view kValuesMark = "tqcache block values";

// The cache of one layer whose other tensor is zeros.
Result<std::shared_ptr<const CallerCache>> block_cache(const TensorView& from, bool is_keys,
                                                       const tqcache_identity* rope) {
  cache::CacheDesc description;
  if (rope != nullptr) {
    TQC_TRY_ASSIGN(const cache::Identity identity, to_identity(rope));
    description.identity.rope = identity.rope;
  } else {
    description.identity.rope.style = cache::RopeStyle::kNone;
  }
  description.identity.source_format = is_keys ? kKeysMark : kValuesMark;
  description.tokens.assign(to_size(from.n_tokens), cache::kUnknownToken);
  if (from.n_tokens > 0) description.hidden_tokens.emplace();
  cache::AttentionDesc layer;
  layer.shape = {from.n_heads, from.head_dim};
  (is_keys ? layer.k : layer.v).dtype = from.dtype;
  description.layers.emplace_back(layer);
  TensorView zeros = from;
  zeros.data = nullptr;
  zeros.dtype = Dtype::kF16;
  return CallerCache::make(std::move(description),
                           {{is_keys ? std::vector{from, zeros} : std::vector{zeros, from}, {}}});
}

struct OpenBlock {
  std::unique_ptr<tqcache_cache> cache;
  bool is_keys = false;

  const cache::AttentionDesc& layer() const {
    return *cache::attention_of(cache->reader->description().layers.front());
  }
  const cache::TensorDesc& tensor() const { return is_keys ? layer().k : layer().v; }
  TensorKind kind() const { return is_keys ? TensorKind::kKeys : TensorKind::kValues; }
  std::int64_t n_tokens() const { return cache->reader->n_tokens(); }
};

// `block` has to outlive the result.
Result<OpenBlock> open_block(const void* block, std::size_t size) {
  const ByteView bytes(static_cast<const std::byte*>(block), size);
  std::shared_ptr<const ByteSource> source =
      memory_source(SharedBytes(std::shared_ptr<const void>(), bytes));
  TQC_TRY_ASSIGN(auto sections,
                 format::SectionReader::open(std::move(source), {}, format::Digests::kTrust));
  tqcache_cache cache;
  cache.kind = "tqkv";
  cache.reader = std::make_shared<const format::SectionReader>(std::move(sections));
  const cache::CacheDesc& description = cache.reader->description();
  const std::string& mark = description.identity.source_format;
  const bool is_block = (mark == kKeysMark || mark == kValuesMark) &&
                        description.layers.size() == 1 &&
                        std::holds_alternative<cache::AttentionDesc>(description.layers.front());
  if (!is_block) return mismatch("a cache, and not an encoded block");
  const bool is_keys = mark == kKeysMark;
  return OpenBlock{finish_cache(std::move(cache)), is_keys};
}

Result<void> decode_block_into(const OpenBlock& block, const tqcache_tensor* to, unsigned threads) {
  tqcache_error* failure = nullptr;
  TQC_TRY_ASSIGN(const TensorView view, to_tensor(to));
  if (view.n_tokens != block.n_tokens()) {
    return invalid(fmt::format("room for {} tokens of {}", view.n_tokens, block.n_tokens()));
  }
  const int which = block.is_keys ? TQCACHE_KEYS : TQCACHE_VALUES;
  const int code = tqcache_read(block.cache.get(), 0, which, 0, to, threads, &failure);
  if (code == TQCACHE_OK) return {};
  const std::unique_ptr<tqcache_error, decltype(&tqcache_error_free)> owner(failure,
                                                                            &tqcache_error_free);
  const std::string message = tqcache_error_message(failure);
  return code == TQCACHE_CORRUPT ? corrupt(message)
         : code == TQCACHE_USAGE ? invalid(message)
                                 : Error{ErrorCode::kIo, message};
}

// --- scores

// The queries that share a kv head, and where their scores go: rows of all tokens.
struct ScoreJob {
  std::int64_t kv_head = 0;
  std::int64_t group = 0;
  std::span<const float> queries;  // [group, head_dim]
  float* scores = nullptr;         // [group, n_tokens]
  std::int64_t n_tokens = 0;
};

void score_rows(const ScoreJob& job, std::int64_t token, std::int64_t count,
                std::span<const float> rows) {
  const std::size_t dim = job.queries.size() / to_size(job.group);
  for (std::int64_t q = 0; q < job.group; ++q) {
    const float* const query = job.queries.data() + to_size(q) * dim;
    for (std::int64_t t = 0; t < count; ++t) {
      double sum = 0;
      for (std::size_t c = 0; c < dim; ++c) sum += double{query[c]} * rows[to_size(t) * dim + c];
      job.scores[q * job.n_tokens + token + t] = static_cast<float>(sum);
    }
  }
}

// Scores all blocks of one kv head; those that are packed in their codes.
Result<void> score_head(const OpenBlock& block, const cache::KvCodec* codec,
                        const cache::CenteringTable* centering,
                        const std::vector<SharedBytes>& bytes, const ScoreJob& job) {
  const cache::HeadShape shape = block.layer().shape;
  const std::size_t dim = to_size(shape.head_dim);
  const Dtype dtype = block.tensor().dtype;
  cache::KeyQueries packed;
  // A codec that is not fixed has no packed blocks.
  const bool scores_codes = codec != nullptr && codec->is_fixed() && !codec->must_keep_decoded();
  if (scores_codes) packed.set(*codec, job.kv_head, job.queries, centering);
  AlignedFloats scores(to_size(job.group * kTokenBlock));
  AlignedFloats rows(to_size(kTokenBlock) * dim);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    const std::int64_t first = number * kTokenBlock;
    const std::int64_t count = cache::tokens_in_block(job.n_tokens, number);
    const std::size_t index = block.cache->index->at({0, block.kind(), number});
    const ByteView view = bytes[i].view();
    const std::span values(rows.data(), to_size(count) * dim);
    if (!block.cache->reader->blocks()[index].packed) {
      const std::size_t head_bytes = values.size() * dtype_size(dtype);
      load_f32(dtype, view.data() + to_size(job.kv_head) * head_bytes, values);
      score_rows(job, first, count, values);
      continue;
    }
    if (!scores_codes) {
      codec->decode(view, number, job.kv_head, values);
      score_rows(job, first, count, values);
      continue;
    }
    codec->score(packed, view, number, codec::Precision::kExact,
                 {scores.data(), to_size(kTokenBlock)});
    for (std::int64_t q = 0; q < job.group; ++q) {
      std::copy_n(scores.data() + q * kTokenBlock, count, job.scores + q * job.n_tokens + first);
    }
    // The codes of sink tokens have no meaning.
    const std::int64_t n_sinks = cache::sinks_in_block(codec->n_sinks(), number);
    if (n_sinks == 0) continue;
    const std::span sinks(rows.data(), to_size(n_sinks) * dim);
    codec->decode(view, number, job.kv_head, sinks);
    score_rows(job, first, n_sinks, sinks);
  }
  return {};
}

Result<void> score_block(const OpenBlock& block, std::span<const float> queries,
                         std::int64_t n_query_heads, float* scores, unsigned threads) {
  if (!block.is_keys) return invalid("values have no scores");
  const cache::HeadShape shape = block.layer().shape;
  if (n_query_heads < 1 || n_query_heads % shape.n_kv_heads != 0) {
    return invalid(fmt::format("{} query heads for {} kv heads", n_query_heads, shape.n_kv_heads));
  }
  const cache::KvCodec* codec = nullptr;
  if (block.tensor().quant) {
    TQC_TRY_ASSIGN(const auto* codecs, codecs_of(*block.cache));
    codec = &*codecs->front().k;
  }
  const std::int64_t n_blocks = cache::block_count(block.n_tokens());
  std::vector<SharedBytes> bytes(to_size(n_blocks));
  for (std::int64_t i = 0; i < n_blocks; ++i) {
    TQC_TRY_ASSIGN(bytes[to_size(i)],
                   block.cache->reader->share(block.cache->index->at({0, TensorKind::kKeys, i})));
  }
  const cache::Rope& rope = block.cache->reader->description().identity.rope;
  std::optional<cache::CenteringTable> centering;
  if (cache::can_rotate(rope, shape.head_dim)) {
    centering.emplace(rope);
    centering->extend(n_blocks);
  }
  const std::int64_t group = n_query_heads / shape.n_kv_heads;
  return parallel_try(to_size(shape.n_kv_heads), threads, [&](std::size_t head) {
    ScoreJob job;
    job.kv_head = static_cast<std::int64_t>(head);
    job.group = group;
    job.queries =
        queries.subspan(head * to_size(group * shape.head_dim), to_size(group * shape.head_dim));
    job.n_tokens = block.n_tokens();
    job.scores = scores + job.kv_head * group * job.n_tokens;
    return score_head(block, codec, centering ? &*centering : nullptr, bytes, job);
  });
}

}  // namespace
}  // namespace tqcache::capi

extern "C" {

int tqcache_encode(const tqcache_tensor* from, int which, const char* config,
                   const tqcache_identity* rope, unsigned threads, tqcache_bytes** block,
                   tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const bool is_keys, is_keys_word(which));
    TQC_TRY_ASSIGN(const TensorView view, to_tensor(from));
    TQC_TRY_ASSIGN(auto options, parse_block_options(config, is_keys, threads));
    options.calibration = nullptr;  // it may be of any layer
    TQC_TRY_ASSIGN(const auto cache, block_cache(view, is_keys, rope));
    TQC_TRY_ASSIGN(const auto quantized, cache::quantize(cache, options));
    format::WriteOptions write;
    write.n_threads = threads;
    TQC_TRY_ASSIGN(Bytes bytes, format::write_cache_bytes(*quantized, write));
    *block = new tqcache_bytes{{}, std::move(bytes)};
    return {};
  });
}

int tqcache_encode_bound(const tqcache_tensor* shape, int which, const char* config, size_t* bytes,
                         tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const bool is_keys, is_keys_word(which));
    TQC_TRY_ASSIGN(const TensorView view, to_tensor(shape, /*needs_data=*/false));
    TQC_TRY_ASSIGN(auto options, parse_block_options(config, is_keys, 1));
    options.calibration = nullptr;
    TQC_TRY_ASSIGN(const auto cache, block_cache(view, is_keys, nullptr));
    // Without RoPE keys are centered where they are, which takes as much.
    TQC_TRY_ASSIGN(const auto plans, cache::plan_layers(cache->description(), options));
    const cache::TensorPlan& settled = plans[is_keys ? 0 : 1];
    TQC_TRY_ASSIGN(
        const cache::KvCodec codec,
        cache::make_codec(settled, is_keys ? codec::BlockOrder::kKeys : codec::BlockOrder::kValues,
                          {view.n_heads, view.head_dim}, view.dtype, cache::Rope{}));
    const std::int64_t full = view.n_tokens / kTokenBlock;
    const std::size_t values = to_size(view.n_heads * view.head_dim);
    std::size_t total = 16384 + 128 * to_size(2 * cache::block_count(view.n_tokens));
    for (std::int64_t i = 0; i < full; ++i) total += codec.packed_bytes(i) + 64;
    total += to_size(view.n_tokens % kTokenBlock) * values * dtype_size(view.dtype) + 64;
    total += values * (sizeof(float) + sizeof(std::uint16_t) + 1);  // mean, outliers, factors
    if (settled.fit_transforms) total += values * to_size(view.head_dim);
    for (const codec::PartSpec& part : codec.parts()) {
      total += 256 + part.centroids.size() * sizeof(float);
    }
    total += to_size(view.n_tokens) * values * 2 / 1024;  // zeros, compressed
    *bytes = total;
    return {};
  });
}

int tqcache_block_shape(const void* block, size_t size, tqcache_tensor* shape, int* which,
                        tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const OpenBlock open, open_block(block, size));
    tqcache_tensor known{};
    known.dtype = static_cast<std::int32_t>(open.tensor().dtype);
    known.n_heads = open.layer().shape.n_kv_heads;
    known.n_tokens = open.n_tokens();
    known.head_dim = open.layer().shape.head_dim;
    give_fields(known, shape);
    if (which != nullptr) *which = open.is_keys ? TQCACHE_KEYS : TQCACHE_VALUES;
    return {};
  });
}

int tqcache_decode(const void* block, size_t size, const tqcache_tensor* to, unsigned threads,
                   tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const OpenBlock open, open_block(block, size));
    return decode_block_into(open, to, threads);
  });
}

int tqcache_score(const void* block, size_t size, const float* queries, int64_t n_query_heads,
                  float* scores, unsigned threads, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const OpenBlock open, open_block(block, size));
    if (n_query_heads < 1 || n_query_heads > (std::int64_t{1} << 20)) {
      return invalid(fmt::format("{} query heads", n_query_heads));
    }
    const std::span view(queries, to_size(n_query_heads * open.layer().shape.head_dim));
    return score_block(open, view, n_query_heads, scores, threads);
  });
}

}  // extern "C"
