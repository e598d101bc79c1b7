// tools/cmd_convert.cpp: packs the dense sides of a cache into turbo form.

#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <optional>

#include "cache_io.h"
#include "cli.h"
#include "codec_flags.h"
#include "file_stats.h"
#include "progress.h"
#include "text.h"
#include "tqcache/cache/convert.h"
#include "tqcache/format/convert_file.h"

namespace tqcache::cli {
namespace {

constexpr const char* kNotes =
    R"(Only full blocks of 256 tokens are packed; the tokens after them stay dense
until their block is full, so a conversation can go on without packing twice.
The work goes block by block: memory does not grow with the cache.

)";

constexpr const char* kExamples =
    R"(Examples:
  tqcache convert book.kv book.tqkv
  tqcache convert book.kv book.tqkv --preset k8v4
  tqcache convert book.kv book.tqkv --key-bits 4 --value-bits 3
  tqcache convert book.kv book.tqkv --key-bits 16      keys stay dense
  tqcache convert book.kv book.tqkv --boundary-layers 2 --sink-tokens 4
  tqcache convert book.kv book.tqkv --mode mixed --outlier-channels 32
  tqcache convert book.kv chapter.tqkv --tokens 4096
  tqcache convert - - < book.kv > book.tqkv
)";

std::string footer() {
  std::string text = std::string(kNotes) + "Presets:\n";
  for (const std::string_view name : cache::preset_names()) {
    text += fmt::format("  {:<9} {}\n", name, cache::preset_description(name));
  }
  return text + "\n" + kExamples;
}

struct ConvertFlags {
  std::string input;
  std::string output;
  CodecFlags codec;
  CompressionFlags compression;
  std::optional<std::int64_t> first_tokens;
  bool no_tokens = false;
  unsigned n_threads = 0;
  bool force = false;
};

struct Sizes {
  std::uint64_t before = 0;  // bytes of the input file
  std::uint64_t after = 0;
  std::int64_t n_tokens = 0;   // that were converted
  std::uint64_t n_values = 0;  // their keys and values

  double ratio() const {
    return after == 0 ? 0 : static_cast<double>(before) / static_cast<double>(after);
  }
};

Outcome<Done> tell(const Console& console, const ConvertFlags& flags, const Sizes& sizes) {
  const std::optional<double> bits = bits_per_value(sizes.after, sizes.n_values);
  // Sizes of a whole and of a part are not to be compared.
  const std::string change =
      flags.first_tokens
          ? fmt::format("the first {} tokens, {} bytes", sizes.n_tokens, grouped(sizes.after))
          : fmt::format("{} -> {} bytes, {:.2f} times smaller", grouped(sizes.before),
                        grouped(sizes.after), sizes.ratio());
  note(console, fmt::format("{}: {}{}", display_name(flags.output, "standard output"), change,
                            bits ? fmt::format(", {:.3f} bits a value", *bits) : ""));
  if (!console.json) return Done{};
  Json object;
  object["schema"] = 1;
  object["file"] = flags.output;
  object["n_tokens"] = sizes.n_tokens;
  object["bytes_before"] = sizes.before;
  object["bytes_after"] = sizes.after;
  object["ratio"] = sizes.ratio();
  object["bits_per_value"] = bits ? Json(*bits) : Json(nullptr);
  return print_json(object);
}

// Says so when keys cannot be centred before RoPE, as was asked for.
void tell_fallback(const Console& console, const format::CacheFileInfo& info,
                   const cache::SidePlan& keys) {
  if (keys.dense || keys.center != cache::Centring::kPreRope) return;
  for (const format::LayerInfo& layer : info.layers) {
    if (!is_attention(layer)) continue;
    const auto got = cache::key_centring(keys.center, info.identity.rope, layer.shape.head_dim);
    if (got == keys.center) continue;
    note(console,
         "the cache does not say how its model turns keys (RoPE): centring after RoPE instead");
    return;
  }
}

// Standard output takes nothing back, so the file has to be whole before the first byte goes there.
Outcome<std::uint64_t> convert_to_stdout(const Console& console, const CacheInput& input,
                                         const ConvertFlags& flags,
                                         const cache::ConvertOptions& options,
                                         const format::WriteOptions& write) {
  format::ReadOptions read;
  read.n_threads = options.n_threads;
  read.first_tokens = flags.first_tokens;
  ProgressBar reading(console, "reading", Unit::kBytes);
  TQC_TRY_ASSIGN(cache::Cache cache,
                 in_file(input.name, format::read_cache(*input.source, read, reading.callback())));
  ProgressBar packing(console, "packing", Unit::kVectors);
  TQC_TRY_ASSIGN(
      cache, in_file(input.name, cache::convert(std::move(cache), options, packing.callback())));
  return save_cache(console, cache, "-", write);
}

// A source that remembers whether it could not be read: then the input is to blame for an error,
// and otherwise the output.
class WatchedSource : public ByteSource {
 public:
  explicit WatchedSource(const ByteSource& source) : source_(source) {}
  std::uint64_t size() const override { return source_.size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    Result<void> read = source_.read_at(offset, out);
    if (!read) failed_ = true;
    return read;
  }
  bool failed() const { return failed_; }

 private:
  const ByteSource& source_;
  mutable std::atomic<bool> failed_ = false;
};

// Whether the output is to blame, and not the input.
bool is_of_output(const Error& error, const WatchedSource& watched) {
  if (error.code == ErrorCode::kBusy) return true;  // another process is writing there
  return error.code == ErrorCode::kIo && !watched.failed();
}

Outcome<std::uint64_t> convert_to_file(const Console& console, const CacheInput& input,
                                       const ConvertFlags& flags,
                                       const cache::ConvertOptions& options,
                                       const format::WriteOptions& write) {
  {
    ProgressBar bar(console, "converting", Unit::kBytes);
    const WatchedSource watched(*input.source);
    auto done = format::convert_file(watched, flags.output, options, write, bar.callback(),
                                     flags.first_tokens);
    const bool is_output = !done && is_of_output(done.error(), watched);
    TQC_TRY(in_file(is_output ? flags.output : input.name, std::move(done)));
  }
  return size_on_disk(flags.output);
}

Outcome<ExitCode> run(const Console& console, const ConvertFlags& flags) {
  TQC_TRY_ASSIGN(cache::ConvertOptions options, convert_options(flags.codec));
  options.n_threads = flags.n_threads;
  TQC_TRY_ASSIGN(format::WriteOptions write,
                 write_options(flags.compression, flags.n_threads, flags.force));
  write.hide_tokens = flags.no_tokens;
  const bool to_stdout = flags.output == "-";
  if (console.json && to_stdout) {
    return usage_error("--json: standard output is taken by the cache");
  }
  TQC_TRY(check_output(flags.output, flags.force));
  TQC_TRY_ASSIGN(const CacheInput input, open_cache(flags.input, flags.n_threads));
  TQC_TRY_ASSIGN(const format::CacheFileInfo info,
                 in_file(input.name, format::read_cache_info(*input.source)));
  const std::int64_t n_tokens = flags.first_tokens.value_or(info.n_tokens());
  Sizes sizes{input.file_bytes, 0, n_tokens, value_count(info, n_tokens)};
  TQC_TRY_ASSIGN(sizes.after, to_stdout ? convert_to_stdout(console, input, flags, options, write)
                                        : convert_to_file(console, input, flags, options, write));
  tell_fallback(console, info, options.keys);
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
  add_codec_flags(app, flags->codec);
  add_first_tokens_flag(app, flags->first_tokens);
  add_no_tokens_flag(app, flags->no_tokens);
  add_compression_flags(app, flags->compression, "zstd");
  add_threads_flag(app, flags->n_threads);
  add_force_flag(app, flags->force);
  app.footer(footer());
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
