// Damages good files in every small way, and in many random ones. Whatever is read afterwards must
// be an error or a result whose views lie inside the file; the sanitizers watch the rest.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "tensors/gguf_builder.h"
#include "tensors/refusal.h"
#include "tensors/safetensors_builder.h"
#include "tqcache/tensors/gguf.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::tensors {
namespace hostile_bytes_test {

using test::ExactCopy;

constexpr int kMutations = 20'000;

void expect_views_inside(const std::map<std::string, TensorView>& tensors, ByteView file) {
  for (const auto& [name, view] : tensors) {
    if (view.bytes.empty()) continue;
    ASSERT_GE(view.bytes.data(), file.data());
    ASSERT_LE(view.bytes.data() + view.bytes.size(), file.data() + file.size());
  }
}

// Reads a copy that ends where `bytes` end; true if they were taken for a good file.
template <class Reader>
bool reads_safely(Reader read, ByteView bytes) {
  const ExactCopy copy(bytes);
  const auto result = read(copy.bytes());
  if (result.ok()) {
    expect_views_inside(result->tensors, copy.bytes());
  } else {
    EXPECT_FALSE(result.error().message.empty());
  }
  return result.ok();
}

template <class Reader>
void expect_every_prefix_refused(Reader read, const Bytes& file) {
  ASSERT_TRUE(reads_safely(read, file));
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(reads_safely(read, ByteView(file).first(size))) << size << " bytes";
  }
}

template <class Reader>
void flip_every_byte(Reader read, const Bytes& file) {
  for (const auto mask : {std::byte{0x80}, std::byte{0x01}}) {
    for (std::size_t i = 0; i < file.size(); ++i) {
      Bytes flipped = file;
      flipped[i] ^= mask;
      reads_safely(read, flipped);
    }
  }
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  Bytes operator()(Bytes file) {
    for (std::size_t n = 1 + below(4); n > 0 && file.size() > 8; --n) mutate(file);
    return file;
  }

 private:
  // Lengths, counts and offsets that arithmetic without checks trips over.
  static constexpr std::array<std::uint64_t, 10> kNumbers = {
      0, 1, 31, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 53, 1ull << 62, 1ull << 63, ~0ull};

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }

  void mutate(Bytes& file) {
    const std::size_t at = below(file.size());
    const auto here = file.begin() + static_cast<std::ptrdiff_t>(at);
    const auto rest = static_cast<std::ptrdiff_t>(std::min<std::size_t>(9, file.size() - at));
    switch (below(5)) {
      case 0:
        file[at] = static_cast<std::byte>(below(256));
        return;
      case 1:
        file.insert(here, static_cast<std::byte>(below(256)));
        return;
      case 2:
        file.erase(here, here + rest);
        return;
      case 3: {
        const std::uint64_t number = kNumbers[below(kNumbers.size())];
        const std::size_t offset = below(file.size() - 8);
        std::memcpy(file.data() + offset, &number, sizeof number);
        return;
      }
      default: {
        const Bytes piece(here, here + rest);
        const std::size_t target = below(file.size() - piece.size() + 1);
        std::memcpy(file.data() + target, piece.data(), piece.size());
      }
    }
  }

  std::mt19937_64 random_;
};

template <class Reader>
void mutate_at_random(Reader read, const Bytes& file) {
  Mutator mutator(20261121);
  int refused = 0;
  for (int i = 0; i < kMutations; ++i) refused += reads_safely(read, mutator(file)) ? 0 : 1;
  EXPECT_GT(refused, kMutations / 4);  // the mutations do reach the rules
}

TEST(GgufHostileBytes, EveryPrefixIsRefused) {
  expect_every_prefix_refused(read_gguf, test::small_gguf());
}

TEST(GgufHostileBytes, NoFlippedByteIsReadOutOfBounds) {
  flip_every_byte(read_gguf, test::small_gguf());
}

TEST(GgufHostileBytes, NoRandomMutationIsReadOutOfBounds) {
  mutate_at_random(read_gguf, test::small_gguf());
}

TEST(SafetensorsHostileBytes, EveryPrefixIsRefused) {
  expect_every_prefix_refused(read_safetensors, test::small_safetensors());
}

TEST(SafetensorsHostileBytes, NoFlippedByteIsReadOutOfBounds) {
  flip_every_byte(read_safetensors, test::small_safetensors());
}

TEST(SafetensorsHostileBytes, NoRandomMutationIsReadOutOfBounds) {
  mutate_at_random(read_safetensors, test::small_safetensors());
}

}  // namespace hostile_bytes_test
}  // namespace tqcache::tensors
