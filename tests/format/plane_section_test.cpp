// One test a rule of docs/reference/format.md §6.5: what may stand in a section of planes.

#include "tqcache/format/sections/plane_section.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include "file_fixture.h"
#include "support/temp_dir.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/sections/byte_planes.h"

namespace tqcache::test {
namespace plane_section_test {

constexpr std::size_t kRawBytes = 192;  // of the first section of zeros_file()
constexpr std::size_t kPlaneBytes = kRawBytes / 2;

Bytes zeros_file() {
  cache::Cache cache = CacheBuilder(3).dense({8, 4}).build();
  cache::Tensor& k = std::get<0>(cache.layers[0]).k;
  std::ranges::fill(std::get<0>(k).blocks[0], std::byte{0});
  return file_of(cache);
}

Bytes frame_of(std::size_t n_zeros) {
  const Bytes raw(n_zeros);
  Bytes frame(ZSTD_compressBound(raw.size()));
  frame.resize(ZSTD_compress(frame.data(), frame.size(), raw.data(), raw.size(), 1));
  return frame;
}

// What a section has: the sizes that it claims, and then the planes.
struct Stored {
  std::vector<std::uint64_t> sizes;
  std::vector<Bytes> planes;

  static Stored of(std::vector<Bytes> planes) {
    Stored stored{{}, std::move(planes)};
    for (const Bytes& plane : stored.planes) stored.sizes.push_back(plane.size());
    return stored;
  }
  Bytes bytes() const {
    ByteWriter out;
    for (const std::uint64_t size : sizes) out.write(size);
    for (const Bytes& plane : planes) out.append(plane);
    return std::move(out).take();
  }
};

Bytes file_with(const Stored& stored) {
  return replace_first_section(zeros_file(), stored.bytes(), Compression::kPlanes);
}

void expect_stored_refused(const Stored& stored, std::string_view part) {
  expect_refused(file_with(stored), ErrorCode::kCorrupt, part);
}

TEST(PlaneSection, IsReadWhateverOfItIsCompressed) {
  const Bytes frame = frame_of(kPlaneBytes);
  for (const Stored& stored :
       {Stored::of({frame, Bytes(kPlaneBytes)}), Stored::of({Bytes(kPlaneBytes), frame}),
        Stored::of({frame, frame})}) {
    const Bytes file = file_with(stored);
    EXPECT_EQ(difference(must(load(file)), must(load(zeros_file()))), "");
    EXPECT_THAT(damage_of(file), testing::IsEmpty());
  }
}

TEST(PlaneSection, RefusesPlanesThatDoNotMakeItSmaller) {
  expect_stored_refused(Stored::of({Bytes(kPlaneBytes), Bytes(kPlaneBytes)}), "stored size 208");
}

TEST(PlaneSection, RefusesATableThatIsCutShort) {
  for (const std::size_t n : {1u, 8u, 15u}) {
    expect_refused(replace_first_section(zeros_file(), Bytes(n), Compression::kPlanes),
                   ErrorCode::kCorrupt,
                   "section 0 (layer 0 k, block 0): no room for the sizes of planes");
  }
}

TEST(PlaneSection, RefusesAPlaneThatIsLargerThanItsBytes) {
  const Bytes frame = frame_of(kPlaneBytes);
  Stored stored = Stored::of({frame, Bytes(kPlaneBytes)});
  for (const std::uint64_t size :
       {std::uint64_t{kPlaneBytes + 1}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    stored.sizes[1] = size;
    expect_stored_refused(stored, "section 0 (layer 0 k, block 0): plane 1: ");
  }
  stored = Stored::of({frame, frame});
  stored.sizes[1] = kPlaneBytes;  // what a plane may have, but more than there is
  expect_stored_refused(stored, "plane 1: 96 bytes");
}

TEST(PlaneSection, RefusesBytesBehindThePlanes) {
  Stored stored = Stored::of({frame_of(kPlaneBytes), frame_of(kPlaneBytes)});
  stored.planes.emplace_back(3);
  expect_stored_refused(stored, "3 bytes behind the planes");
}

TEST(PlaneSection, RefusesAPlaneThatIsNoFrame) {
  const Bytes frame = frame_of(kPlaneBytes);
  expect_stored_refused(Stored::of({Bytes(20, std::byte{'x'}), Bytes(kPlaneBytes)}),
                        "plane 0: zstd: ");
  expect_stored_refused(Stored::of({frame, Bytes()}), "plane 1: zstd: ");
  expect_stored_refused(Stored::of({frame, Bytes(kPlaneBytes - 1)}), "plane 1: zstd: ");
}

TEST(PlaneSection, RefusesAFrameOfAnotherSize) {
  for (const std::size_t size : {0u, 1u, 95u, 97u, 192u, 100000u}) {
    expect_stored_refused(Stored::of({frame_of(size), Bytes(kPlaneBytes)}),
                          "plane 0: zstd: the frame does not say that it holds 96 bytes");
  }
}

TEST(PlaneSection, RefusesAFrameThatLiesAboutItsSize) {
  for (const std::size_t size : {90u, 95u, 97u, 100u}) {
    Bytes frame = frame_of(size);
    ASSERT_EQ(frame[5], std::byte(size));  // Frame_Content_Size, one byte
    frame[5] = std::byte{kPlaneBytes};
    expect_stored_refused(Stored::of({frame, Bytes(kPlaneBytes)}), "plane 0: zstd: ");
  }
}

TEST(PlaneSection, RefusesBytesBehindAFrame) {
  Bytes frame = frame_of(kPlaneBytes);
  frame.resize(frame.size() + 2);
  expect_stored_refused(Stored::of({frame, Bytes(kPlaneBytes)}), "plane 0: zstd: 2 bytes behind");
}

TEST(PlaneSection, IsNeverPacked) {
  const Bytes file = file_of(CacheBuilder(256).turbo({1, 32}, 4, 4).build());
  expect_refused(change_manifest(file,
                                 [](Manifest& m) {
                                   m.sections[0].compression = Compression::kPlanes;
                                   --m.sections[0].stored_bytes;
                                 }),
                 ErrorCode::kCorrupt, "section 0 (layer 0 k, block 0): planes, but packed");
}

cache::Cache bell_cache(Dtype dtype) {
  cache::Cache cache = CacheBuilder(256).dense({2, 64}, dtype).build();
  Random random(5);
  auto& layer = std::get<cache::AttentionLayer>(cache.layers[0]);
  for (cache::Tensor* tensor : {&layer.k, &layer.v}) {
    std::vector<float> values(2 * 64 * 256);
    for (float& value : values) value = random.bell();
    AlignedBytes& block = std::get<cache::DenseTensor>(*tensor).blocks[0];
    store_f32(dtype, values, block.data());
  }
  return cache;
}

double ratio_of(Dtype dtype) {
  const cache::Cache cache = bell_cache(dtype);
  const Bytes file = file_of(cache, Compression::kPlanes);
  EXPECT_EQ(difference(must(load(file)), cache), "");
  double raw = 0, stored = 0;
  for (const SectionInfo& section : info_of(file).sections) {
    EXPECT_EQ(section.compression, Compression::kPlanes);
    raw += static_cast<double>(section.raw_bytes);
    stored += static_cast<double>(section.stored_bytes);
  }
  return raw / stored;
}

TEST(PlaneSection, MakesBellShapedValuesSmaller) {
  EXPECT_GT(ratio_of(Dtype::kF16), 1.16);
  EXPECT_GT(ratio_of(Dtype::kBF16), 1.46);
  EXPECT_GT(ratio_of(Dtype::kF32), 1.18);
}

// f32 that was bf16 once has little in its lower planes.
TEST(PlaneSection, FindsOutWhichPlanesShrink) {
  std::vector<float> values(8192);
  Random random(6);
  for (float& value : values) value = random.bell();
  Bytes narrow(2 * values.size());
  store_f32(Dtype::kBF16, values, narrow.data());
  load_f32(Dtype::kBF16, narrow.data(), values);
  const auto compressor = format::Compressor::for_planes();
  Bytes stored;
  ASSERT_TRUE(format::compress_planes(compressor, object_bytes(values), 4, stored));
  EXPECT_LT(stored.size(), object_bytes(values).size() / 2);
  EXPECT_LT(number_at<std::uint64_t>(stored, 8), values.size());       // 7 bits of mantissa
  EXPECT_LT(number_at<std::uint64_t>(stored, 16), 64u);                // none
  EXPECT_LT(number_at<std::uint64_t>(stored, 24), values.size() / 4);  // the sign
}

TEST(PlaneSection, IsNotMadeOfWhatDoesNotShrink) {
  const auto compressor = format::Compressor::for_planes();
  Random random(7);
  for (const std::size_t n : {0u, 4u, 16u, 64u, 65536u}) {
    Bytes raw(n);
    for (std::byte& byte : raw) byte = static_cast<std::byte>(random.next());
    Bytes stored = {std::byte{1}};
    EXPECT_FALSE(format::compress_planes(compressor, raw, 2, stored)) << n;
    EXPECT_TRUE(stored.empty());
    EXPECT_FALSE(format::compress_planes(compressor, raw, 4, stored)) << n;
  }
}

TEST(PlaneSection, StandsBesideFramesOfPackedBlocks) {
  const cache::Cache cache = preset_cache();
  const CacheFileInfo info = info_of(file_of(cache, Compression::kPlanes));
  EXPECT_EQ(format::compression_of(info), Compression::kPlanes);
  for (const SectionInfo& section : info.sections) {
    EXPECT_NE(section.compression, section.packed ? Compression::kPlanes : Compression::kZstd);
  }
}

// What a program from before planes knows refuses the file by its header.
TEST(PlaneSection, IsARequiredFeature) {
  const cache::Cache cache = bell_cache(Dtype::kF16);
  EXPECT_EQ(info_of(file_of(cache, Compression::kPlanes)).required_features,
            format::kFeaturePlanes);
  EXPECT_EQ(info_of(file_of(cache, Compression::kZstd)).required_features, 0u);
  for (const Compression compression : {Compression::kPlanes, Compression::kNone}) {
    Bytes file = file_of(cache, compression);
    patch(file, kRequiredAt, value_at<std::uint32_t>(file, kRequiredAt) ^ format::kFeaturePlanes);
    reseal_slot(file);
    expect_refused(file, ErrorCode::kCorrupt, "required features");
  }
}

TEST(PlaneSection, CutShortAnywhereIsRefused) {
  const Bytes file =
      file_of(CacheBuilder(20).dense({1, 8}, Dtype::kBF16).build(), Compression::kPlanes);
  ASSERT_EQ(format::compression_of(info_of(file)), Compression::kPlanes);
  for (std::size_t size = 0; size < file.size(); ++size) {
    const Bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(load(cut).ok()) << size;
  }
}

// Whatever stands in the section: it is refused, or read as some cache of the same shape.
TEST(PlaneSection, WithAnyByteChangedIsRefusedOrRead) {
  const Bytes file =
      file_of(CacheBuilder(20).dense({1, 8}, Dtype::kBF16).build(), Compression::kPlanes);
  const cache::Cache original = must(load(file));
  const std::size_t stored = info_of(file).sections[0].stored_bytes;
  std::size_t n_refused = 0;
  for (std::size_t at = 0; at < stored; ++at) {
    for (const unsigned flip : {0x01u, 0x80u, 0xffu}) {
      const Bytes changed = change_section(file, 0, false, [&](std::span<std::byte> bytes) {
        bytes[at] ^= static_cast<std::byte>(flip);
      });
      const auto loaded = load(changed);
      if (!loaded) ++n_refused;
      // A frame has bits that nobody looks at.
      const bool is_same = loaded && difference(*loaded, original).empty();
      EXPECT_EQ(damage_of(changed).empty(), is_same) << at;
    }
  }
  EXPECT_GE(n_refused, 3 * 16u);  // the table of sizes, at least
}

}  // namespace plane_section_test
}  // namespace tqcache::test
