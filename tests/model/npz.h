#pragma once
// model/npz.h: reads tests/data/reference.npz, whose entries are stored and not deflated.
//
// For our own file only: anything unexpected ends the test.
//
// Source: PKWARE APPNOTE 4.3.7 (local file header); numpy.lib.format, version 1.0.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/temp_dir.h"
#include "tqcache/bytes.h"

namespace tqcache::test {

class Npz {
 public:
  explicit Npz(const std::filesystem::path& path) : bytes_(read_all(path)) {
    std::size_t at = 0;
    while (load<std::uint32_t>(at) == 0x04034b50) {  // until the central directory begins
      if (load<std::uint16_t>(at + 8) != 0) throw std::runtime_error("a deflated entry");
      const std::size_t size = load<std::uint32_t>(at + 18);
      const std::size_t name_size = load<std::uint16_t>(at + 26);
      const std::size_t extra_size = load<std::uint16_t>(at + 28);
      const ByteView name = ByteView(bytes_).subspan(at + 30, name_size);
      const std::size_t data = at + 30 + name_size + extra_size;
      entries_[text(name)] = ByteView(bytes_).subspan(data, size);
      at = data + size;
    }
  }

  // All values of one array, in the order of the file. T: float or std::int32_t.
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const ByteView npy = entries_.at(name + ".npy");
    constexpr std::size_t kPrologue = 10;  // magic, version, size of the header
    std::uint16_t header_size;
    std::memcpy(&header_size, npy.data() + kPrologue - 2, sizeof(header_size));
    const std::string header = text(npy.subspan(kPrologue, header_size));
    const std::string_view type = std::is_same_v<T, float> ? "'<f4'" : "'<i4'";
    if (header.find(type) == std::string::npos) throw std::runtime_error(name + ": " + header);
    const ByteView data = npy.subspan(kPrologue + header_size);
    std::vector<T> values(data.size() / sizeof(T));
    std::memcpy(values.data(), data.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  template <class T>
  T load(std::size_t at) const {
    T value;
    std::memcpy(&value, ByteView(bytes_).subspan(at, sizeof(T)).data(), sizeof(T));
    return value;
  }
  static std::string text(ByteView bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  Bytes bytes_;
  std::map<std::string, ByteView> entries_;
};

}  // namespace tqcache::test
