#include <gtest/gtest.h>

#include <deque>
#include <limits>

#include "support/sanitized.h"
#include "tensors/gguf_builder.h"
#include "tensors/refusal.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::tensors {
namespace gguf_metadata_test {

using test::GgufBuilder;

void expect_refused(const GgufBuilder& file, ErrorCode code, const std::string& message) {
  test::expect_refused(read_gguf, file.build(), code, message);
}

Gguf read_good(const GgufBuilder& file) {
  static std::deque<Bytes> files;  // arrays of texts are views into them
  files.push_back(file.build());
  auto gguf = read_gguf(files.back());
  EXPECT_TRUE(gguf.ok()) << gguf.error().message;
  return gguf.ok() ? std::move(gguf).value() : Gguf{};
}

TEST(GgufMetadata, WidensEveryIntegerType) {
  const Gguf gguf = read_good(GgufBuilder()
                                  .value<std::uint8_t>("u8", test::kU8, 255)
                                  .value<std::int8_t>("i8", test::kI8, -128)
                                  .value<std::uint16_t>("u16", test::kU16, 65535)
                                  .value<std::int16_t>("i16", test::kI16, -32768)
                                  .value<std::uint32_t>("u32", test::kU32, 4294967295u)
                                  .value<std::int32_t>("i32", test::kI32, -2147483647)
                                  .value<std::uint64_t>("u64", test::kU64, (1ull << 63) - 1)
                                  .value<std::int64_t>("i64", test::kI64, -5));
  EXPECT_EQ(*gguf.get_int("u8"), 255);
  EXPECT_EQ(*gguf.get_int("i8"), -128);
  EXPECT_EQ(*gguf.get_int("u16"), 65535);
  EXPECT_EQ(*gguf.get_int("i16"), -32768);
  EXPECT_EQ(*gguf.get_int("u32"), 4294967295);
  EXPECT_EQ(*gguf.get_int("i32"), -2147483647);
  EXPECT_EQ(*gguf.get_int("u64"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(*gguf.get_int("i64"), -5);
}

TEST(GgufMetadata, ReadsFloatsBoolsAndStrings) {
  const Gguf gguf = read_good(GgufBuilder()
                                  .value<float>("f32", test::kF32, 1e6f)
                                  .value<double>("f64", test::kF64, 1e-300)
                                  .value<std::uint8_t>("yes", test::kBool, 1)
                                  .value<std::uint8_t>("no", test::kBool, 0)
                                  .text("text", "gr\xc3\xbc\xc3\x9f")
                                  .text("empty", ""));
  EXPECT_EQ(*gguf.get_float("f32"), 1e6);
  EXPECT_EQ(*gguf.get_float("f64"), 1e-300);
  EXPECT_TRUE(*gguf.get_bool("yes"));
  EXPECT_FALSE(*gguf.get_bool("no"));
  EXPECT_EQ(*gguf.get_string("text"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(*gguf.get_string("empty"), "");
}

TEST(GgufMetadata, ReadsArraysOfEveryKind) {
  const Gguf gguf = read_good(GgufBuilder()
                                  .array<std::int32_t>("ints", test::kI32, {3, -1})
                                  .array<float>("floats", test::kF32, {0.5f, 2.0f})
                                  .array<std::uint8_t>("bools", test::kBool, {1, 0, 1})
                                  .texts("texts", {"a", "", "c"})
                                  .array<std::uint32_t>("none", test::kU32, {}));
  EXPECT_EQ(**gguf.get_ints("ints"), (std::vector<std::int64_t>{3, -1}));
  EXPECT_EQ(std::get<std::vector<double>>(gguf.metadata.at("floats")),
            (std::vector<double>{0.5, 2.0}));
  EXPECT_EQ(std::get<std::vector<bool>>(gguf.metadata.at("bools")),
            (std::vector<bool>{true, false, true}));
  EXPECT_EQ(**gguf.get_strings("texts"), (std::vector<std::string_view>{"a", "", "c"}));
  EXPECT_TRUE((*gguf.get_ints("none"))->empty());
}

TEST(GgufMetadata, NamesAMissingKey) {
  const Gguf gguf = read_good(GgufBuilder());
  EXPECT_FALSE(gguf.has("tiny.block_count"));
  EXPECT_EQ(gguf.get_int("tiny.block_count").error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(gguf.get_int("tiny.block_count").error().message, "key \"tiny.block_count\": missing");
  EXPECT_EQ(gguf.get_float("x").error().message, "key \"x\": missing");
}

TEST(GgufMetadata, NamesAKeyOfAnotherKind) {
  const Gguf gguf = read_good(GgufBuilder()
                                  .text("text", "5")
                                  .value<std::uint32_t>("int", test::kU32, 1)
                                  .texts("texts", {"a"}));
  EXPECT_EQ(gguf.get_int("text").error().message, "key \"text\": not an integer");
  EXPECT_EQ(gguf.get_float("text").error().message, "key \"text\": not a number");
  EXPECT_EQ(gguf.get_bool("int").error().message, "key \"int\": not a bool");
  EXPECT_EQ(gguf.get_string("int").error().message, "key \"int\": not a string");
  EXPECT_EQ(gguf.get_strings("text").error().message, "key \"text\": not an array of strings");
  EXPECT_EQ(gguf.get_ints("texts").error().message, "key \"texts\": not an array of integers");
  EXPECT_EQ(gguf.get_ints("texts").error().code, ErrorCode::kCorrupt);
}

TEST(GgufMetadata, TakesAnIntegerForAFloat) {
  const Gguf gguf = read_good(GgufBuilder().value<std::uint32_t>("base", test::kU32, 10000));
  EXPECT_EQ(*gguf.get_float("base"), 10000.0);
}

TEST(GgufMetadata, RefusesDuplicateKey) {
  expect_refused(GgufBuilder().text("k", "a").text("k", "b"), ErrorCode::kCorrupt,
                 "key \"k\": given twice");
}

TEST(GgufMetadata, RefusesEmptyKey) {
  expect_refused(GgufBuilder().text("", "a"), ErrorCode::kCorrupt, "key 0: empty key");
}

TEST(GgufMetadata, RefusesNulInKey) {
  expect_refused(GgufBuilder().text(std::string_view("k\0y", 3), "a"), ErrorCode::kCorrupt,
                 "key 0: key \"k?y\" holds a NUL");
}

TEST(GgufMetadata, RefusesKeyAbove65535Bytes) {
  EXPECT_TRUE(read_gguf(GgufBuilder().text(std::string(65535, 'k'), "").build()).ok());
  expect_refused(GgufBuilder().text(std::string(65536, 'k'), ""), ErrorCode::kTooLarge,
                 "key 0: text of 65536 bytes, at most 65535 are read");
}

TEST(GgufMetadata, RefusesKeyLengthBeyondEndOfFile) {
  Bytes file = GgufBuilder().text("k", "a").build();
  file[24] = std::byte{200};  // first byte of the key's length
  test::expect_refused(read_gguf, file, ErrorCode::kTruncated,
                       "key 0: byte 32: 200 bytes wanted, 14 left");
}

TEST(GgufMetadata, RefusesUnknownValueType) {
  expect_refused(GgufBuilder().value<std::uint32_t>("k", 13, 0), ErrorCode::kUnsupported,
                 "key \"k\": value type 13 is unknown");
  expect_refused(GgufBuilder().value<std::uint32_t>("k", 0xffffffff, 0), ErrorCode::kUnsupported,
                 "key \"k\": value type 4294967295 is unknown");
}

TEST(GgufMetadata, RefusesUnknownElementType) {
  expect_refused(GgufBuilder().array<std::uint32_t>("k", 13, {1}), ErrorCode::kUnsupported,
                 "key \"k\": value type 13 is unknown");
}

TEST(GgufMetadata, RefusesNestedArray) {
  expect_refused(GgufBuilder().array<std::uint32_t>("k", test::kArray, {4, 0, 0}),
                 ErrorCode::kUnsupported, "key \"k\": an array of arrays");
}

TEST(GgufMetadata, RefusesBoolThatIsNeither0Nor1) {
  expect_refused(GgufBuilder().value<std::uint8_t>("k", test::kBool, 2), ErrorCode::kCorrupt,
                 "key \"k\": bool of value 2");
  expect_refused(GgufBuilder().array<std::uint8_t>("k", test::kBool, {1, 255}), ErrorCode::kCorrupt,
                 "key \"k\": element 1: bool of value 255");
}

TEST(GgufMetadata, KeepsU64BeyondI64AsAFloat) {
  const Bytes file = GgufBuilder()
                         .value<std::uint64_t>("k", test::kU64, 1ull << 63)
                         .value<std::uint64_t>("below", test::kU64, (1ull << 63) - 1)
                         .array<std::uint64_t>("wide", test::kU64, {1, ~0ull})
                         .array<std::uint64_t>("narrow", test::kU64, {1, 2})
                         .build();
  const auto gguf = read_gguf(file);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_EQ(gguf->get_float("k").value(), 0x1p63);
  EXPECT_EQ(gguf->get_int("k").error().message, "key \"k\": not an integer");
  EXPECT_EQ(gguf->get_int("below").value(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(std::get<std::vector<double>>(gguf->metadata.at("wide")),
            (std::vector<double>{1, 0x1p64}));
  EXPECT_EQ(*gguf->get_ints("narrow").value(), (std::vector<std::int64_t>{1, 2}));
}

TEST(GgufMetadata, RefusesAnArrayOfU64BeyondTheEndOfTheFile) {
  Bytes file = GgufBuilder().array<std::uint64_t>("k", test::kU64, {~0ull, 2}).build();
  file.resize(file.size() - 1);
  EXPECT_EQ(read_gguf(file).error().code, ErrorCode::kTruncated);
}

TEST(GgufMetadata, RefusesStringBeyondEndOfFile) {
  Bytes file = GgufBuilder().text("k", "abc").build();
  file[37] = std::byte{4};  // the value's length: 24 header, 8 + 1 key, 4 type
  test::expect_refused(read_gguf, file, ErrorCode::kTruncated,
                       "key \"k\": byte 45: 4 bytes wanted, 3 left");
}

TEST(GgufMetadata, RefusesStringAbove64MiBBeforeItIsRead) {
  expect_refused(GgufBuilder().value<std::uint64_t>("k", test::kString, (64ull << 20) + 1),
                 ErrorCode::kTooLarge,
                 "key \"k\": text of 67108865 bytes, at most 67108864 are read");
  expect_refused(GgufBuilder().value<std::uint64_t>("k", test::kString, ~0ull),
                 ErrorCode::kTooLarge,
                 "key \"k\": text of 18446744073709551615 bytes, at most 67108864 are read");
}

TEST(GgufMetadata, RefusesArrayBeyondEndOfFileBeforeItIsAllocated) {
  expect_refused(GgufBuilder().array<std::uint32_t>("k", test::kU32, {1, 2}, 3),
                 ErrorCode::kTruncated, "key \"k\": array of 3 elements in 8 bytes");
  // Each string takes at least its length of 8 bytes.
  expect_refused(GgufBuilder().array<std::uint64_t>("k", test::kString, {0, 0}, 3),
                 ErrorCode::kTruncated, "key \"k\": array of 3 elements in 16 bytes");
}

TEST(GgufMetadata, RefusesArrayWhoseSizeWrapsAround) {
  expect_refused(GgufBuilder().array<std::uint32_t>("k", test::kU32, {1}, (1ull << 62) + 1),
                 ErrorCode::kTooLarge,
                 "key \"k\": array of 4611686018427387905 elements, where a file may have 16777216 "
                 "in all");
}

TEST(GgufMetadata, LimitsTheElementsOfAllArraysTogether) {
#ifdef TQCACHE_TEST_SANITIZED
  GTEST_SKIP() << "takes a minute with sanitizers";
#endif
  const std::vector<std::uint8_t> full(1 << 24, 0);
  expect_refused(
      GgufBuilder().array("a", test::kBool, full).array<std::uint8_t>("b", test::kBool, {0}),
      ErrorCode::kTooLarge,
      "key \"b\": array of 1 elements, where a file may have 16777216 in all");
}

}  // namespace gguf_metadata_test
}  // namespace tqcache::tensors
