#pragma once
// tests/tensors/safetensors_builder.h: puts a safetensors file together from header and data.

#include <cstdint>
#include <string>
#include <string_view>

#include "tqcache/bytes.h"

namespace tqcache::test {

// The data bytes count up from 1.
inline Bytes safetensors_file(std::string_view header, std::size_t data_bytes) {
  ByteWriter out;
  out.append_sized(as_bytes(header));
  for (std::size_t i = 0; i < data_bytes; ++i) out.write(static_cast<std::uint8_t>(i + 1));
  return std::move(out).take();
}

// `"name":{"dtype":...}`, one entry of a header.
inline std::string tensor_entry(std::string_view name, std::string_view dtype,
                                std::string_view shape, std::uint64_t begin, std::uint64_t end) {
  return '"' + std::string(name) + R"(":{"dtype":")" + std::string(dtype) + R"(","shape":[)" +
         std::string(shape) + R"(],"data_offsets":[)" + std::to_string(begin) + ',' +
         std::to_string(end) + "]}";
}

inline Bytes small_safetensors() {
  return safetensors_file(R"({"__metadata__":{"format":"pt","note":"\u00e9"},)" +
                              tensor_entry("b", "F32", "2,2", 12, 28) + ',' +
                              tensor_entry("a", "BF16", "2,3", 0, 12) + "}  ",
                          28);
}

}  // namespace tqcache::test
