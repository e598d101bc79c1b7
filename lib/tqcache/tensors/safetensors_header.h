#pragma once
// tensors/safetensors_header.h: parses the JSON header of a safetensors file. Safe for untrusted
// input.
//
// The JSON is read event by event and never built as a tree, so that depth, counts, lengths and
// repeated keys are refused where they occur.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"

namespace tqcache::tensors {

struct SafetensorsEntry {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // of its bytes, from the start of the data
  std::uint64_t end = 0;    // begin <= end
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// `json` is the whole header, with its padding. Dtypes and ranges are not interpreted.
// Errors: kCorrupt, kTooLarge, kUnsupported (a field that is not dtype, shape or data_offsets).
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json);

}  // namespace tqcache::tensors
