#include "tqcache/model/loading/gguf_parts.h"

#include <string>
#include <utility>

#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

using tensors::Gguf;
using tensors::printable_name;

constexpr const char* kNumberKey = "split.no";
constexpr const char* kCountKey = "split.count";
constexpr const char* kTensorsKey = "split.tensors.count";

constexpr std::int64_t kMaxParts = 1024;

Error error_at(ErrorCode code, const char* key, const std::string& fact) {
  return {code, "key \"" + std::string(key) + "\": " + fact};
}

std::string five_digits(std::int64_t n) {
  const std::string digits = std::to_string(n);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

// What the name of a part, counted from 0, ends in.
std::string name_end(std::int64_t part, std::int64_t count) {
  return "-" + five_digits(part + 1) + "-of-" + five_digits(count) + ".gguf";
}

Result<std::int64_t> part_count(const Gguf& file) {
  if (!file.has(kCountKey)) return std::int64_t{1};
  TQC_TRY_ASSIGN(const std::int64_t count, file.get_int(kCountKey));
  if (count > kMaxParts) {
    return error_at(
        ErrorCode::kTooLarge, kCountKey,
        std::to_string(count) + " parts, at most " + std::to_string(kMaxParts) + " are read");
  }
  return count;
}

Result<void> check_number(const Gguf& file, std::int64_t expected) {
  TQC_TRY_ASSIGN(const std::int64_t number, file.get_int(kNumberKey));
  if (number == expected) return {};
  return error_at(ErrorCode::kCorrupt, kNumberKey,
                  std::to_string(number) + " where the name says " + std::to_string(expected));
}

// The name of the first part without its end.
Result<std::string> find_stem(const std::filesystem::path& path, const Gguf& first,
                              std::int64_t count) {
  TQC_TRY_ASSIGN(const std::int64_t number, first.get_int(kNumberKey));
  if (number != 0) {
    return error_at(ErrorCode::kInvalidArgument, kNumberKey,
                    "this is another part of the model than the first: name the one that ends in " +
                        name_end(0, count));
  }
  const std::string name = path.filename().string();
  const std::string end = name_end(0, count);
  if (name.ends_with(end)) return name.substr(0, name.size() - end.size());
  return error_at(ErrorCode::kInvalidArgument, kCountKey,
                  "the first of " + std::to_string(count) +
                      " parts, which only a name that ends in " + end + " leads to");
}

Result<void> add_tensors(const Gguf& file, ModelTensors& model) {
  for (const auto& [name, tensor] : file.tensors) {
    if (model.by_name.emplace(name, tensor).second) continue;
    return Error{ErrorCode::kCorrupt, "tensor " + printable_name(name) + ": comes twice"};
  }
  return {};
}

Result<void> map_part(const std::filesystem::path& path, std::int64_t part, std::int64_t count,
                      ModelTensors& model) {
  TQC_TRY_ASSIGN(MappedFile mapped, MappedFile::open(path));
  TQC_TRY_ASSIGN(const Gguf file, tensors::read_gguf(mapped.bytes()));
  TQC_TRY(check_number(file, part));
  TQC_TRY_ASSIGN(const std::int64_t said, file.get_int(kCountKey));
  if (said != count) {
    return error_at(ErrorCode::kCorrupt, kCountKey,
                    std::to_string(said) + " where the first part says " + std::to_string(count));
  }
  TQC_TRY(add_tensors(file, model));
  model.files.push_back(std::move(mapped));  // the mapping stays where it is
  return {};
}

Result<void> check_tensor_count(const Gguf& first, const ModelTensors& model) {
  if (!first.has(kTensorsKey)) return {};
  TQC_TRY_ASSIGN(const std::int64_t count, first.get_int(kTensorsKey));
  if (std::cmp_equal(count, model.by_name.size())) return {};
  return error_at(
      ErrorCode::kCorrupt, kTensorsKey,
      std::to_string(count) + " where the parts have " + std::to_string(model.by_name.size()));
}

}  // namespace

Result<ModelTensors> map_gguf_parts(const std::filesystem::path& path, MappedFile mapped,
                                    const Gguf& first) {
  ModelTensors model;
  model.by_name = first.tensors;
  model.files.push_back(std::move(mapped));
  TQC_TRY_ASSIGN(const std::int64_t count, part_count(first));
  if (count <= 1) return model;
  TQC_TRY_ASSIGN(const std::string stem, find_stem(path, first, count));
  for (std::int64_t part = 1; part < count; ++part) {
    const std::string name = stem + name_end(part, count);
    auto mapped_part = map_part(path.parent_path() / name, part, count, model);
    if (!mapped_part) return in_context(printable_name(name), std::move(mapped_part).error());
  }
  TQC_TRY(check_tensor_count(first, model));
  return model;
}

}  // namespace tqcache::model
