#include "fuzz/v1_changes.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "fuzz/mutate.h"
#include "migrations/v1_to_v2.h"
#include "support/v1_writer.h"
#include "tqcache/base/integers.h"

namespace tqcache::fuzz {
namespace {

using migrations::V1Dtype;
using migrations::V1Entry;
using migrations::V1File;
using migrations::V1Tensor;

constexpr std::size_t kDigestBytes = 32;
constexpr std::size_t kMostV1Layers = 6;
constexpr std::size_t kMostTensors = 12;

constexpr std::string_view kNames[] = {"reg_idx",
                                       "reg_norms",
                                       "reg_signs",
                                       "reg_residuals",
                                       "out_idx",
                                       "out_norms",
                                       "out_signs",
                                       "out_residuals",
                                       "outlier_mask",
                                       "values_main",
                                       "values_main.packed",
                                       "values_main.scales",
                                       "values_main.biases",
                                       "keys",
                                       "values",
                                       "keys.packed",
                                       "keys.scales",
                                       "keys.biases",
                                       "calibration_keys",
                                       "calibration_values",
                                       "0",
                                       "1"};
constexpr std::string_view kFactKeys[] = {
    "model", "tokens", "architecture", "rope", "weights_fingerprint", "tokenizer_fingerprint"};
constexpr std::string_view kWords[] = {"mse",
                                       "prod",
                                       "qr",
                                       "wht",
                                       "dense",
                                       "affine",
                                       "true",
                                       "false",
                                       "null",
                                       "[]",
                                       "{}",
                                       "\"\"",
                                       "disabled",
                                       "calibration_variance",
                                       "rolling_variance"};

// Puts another number, or a word, in the place of one of a text's.
void change_json(Chance& chance, std::string& text) {
  if (text.empty() || chance.one_in(6)) return change_text(chance, text);
  const std::size_t begin = text.find_first_of("0123456789", chance.below(text.size()));
  if (begin == std::string::npos || chance.one_in(4)) {
    const std::string_view old_word = chance.one_of(kWords);
    const std::size_t at = text.find(old_word);
    if (at != std::string::npos) text.replace(at, old_word.size(), chance.one_of(kWords));
    return;
  }
  const std::size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
  std::uint64_t number = 0;
  std::from_chars(text.data() + begin, text.data() + end, number);
  change_number(chance, number);
  text.replace(begin, end - begin, std::to_string(number));
}

std::uint64_t dtype_bytes(V1Dtype dtype) {
  if (dtype == V1Dtype::kF32 || dtype == V1Dtype::kU32) return 4;
  return dtype == V1Dtype::kF16 || dtype == V1Dtype::kBf16 ? 2 : 1;
}

// As many bytes as dtype and shape ask for, if they are few.
void fit_data(V1Tensor& tensor) {
  const auto count = element_count(tensor.shape);
  if (count && *count < kMaxV1PayloadBytes / 16)
    tensor.data.resize(*count * dtype_bytes(tensor.dtype));
}

void change_tensor(Chance& chance, V1Tensor& tensor) {
  switch (chance.below(5)) {
    case 0:
      tensor.name = chance.one_of(kNames);
      return;
    case 1:
      change_enum(chance, tensor.dtype, 6);
      break;
    case 2:
      change_order(chance, tensor.shape, 6);
      break;
    case 3:
      if (tensor.shape.empty()) tensor.shape.push_back(1);
      change_number(chance, tensor.shape[chance.below(tensor.shape.size())]);
      break;
    default:
      if (!tensor.data.empty()) {
        tensor.data[chance.below(tensor.data.size())] = static_cast<std::byte>(chance.bits());
      }
      return;
  }
  if (!chance.one_in(3)) fit_data(tensor);
}

void change_tensors(Chance& chance, std::vector<V1Tensor>& tensors) {
  if (tensors.empty()) {
    tensors.push_back({std::string(chance.one_of(kNames)), V1Dtype::kF16, {1, 1, 1, 1}, {}});
    return fit_data(tensors.back());
  }
  if (chance.one_in(5)) return change_order(chance, tensors, kMostTensors);
  change_tensor(chance, tensors[chance.below(tensors.size())]);
}

// The number of tokens of all tensors that have so many: the second dimension from the end.
void change_length(Chance& chance, V1Entry& entry) {
  constexpr std::uint64_t kLengths[] = {0, 1, 3, 255, 256, 257, 300};
  if (entry.state.empty()) return;
  const auto& first = entry.state[chance.below(entry.state.size())].shape;
  if (first.size() < 3) return;
  const std::uint64_t old_length = first[2];
  const std::uint64_t new_length = chance.one_of(kLengths);
  for (V1Tensor& tensor : entry.state) {
    if (tensor.shape.size() < 3 || tensor.shape[2] != old_length) continue;
    tensor.shape[2] = new_length;
    fit_data(tensor);
  }
  const std::string old_text = "\"offset\": " + std::to_string(old_length);
  const std::size_t at = entry.meta_state.find(old_text);
  if (at == std::string::npos) return;
  entry.meta_state.replace(at, old_text.size(), "\"offset\": " + std::to_string(new_length));
}

void change_entry(Chance& chance, V1Entry& entry) {
  const auto paths = migrations::known_class_paths();
  switch (chance.below(8)) {
    case 0:
      entry.class_path = paths[chance.below(paths.size())];
      return;
    case 1:
      return change_text(chance, entry.class_path);
    case 2:
    case 3:
      return change_json(chance, entry.meta_state);
    case 4:
      return change_json(chance, entry.extra_meta);
    case 5:
      return change_tensors(chance, entry.extra_state);
    case 6:
      return change_length(chance, entry);
    default:
      return change_tensors(chance, entry.state);
  }
}

void change_facts(Chance& chance, V1File& file) {
  if (file.metadata.empty()) {
    file.metadata.emplace_back(chance.one_of(kFactKeys), "[1, 2, 3]");
    return;
  }
  auto& [key, value] = file.metadata[chance.below(file.metadata.size())];
  switch (chance.below(3)) {
    case 0:
      return change_order(chance, file.metadata, 12);
    case 1:
      key = chance.one_of(kFactKeys);
      return;
    default:
      return change_json(chance, value);
  }
}

void change_file(Chance& chance, V1File& file) {
  if (chance.one_in(8)) return change_facts(chance, file);
  if (file.entries.empty() || chance.one_in(8)) {
    return change_order(chance, file.entries, kMostV1Layers);
  }
  change_entry(chance, file.entries[chance.below(file.entries.size())]);
}

// Another frame than that of the values, now and then.
test::V1WriteOptions lies(Chance& chance) {
  test::V1WriteOptions options;
  if (chance.one_in(40)) options.schema_version = static_cast<std::uint32_t>(chance.below(4));
  if (!chance.one_in(16)) return options;
  options.frame = [&chance](const V1Tensor& tensor) {
    Bytes frame = test::zstd_frame(tensor.data);
    if (!frame.empty()) frame[chance.below(frame.size())] ^= static_cast<std::byte>(chance.bits());
    return frame;
  };
  return options;
}

Bytes change_structure(Chance& chance, ByteView bytes) {
  auto file = migrations::read_v1(*memory_source(Bytes(bytes.begin(), bytes.end())),
                                  MemoryBudget().at_most(kMaxV1PayloadBytes));
  if (!file) return {};
  const std::size_t n_changes = 1 + chance.below(3);
  for (std::size_t i = 0; i < n_changes; ++i) change_file(chance, *file);
  try {
    return test::write_v1(*file, lies(chance));
  } catch (const std::exception&) {
    return {};  // what cannot be written
  }
}

}  // namespace

std::size_t mutate_v1(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
  Chance chance(seed);
  if (size <= kDigestBytes || max_size <= kDigestBytes || chance.one_in(16)) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const ByteView view = view_of(data, size);
  if (!chance.one_in(4)) {
    const Bytes changed = change_structure(chance, view);
    if (!changed.empty()) return give_back(changed, data, size, max_size);
  }
  Bytes file(view.begin(), view.end());
  change_bytes(file, 0, size - kDigestBytes, std::min<std::size_t>(max_size - size, 16));
  test::seal_v1(file);
  return give_back(file, data, size, max_size);
}

}  // namespace tqcache::fuzz
