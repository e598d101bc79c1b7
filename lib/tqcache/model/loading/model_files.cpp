#include "tqcache/model/loading/model_files.h"

#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "tqcache/base/json.h"
#include "tqcache/model/loading/weights.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::model {
namespace {

using tensors::printable_name;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// tokenizer.json of the largest vocabularies has 35 MB.
constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{64} << 20;
constexpr std::size_t kMaxShards = 1024;

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Names with a path in them could reach outside the folder.
bool is_plain_file_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.size() <= 255 &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Result<void> add_tensors(const tensors::Safetensors& file, ModelTensors& model) {
  for (const auto& [hf_name, tensor] : file.tensors) {
    if (is_unused_hf_tensor(hf_name)) continue;
    std::string name = gguf_name(hf_name, model.after_attention);
    if (name.empty()) {
      return Error{ErrorCode::kUnsupported, "tensor " + printable_name(hf_name) + ": unknown"};
    }
    if (!model.by_name.emplace(std::move(name), tensor).second) {
      return Error{ErrorCode::kCorrupt, "tensor " + printable_name(hf_name) + ": comes twice"};
    }
  }
  return {};
}

// Gives the names of the file's tensors.
Result<std::set<std::string>> map_shard(const std::filesystem::path& path, ModelTensors& model) {
  TQC_TRY_ASSIGN(MappedFile mapped, MappedFile::open(path));
  TQC_TRY_ASSIGN(const tensors::Safetensors file, tensors::read_safetensors(mapped.bytes()));
  TQC_TRY(add_tensors(file, model));
  model.files.push_back(std::move(mapped));  // the mapping stays where it is
  std::set<std::string> names;
  for (const auto& entry : file.tensors) names.insert(entry.first);
  return names;
}

using ShardMap = std::map<std::string, std::set<std::string>>;  // file name -> tensor names

Result<ShardMap> read_index(ByteView text) {
  TQC_TRY_ASSIGN(const Json root, parse_json_object(text));
  TQC_TRY_ASSIGN(const Json* weight_map, get_object(root, "weight_map"));
  ShardMap shards;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      return Error{ErrorCode::kCorrupt,
                   "tensor " + printable_name(tensor) + ": not the name of a safetensors file"};
    }
    shards[file.get<std::string>()].insert(tensor);
    if (shards.size() > kMaxShards) return Error{ErrorCode::kTooLarge, "more than 1024 files"};
  }
  return shards;
}

Result<ModelTensors> map_shards(const std::filesystem::path& folder, const ShardMap& shards,
                                std::string_view after_attention) {
  ModelTensors model{{}, {}, after_attention};
  for (const auto& [name, wanted] : shards) {
    auto found = map_shard(folder / name, model);
    if (!found) return in_context(printable_name(name), std::move(found).error());
    if (*found != wanted) {
      return Error{ErrorCode::kCorrupt,
                   printable_name(name) + ": has other tensors than the index says"};
    }
  }
  return model;
}

}  // namespace

Result<ModelTensors> map_hf_tensors(const std::filesystem::path& folder,
                                    std::string_view after_attention) {
  if (is_there(folder / kSingleFile) || !is_there(folder / kIndexFile)) {
    ModelTensors model{{}, {}, after_attention};
    auto names = map_shard(folder / kSingleFile, model);
    if (!names) return in_context(kSingleFile, std::move(names).error());
    return model;
  }
  TQC_TRY_ASSIGN(const Bytes text, read_folder_file(folder, kIndexFile));
  auto shards = read_index(text);
  if (!shards) return in_context(kIndexFile, std::move(shards).error());
  return map_shards(folder, *shards, after_attention);
}

Result<Bytes> read_folder_file(const std::filesystem::path& folder, const char* name) {
  auto bytes = read_file(folder / name, kMaxJsonBytes);
  if (!bytes) return in_context(name, std::move(bytes).error());
  return bytes;
}

Result<Bytes> read_folder_file_if_any(const std::filesystem::path& folder, const char* name) {
  if (!is_there(folder / name)) return Bytes{};
  return read_folder_file(folder, name);
}

}  // namespace tqcache::model
