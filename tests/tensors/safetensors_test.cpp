#include "tqcache/tensors/safetensors.h"

#include <gtest/gtest.h>

#include "support/failing_source.h"
#include "support/long_tests.h"
#include "tensors/refusal.h"
#include "tensors/safetensors_builder.h"

namespace tqcache::tensors {
namespace safetensors_test {

using test::safetensors_file;
using test::tensor_entry;

// The code and message with which a file of this header and so many data bytes is refused.
void expect_refused(const std::string& header, std::size_t data_bytes, ErrorCode code,
                    const std::string& message) {
  test::expect_refused(read_safetensors, safetensors_file(header, data_bytes), code, message);
}

void expect_corrupt(const std::string& header, const std::string& message) {
  expect_refused(header, 4, ErrorCode::kCorrupt, message);
}

bool opens(const std::string& header, std::size_t data_bytes) {
  const Bytes file = safetensors_file(header, data_bytes);
  return read_safetensors(test::ExactCopy(file).bytes()).ok();
}

// One F32 tensor "t" over the data, with `fields` in place of its ordinary ones.
std::string tensor_with(const std::string& fields) { return R"({"t":{)" + fields + "}}"; }

TEST(SafetensorsReader, GivesTensorsInAnyOrderOfTheData) {
  const Bytes file = test::small_safetensors();
  const auto result = read_safetensors(file);
  ASSERT_TRUE(result.ok()) << result.error().message;
  ASSERT_EQ(result->tensors.size(), 2u);
  const TensorView& a = result->tensors.at("a");
  EXPECT_EQ(a.type, TensorType::kBF16);
  EXPECT_EQ(a.type_name, "BF16");
  EXPECT_EQ(a.shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(a.bytes.size(), 12u);
  EXPECT_EQ(a.bytes.front(), std::byte{1});
  const TensorView& b = result->tensors.at("b");
  EXPECT_EQ(b.shape, (std::vector<std::uint64_t>{2, 2}));
  EXPECT_EQ(b.bytes.data(), file.data() + file.size() - 16);
}

TEST(SafetensorsReader, GivesTheMetadata) {
  const auto result = read_safetensors(test::small_safetensors());
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->metadata,
            (std::map<std::string, std::string>{{"format", "pt"}, {"note", "\xc3\xa9"}}));
}

TEST(SafetensorsReader, ReadsWhatMlxWrites) {
  // Null for an empty map, keys after the tensors, no padding.
  const std::string header = '{' + tensor_entry("0.0", "BF16", "1,1,3", 6, 12) + ',' +
                             tensor_entry("0.1", "BF16", "1,1,3", 0, 6) +
                             R"(,"__metadata__":null})";
  ASSERT_NE(header.size() % 8, 0u);
  EXPECT_TRUE(opens(header, 12));
}

TEST(SafetensorsReader, ReadsAFileWithoutTensors) { EXPECT_TRUE(opens("{}", 0)); }

TEST(SafetensorsReader, ReadsScalarsAndEmptyTensors) {
  const std::string header = '{' + tensor_entry("scalar", "F32", "", 0, 4) + ',' +
                             tensor_entry("empty", "F32", "0", 4, 4) + ',' +
                             tensor_entry("rest", "U8", "2", 4, 6) + '}';
  const Bytes file = safetensors_file(header, 6);
  const auto result = read_safetensors(file);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_TRUE(result->tensors.at("scalar").shape.empty());
  EXPECT_TRUE(result->tensors.at("empty").bytes.empty());
}

TEST(SafetensorsReader, SizesEveryKnownDtype) {
  const struct {
    const char* name;
    std::uint64_t bytes_of_four;
    TensorType type;
  } dtypes[] = {
      {"BOOL", 4, TensorType::kBool},      {"F4", 2, TensorType::kOther},
      {"F6_E2M3", 3, TensorType::kOther},  {"F6_E3M2", 3, TensorType::kOther},
      {"U8", 4, TensorType::kU8},          {"I8", 4, TensorType::kI8},
      {"F8_E5M2", 4, TensorType::kF8E5M2}, {"F8_E4M3", 4, TensorType::kF8E4M3},
      {"F8_E8M0", 4, TensorType::kOther},  {"F8_E4M3FNUZ", 4, TensorType::kOther},
      {"I16", 8, TensorType::kI16},        {"F8_E5M2FNUZ", 4, TensorType::kOther},
      {"U16", 8, TensorType::kU16},        {"F16", 8, TensorType::kF16},
      {"BF16", 8, TensorType::kBF16},      {"I32", 16, TensorType::kI32},
      {"U32", 16, TensorType::kU32},       {"F32", 16, TensorType::kF32},
      {"C64", 32, TensorType::kOther},     {"F64", 32, TensorType::kF64},
      {"I64", 32, TensorType::kI64},       {"U64", 32, TensorType::kU64},
  };
  for (const auto& dtype : dtypes) {
    const Bytes file =
        safetensors_file('{' + tensor_entry("t", dtype.name, "4", 0, dtype.bytes_of_four) + '}',
                         dtype.bytes_of_four);
    const auto result = read_safetensors(file);
    ASSERT_TRUE(result.ok()) << dtype.name << ": " << result.error().message;
    EXPECT_EQ(result->tensors.at("t").type, dtype.type) << dtype.name;
    EXPECT_EQ(result->tensors.at("t").type_name, dtype.name);
  }
}

TEST(SafetensorsReader, RefusesFileShorterThanItsLengthField) {
  for (std::size_t size = 0; size < 8; ++size) {
    const Bytes zeros(size);
    const auto result = read_safetensors(test::ExactCopy(zeros).bytes());
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kTruncated);
  }
}

TEST(SafetensorsReader, RefusesHeaderBeyondEndOfFile) {
  Bytes file = safetensors_file("{}", 0);
  file[0] = std::byte{3};
  test::expect_refused(read_safetensors, file, ErrorCode::kTruncated,
                       "header: 3 bytes, of which 2 are there");
}

TEST(SafetensorsReader, RefusesHeaderAbove100MB) {
  ByteWriter out;
  out.write<std::uint64_t>(100'000'001);
  test::expect_refused(read_safetensors, std::move(out).take(), ErrorCode::kTooLarge,
                       "header: 100000001 bytes, at most 100000000 are read");
}

TEST(SafetensorsReader, RefusesHeaderThatIsNoObject) {
  for (const char* header : {"", " {}", "[]", "\"text\"", "5", "null", "\xef\xbb\xbf{}"}) {
    expect_corrupt(header, "header: does not begin with '{'");
  }
}

TEST(SafetensorsReader, RefusesBrokenJson) {
  expect_corrupt("{", "header: not valid JSON at byte 2 of it");
  expect_corrupt("{]", "header: not valid JSON at byte 2 of it");
  expect_corrupt("{} {}", "header: not valid JSON at byte 4 of it");
  expect_corrupt("{}x", "header: not valid JSON at byte 3 of it");
  expect_corrupt("{\"a\":", "header: not valid JSON at byte 6 of it");
  expect_corrupt("{/**/}", "header: not valid JSON at byte 2 of it");
}

TEST(SafetensorsReader, RefusesBytesThatAreNotUtf8) {
  expect_corrupt("{\"\xff\":1}", "header: not valid JSON at byte 3 of it");
  expect_corrupt("{\"\xc0\x80\":1}", "header: not valid JSON at byte 3 of it");
  expect_corrupt(R"({"\ud800":1})", "header: not valid JSON at byte 9 of it");
}

TEST(SafetensorsReader, RefusesBytesHiddenBehindANul) {
  // A JSON parser may take the NUL for the end of its input and never see the rest.
  expect_corrupt(std::string("{}\0{", 4), "header: holds a NUL byte");
}

TEST(SafetensorsReader, RefusesDeepNesting) {
  const std::string deep = R"({"a":)" + std::string(100'000, '[');
  expect_corrupt(deep, "tensor \"a\": an array is not allowed here");
  expect_corrupt(R"({"a":{"dtype":{"b":{}}}})", "tensor \"a\": an object is not allowed here");
  expect_corrupt(R"({"a":{"shape":[[1]]}})", "tensor \"a\": an array is not allowed here");
  expect_corrupt(R"({"a":{"shape":[{}]}})", "tensor \"a\": an object is not allowed here");
  expect_corrupt(R"({"__metadata__":{"a":{}}})", "metadata \"a\": an object is not allowed here");
}

TEST(SafetensorsReader, RefusesValuesOfAnotherKind) {
  expect_corrupt(R"({"t":5})", "tensor \"t\": a number is not allowed here");
  expect_corrupt(R"({"t":null})", "tensor \"t\": null is not allowed here");
  expect_corrupt(R"({"t":"x"})", "tensor \"t\": a string is not allowed here");
  expect_corrupt(tensor_with(R"("dtype":8)"), "tensor \"t\": a number is not allowed here");
  expect_corrupt(tensor_with(R"("dtype":["F32"])"), "tensor \"t\": an array is not allowed here");
  expect_corrupt(tensor_with(R"("shape":"1")"), "tensor \"t\": a string is not allowed here");
  expect_corrupt(tensor_with(R"("shape":1)"), "tensor \"t\": a number is not allowed here");
  expect_corrupt(tensor_with(R"("shape":["1"])"), "tensor \"t\": a string is not allowed here");
  expect_corrupt(tensor_with(R"("shape":[true])"), "tensor \"t\": a bool is not allowed here");
  expect_corrupt(tensor_with(R"("shape":[null])"), "tensor \"t\": null is not allowed here");
}

TEST(SafetensorsReader, RefusesMetadataThatIsNoMapOfStrings) {
  expect_corrupt(R"({"__metadata__":"x"})", "metadata: a string is not allowed here");
  expect_corrupt(R"({"__metadata__":[]})", "metadata: an array is not allowed here");
  expect_corrupt(R"({"__metadata__":{"k":1}})", "metadata \"k\": a number is not allowed here");
  expect_corrupt(R"({"__metadata__":{"k":null}})", "metadata \"k\": null is not allowed here");
}

TEST(SafetensorsReader, RefusesRepeatedKeys) {
  const std::string t = tensor_entry("t", "F32", "1", 0, 4);
  expect_corrupt('{' + t + ',' + t + '}', "tensor \"t\": given twice");
  // The same name, once in disguise.
  expect_corrupt('{' + t + ',' + tensor_entry("\\u0074", "F32", "1", 0, 4) + '}',
                 "tensor \"t\": given twice");
  expect_corrupt(R"({"__metadata__":{},"__metadata__":{}})", "metadata: given twice");
  expect_corrupt(R"({"__metadata__":{"k":"a","k":"b"}})", "metadata \"k\": given twice");
  expect_corrupt(tensor_with(R"("dtype":"F32","dtype":"F32")"), "tensor \"t\": dtype given twice");
  expect_corrupt(tensor_with(R"("shape":[1],"shape":[1])"), "tensor \"t\": shape given twice");
  expect_corrupt(tensor_with(R"("data_offsets":[0,4],"data_offsets":[0,4])"),
                 "tensor \"t\": data_offsets given twice");
}

TEST(SafetensorsReader, RefusesMissingFields) {
  expect_corrupt(tensor_with(R"("shape":[1],"data_offsets":[0,4])"), "tensor \"t\": no dtype");
  expect_corrupt(tensor_with(R"("dtype":"F32","data_offsets":[0,4])"), "tensor \"t\": no shape");
  for (const char* offsets :
       {"", R"(,"data_offsets":[])", R"(,"data_offsets":[0])", R"(,"data_offsets":[0,4,4])"}) {
    expect_corrupt(tensor_with(R"("dtype":"F32","shape":[1])" + std::string(offsets)),
                   "tensor \"t\": data_offsets are not two numbers");
  }
}

TEST(SafetensorsReader, RefusesUnknownFields) {
  expect_refused(tensor_with(R"("dtype":"F32","codec":"zstd")"), 4, ErrorCode::kUnsupported,
                 "tensor \"t\": unknown field \"codec\"");
  // Older texts call it so, but no file does.
  expect_refused(tensor_with(R"("dtype":"F32","shape":[1],"offsets":[0,4])"), 4,
                 ErrorCode::kUnsupported, "tensor \"t\": unknown field \"offsets\"");
}

TEST(SafetensorsReader, RefusesNumbersThatAreNoPlainIntegers) {
  for (const char* number : {"-1", "-0", "1.0", "1e0", "1E2", "18446744073709551616"}) {
    expect_corrupt(tensor_with(R"("shape":[)" + std::string(number) + ']'),
                   "tensor \"t\": a number that is not an integer from 0 on");
  }
  expect_corrupt(tensor_with(R"("shape":[01])"), "header: not valid JSON at byte 17 of it");
}

TEST(SafetensorsReader, RefusesIntegersBeyond53Bits) {
  expect_refused(tensor_with(R"("shape":[9007199254740992])"), 4, ErrorCode::kTooLarge,
                 "tensor \"t\": an integer beyond 53 bits");
  expect_refused(tensor_with(R"("data_offsets":[0,18446744073709551615])"), 4, ErrorCode::kTooLarge,
                 "tensor \"t\": an integer beyond 53 bits");
}

TEST(SafetensorsReader, LimitsTheNumberOfDimensions) {
  EXPECT_TRUE(
      opens('{' + tensor_entry("t", "U8", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", 0, 1) + '}', 1));
  expect_refused('{' + tensor_entry("t", "U8", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", 0, 1) + '}', 1,
                 ErrorCode::kTooLarge, "tensor \"t\": more than 16 numbers");
}

TEST(SafetensorsReader, LimitsTheLengthOfNames) {
  EXPECT_TRUE(opens('{' + tensor_entry(std::string(256, 'n'), "U8", "1", 0, 1) + '}', 1));
  expect_refused('{' + tensor_entry(std::string(257, 'n'), "U8", "1", 0, 1) + '}', 1,
                 ErrorCode::kTooLarge, "header: a name of 257 bytes");
  expect_refused(R"({"__metadata__":{")" + std::string(257, 'n') + R"(":""}})", 1,
                 ErrorCode::kTooLarge, "metadata: a name of 257 bytes");
}

TEST(SafetensorsReader, RefusesNulInNames) {
  expect_corrupt('{' + tensor_entry("a\\u0000b", "F32", "1", 0, 4) + '}',
                 "header: a name that holds a NUL");
  expect_corrupt(R"({"__metadata__":{"\u0000":""}})", "metadata: a name that holds a NUL");
}

TEST(SafetensorsReader, LimitsTheLengthOfMetadataValues) {
  const auto header = [](std::size_t size) {
    return R"({"__metadata__":{"k":")" + std::string(size, 'v') + R"("}})";
  };
  EXPECT_TRUE(opens(header(1 << 20), 0));
  expect_refused(header((1 << 20) + 1), 0, ErrorCode::kTooLarge,
                 "metadata \"k\": a value of 1048577 bytes");
}

TEST(SafetensorsReader, LimitsTheNumberOfTensors) {
  std::string header = "{";
  for (int i = 0; i < 65'536; ++i) header += tensor_entry(std::to_string(i), "U8", "0", 0, 0) + ',';
  expect_refused(header + tensor_entry("t", "U8", "0", 0, 0) + '}', 0, ErrorCode::kTooLarge,
                 "header: more than 65536 tensors");
  header.back() = '}';
  EXPECT_TRUE(opens(header, 0));
}

TEST(SafetensorsReader, LimitsTheNumberOfMetadataKeys) {
  std::string header = R"({"__metadata__":{)";
  for (int i = 0; i < 65'537; ++i) header += '"' + std::to_string(i) + R"(":"",)";
  header.back() = '}';
  expect_refused(header + '}', 0, ErrorCode::kTooLarge, "metadata: more than 65536 keys");
}

TEST(SafetensorsReader, RefusesUnknownDtypeByName) {
  expect_refused('{' + tensor_entry("t", "F128\\u001b[2J", "1", 0, 4) + '}', 4,
                 ErrorCode::kUnsupported, "tensor \"t\": dtype \"F128?[2J\" is unknown");
}

TEST(SafetensorsReader, RefusesSizeThatDoesNotMatchItsShape) {
  expect_corrupt('{' + tensor_entry("t", "F32", "2", 0, 4) + '}',
                 "tensor \"t\": bytes 0 to 4 where its shape needs 8 bytes");
  expect_corrupt('{' + tensor_entry("t", "F16", "1", 0, 4) + '}',
                 "tensor \"t\": bytes 0 to 4 where its shape needs 2 bytes");
}

TEST(SafetensorsReader, RefusesSizeThatWrapsAround) {
  // 2^32 * 2^32 comes out as 0, which the empty range would match.
  expect_corrupt('{' + tensor_entry("t", "U8", "4294967296,4294967296", 0, 0) + '}',
                 "tensor \"t\": its size does not fit 64 bits");
  expect_corrupt('{' + tensor_entry("t", "F64", "67108864,4294967296", 0, 0) + '}',
                 "tensor \"t\": its size does not fit 64 bits");
}

TEST(SafetensorsReader, RefusesSizeThatIsNoWholeNumberOfBytes) {
  expect_corrupt('{' + tensor_entry("t", "F4", "3", 0, 1) + '}',
                 "tensor \"t\": its size is not a whole number of bytes");
}

TEST(SafetensorsReader, RefusesRangeThatRunsBackwards) {
  expect_corrupt('{' + tensor_entry("t", "F32", "1", 4, 0) + '}',
                 "tensor \"t\": data_offsets run backwards");
}

TEST(SafetensorsReader, RefusesTensorBeyondEndOfFile) {
  expect_refused('{' + tensor_entry("t", "F32", "2", 0, 8) + '}', 7, ErrorCode::kTruncated,
                 "tensor \"t\": bytes 0 to 8 lie beyond the end of the data");
}

TEST(SafetensorsReader, RefusesOverlappingTensors) {
  const std::string a = '{' + tensor_entry("a", "U8", "4", 0, 4) + ',';
  expect_corrupt(a + tensor_entry("b", "U8", "4", 0, 4) + '}',
                 "tensor \"b\": bytes 0 to 4 overlap another tensor");
  expect_corrupt(a + tensor_entry("b", "U8", "1", 3, 4) + '}',
                 "tensor \"b\": bytes 3 to 4 overlap another tensor");
  expect_corrupt(a + tensor_entry("b", "U8", "0", 2, 2) + '}',
                 "tensor \"b\": bytes 2 to 2 overlap another tensor");
}

TEST(SafetensorsReader, RefusesBytesThatBelongToNoTensor) {
  expect_corrupt('{' + tensor_entry("t", "U8", "3", 1, 4) + '}',
                 "data: bytes 0 to 1 have no tensor");
  expect_corrupt(
      '{' + tensor_entry("a", "U8", "1", 0, 1) + ',' + tensor_entry("b", "U8", "2", 2, 4) + '}',
      "data: bytes 1 to 2 have no tensor");
  // Two more than needed, so that the file is still wrong when one byte shorter.
  expect_refused('{' + tensor_entry("t", "U8", "4", 0, 4) + '}', 6, ErrorCode::kCorrupt,
                 "data: bytes 4 to 6 have no tensor");
  expect_refused("{}", 2, ErrorCode::kCorrupt, "data: bytes 0 to 2 have no tensor");
}

// --- the index

// Reads by position what the reader takes from memory: both must say the same.
void expect_same(const Bytes& file) {
  const auto read = read_safetensors(file);
  const auto index = index_safetensors(*memory_source(file));
  ASSERT_EQ(read.ok(), index.ok());
  if (!read) {
    EXPECT_EQ(index.error().code, read.error().code);
    if (file.size() < 8) return;  // each says in its own way that there is no length
    EXPECT_EQ(index.error().message, read.error().message);
    return;
  }
  EXPECT_EQ(index->metadata, read->metadata);
  ASSERT_EQ(index->tensors.size(), read->tensors.size());
  for (const auto& [name, view] : read->tensors) {
    const TensorPlace& place = index->tensors.at(name);
    EXPECT_EQ(place.type, view.type) << name;
    EXPECT_EQ(place.type_name, view.type_name) << name;
    EXPECT_EQ(place.shape, view.shape) << name;
    EXPECT_EQ(place.bytes, view.bytes.size()) << name;
    EXPECT_EQ(file.data() + place.offset, view.bytes.data()) << name;
  }
}

TEST(SafetensorsIndex, SaysWhatTheReaderSays) {
  expect_same(test::small_safetensors());
  expect_same(safetensors_file("{}", 0));
  expect_same(safetensors_file('{' + tensor_entry("scalar", "F32", "", 0, 4) + ',' +
                                   tensor_entry("empty", "F32", "0", 4, 4) + ',' +
                                   tensor_entry("rest", "U8", "2", 4, 6) + '}',
                               6));
}

TEST(SafetensorsIndex, RefusesWhatTheReaderRefuses) {
  expect_same(safetensors_file("{", 0));
  expect_same(safetensors_file("[]", 0));
  expect_same(safetensors_file("{}", 2));
  expect_same(safetensors_file('{' + tensor_entry("t", "F128", "1", 0, 4) + '}', 4));
  expect_same(safetensors_file('{' + tensor_entry("t", "F32", "2", 0, 8) + '}', 7));
  expect_same(safetensors_file('{' + tensor_entry("t", "F32", "2", 0, 4) + '}', 4));
  ByteWriter out;
  out.write<std::uint64_t>(100'000'001);
  expect_same(out.bytes());
}

TEST(SafetensorsIndex, RefusesEveryPrefix) {
  const Bytes file = test::small_safetensors();
  for (std::size_t size = 0; size < file.size(); ++size) {
    Bytes prefix(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    expect_same(prefix);
    EXPECT_FALSE(index_safetensors(*memory_source(std::move(prefix))).ok()) << size << " bytes";
  }
}

TEST(SafetensorsIndex, SaysTheSameOfEveryFlippedBit) {
  const Bytes file = test::small_safetensors();
  for (std::size_t bit = 0; bit < 8 * file.size(); bit += test::bit_step()) {
    Bytes flipped = file;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    expect_same(flipped);
  }
}

TEST(SafetensorsIndex, ReadsNoTensor) {
  const std::size_t n_reads =
      test::fail_every_read(test::small_safetensors(), [](const ByteSource& source) {
        const auto index = index_safetensors(source);
        if (index) return;
        EXPECT_EQ(index.error().code, ErrorCode::kIo);
      });
  EXPECT_EQ(n_reads, 2u);  // the length and the header
}

// --- headers

TEST(SafetensorsHeader, IsReadBack) {
  const std::vector<NewTensor> tensors = {{"b", "BF16", {2, 3}},
                                          {"a", "F32", {2}},
                                          {"scalar", "I32", {}},
                                          {"empty", "F32", {0}},
                                          {"last", "U8", {3}}};
  const std::map<std::string, std::string> metadata = {{"k", "v \"quoted\"\n"}, {"0.0", ""}};
  Bytes file = make_safetensors_header(tensors, metadata);
  const std::size_t header = file.size();
  EXPECT_EQ(header % 8, 0u);
  file.resize(header + 12 + 8 + 4 + 0 + 3);
  const auto read = read_safetensors(file);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->metadata, metadata);
  ASSERT_EQ(read->tensors.size(), tensors.size());
  const std::byte* at = file.data() + header;
  for (const NewTensor& tensor : tensors) {
    const TensorView& view = read->tensors.at(tensor.name);
    EXPECT_EQ(view.type_name, tensor.type_name);
    EXPECT_EQ(view.shape, tensor.shape);
    EXPECT_EQ(view.bytes.data(), at) << tensor.name;
    at += view.bytes.size();
  }
}

TEST(SafetensorsHeader, IsWrittenInTheOrderGiven) {
  const Bytes header = make_safetensors_header({{"b", "U8", {2}}, {"a", "F16", {1, 4}}}, {});
  const std::string text(reinterpret_cast<const char*>(header.data()) + 8, header.size() - 8);
  EXPECT_TRUE(text.starts_with(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                               R"("a":{"dtype":"F16","shape":[1,4],"data_offsets":[2,10]}})"))
      << text;
}

TEST(SafetensorsHeader, IsWrittenWithoutTensors) {
  EXPECT_TRUE(read_safetensors(make_safetensors_header({}, {})).ok());
  EXPECT_EQ(read_safetensors(make_safetensors_header({}, {{"k", "v"}}))->metadata.at("k"), "v");
}

TEST(SafetensorsHeader, ReplacesWhatIsNoUtf8) {
  const auto read = read_safetensors(make_safetensors_header({}, {{"k", "a\xff"}}));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->metadata.at("k"), "a\xef\xbf\xbd");
}

}  // namespace safetensors_test
}  // namespace tqcache::tensors
