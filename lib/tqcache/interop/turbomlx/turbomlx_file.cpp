#include "tqcache/interop/turbomlx/turbomlx_file.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/interop/turbomlx/pickle.h"
#include "tqcache/interop/turbomlx/turbomlx_v3.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using tensors::printable_name;
using Kind = Value::Kind;

constexpr std::string_view kTurboTypeId = "turbomlx.cache.turboquant_kv.v1";
constexpr std::string_view kTurboClass = "TurboQuantKVCache";
constexpr std::array<std::string_view, 2> kPackages = {"turbomlx.", "mlx_lm."};

Result<std::string> class_of_path(const std::string& path) {
  for (const std::string_view package : kPackages) {
    if (path.starts_with(package)) return path.substr(path.rfind('.') + 1);
  }
  return Error{ErrorCode::kUnsupported, "class " + printable_name(path)};
}

Result<std::string> class_of(const ValueTree& tree, const Value& entry) {
  TQC_TRY_ASSIGN(const Value* type_id, find_value(tree, entry, "cache_type_id"));
  if (type_id != nullptr && type_id->text == kTurboTypeId) return std::string(kTurboClass);
  TQC_TRY_ASSIGN(const std::string path, get_text(tree, entry, "class_path"));
  return class_of_path(path);
}

// The id of a key's value.
Result<ValueId> id_of(const ValueTree& tree, const Value& entry, std::string_view key,
                      ValueId if_absent) {
  TQC_TRY(find_value(tree, entry, key));  // not twice
  ValueId found = if_absent;
  for (std::size_t i = 0; i + 1 < entry.items.size(); i += 2) {
    if (tree.at(entry.items[i]).text == key) found = entry.items[i + 1];
  }
  return found;
}

Result<TurboMlxEntry> read_entry(ValueTree& tree, const Value& value) {
  if (value.kind != Kind::kDict) return corrupt("not a dict");
  TurboMlxEntry entry;
  TQC_TRY_ASSIGN(entry.class_name, class_of(tree, value));
  const ValueId none = tree.add({});
  TQC_TRY_ASSIGN(entry.state, id_of(tree, value, "state", none));
  TQC_TRY_ASSIGN(entry.meta_state, id_of(tree, value, "meta_state", none));
  TQC_TRY_ASSIGN(entry.extra_state, id_of(tree, value, "extra_state", none));
  return entry;
}

Result<void> read_entries(TurboMlxContents& contents) {
  ValueTree& tree = contents.tree;
  TQC_TRY_ASSIGN(const Value* list, find_value(tree, tree.at(tree.root), "entries"));
  if (list == nullptr || !is_sequence(*list)) return corrupt("entries: missing, or not a list");
  if (list->items.size() > static_cast<std::size_t>(cache::kMaxLayers)) {
    return Error{ErrorCode::kTooLarge, std::to_string(list->items.size()) + " layers"};
  }
  for (const ValueId id : list->items) {
    auto entry = read_entry(tree, tree.at(id));
    if (!entry) {
      return in_context("layer " + std::to_string(contents.entries.size()),
                        std::move(entry).error());
    }
    contents.entries.push_back(std::move(entry).value());
  }
  return {};
}

Result<void> read_version(TurboMlxContents& contents) {
  const ValueTree& tree = contents.tree;
  const Value& root = tree.at(tree.root);
  if (root.kind != Kind::kDict) return corrupt("no prompt cache of TurboMLX: not a dict");
  TQC_TRY_ASSIGN(const std::int64_t version, get_integer(tree, root, "schema_version"));
  const bool is_v3 = contents.kind == TurboMlxFile::kV3;
  const bool is_known = is_v3 ? version == 3 : version == 1 || version == 2;
  if (!is_known) {
    return Error{ErrorCode::kUnsupported, "schema_version " + std::to_string(version) + " in a " +
                                              (is_v3 ? "safetensors file" : "pickle")};
  }
  contents.schema_version = static_cast<int>(version);
  return {};
}

Result<void> read_tree(const ByteSource& file, TurboMlxContents& contents) {
  if (contents.kind == TurboMlxFile::kV3) {
    TQC_TRY_ASSIGN(contents.tree, read_turbomlx_v3(file));
    return {};
  }
  TQC_TRY_ASSIGN(Pickle pickle, read_pickle(file));
  contents.pickle_protocol = pickle.protocol;
  contents.tree = std::move(pickle.tree);
  return {};
}

}  // namespace

Result<std::optional<TurboMlxFile>> is_turbomlx(const ByteSource& file) {
  std::array<std::byte, kTurboMlxV3Magic.size()> start{};
  const auto size = std::min<std::uint64_t>(start.size(), file.size());
  const auto part = std::span(start).first(static_cast<std::size_t>(size));
  TQC_TRY(file.read_at(0, part));
  std::optional<TurboMlxFile> kind;
  if (std::ranges::equal(start, as_bytes(kTurboMlxV3Magic))) kind = TurboMlxFile::kV3;
  const auto protocol = std::to_integer<int>(start[1]);
  if (start[0] == std::byte{0x80} && protocol >= 2 && protocol <= 5) kind = TurboMlxFile::kPickle;
  return kind;
}

Result<TurboMlxContents> read_turbomlx(const ByteSource& file) {
  TQC_TRY_ASSIGN(const auto kind, is_turbomlx(file));
  if (!kind) return corrupt("no prompt cache of TurboMLX");
  TurboMlxContents contents;
  contents.kind = *kind;
  TQC_TRY(read_tree(file, contents));
  TQC_TRY(read_version(contents));
  TQC_TRY(read_entries(contents));
  return contents;
}

}  // namespace tqcache::interop
