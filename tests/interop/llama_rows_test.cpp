// Rows of a llama.cpp KV cache: what ggml makes of the same values, bit for bit.

#include "tqcache/interop/llama/llama_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "llama_state_file.h"
#include "support/cache_builder.h"

namespace tqcache::test {
namespace llama_rows_test {

using interop::decode_row;
using interop::encode_row;
using interop::find_row_type;
using interop::LlamaRowType;

const std::vector<std::string> kNames = {"f32",  "f16",  "bf16", "q8_0",  "q4_0",
                                         "q4_1", "q5_0", "q5_1", "iq4_nl"};

const LlamaRowType& type_of(std::string_view name) {
  const LlamaRowType* type = find_row_type(name);
  if (type == nullptr) throw std::runtime_error("no row type " + std::string(name));
  return *type;
}

Bytes encoded(std::string_view name, std::span<const float> values) {
  Bytes row(interop::row_bytes(type_of(name), values.size()));
  encode_row(type_of(name), values, row);
  return row;
}

std::vector<float> decoded(std::string_view name, ByteView row) {
  const LlamaRowType& type = type_of(name);
  std::vector<float> values(row.size() / type.block_bytes * type.block_values);
  decode_row(type, row, values);
  return values;
}

std::string hex(ByteView bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15u];
  }
  return text;
}

Bytes from_hex(const std::string& text) {
  Bytes bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(std::byte(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<float> bell_values(std::size_t n, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& value : values) value = random.bell();
  return values;
}

TEST(LlamaRowType, IsFoundByItsNumberAndItsName) {
  const std::vector<std::uint32_t> ids = {0, 1, 30, 8, 2, 3, 6, 7, 20};
  const std::vector<std::uint64_t> sizes = {4, 2, 2, 34, 18, 20, 22, 24, 18};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const LlamaRowType& type = type_of(kNames[i]);
    EXPECT_EQ(type.id, ids[i]) << kNames[i];
    EXPECT_EQ(find_row_type(ids[i]), &type) << kNames[i];
    EXPECT_EQ(type.block_bytes, sizes[i]) << kNames[i];
    EXPECT_EQ(type.block_values, i < 3 ? 1u : 32u) << kNames[i];
    EXPECT_EQ(interop::row_bytes(type, 64), 64 / type.block_values * sizes[i]) << kNames[i];
    EXPECT_EQ(type.dense.has_value(), i < 3) << kNames[i];
  }
}

TEST(LlamaRowType, IsNotOneOfAFork) {
  for (const std::uint32_t id : {4u, 5u, 9u, 10u, 31u, 41u, 42u, 43u, 44u, 0xffffffffu}) {
    EXPECT_EQ(find_row_type(id), nullptr) << id;
  }
  for (const std::string_view name : {"", "F16", "q8", "q4_k", "turbo3"}) {
    EXPECT_EQ(find_row_type(name), nullptr) << name;
  }
}

// What quantize_row_*_ref and ggml_fp32_to_*_row of ggml's own library (llama.cpp b11549) make of
// the same values.
TEST(LlamaRows, AreEncodedAsGgmlEncodesThem) {
  const std::vector<float> values = bell_values(64, 7);
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"q4_0", "9db439e99c8870a6149c75866998da968f37acb3c4068942f1b9e12679d9b3d2165c277c"},
      {"q4_1", "a33414c0c61663778f59eb638a79a667256970c8793358be3bf976bd0e460ed886164c2dd8a2d882"},
      {"q5_0",
       "9db08f5cae7a73b33800f04c1829ea0db111a42d1e6eacaf24a3750e880b0175d162c34de2b166943da94ee"
       "9"},
      {"q5_1",
       "7c3014c070a351858c3bc6fe0fb2e6c615f24dde5bd2e0913b2f58bedb5c8af167f3ed7a0e8c1cb10c2d894b"
       "c145b005"},
      {"q8_0",
       "a624ebe8c1fd7f1c3dbb3019f6fae11a901449a6e9020be275ef120227f6b4f3fc50bb234028f75a76ee6819"
       "eff5535f1aba0cbbc37fff4697d29e5f0faad3b5672e630c"},
      {"iq4_nl", "8fa43aeaad8870a6039d64865998da968f268da3d3058932f0c9e11679e9b2d1164d177d"},
  };
  for (const auto& [name, bytes] : expected) EXPECT_EQ(hex(encoded(name, values)), bytes) << name;
  const std::span<const float> first = std::span(values).first(8);
  EXPECT_EQ(hex(encoded("f16", first)), "2ab6e3b68fbcffa99d401138683c00bd");
  EXPECT_EQ(hex(encoded("bf16", first)), "c5bedcbe92bf40bd1440023f8d3fa0bf");
  EXPECT_EQ(hex(encoded("f32", first.first(1))), "8c3ec5be");
}

// Worked by hand: the scale is 0.5 (and the lowest value -3), the first and the last value of each
// half of the block have codes of their own.
struct HandMade {
  const char* name;
  std::string bytes;
  float first, last_of_half, second_half, last, all_others;
};

TEST(LlamaRows, AreDecodedByTheirDefinition) {
  const std::string codes = "1f" + std::string(28, '0') + "82";
  const std::vector<HandMade> made = {
      {"q4_0", "0038" + codes, 3.5f, -3.0f, -3.5f, 0.0f, -4.0f},
      {"q4_1", "003800c2" + codes, 4.5f, -2.0f, -2.5f, 1.0f, -3.0f},
      {"q5_0", "003800800180" + codes, -0.5f, 1.0f, 0.5f, 4.0f, -8.0f},
      {"q5_1", "003800c200800180" + codes, 4.5f, 6.0f, 5.5f, 9.0f, -3.0f},
      {"iq4_nl", "0038" + codes, 56.5f, -41.5f, -52.0f, 0.5f, -63.5f},
  };
  for (const HandMade& each : made) {
    std::vector<float> expected(32, each.all_others);
    expected[0] = each.first;
    expected[15] = each.last_of_half;
    expected[16] = each.second_half;
    expected[31] = each.last;
    EXPECT_EQ(decoded(each.name, from_hex(each.bytes)), expected) << each.name;
  }
}

TEST(LlamaRows, OfEightBitsAreSignedCodesTimesTheScale) {
  Bytes row(34);
  const std::uint16_t half = 0x3800;
  std::memcpy(row.data(), &half, 2);
  row[2] = std::byte{127};
  row[3] = std::byte{0x80};
  row[33] = std::byte{0xff};
  std::vector<float> expected(32, 0.0f);
  expected[0] = 63.5f;
  expected[1] = -64.0f;
  expected[31] = -0.5f;
  EXPECT_EQ(decoded("q8_0", row), expected);
}

TEST(LlamaRows, ThatWereRoundedOnceStayAsTheyAre) {
  for (const std::string& name : kNames) {
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
      const Bytes once = encoded(name, bell_values(128, seed));
      EXPECT_EQ(hex(encoded(name, decoded(name, once))), hex(once)) << name << ", seed " << seed;
    }
  }
}

TEST(LlamaRows, OfNothingButZerosAreZeros) {
  for (const std::string& name : kNames) {
    const std::vector<float> values = decoded(name, encoded(name, std::vector<float>(64, 0.0f)));
    for (const float value : values) EXPECT_EQ(value, 0.0f) << name;
  }
}

TEST(LlamaRows, OfWhatIsNoNumberAreStillSomeCodes) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float largest = std::numeric_limits<float>::max();
  const float smallest = std::numeric_limits<float>::denorm_min();
  for (const float odd : {infinity, -infinity, nan, largest, -largest, smallest, -smallest}) {
    for (const std::string& name : kNames) {
      std::vector<float> values = bell_values(64, 3);
      values[5] = values[40] = odd;
      EXPECT_EQ(encoded(name, values).size(), interop::row_bytes(type_of(name), 64)) << name;
      EXPECT_EQ(encoded(name, std::vector<float>(32, odd)).size(),
                interop::row_bytes(type_of(name), 32));
    }
  }
}

TEST(LlamaRows, OfAnyBytesCanBeRead) {
  Random random(4);
  for (const std::string& name : kNames) {
    Bytes row(interop::row_bytes(type_of(name), 128));
    for (int round = 0; round < 50; ++round) {
      for (std::byte& byte : row) byte = std::byte(random.below(256));
      EXPECT_EQ(decoded(name, row).size(), 128u);
    }
  }
}

TEST(Hadamard, IsTheWalshMatrixOverTheRootOfItsSize) {
  constexpr int kSize = 64;
  for (int column = 0; column < kSize; ++column) {
    std::vector<float> x(kSize, 0.0f);
    x[static_cast<std::size_t>(column)] = 8.0f;
    interop::hadamard(kSize, x);
    for (int row = 0; row < kSize; ++row) {
      const bool is_odd = __builtin_popcount(static_cast<unsigned>(row & column)) % 2 != 0;
      EXPECT_EQ(x[static_cast<std::size_t>(row)], is_odd ? -1.0f : 1.0f) << row << ", " << column;
    }
  }
}

TEST(Hadamard, IsItsOwnInverseRunByRun) {
  for (const std::int64_t size : {1, 2, 64, 128, 256, 1024}) {
    const std::vector<float> before = bell_values(2048, 9);
    std::vector<float> x = before;
    interop::hadamard(size, x);
    std::vector<float> first(x.begin(), x.begin() + size);
    std::vector<float> alone(before.begin(), before.begin() + size);
    interop::hadamard(size, alone);
    EXPECT_EQ(first, alone) << size;
    interop::hadamard(size, x);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], before[i], 1e-6f) << size;
  }
}

TEST(RotationSize, IsTheLargestPowerOfTwoOfAKeyAndOf64OfAValue) {
  const std::vector<std::vector<std::int64_t>> cases = {
      {64, 64, 64},     {128, 128, 64}, {192, 64, 64}, {256, 256, 64}, {576, 64, 64},
      {1024, 1024, 64}, {32, 0, 0},     {80, 0, 0},    {96, 0, 0},     {100, 0, 0}};
  for (const auto& each : cases) {
    EXPECT_EQ(interop::key_rotation_size(each[0]), each[1]) << each[0];
    EXPECT_EQ(interop::value_rotation_size(each[0]), each[2]) << each[0];
  }
}

template <class T>
std::vector<T> numbers_from_0(std::size_t n) {
  std::vector<T> numbers(n);
  std::iota(numbers.begin(), numbers.end(), T{0});
  return numbers;
}

TEST(HeadOrder, PairsTensorByTensorBecomeTwoHalves) {
  auto x = numbers_from_0<std::uint16_t>(8);
  interop::to_half_split(8, 2, std::as_writable_bytes(std::span(x)));
  EXPECT_EQ(x, (std::vector<std::uint16_t>{0, 2, 4, 6, 1, 3, 5, 7}));
  interop::to_interleaved(8, 2, std::as_writable_bytes(std::span(x)));
  EXPECT_EQ(x, numbers_from_0<std::uint16_t>(8));
}

TEST(HeadOrder, OfWhatRopeDoesNotTurnStays) {
  auto x = numbers_from_0<std::uint32_t>(7);
  interop::to_half_split(4, 4, std::as_writable_bytes(std::span(x)));
  EXPECT_EQ(x, (std::vector<std::uint32_t>{0, 2, 1, 3, 4, 5, 6}));
  interop::to_interleaved(4, 4, std::as_writable_bytes(std::span(x)));
  EXPECT_EQ(x, numbers_from_0<std::uint32_t>(7));
}

TEST(HeadOrder, IsUndoneForEveryNumberOfComponents) {
  for (std::int64_t n_rot = 0; n_rot <= 1024; n_rot += 2) {
    auto x = numbers_from_0<float>(1024);
    interop::to_interleaved(n_rot, 4, std::as_writable_bytes(std::span(x)));
    interop::to_half_split(n_rot, 4, std::as_writable_bytes(std::span(x)));
    EXPECT_EQ(x, numbers_from_0<float>(1024)) << n_rot;
  }
}

struct Agreement {
  std::size_t codes = 0;
  std::size_t equal = 0;
  int farthest = 0;
};

// Layer 0 of the f16 file, rotated and rounded here, against that of the q8_0 file.
Agreement agreement_in_layer_0(bool keys, std::int64_t rotation) {
  const Bytes plain = llama_fixture("alice_f16.ggsn");
  const Bytes rounded = llama_fixture("alice_q8_0.ggsn");
  const LlamaStateFile from = take_apart(plain);
  const LlamaStateFile to = take_apart(rounded);
  std::vector<float> values = decoded("f16", (keys ? from.k : from.v)[0].data);
  if (rotation != 0) interop::hadamard(rotation, values);
  const Bytes ours = encoded("q8_0", values);
  const ByteView theirs = (keys ? to.k : to.v)[0].data;
  Agreement found;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (i % 34 < 2) continue;
    const int distance =
        std::abs(number_at<std::int8_t>(ours, i) - number_at<std::int8_t>(theirs, i));
    ++found.codes;
    found.equal += distance == 0;
    found.farthest = std::max(found.farthest, distance);
  }
  return found;
}

// The f16 file has lost what lies below f16's last place, so some codes fall to the neighbor. Of
// 130,816 each, 129,575 and 129,576 are equal.
TEST(LlamaRows, OfAnotherFileOfTheSamePromptAreNearlyAllTheSame) {
  for (const bool keys : {true, false}) {
    const Agreement found = agreement_in_layer_0(keys, keys ? 128 : 64);
    EXPECT_EQ(found.codes, 130816u);
    EXPECT_GE(found.equal, 129500u) << (keys ? "k" : "v");
    EXPECT_EQ(found.farthest, 1) << (keys ? "k" : "v");
  }
}

TEST(LlamaRows, AgreeWithNothingElseWhenTheRotationIsAnother) {
  EXPECT_LT(agreement_in_layer_0(true, 0).equal, 13000u);
  EXPECT_LT(agreement_in_layer_0(true, 64).equal, 13000u);
  EXPECT_LT(agreement_in_layer_0(false, 0).equal, 13000u);
  EXPECT_LT(agreement_in_layer_0(false, 128).equal, 13000u);
}

}  // namespace llama_rows_test
}  // namespace tqcache::test
