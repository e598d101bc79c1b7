#pragma once
// tools/report/info.h: the description of a cache file by `tqcache info`, as text and as JSON.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/cache_io.h"
#include "cli/console.h"
#include "tqcache/cache.h"
#include "tqcache/format/manifest.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {

struct InfoView {
  const format::CacheFileInfo& info;
  const CacheInput& input;
  bool sections = false;
  bool show_prompt = false;
  std::optional<std::string> text;  // the prompt, if a model is available to decode it
  // Mean KL divergence to expect of a predicted archive, in nats; absent: its profile is not known.
  std::optional<double> expected_kld = {};
};

// A context checkpoint and its size.
struct CheckpointView {
  std::int64_t n_tokens = 0;
  std::uint64_t bytes = 0;  // in the file; for files of other programs before compression
};
std::vector<CheckpointView> checkpoints_of(const format::CacheFileInfo& info);
std::vector<CheckpointView> checkpoints_of(const cache::CacheReader& cache);

// As above, for a file of another program.
struct ForeignView {
  std::string name;
  std::string_view kind;  // "mlx-lm prompt cache"
  std::uint64_t file_bytes = 0;
  std::vector<std::pair<std::string, std::string>> facts;
  const cache::CacheDesc* manifest = nullptr;  // null: the file does not describe itself
  std::vector<CheckpointView> checkpoints = {};
  std::vector<std::string> notes;
  std::vector<std::string> losses;  // dropped fields of a conversion to .tqkv
};

// Neighboring layers that are alike.
struct LayerGroup {
  std::int64_t first = 0;
  std::int64_t last = 0;
  const cache::LayerDesc* layer = nullptr;
};
std::vector<LayerGroup> group_layers(const std::vector<cache::LayerDesc>& layers);

// Whether the file names its model. Version 1 did not.
bool is_of_known_origin(const cache::Identity& identity);

// "half-split", "interleaved", "none"
std::string_view rope_word(cache::RopeStyle style);

// "none", "zstd", "planes"
std::string_view compression_word(format::Compression compression);

// "k", "v", "array"
std::string_view tensor_word(cache::TensorKind tensor);

// "turbo 4 bits", "mixed 3 bits for 32 channels, 2 for 96, dense rotation", followed by the other
// settings: ", centering pre_rope.v1, 4 sink tokens".
std::string codec_text(const cache::QuantSpec& quant);

// Bits of the codes of a head vector, per channel: 4, 3.25.
double code_bits(const cache::QuantSpec& quant);

// The number of key and value components of the first `n_tokens` tokens in all attention layers;
// for a sliding-window layer, of the tokens in its window.
std::uint64_t value_count(const cache::CacheDesc& info, std::int64_t n_tokens);

// Bits of the whole file per key or value component; absent if it has none.
std::optional<double> bits_per_value(std::uint64_t file_bytes, std::uint64_t n_values);

inline constexpr std::array kCompressions = {
    format::Compression::kNone, format::Compression::kZstd, format::Compression::kPlanes,
    format::Compression::kSymbols, format::Compression::kPredicted};

// The number of sections with this compression.
std::size_t compressed_count(const format::CacheFileInfo& info, format::Compression compression);

struct PartBytes {
  std::uint64_t key_packed = 0;
  std::uint64_t key_dense = 0;
  std::uint64_t value_packed = 0;
  std::uint64_t value_dense = 0;
  std::uint64_t arrays = 0;
  std::uint64_t checkpoints = 0;
  std::uint64_t manifest = 0;
  std::uint64_t dead = 0;
  std::uint64_t header_and_padding = 0;  // the rest of the file
};
PartBytes bytes_by_part(const format::CacheFileInfo& info);

std::string info_text(const InfoView& view);
std::string info_text(const ForeignView& view);

// A line for each group of equal layers.
std::string layers_text(const std::vector<cache::LayerDesc>& layers,
                        std::optional<std::int64_t> n_tokens);

Json info_json(const InfoView& view);
Json info_json(const ForeignView& view);

// An object for each group of equal layers.
Json layers_json(const std::vector<cache::LayerDesc>& layers, std::optional<std::int64_t> n_tokens);

}  // namespace tqcache::cli
