#pragma once
// format/archive_fixture.h: caches and files of the archive tier, for the tests.

#include "file_fixture.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/format/sections/symbol_section.h"

namespace tqcache::test {

inline cache::TensorPlan archive_plan(float step, std::int64_t n_sinks = 0) {
  cache::TensorPlan plan;
  plan.codec = {.mode = codec::Mode::kTrellis, .step = step};
  plan.n_sinks = n_sinks;
  return plan;
}

inline cache::Cache archive_cache(float step = 0.4f, std::int64_t n_sinks = 0,
                                  cache::HeadShape shape = {2, 40}) {
  return CacheBuilder(513)
      .tensors(shape, Dtype::kF16, archive_plan(step, n_sinks), Dtype::kF16, archive_plan(step))
      .build();
}

// The first section of the file of archive_cache(), as symbols one a byte, in a frame that nothing
// was compressed in.
struct StoredSymbols {
  Bytes densities;
  Bytes content;

  Bytes frame() const {
    ByteWriter out;
    out.write(std::uint32_t{0xfd2fb528});
    out.write(std::uint8_t{0xa0});  // one segment, its size in four bytes
    out.write(static_cast<std::uint32_t>(content.size()));
    const auto header = static_cast<std::uint32_t>(content.size() << 3 | 1);
    for (int i = 0; i < 3; ++i) out.write(static_cast<std::uint8_t>(header >> 8 * i));
    out.append(content);
    return std::move(out).take();
  }
  Bytes bytes() const {
    ByteWriter out;
    out.append(densities);
    out.append(frame());
    return std::move(out).take();
  }
};

inline constexpr std::size_t kArchiveDim = 40;
inline constexpr std::size_t kArchiveHeads = 2;

inline StoredSymbols symbols_of(const Bytes& file) {
  const CacheFileInfo info = info_of(file);
  const SectionInfo& section = info.sections[0];
  const auto shape = format::symbol_shape(info.layers[0], section);
  const ByteView raw = ByteView(file).subspan(section.file_offset, section.raw_bytes);
  StoredSymbols stored{Bytes(3, std::byte{1}),
                       Bytes((kArchiveDim + 1) * kArchiveHeads * codec::kBlockTokens)};
  for (std::size_t head = 0; head < kArchiveHeads; ++head) {
    std::vector<std::uint8_t> codes(codec::kBlockTokens * kArchiveDim);
    codec::unpack_block({kArchiveDim, 8, codec::BlockOrder::kKeys},
                        raw.subspan(shape.layout.codes_at(head), shape.layout.code_bytes), codes);
    for (std::size_t t = 0; t < codec::kBlockTokens; ++t) {
      for (std::size_t i = 0; i < kArchiveDim; ++i) {
        stored.content[(i * kArchiveHeads + head) * codec::kBlockTokens + t] =
            static_cast<std::byte>(codes[t * kArchiveDim + i] / 2);
      }
      stored.content[(kArchiveDim * kArchiveHeads + head) * codec::kBlockTokens + t] =
          raw[shape.layout.scales_at(0) + 2 * (head * codec::kBlockTokens + t) + 1] << 1 |
          raw[shape.layout.scales_at(0) + 2 * (head * codec::kBlockTokens + t)] >> 7;
    }
  }
  return stored;
}

// The same cache with maps that zstd does not make smaller.
inline cache::Cache mapped_cache(cache::HeadShape shape = {2, 40}) {
  cache::Cache cache = archive_cache(0.4f, 0, shape);
  Random random(3);
  auto& layer = std::get<0>(cache.layers[0]);
  std::vector<std::int8_t> entries(
      static_cast<std::size_t>(shape.n_kv_heads * shape.head_dim * shape.head_dim));
  for (cache::Tensor* tensor : {&layer.k, &layer.v}) {
    for (std::int8_t& entry : entries) entry = static_cast<std::int8_t>(random.next());
    auto& turbo = std::get<cache::TurboTensor>(*tensor);
    turbo.codec = must(remade(turbo.codec, cache.identity.rope,
                              [&](cache::QuantSpec& quant) { quant.transforms = entries; }));
    for (std::int64_t i = 0; i < std::ssize(turbo.packed); ++i) {
      cache::TurboBlock& block = turbo.packed[static_cast<std::size_t>(i)];
      block = cache::make_turbo_block(turbo.codec, i, block.bytes);
    }
  }
  return cache;
}

}  // namespace tqcache::test
