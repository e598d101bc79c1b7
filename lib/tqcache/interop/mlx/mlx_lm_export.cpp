#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/format/dense_sections.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/interop/mlx/mlx_lm.h"
#include "tqcache/interop/mlx/mlx_lm_affine.h"
#include "tqcache/interop/mlx/mlx_lm_plan.h"

namespace tqcache::interop {
namespace {

using format::SideName;

// Tensors one after another. No more than one side of one layer is in memory, or one array.
class MlxWriter {
 public:
  // Everything must outlive this.
  MlxWriter(const format::SectionSource& cache, AtomicFile& file, AffineForm form,
            const Progress& progress)
      : cache_(cache),
        file_(file),
        form_(form),
        progress_(progress),
        total_(format::total_raw_bytes(cache.manifest())) {
    number_sections();
  }

  Result<void> write(const MlxTensor& tensor) {
    return std::visit([&](const auto& data) { return write_data(data); }, tensor.data);
  }

 private:
  const format::Manifest& manifest() const { return cache_.manifest(); }
  cache::HeadShape shape_of(const MlxSideData& side) const {
    return cache::attention_of(manifest().layers[to_size(side.layer)])->shape;
  }
  Dtype dtype_of(const MlxSideData& side) const {
    return format::side_of(manifest().layers[to_size(side.layer)], side.side).dtype;
  }

  // Where the sections of each layer's keys, values and arrays stand in the section table.
  void number_sections() {
    numbers_.resize(manifest().layers.size());
    for (std::size_t i = 0; i < manifest().sections.size(); ++i) {
      const format::SectionInfo& section = manifest().sections[i];
      numbers_[to_size(section.layer)][static_cast<std::size_t>(section.side)].push_back(i);
    }
  }
  const std::vector<std::size_t>& sections_of(std::int64_t layer, SideName side) const {
    return numbers_[to_size(layer)][static_cast<std::size_t>(side)];
  }

  Result<void> read(std::size_t section) {
    TQC_TRY(cache_.read(section, section_));
    done_ += section_.size();
    if (progress_ && !progress_(done_, total_)) {
      return interrupted_error();
    }
    return {};
  }

  // Calls use(row, bytes) with every head vector of a side; `row` counts kv head by kv head.
  template <class Use>
  Result<void> each_row(const MlxSideData& side, Use use) {
    const cache::HeadShape shape = shape_of(side);
    const std::size_t bytes = to_size(shape.head_dim) * dtype_size(dtype_of(side));
    std::int64_t first = 0;
    for (const std::size_t section : sections_of(side.layer, side.side)) {
      TQC_TRY(read(section));
      const std::int64_t n =
          cache::tokens_in_block(manifest().n_tokens(), manifest().sections[section].block);
      const std::byte* row = section_.data();
      for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
        for (std::int64_t i = 0; i < n; ++i, row += bytes) {
          use(to_size(head * manifest().n_tokens() + first + i), ByteView(row, bytes));
        }
      }
      first += n;
    }
    return {};
  }

  std::size_t n_rows(const MlxSideData& side) const {
    return to_size(shape_of(side).n_kv_heads * manifest().n_tokens());
  }

  Result<void> write_data(const MlxSideData& side) {
    const cache::HeadShape shape = shape_of(side);
    const std::size_t bytes = to_size(shape.head_dim) * dtype_size(dtype_of(side));
    buffers_[0].resize(n_rows(side) * bytes);
    TQC_TRY(each_row(side, [&](std::size_t row, ByteView values) {
      std::memcpy(buffers_[0].data() + row * bytes, values.data(), bytes);
    }));
    return file_.write(buffers_[0]);
  }

  // The first of the three makes them all.
  Result<void> write_data(const MlxGroupData& data) {
    if (data.part == MlxGroupData::kCodes) TQC_TRY(pack(data.side));
    return file_.write(buffers_[data.part]);
  }

  Result<void> pack(const MlxSideData& side) {
    const cache::HeadShape shape = shape_of(side);
    const Dtype dtype = dtype_of(side);
    const std::size_t code_bytes = affine_code_bytes(form_, shape.head_dim);
    const std::size_t group_bytes = affine_groups(form_, shape.head_dim) * dtype_size(dtype);
    buffers_[MlxGroupData::kCodes].resize(n_rows(side) * code_bytes);
    buffers_[MlxGroupData::kScales].resize(n_rows(side) * group_bytes);
    buffers_[MlxGroupData::kBiases].resize(n_rows(side) * group_bytes);
    std::vector<float> x(to_size(shape.head_dim));
    const auto part = [&](MlxGroupData::Part name, std::size_t row, std::size_t bytes) {
      return std::span(buffers_[name]).subspan(row * bytes, bytes);
    };
    return each_row(side, [&](std::size_t row, ByteView values) {
      load_f32(dtype, values.data(), x);
      affine_encode(form_, dtype, x, part(MlxGroupData::kCodes, row, code_bytes),
                    part(MlxGroupData::kScales, row, group_bytes),
                    part(MlxGroupData::kBiases, row, group_bytes));
    });
  }

  Result<void> write_data(const MlxArrayData& data) {
    TQC_TRY(read(sections_of(data.layer, SideName::kArray)[to_size(data.array)]));
    return file_.write(section_);
  }

  Result<void> write_data(const MlxNumberData& number) {
    ByteWriter out;
    out.write(static_cast<std::int32_t>(number.value));
    return file_.write(out.bytes());
  }

  Result<void> write_data(const MlxNoData&) { return {}; }

  const format::SectionSource& cache_;
  AtomicFile& file_;
  AffineForm form_;
  const Progress& progress_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
  std::vector<std::array<std::vector<std::size_t>, 3>> numbers_;  // [layer][SideName]
  AlignedBytes section_;
  std::array<Bytes, 3> buffers_;  // a side, or its codes, scales and biases
};

}  // namespace

Result<void> export_mlx_lm(const format::SectionSource& cache, const std::filesystem::path& path,
                           const MlxLmExport& options, const Progress& progress) {
  TQC_TRY_ASSIGN(const auto dense, format::DenseSections::make(cache));
  TQC_TRY_ASSIGN(const MlxPlan plan, plan_mlx(dense.manifest(), options));
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  std::vector<tensors::NewTensor> names;
  for (const MlxTensor& tensor : plan.tensors) names.push_back(tensor.tensor);
  TQC_TRY(file.write(tensors::make_safetensors_header(names, plan.metadata)));
  MlxWriter writer(dense, file, {options.kv_bits, options.group_size}, progress);
  for (const MlxTensor& tensor : plan.tensors) {
    auto written = writer.write(tensor);
    if (!written) return std::move(written).error();
  }
  return file.commit();
}

}  // namespace tqcache::interop
