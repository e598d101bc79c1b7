#pragma once
// store/blobs/blob.h: the values of a store, and their encoding. Reading is safe for untrusted
// input.
//
//   parameters  p/  identity, layers, codecs with their means: what the blocks of a chain depend on
//   block       b/  the sections of some layers of one token block, and its token ids
//   state       s/  a snapshot of a prompt's end after a block: tail tokens, and the keys of the
//                   data blobs with the tail's sections, windows and recurrent state
//   data        d/  sections of a snapshot
//   record      n/  a named prompt
//   usage       u/  hit statistics of one run
//   next        c/  the token ids of a block that follows another one
//
// A blob contains its own key, so that a value under a wrong key is detected.
//
// Spec: docs/reference/store.md, "Blobs"; schema/store_v1.fbs.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/format/manifest.h"
#include "tqcache/hash.h"
#include "tqcache/store.h"

namespace tqcache::store {

// Sections are combined into blobs of about this size; no section is divided.
inline constexpr std::uint64_t kBlobBytes = std::uint64_t{2} << 20;

// A section with its stored bytes. `info.file_offset` is unused.
struct StoredSection {
  format::SectionInfo info;
  SharedBytes stored;
};

struct Block {
  Sha256 parent{};  // the previous hash of the chain; the root for block 0
  std::int64_t index = 0;
  int part = 0, n_parts = 1;
  std::vector<std::int32_t> tokens;     // 256
  std::vector<StoredSection> sections;  // in order; parts 0, 1, ... together have the whole block
  std::vector<cache::MediaSpan> media = {};  // that begin in it
};

struct Data {
  std::vector<StoredSection> sections;
};

// A block names the one before it, and not those behind it. This is one of those, under the hash of
// the one before: so a prompt that parts within a block finds it.
struct Next {
  std::vector<std::int32_t> tokens;  // 256
};

using Content = std::variant<Parameters, Block, Snapshot, Data, PromptRecord, UsageNote, Next>;

// Drops what parameters have: K and V of attention layers become dense f16, and those of quantized
// windows keep only their codecs. This leaves kinds, shapes of heads and windows, and arrays with
// their shapes.
std::vector<cache::LayerDesc> bare_layers(std::vector<cache::LayerDesc> layers);

// The layers of a whole prompt: those of its parameters, with the array shapes of its snapshot.
// Errors: kMismatch if the two do not belong together.
Result<std::vector<cache::LayerDesc>> join_layers(const std::vector<cache::LayerDesc>& parameters,
                                                  const std::vector<cache::LayerDesc>& bare);

// Bytes:  the same content gives the same bytes (with the same FlatBuffers library).
// Errors: kTooLarge; kInvalidArgument (a key of another kind, or content that decode_blob() would
//         refuse).
Result<Bytes> encode_blob(std::string_view key, const Content& content);

// The content of the blob of `key`. Sections are views of `blob`. Checks their order, checksums
// and, where possible without parameters, sizes. They begin at multiples of 64 if the blob does.
// Errors: kCorrupt, kTruncated, kUnsupported (a later version), kTooLarge; kMismatch if it is the
//         blob of another key.
Result<Content> decode_blob(std::string_view key, const SharedBytes& blob);

// SHA-256 of the parts of identity and layers that belong to the content digest of a prompt. The
// first tokens and the shapes of arrays are left out.
Sha256 hash_parameters(const Parameters& parameters);

// Checks that the sections of a block, or of one of its parts, belong to caches with these layers
// and have the right sizes.
// Requires: both are valid for encode_blob().
// Errors:   kCorrupt.
Result<void> check_block(const Parameters& parameters, const Block& block);

// Divides sections of these sizes into runs of about kBlobBytes and returns the end of each run.
// Equal sizes before compression give equal runs. There is at least one run, which may be empty.
std::vector<std::size_t> cut_into_parts(std::span<const std::uint64_t> raw_bytes);

// The end of each part of a final token block, as an index into the sections of the block.
// Requires: layers of parameters.
std::vector<std::size_t> block_parts(const std::vector<cache::LayerDesc>& layers,
                                     std::int64_t index);

}  // namespace tqcache::store
