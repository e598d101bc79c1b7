#include "tqcache/interop/npz/npz_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tqcache/tensors/foreign_json.h"
#include "tqcache/tensors/npy.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using tensors::NpzArray;
using tensors::TensorType;

constexpr std::uint64_t kMaxDescriptionBytes = 16 << 20;
constexpr std::size_t kMaxMemberNameBytes = 64;
constexpr int kMaxDescriptionDepth = 4;
constexpr std::size_t kWordBytes = 4;  // bytes per character of "<U"

// The description is ASCII, so any other character is an error. NumPy pads texts with NULs.
Result<std::string> text_of_words(ByteView words) {
  std::string text;
  for (std::size_t at = 0; at + kWordBytes <= words.size(); at += kWordBytes) {
    const auto word = number_at<std::uint32_t>(words, at);
    if (word > 0x7f) return corrupt("a character that is not ASCII");
    text.push_back(static_cast<char>(word));
  }
  return text;
}

Result<std::string> read_text(const tensors::Npz& npz, const NpzArray& array) {
  const bool is_words = array.header.descr.starts_with("<U");
  const bool is_text = is_words || array.header.descr.starts_with("|S");
  const bool fits = is_text
                        ? array.header.shape.empty()
                        : array.header.type == TensorType::kU8 && array.header.shape.size() == 1;
  if (!fits) return unsupported("neither a text nor bytes");
  if (array.header.bytes > kMaxDescriptionBytes * (is_words ? kWordBytes : 1)) {
    return too_large(fmt::format("{} bytes", array.header.bytes));
  }
  Bytes bytes(static_cast<std::size_t>(array.header.bytes));
  TQC_TRY(npz.read_all(array, bytes));
  if (is_words) return text_of_words(bytes);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<nlohmann::json> read_json(const tensors::Npz& npz, const NpzArray& array) {
  TQC_TRY_ASSIGN(std::string text, read_text(npz, array));
  while (text.ends_with('\0')) text.pop_back();
  TQC_TRY_ASSIGN(nlohmann::json parsed,
                 tensors::parse_json(
                     text, {.max_bytes = kMaxDescriptionBytes, .max_depth = kMaxDescriptionDepth}));
  if (!parsed.is_object()) return corrupt("not an object of JSON");
  return parsed;
}

std::string layer_name(std::size_t layer) { return fmt::format("layer_{}_", layer); }

}  // namespace

std::string npz_tensor_name(std::size_t layer, std::string_view tensor) {
  return layer_name(layer) + std::string(tensor);
}

std::string npz_array_name(std::size_t layer, std::string_view array) {
  return layer_name(layer) + "array_" + std::string(array);
}

bool fits_npz_name(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxMemberNameBytes && std::ranges::all_of(name, fits);
}

Result<nlohmann::json> read_npz_description(const tensors::Npz& npz) {
  const auto found = npz.arrays().find(std::string(kNpzDescription));
  if (found == npz.arrays().end()) {
    return unsupported("no array \"tqcache\" which has to describe the others");
  }
  auto json = read_json(npz, found->second);
  if (!json) {
    return in_context("array " + tensors::printable_name(kNpzDescription), std::move(json).error());
  }
  return json;
}

Bytes make_npz_text(std::string_view text) {
  ByteWriter out;
  out.append(tensors::make_npy_header(fmt::format("<U{}", text.size()), {}));
  for (const char c : text) out.write(std::uint32_t{static_cast<unsigned char>(c)});
  return std::move(out).take();
}

}  // namespace tqcache::interop
