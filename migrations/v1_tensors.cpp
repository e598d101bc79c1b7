#include "migrations/v1_tensors.h"

#include <fmt/format.h>

#include <algorithm>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::migrations {
namespace {

std::string place(std::string_view name) { return "tensor " + tensors::printable_name(name); }

Result<std::int64_t> checked_size(std::uint64_t size, std::int64_t limit, std::string_view what) {
  if (size <= static_cast<std::uint64_t>(limit)) return static_cast<std::int64_t>(size);
  return too_large(fmt::format("{} {}", size, what));
}

std::string describe(const Grid& grid) {
  return "1 x " + std::to_string(grid.n_kv_heads) + " x " + std::to_string(grid.n_tokens) + " x " +
         std::to_string(grid.width);
}

}  // namespace

std::string describe(const V1Tensor& tensor) {
  std::string text = place(tensor.name).append(", ");
  if (tensor.shape.empty()) text += "a single value";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    text += (i == 0 ? "" : " x ") + std::to_string(tensor.shape[i]);
  }
  return text;
}

Result<Grid> grid_of(const V1Tensor& tensor) {
  const auto& shape = tensor.shape;
  if (shape.size() != 3 && shape.size() != 4) {
    return corrupt(fmt::format("{}: {} dimensions", describe(tensor), shape.size()));
  }
  if (shape[0] != 1) {
    return unsupported(fmt::format("{}: a batch of {}", describe(tensor), shape[0]));
  }
  const auto checked = [&]() -> Result<Grid> {
    Grid grid;
    TQC_TRY_ASSIGN(grid.n_kv_heads, checked_size(shape[1], cache::kMaxKvHeads, "kv heads"));
    TQC_TRY_ASSIGN(grid.n_tokens, checked_size(shape[2], cache::kMaxTokens, "tokens"));
    const std::uint64_t width = shape.size() == 4 ? shape[3] : 1;
    TQC_TRY_ASSIGN(grid.width, checked_size(width, cache::kMaxHeadDim, "components"));
    return grid;
  };
  auto grid = checked();
  if (!grid) return in_context(place(tensor.name), std::move(grid).error());
  return grid;
}

Result<Dtype> dense_dtype(const V1Tensor& tensor) {
  switch (tensor.dtype) {
    case V1Dtype::kF32:
      return Dtype::kF32;
    case V1Dtype::kF16:
      return Dtype::kF16;
    case V1Dtype::kBf16:
      return Dtype::kBF16;
    case V1Dtype::kU8:
    case V1Dtype::kU32:
    case V1Dtype::kBool:
      break;
  }
  return corrupt(describe(tensor) + ": not floating-point numbers");
}

Result<const V1Tensor*> NamedTensors::named(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &V1Tensor::name);
  if (found == tensors_.end()) return corrupt(place(name) + ": missing");
  return &*found;
}

const V1Tensor* NamedTensors::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &V1Tensor::name);
  return found == tensors_.end() || found->data.empty() ? nullptr : &*found;
}

Result<const V1Tensor*> NamedTensors::require(std::string_view name) const {
  const V1Tensor* tensor = find(name);
  if (tensor == nullptr) return corrupt(place(name) + ": missing");
  return tensor;
}

Result<void> NamedTensors::require_absent(std::initializer_list<std::string_view> names) const {
  for (const std::string_view name : names) {
    if (find(name) != nullptr) return corrupt(place(name) + ": not expected here");
  }
  return {};
}

Result<void> NamedTensors::require_only(std::initializer_list<std::string_view> names) const {
  for (const V1Tensor& tensor : tensors_) {
    if (std::ranges::find(names, tensor.name) == names.end()) {
      return corrupt(place(tensor.name) + ": not a tensor of this class");
    }
  }
  return {};
}

Result<const V1Tensor*> NamedTensors::require(std::string_view name, const Grid& grid) const {
  TQC_TRY_ASSIGN(const V1Tensor* tensor, require(name));
  TQC_TRY_ASSIGN(const Grid own, grid_of(*tensor));
  if (own == grid) return tensor;
  return corrupt(migrations::describe(*tensor) + ", expected " + describe(grid));
}

Result<ByteView> NamedTensors::bytes(std::string_view name, V1Dtype dtype, const Grid& grid) const {
  TQC_TRY_ASSIGN(const V1Tensor* tensor, require(name, grid));
  if (tensor->dtype == dtype) return ByteView(tensor->data);
  return corrupt(place(name) + ": of another dtype");
}

Result<std::vector<float>> NamedTensors::floats(std::string_view name, const Grid& grid) const {
  TQC_TRY_ASSIGN(const V1Tensor* tensor, require(name, grid));
  TQC_TRY_ASSIGN(const Dtype dtype, dense_dtype(*tensor));
  std::vector<float> values(tensor->data.size() / dtype_size(dtype));
  load_f32(dtype, tensor->data.data(), values);
  return values;
}

}  // namespace tqcache::migrations
