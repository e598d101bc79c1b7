#pragma once
// tools/report/info_view.h: what `tqcache info` shows, before it becomes text or JSON.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/cache_io.h"
#include "tqcache/format/cache_file.h"

namespace tqcache::cli {

struct InfoView {
  const format::CacheFileInfo& info;
  const CacheInput& input;
  bool sections = false;
  bool show_prompt = false;
  std::optional<std::string> text;  // the prompt, when a model was there to decode it
};

// The same of another program's file.
struct ForeignView {
  std::string name;
  std::string_view kind;  // "mlx-lm prompt cache"
  std::uint64_t file_bytes = 0;
  std::vector<std::pair<std::string, std::string>> facts;
  const format::Manifest* manifest = nullptr;  // none: the file does not describe itself
  std::vector<std::string> notes;
  std::vector<std::string> losses;  // of making a .tqkv file of it
};

// Neighboring layers that are alike.
struct LayerGroup {
  std::int64_t first = 0;
  std::int64_t last = 0;
  const cache::LayerDesc* layer = nullptr;
};
std::vector<LayerGroup> group_layers(const std::vector<cache::LayerDesc>& layers);

// Whether the file names the model that it belongs to. Version 1 did not.
bool is_of_known_origin(const cache::Identity& identity);

// "half-split", "interleaved", "none"
std::string_view rope_word(cache::RopeStyle style);

// "none", "zstd", "planes"
std::string_view compression_word(format::Compression compression);

// "k", "v", "array"
std::string_view side_word(format::SideName side);

}  // namespace tqcache::cli
