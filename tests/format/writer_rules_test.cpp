// What a reader refuses before it builds a manifest, the rules of manifests refuse as well: a
// writer holds its own manifest against them.

#include <gtest/gtest.h>

#include "file_fixture.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/type_names.h"

namespace tqcache::test {
namespace writer_rules_test {

// A dense layer, an arrays layer and a rotating one.
Manifest good_manifest() {
  return info_of(file_of(CacheBuilder(3).dense({1, 4}).arrays().rotating({{1, 4}, 2, 1}).build()));
}

void expect_refused_contents(const std::function<void(Manifest&)>& change, ErrorCode code,
                             std::string_view part) {
  Manifest manifest = good_manifest();
  must(format::check_contents(manifest));
  change(manifest);
  expect_error(format::check_contents(manifest), code, part);
}

TEST(WriterRules, RefuseTextsBeyondTheLimit) {
  const std::string text(cache::kMaxTextBytes + 1, 'x');
  const auto refused = [&](const std::function<void(Manifest&)>& change) {
    expect_refused_contents(change, ErrorCode::kTooLarge, " of 1025 bytes");
  };
  refused([&](Manifest& m) { m.writer = text; });
  refused([&](Manifest& m) { m.identity.architecture = text; });
  refused([&](Manifest& m) { m.identity.model_name = text; });
  refused([&](Manifest& m) { m.identity.source_format = text; });
  refused([&](Manifest& m) { arrays_of(m, 1)[0].name = text; });
}

TEST(WriterRules, RefuseMoreItemsThanAFileMayHave) {
  const auto refused = [&](const std::function<void(Manifest&)>& change, std::string_view part) {
    expect_refused_contents(change, ErrorCode::kTooLarge, part);
  };
  refused([](Manifest& m) { m.layers.resize(1025, m.layers[0]); }, "1025 layers");
  refused([](Manifest& m) { m.gaps.resize(format::kMaxGaps + 1); }, "1048577 gaps");
  refused([](Manifest& m) { arrays_of(m, 1).resize(65); }, "layer 1: 65 arrays");
  refused([](Manifest& m) { arrays_of(m, 1)[1].shape.assign(9, 1); },
          "layer 1: array 1: 9 dimensions");
  refused([](Manifest& m) { m.identity.rope.n_dims = 1025; }, "rope: 1025 components");
}

TEST(WriterRules, RefuseNumbersBelowZero) {
  expect_refused_contents([](Manifest& m) { m.identity.rope.n_dims = -1; }, ErrorCode::kTooLarge,
                          "rope: -1 components");
  const Manifest turbo = info_of(file_of(CacheBuilder(3).turbo({1, 32}, 4, 4).build()));
  Manifest manifest = turbo;
  k_of(manifest, 0).n_sinks = -1;
  expect_error(format::check_contents(manifest), ErrorCode::kCorrupt, "layer 0: k: -1 sink tokens");
}

TEST(WriterRules, RefuseCodecsThatTogetherTakeTooMuch) {
  // Values alone: 33 tensors with a matrix of 512 x 512 each, all of different seeds.
  const cache::Cache cache = CacheBuilder(3).turbo({1, 512}, 1, 1).build();
  Manifest manifest = info_of(file_of(cache));
  manifest.layers.resize(33, manifest.layers[0]);
  for (std::size_t i = 0; i < manifest.layers.size(); ++i) {
    codec::PartSpec& quantizer = v_of(manifest, i).parts[0];
    quantizer.rotation = codec::TransformKind::kDenseQr;
    quantizer.seed = i;
  }
  expect_error(format::check_contents(manifest), ErrorCode::kTooLarge, "codecs: matrices of ");
}

}  // namespace writer_rules_test
}  // namespace tqcache::test
