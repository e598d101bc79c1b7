// Split GGUF models: read as one, and refused where the parts do not fit together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "model/tiny_files.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tensors/gguf_builder.h"
#include "tqcache/model.h"
#include "tqcache/model/loading/model_files.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::model {
namespace gguf_parts_test {

using test::GgufBuilder;
using test::TempDir;
using test::write_all;
using testing::HasSubstr;

void add_value(GgufBuilder& file, const std::string& key, const tensors::GgufValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    file.value(key, test::kI64, *integer);
  } else if (const auto* number = std::get_if<double>(&value)) {
    file.value(key, test::kF64, *number);
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    file.text(key, *text);
  } else if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&value)) {
    file.array(key, test::kI64, *integers);
  } else {
    const auto& texts = std::get<std::vector<std::string_view>>(value);
    file.texts(key, {texts.begin(), texts.end()});
  }
}

// What a part says of itself, and the tensors that go into it.
struct Part {
  std::int64_t number = 0;
  std::int64_t count = 3;
  std::int64_t n_tensors = 0;  // of all parts; 0: is not told
  tiny::Shapes tensors;        // by Hugging Face name
};

GgufBuilder builder(const Part& part) {
  GgufBuilder file;
  if (part.number == 0) {
    for (const auto& [key, value] : tiny::gguf().metadata) add_value(file, key, value);
  }
  file.value("split.no", test::kU16, static_cast<std::uint16_t>(part.number));
  file.value("split.count", test::kU16, static_cast<std::uint16_t>(part.count));
  if (part.n_tensors != 0) {
    file.value("split.tensors.count", test::kI32, static_cast<std::int32_t>(part.n_tensors));
  }
  for (const auto& [name, shape] : part.tensors) {
    std::size_t n_bytes = sizeof(float);
    for (const std::int64_t n : shape) n_bytes *= static_cast<std::size_t>(n);
    file.tensor(gguf_name(name), {shape.rbegin(), shape.rend()}, test::kTensorF32, n_bytes);
  }
  return file;
}

// A model in three files, the second of which has one tensor and the third most of them.
class GgufParts : public testing::Test {
 protected:
  GgufParts() {
    for (const auto& [name, shape] : tiny::shapes()) {
      const bool is_first = name.find("layers.0") != std::string::npos;
      parts_[is_first ? 0 : name == "model.norm.weight" ? 1 : 2].tensors[name] = shape;
    }
    for (std::int64_t i = 0; i < 3; ++i) parts_[static_cast<std::size_t>(i)].number = i;
    parts_[0].n_tensors = 24;
  }

  static std::string name(std::size_t part) {
    return "tiny-0000" + std::to_string(part + 1) + "-of-00003.gguf";
  }
  void write() {
    for (std::size_t i = 0; i < 3; ++i) write_all(dir_ / name(i), builder(parts_[i]).build());
  }
  void expect_refused(ErrorCode code, const std::string& message,
                      const std::string& file = name(0)) {
    EXPECT_THAT(load_model(dir_ / file), test::FailsWith(code, HasSubstr(message)));
  }

  TempDir dir_;
  Part parts_[3];
};

TEST_F(GgufParts, AreTheSameAsTheModelInOneFile) {
  write();
  write_all(dir_ / "whole.gguf", builder({0, 1, 24, tiny::shapes()}).build());
  const auto parts = load_model(dir_ / name(0)).value();
  const auto whole = load_model(dir_ / "whole.gguf").value();
  EXPECT_EQ(parts->files.size(), 3u);
  EXPECT_EQ(parts->identity.weights_fingerprint, whole->identity.weights_fingerprint);
}

// What a model is also depends on which tensors it has, wherever they are.
TEST_F(GgufParts, MayHaveTheOutputMatrixInALaterOne) {
  parts_[2].tensors["lm_head.weight"] = tiny::shapes().at("model.embed_tokens.weight");
  parts_[0].n_tensors = 25;
  write();
  const auto model = load_model(dir_ / name(0));
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_FALSE((*model)->config.tied_embeddings);
}

TEST_F(GgufParts, AreNamedByTheFirst) {
  write();
  expect_refused(ErrorCode::kInvalidArgument, "name the one that ends in -00001-of-00003.gguf",
                 name(1));
  std::filesystem::rename(dir_ / name(0), dir_ / "renamed.gguf");
  expect_refused(ErrorCode::kInvalidArgument,
                 "which only a name that ends in -00001-of-00003.gguf leads to", "renamed.gguf");
}

TEST_F(GgufParts, RefuseAPartThatIsMissing) {
  write();
  std::filesystem::remove(dir_ / name(2));
  expect_refused(ErrorCode::kNotFound, "\"" + name(2) + "\": ");
}

TEST_F(GgufParts, RefuseAPartThatIsCutShort) {
  write();
  const Bytes whole = builder(parts_[2]).build();
  write_all(dir_ / name(2), ByteView(whole).first(whole.size() - 1));
  expect_refused(ErrorCode::kTruncated, "\"" + name(2) + "\": ");
}

TEST_F(GgufParts, RefuseNumbersThatContradictTheNames) {
  parts_[1].number = 2;
  write();
  expect_refused(ErrorCode::kCorrupt, name(1) + "\": key \"split.no\": 2 where the name says 1");
  parts_[1].number = 1;
  parts_[2].count = 4;
  write();
  expect_refused(ErrorCode::kCorrupt,
                 name(2) + "\": key \"split.count\": 4 where the first part says 3");
}

TEST_F(GgufParts, RefuseATensorThatComesTwice) {
  parts_[2].tensors["model.norm.weight"] = {8};
  write();
  expect_refused(ErrorCode::kCorrupt, name(2) + "\": tensor \"output_norm.weight\": comes twice");
}

TEST_F(GgufParts, RefuseAnotherNumberOfTensorsThanTheFirstSays) {
  parts_[0].n_tensors = 25;
  write();
  expect_refused(ErrorCode::kCorrupt, "key \"split.tensors.count\": 25 where the parts have 24");
}

TEST_F(GgufParts, RefuseMorePartsThanAnyModelHas) {
  parts_[0].count = 1025;
  write();
  expect_refused(ErrorCode::kTooLarge, "key \"split.count\": 1025 parts, at most 1024 are read");
}

TEST_F(GgufParts, RefusePartsThatDoNotSayWhichTheyAre) {
  write();
  write_all(dir_ / name(1), GgufBuilder().text("split.no", "1").build());
  expect_refused(ErrorCode::kCorrupt, name(1) + "\": key \"split.no\": not an integer");
  write_all(dir_ / name(1), GgufBuilder().value<std::uint16_t>("split.no", test::kU16, 1).build());
  expect_refused(ErrorCode::kCorrupt, name(1) + "\": key \"split.count\": missing");
}

}  // namespace gguf_parts_test
}  // namespace tqcache::model
