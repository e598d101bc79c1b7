#pragma once
// tests/interop/zip_builder.h: small zip files, and ones that no writer would make.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/bytes.h"
#include "tqcache/tensors/npy.h"
#include "tqcache/tensors/zip_writer.h"

namespace tqcache::test {

using ZipParts = std::vector<std::pair<std::string, Bytes>>;

inline Bytes bytes_of(std::string_view text) {
  const ByteView view = as_bytes(text);
  return Bytes(view.begin(), view.end());
}

inline Bytes zip_file(const ZipParts& members, std::uint64_t zip64_from = 0xffffffff) {
  const TempDir folder;
  tensors::ZipWriter zip(must(AtomicFile::create(folder / "zip", Overwrite::kRefuse)), zip64_from);
  for (const auto& [name, bytes] : members) {
    const std::array parts = {ByteView(bytes)};
    must(zip.add(name, parts));
  }
  must(zip.finish());
  return read_all(folder / "zip");
}

// A .npy array of the values that `bytes` hold.
inline Bytes npy_file(std::string_view descr, const std::vector<std::uint64_t>& shape,
                      ByteView values) {
  Bytes file = tensors::make_npy_header(descr, shape);
  file.insert(file.end(), values.begin(), values.end());
  return file;
}

// Where the first central header of a zip file stands, or its end record.
inline std::size_t find_record(const Bytes& file, std::string_view magic) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  return text.find(magic);
}

template <class T>
void overwrite(Bytes& file, std::size_t offset, T value) {
  std::memcpy(file.data() + offset, &value, sizeof(value));
}

}  // namespace tqcache::test
