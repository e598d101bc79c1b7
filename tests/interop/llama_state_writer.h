#pragma once
// tests/interop/llama_state_writer.h: state files of llama.cpp in every layout they have had, also
// such as llama.cpp itself would not write. Values follow from their place.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/interop/llama/llama_parse.h"
#include "tqcache/interop/llama/llama_rows.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::test {

struct StateSpec {
  interop::LlamaFile kind = interop::LlamaFile::kSession;
  std::uint32_t version = 9;
  std::vector<std::int32_t> tokens;
  bool wrapped = false;      // the tokens, as llama-server does
  std::int32_t n_media = 0;  // in the wrapper
  // First tokens and chunks in the wrapper; then n_media is how many.
  std::vector<std::pair<std::int32_t, std::string>> media = {};
  // Position, column and row of each cell; empty: those of `positions`.
  std::vector<std::array<std::int32_t, 3>> cells = {};
  std::string architecture = "test";
  interop::LlamaProfile profile;
  std::uint32_t n_streams = 1;                 // of which the last one is filled
  std::vector<std::int32_t> ids = {0};         // sequences that each cell names
  std::vector<std::int32_t> positions;         // of the cells
  std::vector<std::int32_t> window_positions;  // of those of window layers, where they are apart
  std::vector<std::int32_t> recurrent_positions;
  bool transposed = false;
  std::string k_type = "f16", v_type = "f16";
  bool rotated = false;  // keys and values that are quantized
  // Coordinates of the last cell; absent: those of text, its position twice.
  std::optional<std::pair<std::int32_t, std::int32_t>> last_coordinates = {};
};

// n tokens in order, and what else belongs to them.
StateSpec plain_spec(const interop::LlamaGeometry& model, std::int64_t n);

// The value at a place, before it is rounded to a type: [-1, 1), in half-split order.
float state_value(std::size_t layer, bool is_key, std::int64_t position, std::int64_t component);

// The run of components that a layer's rows are rotated in; 0: they are not.
std::int64_t state_rotation(const interop::LlamaGeometry& model, const StateSpec& spec,
                            std::size_t layer, bool is_key);

// A row of a cell as the file has it: in its type, in llama.cpp's order, rotated.
Bytes state_row(const interop::LlamaGeometry& model, const StateSpec& spec, std::size_t layer,
                bool is_key, std::int64_t position);

Bytes write_state(const interop::LlamaGeometry& model, const StateSpec& spec);

}  // namespace tqcache::test
