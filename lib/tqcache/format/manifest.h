#pragma once
// format/manifest.h: what a .tqkv file says of the cache in it: everything but the values.
//
// Plain structs; the FlatBuffer they travel in stays behind encode_manifest and decode_manifest.
//
// Spec: docs/reference/format.md §4.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/dtype.h"
#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/codec/codec_spec.h"

namespace tqcache::format {

// Of a section: as it is, one zstd frame, or planes of bytes (plane_section.h). Only dense sections
// and arrays have planes.
enum class Compression : std::uint8_t { kNone = 0, kZstd = 1, kPlanes = 2, kSymbols = 3 };

enum class SideName : std::uint8_t { kKeys = 0, kValues = 1, kArray = 2 };

// One row of the section table, with what the section holds.
struct SectionInfo {
  std::int64_t layer = 0;
  SideName side = SideName::kKeys;
  std::int64_t block = 0;  // token block, or the index of the array
  bool packed = false;     // turbo codes; otherwise dense values or an array
  Compression compression = Compression::kNone;
  std::uint64_t file_offset = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t raw_bytes = 0;
  Checksum128 checksum;  // of the stored bytes
  Sha256 raw_sha256{};   // of the bytes before compression
};

struct SideInfo {
  std::string cache_type_id;           // type_names.h: "tqcache.dense.v1", "tqcache.turbo_mse.v1"
  Dtype dense_dtype = Dtype::kF16;     // of blocks that are not packed, and of sink tokens
  std::vector<codec::PartSpec> parts;  // of the codec; empty: a dense side, and so all that follow
  cache::Centering centering = cache::Centering::kNone;
  std::vector<float> mean;              // [n_kv_heads, head_dim]; empty: none, or not fixed yet
  std::vector<std::uint16_t> outliers;  // [n_kv_heads, n]: the outlier channels; empty: as for mean
  std::int64_t n_sinks = 0;             // first tokens that stay dense
  std::vector<std::int8_t> transforms = {};  // [n_kv_heads, head_dim, head_dim]; empty: none
};

struct ArrayInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;  // outermost first
};

struct LayerInfo {
  std::string cache_type_id;      // type_names.h: "tqcache.attention.v1", "tqcache.arrays.v1", ...
  cache::HeadShape shape;         // attention and rotating layers
  SideInfo k, v;                  // attention layers, turbo rotating layers
  std::vector<ArrayInfo> arrays;  // arrays layers; dense rotating layers: "keys" and "values"
  std::int64_t window = 0;        // rotating layers, as keep: cache/layer.h
  std::int64_t keep = 0;
};

// Dead bytes of a file that was appended to: an old manifest, or a section that another one took
// the place of.
struct GapInfo {
  std::uint64_t file_offset = 0;
  std::uint64_t bytes = 0;
  Checksum128 checksum;
};

struct Manifest {
  std::string writer;  // program and version that wrote the file
  cache::Identity identity;
  std::vector<std::int32_t> tokens;  // each kUnknownToken when they are hidden
  // Hashes of the token blocks instead of ids (cache/token_hashes.h); empty: the ids are unknown.
  std::optional<std::vector<Sha256>> hidden_tokens = {};
  std::vector<LayerInfo> layers;
  std::vector<SectionInfo> sections;
  std::vector<GapInfo> gaps = {};  // ascending
  Sha256 content_name{};           // docs/reference/format.md §7; gaps do not count

  std::int64_t n_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
};

bool is_attention(const LayerInfo& layer);
bool is_rotating(const LayerInfo& layer);        // a dense one, of arrays
bool is_turbo_rotating(const LayerInfo& layer);  // one with sides, at least one of them turbo
bool has_sides(const LayerInfo& layer);          // k and v in token blocks

// The first token block that a layer with sides has: of full attention 0.
std::int64_t first_block(const LayerInfo& layer, std::int64_t n_tokens);

inline bool is_turbo(const SideInfo& side) { return !side.parts.empty(); }

// Requires: `side` is kKeys or kValues.
const SideInfo& side_of(const LayerInfo& layer, SideName side);

// How a file's sections were made smaller: planes if any has them (its packed ones are zstd frames
// then), otherwise zstd if any is a frame.
Compression compression_of(const Manifest& manifest);

// Equal as the bytes of a file are, in which 0 and -0 differ.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
bool same_bits(const codec::TransformMatrix& a, const codec::TransformMatrix& b);
bool same_bits(const codec::PartSpec& a, const codec::PartSpec& b);
bool same_bits(const std::vector<codec::PartSpec>& a, const std::vector<codec::PartSpec>& b);

// "section 12 (layer 3 k, block 0)", as messages name a section.
std::string section_place(std::size_t index, const SectionInfo& section);

// Errors: kTooLarge when the manifest is beyond kMaxManifestBytes.
// Bytes:  the same manifest gives the same bytes (with the same FlatBuffers library). Texts, and
//         all of a codec, are written once however many sides they belong to.
Result<Bytes> encode_manifest(const Manifest& manifest);

// Safe for untrusted input: checks the structure of the FlatBuffer, the range of every enumeration
// and the names of the codec, and nothing else; manifest_rules.h has the rest.
//
// Requires: `bytes` start at a multiple of 64.
// Errors:   kCorrupt, kTooLarge, kUnsupported (a name that this reader does not know).
Result<Manifest> decode_manifest(ByteView bytes);

}  // namespace tqcache::format
