#pragma once
// tools/info_view.h: what `tqcache info` shows, before it becomes text or JSON.

#include <optional>
#include <string>
#include <vector>

#include "tqcache/format/cache_file.h"

namespace tqcache::cli {

struct InfoView {
  const format::CacheFileInfo& info;
  std::string name;  // of the file
  bool sections = false;
  bool show_prompt = false;
  std::optional<std::string> text;  // the prompt, when a model was there to decode it
};

// Neighbouring layers that are alike.
struct LayerGroup {
  std::int64_t first = 0;
  std::int64_t last = 0;
  const format::LayerInfo* layer = nullptr;
};
std::vector<LayerGroup> group_layers(const std::vector<format::LayerInfo>& layers);

// "half-split", "interleaved", "none"
std::string_view rope_word(cache::RopeStyle style);

// "k", "v", "array"
std::string_view side_word(format::SideName side);

}  // namespace tqcache::cli
