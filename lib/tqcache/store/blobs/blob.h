#pragma once
// store/blobs/blob.h: what stands under the keys of a store: immutable values that say what they are and
// whether they are whole. Reading is safe for untrusted input.
//
//   parameters  p/  identity, layers, codecs with their means: what a chain of blocks is coded with
//   block       b/  the sections of some layers of one token block, and its token ids
//   state       s/  a prompt's end behind a block: tail tokens, and which data blobs hold them and
//                   what else a model keeps (windows, linear attention)
//   data        d/  sections of a state: of the tail, of windows, arrays
//   record      n/  a prompt that is kept under a name
//   usage       u/  what one run found in the store
//
// A blob carries its own key, so that one which an engine gives for another is told from it.
//
// Spec: docs/reference/store.md, "Blobs"; schema/store_v1.fbs.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/format/manifest.h"

namespace tqcache::store {

// Sections go into blobs of about this size, if there are enough of them; no section is cut.
inline constexpr std::uint64_t kBlobBytes = std::uint64_t{2} << 20;

// Of a prompt that has no whole token block, too.
struct Parameters {
  cache::Identity identity;
  std::vector<std::int32_t> tokens;  // the first token block: 256, or all that there are
  std::vector<cache::LayerDesc>
      layers;  // with means, outliers, maps; shapes of arrays are dropped
};

// Section with its bytes as they are stored. `info.file_offset` has no meaning.
struct StoredSection {
  format::SectionInfo info;
  SharedBytes stored;
};

struct Block {
  Sha256 parent{};  // the hash before it in the chain: the root for block 0
  std::int64_t index = 0;
  int part = 0, n_parts = 1;
  std::vector<std::int32_t> tokens;  // 256
  std::vector<StoredSection>
      sections;  // in their order; of part 0, 1, ... together, all of the block
};

struct State {
  std::int64_t n_tokens = 0;              // of the whole prompt
  std::vector<std::int32_t> tail;         // its last 1 to 256 tokens
  std::vector<cache::LayerDesc> layers;  // bare_layers() of the whole prompt
  std::vector<std::string> data_keys;     // in the order of their sections
  std::uint64_t data_bytes = 0;           // of these blobs
  Sha256 content_name{};                  // of the whole prompt as a file
};

struct Data {
  std::vector<StoredSection> sections;
};

struct Record {
  std::string name;
  std::string model_name;
  std::string architecture;
  std::vector<std::int32_t> tokens;  // all, or none: then the blocks and the tail tell them
  std::string parameters_key;
  std::vector<Sha256> chain;  // of its final blocks
  State state;                // as the state blob has it
  std::string state_key;      // where it stands, too; empty: no final block, or no free slot
  std::int64_t created = 0;   // seconds since 1970, by the clock of who put it
  std::uint64_t bytes = 0;    // of all its blobs, whoever else needs them
};

struct Usage {
  std::int64_t created = 0;
  std::int64_t wanted_tokens = 0;  // of the prompt
  std::int64_t found_tokens = 0;   // of them had from the store
  std::uint64_t read_bytes = 0, stored_bytes = 0;
};

using Content = std::variant<Parameters, Block, State, Data, Record, Usage>;

// Drops what parameters have: sides of attention layers become dense ones of f16, and those of
// turbo windows keep their codecs alone. What is left are kinds, shapes of heads and windows, and
// arrays with their shapes.
std::vector<cache::LayerDesc> bare_layers(std::vector<cache::LayerDesc> layers);

// The layers of a whole prompt: those of its parameters, with the shapes of the state's arrays.
// Errors: kMismatch when the two do not belong together.
Result<std::vector<cache::LayerDesc>> join_layers(const std::vector<cache::LayerDesc>& parameters,
                                                   const std::vector<cache::LayerDesc>& bare);

// Bytes:  the same content gives the same bytes (with the same FlatBuffers library).
// Errors: kTooLarge; kInvalidArgument (a key that is not of this kind, or content that
//         decode_blob() would refuse).
Result<Bytes> encode_blob(std::string_view key, const Content& content);

// What stands under `key`. Sections are views of `blob`, and checked: order, checksums, and what
// can be told of sizes without parameters. They begin at multiples of 64 if the blob does.
// Errors: kCorrupt, kTruncated, kUnsupported (a later version), kTooLarge; kMismatch when it is a
//         blob of another key.
Result<Content> decode_blob(std::string_view key, const SharedBytes& blob);

// SHA-256 of what parameters mean: identity and layers, all that the content name of a prompt says
// of them. The first tokens do not count, nor do shapes of arrays.
Sha256 hash_parameters(const Parameters& parameters);

// Whether the sections of a block, or of one of its parts, are those that caches with these layers
// have there, with the sizes that the shapes say.
// Requires: both came from decode_blob(), or would.
// Errors:   kCorrupt.
Result<void> check_block(const Parameters& parameters, const Block& block);

// Cuts sections of these sizes into runs of about kBlobBytes, no section in two of them: where each
// run ends. The same sizes before compression give the same runs. At least one run, even of
// nothing.
std::vector<std::size_t> cut_into_parts(std::span<const std::uint64_t> raw_bytes);

// The parts of a final token block: where each one ends among the block's sections.
// Requires: layers of parameters.
std::vector<std::size_t> block_parts(const std::vector<cache::LayerDesc>& layers,
                                     std::int64_t index);

}  // namespace tqcache::store
