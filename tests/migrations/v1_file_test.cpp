// Reading files of version 1: what was written comes back, and nothing else is taken for a file.

#include "migrations/v1_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <cstring>
#include <functional>
#include <string>

#include "migrations/v1_to_v2.h"
#include "support/any_memory.h"
#include "support/long_tests.h"
#include "support/matchers.h"
#include "support/v1_builder.h"
#include "support/v1_writer.h"

namespace tqcache::test {
namespace v1_file_test {

using migrations::read_v1;
using migrations::V1Entry;
using migrations::V1File;
using migrations::V1Tensor;
using testing::HasSubstr;

Result<V1File> read(const Bytes& bytes) { return read_v1(*memory_source(bytes)); }

void expect_refused(const Bytes& bytes, ErrorCode code, const std::string& message) {
  EXPECT_THAT(read(bytes), test::FailsWith(code, HasSubstr(message)));
}

V1File some_file() {
  return V1Builder(5)
      .dense({1, 32}, V1Dtype::kBf16)
      .turbo({2, 32}, {.mixed = V1Mixed{}})
      .arrays()
      .facts()
      .build();
}

V1File small_file() { return V1Builder(2).dense({1, 4}, V1Dtype::kF16).build(); }

// One tensor, of bytes.
V1File file_of(const V1Tensor& tensor) {
  return {.entries = {{.class_path = "x", .state = {tensor}}}, .metadata = {}};
}

V1Tensor words(std::size_t count) {
  return {"a", V1Dtype::kU32, {count}, AlignedBytes(4 * count, std::byte{7})};
}

// --- good files

TEST(V1File, ComesBackAsItWasWritten) {
  const V1File file = some_file();
  const Bytes bytes = write_v1(file);
  const V1File again = must(read(bytes));
  EXPECT_EQ(again.file_bytes, bytes.size());
  EXPECT_EQ(again.metadata, file.metadata);
  ASSERT_EQ(again.entries.size(), file.entries.size());
  for (std::size_t i = 0; i < file.entries.size(); ++i) {
    const V1Entry& a = again.entries[i];
    const V1Entry& b = file.entries[i];
    EXPECT_EQ(a.class_path, b.class_path);
    EXPECT_EQ(a.meta_state, b.meta_state);
    EXPECT_EQ(a.extra_meta, b.extra_meta);
    ASSERT_EQ(a.state.size(), b.state.size());
    for (std::size_t t = 0; t < a.state.size(); ++t) {
      EXPECT_EQ(a.state[t].name, b.state[t].name);
      EXPECT_EQ(a.state[t].dtype, b.state[t].dtype);
      EXPECT_EQ(a.state[t].shape, b.state[t].shape);
      EXPECT_TRUE(a.state[t].data == b.state[t].data) << b.state[t].name;
    }
  }
}

TEST(V1File, MayHaveNoLayersAndNoFacts) {
  const V1File file = must(read(write_v1({})));
  EXPECT_TRUE(file.entries.empty());
  EXPECT_TRUE(file.metadata.empty());
}

TEST(V1File, IsDetectedByItsIdentifier) {
  EXPECT_TRUE(migrations::looks_like_v1(*memory_source(write_v1(small_file()))));
  Bytes other = write_v1(small_file());
  other[7] = std::byte{'2'};
  EXPECT_FALSE(migrations::looks_like_v1(*memory_source(other)));
  expect_refused(other, ErrorCode::kCorrupt, "not a file of version 1");
  other.resize(7);
  EXPECT_FALSE(migrations::looks_like_v1(*memory_source(other)));
}

// --- damage

TEST(V1File, IsRefusedWithAnyBitFlipped) {
  Bytes bytes = write_v1(small_file());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += bit_step()) {
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    ASSERT_FALSE(read(bytes).ok()) << "bit " << bit;
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
  }
}

TEST(V1File, IsRefusedWhenCutOrLonger) {
  const Bytes bytes = write_v1(small_file());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto file = read(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)));
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_EQ(file.error().code, size < 40 ? ErrorCode::kTruncated : ErrorCode::kCorrupt) << size;
  }
  for (std::size_t more = 1; more <= 16; ++more) {
    Bytes longer = bytes;
    longer.resize(bytes.size() + more);
    ASSERT_FALSE(read(longer).ok()) << more;
  }
}

// Who writes the digest anew gets as far as the structure, and no farther than that allows.
TEST(V1File, GivesAnErrorOrACacheWhateverByteIsChanged) {
  const Bytes good = write_v1(
      V1Builder(3).turbo({1, 16}, {.bits = 2, .wht = true}).arrays().fact("model", "m").build());
  for (std::size_t at = 0; at + 32 < good.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      Bytes bytes = good;
      bytes[at] ^= std::byte(flip);
      seal_v1(bytes);
      const auto file = read_v1(*memory_source(bytes), MemoryBudget().at_most(1 << 20));
      if (!file) continue;
      const auto migration = migrations::v1_to_v2(*file);
      if (!migration) continue;
      const auto checked = migrations::check_migrated(*file, migration->cache, 1);
      EXPECT_TRUE(checked.ok()) << "byte " << at << ": " << checked.error().message;
    }
  }
}

TEST(V1File, OfAnotherSchemaVersionIsUnsupported) {
  expect_refused(write_v1(small_file(), {.schema_version = 2}), ErrorCode::kUnsupported,
                 "schema_version 2");
}

// --- tensors that lie

TEST(V1File, RefusesAnUnknownDtype) {
  const auto six = [](const V1Tensor&) { return 6; };
  expect_refused(write_v1(file_of(words(3)), {.dtype = six}), ErrorCode::kCorrupt,
                 "layer 0: tensor \"a\": unknown dtype 6");
}

TEST(V1File, RefusesFramesOfAnotherSize) {
  const auto longer = [](const V1Tensor& tensor) {
    return zstd_frame(Bytes(tensor.data.size() + 1));
  };
  expect_refused(write_v1(file_of(words(3)), {.frame = longer}), ErrorCode::kCorrupt,
                 "does not say that it holds 12 bytes");
}

TEST(V1File, RefusesBytesBehindAFrame) {
  const auto two = [](const V1Tensor& tensor) {
    Bytes frame = zstd_frame(tensor.data);
    const Bytes again = frame;
    frame.insert(frame.end(), again.begin(), again.end());
    return frame;
  };
  expect_refused(write_v1(file_of(words(3)), {.frame = two}), ErrorCode::kCorrupt,
                 "behind the frame");
  const auto one_byte = [](const V1Tensor& tensor) {
    Bytes frame = zstd_frame(tensor.data);
    frame.push_back(std::byte{0});
    return frame;
  };
  expect_refused(write_v1(file_of(words(3)), {.frame = one_byte}), ErrorCode::kCorrupt, "zstd");
}

TEST(V1File, RefusesSkippableFrames) {
  const auto skippable = [](const V1Tensor&) {
    return Bytes{std::byte{0x50}, std::byte{0x2a}, std::byte{0x4d}, std::byte{0x18},
                 std::byte{0},    std::byte{0},    std::byte{0},    std::byte{0}};
  };
  expect_refused(write_v1(file_of(words(3)), {.frame = skippable}), ErrorCode::kCorrupt,
                 "does not say");
}

TEST(V1File, RefusesFramesThatDoNotSayTheirSize) {
  const auto silent = [](const V1Tensor& tensor) {
    ZSTD_CCtx* context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
    Bytes frame(ZSTD_compressBound(tensor.data.size()));
    frame.resize(ZSTD_compress2(context, frame.data(), frame.size(), tensor.data.data(),
                                tensor.data.size()));
    ZSTD_freeCCtx(context);
    return frame;
  };
  expect_refused(write_v1(file_of(words(300)), {.frame = silent}), ErrorCode::kCorrupt,
                 "does not say");
}

TEST(V1File, RefusesWhatIsNoFrame) {
  const auto raw = [](const V1Tensor& tensor) {
    return Bytes(tensor.data.begin(), tensor.data.end());
  };
  expect_refused(write_v1(file_of(words(3)), {.frame = raw}), ErrorCode::kCorrupt, "zstd");
  const auto nothing = [](const V1Tensor&) { return Bytes(); };
  expect_refused(write_v1(file_of(words(3)), {.frame = nothing}), ErrorCode::kCorrupt, "zstd");
}

TEST(V1File, RefusesBytesOfAnEmptyTensor) {
  const auto some = [](const V1Tensor&) { return zstd_frame(Bytes(4)); };
  expect_refused(write_v1(file_of(words(0)), {.frame = some}), ErrorCode::kCorrupt,
                 "of an empty tensor");
}

TEST(V1File, RefusesBooleansThatAreNeither) {
  expect_refused(write_v1(file_of({"a", V1Dtype::kBool, {3}, AlignedBytes(3, std::byte{2})})),
                 ErrorCode::kCorrupt, "neither 0 nor 1");
}

// A frame's header says what it holds: nobody checks that before it is decompressed.
TEST(V1File, RefusesAFrameTooShortForWhatItSays) {
  constexpr std::uint64_t kClaim = std::uint64_t{1} << 35;
  const auto claiming = [](const V1Tensor&) {
    ByteWriter frame;
    frame.write<std::uint32_t>(0xfd2fb528);  // magic
    frame.write<std::uint8_t>(0xe0);         // content size of 8 bytes; a single segment
    frame.write<std::uint64_t>(kClaim);
    frame.write<std::uint16_t>(1);  // a raw block of no bytes, the last
    frame.write<std::uint8_t>(0);
    return std::move(frame).take();
  };
  V1Tensor tensor = words(0);
  tensor.shape = {kClaim / 4};
  EXPECT_THAT(read_v1(*memory_source(write_v1(file_of(tensor), {.frame = claiming})), kAnyMemory),
              test::FailsWith(ErrorCode::kCorrupt, HasSubstr("cannot hold 34359738368")));
}

TEST(V1File, RefusesShapesBeyondMemory) {
  for (const std::uint64_t size : {std::uint64_t{1} << 40, (std::uint64_t{1} << 32) + 1,
                                   (std::uint64_t{1} << 62) - 1, ~std::uint64_t{0}}) {
    V1Tensor tensor = words(3);
    tensor.shape = {size, 3};
    const auto file = read(write_v1(file_of(tensor)));
    ASSERT_FALSE(file.ok()) << size;
  }
  V1Tensor tensor = words(3);
  tensor.shape = {std::uint64_t{1} << 63, 0, 4};  // nothing, but beyond 64 bits without the zero
  expect_refused(write_v1(file_of(tensor)), ErrorCode::kTooLarge, "beyond 64 bits");
}

TEST(V1File, IsReadWithinTheMemoryThatTheCallerAllows) {
  const Bytes bytes = write_v1(file_of(words(1000)));
  EXPECT_TRUE(read_v1(*memory_source(bytes), MemoryBudget().at_most(4000)).ok());
  EXPECT_THAT(
      read_v1(*memory_source(bytes), MemoryBudget().at_most(3999)),
      test::FailsWith(ErrorCode::kTooLarge, HasSubstr("layer 0: tensor \"a\": 4000 bytes")));
}

// Tables may point to the same bytes: a small file would ask for much memory.
TEST(V1File, CountsSharedBytesAsOftenAsTheyArePointedTo) {
  V1Tensor tensor{"0", V1Dtype::kU8, {3000}, AlignedBytes(3000)};
  Random random(1);
  for (std::byte& byte : tensor.data) byte = std::byte(random.below(256));
  V1File file = file_of(tensor);
  for (int i = 1; i < 8; ++i) {
    tensor.name = std::to_string(i);
    file.entries[0].state.push_back(tensor);
  }
  EXPECT_TRUE(read(write_v1(file)).ok());
  expect_refused(write_v1(file, {.share_frames = true}), ErrorCode::kTooLarge,
                 "more than the file has for all tensors");
}

TEST(V1File, RefusesATensorTwice) {
  V1File file = file_of(words(3));
  file.entries[0].state.push_back(words(4));
  expect_refused(write_v1(file), ErrorCode::kCorrupt, "tensor \"a\": duplicate");
}

TEST(V1File, RefusesAFactTwice) {
  expect_refused(write_v1(V1Builder(0).fact("a", "1").fact("a", "2").build()), ErrorCode::kCorrupt,
                 "fact \"a\": duplicate");
}

// --- limits

TEST(V1File, HasLimits) {
  const auto refused = [](const std::string& message, const std::function<void(V1File&)>& change) {
    V1File file = file_of(words(3));
    file.metadata = {{"key", "value"}};
    change(file);
    expect_refused(write_v1(file), ErrorCode::kTooLarge, message);
  };
  refused("1025 layers", [](V1File& file) { file.entries.resize(1025); });
  refused("1025 bytes of class_path",
          [](V1File& file) { file.entries[0].class_path = std::string(1025, 'x'); });
  refused("65537 bytes of meta_state",
          [](V1File& file) { file.entries[0].meta_state = std::string(65537, ' '); });
  refused("65537 bytes of extra_meta",
          [](V1File& file) { file.entries[0].extra_meta = std::string(65537, ' '); });
  refused("65 tensors", [](V1File& file) {
    for (int i = 1; i < 65; ++i) {
      file.entries[0].state.push_back(words(1));
      file.entries[0].state.back().name = std::to_string(i);
    }
  });
  refused("257 bytes of a tensor's name",
          [](V1File& file) { file.entries[0].state[0].name = std::string(257, 'x'); });
  refused("9 dimensions",
          [](V1File& file) { file.entries[0].state[0].shape = {3, 1, 1, 1, 1, 1, 1, 1, 1}; });
  refused("257 facts", [](V1File& file) {
    for (int i = 1; i < 257; ++i) file.metadata.emplace_back(std::to_string(i), "");
  });
  refused("257 bytes of a fact's key",
          [](V1File& file) { file.metadata[0].first = std::string(257, 'x'); });
}

TEST(V1File, HasTheSameLimitsForItsExtraState) {
  V1File file = file_of(words(3));
  file.entries[0].extra_state = {words(3)};
  EXPECT_TRUE(read(write_v1(file)).ok());
  V1File other = file;
  other.entries[0].extra_state[0].shape = {3, 1, 1, 1, 1, 1, 1, 1, 1};
  expect_refused(write_v1(other), ErrorCode::kTooLarge,
                 "layer 0: extra_state: tensor \"a\": 9 dimensions");
  // Two values of a boolean are seen only when its values are read.
  other = file;
  other.entries[0].extra_state[0] = {"a", V1Dtype::kBool, {3}, AlignedBytes(3, std::byte{2})};
  expect_refused(write_v1(other), ErrorCode::kCorrupt, "layer 0: extra_state: tensor \"a\"");
}

TEST(V1File, LimitsItsSizeBeforeAnythingIsRead) {
  class Endless : public ByteSource {
   public:
    std::uint64_t size() const override { return (std::uint64_t{1} << 31) + 1; }
    Result<void> read_at(std::uint64_t, std::span<std::byte>) const override {
      ADD_FAILURE() << "read";
      return Error{ErrorCode::kIo, "read"};
    }
  };
  const auto file = read_v1(Endless());
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kTooLarge);
}

TEST(V1File, LimitsAllFactsTogether) {
  V1File file;
  file.metadata = {{"a", std::string(migrations::kMaxFactBytes / 2, ' ')},
                   {"b", std::string(migrations::kMaxFactBytes / 2 + 1, ' ')}};
  expect_refused(write_v1(file), ErrorCode::kTooLarge, "beyond those of all facts");
}

TEST(V1File, TakesWhatIsJustWithinThem) {
  V1File file = file_of(words(3));
  file.entries[0].class_path = std::string(1024, 'x');
  file.entries[0].meta_state = std::string(65536, ' ');
  file.entries[0].state[0].name = std::string(256, 'x');
  file.entries[0].state[0].shape = {3, 1, 1, 1, 1, 1, 1, 1};
  file.entries.resize(1024);
  EXPECT_TRUE(read(write_v1(file)).ok());
}

TEST(V1File, LimitsAllTextsOfLayersTogether) {
  V1File file;
  for (int i = 0; i < 257; ++i) {
    file.entries.push_back({.class_path = "x", .meta_state = std::string(65536, ' ')});
  }
  expect_refused(write_v1(file), ErrorCode::kTooLarge,
                 "layer 256: 65536 bytes, beyond those of all");
}

}  // namespace v1_file_test
}  // namespace tqcache::test
