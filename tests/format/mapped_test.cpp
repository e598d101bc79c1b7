// A cache whose packed blocks stay in the file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <sstream>

#include "file_fixture.h"
#include "support/temp_dir.h"

namespace tqcache::test {
namespace mapped_test {

// Whether an address lies in a mapping of the file.
bool is_in_mapping_of(const std::byte* address, const std::filesystem::path& path) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    fields >> std::hex >> begin >> dash >> end;
    if (wanted >= begin && wanted < end) return line.ends_with(path.string());
  }
  return false;
}

// The packed blocks of all tensors of a cache.
std::vector<ByteView> packed_blocks(const cache::Cache& cache) {
  std::vector<ByteView> blocks;
  for (const cache::Layer& layer : cache.layers) {
    const auto* attention = std::get_if<cache::AttentionLayer>(&layer);
    if (attention == nullptr) continue;
    for (const cache::Tensor* tensor : {&attention->k, &attention->v}) {
      const auto* turbo = std::get_if<cache::TurboTensor>(tensor);
      if (turbo == nullptr) continue;
      for (const cache::TurboBlock& block : turbo->packed) blocks.push_back(block.bytes.view());
    }
  }
  return blocks;
}

// A file in a folder of its own.
class MappedCache : public testing::Test {
 protected:
  void write(const Bytes& file) { write_all(path_, file); }
  Result<cache::Cache> map(const format::ReadOptions& options = {}) const {
    return format::map_cache(path_, options);
  }

  TempDir dir_;
  std::filesystem::path path_ = dir_ / "a.tqkv";
};

TEST_F(MappedCache, IsTheCacheThatReadingGives) {
  const cache::Cache cache = preset_cache();
  for (const Compression compression : kCompressions) {
    for (const bool verify : {true, false}) {
      for (const unsigned n_threads : {1u, 0u}) {
        write(file_of(cache, compression));
        const auto mapped = map({.n_threads = n_threads, .verify_checksums = verify});
        ASSERT_TRUE(mapped.ok()) << mapped.error().message;
        EXPECT_EQ(difference(cache, *mapped), "");
      }
    }
  }
}

TEST_F(MappedCache, LeavesStoredPackedBlocksInTheFile) {
  write(file_of(preset_cache(), Compression::kNone));
  const cache::Cache mapped = must(map());
  const std::vector<ByteView> blocks = packed_blocks(mapped);
  ASSERT_EQ(blocks.size(), 16u);
  for (const ByteView block : blocks) {
    EXPECT_TRUE(is_in_mapping_of(block.data(), path_));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % kAlignment, 0u);
  }
  const auto& dense = std::get<cache::AttentionLayer>(mapped.layers[3]);
  EXPECT_FALSE(is_in_mapping_of(cache::dense_block(dense.k, 0).data(), path_));
}

// Whatever is wrong with a file, mapping it says the same as reading it.
TEST_F(MappedCache, IsRefusedAsReadingRefusesIt) {
  const Bytes good = file_of(CacheBuilder(300).turbo({1, 64}, 4, 4).build());
  const auto same = [&](const Bytes& file) {
    write(file);
    const auto read = load(file);
    const auto mapped = map();
    ASSERT_FALSE(read.ok());
    ASSERT_FALSE(mapped.ok());
    EXPECT_EQ(mapped.error().code, read.error().code);
    EXPECT_THAT(mapped.error().message, testing::HasSubstr(read.error().message));
  };
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, good.size() - 1}) {
    same(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)));
  }
  for (const std::size_t at : {std::size_t{0}, std::size_t{200}, good.size() - 1}) {
    Bytes damaged = good;
    damaged[at] ^= std::byte{1};
    same(damaged);
  }
  Bytes newer = good;
  patch(newer, kVersionAt, std::uint32_t{3});
  reseal_slot(newer);
  same(newer);
}

TEST_F(MappedCache, IsRefusedWhenThereIsNoFile) {
  const auto mapped = map();
  ASSERT_FALSE(mapped.ok());
  EXPECT_EQ(mapped.error().code, ErrorCode::kNotFound);
}

TEST_F(MappedCache, CopiesWhatHasToBeDecompressed) {
  // Codes of zeros shrink; those of other caches may not.
  const Bytes file = file_of(CacheBuilder(256).turbo({1, 64}, 4, 4).build());
  Manifest manifest = info_of(file);
  const Bytes zeros(manifest.sections[0].raw_bytes);
  Bytes plain = replace_first_section(file, zeros, Compression::kNone);
  plain = change_manifest(plain, [&](Manifest& m) { m.sections[0].raw_sha256 = sha256(zeros); });
  write(file_of(must(load(plain)), Compression::kZstd));
  ASSERT_EQ(info_of(read_all(path_)).sections[0].compression, Compression::kZstd);
  const cache::Cache mapped = must(map());
  EXPECT_FALSE(is_in_mapping_of(packed_blocks(mapped)[0].data(), path_));
  EXPECT_EQ(difference(must(load(plain)), mapped), "");
}

TEST_F(MappedCache, OutlivesTheFilesNameAndOtherCopies) {
  const cache::Cache cache = preset_cache();
  write(file_of(cache));
  cache::Cache copy;
  {
    const cache::Cache mapped = must(map());
    copy = mapped;
  }
  must(format::write_cache_file(CacheBuilder(3).dense({1, 4}).build(), path_,
                                {.overwrite = Overwrite::kAllow}));
  EXPECT_EQ(difference(cache, copy), "");
  std::filesystem::remove(path_);
  EXPECT_EQ(difference(cache, copy), "");
}

TEST_F(MappedCache, CanBeWrittenOverItsOwnFile) {
  const cache::Cache cache = preset_cache();
  write(file_of(cache));
  must(format::write_cache_file(must(map()), path_, {.overwrite = Overwrite::kAllow}));
  EXPECT_EQ(difference(cache, must(load(read_all(path_)))), "");
}

TEST_F(MappedCache, GrowsInMemoryAlone) {
  const Bytes file = file_of(CacheBuilder(511).preset({1, 64}, "turbo4").build());
  write(file);
  cache::Cache mapped = must(map());
  auto& layer = std::get<cache::AttentionLayer>(mapped.layers[0]);
  const std::vector<float> row(64, 0.5f);
  cache::append(layer.k, layer.shape, 511, row);
  must(cache::pack_full_tail(layer.k, 512, 1));
  const auto& packed = std::get<cache::TurboTensor>(layer.k).packed;
  ASSERT_EQ(packed.size(), 2u);
  EXPECT_TRUE(is_in_mapping_of(packed[0].bytes.data(), path_));
  EXPECT_FALSE(is_in_mapping_of(packed[1].bytes.data(), path_));
  EXPECT_TRUE(read_all(path_) == file);
}

TEST_F(MappedCache, HoldsEverySectionAgainstItsChecksum) {
  const Bytes file = file_of(preset_cache(), Compression::kNone);
  const std::vector<SectionInfo> sections = info_of(file).sections;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    Bytes damaged = file;
    damaged[sections[i].file_offset + 1] ^= std::byte{1};
    write(damaged);
    expect_error(dropped(map()), ErrorCode::kCorrupt, "section " + std::to_string(i) + " ");
    // Without, packed blocks are taken as they are; what is copied is checked all the same.
    const auto unchecked = map({.verify_checksums = false});
    EXPECT_EQ(unchecked.ok(), sections[i].packed);
    EXPECT_FALSE(load(damaged, {.verify_checksums = false}).ok());
  }
}

TEST_F(MappedCache, RefusesAFileThatIsCutAnywhere) {
  const Bytes file = file_of(CacheBuilder(256).turbo({1, 32}, 1, 1).build(), Compression::kNone);
  for (std::size_t size = 0; size < file.size(); size += 61) {
    write(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)));
    for (const bool verify : {true, false}) {
      const auto mapped = map({.verify_checksums = verify});
      ASSERT_FALSE(mapped.ok()) << size;
      EXPECT_EQ(mapped.error().message, load(read_all(path_)).error().message);
    }
  }
}

TEST_F(MappedCache, RefusesWhatReadingRefuses) {
  expect_error(dropped(map()), ErrorCode::kNotFound, "no such file");
  Bytes file = file_of(preset_cache());
  patch(file, kVersionAt, std::uint32_t{3});
  reseal_slot(file);
  write(file);
  expect_error(dropped(map()), ErrorCode::kUnsupported, "version 3");
}

TEST_F(MappedCache, IsHeldToTheSameLimits) {
  write(file_of(preset_cache()));
  expect_error(dropped(map({.access = {.memory = MemoryBudget().at_most(1000)}})),
               ErrorCode::kTooLarge, "1000 are allowed");
  expect_error(dropped(format::map_cache(dir_ / "missing")), ErrorCode::kNotFound, "no such file");
  expect_error(dropped(format::map_cache(dir_.path())), ErrorCode::kIo, "is a folder");
}

TEST_F(MappedCache, TellsItsProgressAndStopsWhenAsked) {
  const Bytes file = file_of(preset_cache());
  write(file);
  std::uint64_t last = 0, whole = 0;
  must(format::map_cache(path_, {}, [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    last = done;
    whole = total;
    return true;
  }));
  EXPECT_GT(whole, 0u);
  EXPECT_EQ(last, whole);
  expect_error(dropped(format::map_cache(path_, {}, [](auto, auto) { return false; })),
               ErrorCode::kInterrupted, "interrupted");
}

}  // namespace mapped_test
}  // namespace tqcache::test
