#include "tqcache/cache/side.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/head_coder.h"

namespace tqcache::cache {
namespace {

std::size_t dense_bytes(std::int64_t n_vectors, std::int64_t head_dim, Dtype dtype) {
  return to_size(n_vectors * head_dim) * dtype_size(dtype);
}

std::size_t dense_block_bytes(HeadShape shape, Dtype dtype) {
  return dense_bytes(shape.n_kv_heads * kTokenBlock, shape.head_dim, dtype);
}

// Bytes from the start of a dense block to one head vector.
std::size_t dense_offset(HeadShape shape, Dtype dtype, std::int64_t kv_head, std::int64_t token) {
  return dense_bytes(kv_head * kTokenBlock + token, shape.head_dim, dtype);
}

// Appending always goes to the dense part: all of a dense side, the tail of a turbo side.
DenseSide& open_part(Side& side) {
  if (auto* turbo = std::get_if<TurboSide>(&side)) return turbo->tail;
  return std::get<DenseSide>(side);
}

const DenseSide& open_part(const Side& side) {
  if (const auto* turbo = std::get_if<TurboSide>(&side)) return turbo->tail;
  return std::get<DenseSide>(side);
}

// Where the parts of a packed block stand, in bytes (TurboBlock).
struct Layout {
  Layout(const TurboSide& side, HeadShape shape, std::int64_t block)
      : codes(side.codec.code_bytes()),
        scales(side.codec.n_scale_rows() * to_size(kTokenBlock) * sizeof(std::uint16_t)),
        sinks(dense_bytes(sinks_in_block(side, block), shape.head_dim, side.tail.dtype)),
        n_heads(to_size(shape.n_kv_heads)) {}

  std::size_t codes_of(std::int64_t kv_head) const { return to_size(kv_head) * codes; }
  std::size_t scales_of(std::int64_t kv_head) const {
    return n_heads * codes + to_size(kv_head) * scales;
  }
  std::size_t sinks_of(std::int64_t kv_head) const {
    return n_heads * (codes + scales) + to_size(kv_head) * sinks;
  }
  std::size_t size() const { return n_heads * (codes + scales + sinks); }

  std::size_t codes, scales, sinks;  // bytes of one kv head
  std::size_t n_heads;
};

Result<void> check_finite(Dtype dtype, ByteView row, std::span<float> values) {
  load_f32(dtype, row.data(), values);
  const auto bad = std::ranges::find_if_not(values, [](float x) { return std::isfinite(x); });
  if (bad == values.end()) return {};
  return Error{ErrorCode::kCorrupt,
               "component " + std::to_string(bad - values.begin()) + ": not finite"};
}

// Copies the first vectors of a head to where its sink tokens are kept. `rows` is as long as these.
Result<void> keep_sinks(const FullBlock& block, ByteView rows, std::byte* sinks) {
  const std::size_t row_bytes = dense_bytes(1, block.shape.head_dim, block.dtype);
  std::vector<float> values(to_size(block.shape.head_dim));
  for (std::size_t at = 0; at < rows.size(); at += row_bytes) {
    if (auto checked = check_finite(block.dtype, rows.subspan(at, row_bytes), values); !checked) {
      return in_context("token " + std::to_string(at / row_bytes), std::move(checked).error());
    }
  }
  if (!rows.empty()) std::memcpy(sinks, rows.data(), rows.size());
  return {};
}

Result<void> pack_head(const TurboSide& side, const FullBlock& block, std::int64_t kv_head,
                       std::span<std::byte> packed) {
  const Layout layout(side, block.shape, block.index);
  const ByteView rows = block.head(kv_head);
  TQC_TRY(keep_sinks(block, rows.first(layout.sinks), packed.data() + layout.sinks_of(kv_head)));
  auto* const scales = packed.data() + layout.scales_of(kv_head);
  return HeadCoder(side, block.shape, block.index, kv_head)
      .encode({block.dtype, rows.data(), dense_bytes(1, block.shape.head_dim, block.dtype)}, 0,
              to_size(kTokenBlock), to_size(uncoded_tokens(block, side.n_sinks)),
              packed.subspan(layout.codes_of(kv_head), layout.codes),
              {reinterpret_cast<std::uint16_t*>(scales), layout.scales / 2});
}

// One that is not has nothing packed that is still there.
bool is_fixed(const TurboSide& side) {
  return side.mean.is_fixed() && side.outliers.is_fixed() && side.transforms.is_fixed();
}

FullBlock full_tail(const TurboSide& side, HeadShape shape, std::int64_t begin) {
  const auto index = static_cast<std::int64_t>(side.packed.size());
  return {shape, side.tail.dtype, index, side.tail.blocks.front(), tokens_before(begin, index)};
}

}  // namespace

std::int64_t packed_block_count(const Side& side) {
  const auto* turbo = std::get_if<TurboSide>(&side);
  return turbo ? static_cast<std::int64_t>(turbo->packed.size()) : 0;
}

Dtype dense_dtype(const Side& side) { return open_part(side).dtype; }

const AlignedBytes& dense_block(const Side& side, std::int64_t block) {
  const std::int64_t index = block - packed_block_count(side);
  assert(index >= 0 && to_size(index) < open_part(side).blocks.size());
  return open_part(side).blocks[to_size(index)];
}

void fix_side(TurboSide& side, std::span<const FullBlock> blocks, OutlierPolicy policy,
              unsigned n_threads) {
  assert(!blocks.empty() && (side.n_sinks == 0 || blocks.front().index == 0));
  if (!side.mean.is_fixed()) {
    side.mean.values = compute_mean(blocks, side.n_sinks, side.mean.rope.get(), n_threads);
  }
  if (!side.transforms.is_fixed()) {
    side.transforms = fit_head_transforms(blocks, side.n_sinks, side.mean, n_threads);
  }
  if (side.outliers.is_fixed()) return;
  const auto deciding = policy == OutlierPolicy::kCalibrationVariance ? blocks.first(1) : blocks;
  side.outliers =
      choose_outliers(deciding, side.n_sinks, side.mean, side.outliers.n_channels, n_threads);
}

Result<TurboBlock> pack_block(const TurboSide& side, const FullBlock& block, unsigned n_threads) {
  assert(is_fixed(side));
  assert(block.dtype == side.tail.dtype);
  assert(block.values.size() == dense_block_bytes(block.shape, block.dtype));
  AlignedBytes packed(packed_block_bytes(side, block.shape, block.index));
  const auto pack_one = [&](std::size_t head) -> Result<void> {
    auto done = pack_head(side, block, static_cast<std::int64_t>(head), packed);
    if (done) return {};
    return Error{done.error().code, "head " + std::to_string(head) + " " + done.error().message};
  };
  TQC_TRY(parallel_try(to_size(block.shape.n_kv_heads), n_threads, pack_one));
  return TurboBlock{SharedBytes(std::move(packed))};
}

Result<void> pack_full_tail(Side& side, HeadShape shape, std::int64_t n_tokens, unsigned n_threads,
                            std::int64_t begin) {
  auto* turbo = std::get_if<TurboSide>(&side);
  if (turbo == nullptr || turbo->tail.blocks.empty() || n_tokens % kTokenBlock != 0) return {};
  const FullBlock block = full_tail(*turbo, shape, begin);
  const Mean mean = turbo->mean;
  const Outliers outliers = turbo->outliers;
  const HeadTransforms maps = turbo->transforms;
  if (!is_fixed(*turbo)) {
    fix_side(*turbo, std::span(&block, 1), OutlierPolicy::kCalibrationVariance, n_threads);
  }
  auto packed = pack_block(*turbo, block, n_threads);
  if (!packed) {
    turbo->mean = mean;
    turbo->outliers = outliers;
    turbo->transforms = maps;
    return in_context("token block " + std::to_string(block.index), std::move(packed).error());
  }
  turbo->packed.push_back(std::move(packed).value());
  complete_block(*turbo, shape, block.index);
  turbo->tail.blocks.clear();
  return {};
}

void append(Side& side, HeadShape shape, std::int64_t n_tokens, std::span<const float> rows) {
  DenseSide& part = open_part(side);
  const std::int64_t first = n_tokens % kTokenBlock;
  const std::int64_t row_size = shape.n_kv_heads * shape.head_dim;
  const std::int64_t n_new = static_cast<std::int64_t>(rows.size()) / row_size;
  assert(first + n_new <= kTokenBlock);
  if (first == 0) part.blocks.emplace_back(dense_block_bytes(shape, part.dtype));
  AlignedBytes& block = part.blocks.back();
  for (std::int64_t token = 0; token < n_new; ++token) {
    for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
      const auto row =
          rows.subspan(to_size(token * row_size + head * shape.head_dim), to_size(shape.head_dim));
      store_f32(part.dtype, row,
                block.data() + dense_offset(shape, part.dtype, head, first + token));
    }
  }
}

void remove_tail(Side& side, std::int64_t n_tokens) {
  assert(n_tokens / kTokenBlock >= packed_block_count(side));
  open_part(side).blocks.resize(to_size(block_count(n_tokens) - packed_block_count(side)));
}

void read_block(const Side& side, HeadShape shape, [[maybe_unused]] std::int64_t n_tokens,
                std::int64_t block, std::int64_t kv_head, std::span<float> out) {
  assert(out.size() == to_size(tokens_in_block(n_tokens, block) * shape.head_dim));
  const Dtype dtype = dense_dtype(side);
  if (block >= packed_block_count(side)) {
    load_f32(dtype, dense_block(side, block).data() + dense_offset(shape, dtype, kv_head, 0), out);
    return;
  }
  const auto& turbo = std::get<TurboSide>(side);
  const AlignedBytes& decoded = turbo.packed[to_size(block)].decoded;
  if (!decoded.empty()) {
    return load_f32(dtype, decoded.data() + dense_offset(shape, dtype, kv_head, 0), out);
  }
  const std::size_t n = out.size() / to_size(shape.head_dim);
  HeadCoder(turbo, shape, block, kv_head).decode(packed_head(turbo, shape, block, kv_head), 0, out);
  const std::size_t n_sinks = std::min(n, to_size(sinks_in_block(turbo, block)));
  if (n_sinks == 0) return;
  load_f32(dtype, sink_rows(turbo, shape, kv_head).data(),
           out.first(n_sinks * to_size(shape.head_dim)));
}

void complete_block(TurboSide& side, HeadShape shape, std::int64_t block) {
  if (!is_transformed_before_rope(side)) return;
  TurboBlock& packed = side.packed[to_size(block)];
  AlignedBytes decoded(dense_block_bytes(shape, side.tail.dtype));
  const std::size_t row_bytes = dense_bytes(1, shape.head_dim, side.tail.dtype);
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    std::byte* const out = decoded.data() + dense_offset(shape, side.tail.dtype, head, 0);
    HeadCoder(side, shape, block, head)
        .decode(packed_head(side, shape, block, head), 0, to_size(kTokenBlock),
                {side.tail.dtype, out, row_bytes});
    if (sinks_in_block(side, block) == 0) continue;
    const ByteView sinks = sink_rows(side, shape, head);
    std::memcpy(out, sinks.data(), sinks.size());
  }
  packed.decoded = std::move(decoded);
}

codec::PackedHead packed_head(const TurboSide& side, HeadShape shape, std::int64_t block,
                              std::int64_t kv_head) {
  const Layout layout(side, shape, block);
  const ByteView bytes = side.packed[to_size(block)].bytes.view();
  const auto* const scales = bytes.data() + layout.scales_of(kv_head);
  return {bytes.subspan(layout.codes_of(kv_head), layout.codes),
          {reinterpret_cast<const std::uint16_t*>(scales), layout.scales / 2}};
}

ByteView sink_rows(const TurboSide& side, HeadShape shape, std::int64_t kv_head) {
  const Layout layout(side, shape, 0);
  return side.packed.front().bytes.view().subspan(layout.sinks_of(kv_head), layout.sinks);
}

std::size_t packed_block_bytes(const TurboSide& side, HeadShape shape, std::int64_t block) {
  return Layout(side, shape, block).size();
}

ByteCount byte_count(const Side& side, HeadShape shape, std::int64_t n_tokens) {
  ByteCount bytes;
  if (const auto* turbo = std::get_if<TurboSide>(&side)) {
    for (const TurboBlock& block : turbo->packed) {
      bytes.used += block.bytes.size() + block.decoded.size();
    }
    bytes.used += turbo->mean.values.size() * sizeof(float);
    bytes.used += turbo->outliers.orders.size() * sizeof(std::uint16_t);
    bytes.used +=
        turbo->transforms.entries.size() + 2 * turbo->transforms.rows.size() * sizeof(float);
  }
  bytes.allocated = bytes.used;
  const DenseSide& part = open_part(side);
  for (const AlignedBytes& block : part.blocks) bytes.allocated += block.size();
  const std::int64_t dense_tokens = n_tokens - packed_block_count(side) * kTokenBlock;
  bytes.used += dense_bytes(dense_tokens * shape.n_kv_heads, shape.head_dim, part.dtype);
  return bytes;
}

}  // namespace tqcache::cache
