#include "tqcache/model/loading/rearranged.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

using tensors::TensorType;
using tensors::TensorView;

constexpr std::uint64_t kMxfp4Values = 32;  // of a block
constexpr std::size_t kCodeBytes = 16;      // of a block
constexpr std::size_t kBlockBytes = 17;     // in GGUF: the scale, and the codes

std::size_t value_bytes(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return 4;
    case TensorType::kF16:
    case TensorType::kBF16:
      return 2;
    default:
      return 0;
  }
}

Error tensor_error(ErrorCode code, const std::string& name, const std::string& what) {
  return {code, "tensor " + tensors::printable_name(name) + ": " + what};
}

// The part of a row or column index that one of several matrices takes: those that are `first`
// modulo `step`.
struct Every {
  std::uint64_t first = 0;
  std::uint64_t step = 1;
};

// Writes the tensors of one layer.
class Rearrangement {
 public:
  explicit Rearrangement(ModelTensors& model) : model_(model) {}

  // `from`: "blk.3.ffn_down_exps", `to` likewise. Tensors that are not there are left out.
  Result<void> add(const std::string& from, const std::string& to, Every part) {
    TQC_TRY(add_weight(from, to, part));
    TQC_TRY(add_bias(from, to, part));
    return add_blocks(from, to, part);
  }

  void drop(const std::string& from) {
    for (const char* end : {".weight", ".bias", ".blocks", ".scales"}) {
      model_.by_name.erase(from + end);
    }
  }

 private:
  Result<const TensorView*> find(const std::string& name, std::size_t n_dims) const {
    const auto found = model_.by_name.find(name);
    if (found == model_.by_name.end()) return nullptr;
    if (found->second.shape.size() == n_dims) return &found->second;
    return tensor_error(ErrorCode::kCorrupt, name,
                        std::to_string(found->second.shape.size()) + " dimensions instead of " +
                            std::to_string(n_dims));
  }

  // The number of indices of `size` that the part takes.
  static Result<std::uint64_t> count(const std::string& name, std::uint64_t size, Every part) {
    if (size % part.step == 0) return size / part.step;
    return tensor_error(ErrorCode::kCorrupt, name, "an odd number of rows for gate and up");
  }

  Result<std::byte*> make(const std::string& name, TensorType type, std::string type_name,
                          std::vector<std::uint64_t> shape, std::uint64_t bytes) {
    AlignedBytes& memory = model_.rearranged.emplace_back(static_cast<std::size_t>(bytes));
    const TensorView view = {type, std::move(type_name), std::move(shape), memory};
    if (!model_.by_name.emplace(name, view).second) {
      return tensor_error(ErrorCode::kCorrupt, name, "comes twice");
    }
    return memory.data();
  }

  // [experts, inputs, outputs] -> [experts, outputs of the part, inputs]
  Result<void> add_weight(const std::string& from, const std::string& to, Every part) {
    TQC_TRY_ASSIGN(const TensorView* tensor, find(from + ".weight", 3));
    if (tensor == nullptr) return {};
    const std::size_t size = value_bytes(tensor->type);
    if (size == 0) {
      return tensor_error(ErrorCode::kUnsupported, from + ".weight", "type " + tensor->type_name);
    }
    const std::uint64_t n_in = tensor->shape[1], n_all = tensor->shape[2];
    TQC_TRY_ASSIGN(const std::uint64_t n_out, count(from, n_all, part));
    TQC_TRY_ASSIGN(std::byte * out,
                   make(to + ".weight", tensor->type, tensor->type_name,
                        {tensor->shape[0], n_out, n_in}, tensor->bytes.size() / part.step));
    for (std::uint64_t expert = 0; expert < tensor->shape[0]; ++expert) {
      const std::byte* const matrix = tensor->bytes.data() + expert * n_in * n_all * size;
      for (std::uint64_t row = 0; row < n_out; ++row) {
        const std::byte* value = matrix + (row * part.step + part.first) * size;
        for (std::uint64_t i = 0; i < n_in; ++i, value += n_all * size, out += size) {
          std::memcpy(out, value, size);
        }
      }
    }
    return {};
  }

  // [experts, outputs] -> [experts, outputs of the part]
  Result<void> add_bias(const std::string& from, const std::string& to, Every part) {
    TQC_TRY_ASSIGN(const TensorView* tensor, find(from + ".bias", 2));
    if (tensor == nullptr) return {};
    const std::size_t size = value_bytes(tensor->type);
    if (size == 0) {
      return tensor_error(ErrorCode::kUnsupported, from + ".bias", "type " + tensor->type_name);
    }
    TQC_TRY_ASSIGN(const std::uint64_t n_out, count(from, tensor->shape[1], part));
    TQC_TRY_ASSIGN(std::byte * out,
                   make(to + ".bias", tensor->type, tensor->type_name, {tensor->shape[0], n_out},
                        tensor->bytes.size() / part.step));
    const std::uint64_t n_values = tensor->shape[0] * n_out;
    for (std::uint64_t i = 0; i < n_values; ++i, out += size) {
      std::memcpy(out, tensor->bytes.data() + (i * part.step + part.first) * size, size);
    }
    return {};
  }

  // Codes [experts, outputs, blocks, 16] and scales [experts, outputs, blocks] of MXFP4 ->
  // [experts, outputs of the part, inputs]
  Result<void> add_blocks(const std::string& from, const std::string& to, Every part) {
    TQC_TRY_ASSIGN(const TensorView* codes, find(from + ".blocks", 4));
    TQC_TRY_ASSIGN(const TensorView* scales, find(from + ".scales", 3));
    if (codes == nullptr && scales == nullptr) return {};
    if (codes == nullptr || scales == nullptr || codes->type != TensorType::kU8 ||
        scales->type != TensorType::kU8 || codes->shape[3] != kCodeBytes ||
        !std::equal(scales->shape.begin(), scales->shape.end(), codes->shape.begin())) {
      return tensor_error(ErrorCode::kCorrupt, from, "blocks and scales of MXFP4 that do not fit");
    }
    const std::uint64_t n_rows = scales->shape[1], n_blocks = scales->shape[2];
    TQC_TRY_ASSIGN(const std::uint64_t n_out, count(from, n_rows, part));
    const std::uint64_t n_all = scales->shape[0] * n_out * n_blocks;
    TQC_TRY_ASSIGN(std::byte * out,
                   make(to + ".weight", TensorType::kMXFP4, "MXFP4",
                        {scales->shape[0], n_out, n_blocks * kMxfp4Values}, n_all * kBlockBytes));
    for (std::uint64_t row = 0; row < scales->shape[0] * n_out; ++row) {
      const std::uint64_t first = (row * part.step + part.first) * n_blocks;
      for (std::uint64_t i = first; i < first + n_blocks; ++i, out += kBlockBytes) {
        out[0] = scales->bytes[static_cast<std::size_t>(i)];
        reorder_codes(codes->bytes.data() + i * kCodeBytes, out + 1);
      }
    }
    return {};
  }

  // Codes 2i and 2i + 1 in byte i -> codes i and i + 16.
  static void reorder_codes(const std::byte* in, std::byte* out) {
    const auto code = [&](std::size_t i) {
      const auto both = std::to_integer<unsigned>(in[i / 2]);
      return i % 2 == 0 ? both & 15 : both >> 4;
    };
    for (std::size_t i = 0; i < kCodeBytes; ++i) {
      out[i] = static_cast<std::byte>(code(i) | code(i + kCodeBytes) << 4);
    }
  }

  ModelTensors& model_;
};

struct Wanted {
  std::set<std::string> layers;  // "blk.3."
  std::uint64_t bytes = 0;
};

// The layers whose experts have to be rearranged, and the size of these.
Wanted find_experts(const ModelTensors& model) {
  Wanted wanted;
  for (const auto& [name, tensor] : model.by_name) {
    for (const char* part : {"ffn_gate_up_exps.", "ffn_down_exps."}) {
      const std::size_t at = name.find(part);
      if (at == std::string::npos) continue;
      wanted.layers.insert(name.substr(0, at));
      wanted.bytes += tensor.bytes.size();
    }
  }
  return wanted;
}

}  // namespace

Result<void> rearrange_experts(ModelTensors& model, const MemoryBudget& memory) {
  const Wanted wanted = find_experts(model);
  TQC_TRY(memory.check(wanted.bytes, "experts of a Hugging Face folder"));
  Rearrangement rearrangement(model);
  for (const std::string& block : wanted.layers) {
    const std::string both = block + "ffn_gate_up_exps", down = block + "ffn_down_exps";
    TQC_TRY(rearrangement.add(both, block + "ffn_gate_exps", {0, 2}));
    TQC_TRY(rearrangement.add(both, block + "ffn_up_exps", {1, 2}));
    rearrangement.drop(both);
    // The names stay, so the originals move out of the way.
    for (const char* end : {".weight", ".bias", ".blocks", ".scales"}) {
      auto node = model.by_name.extract(down + end);
      if (node.empty()) continue;
      node.key() = block + "originals" + end;
      model.by_name.insert(std::move(node));
    }
    TQC_TRY(rearrangement.add(block + "originals", down, {}));
    rearrangement.drop(block + "originals");
  }
  return {};
}

}  // namespace tqcache::model
