// Files that claim much and hold little are refused before they cost memory or time.

#include <gtest/gtest.h>
#include <zstd.h>

#include <fstream>

#include "file_fixture.h"
#include "support/any_memory.h"
#include "tqcache/format/manifest_rules.h"

namespace tqcache::test {
namespace limits_test {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// How far the peak of this process's memory has risen since this object was made, in bytes. (0
// where the kernel does not tell.)
class PeakMemory {
 public:
  PeakMemory() : start_(reset()) {}
  std::uint64_t grown() const { return std::max(now(), start_) - start_; }

 private:
  static std::uint64_t reset() {
    std::ofstream("/proc/self/clear_refs") << "5";
    return now();
  }
  static std::uint64_t now() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      std::uint64_t kib = 0;
      if (word == "VmHWM:" && status >> kib) return kib * 1024;
    }
    return 0;
  }

  std::uint64_t start_;
};

// Given bytes, then zeros, however many.
class SparseSource : public ByteSource {
 public:
  SparseSource(Bytes start, std::uint64_t size) : start_(std::move(start)), size_(size) {}
  std::uint64_t size() const override { return size_; }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > size_ || out.size() > size_ - offset) return Error{ErrorCode::kTruncated, "end"};
    std::ranges::fill(out, std::byte{0});
    for (std::size_t i = 0; i < out.size() && offset + i < start_.size(); ++i) {
      out[i] = start_[offset + i];
    }
    return {};
  }

 private:
  Bytes start_;
  std::uint64_t size_;
};

SparseSource claimed(std::uint64_t manifest_offset, std::uint64_t file_bytes) {
  Bytes header(format::kHeaderBytes);
  format::HeaderSlot slot;
  slot.manifest_offset = manifest_offset;
  slot.file_bytes = file_bytes;
  std::ranges::copy(format::encode_slot(slot), header.begin());
  return {header, file_bytes};
}

TEST(Limits, RefuseAManifestBeforeItIsRead) {
  for (const std::uint64_t bytes :
       {64 * kMiB + 1, std::uint64_t{1} << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 62}) {
    const PeakMemory memory;
    const SparseSource source = claimed(128, 128 + bytes);
    expect_error(dropped(format::read_cache(source)), ErrorCode::kTooLarge, "a manifest of");
    expect_error(dropped(format::verify_cache(source)), ErrorCode::kTooLarge, "a manifest of");
    EXPECT_LT(memory.grown(), 8 * kMiB);
  }
}

TEST(Limits, LetAManifestOfFullSizeBeRead) {
  expect_error(dropped(format::read_cache(claimed(128, 128 + 64 * kMiB))), ErrorCode::kCorrupt,
               "manifest: checksum mismatch");
}

TEST(Limits, ReachFarIntoALargeFile) {
  const SparseSource source = claimed(std::uint64_t{5} << 30, (std::uint64_t{5} << 30) + 1000);
  expect_error(dropped(format::read_cache(source)), ErrorCode::kCorrupt,
               "manifest: checksum mismatch");
}

// What a manifest says of its sections when nothing but the manifest is true.
Manifest claiming(cache::HeadShape shape, std::size_t n_tokens, std::size_t n_layers) {
  Manifest manifest = info_of(small_file());
  manifest.tokens.assign(n_tokens, 0);
  attention_of(manifest, 0).shape = shape;
  manifest.layers.resize(n_layers, manifest.layers[0]);
  manifest.sections.clear();
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    for (const cache::TensorKind tensor : {cache::TensorKind::kKeys, cache::TensorKind::kValues}) {
      SectionInfo section;
      section.layer = static_cast<std::int64_t>(layer);
      section.tensor = tensor;
      section.raw_bytes =
          2 * static_cast<std::uint64_t>(shape.n_kv_heads * shape.head_dim) * n_tokens;
      manifest.sections.push_back(section);
    }
  }
  return manifest;
}

// All sections hold the same bytes.
Bytes file_claiming(Manifest manifest, const Bytes& stored) {
  Bytes file(format::kHeaderBytes);
  for (SectionInfo& section : manifest.sections) {
    section.compression = Compression::kZstd;
    section.file_offset = file.size();
    section.stored_bytes = stored.size();
    section.checksum = xxh3_128(stored);
    file.insert(file.end(), stored.begin(), stored.end());
    file.resize(format::align_section(file.size()));
  }
  patch(file, kManifestOffsetAt, std::uint64_t{file.size()});
  return with_manifest(std::move(file), std::move(manifest));
}

Bytes frame_of_zeros(std::size_t size) {
  const Bytes zeros(size);
  Bytes frame(ZSTD_compressBound(size));
  frame.resize(ZSTD_compress(frame.data(), frame.size(), zeros.data(), size, 3));
  return frame;
}

TEST(Limits, RefuseAFrameSmallerThanItsShapeBeforeAllocating) {
  // 1024 heads of 1024 components and 256 tokens: 512 MiB a tensor.
  const Bytes file = file_claiming(claiming({1024, 1024}, 256, 1), frame_of_zeros(100));
  ASSERT_LT(file.size(), 3000u);
  const PeakMemory memory;
  expect_refused(file, ErrorCode::kCorrupt, "does not say that it holds 536870912 bytes",
                 {.memory = kAnyMemory});
  EXPECT_LT(memory.grown(), 16 * kMiB);
}

TEST(Limits, CountTheMemoryOfWholeTokenBlocks) {
  // One token: 16 KiB a section in the file, 4 MiB in memory.
  const Bytes file = file_claiming(claiming({64, 128}, 1, 50), frame_of_zeros(64 * 128 * 2));
  ASSERT_LT(file.size(), 30000u);
  const std::uint64_t total = std::uint64_t{100} * 256 * 64 * 128 * 2;
  const PeakMemory memory;
  expect_error(dropped(load(file, {.access = {.memory = MemoryBudget().at_most(total - 1)}})),
               ErrorCode::kTooLarge, std::to_string(total) + " bytes of memory");
  EXPECT_LT(memory.grown(), 16 * kMiB);
}

TEST(Limits, AllowExactlyTheMemoryThatIsAllowed) {
  const cache::Cache cache = CacheBuilder(300).dense({2, 8}).turbo({1, 32}, 4, 3).arrays().build();
  const Bytes file = file_of(cache);
  const std::uint64_t bytes = cache::byte_count(cache).allocated;
  EXPECT_TRUE(load(file, {.access = {.memory = MemoryBudget().at_most(bytes)}}).ok());
  expect_error(dropped(load(file, {.access = {.memory = MemoryBudget().at_most(bytes - 1)}})),
               ErrorCode::kTooLarge, "bytes of memory");
}

TEST(Limits, RefuseMoreLayersThanACacheMayHave) {
  Manifest manifest = info_of(small_file());
  manifest.layers.resize(1025, manifest.layers[0]);
  expect_refused(with_manifest(small_file(), manifest), ErrorCode::kTooLarge, "1025 layers");
}

TEST(Limits, RefuseMoreGapsThanAFileMayHave) {
  const Bytes file = small_file();
  Manifest manifest = info_of(file);
  manifest.gaps.resize(format::kMaxGaps);
  expect_refused(with_manifest(file, manifest), ErrorCode::kCorrupt, "gap 0");
  manifest.gaps.emplace_back();
  expect_refused(with_manifest(file, manifest), ErrorCode::kTooLarge, "1048577 gaps");
}

TEST(Limits, RefuseHiddenTokensThatHaveNoSectionsBeforeTheirMemoryIsTaken) {
  const Bytes file = file_of(CacheBuilder(3).dense({1, 4}).forget_tokens().build());
  Manifest manifest = info_of(file);
  manifest.tokens.assign(cache::kMaxTokens, cache::kUnknownToken);
  const Bytes changed = with_manifest(file, std::move(manifest));
  const PeakMemory memory;
  expect_refused(changed, ErrorCode::kCorrupt, "2 sections where the layers have 131072");
  EXPECT_LT(memory.grown(), kMiB);
}

// A window says how much state a layer may come to have; what it has follows from its tokens.
TEST(Limits, LetAWindowBeFarLargerThanTheCache) {
  const cache::Cache cache = CacheBuilder(3).rotating({{1, 4}, cache::kMaxTokens, 0}).build();
  const Bytes file = file_of(cache);
  const PeakMemory memory;
  EXPECT_EQ(difference(cache, must(load(file))), "");
  EXPECT_LT(memory.grown(), 16 * kMiB);  // all of the window would be 512 MiB
}

// Blocks that it has left take a row each in memory, and nothing else.
TEST(Limits, LetATurboWindowBeFarFromTheFirstToken) {
  const Bytes file =
      file_of(CacheBuilder(600).turbo_rotating({{1, 32}, 300, 0}, 4, 4).forget_tokens().build());
  constexpr std::int64_t kBlocks = 60000;
  Manifest manifest = info_of(file);
  manifest.tokens.assign(600 + 256 * kBlocks, cache::kUnknownToken);
  for (SectionInfo& section : manifest.sections) section.block += kBlocks;
  const std::size_t token_bytes = manifest.tokens.size() * sizeof(std::int32_t);
  const Bytes changed = with_manifest(file, std::move(manifest));
  const PeakMemory memory;
  const cache::Cache cache = must(load(changed));
  EXPECT_LT(memory.grown(), 2 * token_bytes + 32 * kMiB);
  EXPECT_EQ(cache::packed_block_count(cache::attention_of(cache.layers[0])->k), kBlocks + 2);
}

// Layers whose codecs differ in their seeds.
Manifest with_codecs(std::size_t n_layers, const codec::CodecSpec& spec) {
  Manifest manifest = info_of(file_of(CacheBuilder(0).turbo({1, 32}, 4, 4).build()));
  cache::AttentionDesc& first = attention_of(manifest, 0);
  first.shape.head_dim = spec.head_dim;
  first.k.quant->parts = must(codec::make_parts(spec));
  first.k.quant->mode = spec.mode;
  first.v = first.k;
  manifest.layers.assign(n_layers, cache::LayerDesc(first));
  for (std::size_t i = 0; i < n_layers; ++i) {
    k_of(manifest, i).parts[0].seed += i;
    v_of(manifest, i).parts[0].seed += i;
  }
  return manifest;
}

TEST(Limits, CountThePartsOfDifferentCodecs) {
  const Bytes empty = file_of(CacheBuilder(0).build());
  const codec::CodecSpec two_parts{.head_dim = 32, .mode = codec::Mode::kProd, .bits = 2};
  EXPECT_TRUE(load(with_manifest(empty, with_codecs(512, two_parts))).ok());
  expect_refused(with_manifest(empty, with_codecs(513, two_parts)), ErrorCode::kTooLarge,
                 "codecs: 1026 different parts");
}

TEST(Limits, CountTheMatricesOfDifferentCodecs) {
  const Bytes empty = file_of(CacheBuilder(0).build());
  const codec::CodecSpec dense{
      .head_dim = 1024, .bits = 1, .rotation = codec::TransformKind::kDenseQr};
  const PeakMemory memory;
  expect_refused(with_manifest(empty, with_codecs(9, dense)), ErrorCode::kTooLarge,
                 "codecs: matrices of 9437184 values");
  EXPECT_LT(memory.grown(), 16 * kMiB);
  EXPECT_TRUE(info_of(with_manifest(empty, with_codecs(8, dense))).layers.size() == 8);
}

// Nine matrices of 4 MiB, each of which a manifest has room for.
TEST(Limits, CountTheMatricesThatAFileBringsAlong) {
  const Bytes empty = file_of(CacheBuilder(0).build());
  const codec::CodecSpec dense{
      .head_dim = 1024, .bits = 1, .rotation = codec::TransformKind::kDenseQr};
  const auto with_matrices = [&](std::size_t n) {
    Manifest manifest = with_codecs(n, dense);
    for (std::size_t i = 0; i < n; ++i) {
      AlignedFloats values(1024 * 1024, 0.0f);
      values[i] = 1;
      codec::PartSpec& spec = k_of(manifest, i).parts[0];
      spec.rotation = codec::TransformKind::kMatrix;
      spec.matrix = must(codec::TransformMatrix::make(std::move(values)));
      v_of(manifest, i).parts = k_of(manifest, i).parts;
    }
    return with_manifest(empty, manifest);
  };
  EXPECT_EQ(info_of(with_matrices(8)).layers.size(), 8u);
  expect_refused(with_matrices(9), ErrorCode::kTooLarge,
                 "layer 8: k: part 0: 1048576 values of a matrix, beyond those of all");
}

TEST(Limits, RefuseAManifestTooLargeToWriteBeforeTheWork) {
  cache::Cache cache = CacheBuilder(0).arrays().build();
  cache.tokens.assign(format::kMaxManifestBytes / 4, 1);
  std::uint64_t calls = 0;
  const auto count = [&](std::uint64_t, std::uint64_t) { return ++calls > 0; };
  expect_error(dropped(format::write_cache_bytes(cache, {}, count)), ErrorCode::kTooLarge,
               "manifest: ");
  EXPECT_EQ(calls, 0u);
}

}  // namespace limits_test
}  // namespace tqcache::test
