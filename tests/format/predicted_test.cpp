// Predicted archives: the profile's file, the integer product, the arithmetic code, files, and what
// is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "file_fixture.h"
#include "python_reader.h"
#include "support/matchers.h"
#include "support/small_profile.h"
#include "support/temp_dir.h"
#include "tqcache/base/half.h"
#include "tqcache/base/threads.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/section_writer.h"
#include "tqcache/predict/integer_matrix.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/predict/symbol_path.h"
#include "tqcache/quantize.h"

namespace tqcache::test {
namespace predicted_test {

using predict::Predictor;
using testing::HasSubstr;

std::shared_ptr<const Predictor> predictor_of(const predict::Profile& profile) {
  const Bytes file = predict::profile_bytes(profile);
  return std::make_shared<const Predictor>(must(predict::parse_profile(file)),
                                           predict::profile_digest(file));
}

std::shared_ptr<const cache::CacheReader> predicted(const cache::Cache& cache, float step,
                                                    const predict::Profile& profile) {
  return must(format::predict_cache(cache::reader_of(cache), predictor_of(profile), step, 4));
}

// Access to archives of small_profile().
format::Access access(const KeyRing& keys = {}) {
  format::Access access{.keys = keys};
  access.profiles.add(predictor_of(small_profile()));
  return access;
}

Result<cache::Cache> load(const Bytes& file, format::ReadOptions options = {.access = access()}) {
  return format::read_cache(*memory_source(file), options);
}

std::vector<std::string> damage_of(const Bytes& file) { return test::damage_of(file, access()); }

Bytes archive_of(const cache::Cache& cache, float step = 0.2f, const KeyRing& keys = {}) {
  return must(format::write_cache_bytes(*predicted(cache, step, small_profile()),
                                        {.keep_stored = true, .keys = keys}));
}

std::string refusal_of(const Bytes& profile, ErrorCode code) {
  const auto parsed = predict::parse_profile(profile);
  if (parsed) return "taken";
  EXPECT_EQ(parsed.error().code, code) << parsed.error().message;
  return parsed.error().message;
}

Bytes bytes_of(const std::string& text) {
  const ByteView view = as_bytes(text);
  return {view.begin(), view.end()};
}

TEST(IntegerMatrix, HasTheSameSumsOnEveryCpu) {
  EvenNumbers numbers(3);
  for (const std::size_t n_rows : {1u, 2u, 31u, 200u}) {
    for (const std::size_t n_cols : {1u, 16u, 64u, 70u}) {
      std::vector<std::int8_t> values(n_rows * n_cols);
      for (auto& each : values) each = static_cast<std::int8_t>(numbers.next() * 127);
      const predict::IntegerMatrix matrix(n_rows, n_cols, values);
      constexpr std::size_t kTokens = 13;
      predict::Int16Rows x(kTokens * matrix.input_stride());
      for (std::size_t t = 0; t < kTokens; ++t) {
        for (std::size_t i = 0; i < n_rows; ++i) {
          x[t * matrix.input_stride() + i] =
              static_cast<std::int16_t>(numbers.next() * predict::kMaxInput);
        }
      }
      for (const codec::Kernels* const kernels : codec::all_kernels()) {
        predict::Int32Rows out(kTokens * matrix.output_stride());
        matrix.multiply(x.data(), kTokens, out.data(), kernels->isa);
        for (std::size_t t = 0; t < kTokens; ++t) {
          for (std::size_t j = 0; j < n_cols; ++j) {
            std::int32_t sum = 0;
            for (std::size_t i = 0; i < n_rows; ++i) {
              sum += x[t * matrix.input_stride() + i] * values[i * n_cols + j];
            }
            ASSERT_EQ(out[t * matrix.output_stride() + j], sum) << kernels->name;
          }
        }
      }
    }
  }
}

TEST(SymbolPath, DecodesWhatWasEncoded) {
  EvenNumbers numbers(4);
  constexpr std::size_t kDim = 50;
  std::vector<std::uint8_t> classes;
  for (std::size_t i = 0; i < kDim; ++i) {
    classes.push_back(predict::class_of(40 * std::exp2(-static_cast<float>(i) / 5)));
  }
  predict::SymbolModels models;
  predict::PathSearch search(0.3f);
  Bytes out;
  predict::RangeEncoder encoder(out);
  std::vector<std::vector<std::int16_t>> all;
  std::vector<std::uint32_t> sums;
  double error = 0;
  for (int t = 0; t < 60; ++t) {
    std::vector<float> y(kDim);
    for (std::size_t i = 0; i < kDim; ++i) {
      y[i] = numbers.next() * 60 * std::exp2(-static_cast<float>(i) / 5);
    }
    if (t == 7) y[3] = 1e9f;  // beyond all levels
    if (t == 8) y[0] = -1700;
    std::vector<std::int16_t> symbols(kDim), levels(kDim);
    search.set_prices(models);
    search.find(y, classes, 2, symbols, levels);
    predict::encode_symbols(encoder, models, classes, 2, symbols);
    for (std::size_t i = 0; i < kDim && t != 7; ++i) {
      error += std::pow(double{y[i]} - levels[i], 2) / (59 * kDim);
    }
    all.push_back(levels);
    sums.push_back(predict::activity_of(symbols));
  }
  encoder.finish();
  EXPECT_LT(error, 0.4);  // rounding to integers would leave 1/12, to even ones 1/3
  predict::RangeDecoder decoder(out);
  models = {};
  for (std::size_t t = 0; t < all.size(); ++t) {
    std::vector<std::int16_t> levels(kDim);
    EXPECT_EQ(must(predict::decode_levels(decoder, models, classes, 2, levels)), sums[t]);
    ASSERT_EQ(levels, all[t]) << t;
  }
  EXPECT_TRUE(decoder.is_complete());
}

TEST(SymbolPath, RefusesASymbolBeyondTheLimit) {
  const std::vector<std::uint8_t> classes(3, 20);
  for (const int symbol : {1000, 1001, 30000}) {
    Bytes out;
    predict::SymbolModels models;
    predict::RangeEncoder encoder(out);
    const std::vector<std::int16_t> symbols = {1, static_cast<std::int16_t>(-symbol), 2};
    predict::encode_symbols(encoder, models, classes, 1, symbols);
    encoder.finish();
    predict::RangeDecoder decoder(out);
    models = {};
    std::vector<std::int16_t> levels(3);
    const auto decoded = predict::decode_levels(decoder, models, classes, 1, levels);
    EXPECT_EQ(decoded.ok(), symbol == 1000) << symbol;
    if (decoded) {
      EXPECT_EQ(levels[1], -2000);
    }
  }
}

// The encoder is free to choose, but what it says it encoded is what readers get, and all kernels
// choose alike.
TEST(PredictedBlock, IsEncodedTheSameOnEveryKindOfCpu) {
  constexpr std::size_t kTokens = 37, kDim = 64, kSinks = 2;
  const auto predictor = predictor_of(small_profile());
  must(predictor->prepare_encoding(1));
  std::vector<std::int32_t> ids;
  for (std::int32_t t = 0; t < 37; ++t) ids.push_back(t * 11 % 40);
  std::vector<Bytes> expected;
  for (const codec::Kernels* const kernels : codec::all_kernels()) {
    predict::BlockCoder encoder(*predictor, 0.11f, ids, kSinks, *kernels);
    predict::BlockCoder decoder(*predictor, 0.11f, ids, kSinks);
    EvenNumbers numbers(5);
    for (std::size_t tensor = 0; tensor < 6; ++tensor) {
      AlignedFloats rows(kTokens * kDim), encoded(kTokens * kDim), decoded(kTokens * kDim);
      for (float& each : rows) each = numbers.next() * 3;
      if (tensor == 3) rows[5 * kDim + 7] = 1e6f;  // beyond all levels
      Bytes coded;
      must(encoder.encode(rows, coded, encoded));
      must(decoder.decode(coded, decoded));
      EXPECT_EQ(encoded, decoded) << kernels->name;
      if (kernels == codec::all_kernels().front()) {
        expected.push_back(coded);
      } else {
        EXPECT_EQ(coded, expected[tensor]) << kernels->name << " " << tensor;
      }
    }
  }
}

predict::Profile wide_profile(cache::HeadShape shape) {
  predict::Profile profile = small_profile();
  profile.n_layers = 1;
  profile.shape = shape;
  profile.depth = 0;
  const std::size_t dim = to_size(profile.channels());
  EvenNumbers numbers(8);
  profile.tensors.clear();
  for (std::size_t i = 0; i < 2; ++i) {
    predict::TensorProfile tensor;
    tensor.mean.assign(dim, 0.1f);
    tensor.unit.assign(dim, 0.005f);
    tensor.weights.resize(to_size(profile.n_inputs(i)) * dim);
    for (std::int8_t& each : tensor.weights) each = static_cast<std::int8_t>(numbers.next() * 3);
    tensor.weight_scale.assign(dim, 1e-5f);
    tensor.map.resize(dim * dim);
    for (std::size_t c = 0; c < dim; ++c) {
      tensor.map[c * dim + c * 5 % dim] = 9;
      tensor.map[c * dim + c] = 100;
    }
    tensor.map_scale.assign(dim, 0.01f);
    tensor.deviation.assign(dim, 0.6f);
    profile.tensors.push_back(std::move(tensor));
  }
  return profile;
}

TEST(PredictionProfile, HasUpTo2048Channels) {
  EXPECT_EQ(refusal_of(predict::profile_bytes(wide_profile({16, 128})), ErrorCode::kTooLarge),
            "taken");
  EXPECT_THAT(refusal_of(predict::profile_bytes(wide_profile({33, 64})), ErrorCode::kTooLarge),
              HasSubstr("2112 channels"));
}

// More than the 1,024 that were once the limit; no multiple of the width of a kernel.
TEST(PredictedBlock, OfAWideModelIsDecodedAsItWasEncoded) {
  constexpr std::size_t kTokens = 5, kDim = 1105;
  const auto predictor = predictor_of(wide_profile({17, 65}));
  must(predictor->prepare_encoding(1));
  const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5};
  std::vector<Bytes> expected;
  for (const codec::Kernels* const kernels : codec::all_kernels()) {
    predict::BlockCoder encoder(*predictor, 0.2f, ids, 1, *kernels);
    predict::BlockCoder decoder(*predictor, 0.2f, ids, 1, *kernels);
    EvenNumbers numbers(5);
    for (std::size_t tensor = 0; tensor < 2; ++tensor) {
      AlignedFloats rows(kTokens * kDim), encoded(kTokens * kDim), decoded(kTokens * kDim);
      for (float& each : rows) each = numbers.next() * 3;
      Bytes coded;
      must(encoder.encode(rows, coded, encoded));
      must(decoder.decode(coded, decoded));
      EXPECT_EQ(encoded, decoded) << kernels->name;
      double error = 0;
      for (std::size_t i = kDim; i < rows.size(); ++i) error += std::pow(rows[i] - encoded[i], 2);
      EXPECT_LT(error / static_cast<double>(rows.size()), 0.05);
      if (kernels == codec::all_kernels().front()) expected.push_back(coded);
      EXPECT_EQ(coded, expected[tensor]) << kernels->name;
    }
  }
}

// Sizes with and without groups of rows that are not full; maps whose pivots are not on the
// diagonal.
TEST(MapInverse, UndoesTheMap) {
  EvenNumbers numbers(9);
  for (const std::size_t dim : {1u, 7u, 32u, 37u, 64u, 70u}) {
    predict::Profile profile;
    profile.n_layers = 1;
    profile.shape = {1, static_cast<std::int64_t>(dim)};
    for (std::size_t i = 0; i < 2; ++i) {
      predict::TensorProfile tensor;
      tensor.unit.assign(dim, 1);
      tensor.weights.resize(i * dim * dim);
      tensor.map_scale.assign(dim, 0.03f);
      tensor.map.resize(dim * dim);
      for (std::int8_t& each : tensor.map) each = static_cast<std::int8_t>(numbers.next() * 127);
      tensor.map.front() = dim == 1 ? 5 : 0;
      profile.tensors.push_back(tensor);
    }
    const Predictor predictor(profile, {});
    must(predictor.prepare_encoding(1));
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::size_t row = 0; row < dim; ++row) {
        for (std::size_t col = 0; col < dim; ++col) {
          double sum = 0;
          for (std::size_t k = 0; k < dim; ++k) {
            sum += 0.03 * profile.tensors[i].map[row * dim + k] *
                   double{predictor.inverse(i)[k * dim + col]};
          }
          EXPECT_NEAR(sum, row == col ? 1 : 0, 1e-3) << dim << " " << row << " " << col;
        }
      }
    }
    profile.tensors[0].map.assign(dim * dim, 0);
    EXPECT_FALSE(Predictor(profile, {}).prepare_encoding(1));
  }
}

TEST(PredictedValues, AreConvertedTheSameOnEveryKindOfCpu) {
  constexpr std::size_t kDim = 37, kTokens = 65536 / 32;
  const cache::HeadShape shape{1, static_cast<std::int64_t>(kDim)};
  AlignedBytes halves(kTokens * kDim * 2);
  for (std::size_t i = 0; i < kTokens * kDim; ++i) {  // every bit pattern
    halves[2 * i] = static_cast<std::byte>(i & 0xff);
    halves[2 * i + 1] = static_cast<std::byte>(i >> 8 & 0xff);
  }
  EvenNumbers numbers(4);
  AlignedFloats rows(kTokens * kDim);
  for (float& each : rows) each = std::ldexp(numbers.next(), static_cast<int>(numbers.next() * 40));
  AlignedFloats found(rows.size());
  predict::rows_of_values(shape, Dtype::kF16, halves, found);
  AlignedBytes back(halves.size()), packed(halves.size());
  predict::values_of_rows(shape, Dtype::kF16, found, back);
  predict::values_of_rows(shape, Dtype::kF16, rows, packed);
  const auto half_at = [](const AlignedBytes& bytes, std::size_t i) {
    std::uint16_t half;
    std::memcpy(&half, bytes.data() + 2 * i, sizeof(half));
    return half;
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(found[i]),
              std::bit_cast<std::uint32_t>(f16_to_f32(half_at(halves, i))));
    ASSERT_EQ(half_at(back, i), f32_to_f16(found[i]));
    ASSERT_EQ(half_at(packed, i), f32_to_f16(rows[i]));
  }
}

TEST(PredictedValues, OfSomeTokensAreThoseOfAll) {
  const cache::Cache cache = predicted_model_cache(256);
  const auto reader = cache::reader_of(cache);
  const SharedBytes values = must(reader->share(0));
  const cache::HeadShape shape = small_profile().shape;
  AlignedFloats all(256 * 64), some(3 * 64);
  predict::rows_of_values(shape, Dtype::kF16, values.view(), all);
  const std::vector<std::size_t> tokens = {0, 17, 255};
  predict::rows_of_tokens(shape, Dtype::kF16, values.view(), tokens, some);
  for (std::size_t i = 0; i < some.size(); ++i) {
    EXPECT_EQ(some[i], all[tokens[i / 64] * 64 + i % 64]) << i;
  }
  // And so are their turns.
  const cache::Rope rope = predicted_identity().rope;
  const std::vector<std::int64_t> positions = {512, 529, 767};
  predict::BlockRope(rope, shape, 512, 256).rotate(all);
  predict::BlockRope(rope, shape, positions).rotate(some);
  for (std::size_t i = 0; i < some.size(); ++i) {
    EXPECT_EQ(some[i], all[tokens[i / 64] * 64 + i % 64]) << i;
  }
}

TEST(PredictionProfile, IsReadAsItWasWritten) {
  const predict::Profile profile = small_profile();
  const Bytes file = predict::profile_bytes(profile);
  const predict::Profile again = must(predict::parse_profile(file));
  EXPECT_EQ(predict::profile_bytes(again), file);
  EXPECT_EQ(again.tensors[3].weights, profile.tensors[3].weights);
  EXPECT_EQ(again.tensors[5].mean, profile.tensors[5].mean);
  EXPECT_TRUE(predict::looks_like_profile(file));
}

TEST(PredictionProfile, KeepsFactorsOfKeysForCodesInMemory) {
  TempDir dir;
  const std::string path = (dir.path() / "both.tqprofile").string();
  const auto calibration_in = [&](const predict::Profile& profile) {
    const Bytes file = predict::profile_bytes(profile);
    write_all(path, file);
    return cache::read_calibration(path);
  };
  predict::Profile profile = small_profile();
  EXPECT_THAT(calibration_in(profile).error().message, HasSubstr("without factors of keys"));
  profile.key_factors.assign(3, std::vector<std::int8_t>(64, 5));
  profile.key_factors[0][63] = -127;
  profile.key_factors[1].clear();
  profile.key_losses = {1.5f, 0, 0.01f};
  const cache::Calibration calibration = must(calibration_in(profile));
  EXPECT_EQ(calibration.key_factors, profile.key_factors);
  EXPECT_EQ(calibration.weights_fingerprint, profile.weights_fingerprint);
  EXPECT_EQ(calibration.tokenizer_fingerprint, profile.tokenizer_fingerprint);
  const Bytes file = predict::profile_bytes(profile);
  const predict::Profile again = must(predict::parse_profile(file));
  EXPECT_EQ(again.key_factors, profile.key_factors);
  EXPECT_EQ(again.key_losses, profile.key_losses);

  predict::Profile wrong = profile;
  wrong.key_factors[2][7] = -128;
  EXPECT_THAT(refusal_of(predict::profile_bytes(wrong), ErrorCode::kCorrupt), HasSubstr("-128"));
  EXPECT_EQ(calibration_in(wrong).error().code, ErrorCode::kCorrupt);
  wrong = profile;
  wrong.key_factors.pop_back();
  EXPECT_THAT(refusal_of(predict::profile_bytes(wrong), ErrorCode::kCorrupt),
              HasSubstr("key_factors: not one list for each layer"));
  EXPECT_EQ(calibration_in(wrong).error().code, ErrorCode::kCorrupt);
  wrong = profile;
  wrong.key_factors[0].pop_back();
  EXPECT_THAT(refusal_of(predict::profile_bytes(wrong), ErrorCode::kCorrupt),
              HasSubstr("key_factors: 63 values instead of 64"));
  wrong = profile;
  wrong.key_losses.pop_back();
  EXPECT_THAT(refusal_of(predict::profile_bytes(wrong), ErrorCode::kCorrupt),
              HasSubstr("key_losses: 2 values instead of 3"));
  Bytes damaged = file;
  damaged[damaged.size() - 1] ^= std::byte{1};
  write_all(path, damaged);
  EXPECT_THAT(cache::read_calibration(path).error().message, HasSubstr("SHA-256"));
  write_all(path, Bytes(file.begin(), file.begin() + 60));
  EXPECT_THAT(cache::read_calibration(path).error().message, HasSubstr("truncated"));
}

TEST(PredictionProfile, IsRefusedWhenItIsDamagedOrOfAnotherVersion) {
  const Bytes good = predict::profile_bytes(small_profile());
  Bytes damaged = good;
  damaged[good.size() / 2] ^= std::byte{1};
  EXPECT_THAT(refusal_of(damaged, ErrorCode::kCorrupt), HasSubstr("SHA-256"));
  EXPECT_THAT(refusal_of(Bytes(good.begin(), good.begin() + 60), ErrorCode::kCorrupt),
              HasSubstr("truncated"));
  Bytes later = good;
  later[16] = std::byte{'3'};
  EXPECT_THAT(refusal_of(later, ErrorCode::kUnsupported), HasSubstr("version"));
  EXPECT_THAT(refusal_of(bytes_of("tqcache-profile 1 "), ErrorCode::kMismatch),
              HasSubstr("version 1"));
  EXPECT_THAT(refusal_of(bytes_of("something else"), ErrorCode::kCorrupt),
              HasSubstr("not a profile"));
  predict::Profile wrong = small_profile();
  wrong.tensors[2].unit[5] = 0;
  EXPECT_THAT(refusal_of(predict::profile_bytes(wrong), ErrorCode::kCorrupt),
              HasSubstr("layer 1 k: unit"));
  wrong = small_profile();
  wrong.tensors[1].weights.pop_back();
  EXPECT_THAT(refusal_of(predict::profile_bytes(wrong), ErrorCode::kCorrupt),
              HasSubstr("layer 0 v: weights"));
  wrong = small_profile();
  wrong.n_layers = 2;
  EXPECT_THAT(refusal_of(predict::profile_bytes(wrong), ErrorCode::kCorrupt), HasSubstr("tensors"));
}

TEST(PredictedArchive, HoldsTheValuesThatTheWriterDecoded) {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kF32}) {
    const cache::Cache cache = predicted_model_cache(600, dtype);
    const auto reader = predicted(cache, 0.2f, small_profile());
    const Bytes file = archive_of(cache);
    EXPECT_LT(file.size(), file_of(cache).size() / 3);
    EXPECT_THAT(damage_of(file), testing::IsEmpty());
    const CacheFileInfo info = info_of(file);
    ASSERT_TRUE(info.prediction);
    EXPECT_EQ(info.required_features, 1u << 6);
    const cache::Cache loaded = must(load(file, {.verify_digests = true, .access = access()}));
    const auto of_loaded = cache::reader_of(loaded), of_source = cache::reader_of(cache);
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < info.sections.size(); ++i) {
      EXPECT_EQ(info.sections[i].compression, Compression::kPredicted);
      AlignedBytes decoded, told, before;
      must(of_loaded->read(i, decoded));
      must(reader->read(i, told));
      must(of_source->read(i, before));
      EXPECT_EQ(decoded, told) << i;
      std::vector<float> a(before.size() / dtype_size(dtype)), b(a.size());
      load_f32(dtype, before.data(), a);
      load_f32(dtype, decoded.data(), b);
      for (std::size_t j = 0; j < a.size(); ++j) {
        error += std::pow(double{a[j]} - double{b[j]}, 2);
        energy += std::pow(double{a[j]}, 2);
      }
      // Sink tokens are kept as they were.
      const std::size_t n_dense = 4 * 32 * dtype_size(dtype);
      if (info.sections[i].block == 0) {
        EXPECT_TRUE(std::equal(before.begin(), before.begin() + static_cast<long>(n_dense),
                               decoded.begin()));
      }
    }
    EXPECT_LT(error, 0.3 * energy);
    EXPECT_GT(error, 0);
    // As a dense file of the same values.
    EXPECT_EQ(info_of(file_of(loaded)).content_name, info.content_name);
  }
}

TEST(PredictedArchive, HasFewerBitsWithALargerStep) {
  const cache::Cache cache = predicted_model_cache(512);
  EXPECT_LT(archive_of(cache, 0.4f).size(), archive_of(cache, 0.2f).size());
  const auto reader = cache::reader_of(cache);
  const auto predictor = predictor_of(small_profile());
  const double n_values = 512 * 64 * 6;
  for (const double bits : {4.0, 3.0}) {
    const auto [step, told] = must(format::choose_predicted_step(*reader, predictor, 4, bits, 1));
    // The last change of the step, of at most 3% of the bits, follows the profile's formula.
    EXPECT_NEAR(must(format::predicted_bits_of_step(*reader, predictor, 4, step, 1)), told,
                0.01 * bits);
    const double got = 8 * static_cast<double>(archive_of(cache, step).size()) / n_values;
    EXPECT_LT(got, bits * 1.02);
    EXPECT_GT(got, bits * 0.9);
    EXPECT_NEAR(told, got, 0.02 * bits);
  }
  EXPECT_FALSE(format::choose_predicted_step(*reader, predictor, 4, 0.01, 1));
}

TEST(PredictedArchive, IsRefusedWithoutItsProfile) {
  predict::Profile other = small_profile();
  other.n_tokens = 8;
  const cache::Cache cache = predicted_model_cache(300);
  const Bytes file =
      must(format::write_cache_bytes(*predicted(cache, 0.2f, other), {.keep_stored = true}));
  EXPECT_THAT(load(file), test::FailsWith(ErrorCode::kUnsupported,
                                          HasSubstr(to_hex(predictor_of(other)->digest()))));
  EXPECT_TRUE(format::read_cache_info(*memory_source(file)));

  // A folder of profiles has it.
  const TempDir dir;
  const Bytes bytes = predict::profile_bytes(other);
  must(write_file_atomically(dir / "other.tqprofile", bytes, Overwrite::kRefuse));
  must(write_file_atomically(dir / "noise.txt", bytes_of("not a profile"), Overwrite::kRefuse));
  EXPECT_TRUE(load(file, {.access = {.profiles = predict::Profiles().with_folder(dir / "")}}));
  EXPECT_FALSE(load(file)) << "another reader knows nothing of it";
}

TEST(PredictedArchive, BelongsToItsModelAlone) {
  cache::Cache cache = predicted_model_cache(300);
  const predict::Profile profile = small_profile();
  EXPECT_TRUE(format::check_predictable(cache::describe(cache), profile));
  cache.identity.weights_fingerprint.fill(std::byte{1});
  const auto other = format::check_predictable(cache::describe(cache), profile);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kMismatch);
  const auto is_refused = [&](const cache::Cache& each, ErrorCode code) {
    const auto checked = format::check_predictable(cache::describe(each), profile);
    return !checked && checked.error().code == code;
  };
  EXPECT_TRUE(is_refused(predicted_model_cache(255), ErrorCode::kUnsupported));
  cache = predicted_model_cache(300);
  cache.tokens[17] = 40;
  EXPECT_TRUE(is_refused(cache, ErrorCode::kMismatch));
  cache = predicted_model_cache(300);
  cache.layers.pop_back();
  EXPECT_TRUE(is_refused(cache, ErrorCode::kMismatch));
  EXPECT_TRUE(
      is_refused(must(cache::convert(predicted_model_cache(300), {})), ErrorCode::kUnsupported));
}

TEST(PredictedArchive, GrowsAndIsCompacted) {
  const TempDir dir;
  const std::string path = (dir / "a.tqkv").string();
  const Bytes file = archive_of(predicted_model_cache(300));
  must(write_file_atomically(path, file, Overwrite::kRefuse));
  auto appender =
      std::make_unique<format::CacheAppender>(must(format::CacheAppender::open(path, access())));
  cache::Cache cache = must(appender->read({}));
  const cache::Cache longer = predicted_model_cache(520);
  for (std::int64_t t = 300; t < 520; ++t) {
    for (std::size_t l = 0; l < 3; ++l) {
      cache::AttentionLayer& layer = *cache::attention_of(cache.layers[l]);
      const std::vector<float> row(64, static_cast<float>(t) / 100);
      cache::append(layer.k, layer.shape, t, row);
      cache::append(layer.v, layer.shape, t, row);
    }
    cache.tokens.push_back(longer.tokens[to_size(t)]);
  }
  must(appender->append(cache, {}));
  appender.reset();  // and its lock
  const auto source = must(open_file(path));
  const CacheFileInfo info = must(format::read_cache_info(*source));
  EXPECT_EQ(format::predicted_block_count(info), 1);
  EXPECT_THAT(must(format::verify_cache(*source, {.access = access()})).damage, testing::IsEmpty());
  EXPECT_EQ(file_of(must(format::read_cache(*source, {.access = access()}))), file_of(cache));
  must(format::compact_file(path, {}, {}, access()));
  const auto compacted = must(open_file(path));
  const CacheFileInfo after = must(format::read_cache_info(*compacted));
  EXPECT_TRUE(after.gaps.empty());
  EXPECT_EQ(format::predicted_block_count(after), 1);
  EXPECT_EQ(after.content_name, info.content_name);
  EXPECT_THAT(must(format::verify_cache(*compacted, {.access = access()})).damage,
              testing::IsEmpty());
}

TEST(PredictedArchive, StaysOneInViewsThatKeepItsBlocks) {
  const cache::Cache cache = predicted_model_cache(600);
  const Bytes file = archive_of(cache);
  const auto reader = std::make_shared<const format::SectionReader>(
      must(format::SectionReader::open(std::shared_ptr(memory_source(file)), access())));
  const cache::Cache whole = must(load(file));
  for (const std::int64_t n_tokens : {512, 400, 256}) {
    const auto cut = must(cache::first_tokens(reader, n_tokens));
    const Bytes kept = must(format::write_cache_bytes(*cut, {.keep_stored = true}));
    EXPECT_EQ(format::predicted_block_count(info_of(kept)), n_tokens / 256);
    EXPECT_THAT(damage_of(kept), testing::IsEmpty());
    EXPECT_EQ(file_of(must(load(kept))), file_of(must(cache::truncate(whole, n_tokens))));
    // Without the option everything is written anew, so it is dense.
    const Bytes anew = must(format::write_cache_bytes(*cut, {}));
    EXPECT_FALSE(info_of(anew).prediction);
    EXPECT_EQ(info_of(anew).content_name, info_of(kept).content_name);
  }
  // Nothing is left that is predicted.
  const auto little = must(cache::first_tokens(reader, 255));
  EXPECT_FALSE(info_of(must(format::write_cache_bytes(*little, {.keep_stored = true}))).prediction);
}

// The other program compares the SHA-256 of what it decodes, and so every bit.
TEST(PredictedArchive, IsReadByAnotherProgram) {
  if (!have_python()) GTEST_SKIP() << "no python3";
  const TempDir dir;
  must(write_file_atomically(dir / "small.tqprofile", predict::profile_bytes(small_profile()),
                             Overwrite::kRefuse));
  const std::string path = (dir / "a.tqkv").string();
  for (const Dtype dtype : {Dtype::kF16, Dtype::kF32}) {
    for (const float step : {0.3f, 0.01f}) {
      const Bytes file = archive_of(predicted_model_cache(dtype == Dtype::kF16 ? 20 : 270, dtype),
                                    dtype == Dtype::kF16 ? step : 1.0f);
      must(write_file_atomically(path, file, Overwrite::kAllow));
      const auto [status, text] =
          run_reader("'" + path + "'", "TQCACHE_PROFILES='" + dir.path().string() + "' ");
      ASSERT_EQ(status, 0) << text;
      EXPECT_THAT(text, HasSubstr(to_hex(info_of(file).content_name)));
      EXPECT_THAT(text, testing::Not(HasSubstr("no profile")));
      if (dtype == Dtype::kF32) break;  // more than a token block takes a second
    }
  }
}

TEST(PredictedArchive, OfTheGoldenFilesIsReadByAnotherProgram) {
  if (!have_python()) GTEST_SKIP() << "no python3";
  for (const std::string name : {"f16", "f32", "bf16"}) {
    const std::string path = TQCACHE_GOLDEN_PREDICTED "/" + name + ".tqkv";
    const auto [status, text] =
        run_reader("'" + path + "'", "TQCACHE_PROFILES='" TQCACHE_GOLDEN_PREDICTED "' ");
    ASSERT_EQ(status, 0) << text;
    const CacheFileInfo info = must(format::read_cache_info(*must(open_file(path))));
    EXPECT_THAT(text, HasSubstr(to_hex(info.content_name)));
    EXPECT_THAT(text, testing::Not(HasSubstr("no profile")));
  }
}

// --- Threads

format::PredictedBlock block_number(std::int64_t block) {
  format::PredictedBlock made;
  made.raw.resize(1);
  made.raw[0].assign(1, static_cast<std::byte>(block));
  return made;
}

// A thread makes a block and waits until another one, which needs the same block, makes the next.
// The limit of the wait only ends a test that fails.
TEST(PredictedBlocks, AreMadeTensorByTensorBehindThoseThatWereRead) {
  const std::int64_t first = thread_count(0) + 4, n_blocks = first + 3;
  format::PredictedBlocks blocks;
  for (std::int64_t block = 0; block < first; ++block) {
    must(blocks.get(block, n_blocks, [](std::int64_t i) { return block_number(i); }));
  }
  std::promise<void> began_first, began_next;
  auto is_next_begun = began_next.get_future();
  bool is_beside = false;
  std::thread other([&] {
    began_first.get_future().wait();
    const auto block = must(blocks.get(first, n_blocks, [&](std::int64_t i) {
      if (i == first + 1) began_next.set_value();
      return block_number(i);
    }));
    EXPECT_EQ(block->raw[0][0], static_cast<std::byte>(first));
  });
  const auto block = must(blocks.get(first, n_blocks, [&](std::int64_t i) {
    began_first.set_value();
    is_beside = is_next_begun.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    return block_number(i);
  }));
  other.join();
  EXPECT_EQ(block->raw[0][0], static_cast<std::byte>(first));
  EXPECT_TRUE(is_beside);
}

TEST(PredictedBlocks, KeepsTwoMoreThanThereAreProcessors) {
  constexpr std::int64_t kBlocks = 200;
  format::PredictedBlocks blocks;
  std::vector<std::weak_ptr<const format::PredictedBlock>> all;
  const auto count = [&] {
    return static_cast<std::size_t>(
        std::ranges::count_if(all, [](const auto& each) { return !each.expired(); }));
  };
  for (std::int64_t block = 0; block < kBlocks; ++block) {
    all.push_back(must(blocks.get(block, kBlocks, [](std::int64_t i) { return block_number(i); })));
    EXPECT_EQ(count(), std::min<std::size_t>(all.size(), thread_count(0) + 2));
  }
}

// With token blocks enough that the first ones are dropped.
TEST(PredictedArchive, IsTheSameOnAnyNumberOfThreads) {
  const cache::Cache cache = predicted_model_cache(20 * 256 + 40);
  Bytes file, dense;
  for (const unsigned n_threads : {1u, 2u, 4u}) {
    const auto reader = predicted(cache, 0.3f, small_profile());
    const Bytes archive =
        must(format::write_cache_bytes(*reader, {.keep_stored = true, .n_threads = n_threads}));
    const cache::Cache loaded =
        must(load(archive, {.n_threads = n_threads, .verify_digests = true, .access = access()}));
    const Bytes again = file_of(loaded);
    if (n_threads == 1) {
      file = archive;
      dense = again;
    }
    EXPECT_EQ(archive, file) << n_threads;
    EXPECT_EQ(again, dense) << n_threads;
    const auto source = memory_source(archive);
    const auto report =
        must(format::verify_cache(*source, {.n_threads = n_threads, .access = access()}));
    EXPECT_THAT(report.damage, testing::IsEmpty());
  }
}

TEST(PredictedArchive, ReportsDamage) {
  const Bytes good = archive_of(predicted_model_cache(520));
  const CacheFileInfo info = info_of(good);
  for (const std::size_t section : {0u, 7u, 17u}) {
    Bytes bad = good;
    const SectionInfo& each = info.sections[section];
    bad[each.file_offset + each.stored_bytes / 2] ^= std::byte{4};
    EXPECT_THAT(load(bad), test::FailsWith(ErrorCode::kCorrupt, HasSubstr("checksum mismatch")));
    EXPECT_FALSE(damage_of(bad).empty());
  }
}

}  // namespace predicted_test
}  // namespace tqcache::test
