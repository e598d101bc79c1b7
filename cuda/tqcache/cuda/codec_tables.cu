#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tqcache/codec/codebook.h"
#include "tqcache/cuda/check.cuh"
#include "tqcache/cuda/codec_tables.h"
#include "tqcache/cuda/cuda_codec.h"

namespace tqcache::cuda {
namespace {

constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers

int bin_of(float y, float bins_per_unit) {
  const float lifted = std::fma(y, bins_per_unit, kMagic);
  std::uint32_t bits;
  std::memcpy(&bits, &lifted, sizeof bits);
  return static_cast<int>(bits) - 0x4b400000;
}

// Bins for components up to 1 in magnitude (and a little more, for rounding).
struct Bins {
  float per_unit = 0;
  std::vector<float> entries;  // [n, 2]; n is a power of two
};

Bins make_bins(const std::vector<float>& boundaries) {
  float least_gap = 2;
  for (std::size_t i = 1; i < boundaries.size(); ++i) {
    least_gap = std::min(least_gap, boundaries[i] - boundaries[i - 1]);
  }
  for (float width = 1.02f; width <= 1.6f; width += 0.02f) {
    Bins bins;
    bins.per_unit = width / least_gap;
    const float last_bin = 1.001f * bins.per_unit + 2;
    if (!(2 * last_bin + 1 < kMaxBins)) return {};
    const int last = static_cast<int>(last_bin);
    const std::size_t n = std::bit_ceil(static_cast<std::size_t>(2 * last + 1));
    bins.entries.resize(2 * n);
    for (std::size_t i = 0; i < n; ++i) {
      bins.entries[2 * i] = std::numeric_limits<float>::infinity();
    }
    std::size_t below = 0;
    bool fits = true;
    for (int bin = -last; bin <= last; ++bin) {
      float* const entry = &bins.entries[2 * (static_cast<std::size_t>(bin) & (n - 1))];
      entry[1] = std::bit_cast<float>(static_cast<std::int32_t>(below));
      for (int k = 0; below < boundaries.size() && bin_of(boundaries[below], bins.per_unit) <= bin;
           ++k) {
        fits = fits && k == 0;
        entry[0] = boundaries[below++];
      }
    }
    if (fits && below == boundaries.size()) return bins;
  }
  return {};
}

// Memory of one device allocation, filled on the host first.
class Arena {
 public:
  template <class T>
  std::size_t add(const T* data, std::size_t n) {
    const std::size_t at = (bytes_.size() + 63) / 64 * 64;
    bytes_.resize(at + n * sizeof(T));
    if (n != 0) std::memcpy(bytes_.data() + at, data, n * sizeof(T));
    return at;
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

struct Offsets {
  std::size_t signs, cas, matrix, centroids, boundaries, bins;
};

}  // namespace

CodecTables::~CodecTables() { cudaFree(memory); }

Result<DeviceCodec> DeviceCodec::make(const codec::HeadCodec& codec) {
  if (codec.mode() == codec::Mode::kTrellis) return unsupported("mode trellis on a GPU");
  auto tables = std::make_shared<CodecTables>();
  tables->head_dim = static_cast<int>(codec.head_dim());
  tables->is_values = codec.order() == codec::BlockOrder::kValues;
  tables->mode = codec.mode();
  tables->n_parts = static_cast<int>(codec.n_parts());
  tables->n_scale_rows = static_cast<int>(codec.n_scale_rows());
  tables->code_bytes = static_cast<int>(codec.code_bytes());

  Arena arena;
  std::vector<PartTables> parts;
  std::vector<Offsets> offsets;
  int bias_row = tables->n_parts;
  int code_offset = 0, tile_offset = 0;
  for (std::size_t i = 0; i < codec.n_parts(); ++i) {
    const codec::PartSpec& spec = codec.parts()[i];
    const codec::Quantizer& quantizer = codec.part(i).quantizer();
    const codec::Rotation& rotation = quantizer.rotation();
    const auto centroids = quantizer.centroids();
    const std::vector<float> boundaries = codec::decision_boundaries(centroids);
    const Bins bins = make_bins(boundaries);
    PartTables part;
    part.first = spec.first;
    part.dim = spec.head_dim;
    part.bits = spec.bits;
    part.scale = spec.scale;
    part.transform = spec.rotation;
    part.rounds = spec.rounds;
    if (part.transform == codec::TransformKind::kHadamard) {
      part.part_size = static_cast<int>(rotation.part_size());
      part.factor = rotation.factor();
    }
    part.of_residual = spec.of_residual;
    part.has_bias = spec.has_bias;
    part.bias_is_smallest = !(spec.centroids.front() < 0);
    if (part.has_bias) part.bias_row = bias_row++;
    part.code_offset = code_offset;
    part.block_bytes = static_cast<int>(codec.part(i).shape().block_bytes());
    part.tile_offset = tile_offset;
    code_offset += part.block_bytes;
    tile_offset += (part.dim + 31) / 32 * 32;
    part.n_bins = static_cast<int>(bins.entries.size() / 2);
    part.bins_per_unit = bins.per_unit;
    offsets.push_back({arena.add(rotation.signs().data(), rotation.signs().size()),
                       arena.add(rotation.cas().data(), rotation.cas().size()),
                       arena.add(rotation.matrix().data(), rotation.matrix().size()),
                       arena.add(centroids.data(), centroids.size()),
                       arena.add(boundaries.data(), boundaries.size()),
                       arena.add(bins.entries.data(), bins.entries.size())});
    parts.push_back(part);
  }
  tables->tile_bytes = tile_offset;

  const std::size_t size = arena.bytes().size() + 64 + parts.size() * sizeof(PartTables);
  TQC_TRY(check(cudaMalloc(&tables->memory, size), "cudaMalloc"));
  const auto* const base = static_cast<const std::byte*>(tables->memory);
  const auto at = [&](std::size_t offset) { return reinterpret_cast<const float*>(base + offset); };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].signs = at(offsets[i].signs);
    parts[i].cas = at(offsets[i].cas);
    parts[i].matrix = at(offsets[i].matrix);
    parts[i].centroids = at(offsets[i].centroids);
    parts[i].boundaries = at(offsets[i].boundaries);
    parts[i].bins = at(offsets[i].bins);
  }
  const std::size_t parts_at = arena.add(parts.data(), parts.size());
  tables->part0 = parts.front();
  tables->parts = reinterpret_cast<const PartTables*>(base + parts_at);
  TQC_TRY(check(cudaMemcpy(tables->memory, arena.bytes().data(), arena.bytes().size(),
                           cudaMemcpyHostToDevice),
                "cudaMemcpy"));
  return DeviceCodec(codec, std::move(tables));
}

std::int64_t DeviceCodec::page_bytes(int n_kv_heads, int n_sinks, Dtype dtype) const {
  const std::int64_t sinks =
      std::int64_t{n_sinks} * tables_->head_dim * static_cast<std::int64_t>(dtype_size(dtype));
  return n_kv_heads * (tables_->code_bytes + std::int64_t{512} * tables_->n_scale_rows + sinks);
}

}  // namespace tqcache::cuda
