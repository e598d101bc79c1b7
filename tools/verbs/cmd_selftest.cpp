// tools/verbs/cmd_selftest.cpp: a check of this program on this machine, without a model or files.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "cli/console.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "tqcache/base/posix.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache.h"
#include "tqcache/codec/block_codec.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/file.h"
#include "tqcache/hash.h"
#include "tqcache/interop.h"
#include "tqcache/model/linear/product_kernels.h"
#include "tqcache/model/linear/products.h"
#include "tqcache/quantize.h"
#include "tqcache/store.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {
namespace {

constexpr const char* kSelftestExamples =
    R"(Makes a small cache of random values, and checks on this machine that encoded bytes are those that
every other machine makes, that all instruction sets agree, and that files, locks and a store in a
folder work. It needs 20 MB of memory, and 2 MB in the folder for temporary files (TMPDIR, or /tmp).
One line a check; the exit code is 1 if one fails. Please report that: it is a fault of the program,
or of the machine.

Examples:
  tqcache selftest
  TMPDIR=/mnt/share tqcache selftest
  tqcache selftest --json
)";

using cache::Cache;

Error failure(std::string text) { return {ErrorCode::kCorrupt, std::move(text)}; }

// SplitMix64 (Steele, Lea, Flood 2014): the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Bell-shaped with variance 1: a sum of three uniform values.
  float bell() { return uniform() + uniform() + uniform(); }
  std::vector<float> bells(std::size_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = bell();
    return values;
  }

 private:
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f; }

  std::uint64_t state_;
};

// Two layers and 600 tokens: two complete token blocks, and the beginning of a third one.
Result<Cache> make_sample() {
  constexpr std::int64_t kTokens = 600;
  Random random(1);
  cache::Identity identity;
  identity.architecture = "qwen3";
  identity.model_name = "selftest";
  identity.rope = {cache::RopeStyle::kHalfSplit, 64, 1e6};
  identity.source_format = "tqcache";
  identity.weights_fingerprint = sha256(as_bytes(identity.model_name));
  const cache::LayerPlan plans[] = {{{2, 64}, Dtype::kF16}, {{1, 128}, Dtype::kBF16}};
  TQC_TRY_ASSIGN(Cache sample, cache::make_cache(std::move(identity), plans));
  for (std::int64_t token = 0; token < kTokens; ++token) {
    sample.tokens.push_back(static_cast<std::int32_t>(random.next() % 150'000));
  }
  for (cache::Layer& layer : sample.layers) {
    cache::AttentionLayer& attention = *cache::attention_of(layer);
    const auto row =
        static_cast<std::size_t>(attention.shape.n_kv_heads * attention.shape.head_dim);
    for (std::int64_t first = 0; first < kTokens; first += cache::kTokenBlock) {
      const auto n = static_cast<std::size_t>(std::min(cache::kTokenBlock, kTokens - first));
      for (cache::Tensor* tensor : {&attention.k, &attention.v}) {
        cache::append(*tensor, attention.shape, first, random.bells(n * row));
      }
    }
  }
  return sample;
}

Result<void> expect_same(const Cache& a, const Cache& b) {
  TQC_TRY_ASSIGN(const cache::CacheDifference difference, cache::diff(a, b, 1));
  const bool is_same = a.tokens == b.tokens && difference.arrays_equal &&
                       difference.k.max_abs == 0 && difference.v.max_abs == 0;
  return is_same ? Result<void>() : failure("what was read is not what was written");
}

// A file of version 2 without compression, whose bytes no other library decides.
Result<Bytes> file_bytes(const Cache& cache) {
  format::WriteOptions options;
  options.compression = format::Compression::kNone;
  options.writer = "selftest";
  return format::write_cache_bytes(cache, options);
}

// --- The checks. Each returns what it says if all is well.

using Check = std::function<Result<std::string>()>;

// The examples of FIPS 180-4 and of the xxHash specification.
Result<std::string> check_digests() {
  if (to_hex(sha256(as_bytes(std::string_view("abc")))) !=
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad") {
    return failure("SHA-256 of abc is wrong");
  }
  if (to_hex(xxh3_128({})) != "99aa06d3014798d86001c324468d497f") {
    return failure("XXH3 of nothing is wrong");
  }
  return std::string("SHA-256, XXH3");
}

Result<std::string> check_threads() {
  const unsigned n_threads = thread_count(0);
  std::vector<std::uint64_t> parts(1000);
  parallel_for(parts.size(), 0, [&](std::size_t i) { parts[i] = i * i; });
  std::uint64_t sum = 0;
  for (const std::uint64_t part : parts) sum += part;
  if (sum != 332'833'500) return failure("a parallel loop lost a part");
  return fmt::format("{} processors", n_threads);
}

// Codes, scales and decoded values of a token block, for all bits: what the scalar kernels make.
Result<std::string> check_codec(const codec::Kernels& kernels) {
  constexpr std::size_t kHeadDim = 128;
  const std::vector<float> x = Random(2).bells(codec::kBlockTokens * kHeadDim);
  const auto run = [&](const codec::BlockCodec& codec, Bytes& out) -> Result<void> {
    const std::size_t n_code_bytes = codec.shape().block_bytes();
    std::vector<std::uint16_t> scales(codec::kBlockTokens);
    std::vector<float> decoded(x.size());
    out.resize(n_code_bytes);
    TQC_TRY(codec.encode({Dtype::kF32, std::as_bytes(std::span(x)).data(), kHeadDim * 4}, {},
                         codec::kBlockTokens, out, scales));
    codec.decode(out, scales, codec::kBlockTokens,
                 {Dtype::kF32, std::as_writable_bytes(std::span(decoded)).data(), kHeadDim * 4});
    const auto scale_bytes = std::as_bytes(std::span(scales));
    const auto value_bytes = std::as_bytes(std::span(decoded));
    out.insert(out.end(), scale_bytes.begin(), scale_bytes.end());
    out.insert(out.end(), value_bytes.begin(), value_bytes.end());
    return {};
  };
  for (int bits = codec::kMinBits; bits <= codec::kMaxBits; ++bits) {
    codec::PartSpec spec;
    spec.head_dim = kHeadDim;
    spec.bits = bits;
    TQC_TRY_ASSIGN(const codec::Quantizer quantizer, codec::Quantizer::make(spec));
    for (const codec::BlockOrder order : {codec::BlockOrder::kKeys, codec::BlockOrder::kValues}) {
      Bytes ours, scalar;
      TQC_TRY(run(codec::BlockCodec(quantizer, order, kernels), ours));
      TQC_TRY(run(codec::BlockCodec(quantizer, order, codec::scalar_kernels()), scalar));
      if (ours != scalar) return failure(fmt::format("{} bits: other bytes than scalar", bits));
    }
  }
  return std::string("1 to 8 bits: the bytes of the scalar kernels");
}

// Products of the model, with all instruction sets the same.
Result<std::string> check_products(const codec::Kernels& kernels) {
  const model::Kernels* const ours = model::kernels_of(kernels.isa);
  if (ours == nullptr) return failure("the model has no kernels of this instruction set");
  constexpr std::int64_t m = 9, n = 35, k = 300;
  Random random(3);
  const std::vector<float> a = random.bells(m * k), b = random.bells(n * k);
  std::vector<float> y(m * n), scalar(m * n);
  const auto multiply = [&](const model::MatrixProducts& products, std::vector<float>& to) {
    AlignedBytes packed(products.size(n, k, 1));
    products.pack_right({b.data(), k}, n, k, 1, packed.data());
    products.multiply({std::as_bytes(std::span(a)).data(), k, 1}, {packed.data(), k, 1}, m, n, k,
                      to.data(), n);
  };
  multiply(*model::products_of(kernels.isa), y);
  multiply(*model::products_of(codec::Isa::kScalar), scalar);
  if (y != scalar) return failure("a product of matrices is not that of the scalar kernels");
  const auto* const row = std::as_bytes(std::span(a)).data();
  for (const auto dot : {&model::Kernels::dot_f32, &model::Kernels::dot_f16}) {
    // As f16 the bytes of `a` are any numbers, infinite ones and NaN too.
    const float got = (ours->*dot)(row, b.data(), k);
    const float expected = (model::scalar_kernels().*dot)(row, b.data(), k);
    const bool is_same = std::memcmp(&got, &expected, sizeof(got)) == 0;
    if (!is_same && (got == got || expected == expected)) {
      return failure("a product of vectors is not that of the scalar kernels");
    }
  }
  return std::string("the sums of the scalar kernels");
}

// The quantized caches that this program made on the machine where it was released.
Result<std::string> check_quantization(const Cache& sample) {
  struct Expected {
    std::string_view configuration, digest;
  };
  constexpr Expected kExpected[] = {
      {"f32", "980620a3e7f0c2d418c598f7fadecafbcfa656411b050a9a7420d1cd24a1ef2b"},
      {"turbo4,sink=4", "b73df3a3beedb7c15f9f7cae774a4d73f80211cdcd16328441e376a1ec5233d1"},
      {"turbo2.5,sink=0", "8cef61723560e1db75a4c56c93fc8fbd81c7a23aeba2247731c1d0b8cdfcdc7e"},
      {"prod3,sink=0", "807dd7d05c0e17704f9773cfc1513faa6a98a776cffb0d94787ccf189b5defb9"},
      {"affine4,sink=0", "2d20b4c3c803f9ea1945a120e897d1880289ee63bd4bc4d2b004da8cd7396f7b"},
      {"k=trellis:0.25:map,v=trellis:0.5,sink=0",
       "28dcc7b5e2749b3a27594cada1d53965576819d2a63764cf5e067f588d4bb1e7"},
  };
  std::string wrong;
  for (const Expected& expected : kExpected) {
    TQC_TRY_ASSIGN(const auto configuration, cache::parse_configuration(expected.configuration));
    TQC_TRY_ASSIGN(const Cache quantized, cache::convert(sample, configuration.options));
    TQC_TRY_ASSIGN(const Bytes bytes, file_bytes(quantized));
    const std::string digest = to_hex(sha256(bytes));
    if (digest == expected.digest) continue;
    wrong +=
        fmt::format("{}{}: SHA-256 {}", wrong.empty() ? "" : "; ", expected.configuration, digest);
  }
  if (!wrong.empty()) return failure("other bytes than on other machines: " + wrong);
  return fmt::format("{} configurations: the bytes of every other machine", std::size(kExpected));
}

Result<std::string> check_file(const Cache& cache, const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "sample.tqkv";
  TQC_TRY(format::write_cache_file(cache, path, {}));
  TQC_TRY_ASSIGN(const auto file, open_file(path));
  TQC_TRY_ASSIGN(const format::VerifyReport report, format::verify_cache(*file));
  if (!report.damage.empty()) return failure(report.damage.front());
  TQC_TRY_ASSIGN(const Cache read, format::read_cache(*file));
  TQC_TRY(expect_same(cache, read));
  TQC_TRY_ASSIGN(const Cache mapped, format::map_cache(path));
  TQC_TRY(expect_same(cache, mapped));

  // A single wrong bit is found.
  TQC_TRY_ASSIGN(Bytes bytes, read_file(path, std::uint64_t{16} << 20));
  bytes[bytes.size() / 2] ^= std::byte{1};
  if (format::read_cache(*memory_source(std::move(bytes))).ok()) {
    return failure("a damaged file was read");
  }
  return fmt::format("{} bytes written, verified, read, mapped", grouped(file->size()));
}

// Two writers of one file, and a name that is taken.
Result<std::string> check_locks(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "locked";
  TQC_TRY(write_file_atomically(path, as_bytes(std::string_view("one")), Overwrite::kRefuse));
  TQC_TRY_ASSIGN(const auto locked, LockedFile::open(path));
  const auto again = LockedFile::open(path);
  if (again || again.error().code != ErrorCode::kBusy) {
    return failure("the same file was locked twice");
  }
  TQC_TRY(locked->write_at(3, as_bytes(std::string_view("two"))));
  TQC_TRY(locked->flush());
  if (write_file_atomically(path, as_bytes(std::string_view("three")), Overwrite::kRefuse).ok()) {
    return failure("a file was replaced that had to stay");
  }
  TQC_TRY_ASSIGN(const Bytes bytes, read_file(path, 100));
  const std::string_view expected = "onetwo";
  return std::ranges::equal(bytes, as_bytes(expected)) ? Result<std::string>("no two writers")
                                                       : failure("a written byte is lost");
}

Result<std::string> check_interop(const Cache& sample, const std::filesystem::path& folder) {
  TQC_TRY(interop::export_mlx_lm(*cache::reader_of(sample), folder / "mlx.safetensors", {}));
  TQC_TRY(interop::export_npz(*cache::reader_of(sample), folder / "numpy.npz", Overwrite::kRefuse));
  interop::OpenHints hints;
  hints.identity = sample.identity;
  hints.tokens = sample.tokens;
  TQC_TRY_ASSIGN(const auto opened, interop::open_any(folder / "mlx.safetensors", hints));
  TQC_TRY_ASSIGN(const Cache read, cache::load(*opened.cache));
  TQC_TRY(expect_same(sample, read));
  return std::string("an mlx-lm cache and NumPy arrays");
}

Result<std::string> check_store(const Cache& cache, const std::filesystem::path& folder) {
  TQC_TRY_ASSIGN(const auto backend, store::open_backend("dir:" + (folder / "store").string(), {}));
  store::Library library(*backend, {});
  TQC_TRY_ASSIGN(const store::PutReport first, library.put_cache(cache, "one"));
  TQC_TRY_ASSIGN(const store::PutReport second, library.put_cache(cache, "two"));
  if (first.new_blocks != 2 || second.new_blocks != 0) {
    return failure("a token block was stored twice, or not at all");
  }
  TQC_TRY_ASSIGN(const auto record, library.record("two"));
  if (!record) return failure("a named prompt is not found");
  TQC_TRY_ASSIGN(const auto stored, library.fetch(*record));
  TQC_TRY_ASSIGN(const Cache read, cache::load(*stored));
  TQC_TRY(expect_same(cache, read));
  return std::string("put, shared, fetched");
}

// --- All of them

// A folder of its own, removed at the end.
struct Scratch {
  std::filesystem::path path;
  ~Scratch() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
  }
};

Result<std::filesystem::path> make_folder() {
  std::error_code failed;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(failed);
  if (failed) return Error{ErrorCode::kIo, "TMPDIR names no folder: " + failed.message()};
  std::string name = (parent / "tqcache-selftest-XXXXXX").string();
  if (posix::mkdtemp(name.data()) == nullptr) {
    return Error{ErrorCode::kIo, fmt::format("{}: {}; set TMPDIR to a folder that can be written",
                                             parent.string(), std::strerror(errno))};
  }
  return std::filesystem::path(name);
}

Result<ExitCode> run(const Console& console) {
  TQC_TRY_ASSIGN(const Cache sample, make_sample());
  TQC_TRY_ASSIGN(const auto options, cache::parse_configuration(cache::kDefaultPreset));
  TQC_TRY_ASSIGN(const Cache quantized, cache::convert(sample, options.options));
  Scratch folder;
  TQC_TRY_ASSIGN(folder.path, make_folder());

  std::vector<std::pair<std::string, Check>> checks = {{"digests", check_digests},
                                                       {"threads", check_threads}};
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    const std::string name(kernels->name);
    checks.emplace_back("codec, " + name, [=] { return check_codec(*kernels); });
    checks.emplace_back("products, " + name, [=] { return check_products(*kernels); });
  }
  checks.emplace_back("quantization", [&] { return check_quantization(sample); });
  checks.emplace_back("file", [&] { return check_file(quantized, folder.path); });
  checks.emplace_back("locks", [&] { return check_locks(folder.path); });
  checks.emplace_back("other programs", [&] { return check_interop(sample, folder.path); });
  checks.emplace_back("store", [&] { return check_store(quantized, folder.path); });

  bool all_passed = true;
  Json rows = Json::array();
  for (const auto& [name, check] : checks) {
    const Result<std::string> result = check();
    all_passed = all_passed && result.ok();
    const std::string& text = result ? *result : result.error().message;
    rows.push_back({{"check", name}, {"ok", result.ok()}, {"text", text}});
    if (console.json) continue;
    TQC_TRY(print(fmt::format("{:<6}  {:<18} {}\n", result ? "ok" : "FAILED", name, text)));
  }
  if (console.json) {
    TQC_TRY(print_json({{"schema", 1}, {"ok", all_passed}, {"checks", std::move(rows)}}));
  }
  return all_passed ? ExitCode::kDone : ExitCode::kFailed;
}

}  // namespace

Action define_selftest(FlagSet& app) {
  app.footer(kSelftestExamples);
  return [](const Console& console) { return run(console); };
}

}  // namespace tqcache::cli
