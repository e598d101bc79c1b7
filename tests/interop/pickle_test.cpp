// The interpreter of pickles: what CPython writes, what an attacker writes, and damage.

#include "tqcache/interop/turbomlx/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "interop/turbomlx_files.h"
#include "support/matchers.h"

namespace tqcache::interop {
namespace pickle_test {

using ::testing::HasSubstr;
using Kind = Value::Kind;

// Opcodes as C++ texts, with zeros in them.
template <std::size_t kSize>
std::string code(const char (&text)[kSize]) {
  return std::string(text, kSize - 1);
}

Result<Pickle> read(const std::string& text) {
  const ByteView bytes = as_bytes(text);
  return read_pickle(*memory_source(Bytes(bytes.begin(), bytes.end())));
}

const std::string kStart = code("\x80\x04");

void expect_error(const std::string& text, ErrorCode error, const std::string& message) {
  EXPECT_THAT(read(text), test::FailsWith(error, HasSubstr(message)));
}

// One value, by the opcodes that push it.
Value value_of(const std::string& opcodes) {
  const auto pickle = read(kStart + opcodes + ".");
  EXPECT_TRUE(pickle.ok()) << (pickle.ok() ? "" : pickle.error().message);
  return pickle.ok() ? pickle->tree.at(pickle->tree.root) : Value{};
}

TEST(Pickle, ReadsNumbers) {
  EXPECT_EQ(value_of("N").kind, Kind::kNone);
  EXPECT_EQ(value_of("\x88").integer, 1);
  EXPECT_EQ(value_of("\x89").kind, Kind::kBool);
  EXPECT_EQ(value_of(code("K\xff")).integer, 255);
  EXPECT_EQ(value_of(code("M\x01\x02")).integer, 513);
  EXPECT_EQ(value_of(code("J\xfe\xff\xff\xff")).integer, -2);
  EXPECT_EQ(value_of(code("\x8a\x00")).integer, 0);
  EXPECT_EQ(value_of(code("\x8a\x01\xff")).integer, -1);
  EXPECT_EQ(value_of(code("\x8a\x05\x00\x00\x00\x00\x01")).integer, std::int64_t{1} << 32);
  EXPECT_EQ(value_of(code("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80")).integer, INT64_MIN);
  EXPECT_EQ(value_of(code("G\x3f\xf8\x00\x00\x00\x00\x00\x00")).number, 1.5);
}

TEST(Pickle, ReadsTextsAndLeavesBytesInTheFile) {
  EXPECT_EQ(value_of(code("\x8c\x02"
                          "ab"))
                .text,
            "ab");
  EXPECT_EQ(value_of(code("X\x01\x00\x00\x00z")).text, "z");
  EXPECT_EQ(value_of(code("\x8d\x01\x00\x00\x00\x00\x00\x00\x00z")).text, "z");
  for (const std::string& bytes :
       {code("C\x02hi"), code("B\x02\x00\x00\x00hi"), code("\x8e\x02\0\0\0\0\0\0\0hi"),
        code("\x96\x02\0\0\0\0\0\0\0hi")}) {
    const Value value = value_of(bytes);
    EXPECT_EQ(value.kind, Kind::kBytes);
    EXPECT_EQ(value.bytes.size, 2u);
    EXPECT_EQ(value.bytes.offset, kStart.size() + bytes.size() - 2);
  }
}

TEST(Pickle, ReadsCollections) {
  EXPECT_EQ(value_of("}").kind, Kind::kDict);
  EXPECT_EQ(value_of("]").kind, Kind::kList);
  EXPECT_EQ(value_of(")").kind, Kind::kTuple);
  EXPECT_EQ(value_of("N\x85").items.size(), 1u);
  EXPECT_EQ(value_of("NN\x86").items.size(), 2u);
  EXPECT_EQ(value_of("NNN\x87").items.size(), 3u);
  EXPECT_EQ(value_of("(NNNNt").items.size(), 4u);
  EXPECT_EQ(value_of("](NNe").items.size(), 2u);
  EXPECT_EQ(value_of("]NaNa").items.size(), 2u);
  EXPECT_EQ(value_of("}NNs").items.size(), 2u);
  EXPECT_EQ(value_of("}(NNNNu").items.size(), 4u);
}

TEST(Pickle, RemembersValues) {
  EXPECT_EQ(value_of(code("(K\x07\x94h\x00t")).items.size(), 2u);
  EXPECT_EQ(value_of(code("(K\x07q\x05h\x05t")).items.size(), 2u);
  EXPECT_EQ(value_of(code("(K\x07r\x05\x01\x00\x00j\x05\x01\x00\x00t")).items.size(), 2u);
}

// A list that contains itself is harmless: nothing walks values without end.
TEST(Pickle, ReadsAListInItself) {
  const auto pickle = read(kStart + code("]\x94h\x00"
                                         "a."));
  ASSERT_TRUE(pickle.ok()) << pickle.error().message;
  EXPECT_EQ(pickle->tree.at(pickle->tree.root).items[0], pickle->tree.root);
}

// --- arrays

const std::string kDtype = code(
    "\x8c\x05numpy\x8c\x05"
    "dtype\x93\x8c\x02"
    "f4\x89\x88\x87R(K\x03\x8c\x01<NNNJ\xff\xff\xff\xff"
    "J\xff\xff\xff\xffK\x00tb");
const std::string kFromBuffer = code("\x8c\x12numpy.core.numeric\x8c\x0b_frombuffer\x93");
const std::string kReconstruct = code(
    "\x8c\x15numpy.core.multiarray\x8c\x0c_reconstruct\x93\x8c\x05numpy\x8c\x07ndarray\x93"
    "K\x00\x85"
    "C\x01"
    "b\x87R");

TEST(Pickle, ReadsAnArrayOfProtocol5) {
  const Value value = value_of(kFromBuffer + code("(\x96\x08\0\0\0\0\0\0\0") + "abcdefgh" + kDtype +
                               code("K\x02\x85\x8c\x01"
                                    "CtR"));
  ASSERT_EQ(value.kind, Kind::kArray);
  EXPECT_EQ(value.array->type, tensors::TensorType::kF32);
  EXPECT_EQ(value.array->shape, std::vector<std::uint64_t>{2});
  EXPECT_EQ(describe(*value.array), "\"f4\" [2]");
}

TEST(Pickle, ReadsAnArrayOfEarlierProtocols) {
  const Value value = value_of(kReconstruct + "(K\x01" + code("K\x01K\x02\x86") + kDtype +
                               code("\x89"
                                    "C\x08"
                                    "abcdefghtb"));
  ASSERT_EQ(value.kind, Kind::kArray);
  EXPECT_EQ(value.array->shape, (std::vector<std::uint64_t>{1, 2}));
}

TEST(Pickle, ReadsBytesOfProtocol2) {
  const std::string encode = code("c_codecs\nencode\n");
  const Value value = value_of(encode + code("X\x05\x00\x00\x00"
                                             "a\xc2\x80\xc3\xbfX\x06\0\0\0latin1\x86R"));
  ASSERT_EQ(value.kind, Kind::kBytes);
  ASSERT_NE(value.bytes.memory, nullptr);
  EXPECT_EQ(*value.bytes.memory, (Bytes{std::byte{'a'}, std::byte{0x80}, std::byte{0xff}}));
  EXPECT_EQ(value_of(code("c__builtin__\nbytes\n)R")).bytes.size, 0u);
  for (const std::string& text :
       {code("X\x03\0\0\0\xe2\x82\xac"), code("X\x01\0\0\0\xc3"), code("X\x02\0\0\0\xc3z")}) {
    expect_error(kStart + encode + text + code("X\x06\0\0\0latin1\x86R."), ErrorCode::kCorrupt,
                 "a text that is not Latin-1");
  }
}

TEST(Pickle, RefusesArraysThatItsReadersWouldNotKnow) {
  const std::string dtype = code(
      "\x8c\x05numpy\x8c\x05"
      "dtype\x93");
  expect_error(kStart + dtype + code("\x8c\x02O8\x89\x88\x87R."), ErrorCode::kUnsupported,
               "arrays of dtype \"O8\"");
  expect_error(kStart + dtype +
                   code("\x8c\x02"
                        "f4\x89\x88\x87R(K\x03\x8c\x01>tb."),
               ErrorCode::kUnsupported, "arrays of dtype \">f4\"");
  const std::string start =
      kStart + kFromBuffer + code("(\x96\x08\0\0\0\0\0\0\0") + "abcdefgh" + kDtype;
  expect_error(start + code("K\x02\x85\x8c\x01KtR."), ErrorCode::kUnsupported,
               "an array in order \"K\"");
  expect_error(start + code("K\x02K\x01\x86\x8c\x01"
                            "CtRR."),
               ErrorCode::kCorrupt, "stack");
  expect_error(start + code("K\x03\x85\x8c\x01"
                            "CtR."),
               ErrorCode::kCorrupt, "an array of 8 bytes where its shape asks for 12");
  expect_error(start + code("(\x8a\x08\0\0\0\0\0\0\0\x10\x8a\x08\0\0\0\0\0\0\0\x10t\x8c\x01"
                            "CtR."),
               ErrorCode::kCorrupt, "more than there can be");
  expect_error(start + code("\x8a\x01\xff\x85\x8c\x01"
                            "CtR."),
               ErrorCode::kCorrupt, "a dimension that is no number");
  expect_error(start + "(" + std::string(33, 'N') +
                   code("t\x8c\x01"
                        "CtR."),
               ErrorCode::kCorrupt, "too many dimensions");
  const std::string sixteen =
      kStart + kFromBuffer + code("(\x96\x10\0\0\0\0\0\0\0") + "abcdefghabcdefgh" + kDtype;
  expect_error(sixteen + code("K\x02K\x02\x86\x8c\x01"
                              "FtR."),
               ErrorCode::kUnsupported, "an array in Fortran's order");
  EXPECT_TRUE(read(sixteen + code("K\x01K\x04\x86\x8c\x01"
                                  "FtR."))
                  .ok());
}

TEST(Pickle, RefusesCallsWithOtherArguments) {
  for (const std::string& text :
       {kFromBuffer + ")R", code("cnumpy\ndtype\n)R"), kReconstruct.substr(0, 38) + ")R",
        code("c_codecs\nencode\n)R"), code("cbuiltins\nbytes\nN\x85R"), kDtype + "Nb",
        kReconstruct + "Nb", code("NNb"), code("N)R"), code("cnumpy\ndtype\nNR")}) {
    expect_error(kStart + text + ".", ErrorCode::kCorrupt, "");
  }
  expect_error(kStart + code("cnumpy\nndarray\n)R."), ErrorCode::kUnsupported, "a call of ndarray");
}

// --- attacks

TEST(Pickle, ImportsNothing) {
  expect_error(code("\x80\x02"
                    "cos\nsystem\nX\x02\0\0\0id\x85R."),
               ErrorCode::kUnsupported, "would import \"os.system\"");
  expect_error(code("\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R."),
               ErrorCode::kUnsupported, "would import \"posix.system\"");
  expect_error(kStart + code("cbuiltins\neval\n."), ErrorCode::kUnsupported, "builtins.eval");
  expect_error(kStart + code("ctorch._utils\n_rebuild_tensor_v2\n."), ErrorCode::kUnsupported,
               "torch._utils._rebuild_tensor_v2");
  expect_error(kStart + code("cnumpy\x1b[2J\nx\n."), ErrorCode::kUnsupported, "\"numpy?[2J.x\"");
  expect_error(kStart + "c" + std::string(300, 'x'), ErrorCode::kCorrupt, "a name without an end");
  expect_error(kStart + code("NN\x93."), ErrorCode::kCorrupt, "a name that is no text");
}

TEST(Pickle, BuildsNoOtherObjects) {
  for (const char opcode :
       {'i', 'o', '\x81', '\x92', 'P', 'Q', '\x82', '\x98', '\x97', '\x8f', 'I', 'F',
        'V', 'S', 'U',    'T',    '0', '1', '2',    'l',    'd',    'p',    'g'}) {
    const auto pickle = read(kStart + "NN" + opcode + ".");
    ASSERT_FALSE(pickle.ok());
    EXPECT_EQ(pickle.error().code, ErrorCode::kUnsupported) << opcode;
  }
}

TEST(Pickle, HoldsItsLimits) {
  const std::string deep(65, '(');
  expect_error(kStart + deep, ErrorCode::kTooLarge, "nested too deep");
  expect_error(kStart + std::string((1 << 18) + 1, 'N'), ErrorCode::kTooLarge, "too many values");
  std::string memo = kStart + "N\x94";
  for (int i = 0; i < (1 << 20); ++i) memo += code("h\x00");
  expect_error(memo, ErrorCode::kTooLarge, "too many opcodes");
  expect_error(kStart + code("\x8d\0\0\0\x05\0\0\0\0x"), ErrorCode::kTruncated, "");
  expect_error(kStart + code("\x8e\xff\xff\xff\xff\xff\xff\xff\xff"), ErrorCode::kTruncated, "");
  expect_error(kStart + code("\x95\xff\xff\xff\xff\xff\xff\xff\x7f"), ErrorCode::kTruncated, "");
  expect_error(kStart + code("\x8a\x09"), ErrorCode::kUnsupported, "more than 64 bits");
}

// Spelling the same text as bytes again and again would make much of little.
TEST(Pickle, CountsWhatIsSpelledAsText) {
  std::string text = kStart + code("X\0\0\x10\0") + std::string(1 << 20, 'a') + code("q\0");
  text += code("c_codecs\nencode\nq\x01X\x06\0\0\0latin1q\x02");
  for (int i = 0; i < 70; ++i) text += code("h\x01h\x00h\x02\x86R");
  expect_error(text, ErrorCode::kTooLarge, "more text than 64 MiB");
}

TEST(Pickle, RefusesWhatIsNoPickle) {
  expect_error("", ErrorCode::kTruncated, "");
  expect_error("(lp0\n.", ErrorCode::kCorrupt, "no pickle of protocol 2 or later");
  expect_error(code("\x80\x01N."), ErrorCode::kUnsupported, "a pickle of protocol 1");
  expect_error(code("\x80\x06N."), ErrorCode::kUnsupported, "a pickle of protocol 6");
  expect_error(kStart + ".", ErrorCode::kCorrupt, "a stack without values");
  expect_error(kStart + "NN.", ErrorCode::kCorrupt, "values left on the stack");
  expect_error(kStart + "N(N.", ErrorCode::kCorrupt, "values left on the stack");
  expect_error(kStart + "N.N", ErrorCode::kCorrupt, "1 bytes after the end of the pickle");
  expect_error(kStart + "t.", ErrorCode::kCorrupt, "no mark");
  expect_error(kStart + "N(\x85.", ErrorCode::kCorrupt, "a stack without values");
  expect_error(kStart + "NNa.", ErrorCode::kCorrupt, "no list");
  expect_error(kStart + "NNNs.", ErrorCode::kCorrupt, "no dict");
  expect_error(kStart + "}(Nu.", ErrorCode::kCorrupt, "a key without a value");
  expect_error(kStart + code("h\x07."), ErrorCode::kCorrupt, "no memo entry 7");
  expect_error(kStart + "\x94.", ErrorCode::kCorrupt, "a stack without values");
}

}  // namespace pickle_test
}  // namespace tqcache::interop
