// Small files that claim to be large are refused with little memory, whichever number it is that
// lies. All checksums are right, so that it is the number that has to be caught.

#include <algorithm>

#include "limited_child.h"
#include "support/any_memory.h"
#include "tqcache/cache.h"

namespace tqcache::test {
namespace bombs_test {

// A file of every kind of layer and section, a few KiB large.
Bytes small_file_of_all_kinds(Compression compression = Compression::kNone) {
  CacheBuilder builder(256);
  builder.identity().rope.n_dims = 32;
  cache::TensorPlan plan;
  plan.codec = {.mode = codec::Mode::kMixed, .bits = 2, .outlier_channels = 8, .outlier_bits = 3};
  plan.n_sinks = 1;
  builder.tensors({1, 32}, Dtype::kF16, plan, Dtype::kF16, plan).dense({1, 2}).arrays();
  cache::Cache cache = builder.build();
  const cache::NamedArray zeros{"", Dtype::kF16, {1, 4, 8}, AlignedBytes(64)};
  cache.layers.emplace_back(window_layer({{1, 8}, 4, 1}, zeros, zeros, 256));
  return file_of(cache, compression);
}

void claim_in_header(const Bytes& file, std::size_t slot, const Visit& visit) {
  const std::size_t start = slot * format::kSlotBytes;
  for (const std::uint64_t claim : kClaims) {
    for (std::size_t at = kVersionAt; at < kSlotChecksumAt; at += 4) {
      Bytes bomb = file;
      if (at % 8 == 0) patch(bomb, start + at, claim);
      if (at % 8 != 0) patch(bomb, start + at, static_cast<std::uint32_t>(claim));
      if (bomb == file) continue;
      reseal_slot(bomb, slot);
      visit("header byte " + std::to_string(start + at) + " claims " + std::to_string(claim), bomb);
    }
  }
}

TEST(HugeNumber, InTheHeaderIsRefused) {
  const Bytes file = small_file_of_all_kinds();
  expect_harmless(read_unless_same(file), [&](const Visit& visit) {
    claim_in_header(file, 0, visit);
    // The same in a slot that would count if it were right.
    Bytes newer = file;
    std::copy_n(file.begin(), format::kSlotBytes, newer.begin() + format::kSlotBytes);
    patch(newer, format::kSlotBytes + kGenerationAt, std::uint32_t{2});
    claim_in_header(newer, 1, visit);
  });
}

// Whatever number of the manifest it is: FlatBuffers' own offsets and counts, and all fields.
void claim_anywhere(const Bytes& file, const Visit& visit) {
  for (std::size_t at = manifest_offset_of(file); at + 8 <= file.size(); at += 4) {
    for (const std::uint64_t claim : kClaims) {
      for (const bool wide : {false, true}) {
        Bytes bomb = file;
        if (wide) patch(bomb, at, claim);
        if (!wide) patch(bomb, at, static_cast<std::uint32_t>(claim));
        reseal_header(bomb);
        visit("byte " + std::to_string(at) + " claims " + std::to_string(claim), bomb);
      }
    }
  }
}

TEST(HugeNumber, AnywhereInTheManifestIsRefusedOrChangesNothing) {
  const Bytes file = small_file_of_all_kinds();
  expect_harmless(read_unless_same(file), [&](const Visit& visit) { claim_anywhere(file, visit); });
}

TEST(HugeNumber, InAManifestWithHiddenTokensIsRefusedOrChangesNothing) {
  cache::Cache cache = CacheBuilder(3).dense({1, 4}).build();
  cache::hide_tokens(cache);
  const Bytes file = file_of(cache);
  expect_harmless(read_unless_same(file), [&](const Visit& visit) { claim_anywhere(file, visit); });
}

TEST(HugeNumber, InTheManifestOfAnAppendedFileIsRefusedOrChangesNothing) {
  const Bytes file = golden("appended");
  ASSERT_FALSE(info_of(file).gaps.empty());
  expect_harmless(read_unless_same(file), [&](const Visit& visit) { claim_anywhere(file, visit); });
}

// The numbers of a manifest, each as a place to write a lie to. Fields that are smaller in the file
// keep the lower part of it.
using Numbers = std::vector<std::function<void(std::uint64_t)>>;

auto adder_to(Numbers& numbers) {
  return [&numbers](auto& field) {
    numbers.push_back([&field](std::uint64_t claim) {
      field = static_cast<std::remove_reference_t<decltype(field)>>(claim);
    });
  };
}

// Those that say how many of something there are, or where it is.
Numbers sizes_of(Manifest& manifest) {
  Numbers numbers;
  const auto add = adder_to(numbers);
  for (SectionInfo& section : manifest.sections) {
    add(section.layer);
    add(section.block);
    add(section.file_offset);
    add(section.stored_bytes);
    add(section.raw_bytes);
  }
  for (format::GapInfo& gap : manifest.gaps) {
    add(gap.file_offset);
    add(gap.bytes);
  }
  for (cache::LayerDesc& layer : manifest.layers) {
    if (auto* window = std::get_if<cache::WindowDesc>(&layer)) add(window->window.size);
    if (auto* state = std::get_if<cache::StateDesc>(&layer)) {
      for (cache::ArrayDesc& array : state->arrays) {
        for (std::uint64_t& size : array.shape) add(size);
      }
    }
    cache::AttentionDesc* const attention = cache::attention_of(layer);
    if (attention == nullptr) continue;
    add(attention->shape.n_kv_heads);
    add(attention->shape.head_dim);
    for (cache::TensorDesc* tensor : {&attention->k, &attention->v}) {
      if (!tensor->quant) continue;
      add(tensor->quant->n_sinks);
      for (codec::PartSpec& part : tensor->quant->parts) {
        add(part.first);
        add(part.head_dim);
        add(part.bits);
      }
    }
  }
  return numbers;
}

// Those that any value can be right for: another one makes another cache.
Numbers free_numbers_of(Manifest& manifest) {
  Numbers numbers;
  const auto add = adder_to(numbers);
  add(manifest.identity.rope.n_dims);
  for (cache::LayerDesc& layer : manifest.layers) {
    if (auto* window = std::get_if<cache::WindowDesc>(&layer)) add(window->window.keep);
    cache::AttentionDesc* const attention = cache::attention_of(layer);
    if (attention == nullptr || !attention->k.quant) continue;
    for (codec::PartSpec& part : attention->k.quant->parts) {
      add(part.rounds);
      add(part.seed);
    }
  }
  return numbers;
}

// The content name is right as well, so that the rules of docs/reference/format.md §4 and §9 are
// all there is.
void claim_in_each(const std::function<Numbers(Manifest&)>& numbers_of, const Bytes& file,
                   const Visit& visit) {
  const Manifest original = info_of(file);
  Manifest manifest = original;
  const std::size_t n_numbers = numbers_of(manifest).size();
  for (std::size_t i = 0; i < n_numbers; ++i) {
    for (const std::uint64_t claim : kClaims) {
      manifest = original;
      numbers_of(manifest)[i](claim);
      visit("number " + std::to_string(i) + " claims " + std::to_string(claim),
            with_named_manifest(file, manifest));
    }
  }
}

TEST(HugeNumber, InASizeFieldIsRefusedDespiteAValidContentDigest) {
  for (const Compression compression : kCompressions) {
    const Bytes file = small_file_of_all_kinds(compression);
    expect_harmless(read_unless_same(file),
                    [&](const Visit& visit) { claim_in_each(sizes_of, file, visit); });
  }
}

TEST(HugeNumber, InASizeFieldOfAnAppendedFileIsRefusedDespiteAValidContentDigest) {
  const Bytes file = golden("appended");
  expect_harmless(read_unless_same(file),
                  [&](const Visit& visit) { claim_in_each(sizes_of, file, visit); });
}

TEST(HugeNumber, InAnyOtherFieldTakesLittleMemory) {
  const Bytes file = small_file_of_all_kinds();
  const auto read = [](const Bytes& bomb) { return load_view(bomb) && is_reported(bomb); };
  expect_harmless(read, [&](const Visit& visit) { claim_in_each(free_numbers_of, file, visit); });
}

// One array of `bytes` of f16 in a zstd frame, or planes, of a few.
Bytes file_with_frame(std::uint64_t bytes, const Bytes& frame,
                      Compression compression = Compression::kZstd) {
  cache::Cache cache = CacheBuilder(0).build();
  cache::StateLayer layer;
  layer.arrays.push_back({"a", Dtype::kF16, {1}, AlignedBytes(2)});
  cache.layers.emplace_back(std::move(layer));
  Bytes file = file_of(cache);
  Manifest manifest = info_of(file);
  std::get<cache::StateDesc>(manifest.layers[0]).arrays[0].shape = {bytes / 2};
  SectionInfo& section = manifest.sections[0];
  section.raw_bytes = bytes;
  section.stored_bytes = frame.size();
  section.compression = compression;
  section.checksum = xxh3_128(frame);
  file.resize(section.file_offset);
  file.insert(file.end(), frame.begin(), frame.end());
  file.resize(format::align_section(file.size()));
  patch(file, kManifestOffsetAt, std::uint64_t{file.size()});
  patch(file, kRequiredAt, format::required_features(manifest));
  return with_named_manifest(std::move(file), std::move(manifest));
}

constexpr std::uint64_t kBlockContent = std::uint64_t{128} << 10;

// A frame whose header says what it likes: RFC 8878 §3.1.1.
struct FrameHeader {
  std::uint8_t descriptor = 0xe0;  // 8 bytes of content size, and no window: a single segment
  Bytes window = {};               // Window_Descriptor, Dictionary_ID
  std::uint64_t content = 0;
};

// `n_blocks` blocks that each repeat one byte 128 Ki times.
Bytes frame_of(const FrameHeader& header, std::size_t n_blocks) {
  Bytes frame = {std::byte{0x28}, std::byte{0xb5}, std::byte{0x2f}, std::byte{0xfd},
                 std::byte{header.descriptor}};
  frame.insert(frame.end(), header.window.begin(), header.window.end());
  frame.resize(frame.size() + 8);
  patch(frame, frame.size() - 8, header.content);
  for (std::size_t i = 0; i < n_blocks; ++i) {
    constexpr unsigned kRepeat = 1u << 1;
    const unsigned is_last = i + 1 == n_blocks ? 1 : 0;
    const auto block = static_cast<std::uint32_t>(kBlockContent << 3 | kRepeat | is_last);
    frame.resize(frame.size() + 4);
    patch(frame, frame.size() - 4, block);  // 3 bytes of header, then the byte: 0
  }
  return frame;
}

TEST(ZstdBomb, ThatClaimsMoreThanItsBytesCanHoldIsRefused) {
  const Bytes file = small_file();
  for (const std::uint64_t claim : {std::uint64_t{1} << 30, (std::uint64_t{1} << 31) - 2,
                                    std::uint64_t{1} << 32, std::uint64_t{1} << 40}) {
    const Bytes bomb = file_with_frame(claim, frame_of({.content = claim}, 200));
    ASSERT_LT(bomb.size(), 2048u);
    expect_harmless(read_unless_same(file, kAnyMemory),
                    [&](const Visit& visit) { visit("frame", bomb); });
    // Whatever memory the caller would allow.
    expect_error(dropped(load_view(bomb, kAnyMemory)), ErrorCode::kCorrupt, "cannot hold");
  }
}

TEST(ZstdBomb, FrameAtTheHighestCompressionRatioIsRead) {
  constexpr std::size_t kBlocks = 250;
  const std::uint64_t bytes = kBlocks * kBlockContent;
  const Bytes file = file_with_frame(bytes, frame_of({.content = bytes}, kBlocks));
  ASSERT_LT(file.size(), 2048u);
  const cache::Cache cache = must(load_view(file, kAnyMemory));
  EXPECT_EQ(std::get<cache::StateLayer>(cache.layers[0]).arrays[0].data.size(), bytes);
}

// Two planes of one frame each.
Bytes planes_of(const Bytes& high, const Bytes& low) {
  ByteWriter out;
  out.write<std::uint64_t>(high.size());
  out.write<std::uint64_t>(low.size());
  out.append(high);
  out.append(low);
  return std::move(out).take();
}

TEST(PlaneFrames, ThatClaimMoreThanTheirBytesCanHoldAreRefused) {
  const Bytes file = small_file();
  for (const std::uint64_t claim : {std::uint64_t{1} << 30, std::uint64_t{1} << 40}) {
    const Bytes frame = frame_of({.content = claim / 2}, 100);
    const Bytes bomb = file_with_frame(claim, planes_of(frame, frame), Compression::kPlanes);
    expect_harmless(read_unless_same(file, kAnyMemory),
                    [&](const Visit& visit) { visit("planes", bomb); });
    expect_error(dropped(load_view(bomb, kAnyMemory)), ErrorCode::kCorrupt, "cannot hold");
  }
}

TEST(PlaneFrames, AtTheHighestCompressionRatioAreRead) {
  constexpr std::size_t kBlocks = 20;
  const std::uint64_t bytes = kBlocks * kBlockContent;
  const Bytes frame = frame_of({.content = bytes}, kBlocks);
  const Bytes file = file_with_frame(2 * bytes, planes_of(frame, frame), Compression::kPlanes);
  const cache::Cache cache = must(load_view(file));
  EXPECT_EQ(std::get<cache::StateLayer>(cache.layers[0]).arrays[0].data.size(), 2 * bytes);
}

TEST(ZstdBomb, ThatHoldsLessThanItClaimsIsRefused) {
  const Bytes bomb =
      file_with_frame(200 * kBlockContent, frame_of({.content = 200 * kBlockContent}, 199));
  expect_harmless(read_unless_same(small_file(), kAnyMemory),
                  [&](const Visit& visit) { visit("frame", bomb); });
  expect_refused(bomb, ErrorCode::kCorrupt, "zstd: ", {.memory = kAnyMemory});
}

TEST(ZstdBomb, ThatHoldsMoreThanItClaimsIsRefused) {
  const Bytes bomb = file_with_frame(kBlockContent, frame_of({.content = kBlockContent}, 100));
  expect_refused(bomb, ErrorCode::kCorrupt, "zstd: ");
}

TEST(ZstdFrame, OfALargeWindowIsRefused) {
  constexpr std::uint8_t kWithWindow = 0xc0;
  const auto file_of_window = [](std::uint8_t window) {
    return file_with_frame(kBlockContent, frame_of({.descriptor = kWithWindow,
                                                    .window = {std::byte{window}},
                                                    .content = kBlockContent},
                                                   1));
  };
  EXPECT_TRUE(load(file_of_window(0x88)).ok());  // 128 MiB
  expect_refused(file_of_window(0x89), ErrorCode::kCorrupt, "needs a window of 150994944 bytes");
  expect_refused(file_of_window(0xff), ErrorCode::kCorrupt, "zstd: ");
}

TEST(ZstdFrame, OfADictionaryIsRefused) {
  constexpr std::uint8_t kWithDictionary = 0xe1;  // an id of one byte
  const auto file_of_id = [](std::uint8_t id) {
    return file_with_frame(kBlockContent, frame_of({.descriptor = kWithDictionary,
                                                    .window = {std::byte{id}},
                                                    .content = kBlockContent},
                                                   1));
  };
  EXPECT_TRUE(load(file_of_id(0)).ok());
  expect_refused(file_of_id(1), ErrorCode::kCorrupt, "needs a dictionary");
}

}  // namespace bombs_test
}  // namespace tqcache::test
