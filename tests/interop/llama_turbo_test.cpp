// Rows of the TurboQuant fork of llama.cpp, against its quantizer as its documents describe it.

#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <random>
#include <string_view>

#include "llama_import_fixture.h"
#include "tqcache/interop/llama/llama_rows.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::test {
namespace llama_turbo_test {

using interop::find_llama_turbo;
using interop::LlamaTurbo;

// The fork's tables of signs.
constexpr std::string_view kBefore =
    "-++--+-+--+++++++-+-+--+++-++----++-++-+-++--+-++++-----+-++++-+"
    "--+---+---+---+++--+++--++-++-+--++-+-+-++++-+-++-++-----++-++-+";
constexpr std::string_view kAfter =
    "++++-++-+---+---++--+-+-+--+-+++++---+------+++-+-+++--+------++"
    "+-+----+-+-+--++-+-++-+----+--+-+-+++--+-+-++--+-+-++-+-+-----+-";

std::vector<double> codebook(const LlamaTurbo& turbo) {
  std::vector<double> upper;
  if (turbo.bits == 2) upper = {.039994, .133462};
  if (turbo.bits == 3) upper = {.021460, .065717, .117832, .190685};
  if (turbo.name == "turbo4-66") {
    upper = {.011349, .034299, .058050, .083292, .111036, .143016, .182877, .241529};
  }
  if (turbo.name == "turbo4") {
    upper = {.006938, .020989, .035597, .051262, .068756, .089527, .117195, .173926};
  }
  std::vector<double> all;
  for (auto it = upper.rbegin(); it != upper.rend(); ++it) all.push_back(-*it);
  all.insert(all.end(), upper.begin(), upper.end());
  return all;
}

double sign(std::string_view signs, std::size_t i) { return signs[i] == '+' ? 1 : -1; }

// after * H * before * x / sqrt(128), the matrix written out.
std::vector<double> rotate(const std::vector<double>& x) {
  std::vector<double> y(128);
  for (std::size_t i = 0; i < 128; ++i) {
    for (std::size_t j = 0; j < 128; ++j) {
      const double h = std::popcount(i & j) % 2 == 0 ? 1 : -1;
      y[i] += h * sign(kBefore, j) * x[j];
    }
    y[i] *= sign(kAfter, i) / std::sqrt(128.);
  }
  return y;
}

double length(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

void pack(const LlamaTurbo& turbo, std::size_t i, unsigned code, Bytes& block) {
  const auto put = [&](std::size_t at, unsigned bits) { block[at] |= std::byte(bits); };
  const std::size_t first = turbo.block_bytes == 68 ? 4 : 2;
  if (turbo.bits == 4) return put(first + i / 2, code << (i % 2 * 4));
  put(2 + i / 4, (code & 3) << (i % 4 * 2));
  if (turbo.bits == 3) put(34 + i / 8, (code >> 2) << (i % 8));
}

// One block of 128 components.
Bytes encode(const LlamaTurbo& turbo, const std::vector<double>& x) {
  const std::vector<double> book = codebook(turbo), y = rotate(x);
  const double norm = length(x);
  Bytes block(turbo.block_bytes);
  std::vector<double> decoded;
  for (std::size_t i = 0; i < 128; ++i) {
    std::size_t best = 0;
    for (std::size_t k = 1; k < book.size(); ++k) {
      if (std::abs(book[k] - y[i] / norm) < std::abs(book[best] - y[i] / norm)) best = k;
    }
    decoded.push_back(book[best]);
    pack(turbo, i, static_cast<unsigned>(best), block);
  }
  const auto corrected = static_cast<float>(norm / length(decoded));
  store_f32(Dtype::kF16, {&corrected, 1}, block.data());
  return block;
}

std::vector<double> gaussian(unsigned seed, std::size_t n) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> x(n);
  for (double& value : x) value = 3 * normal(random);
  return x;
}

double relative_error(const std::vector<double>& x, std::span<const float> decoded) {
  double error = 0;
  for (std::size_t i = 0; i < decoded.size(); ++i) error += std::pow(x[i] - decoded[i], 2);
  return error / std::pow(length(x), 2);
}

TEST(LlamaTurbo, HasFourLayouts) {
  EXPECT_EQ(find_llama_turbo("turbo2")->block_bytes, 34U);
  EXPECT_EQ(find_llama_turbo("turbo3")->block_bytes, 50U);
  EXPECT_EQ(find_llama_turbo("turbo4")->block_bytes, 68U);
  EXPECT_EQ(find_llama_turbo("turbo4-66")->block_bytes, 66U);
  EXPECT_EQ(find_llama_turbo("turbo5"), nullptr);
  EXPECT_EQ(turbo_row_bytes(*find_llama_turbo("turbo3"), 4, 128), 200U);
  EXPECT_EQ(turbo_row_bytes(*find_llama_turbo("turbo3"), 4, 192), 400U);
}

// The distortion of the codebooks on unit vectors, as it is computed without any file.
TEST(LlamaTurbo, ComesBackWithTheErrorOfItsCodebook) {
  const std::pair<const char*, double> expected[] = {
      {"turbo2", .1160}, {"turbo3", .0340}, {"turbo4", .0190}, {"turbo4-66", .0095}};
  for (const auto& [name, error] : expected) {
    const LlamaTurbo& turbo = *find_llama_turbo(name);
    double sum = 0;
    for (unsigned seed = 0; seed < 64; ++seed) {
      const std::vector<double> x = gaussian(seed, 128);
      std::vector<float> decoded(128);
      ASSERT_TRUE(decode_turbo_head(turbo, encode(turbo, x), decoded));
      sum += relative_error(x, decoded);
    }
    EXPECT_GT(sum / 64, .85 * error) << name;
    EXPECT_LT(sum / 64, 1.15 * error) << name;
  }
}

TEST(LlamaTurbo, RefusesBlocksWithAResidual) {
  const LlamaTurbo& turbo = *find_llama_turbo("turbo4");
  Bytes block = encode(turbo, gaussian(1, 128));
  block[3] = std::byte{1};
  std::vector<float> decoded(128);
  const auto result = decode_turbo_head(turbo, block, decoded);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
}

// Head vectors of 192 components, padded with zeros to two blocks.
Bytes padded_row(const LlamaTurbo& turbo, const std::vector<double>& heads) {
  Bytes row;
  for (std::size_t at = 0; at < heads.size(); at += 192) {
    std::vector<double> head(heads.begin() + static_cast<std::ptrdiff_t>(at),
                             heads.begin() + static_cast<std::ptrdiff_t>(at + 192));
    head.resize(256);
    for (const std::size_t half : {0U, 1U}) {
      const auto first = head.begin() + static_cast<std::ptrdiff_t>(128 * half);
      const Bytes block = encode(turbo, {first, first + 128});
      row.insert(row.end(), block.begin(), block.end());
    }
  }
  return row;
}

void write_tensor(ByteWriter& out, const LlamaTurbo& turbo, std::uint32_t id, unsigned seed) {
  out.write(id);
  out.write(turbo_row_bytes(turbo, 2, 192));
  for (unsigned cell = 0; cell < 3; ++cell) {
    out.append(padded_row(turbo, gaussian(seed + cell, 384)));
  }
}

void expect_tensor(const cache::AttentionLayer& layer, bool is_key, unsigned seed, double error) {
  const std::vector<float> values = tensor_values(is_key ? layer.k : layer.v, layer.shape, 3);
  for (unsigned cell = 0; cell < 3; ++cell) {
    const std::vector<double> x = gaussian(seed + cell, 384);
    std::vector<float> row;
    for (std::size_t head = 0; head < 2; ++head) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>((head * 3 + cell) * 192);
      row.insert(row.end(), first, first + 192);
    }
    EXPECT_LT(relative_error(x, row), 2 * error) << cell;
  }
}

// One layer, ids as the fork had them at some time.
TEST(LlamaImport, ReadsRowsOfTheTurboQuantFork) {
  const LlamaGeometry model = model_of({LlamaLayerKind::kAttention}, 192);
  const LlamaTurbo& turbo3 = *find_llama_turbo("turbo3");
  const LlamaTurbo& turbo4 = *find_llama_turbo("turbo4");
  ByteWriter out;
  for (const std::uint32_t word : {0x67677371U, 2U, 3U, 1U, 2U, 3U, 1U, 3U}) out.write(word);
  for (std::int32_t cell = 0; cell < 3; ++cell) {
    for (const std::int32_t word : {cell, 1, 0}) out.write(word);
  }
  for (const std::uint32_t word : {0U, 1U}) out.write(word);
  write_tensor(out, turbo4, 42, 10);
  write_tensor(out, turbo3, 41, 20);
  for (const char* names : {"turbo3,turbo4", "turbo4,turbo3", "turbo2,turbo3,turbo4"}) {
    auto imported =
        import_bytes(out.bytes(), model, {.rotation = LlamaRotation::kOn, .turbo_layout = names});
    ASSERT_TRUE(imported) << imported.error().message;
    EXPECT_FALSE(imported->may_be_rotated);
    EXPECT_TRUE(imported->cache.is_quantized);
    const auto cache = read_foreign(std::move(imported->cache));
    ASSERT_TRUE(cache) << cache.error().message;
    const auto& layer = std::get<cache::AttentionLayer>(cache->layers[0]);
    expect_tensor(layer, true, 10, .0190);
    expect_tensor(layer, false, 20, .0340);
  }
}

// Keys and values of one layer, two heads of 192, three cells.
Bytes state_of(const LlamaTurbo& turbo, std::uint32_t id) {
  ByteWriter out;
  for (const std::uint32_t word : {0x67677371U, 2U, 3U, 1U, 2U, 3U, 1U, 3U}) out.write(word);
  for (std::int32_t cell = 0; cell < 3; ++cell) {
    for (const std::int32_t word : {cell, 1, 0}) out.write(word);
  }
  for (const std::uint32_t word : {0U, 1U}) out.write(word);
  write_tensor(out, turbo, id, 10);
  write_tensor(out, turbo, id, 20);
  const auto bytes = out.bytes();
  return {bytes.begin(), bytes.end()};
}

// Since its build b9914 the fork has blocks of 66 bytes; beellama has the number 44 for them.
TEST(LlamaImport, ReadsTurbo4Of66Bytes) {
  const LlamaGeometry model = model_of({LlamaLayerKind::kAttention}, 192);
  const LlamaTurbo& turbo = *find_llama_turbo("turbo4-66");
  for (const std::uint32_t id : {42U, 44U, 47U}) {
    auto imported = import_bytes(state_of(turbo, id), model,
                                 {.rotation = LlamaRotation::kOn, .turbo_layout = "turbo4-66"});
    ASSERT_TRUE(imported) << imported.error().message;
    const auto cache = read_foreign(std::move(imported->cache));
    ASSERT_TRUE(cache) << cache.error().message;
    const auto& layer = std::get<cache::AttentionLayer>(cache->layers[0]);
    expect_tensor(layer, true, 10, .0095);
    expect_tensor(layer, false, 20, .0095);
  }
}

TEST(LlamaImport, SaysWhichLayoutFitsRowsOfAFork) {
  const LlamaGeometry model = model_of({LlamaLayerKind::kAttention}, 192);
  const LlamaTurbo& turbo = *find_llama_turbo("turbo4-66");
  const auto refusal_of = [&](std::uint32_t id, const char* layout) {
    auto imported = import_bytes(state_of(turbo, id), model,
                                 {.rotation = LlamaRotation::kOn, .turbo_layout = layout});
    EXPECT_FALSE(imported);
    return imported ? Error{ErrorCode::kIo, ""} : imported.error();
  };
  EXPECT_EQ(refusal_of(42, "turbo4").code, ErrorCode::kMismatch);
  EXPECT_THAT(refusal_of(42, "turbo4").message,
              testing::HasSubstr("rows of type 42 and 264 bytes are not of the layout \"turbo4\"; "
                                 "rows of 264 bytes fit turbo4-66 (--llama-turbo-layout "
                                 "turbo4-66)"));
  EXPECT_EQ(refusal_of(42, "").code, ErrorCode::kUnsupported);
  EXPECT_THAT(refusal_of(42, "").message, testing::HasSubstr("--llama-turbo-layout turbo4-66"));
  // Numbers of other forks are named, whatever layout the caller gives.
  for (const auto& [id, words] :
       {std::pair{202U, "turbo-tan/llama.cpp-tq3 has turbo3, turbo4 and turbo2 as 201 to 203"},
        {50U, "AmesianX's fork of llama.cpp"},
        {137U, "ik_llama.cpp has types of its own"}}) {
    EXPECT_EQ(refusal_of(id, "turbo4-66").code, ErrorCode::kUnsupported) << id;
    EXPECT_THAT(refusal_of(id, "").message, testing::HasSubstr(words));
  }
}

}  // namespace llama_turbo_test
}  // namespace tqcache::test
