#include "tqcache/interop/turbomlx/turbomlx_npz.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/tensors/npy.h"
#include "tqcache/tensors/zip_archive.h"

namespace tqcache::interop {
namespace {

constexpr std::uint64_t kMaxFileBytes = 16u << 20;  // a map of 1,024 channels takes 4 MiB

Result<std::vector<float>> read_member(const tensors::ZipArchive& zip, std::size_t member,
                                       const std::vector<std::uint64_t>& shape) {
  TQC_TRY_ASSIGN(const Bytes start, zip.read_start(member, tensors::kMaxNpyHeaderBytes));
  TQC_TRY_ASSIGN(const tensors::NpyHeader header, tensors::parse_npy_header(start));
  if (header.type != tensors::TensorType::kF32 || header.shape != shape) {
    return corrupt("not f32, or of another shape than its name says");
  }
  if (zip.members()[member].bytes != header.data_offset + header.bytes) {
    return corrupt("of another size than its shape says");
  }
  std::vector<float> values(static_cast<std::size_t>(header.bytes) / sizeof(float));
  TQC_TRY(zip.read_at(member, header.data_offset, std::as_writable_bytes(std::span(values))));
  if (std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) return values;
  return corrupt("values that are not finite");
}

Result<std::vector<float>> read_array(const tensors::ZipArchive& zip, std::string_view name,
                                      const std::vector<std::uint64_t>& shape) {
  const std::string file = std::string(name) + ".npy";
  const auto found = std::ranges::find(zip.members(), file, &tensors::ZipMember::name);
  if (found == zip.members().end()) return corrupt("missing");
  return read_member(zip, static_cast<std::size_t>(found - zip.members().begin()), shape);
}

}  // namespace

Result<std::optional<std::vector<float>>> read_npz_floats(const std::filesystem::path& path,
                                                          std::string_view name,
                                                          const std::vector<std::uint64_t>& shape) {
  auto file = open_file(path);
  if (!file && file.error().code == ErrorCode::kNotFound)
    return std::optional<std::vector<float>>();
  const std::string place = path.filename().string() + ", array " + std::string(name);
  if (!file) return in_context(place, std::move(file).error());
  auto zip = tensors::ZipArchive::open(std::move(file).value(),
                                       {.max_members = 16, .max_inflated_bytes = kMaxFileBytes});
  if (!zip) return in_context(place, std::move(zip).error());
  auto values = read_array(**zip, name, shape);
  if (!values) return in_context(place, std::move(values).error());
  return std::optional(std::move(values).value());
}

}  // namespace tqcache::interop
