// Files of version 1 with one thing about them changed, whatever it is: each is refused in words,
// or becomes a cache that the second opinion agrees with. And the second opinion itself, asked of
// such a file, ends with a verdict.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "migrations/v1_to_v2.h"
#include "support/cache_builder.h"
#include "support/v1_builder.h"

namespace tqcache::test {
namespace v1_changed_files_test {

using migrations::check_migrated;
using migrations::v1_to_v2;
using migrations::V1Dtype;
using migrations::V1Entry;
using migrations::V1File;
using migrations::V1Tensor;
using nlohmann::json;

// One full token block and some tokens more, in every kind of layer.
V1File some_file() {
  return V1Builder(260)
      .turbo({1, 32}, {.bits = 3, .wht = true, .affine_values = V1Affine{4, 16}})
      .turbo({1, 32}, {.bits = 2, .prod = true, .wht = true})
      .turbo({1, 32}, {.bits = 3, .mixed = V1Mixed{8, 3, 2}})
      .quantized({1, 64}, {.bits = 4, .group_size = 32})
      .dense({2, 8}, V1Dtype::kF16)
      .rotating({1, 4}, {.n_rows = 16, .keep = 2, .max_size = 16, .next = 5})
      .arrays()
      .facts()
      .build();
}

// A cache that was saved before its outlier channels were chosen.
V1File calibrating_file() {
  return V1Builder(100)
      .turbo({1, 32}, {.bits = 3, .mixed = V1Mixed{8, 3, 2}, .calibrating = true})
      .turbo({1, 32}, {.mixed = V1Mixed{8, 3, 2}, .affine_values = V1Affine{}, .calibrating = true})
      .build();
}

std::size_t size_of(V1Dtype dtype) {
  if (dtype == V1Dtype::kF32 || dtype == V1Dtype::kU32) return 4;
  return dtype == V1Dtype::kF16 || dtype == V1Dtype::kBf16 ? 2 : 1;
}

enum class Verdict { kUnasked, kAsked };

class ChangedV1File : public testing::Test {
 protected:
  // Holds a changed file against the rules above.
  void check(const V1File& file, const std::string& place) {
    const auto migration = v1_to_v2(file);
    n_taken_ += migration.ok() ? 1 : 0;
    n_refused_ += migration.ok() ? 0 : 1;
    if (!migration) {
      EXPECT_FALSE(migration.error().message.empty()) << place;
      return;
    }
    const auto agreed = check_migrated(file, migration->cache, 1);
    EXPECT_TRUE(agreed.ok()) << place << ": " << (agreed.ok() ? "" : agreed.error().message);
  }

  // Calls change(entry, step) for a copy of every entry and ascending steps, as long as it tells
  // what it has changed. The second opinion has to be of one that only lacks something.
  using Change = std::function<std::optional<std::string>(V1Entry&, std::size_t)>;
  void each_entry(const Change& change, Verdict verdict = Verdict::kUnasked) {
    for (const V1File& file : {some_file(), calibrating_file()}) {
      for (const V1Entry& entry : file.entries) {
        V1File alone{{entry}, file.metadata};  // without layers that are the same every time
        const cache::Cache whole = must(v1_to_v2(alone)).cache;
        for (std::size_t step = 0;; ++step) {
          V1File changed = alone;
          const auto what = change(changed.entries[0], step);
          if (!what) break;
          check(changed, entry.class_path + ": " + *what);
          if (verdict == Verdict::kAsked) (void)check_migrated(changed, whole, 1);
        }
      }
    }
  }

  int n_taken_ = 0;
  int n_refused_ = 0;
};

// The `step`th tensor of an entry, of its state or of its extra state; nullptr: there are no more.
V1Tensor* tensor_of(V1Entry& entry, std::size_t step) {
  if (step < entry.state.size()) return &entry.state[step];
  step -= entry.state.size();
  return step < entry.extra_state.size() ? &entry.extra_state[step] : nullptr;
}

TEST_F(ChangedV1File, WithoutATensor) {
  const auto change = [](V1Entry& entry, std::size_t step) -> std::optional<std::string> {
    const V1Tensor* tensor = tensor_of(entry, step);
    if (tensor == nullptr) return {};
    std::string name = tensor->name;
    const auto is_it = [&](const V1Tensor& each) { return &each == tensor; };
    if (step < entry.state.size()) {
      std::erase_if(entry.state, is_it);
    } else {
      std::erase_if(entry.extra_state, is_it);
    }
    return name;
  };
  each_entry(change, Verdict::kAsked);
  EXPECT_GT(n_refused_, 15);
}

TEST_F(ChangedV1File, WithATensorOfAnotherName) {
  each_entry(
      [](V1Entry& entry, std::size_t step) -> std::optional<std::string> {
        if (step >= entry.state.size()) return {};
        return std::exchange(entry.state[step].name, "another");
      },
      Verdict::kAsked);
  EXPECT_GT(n_refused_, 15);
}

TEST_F(ChangedV1File, WithATensorOfAnotherType) {
  constexpr V1Dtype kTypes[] = {V1Dtype::kF32, V1Dtype::kF16, V1Dtype::kBf16,
                                V1Dtype::kU8,  V1Dtype::kU32, V1Dtype::kBool};
  each_entry([&](V1Entry& entry, std::size_t step) -> std::optional<std::string> {
    if (step / std::size(kTypes) >= entry.state.size()) return {};
    V1Tensor& tensor = entry.state[step / std::size(kTypes)];
    tensor.dtype = kTypes[step % std::size(kTypes)];
    std::size_t count = size_of(tensor.dtype);
    for (const std::uint64_t n : tensor.shape) count *= n;
    tensor.data.assign(count, std::byte{0});
    return tensor.name;
  });
  EXPECT_GT(n_refused_, 60);
  EXPECT_GT(n_taken_, 10);
}

TEST_F(ChangedV1File, WithATensorOfAnotherShape) {
  each_entry([](V1Entry& entry, std::size_t step) -> std::optional<std::string> {
    const std::size_t index = step / 6;
    if (index >= entry.state.size()) return {};
    V1Tensor& tensor = entry.state[index];
    std::vector<std::uint64_t>& shape = tensor.shape;
    switch (step % 6) {
      case 0:
        shape.push_back(1);
        break;
      case 1:
        if (!shape.empty()) shape.pop_back();
        break;
      case 2:
        if (!shape.empty()) shape.back() += 1;
        break;
      case 3:
        if (!shape.empty()) shape.front() += 1;
        break;
      case 4:
        if (shape.size() > 2) shape[2] -= 1;
        break;
      default:
        shape = {0};
    }
    std::size_t count = size_of(tensor.dtype);
    for (const std::uint64_t n : shape) count *= n;
    tensor.data.resize(count);
    return tensor.name;
  });
  EXPECT_GT(n_refused_, 80);
}

TEST_F(ChangedV1File, WithAValueThatIsNotFinite) {
  each_entry([](V1Entry& entry, std::size_t step) -> std::optional<std::string> {
    if (step >= entry.state.size()) return {};
    V1Tensor& tensor = entry.state[step];
    std::fill(tensor.data.begin(), tensor.data.end(), std::byte{0xff});
    return tensor.name;
  });
  EXPECT_GT(n_refused_, 8);
}

TEST_F(ChangedV1File, OfNoTokens) {
  check(V1Builder(0)
            .turbo({1, 32}, {.bits = 3, .affine_values = V1Affine{4, 16}})
            .turbo({1, 32}, {.bits = 2, .prod = true, .wht = true})
            .dense({2, 8}, V1Dtype::kF16)
            .quantized({1, 64}, {.bits = 4, .group_size = 32})
            .arrays()
            .build(),
        "no tokens");
  EXPECT_EQ(n_taken_, 1);
}

TEST_F(ChangedV1File, OfAnotherClass) {
  std::vector<std::string> classes = {"", "os.system", "turbomlx.cache.Other"};
  for (const V1Entry& entry : some_file().entries) classes.push_back(entry.class_path);
  each_entry([&](V1Entry& entry, std::size_t step) -> std::optional<std::string> {
    if (step >= classes.size()) return {};
    entry.class_path = classes[step];
    return classes[step];
  });
  EXPECT_GT(n_refused_, 20);
}

// What a field of JSON may be instead, and without it.
const std::vector<std::optional<json>>& replacements() {
  static const std::vector<std::optional<json>> all = {
      std::nullopt, json(nullptr), json(0),    json(-1),        json(1),       json(9),
      json(1e9),    json(2.5),     json(true), json("another"), json::array(), json::object()};
  return all;
}

// The paths of all fields of an object, those of objects in it included.
std::vector<json::json_pointer> fields_of(const json& object,
                                          const json::json_pointer& at = json::json_pointer()) {
  std::vector<json::json_pointer> fields;
  for (const auto& [key, value] : object.items()) {
    fields.push_back(at / key);
    if (!value.is_object()) continue;
    for (const auto& inner : fields_of(value, at / key)) fields.push_back(inner);
  }
  return fields;
}

// Changes the field that `step` says in one of the texts of an entry that hold JSON.
std::optional<std::string> change_field(std::string& text, std::size_t step) {
  json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return {};
  const auto fields = fields_of(object);
  const std::size_t n = replacements().size();
  if (step / n >= fields.size()) return {};
  const json::json_pointer& field = fields[step / n];
  const std::optional<json>& other = replacements()[step % n];
  if (other) {
    object[field] = *other;
  } else {
    object[field.parent_pointer()].erase(field.back());
  }
  text = object.dump();
  return field.to_string() + " = " + (other ? other->dump() : "(absent)");
}

TEST_F(ChangedV1File, WithAnotherFieldOfItsState) {
  each_entry([](V1Entry& entry, std::size_t step) { return change_field(entry.meta_state, step); });
  EXPECT_GT(n_refused_, 400);
  EXPECT_GT(n_taken_, 20);
}

TEST_F(ChangedV1File, WithAnotherFieldOfItsCalibration) {
  each_entry([](V1Entry& entry, std::size_t step) { return change_field(entry.extra_meta, step); });
}

TEST_F(ChangedV1File, WithStateThatIsNoObjectOfItsClass) {
  constexpr std::string_view kTexts[] = {"",
                                         "{",
                                         "{}",
                                         "[]",
                                         "[1]",
                                         "[1,2,3]",
                                         "[1,2,3,4]",
                                         "[-1,0,0,0]",
                                         "\"x\"",
                                         "null",
                                         "[4,1000000000,1000,4]"};
  each_entry([&](V1Entry& entry, std::size_t step) -> std::optional<std::string> {
    if (step >= std::size(kTexts)) return {};
    entry.meta_state = kTexts[step];
    return entry.meta_state;
  });
  EXPECT_GT(n_refused_, 30);
}

TEST_F(ChangedV1File, WithOtherFactsOfItsModel) {
  const V1File file = V1Builder(260).dense({1, 8}, V1Dtype::kF16).facts().build();
  for (std::size_t i = 0; i < file.metadata.size(); ++i) {
    for (const std::string_view value :
         {"", "x", "{}", "[]", "[1", "[-1]", "[1,]", "1", "null", "\"\"", "0123",
          R"({"style":"none"})", R"({"style":"half_split","n_dims":-1,"base":1})",
          R"({"style":"half_split","n_dims":8,"base":-1})",
          R"({"style":"interleaved","n_dims":8,"base":1e4,"factors":[1]})", R"({"style":7})"}) {
      V1File changed = file;
      changed.metadata[i].second = value;
      check(changed, changed.metadata[i].first + " = " + std::string(value));
    }
    V1File without = file;
    without.metadata.erase(without.metadata.begin() + static_cast<std::ptrdiff_t>(i));
    check(without, "without " + file.metadata[i].first);
    V1File twice = file;
    twice.metadata.push_back(file.metadata[i]);
    check(twice, "twice " + file.metadata[i].first);
  }
  EXPECT_GT(n_refused_, 20);
}

}  // namespace v1_changed_files_test
}  // namespace tqcache::test
