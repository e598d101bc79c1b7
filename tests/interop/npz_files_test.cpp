// .npy headers, zip files, and .npz files of both.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "interop/zip_builder.h"
#include "support/temp_dir.h"
#include "tqcache/file.h"
#include "tqcache/tensors/npy.h"
#include "tqcache/tensors/zip_archive.h"

namespace tqcache::tensors {
namespace npz_files_test {

using test::bytes_of;
using test::find_record;
using test::must;
using test::overwrite;
using test::zip_file;

constexpr std::string_view kCentral = "PK\x01\x02";

// A .npy file of version 1.0 with this text for a header.
Bytes npy_of(std::string_view dict) {
  ByteWriter out;
  out.append(as_bytes("\x93NUMPY"));
  out.write(std::uint8_t{1});
  out.write(std::uint8_t{0});
  out.write(static_cast<std::uint16_t>(dict.size()));
  out.append(as_bytes(dict));
  return std::move(out).take();
}

ErrorCode npy_error(std::string_view dict) {
  const auto header = parse_npy_header(npy_of(dict));
  return header ? ErrorCode::kBusy : header.error().code;
}

TEST(Npy, ReadsWhatItWrites) {
  using Shape = std::vector<std::uint64_t>;
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{2, 3}, Shape{2, 0, 4}, Shape(32, 1)}) {
    const Bytes file = make_npy_header("<f2", shape);
    EXPECT_EQ(file.size() % 64, 0u);
    const NpyHeader header = must(parse_npy_header(file));
    EXPECT_EQ(header.shape, shape);
    EXPECT_EQ(header.descr, "<f2");
    EXPECT_EQ(header.type, TensorType::kF16);
    EXPECT_EQ(header.data_offset, file.size());
  }
}

TEST(Npy, KnowsTheSizesOfItsTypes) {
  for (const auto& [descr, bytes] :
       std::vector<std::pair<std::string, std::uint64_t>>{{"<f2", 2},
                                                          {"<f4", 4},
                                                          {"<f8", 8},
                                                          {"|i1", 1},
                                                          {"<i2", 2},
                                                          {"<i4", 4},
                                                          {"<i8", 8},
                                                          {"|u1", 1},
                                                          {"<u2", 2},
                                                          {"<u4", 4},
                                                          {"<u8", 8},
                                                          {"|b1", 1},
                                                          {"|S5", 5},
                                                          {"<U5", 20},
                                                          {"<U0", 0}}) {
    EXPECT_EQ(must(parse_npy_header(make_npy_header(descr, {3}))).bytes, 3 * bytes) << descr;
  }
}

TEST(Npy, ReadsVersions2And3) {
  for (const auto version : {std::uint8_t{2}, std::uint8_t{3}}) {
    const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n";
    ByteWriter out;
    out.append(as_bytes("\x93NUMPY"));
    out.write(version);
    out.write(std::uint8_t{0});
    out.write(static_cast<std::uint32_t>(dict.size()));
    out.append(as_bytes(dict));
    EXPECT_EQ(must(parse_npy_header(out.bytes())).data_offset, out.bytes().size());
  }
}

// A .npy file of any version, whose header is as long as it says.
Bytes npy_of_version(std::uint8_t major) {
  Bytes file = make_npy_header("<f4", {3});
  file[6] = static_cast<std::byte>(major);
  if (major != 1) file.insert(file.begin() + 10, 2, std::byte{0});  // a length of 32 bits
  return file;
}

TEST(Npy, RefusesEveryTruncatedHeader) {
  for (const auto major : {std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{3}}) {
    const Bytes file = npy_of_version(major);
    EXPECT_EQ(must(parse_npy_header(file)).bytes, 12u);
    for (std::size_t size = 0; size < file.size(); ++size) {
      EXPECT_EQ(parse_npy_header(ByteView(file).first(size)).error().code, ErrorCode::kTruncated)
          << size;
    }
  }
}

TEST(Npy, TakesKeysInAnyOrderAndEitherQuotes) {
  const NpyHeader header = must(
      parse_npy_header(npy_of("{ \"shape\":(2,3) ,'fortran_order':False,'descr':\"<i8\"}   \n")));
  EXPECT_EQ(header.bytes, 48u);
}

TEST(Npy, RefusesWhatIsNoHeader) {
  EXPECT_EQ(parse_npy_header({}).error().code, ErrorCode::kTruncated);
  EXPECT_EQ(parse_npy_header(bytes_of("\x93NUMPX\x01\x00")).error().code, ErrorCode::kCorrupt);
  Bytes later = make_npy_header("<f2", {1});
  later[6] = std::byte{4};
  EXPECT_EQ(parse_npy_header(later).error().code, ErrorCode::kUnsupported);
  later[6] = std::byte{0};
  EXPECT_EQ(parse_npy_header(later).error().code, ErrorCode::kUnsupported);
  later[6] = std::byte{1};
  later[7] = std::byte{1};
  EXPECT_EQ(parse_npy_header(later).error().code, ErrorCode::kUnsupported);
  Bytes large = make_npy_header("<f2", {1});
  large[6] = std::byte{2};
  overwrite(large, 8, 0x7fffffffu);
  EXPECT_EQ(parse_npy_header(large).error().code, ErrorCode::kTooLarge);
}

TEST(Npy, RefusesBadDicts) {
  const std::string order = "'fortran_order': False, ";
  const std::string shape = "'shape': (2,), ";
  const std::string descr = "'descr': '<f2', ";
  EXPECT_EQ(npy_error("{" + descr + order + shape + "}"), ErrorCode::kBusy);
  for (const std::string& dict :
       std::vector<std::string>{"",
                                "{",
                                "{}",
                                "{" + order + shape + "}",
                                "{" + descr + shape + "}",
                                "{" + descr + order + "}",
                                "{" + descr + descr + order + shape + "}",
                                "{" + descr + order + order + shape + "}",
                                "{" + descr + order + shape + shape + "}",
                                "{" + descr + order + shape + "'x': 1}",
                                "{" + descr + order + shape + "} x",
                                "{" + descr + order + shape,
                                "{" + descr + order + "'shape': (2,) 'x': 1}",
                                "{" + descr + order + "'shape': (2)}",
                                "{" + descr + order + "'shape': 2}",
                                "{" + descr + order + "'shape': (-2,)}",
                                "{" + descr + order + "'shape': (2L,)}",
                                "{" + descr + order + "'shape': (2, 3}",
                                "{" + descr + order + "'shape': (,)}",
                                "{" + descr + order + "'shape': (99999999999999999999,)}",
                                "{" + descr + order + "'shape': (4294967296, 4294967296)}",
                                "{" + descr + shape + "'fortran_order': 0}",
                                "{'descr: 1}",
                                "{'descr' '<f2'}",
                                "{'descr': 5, " + order + shape + "}",
                                "{'descr': '<f\\x32', " + order + shape + "}"}) {
    EXPECT_EQ(npy_error(dict), ErrorCode::kCorrupt) << dict;
  }
}

TEST(Npy, RefusesWhatItCannotRead) {
  const std::string rest = "', 'fortran_order': False, 'shape': (2,)}";
  for (const std::string descr : {">f2", "|O", "<c8", "<f16", "<M8[ns]", "f2", "", "<U", "|S-1",
                                  "|S5x", "<U99999999999999999999"}) {
    EXPECT_EQ(npy_error("{'descr': '" + descr + rest), ErrorCode::kUnsupported) << descr;
  }
  EXPECT_EQ(npy_error("{'descr': [('a', '<f2')], 'fortran_order': False, 'shape': (2,)}"),
            ErrorCode::kUnsupported);
  EXPECT_EQ(npy_error("{'descr': '<f2', 'fortran_order': True, 'shape': (2,)}"),
            ErrorCode::kUnsupported);
  std::string dims;
  for (int i = 0; i < 33; ++i) dims += "1, ";
  EXPECT_EQ(npy_error("{'descr': '<f2', 'fortran_order': False, 'shape': (" + dims + ")}"),
            ErrorCode::kTooLarge);
}

Result<std::unique_ptr<ZipArchive>> open_zip(Bytes bytes, const ZipLimits& limits = {}) {
  return ZipArchive::open(memory_source(std::move(bytes)), limits);
}

ErrorCode zip_error(Bytes bytes, const ZipLimits& limits = {}) {
  const auto zip = open_zip(std::move(bytes), limits);
  return zip ? ErrorCode::kBusy : zip.error().code;
}

std::string read_all_of(const ZipArchive& zip, std::size_t member) {
  std::string text(static_cast<std::size_t>(zip.members()[member].bytes), '?');
  must(zip.read_end(member, std::as_writable_bytes(std::span(text))));
  return text;
}

TEST(Zip, ReadsWhatItWrites) {
  for (const std::uint64_t zip64_from : {0ull, 3ull, 0xffffffffull}) {
    const auto zip = must(open_zip(
        zip_file({{"a", bytes_of("hello")}, {"b/c", {}}, {"d", bytes_of("!")}}, zip64_from)));
    ASSERT_EQ(zip->members().size(), 3u);
    EXPECT_EQ(zip->members()[1].name, "b/c");
    EXPECT_EQ(read_all_of(*zip, 0), "hello");
    EXPECT_EQ(read_all_of(*zip, 1), "");
    EXPECT_EQ(read_all_of(*zip, 2), "!");
  }
}

TEST(Zip, ReadsStoredMembersByPosition) {
  const auto zip = must(open_zip(zip_file({{"x", bytes_of("..")}, {"a", bytes_of("0123456789")}})));
  for (std::size_t offset = 0; offset <= 10; ++offset) {
    for (std::size_t n = 0; n <= 10 - offset; ++n) {
      std::string text(n, '?');
      must(zip->read_at(1, offset, std::as_writable_bytes(std::span(text))));
      EXPECT_EQ(text, std::string("0123456789").substr(offset, n));
    }
  }
  std::string text(2, '?');
  const auto out = std::as_writable_bytes(std::span(text));
  EXPECT_EQ(zip->read_at(1, 9, out).error().code, ErrorCode::kTruncated);
  EXPECT_EQ(zip->read_at(1, ~0ull, out).error().code, ErrorCode::kTruncated);
  EXPECT_EQ(zip->read_end(0, std::as_writable_bytes(std::span(text))).ok(), true);
  Bytes three(3);
  EXPECT_EQ(zip->read_end(0, three).error().code, ErrorCode::kTruncated);
}

TEST(Zip, AnEmptyArchiveHasNoMembers) {
  EXPECT_TRUE(must(open_zip(zip_file({})))->members().empty());
  EXPECT_TRUE(must(begins_as_zip(*memory_source(zip_file({})))));
  EXPECT_FALSE(must(begins_as_zip(*memory_source(Bytes{}))));
  EXPECT_FALSE(must(begins_as_zip(*memory_source(bytes_of("GGUF")))));
}

TEST(Zip, AManyMemberArchiveTakesZip64) {
  test::ZipParts members;
  for (int i = 0; i < 65'536; ++i) members.emplace_back("m" + std::to_string(i), Bytes{});
  EXPECT_EQ(must(open_zip(zip_file(members)))->members().size(), 65'536u);
  members.emplace_back("one more", Bytes{});
  EXPECT_EQ(zip_error(zip_file(members)), ErrorCode::kTooLarge);
}

TEST(Zip, ADamagedMemberIsFoundByItsChecksum) {
  Bytes file = zip_file({{"a", bytes_of("hello")}});
  file[31] ^= std::byte{1};  // 'h', behind the local header and the name
  const auto zip = must(open_zip(file));
  Bytes out(5);
  EXPECT_EQ(zip->read_end(0, out).error().code, ErrorCode::kCorrupt);
}

TEST(Zip, RefusesWhatIsNoZip) {
  EXPECT_EQ(zip_error({}), ErrorCode::kCorrupt);
  EXPECT_EQ(zip_error(bytes_of("hello")), ErrorCode::kCorrupt);
}

TEST(Zip, RefusesANameThatIsThereTwice) {
  EXPECT_EQ(zip_error(zip_file({{"a", {}}, {"a", {}}})), ErrorCode::kCorrupt);
}

TEST(Zip, RefusesALongName) {
  EXPECT_EQ(zip_error(zip_file({{std::string(257, 'a'), {}}})), ErrorCode::kTooLarge);
}

TEST(Zip, RefusesAnEncryptedMember) {
  Bytes file = zip_file({{"a", bytes_of("hello")}});
  overwrite<std::uint16_t>(file, 6, 1);
  overwrite<std::uint16_t>(file, find_record(file, kCentral) + 8, 1);
  EXPECT_EQ(zip_error(file), ErrorCode::kUnsupported);
}

TEST(Zip, RefusesOtherCompression) {
  Bytes file = zip_file({{"a", bytes_of("hello")}});
  overwrite<std::uint16_t>(file, 8, 12);
  overwrite<std::uint16_t>(file, find_record(file, kCentral) + 10, 12);  // bzip2
  EXPECT_EQ(zip_error(file), ErrorCode::kUnsupported);
}

TEST(Zip, RefusesSizesThatCannotBe) {
  const Bytes good = zip_file({{"a", bytes_of("hello")}});
  const std::size_t central = find_record(good, kCentral);
  Bytes file = good;
  overwrite<std::uint32_t>(file, central + 24, 6);  // stored, and longer than it is
  EXPECT_EQ(zip_error(file), ErrorCode::kCorrupt);
  file = good;
  overwrite<std::uint32_t>(file, central + 20, 1 << 20);
  overwrite<std::uint32_t>(file, central + 24, 1 << 20);
  EXPECT_EQ(zip_error(file), ErrorCode::kTruncated);
  file = good;
  // Deflated, and more than deflate can make of it.
  overwrite<std::uint16_t>(file, central + 10, 8);
  overwrite<std::uint32_t>(file, central + 24, 1 << 20);
  EXPECT_EQ(zip_error(file), ErrorCode::kCorrupt);
}

TEST(Zip, RefusesMoreThanItsLimits) {
  const Bytes file = zip_file({{"a", bytes_of("hello")}, {"b", bytes_of("hello")}});
  ZipLimits limits;
  limits.max_members = 1;
  EXPECT_EQ(zip_error(file, limits), ErrorCode::kTooLarge);
  limits = {};
  limits.max_directory_bytes = 10;
  EXPECT_EQ(zip_error(file, limits), ErrorCode::kTooLarge);
  const Bytes packed = test::read_all(TQCACHE_TEST_DATA "/interop/numpy_compressed.npz");
  limits = {};
  limits.max_inflated_bytes = 1000;
  EXPECT_EQ(zip_error(packed, limits), ErrorCode::kTooLarge);
}

TEST(Zip, RefusesADirectoryThatClaimsTooManyMembers) {
  Bytes file = zip_file({{"a", bytes_of("hello")}}, 0);
  const std::size_t record = find_record(file, "PK\x06\x06");
  overwrite<std::uint64_t>(file, record + 24, 1ull << 40);
  overwrite<std::uint64_t>(file, record + 32, 1ull << 40);
  EXPECT_EQ(zip_error(file), ErrorCode::kTooLarge);
}

Result<Npz> open_npz(const test::ZipParts& members) {
  return Npz::open(memory_source(zip_file(members)));
}

TEST(NpzFile, ReadsArrays) {
  const std::vector<std::uint16_t> values = {1, 2, 3, 4, 5, 6};
  const Npz npz =
      must(open_npz({{"a.b.npy", test::npy_file("<f2", {2, 3}, object_bytes(values))}}));
  const NpzArray& array = npz.arrays().at("a.b");
  std::vector<std::uint16_t> back(6);
  must(npz.read_all(array, std::as_writable_bytes(std::span(back))));
  EXPECT_EQ(back, values);
  must(npz.read_at(array, 4, std::as_writable_bytes(std::span(back).first(2))));
  EXPECT_EQ(back[0], 3);
}

TEST(NpzFile, RefusesMembersThatAreNoArrays) {
  EXPECT_EQ(open_npz({{"a.txt", bytes_of("hello")}}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(open_npz({{"a.npy", bytes_of("hello, world")}}).error().message,
            "member \"a.npy\": not a .npy array (bad magic)");
}

TEST(NpzFile, RefusesArraysOfAnotherLength) {
  const Bytes three(3);
  EXPECT_EQ(open_npz({{"a.npy", test::npy_file("|u1", {4}, three)}}).error().code,
            ErrorCode::kTruncated);
  EXPECT_EQ(open_npz({{"a.npy", test::npy_file("|u1", {2}, three)}}).error().code,
            ErrorCode::kCorrupt);
}

TEST(NpzFile, ReadsWhatNumpyCompressed) {
  const Npz stored = must(Npz::open(must(open_file(TQCACHE_TEST_DATA "/interop/numpy.npz"))));
  const Npz packed =
      must(Npz::open(must(open_file(TQCACHE_TEST_DATA "/interop/numpy_compressed.npz"))));
  ASSERT_EQ(stored.arrays().size(), 7u);
  for (const auto& [name, array] : stored.arrays()) {
    const NpzArray& other = packed.arrays().at(name);
    ASSERT_EQ(array.header.bytes, other.header.bytes);
    Bytes a(array.header.bytes), b(a.size()), c(a.size() / 2), d(c.size());
    must(stored.read_all(array, a));
    must(packed.read_all(other, b));
    EXPECT_EQ(a, b) << name;
    must(stored.read_at(array, a.size() - c.size(), c));
    must(packed.read_at(other, a.size() - c.size(), d));
    EXPECT_EQ(c, d) << name;
  }
}

}  // namespace npz_files_test
}  // namespace tqcache::tensors
