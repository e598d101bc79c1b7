// bench/bench_codec.cpp: speed of encoding and decoding head vectors on one core.
//
//   encode/<preset>/<kernels>   f16 rows, mean removed, to quantized blocks of keys
//   decode/<preset>/<kernels>   quantized blocks of keys to f16 rows
//
// A preset is turbo<bits>: head_dim 128, mean removed before RoPE. Suffixes:
//   -none, -post          no mean removal, or mean removal after RoPE
//   -d<n>                 another head_dim
//   -r2, -r3              two or three rounds of the rotation
//   -qr                   a dense rotation
//   -norm                 another scale rule
//   -v                    blocks of values
// Other modes: turbo2.5 and turbo3.5 (32 outlier channels with one bit more), prod4, affine4. These
// decode to f32.
//
// GB/s counts the f16 values, so that it can be compared with the size of a dense cache; "bits" are
// bits per value, codes and scales; "distortion" is |x - x~|^2 / |x|^2.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec/head_codec.h"

namespace {

using namespace tqcache;
using namespace tqcache::codec;

constexpr std::size_t kBlocks = 16;  // a megabyte of f16 at head_dim 128
constexpr std::size_t kTokens = kBlocks * kBlockTokens;

enum class CenterKind { kNone, kPlain, kTurning };

struct Preset {
  std::string name;
  CodecSpec spec;
  CenterKind center = CenterKind::kTurning;
  BlockOrder order = BlockOrder::kKeys;
};

CodecSpec turbo(int bits, int head_dim = 128) { return {.head_dim = head_dim, .bits = bits}; }

CodecSpec with_mode(Mode mode, int bits) {
  CodecSpec spec = turbo(bits);
  spec.mode = mode;
  if (mode == Mode::kMixed) {
    spec.outlier_channels = 32;
    spec.outlier_bits = bits + 1;
  }
  return spec;
}

std::vector<Preset> presets() {
  CodecSpec two_rounds = turbo(4), three_rounds = turbo(4), dense = turbo(4), norm = turbo(4);
  two_rounds.rounds = 2;
  three_rounds.rounds = 3;
  dense.rotation = TransformKind::kDenseQr;
  norm.scale = ScaleRule::kNorm;
  std::vector<Preset> all = {{"turbo4-none", turbo(4), CenterKind::kNone},
                             {"turbo4-post", turbo(4), CenterKind::kPlain},
                             {"turbo4-v", turbo(4), CenterKind::kPlain, BlockOrder::kValues},
                             {"turbo4-r2", two_rounds},
                             {"turbo4-r3", three_rounds},
                             {"turbo4-qr", dense},
                             {"turbo4-norm", norm},
                             {"turbo2.5", with_mode(Mode::kMixed, 2)},
                             {"turbo3.5", with_mode(Mode::kMixed, 3)},
                             {"prod4", with_mode(Mode::kProd, 4)},
                             {"affine4", with_mode(Mode::kAffine, 4)}};
  for (const int bits : {4, 3, 2, 8}) all.push_back({"turbo" + std::to_string(bits), turbo(bits)});
  for (const int head_dim : {32, 64, 80, 96, 112, 192, 256, 512, 576, 1024}) {
    all.push_back({"turbo4-d" + std::to_string(head_dim), turbo(4, head_dim)});
  }
  return all;
}

// f16 rows of kTokens tokens with a large common mean, and the mean.
struct Rows {
  std::size_t head_dim;
  std::vector<float> mean, cos, sin;
  AlignedBytes bytes;

  Rows(std::size_t dim, CenterKind kind);
  Center center(CenterKind kind) const {
    if (kind == CenterKind::kNone) return {};
    return {mean.data(), kind == CenterKind::kTurning ? head_dim / 2 : 0, cos.data(), sin.data()};
  }
  std::size_t block_bytes() const { return kBlockTokens * head_dim * 2; }
  VectorRows block(std::size_t i) const {
    return {Dtype::kF16, bytes.data() + i * block_bytes(), head_dim * 2};
  }
};

Rows::Rows(std::size_t dim, CenterKind kind) : head_dim(dim), bytes(kTokens * dim * 2) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < dim; ++i) mean.push_back(2.0f * normal(random));
  for (std::size_t t = 0; t < kBlockTokens; ++t) {
    for (std::size_t i = 0; i < dim / 2; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dim);
      const double angle = static_cast<double>(t) * std::pow(1e6, exponent);
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  // Removing the mean from zeros leaves the negative mean.
  std::vector<float> zeros(dim), row(dim);
  const VectorRows nothing = {Dtype::kF32, std::as_bytes(std::span(zeros)).data(), 0};
  for (std::size_t t = 0; t < kTokens; ++t) {
    best_kernels().center_rows(nothing, 1, dim, center(kind), t % kBlockTokens, row.data());
    for (float& value : row) value = normal(random) - value;
    store_f32(Dtype::kF16, row, bytes.data() + t * dim * 2);
  }
}

struct Workload {
  HeadCodec codec;
  Center center;
  Rows rows;
  std::vector<std::uint16_t> order;  // of channels, in mode mixed
  AlignedBytes codes;
  std::vector<std::uint16_t> scales;

  Workload(const Preset& preset, const Kernels& kernels)
      : codec(HeadCodec::make(preset.spec, preset.order, kernels).value()),
        rows(codec.head_dim(), preset.center),
        codes(kBlocks * codec.code_bytes()),
        scales(kTokens * codec.n_scale_rows()) {
    center = rows.center(preset.center);
    std::vector<std::uint16_t> loud;
    for (std::size_t i = 0; i < codec.outlier_channels(); ++i) {
      loud.push_back(static_cast<std::uint16_t>(4 * i));
    }
    if (!loud.empty()) order = make_channel_order(codec.head_dim(), loud).value();
  }

  std::span<std::byte> block_codes(std::size_t i) {
    return std::span(codes).subspan(i * codec.code_bytes(), codec.code_bytes());
  }
  std::span<std::uint16_t> block_scales(std::size_t i) {
    const std::size_t size = kBlockTokens * codec.n_scale_rows();
    return std::span(scales).subspan(i * size, size);
  }
  bool encode() {
    bool ok = true;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const VectorRows from = rows.block(i);
      ok &=
          codec.encode(from, center, order, kBlockTokens, 0, block_codes(i), block_scales(i)).ok();
    }
    return ok;
  }
};

// The type of decoded values: f16 from a codec with one part, f32 from one with several.
struct Decoded {
  std::vector<std::byte> f16;
  std::vector<float> f32;

  explicit Decoded(const HeadCodec& codec) {
    const std::size_t n_values = kTokens * codec.head_dim();
    if (codec.n_parts() == 1) f16.resize(2 * n_values);
    if (codec.n_parts() > 1) f32.resize(n_values);
  }

  void decode(Workload& work) {
    const std::size_t dim = work.codec.head_dim();
    const std::size_t n_values = kBlockTokens * dim;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      if (f32.empty()) {
        work.codec.part(0).decode(work.block_codes(i), work.block_scales(i), kBlockTokens,
                                  {Dtype::kF16, f16.data() + 2 * i * n_values, 2 * dim});
      } else {
        work.codec.decode({work.block_codes(i), work.block_scales(i)}, work.order, kBlockTokens,
                          std::span(f32).subspan(i * n_values, n_values));
      }
    }
  }

  std::vector<float> first_block(std::size_t head_dim) const {
    std::vector<float> values(kBlockTokens * head_dim);
    if (f32.empty()) {
      load_f32(Dtype::kF16, f16.data(), values);
    } else {
      std::copy_n(f32.begin(), values.size(), values.begin());
    }
    return values;
  }
};

// x - x~|^2 / |x|^2 of the vectors after mean removal, in the first block.
double distortion(const Workload& work, const Decoded& decoded) {
  const std::size_t dim = work.rows.head_dim;
  std::vector<float> x(kBlockTokens * dim);
  const std::vector<float> y = decoded.first_block(dim);
  best_kernels().center_rows(work.rows.block(0), kBlockTokens, dim, work.center, 0, x.data());
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i] - y[i]), 2);
    energy += std::pow(static_cast<double>(x[i]), 2);
  }
  return error / energy;
}

void report(benchmark::State& state, Workload& work) {
  Decoded decoded(work.codec);
  decoded.decode(work);
  const double values = static_cast<double>(kTokens * work.rows.head_dim);
  const double iterations = static_cast<double>(state.iterations());
  const double bytes = static_cast<double>(work.codes.size() + 2 * work.scales.size());
  state.counters["GB/s"] =
      benchmark::Counter(2e-9 * values * iterations, benchmark::Counter::kIsRate);
  state.counters["bits"] = 8.0 * bytes / values;
  state.counters["distortion"] = distortion(work, decoded);
}

void encode(benchmark::State& state, const Preset& preset, const Kernels& kernels) {
  Workload work(preset, kernels);
  for (auto _ : state) {
    if (!work.encode()) return state.SkipWithError("a vector was refused");
    benchmark::DoNotOptimize(work.codes.data());
    benchmark::ClobberMemory();
  }
  report(state, work);
}

void decode(benchmark::State& state, const Preset& preset, const Kernels& kernels) {
  Workload work(preset, kernels);
  if (!work.encode()) return state.SkipWithError("a vector was refused");
  Decoded decoded(work.codec);
  for (auto _ : state) {
    decoded.decode(work);
    benchmark::DoNotOptimize(&decoded);
    benchmark::ClobberMemory();
  }
  report(state, work);
}

}  // namespace

int main(int argc, char** argv) {
  for (const Preset& preset : presets()) {
    for (const Kernels* kernels : all_kernels()) {
      const std::string name = preset.name + "/" + kernels->name;
      benchmark::RegisterBenchmark(("encode/" + name).c_str(), encode, preset, *kernels);
      benchmark::RegisterBenchmark(("decode/" + name).c_str(), decode, preset, *kernels);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
