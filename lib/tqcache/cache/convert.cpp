#include "tqcache/cache/convert.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace tqcache::cache {
namespace {

// One side of one attention layer that is to be packed.
struct Job {
  std::string name;  // "layer 3 k"
  Side* side;
  HeadShape shape;
  int bits;
  Centring centring;
  codec::BlockOrder order;
};

std::string_view words(Centring centring) {
  switch (centring) {
    case Centring::kNone:
      return "no centring";
    case Centring::kPostRope:
      return "centring after RoPE";
    default:
      return "centring before RoPE";
  }
}

std::uint64_t vectors_per_block(HeadShape shape) {
  return static_cast<std::uint64_t>(shape.n_kv_heads * kTokenBlock);
}

Result<void> check_bits(std::string_view what, int bits) {
  if (bits == kDenseBits || (bits >= codec::kMinBits && bits <= codec::kMaxBits)) return {};
  return Error{ErrorCode::kInvalidArgument, std::string(what) + " of " + std::to_string(bits) +
                                                ": give 1 to 8, or 16 for dense"};
}

// Whether a side is left as it is. Errors: turbo with other parameters.
Result<bool> is_left_alone(const Job& job, const ConvertOptions& options) {
  const auto* turbo = std::get_if<TurboSide>(job.side);
  if (turbo == nullptr) return job.bits == kDenseBits;
  const codec::CodecSpec& spec = turbo->codec.quantizer().spec();
  if (job.bits == spec.bits && options.sign_seed == spec.sign_seed &&
      job.centring == turbo->mean.kind) {
    return false;
  }
  return Error{ErrorCode::kInvalidArgument,
               job.name + ": is packed already, with " + std::to_string(spec.bits) + " bits and " +
                   std::string(words(turbo->mean.kind)) +
                   "; to keep it in another form, convert the dense cache it was made from"};
}

Result<std::vector<Job>> plan(Cache& cache, const ConvertOptions& options) {
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    auto* layer = std::get_if<AttentionLayer>(&cache.layers[i]);
    if (layer == nullptr) continue;
    const std::string name = "layer " + std::to_string(i);
    const Centring of_keys =
        key_centring(options.center, cache.identity.rope, layer->shape.head_dim);
    const Centring of_values = value_centring(options.center);
    for (const Job& job : {Job{name + " k", &layer->k, layer->shape, options.key_bits, of_keys,
                               codec::BlockOrder::kKeys},
                           Job{name + " v", &layer->v, layer->shape, options.value_bits, of_values,
                               codec::BlockOrder::kValues}}) {
      TQC_TRY_ASSIGN(const bool leave, is_left_alone(job, options));
      if (!leave) jobs.push_back(job);
    }
  }
  return jobs;
}

// One table for all keys, when there are any that need it.
std::shared_ptr<const RopeTable> make_rope_table(const std::vector<Job>& jobs, const Rope& rope) {
  const auto needs_it = [](const Job& job) { return job.centring == Centring::kPreRope; };
  if (std::ranges::none_of(jobs, needs_it)) return nullptr;
  return std::make_shared<const RopeTable>(rope);
}

Mean make_mean(const Job& job, const DenseSide& dense, std::int64_t n_tokens,
               const std::shared_ptr<const RopeTable>& rope, unsigned n_threads) {
  Mean mean{job.centring, {}, job.centring == Centring::kPreRope ? rope : nullptr};
  if (mean.kind == Centring::kNone || n_tokens < kTokenBlock) return mean;
  mean.values =
      compute_mean(dense.blocks, dense.dtype, job.shape, n_tokens, mean.rope.get(), n_threads);
  return mean;
}

// Turns a dense side into a turbo side without any packed block yet; the dense blocks are given
// back to the caller.
Result<std::vector<AlignedBytes>> open_turbo(const Job& job, std::int64_t n_tokens,
                                             const ConvertOptions& options,
                                             const std::shared_ptr<const RopeTable>& rope) {
  if (std::holds_alternative<TurboSide>(*job.side)) return std::vector<AlignedBytes>{};
  TQC_TRY_ASSIGN(const auto quantizer, codec::Quantizer::make({static_cast<int>(job.shape.head_dim),
                                                               job.bits, options.sign_seed}));
  DenseSide dense = std::move(std::get<DenseSide>(*job.side));
  Mean mean = make_mean(job, dense, n_tokens, rope, options.n_threads);
  *job.side = TurboSide{
      codec::BlockCodec(quantizer, job.order), {}, DenseSide{dense.dtype, {}}, std::move(mean)};
  return std::move(dense.blocks);
}

// Packs what is full of `job`, calling `count` with the head vectors of each finished block.
template <class Count>
Result<void> run(const Job& job, std::int64_t n_tokens, const ConvertOptions& options,
                 const std::shared_ptr<const RopeTable>& rope, const Count& count) {
  TQC_TRY_ASSIGN(std::vector<AlignedBytes> blocks, open_turbo(job, n_tokens, options, rope));
  auto& turbo = std::get<TurboSide>(*job.side);
  TQC_TRY(pack_full_tail(*job.side, job.shape, n_tokens, options.n_threads));
  const auto n_full = static_cast<std::size_t>(n_tokens / kTokenBlock);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i >= n_full) {
      turbo.tail.blocks.push_back(std::move(blocks[i]));
      continue;
    }
    const FullBlock block{job.shape, turbo.tail.dtype, static_cast<std::int64_t>(i), blocks[i]};
    auto packed = pack_block(turbo.codec, turbo.mean, block, options.n_threads);
    if (!packed) {
      return in_context("token block " + std::to_string(i), std::move(packed).error());
    }
    turbo.packed.push_back(std::move(packed).value());
    AlignedBytes().swap(blocks[i]);  // its memory goes back now, not at the end
    TQC_TRY(count());
  }
  return {};
}

}  // namespace

Result<Cache> convert(Cache cache, const ConvertOptions& options, const Progress& progress) {
  TQC_TRY(check_bits("key bits", options.key_bits));
  TQC_TRY(check_bits("value bits", options.value_bits));
  TQC_TRY(validate(cache));
  TQC_TRY_ASSIGN(const std::vector<Job> jobs, plan(cache, options));
  const auto rope = make_rope_table(jobs, cache.identity.rope);

  const auto n_blocks = static_cast<std::uint64_t>(cache.n_tokens() / kTokenBlock);
  std::uint64_t total = 0;
  for (const Job& job : jobs) {
    if (std::holds_alternative<DenseSide>(*job.side)) {
      total += n_blocks * vectors_per_block(job.shape);
    }
  }
  std::uint64_t done = 0;
  for (const Job& job : jobs) {
    const auto count = [&]() -> Result<void> {
      done += vectors_per_block(job.shape);
      if (progress && !progress(done, total)) return Error{ErrorCode::kInterrupted, "interrupted"};
      return {};
    };
    if (auto packed = run(job, cache.n_tokens(), options, rope, count); !packed) {
      if (packed.error().code == ErrorCode::kInterrupted) return std::move(packed).error();
      return in_context(job.name, std::move(packed).error());
    }
  }
  return cache;
}

}  // namespace tqcache::cache
