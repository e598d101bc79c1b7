// tools/cmd_convert.cpp: packs the dense sides of a cache into turbo form.

#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>

#include "cache_io.h"
#include "cli.h"
#include "file_stats.h"
#include "progress.h"
#include "text.h"
#include "tqcache/cache/convert.h"

namespace tqcache::cli {
namespace {

constexpr const char* kExamples =
    R"(Only full blocks of 256 tokens are packed; the tokens after them stay dense
until their block is full, so a conversation can go on without packing twice.

Examples:
  tqcache convert book.kv book.tqkv
  tqcache convert book.kv book.tqkv --key-bits 4 --value-bits 3
  tqcache convert book.kv book.tqkv --key-bits 16      keys stay dense
  tqcache convert - - < book.kv > book.tqkv
)";

struct ConvertFlags {
  std::string input;
  std::string output;
  int bits = 4;
  std::optional<int> key_bits;
  std::optional<int> value_bits;
  cache::Centring center = cache::Centring::kPreRope;
  CompressionFlags compression;
  unsigned n_threads = 0;
  bool force = false;
};

Result<void> check_bits(std::string_view flag, int bits) {
  const bool packed = bits >= codec::kMinBits && bits <= codec::kMaxBits;
  if (packed || bits == cache::kDenseBits) return {};
  return usage_error(fmt::format("{}: {} is neither {} to {} nor 16 (dense)", flag, bits,
                                 codec::kMinBits, codec::kMaxBits));
}

Result<cache::ConvertOptions> convert_options(const ConvertFlags& flags) {
  TQC_TRY(check_bits("--bits", flags.bits));
  cache::ConvertOptions options;
  options.key_bits = flags.key_bits.value_or(flags.bits);
  options.value_bits = flags.value_bits.value_or(flags.bits);
  options.center = flags.center;
  options.n_threads = flags.n_threads;
  TQC_TRY(check_bits("--key-bits", options.key_bits));
  TQC_TRY(check_bits("--value-bits", options.value_bits));
  return options;
}

struct Sizes {
  std::uint64_t before = 0;  // bytes of the input file
  std::uint64_t after = 0;
  std::uint64_t n_values = 0;  // keys and values of all tokens

  double ratio() const {
    return after == 0 ? 0 : static_cast<double>(before) / static_cast<double>(after);
  }
};

Outcome<Done> tell(const Console& console, const ConvertFlags& flags, const Sizes& sizes) {
  const std::optional<double> bits = bits_per_value(sizes.after, sizes.n_values);
  note(console, fmt::format("{}: {} -> {} bytes, {:.2f} times smaller{}",
                            display_name(flags.output, "standard output"), grouped(sizes.before),
                            grouped(sizes.after), sizes.ratio(),
                            bits ? fmt::format(", {:.3f} bits a value", *bits) : ""));
  if (!console.json) return Done{};
  Json object;
  object["schema"] = 1;
  object["file"] = flags.output;
  object["bytes_before"] = sizes.before;
  object["bytes_after"] = sizes.after;
  object["ratio"] = sizes.ratio();
  object["bits_per_value"] = bits ? Json(*bits) : Json(nullptr);
  return print_json(object);
}

Outcome<cache::Cache> read_and_pack(const Console& console, const ConvertFlags& flags,
                                    const cache::ConvertOptions& options, Sizes& sizes) {
  const std::string name = display_name(flags.input, "standard input");
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_cache(flags.input));
  sizes.before = source->size();
  format::ReadOptions read;
  read.n_threads = flags.n_threads;
  ProgressBar reading(console, "reading", Unit::kBytes);
  TQC_TRY_ASSIGN(cache::Cache cache,
                 in_file(name, format::read_cache(*source, read, reading.callback())));
  sizes.n_values = value_count(cache);
  ProgressBar packing(console, "packing", Unit::kVectors);
  return in_file(name, cache::convert(std::move(cache), options, packing.callback()));
}

Outcome<ExitCode> run(const Console& console, const ConvertFlags& flags) {
  TQC_TRY_ASSIGN(const cache::ConvertOptions options, convert_options(flags));
  TQC_TRY_ASSIGN(const format::WriteOptions write,
                 write_options(flags.compression, flags.n_threads, flags.force));
  if (console.json && flags.output == "-") {
    return usage_error("--json: standard output is taken by the cache");
  }
  TQC_TRY(check_output(flags.output, flags.force));
  Sizes sizes;
  TQC_TRY_ASSIGN(const cache::Cache cache, read_and_pack(console, flags, options, sizes));
  TQC_TRY_ASSIGN(sizes.after, save_cache(console, cache, flags.output, write));
  TQC_TRY(tell(console, flags, sizes));
  return ExitCode::kDone;
}

}  // namespace

Action define_convert(CLI::App& app) {
  const auto flags = std::make_shared<ConvertFlags>();
  app.add_option("in", flags->input, "Cache file to read; - is standard input")
      ->type_name("")
      ->check(file_name())
      ->required();
  app.add_option("out", flags->output, "Cache file to write; - is standard output")
      ->type_name("")
      ->check(file_name())
      ->required();
  app.add_option("-b,--bits", flags->bits, "Bits of a packed value, 1 to 8; 16: stay dense")
      ->type_name("B")
      ->capture_default_str();
  app.add_option("--key-bits", flags->key_bits, "The same for keys alone")->type_name("B");
  app.add_option("--value-bits", flags->value_bits, "The same for values alone")->type_name("B");
  static const std::map<std::string, cache::Centring> kCentrings = {
      {"pre-rope", cache::Centring::kPreRope},
      {"post-rope", cache::Centring::kPostRope},
      {"none", cache::Centring::kNone}};
  app.add_option_function<std::string>(
         "--center", [flags](const std::string& word) { flags->center = kCentrings.at(word); },
         "Take the mean of keys and values out before packing: pre-rope, post-rope, none")
      ->type_name("WHERE")
      ->check(CLI::IsMember(kCentrings).description(""))
      ->default_str("pre-rope");
  add_compression_flags(app, flags->compression, "zstd");
  add_threads_flag(app, flags->n_threads);
  add_force_flag(app, flags->force);
  app.footer(kExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
