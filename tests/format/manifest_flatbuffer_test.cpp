// What a hostile manifest can do as a FlatBuffer. The buffers are poked by hand, after the
// FlatBuffers internals document: no builder would make them.

#include <gtest/gtest.h>

#include "file_fixture.h"

namespace tqcache::test {
namespace manifest_flatbuffer_test {

// A table in a file's manifest, by the file offset of its first byte.
class Table {
 public:
  Table(Bytes& file, std::size_t at) : file_(&file), at_(at) {}

  static Table root(Bytes& file) {
    const auto manifest = value_at<std::uint64_t>(file, kManifestOffsetAt);
    return {file, manifest + value_at<std::uint32_t>(file, manifest)};
  }

  // The entry of field `id` in the table's vtable.
  std::size_t entry(std::size_t id) const {
    const auto vtable = at_ - static_cast<std::size_t>(value_at<std::int32_t>(*file_, at_));
    return vtable + 4 + 2 * id;
  }
  std::size_t field(std::size_t id) const {
    return at_ + value_at<std::uint16_t>(*file_, entry(id));
  }
  // Where the string, vector or table of field `id` begins.
  std::size_t target(std::size_t id) const { return follow(field(id)); }
  Table table(std::size_t id) const { return {*file_, target(id)}; }
  Table element(std::size_t id, std::size_t index) const {
    return {*file_, follow(target(id) + 4 + 4 * index)};
  }
  void remove(std::size_t id) { patch(*file_, entry(id), std::uint16_t{0}); }
  // Offsets are unsigned: a text that is before the field is copied behind the manifest first.
  void point(std::size_t id, std::size_t target) {
    if (target < field(id)) {
      const std::size_t n = 4 + value_at<std::uint32_t>(*file_, target) + 1;
      const Bytes text(file_->begin() + static_cast<std::ptrdiff_t>(target),
                       file_->begin() + static_cast<std::ptrdiff_t>(target + n));
      target = (file_->size() + 3) / 4 * 4;
      file_->resize(target);
      file_->insert(file_->end(), text.begin(), text.end());
    }
    patch(*file_, field(id), static_cast<std::uint32_t>(target - field(id)));
  }

 private:
  std::size_t follow(std::size_t at) const { return at + value_at<std::uint32_t>(*file_, at); }

  Bytes* file_;
  std::size_t at_;
};

// Field ids of schema/cache_v2.fbs.
namespace manifest_id {
constexpr std::size_t kWriter = 0, kIdentity = 1, kTokens = 2, kLayers = 3, kSections = 4,
                      kContentName = 5, kGaps = 6, kHidden = 7;
}
namespace identity_id {
constexpr std::size_t kRope = 2;
}
namespace rope_id {
constexpr std::size_t kFactors = 3;
}
namespace array_id {
constexpr std::size_t kName = 0, kShape = 2;
}
namespace hidden_id {
constexpr std::size_t kTokens = 0, kHashes = 1;
}
namespace layer_id {
constexpr std::size_t kType = 0, kHeads = 1, kHeadDim = 2, kK = 3, kV = 4, kArrays = 5, kWindow = 6,
                      kKeep = 7;
}
namespace tensor_id {
constexpr std::size_t kType = 0, kCodec = 2, kCentering = 3, kMean = 4, kOutliers = 5, kSinks = 6;
}
namespace codec_id {
constexpr std::size_t kLayout = 0, kParts = 1;
}
namespace part_id {
constexpr std::size_t kRotation = 3, kScale = 6, kOfResidual = 7, kHasBias = 8, kCentroids = 9;
}

constexpr std::string_view kInvalid = "manifest: not a valid FlatBuffer";

// A dense layer, then an arrays layer.
Bytes two_layers() { return file_of(CacheBuilder(3).dense({2, 4}).arrays().build()); }

void expect_poked(ErrorCode code, std::string_view part,
                  const std::function<void(Bytes&, Table)>& poke) {
  Bytes file = two_layers();
  poke(file, Table::root(file));
  reseal(file);
  expect_refused(file, code, part);
}

TEST(ManifestFlatBuffer, IsReadAfterBeingResealedUntouched) {
  Bytes file = two_layers();
  reseal(file);
  EXPECT_TRUE(load(file).ok());
}

TEST(ManifestFlatBuffer, RefusesAnotherFileIdentifier) {
  expect_poked(ErrorCode::kCorrupt, kInvalid, [](Bytes& file, Table) {
    file[value_at<std::uint64_t>(file, kManifestOffsetAt) + 7] = std::byte{'1'};
  });
}

TEST(ManifestFlatBuffer, RefusesAManifestOfAFewBytes) {
  for (const std::size_t size : {1u, 4u, 8u, 12u}) {
    Bytes file = two_layers();
    file.resize(value_at<std::uint64_t>(file, kManifestOffsetAt) + size);
    reseal(file);
    expect_refused(file, ErrorCode::kCorrupt, kInvalid);
  }
}

TEST(ManifestFlatBuffer, RefusesMissingRequiredFields) {
  for (std::size_t id = manifest_id::kWriter; id <= manifest_id::kContentName; ++id) {
    expect_poked(ErrorCode::kCorrupt, kInvalid, [&](Bytes&, Table root) { root.remove(id); });
  }
  expect_poked(ErrorCode::kCorrupt, kInvalid,
               [](Bytes&, Table root) { root.table(manifest_id::kIdentity).remove(3); });
}

TEST(ManifestFlatBuffer, RefusesAnAttentionLayerWithoutOneOfItsTensors) {
  for (const std::size_t id : {layer_id::kK, layer_id::kV}) {
    expect_poked(ErrorCode::kCorrupt, "layer 0: neither k and v alone",
                 [&](Bytes&, Table root) { root.element(manifest_id::kLayers, 0).remove(id); });
  }
}

TEST(ManifestFlatBuffer, RefusesAnArraysLayerWithoutArrays) {
  expect_poked(ErrorCode::kCorrupt, "layer 1: neither k and v alone", [](Bytes&, Table root) {
    root.element(manifest_id::kLayers, 1).remove(layer_id::kArrays);
  });
}

TEST(ManifestFlatBuffer, RefusesALayerOfOneTypeWithThePartsOfAnother) {
  expect_poked(
      ErrorCode::kCorrupt, "layer 1: an attention layer with arrays", [](Bytes&, Table root) {
        const std::size_t attention = root.element(manifest_id::kLayers, 0).target(layer_id::kType);
        root.element(manifest_id::kLayers, 1).point(layer_id::kType, attention);
      });
  Bytes file = file_of(CacheBuilder(3).arrays().dense({2, 4}).build());
  Table root = Table::root(file);
  const std::size_t arrays = root.element(manifest_id::kLayers, 0).target(layer_id::kType);
  root.element(manifest_id::kLayers, 1).point(layer_id::kType, arrays);
  reseal(file);
  expect_refused(file, ErrorCode::kCorrupt, "layer 1: an arrays layer with heads");
}

// --- layers that are of no kind, or of two

// Full attention that is dense, full attention that is quantized, state, a dense window of 8
// tokens, and a quantized one.
enum KindedLayer : std::size_t { kDense, kTurbo, kState, kWindow, kTurboWindow };

class Kinds : public testing::Test {
 protected:
  Table layer(std::size_t index) { return root_.element(manifest_id::kLayers, index); }
  // The layer, or K of it, says that it is of the type that another has.
  void take_type(KindedLayer from, KindedLayer to) {
    layer(to).point(layer_id::kType, layer(from).target(layer_id::kType));
  }
  void take_key_type(KindedLayer from, KindedLayer to) {
    const std::size_t type = layer(from).table(layer_id::kK).target(tensor_id::kType);
    layer(to).table(layer_id::kK).point(tensor_id::kType, type);
  }
  Table array(std::size_t index) { return layer(kWindow).element(layer_id::kArrays, index); }
  void expect(std::string_view part, ErrorCode code = ErrorCode::kCorrupt) {
    reseal(file_);
    expect_refused(file_, code, part);
  }

  Bytes file_ = file_of(CacheBuilder(300)
                            .dense({2, 4})
                            .turbo({1, 32}, 4, 4)
                            .arrays()
                            .rotating({{2, 4}, 8, 7})
                            .turbo_rotating({{1, 32}, 300, 0}, 4, 3)
                            .build());
  Table root_ = Table::root(file_);
};

TEST_F(Kinds, AttentionHasNoWindow) {
  take_type(kDense, kWindow);
  expect("layer 3: an attention layer with a window");
}

TEST_F(Kinds, AttentionHasNoArrays) {
  take_type(kDense, kState);
  expect("layer 2: an attention layer with arrays");
}

TEST_F(Kinds, StateHasNoHeads) {
  take_type(kState, kWindow);
  expect("layer 3: an arrays layer with heads");
}

TEST_F(Kinds, StateHasNoWindow) {
  for (const std::size_t id : {layer_id::kHeads, layer_id::kHeadDim}) {
    patch(file_, layer(kWindow).field(id), std::uint32_t{0});
  }
  take_type(kState, kWindow);
  expect("layer 3: an arrays layer with a window");
}

TEST_F(Kinds, DenseWindowsHaveArrays) {
  take_type(kWindow, kTurboWindow);
  expect("layer 4: arrays beside k or v");
}

TEST_F(Kinds, QuantizedWindowsHaveNone) {
  take_type(kTurboWindow, kWindow);
  expect("layer 3: a turbo window with arrays");
}

TEST_F(Kinds, QuantizedWindowsAreNotDense) {
  take_type(kTurboWindow, kDense);
  expect("layer 0: a turbo window of dense tensors");
}

TEST_F(Kinds, DenseTensorsHaveNoCodec) {
  take_key_type(kDense, kTurbo);
  expect("layer 1: k: a dense tensor with a codec");
}

TEST_F(Kinds, QuantizedTensorsHaveACodec) {
  take_key_type(kTurbo, kDense);
  expect("layer 0: k: a turbo tensor without a codec");
}

TEST_F(Kinds, WindowsHaveTheirTwoArrays) {
  array(1).point(array_id::kName, array(0).target(array_id::kName));
  expect("layer 3: a rotating layer with other arrays than keys and values");
}

TEST_F(Kinds, WindowsHaveTheArraysInTheirOrder) {
  const std::size_t keys = array(0).target(array_id::kName);
  array(0).point(array_id::kName, array(1).target(array_id::kName));
  array(1).point(array_id::kName, keys);
  expect("layer 3: a rotating layer with other arrays than keys and values");
}

TEST_F(Kinds, WindowsHaveArraysOfTheirShape) {
  const std::size_t shape = array(1).target(array_id::kShape) + 4;
  patch(file_, shape + 8, std::uint64_t{7});
  expect("layer 3: values: not of the window's shape");
}

TEST_F(Kinds, WindowsHaveArraysOfTheirSize) {
  patch(file_, layer(kWindow).field(layer_id::kWindow), std::uint32_t{9});
  expect("layer 3: keys: not of the window's shape");
}

TEST_F(Kinds, TypesAreNoLongTexts) {
  file_ = change_manifest(file_, [](Manifest& manifest) {
    arrays_of(manifest, kState)[0].name.assign(cache::kMaxTextBytes + 1, 'x');
  });
  const auto name = [&] {
    return layer(kState).element(layer_id::kArrays, 0).target(array_id::kName);
  };
  root_ = Table::root(file_);
  const Bytes before = file_;
  layer(kDense).point(layer_id::kType, name());
  expect("layer 0: 1025", ErrorCode::kTooLarge);
  std::ranges::copy(before, file_.begin());
  layer(kDense).table(layer_id::kK).point(tensor_id::kType, name());
  expect("layer 0: k: 1025", ErrorCode::kTooLarge);
}

TEST(ManifestFlatBuffer, RefusesCountsThatTheBufferCannotHold) {
  for (const std::size_t id :
       {manifest_id::kWriter, manifest_id::kTokens, manifest_id::kLayers, manifest_id::kSections}) {
    for (const std::uint32_t count : {0x7fffffffu, 0x80000000u, 0x80000001u, 0xffffffffu, 5000u}) {
      expect_poked(ErrorCode::kCorrupt, kInvalid,
                   [&](Bytes& file, Table root) { patch(file, root.target(id), count); });
    }
  }
}

TEST(ManifestFlatBuffer, RefusesOffsetsOutOfTheBuffer) {
  for (const std::uint32_t offset : {0u, 0x7fffffffu, 0x80000000u, 0xffffffffu, 100000u}) {
    expect_poked(ErrorCode::kCorrupt, kInvalid, [&](Bytes& file, Table root) {
      patch(file, root.field(manifest_id::kLayers), offset);
    });
  }
}

TEST(ManifestFlatBuffer, RefusesATableOfSectionsThatIsNotAligned) {
  expect_poked(ErrorCode::kCorrupt, "section table: not aligned", [](Bytes& file, Table root) {
    const std::size_t moved = root.target(manifest_id::kSections) - 4;
    patch(file, moved, 1u);
    root.point(manifest_id::kSections, moved);
  });
}

TEST(ManifestFlatBuffer, RefusesReservedBytesThatAreNotZero) {
  for (const std::size_t at : {83u, 84u, 87u}) {
    expect_poked(ErrorCode::kCorrupt, "section 0: reserved bytes", [&](Bytes& file, Table root) {
      file[root.target(manifest_id::kSections) + 4 + at] = std::byte{1};
    });
  }
}

TEST(ManifestFlatBuffer, RefusesAnUnknownForm) {
  expect_poked(ErrorCode::kCorrupt, "section 0: unknown form 2", [](Bytes& file, Table root) {
    file[root.target(manifest_id::kSections) + 4 + 81] = std::byte{2};
  });
}

Bytes hidden_file() { return file_of(CacheBuilder(300).dense({1, 4}).hide_tokens().build()); }

void expect_poked_hidden(ErrorCode code, std::string_view part,
                         const std::function<void(Bytes&, Table)>& poke) {
  Bytes file = hidden_file();
  poke(file, Table::root(file));
  reseal(file);
  expect_refused(file, code, part);
}

TEST(ManifestFlatBuffer, RefusesTokensThatAreHiddenAndInTheFile) {
  expect_poked_hidden(ErrorCode::kCorrupt, "tokens that are hidden and in the file",
                      [](Bytes&, Table root) {
                        const Table hidden = root.table(manifest_id::kHidden);
                        root.point(manifest_id::kTokens, hidden.target(hidden_id::kHashes));
                      });
}

TEST(ManifestFlatBuffer, RefusesHiddenTokensWithoutAListOfHashes) {
  expect_poked_hidden(ErrorCode::kCorrupt, kInvalid, [](Bytes&, Table root) {
    root.table(manifest_id::kHidden).remove(hidden_id::kHashes);
  });
}

// None of these numbers is the size of anything that is in the file.
TEST(ManifestFlatBuffer, RefusesCountsOfHiddenTokensBeforeTheirMemoryIsTaken) {
  for (const std::uint32_t count : {0x1000001u, 0x7fffffffu, 0x80000001u, 0xffffffffu}) {
    expect_poked_hidden(
        ErrorCode::kTooLarge, std::to_string(count) + " tokens", [&](Bytes& file, Table root) {
          patch(file, root.table(manifest_id::kHidden).field(hidden_id::kTokens), count);
        });
  }
  for (const std::uint32_t count : {0x7ffffffu, 0x8000000u, 0xffffffffu}) {
    expect_poked_hidden(ErrorCode::kCorrupt, kInvalid, [&](Bytes& file, Table root) {
      patch(file, root.table(manifest_id::kHidden).target(hidden_id::kHashes), count);
    });
  }
}

// A file whose manifest has one gap, as its sections do not: only reading the list is under test.
Bytes file_with_gap() {
  return change_manifest(two_layers(), [](Manifest& m) { m.gaps.push_back({128, 1, {}}); });
}

void expect_poked_gaps(ErrorCode code, std::string_view part,
                       const std::function<void(Bytes&, Table)>& poke) {
  Bytes file = file_with_gap();
  poke(file, Table::root(file));
  reseal(file);
  expect_refused(file, code, part);
}

TEST(ManifestFlatBuffer, RefusesAListOfNoGaps) {
  expect_poked_gaps(ErrorCode::kCorrupt, "a list of no gaps", [](Bytes& file, Table root) {
    patch(file, root.target(manifest_id::kGaps), 0u);
  });
}

// A list of one gap whose first number stands at an odd multiple of 4.
TEST(ManifestFlatBuffer, RefusesAListOfGapsThatIsNotAligned) {
  expect_poked_gaps(ErrorCode::kCorrupt, "list of gaps: not aligned", [](Bytes& file, Table root) {
    const std::size_t moved = (file.size() + 7) / 8 * 8;
    file.resize(moved + 4 + 32);
    patch(file, moved, 1u);
    root.point(manifest_id::kGaps, moved);
  });
}

TEST(ManifestFlatBuffer, RefusesCountsOfGapsThatTheBufferCannotHold) {
  for (const std::uint32_t count : {5000u, 0x7ffffffu, 0x8000000u, 0xffffffffu}) {
    expect_poked_gaps(ErrorCode::kCorrupt, kInvalid, [&](Bytes& file, Table root) {
      patch(file, root.target(manifest_id::kGaps), count);
    });
  }
}

// Appends a layer table that holds only a type, and gives its place.
std::size_t append_layer(Bytes& file) {
  ByteWriter out;
  out.append(ByteView(file));
  while (out.bytes().size() % 4 != 0) out.write(std::uint8_t{0});
  for (const int entry : {6, 8, 4, 0}) out.write(static_cast<std::uint16_t>(entry));  // vtable
  const std::size_t table = out.bytes().size();
  out.write(std::int32_t{8});   // back to the vtable
  out.write(std::uint32_t{4});  // on to the text
  out.write(std::uint32_t{1});
  out.append(as_bytes(std::string_view("x\0\0\0", 4)));
  file = std::move(out).take();
  return table;
}

// A list of `count` layers that are all one table, in the room of the token list.
Bytes with_one_layer_many_times(std::size_t count) {
  Bytes file = two_layers();
  Manifest manifest = info_of(file);
  manifest.tokens.assign(count, 0);
  file = with_manifest(file, manifest);
  const std::size_t layer = append_layer(file);
  Table root = Table::root(file);
  const std::size_t list = root.target(manifest_id::kTokens);
  for (std::size_t at = list + 4; at < list + 4 + 4 * count; at += 4) {
    patch(file, at, static_cast<std::uint32_t>(layer - at));
  }
  root.point(manifest_id::kLayers, list);
  reseal(file);
  return file;
}

TEST(ManifestFlatBuffer, RefusesMoreLayersThanTheLimitThoughAllAreOneTable) {
  expect_refused(with_one_layer_many_times(1024), ErrorCode::kCorrupt, "layer 0: neither");
  expect_refused(with_one_layer_many_times(1025), ErrorCode::kTooLarge, "1025 layers");
}

TEST(ManifestFlatBuffer, RefusesMoreTablesThanTheLimitThoughAllAreOne) {
  expect_refused(with_one_layer_many_times(format::kMaxManifestTables), ErrorCode::kCorrupt,
                 kInvalid);
}

Bytes centered_layer() {
  return file_of(CacheBuilder(3).center(cache::Centering::kPostRope).turbo({1, 32}, 4, 4).build());
}

// Appends a vector of `count` zeros of `size` bytes, or a text of as many, and gives its place.
std::size_t append_list(Bytes& file, std::uint32_t count, std::size_t size) {
  const std::size_t at = (file.size() + 7) / 8 * 8;
  file.resize(at + 4 + count * size + 1);
  patch(file, at, count);
  return at;
}

TEST(ManifestFlatBuffer, RefusesALayoutOfTooManyBytes) {
  Bytes file = centered_layer();
  const std::size_t text = append_list(file, 1025, 1);
  Table::root(file)
      .element(manifest_id::kLayers, 0)
      .table(layer_id::kK)
      .table(tensor_id::kCodec)
      .point(codec_id::kLayout, text);
  reseal(file);
  expect_refused(file, ErrorCode::kTooLarge, "layer 0: k: 1025 bytes of text");
}

TEST(ManifestFlatBuffer, RefusesNamesInAPartOfTooManyBytes) {
  for (const std::size_t id : {part_id::kRotation, part_id::kScale}) {
    Bytes file = centered_layer();
    const std::size_t text = append_list(file, 1025, 1);
    Table::root(file)
        .element(manifest_id::kLayers, 0)
        .table(layer_id::kK)
        .table(tensor_id::kCodec)
        .element(codec_id::kParts, 0)
        .point(id, text);
    reseal(file);
    expect_refused(file, ErrorCode::kTooLarge, "1025 bytes of text");
  }
}

TEST(ManifestFlatBuffer, RefusesListsOfRopeFactorsThatAreNone) {
  cache::Cache cache = CacheBuilder(3).dense({2, 4}).build();
  cache.identity.rope = {cache::RopeStyle::kHalfSplit, 4, 1e4, {1.0f, 2.0f}};
  for (const std::uint32_t count : {0u, 513u}) {
    Bytes file = file_of(cache);
    const std::size_t list = append_list(file, count, sizeof(float));
    Table::root(file)
        .table(manifest_id::kIdentity)
        .table(identity_id::kRope)
        .point(rope_id::kFactors, list);
    reseal(file);
    expect_refused(file, count == 0 ? ErrorCode::kCorrupt : ErrorCode::kTooLarge,
                   count == 0 ? "rope factors, but none" : "513 rope factors");
  }
}

// A shape of one number, which stands at an odd multiple of 4.
TEST(ManifestFlatBuffer, RefusesAShapeThatIsNotAligned) {
  expect_poked(ErrorCode::kCorrupt, "shape: not aligned", [](Bytes& file, Table root) {
    const std::size_t list = append_list(file, 1, 16);
    root.element(manifest_id::kLayers, 1)
        .element(layer_id::kArrays, 0)
        .point(array_id::kShape, list);
  });
}

Table layer_of(Bytes& file) { return Table::root(file).element(manifest_id::kLayers, 0); }

// Pokes the keys of a layer, and expects the file to be refused.
void expect_poked_keys(Bytes file, ErrorCode code, std::string_view part,
                       const std::function<void(Bytes&, Table)>& poke) {
  poke(file, layer_of(file).table(layer_id::kK));
  reseal(file);
  expect_refused(file, code, part);
}

TEST(ManifestFlatBuffer, RefusesACodecWithoutACentering) {
  expect_poked_keys(centered_layer(), ErrorCode::kCorrupt, "layer 0: k: a codec without centering",
                    [](Bytes&, Table k) { k.remove(tensor_id::kCentering); });
}

TEST(ManifestFlatBuffer, RefusesWhatBelongsToACodecWithoutOne) {
  cache::TensorPlan plan;
  plan.codec = {.mode = codec::Mode::kMixed, .outlier_channels = 8, .outlier_bits = 5};
  plan.n_sinks = 1;
  const Bytes file =
      file_of(CacheBuilder(256).tensors({1, 32}, Dtype::kF16, plan, Dtype::kF16, plan).build());
  for (const std::size_t kept :
       {tensor_id::kCentering, tensor_id::kMean, tensor_id::kOutliers, tensor_id::kSinks}) {
    expect_poked_keys(file, ErrorCode::kCorrupt, "layer 0: k: a turbo tensor without a codec",
                      [&](Bytes&, Table k) {
                        for (std::size_t id = tensor_id::kCodec; id <= tensor_id::kSinks; ++id) {
                          if (id != kept) k.remove(id);
                        }
                      });
  }
}

TEST(ManifestFlatBuffer, RefusesACodecThatMissesSomething) {
  for (const std::size_t id : {codec_id::kLayout, codec_id::kParts}) {
    expect_poked_keys(centered_layer(), ErrorCode::kCorrupt, kInvalid,
                      [&](Bytes&, Table k) { k.table(tensor_id::kCodec).remove(id); });
  }
  for (const std::size_t id : {part_id::kRotation, part_id::kScale, part_id::kCentroids}) {
    expect_poked_keys(centered_layer(), ErrorCode::kCorrupt, kInvalid, [&](Bytes&, Table k) {
      k.table(tensor_id::kCodec).element(codec_id::kParts, 0).remove(id);
    });
  }
}

TEST(ManifestFlatBuffer, RefusesACodecWithoutParts) {
  expect_poked_keys(centered_layer(), ErrorCode::kCorrupt, "layer 0: k: a codec without parts",
                    [](Bytes& file, Table k) {
                      patch(file, k.table(tensor_id::kCodec).target(codec_id::kParts), 0u);
                    });
}

TEST(ManifestFlatBuffer, RefusesAYesOrNoThatIsNeither) {
  const Bytes file = file_of(CacheBuilder(3).preset({1, 64}, "affine8").build());
  expect_poked_keys(file, ErrorCode::kCorrupt, "layer 0: k: part 0: unknown value of has_bias 2",
                    [](Bytes& bytes, Table k) {
                      const Table part = k.table(tensor_id::kCodec).element(codec_id::kParts, 0);
                      bytes[part.field(part_id::kHasBias)] = std::byte{2};
                    });
  const Bytes prod = file_of(CacheBuilder(3).preset({1, 64}, "prod4").build());
  expect_poked_keys(prod, ErrorCode::kCorrupt,
                    "layer 0: k: part 1: unknown value of of_residual 255",
                    [](Bytes& bytes, Table k) {
                      const Table part = k.table(tensor_id::kCodec).element(codec_id::kParts, 1);
                      bytes[part.field(part_id::kOfResidual)] = std::byte{255};
                    });
}

TEST(ManifestFlatBuffer, RefusesListsOfNothing) {
  Bytes file = file_of(CacheBuilder(256).preset({1, 64}, "turbo2.5").build());
  const auto expect_empty = [&](std::size_t id, std::string_view part) {
    expect_poked_keys(file, ErrorCode::kCorrupt, part,
                      [&](Bytes& bytes, Table k) { patch(bytes, k.target(id), 0u); });
  };
  expect_empty(tensor_id::kMean, "layer 0: k: a mean of no values");
  expect_empty(tensor_id::kOutliers, "layer 0: k: a list of no outlier channels");
}

// Copies of one mean would take more memory than the limit, though the file holds it once.
TEST(ManifestFlatBuffer, RefusesMeansBeyondTheLimitThoughAllAreOne) {
  const std::size_t count = format::kMaxMeanValues / 2 + 1;
  Bytes file = centered_layer();
  Manifest manifest = info_of(file);
  k_of(manifest, 0).mean.assign(count, 0);
  v_of(manifest, 0).mean.assign(1, 0);
  file = with_manifest(file, manifest);
  const Table layer = layer_of(file);
  layer.table(layer_id::kV)
      .point(tensor_id::kMean, layer.table(layer_id::kK).target(tensor_id::kMean));
  reseal(file);
  expect_refused(file, ErrorCode::kTooLarge, "values of a mean");
}

// Likewise lists of outlier channels, each of which becomes an order of all channels.
TEST(ManifestFlatBuffer, RefusesOutlierChannelsBeyondTheLimitThoughAllAreOne) {
  Manifest manifest = info_of(file_of(CacheBuilder(0).preset({1, 64}, "turbo2.5").build()));
  attention_of(manifest, 0).shape = {1024, 1024};
  k_of(manifest, 0).outliers = {1};
  v_of(manifest, 0).outliers = {1};
  const auto file_with = [&](std::size_t n_layers) {
    manifest.layers.resize(n_layers, manifest.layers[0]);
    return with_manifest(file_of(CacheBuilder(0).build()), manifest);
  };
  static_assert(format::kMaxOrderedChannels == std::size_t{16} * 1024 * 1024);
  expect_refused(file_with(8), ErrorCode::kCorrupt, "layer 0: k: parts");
  expect_refused(file_with(9), ErrorCode::kTooLarge, "layer 8: k: 1048576 channels");
}

}  // namespace manifest_flatbuffer_test
}  // namespace tqcache::test
