#include "tqcache/tensors/gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/matchers.h"
#include "tensors/gguf_builder.h"
#include "tensors/refusal.h"

namespace tqcache::tensors {
namespace gguf_test {

using test::GgufBuilder;
using test::kTensorF32;
using test::kTensorQ8_0;

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

void expect_refused(const GgufBuilder& file, ErrorCode code, const std::string& message) {
  test::expect_refused(read_gguf, file.build(), code, message);
}

GgufBuilder with_version(std::uint32_t version) {
  GgufBuilder file;
  file.version = version;
  return file;
}

TEST(GgufReader, GivesShapesOutermostFirstAndTheTensorsBytes) {
  const Bytes file = test::small_gguf();
  const auto gguf = read_gguf(file);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_EQ(gguf->version, 3u);
  ASSERT_EQ(gguf->tensors.size(), 2u);

  const TensorView& embedding = gguf->tensors.at("embd.weight");
  EXPECT_EQ(embedding.type, TensorType::kQ8_0);
  EXPECT_EQ(embedding.type_name, "Q8_0");
  EXPECT_EQ(embedding.shape, (std::vector<std::uint64_t>{2, 32}));  // ne = {32, 2}
  ASSERT_EQ(embedding.bytes.size(), 68u);
  EXPECT_EQ(embedding.bytes.front(), std::byte{1});
  EXPECT_EQ(embedding.bytes.back(), std::byte{68});

  const TensorView& norm = gguf->tensors.at("norm.weight");
  EXPECT_EQ(norm.type, TensorType::kF32);
  EXPECT_EQ(norm.shape, (std::vector<std::uint64_t>{8}));
  EXPECT_EQ(norm.bytes.data(), file.data() + file.size() - 32);
}

TEST(GgufReader, ReadsVersion2) {
  const Bytes file = with_version(2).tensor("t", {2}, kTensorF32, 8).build();
  const auto gguf = read_gguf(file);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_EQ(gguf->version, 2u);
  EXPECT_TRUE(gguf->tensors.contains("t"));
}

TEST(GgufReader, ReadsAFileWithoutTensors) {
  const auto gguf = read_gguf(GgufBuilder().text("k", "v").build());
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_TRUE(gguf->tensors.empty());
  EXPECT_EQ(*gguf->get_string("k"), "v");
}

TEST(GgufReader, ReadsAScalarTensor) {
  const Bytes file = GgufBuilder().tensor("scale", {}, kTensorF32, 4).build();
  const auto gguf = read_gguf(file);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_TRUE(gguf->tensors.at("scale").shape.empty());
  EXPECT_EQ(gguf->tensors.at("scale").bytes.size(), 4u);
}

TEST(GgufReader, NeedsNoPaddingAfterTheLastTensor) {
  GgufBuilder file;
  file.tensor("a", {1}, kTensorF32, 4).tensor("b", {3}, kTensorF32, 12);
  file.pad_end = false;
  EXPECT_TRUE(read_gguf(file.build()).ok());
}

TEST(GgufReader, PlacesTensorsByTheAlignmentGiven) {
  for (const std::uint32_t alignment : {1u, 8u, 64u, 1u << 20}) {
    GgufBuilder file;
    file.alignment = alignment;
    file.value("general.alignment", test::kU32, alignment)
        .tensor("a", {3}, 24, 3)  // I8
        .tensor("b", {5}, 24, 5);
    const Bytes bytes = file.build();
    const auto gguf = read_gguf(bytes);
    ASSERT_TRUE(gguf.ok()) << alignment << ": " << gguf.error().message;
    EXPECT_EQ(gguf->tensors.at("b").bytes[4], std::byte{5}) << alignment;
  }
}

struct SizedType {
  std::uint32_t id;
  const char* name;
  std::int64_t block_values;
  std::size_t block_bytes;
};

// The figures of gguf-py's GGML_QUANT_SIZES, added up from the fields of each block.
constexpr SizedType kSizedTypes[] = {
    {0, "F32", 1, 4},
    {1, "F16", 1, 2},
    {2, "Q4_0", 32, 2 + 16},
    {3, "Q4_1", 32, 2 + 2 + 16},
    {6, "Q5_0", 32, 2 + 4 + 16},
    {7, "Q5_1", 32, 2 + 2 + 4 + 16},
    {8, "Q8_0", 32, 2 + 32},
    {9, "Q8_1", 32, 2 + 2 + 32},
    {10, "Q2_K", 256, 2 + 2 + 16 + 64},
    {11, "Q3_K", 256, 2 + 64 + 32 + 12},
    {12, "Q4_K", 256, 2 + 2 + 128 + 12},
    {13, "Q5_K", 256, 2 + 2 + 128 + 32 + 12},
    {14, "Q6_K", 256, 2 + 128 + 64 + 16},
    {15, "Q8_K", 256, 4 + 256 + 32},
    {16, "IQ2_XXS", 256, 2 + 64},
    {17, "IQ2_XS", 256, 2 + 64 + 8},
    {18, "IQ3_XXS", 256, 2 + 64 + 32},
    {19, "IQ1_S", 256, 2 + 32 + 16},
    {20, "IQ4_NL", 32, 2 + 16},
    {21, "IQ3_S", 256, 2 + 64 + 32 + 8 + 4},
    {22, "IQ2_S", 256, 2 + 64 + 16},
    {23, "IQ4_XS", 256, 2 + 2 + 128 + 4},
    {24, "I8", 1, 1},
    {25, "I16", 1, 2},
    {26, "I32", 1, 4},
    {27, "I64", 1, 8},
    {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 32 + 16 + 8},
    {30, "BF16", 1, 2},
    {34, "TQ1_0", 256, 2 + 4 * 13},
    {35, "TQ2_0", 256, 2 + 64},
    {39, "MXFP4", 32, 1 + 16},
    {40, "NVFP4", 64, 4 + 32},
    {41, "Q1_0", 128, 2 + 16},
    {42, "Q2_0", 64, 2 + 16},
};

TEST(GgufReader, SizesEveryKnownTensorType) {
  for (const SizedType& type : kSizedTypes) {
    // Two rows of three blocks; the tensor after it must follow where ggml would put it.
    const Bytes file = GgufBuilder()
                           .tensor("t", {3 * type.block_values, 2}, type.id, 6 * type.block_bytes)
                           .tensor("next", {1}, kTensorF32, 4)
                           .build();
    const auto gguf = read_gguf(file);
    ASSERT_TRUE(gguf.ok()) << type.name << ": " << gguf.error().message;
    EXPECT_EQ(gguf->tensors.at("t").bytes.size(), 6 * type.block_bytes) << type.name;
    EXPECT_EQ(gguf->tensors.at("t").type_name, type.name);
  }
}

TEST(GgufReader, TellsReadableTypesFromThoseItOnlySizes) {
  const auto type_of = [](std::uint32_t id, std::int64_t values, std::size_t n_bytes) {
    const Bytes file = GgufBuilder().tensor("t", {values}, id, n_bytes).build();
    return read_gguf(file)->tensors.at("t").type;
  };
  EXPECT_EQ(type_of(0, 1, 4), TensorType::kF32);
  EXPECT_EQ(type_of(1, 1, 2), TensorType::kF16);
  EXPECT_EQ(type_of(8, 32, 34), TensorType::kQ8_0);
  EXPECT_EQ(type_of(24, 1, 1), TensorType::kI8);
  EXPECT_EQ(type_of(25, 1, 2), TensorType::kI16);
  EXPECT_EQ(type_of(26, 1, 4), TensorType::kI32);
  EXPECT_EQ(type_of(27, 1, 8), TensorType::kI64);
  EXPECT_EQ(type_of(28, 1, 8), TensorType::kF64);
  EXPECT_EQ(type_of(30, 1, 2), TensorType::kBF16);
  EXPECT_EQ(type_of(2, 32, 18), TensorType::kQ4_0);
  EXPECT_EQ(type_of(3, 32, 20), TensorType::kQ4_1);
  EXPECT_EQ(type_of(6, 32, 22), TensorType::kQ5_0);
  EXPECT_EQ(type_of(7, 32, 24), TensorType::kQ5_1);
  EXPECT_EQ(type_of(20, 32, 18), TensorType::kIQ4_NL);
  EXPECT_EQ(type_of(10, 256, 84), TensorType::kQ2_K);
  EXPECT_EQ(type_of(11, 256, 110), TensorType::kQ3_K);
  EXPECT_EQ(type_of(12, 256, 144), TensorType::kQ4_K);
  EXPECT_EQ(type_of(13, 256, 176), TensorType::kQ5_K);
  EXPECT_EQ(type_of(14, 256, 210), TensorType::kQ6_K);
  EXPECT_EQ(type_of(15, 256, 292), TensorType::kOther);
}

TEST(GgufReader, RefusesAnEmptyFile) {
  const auto gguf = read_gguf({});
  ASSERT_FALSE(gguf.ok());
  EXPECT_EQ(gguf.error().code, ErrorCode::kTruncated);
}

TEST(GgufReader, RefusesBadMagic) {
  GgufBuilder file;
  file.magic = "GGML";
  expect_refused(file, ErrorCode::kCorrupt, "header: not a GGUF file (bad magic)");
}

TEST(GgufReader, RefusesOtherVersionsByNumber) {
  expect_refused(with_version(0), ErrorCode::kCorrupt, "header: GGUF version 0");
  expect_refused(with_version(1), ErrorCode::kUnsupported,
                 "header: GGUF version 1, only 2 and 3 are read");
  expect_refused(with_version(4), ErrorCode::kUnsupported,
                 "header: GGUF version 4, only 2 and 3 are read");
}

TEST(GgufReader, RefusesBigEndianFile) {
  expect_refused(with_version(0x03000000), ErrorCode::kUnsupported, "header: big-endian GGUF file");
}

TEST(GgufReader, RefusesMoreTensorsThanTheFileHas) {
  GgufBuilder file;
  file.n_tensors = 1;
  expect_refused(file, ErrorCode::kTruncated, "tensor 0: byte 24: 8 bytes wanted, 0 left");
}

TEST(GgufReader, RefusesMoreKeysThanTheFileHas) {
  GgufBuilder file;
  file.n_keys = 1;
  expect_refused(file, ErrorCode::kTruncated, "key 0: byte 24: 8 bytes wanted, 0 left");
}

TEST(GgufReader, LimitsTheNumberOfTensors) {
  GgufBuilder file;
  file.n_tensors = 65537;
  expect_refused(file, ErrorCode::kTooLarge, "header: 65537 tensors, at most 65536 are read");
  file.n_tensors = ~0ull;  // -1 in the file's i64
  expect_refused(file, ErrorCode::kTooLarge,
                 "header: 18446744073709551615 tensors, at most 65536 are read");
}

TEST(GgufReader, LimitsTheNumberOfKeys) {
  GgufBuilder file;
  file.n_keys = 65537;
  expect_refused(file, ErrorCode::kTooLarge, "header: 65537 metadata keys, at most 65536 are read");
}

TEST(GgufReader, ReadsAPartOfASplitModelAsAnyOther) {
  EXPECT_TRUE(read_gguf(GgufBuilder().value<std::uint16_t>("split.count", test::kU16, 4).build()));
}

TEST(GgufReader, RefusesAlignmentThatIsNoPowerOfTwo) {
  for (const std::uint32_t alignment : {0u, 3u, 24u, 33u}) {
    expect_refused(GgufBuilder().value("general.alignment", test::kU32, alignment),
                   ErrorCode::kUnsupported,
                   "key \"general.alignment\": " + std::to_string(alignment) +
                       ", only powers of two are read (by llama.cpp, too)");
  }
}

TEST(GgufReader, RefusesAlignmentAbove1MiB) {
  expect_refused(GgufBuilder().value("general.alignment", test::kU32, 1u << 21),
                 ErrorCode::kTooLarge, "key \"general.alignment\": 2097152 is above 1048576");
}

TEST(GgufReader, RefusesAlignmentOfAnotherType) {
  expect_refused(GgufBuilder().value<std::uint64_t>("general.alignment", test::kU64, 32),
                 ErrorCode::kCorrupt, "key \"general.alignment\": not a u32");
  expect_refused(GgufBuilder().array<std::uint32_t>("general.alignment", test::kU32, {32}),
                 ErrorCode::kCorrupt, "key \"general.alignment\": not a u32");
}

TEST(GgufReader, RefusesTensorsPlacedByAnotherAlignment) {
  GgufBuilder file;
  file.value<std::uint32_t>("general.alignment", test::kU32, 64);
  file.tensor("a", {1}, kTensorF32, 4).tensor("b", {1}, kTensorF32, 4);
  expect_refused(file, ErrorCode::kCorrupt, "tensor \"b\": offset 32 is not a multiple of 64");
}

TEST(GgufReader, RefusesLongTensorName) {
  EXPECT_TRUE(read_gguf(GgufBuilder().tensor(std::string(63, 'n'), {1}, kTensorF32, 4).build()));
  expect_refused(GgufBuilder().tensor(std::string(64, 'n'), {1}, kTensorF32, 4),
                 ErrorCode::kTooLarge, "tensor 0: text of 64 bytes, at most 63 are read");
}

TEST(GgufReader, RefusesNulInTensorName) {
  expect_refused(GgufBuilder().tensor(std::string_view("a\0b", 3), {1}, kTensorF32, 4),
                 ErrorCode::kCorrupt, "tensor 0: name \"a?b\" holds a NUL");
}

TEST(GgufReader, RefusesDuplicateTensorName) {
  expect_refused(GgufBuilder().tensor("a", {1}, kTensorF32, 4).tensor("a", {1}, kTensorF32, 4),
                 ErrorCode::kCorrupt, "tensor \"a\": given twice");
}

TEST(GgufReader, RefusesMoreThanFourDimensions) {
  EXPECT_TRUE(read_gguf(GgufBuilder().tensor("t", {1, 1, 1, 2}, kTensorF32, 8).build()).ok());
  expect_refused(GgufBuilder().tensor("t", {1, 1, 1, 1, 1}, kTensorF32, 4), ErrorCode::kTooLarge,
                 "tensor \"t\": 5 dimensions, at most 4 are read");
}

TEST(GgufReader, RefusesNegativeAndZeroDimensions) {
  expect_refused(GgufBuilder().tensor("t", {4, -1}, kTensorF32, 16), ErrorCode::kCorrupt,
                 "tensor \"t\": dimension of size -1");
  expect_refused(GgufBuilder().tensor("t", {0}, kTensorF32, 0), ErrorCode::kCorrupt,
                 "tensor \"t\": dimension of size 0");
}

TEST(GgufReader, RefusesElementCountThatWrapsAround) {
  // 2^62 * 4 = 2^64 comes out as 0, and the empty tensor would fit.
  expect_refused(GgufBuilder().tensor("t", {kHuge, 4}, kTensorF32, 0), ErrorCode::kCorrupt,
                 "tensor \"t\": its size does not fit 64 bits");
}

TEST(GgufReader, RefusesByteCountThatWrapsAround) {
  expect_refused(GgufBuilder().tensor("t", {kHuge}, kTensorF32, 0), ErrorCode::kCorrupt,
                 "tensor \"t\": its size does not fit 64 bits");
}

TEST(GgufReader, RefusesRowsThatAreNoWholeBlocks) {
  expect_refused(GgufBuilder().tensor("t", {16, 2}, kTensorQ8_0, 34), ErrorCode::kCorrupt,
                 "tensor \"t\": rows of 16 values, which Q8_0 stores in blocks of 32");
  expect_refused(GgufBuilder().tensor("t", {}, kTensorQ8_0, 34), ErrorCode::kCorrupt,
                 "tensor \"t\": rows of 1 values, which Q8_0 stores in blocks of 32");
}

TEST(GgufReader, RefusesUnknownTensorTypeByNumber) {
  for (const std::uint32_t type : {4u, 5u, 31u, 36u, 43u, 0xffffffffu}) {
    expect_refused(GgufBuilder().tensor("t", {1}, type, 4), ErrorCode::kUnsupported,
                   "tensor \"t\": tensor type " + std::to_string(type) + " is unknown");
  }
}

TEST(GgufReader, RefusesMisalignedOffset) {
  expect_refused(GgufBuilder().tensor("t", {1}, kTensorF32, 36, 4), ErrorCode::kCorrupt,
                 "tensor \"t\": offset 4 is not a multiple of 32");
}

TEST(GgufReader, RefusesOverlappingTensors) {
  expect_refused(GgufBuilder().tensor("a", {1}, kTensorF32, 4).tensor("b", {1}, kTensorF32, 4, 0),
                 ErrorCode::kCorrupt, "tensor \"b\": offset 0, expected 32");
}

TEST(GgufReader, RefusesGapsBetweenTensors) {
  expect_refused(GgufBuilder().tensor("a", {1}, kTensorF32, 4).tensor("b", {1}, kTensorF32, 36, 64),
                 ErrorCode::kCorrupt, "tensor \"b\": offset 64, expected 32");
}

TEST(GgufReader, RefusesTensorBeyondEndOfFile) {
  GgufBuilder file;
  file.pad_end = false;
  file.tensor("a", {8}, kTensorF32, 32).tensor("blk.0.attn_q.weight", {3}, kTensorF32, 11);
  expect_refused(file, ErrorCode::kTruncated,
                 "tensor \"blk.0.attn_q.weight\": bytes 32 to 44 lie beyond the end of the data");
}

TEST(GgufReader, RefusesSumOfSizesThatWrapsAround) {
  // The sizes add up to 2^64 + 32; the first one alone already leaves the file.
  expect_refused(GgufBuilder()
                     .tensor("a", {kHuge}, 24, 0)
                     .tensor("b", {kHuge}, 24, 0, 1ull << 62)
                     .tensor("c", {kHuge}, 25, 0, 1ull << 63),
                 ErrorCode::kTruncated,
                 "tensor \"a\": bytes 0 to 4611686018427387904 lie beyond the end of the data");
}

TEST(GgufReader, RefusesATensorWhoseEndWrapsAround) {
  // Behind 32 bytes, 2^64 - 4 more would end at 28, inside the file.
  expect_refused(
      GgufBuilder().tensor("a", {8}, kTensorF32, 32).tensor("b", {kHuge - 1}, kTensorF32, 0),
      ErrorCode::kCorrupt, "tensor \"b\": its end does not fit 64 bits");
}

TEST(GgufReader, RefusesFileThatEndsBeforeItsData) {
  GgufBuilder file;
  file.tensor("t", {1}, kTensorF32, 0);
  Bytes bytes = file.build();
  bytes.pop_back();  // inside the padding before the data
  EXPECT_THAT(
      read_gguf(test::ExactCopy(bytes).bytes()),
      test::FailsWith(ErrorCode::kTruncated, "byte 57: the file ends before its tensor data"));
}

}  // namespace gguf_test
}  // namespace tqcache::tensors
