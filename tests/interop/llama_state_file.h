#pragma once
// tests/interop/llama_state_file.h: a state file of llama.cpp taken apart, by the shortest reader
// that can be: one stream, and no check but that the bytes last.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/bytes.h"

namespace tqcache::test {

struct LlamaStateTensor {
  std::uint32_t type = 0;
  std::uint64_t row_bytes = 0;  // without flash attention: of one value
  std::uint32_t width = 0;      // without flash attention: components
  std::size_t at = 0;           // where the rows, or columns, begin
  ByteView data;
};

struct LlamaStateFile {
  std::uint32_t magic = 0, version = 0;
  std::vector<std::int32_t> words;
  std::string architecture;
  std::uint32_t n_streams = 0, n_cells = 0, is_transposed = 0, n_layers = 0;
  std::uint32_t k_rotation = 0, v_rotation = 0;  // of the versions that tell
  ByteView cells;
  std::vector<LlamaStateTensor> k, v;
  std::size_t left = 0;  // bytes behind it all
};

inline std::vector<std::int32_t> i32s(ByteView bytes) {
  std::vector<std::int32_t> numbers;
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    numbers.push_back(number_at<std::int32_t>(bytes, i));
  }
  return numbers;
}

inline LlamaStateTensor take_rows(ByteReader& in, std::uint32_t n_cells) {
  LlamaStateTensor tensor;
  tensor.type = must(in.read<std::uint32_t>());
  tensor.row_bytes = must(in.read<std::uint64_t>());
  tensor.at = in.position();
  tensor.data = must(in.take(n_cells * tensor.row_bytes));
  return tensor;
}

inline LlamaStateTensor take_columns(ByteReader& in, std::uint32_t n_cells) {
  LlamaStateTensor tensor;
  tensor.type = must(in.read<std::uint32_t>());
  tensor.row_bytes = must(in.read<std::uint32_t>());
  tensor.width = must(in.read<std::uint32_t>());
  tensor.at = in.position();
  tensor.data = must(in.take(n_cells * tensor.row_bytes * tensor.width));
  return tensor;
}

// `bytes` must outlive what comes back.
inline LlamaStateFile take_apart(const Bytes& bytes, std::size_t cell_bytes = 12) {
  ByteReader in(bytes);
  LlamaStateFile file;
  file.magic = must(in.read<std::uint32_t>());
  file.version = must(in.read<std::uint32_t>());
  file.words = i32s(must(in.take(4 * std::uint64_t{must(in.read<std::uint32_t>())})));
  if (file.magic == 0x6767736e) {
    file.architecture = must(in.take_string(must(in.read<std::uint32_t>())));
  }
  file.n_streams = must(in.read<std::uint32_t>());
  file.n_cells = must(in.read<std::uint32_t>());
  file.left = in.remaining();
  if (file.n_cells == 0) return file;
  file.cells = must(in.take(file.n_cells * cell_bytes));
  file.is_transposed = must(in.read<std::uint32_t>());
  file.n_layers = must(in.read<std::uint32_t>());
  if (file.version == 11 || file.version == 4) {
    file.k_rotation = must(in.read<std::uint32_t>());
    file.v_rotation = must(in.read<std::uint32_t>());
  }
  for (std::uint32_t i = 0; i < file.n_layers; ++i) file.k.push_back(take_rows(in, file.n_cells));
  for (std::uint32_t i = 0; i < file.n_layers; ++i) {
    file.v.push_back(file.is_transposed ? take_columns(in, file.n_cells)
                                        : take_rows(in, file.n_cells));
  }
  file.left = in.remaining();
  return file;
}

// A file that llama.cpp wrote (tests/data/llama.cpp).
inline Bytes llama_fixture(const char* name) {
  return read_all(std::filesystem::path(TQCACHE_TEST_DATA) / "llama.cpp" / name);
}

}  // namespace tqcache::test
