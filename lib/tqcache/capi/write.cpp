// The C interface: making, converting and verifying of caches, and profiles.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tqcache/base/integers.h"
#include "tqcache/capi/writer.h"
#include "tqcache/interop.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

using namespace tqcache;        // NOLINT(google-build-using-namespace)
using namespace tqcache::capi;  // NOLINT(google-build-using-namespace)

namespace tqcache::capi {
namespace {

// The description of a layer's keys and values. Errors: kInvalidArgument.
Result<cache::AttentionDesc> describe_pair(const TensorView& k, const TensorView& v,
                                           std::int64_t n_tokens) {
  if (k.n_heads != v.n_heads || k.n_tokens != v.n_tokens) {
    return invalid("keys and values of different numbers of heads or tokens");
  }
  if (k.n_tokens != n_tokens) {
    return invalid(fmt::format("keys of {} tokens, where {} are held", k.n_tokens, n_tokens));
  }
  cache::AttentionDesc layer;
  layer.shape = {k.n_heads, k.head_dim};
  layer.value_dim = cache::value_dim_of(k.head_dim, v.head_dim);
  layer.k.dtype = k.dtype;
  layer.v.dtype = v.dtype;
  return layer;
}

Result<void> add_state(tqcache_writer& writer, const tqcache_array* arrays, const void* const* data,
                       std::int32_t n_arrays) {
  cache::StateDesc layer;
  CallerCache::Source source;
  if (n_arrays < 0) return invalid("a negative number of arrays");
  for (std::int32_t i = 0; i < n_arrays; ++i) {
    // Elements are the caller's structs, of the caller's size.
    const auto* const from = reinterpret_cast<const tqcache_array*>(
        reinterpret_cast<const std::byte*>(arrays) + to_size(i) * arrays->size);
    TQC_TRY_ASSIGN(const tqcache_array known, known_fields(from));
    const bool is_valid = known.name != nullptr && known.rank >= 0 && known.rank <= 8 &&
                          known.dtype >= TQCACHE_F32 && known.dtype <= TQCACHE_BF16;
    if (!is_valid) return invalid(fmt::format("array {}", i));
    cache::ArrayDesc array{known.name, static_cast<Dtype>(known.dtype), {}};
    std::optional<std::uint64_t> n_bytes = dtype_size(array.dtype);
    for (std::int32_t d = 0; d < known.rank; ++d) {
      if (known.shape[d] < 0) return invalid(fmt::format("array {}: a negative dimension", i));
      array.shape.push_back(to_u64(known.shape[d]));
      if (n_bytes) n_bytes = checked_mul(*n_bytes, array.shape.back());
    }
    if (!n_bytes || (known.n_bytes != 0 && known.n_bytes != *n_bytes)) {
      return invalid(fmt::format("array {}: {} bytes, where its shape has {}", i, known.n_bytes,
                                 n_bytes ? fmt::to_string(*n_bytes) : "more than 2^64"));
    }
    if (data[i] == nullptr && *n_bytes > 0) return invalid(fmt::format("array {}: no data", i));
    layer.arrays.push_back(std::move(array));
    source.arrays.push_back(static_cast<const std::byte*>(data[i]));
  }
  writer.description.layers.emplace_back(std::move(layer));
  writer.sources.push_back(std::move(source));
  return {};
}

// --- options

Result<format::WriteOptions> write_options_of(const tqcache_convert_options& options) {
  format::WriteOptions write;
  const std::string_view compress = options.compress == nullptr ? "zstd" : options.compress;
  if (compress == "zstd") {
    write.compression = format::Compression::kZstd;
  } else if (compress == "planes") {
    write.compression = format::Compression::kPlanes;
  } else if (compress == "none") {
    write.compression = format::Compression::kNone;
  } else {
    return invalid(fmt::format("compression '{}': zstd, planes or none", compress));
  }
  write.n_threads = options.threads;
  write.overwrite = options.overwrite != 0 ? Overwrite::kAllow : Overwrite::kRefuse;
  write.hide_tokens = options.hide_tokens != 0;
  TQC_TRY_ASSIGN(write.keys, read_keys(options.key_file));
  return write;
}

// As `tqcache convert --tier archive`: four sink tokens stay dense.
Result<Conversion> make_archive(const tqcache_cache& cache,
                                const tqcache_convert_options& options) {
  if (options.config != nullptr) return invalid("both a configuration and an archive");
  const int n_targets = int{options.archive_bits != 0} + int{options.archive_mse != 0} +
                        int{options.archive_kld != 0};
  if (n_targets > 1) return invalid("an archive has one target: bits, error or divergence");
  Conversion conversion{cache.reader, {}};
  conversion.options.n_threads = options.threads;
  for (cache::TensorPlan* plan : {&conversion.options.keys, &conversion.options.values}) {
    plan->codec = {};
    plan->codec.mode = codec::Mode::kTrellis;
    plan->n_sinks = 4;
  }
  const cache::CacheDesc& description = cache.reader->description();
  format::ArchiveTarget target;
  if (options.profile != nullptr) {
    const eval::Profile& profile = options.profile->profile;
    TQC_TRY(eval::check_profile(profile, description.identity, std::ssize(description.layers)));
    conversion.options.weights = profile.weights;
  }
  if (options.archive_kld != 0) {
    if (options.profile == nullptr) return invalid("a divergence needs a profile");
    TQC_TRY_ASSIGN(target.step,
                   eval::step_for_divergence(options.profile->profile, options.archive_kld));
  } else if (options.archive_mse != 0) {
    target.mse = options.archive_mse;
  } else {
    target.bits = options.archive_bits;
  }
  TQC_TRY_ASSIGN(conversion.options,
                 format::choose_step(*cache.reader, conversion.options, target,
                                     to_progress(options.progress, options.user)));
  return conversion;
}

Result<Conversion> conversion_of(const tqcache_cache& cache,
                                 const tqcache_convert_options& options) {
  const bool is_archive =
      options.archive_bits != 0 || options.archive_mse != 0 || options.archive_kld != 0;
  return is_archive ? make_archive(cache, options)
                    : apply_config(cache, options.config, options.threads);
}

Result<void> export_llama(const cache::CacheReader& cache, const char* path,
                          interop::LlamaFile kind, const tqcache_convert_options& options,
                          Overwrite overwrite, const Progress& progress) {
  if (options.model == nullptr) return invalid("a file of llama.cpp needs the model's GGUF");
  TQC_TRY_ASSIGN(const interop::LlamaGeometry geometry,
                 in_file(options.model, interop::read_llama_geometry(options.model)));
  interop::LlamaExport how;
  how.kind = kind;
  how.version = kind == interop::LlamaFile::kSession ? 11 : 4;  // the newest
  how.overwrite = overwrite;
  return interop::export_llama_state(cache, geometry, path, how, progress);
}

Result<void> convert_to_file(const tqcache_cache& cache, const char* path,
                             const tqcache_convert_options& options) {
  TQC_TRY_ASSIGN(const format::WriteOptions write, write_options_of(options));
  const Progress progress = to_progress(options.progress, options.user);
  const std::string_view to = options.to == nullptr ? "tqkv" : options.to;
  if (to == "tqkv") {
    TQC_TRY_ASSIGN(const Conversion conversion, conversion_of(cache, options));
    return format::convert_file(*conversion.reader, path, conversion.options, write, progress);
  }
  if (options.config != nullptr) {
    return invalid("a configuration is for .tqkv files; other programs get decoded values");
  }
  const cache::CacheReader& reader = *cache.reader;
  if (to == "hf") return interop::export_hf(reader, path, write.overwrite, progress);
  if (to == "npz") return interop::export_npz(reader, path, write.overwrite, progress);
  if (to == "mlx-lm") {
    interop::MlxLmExport how;
    how.overwrite = write.overwrite;
    return interop::export_mlx_lm(reader, path, how, progress);
  }
  if (to == "llama-session" || to == "llama-sequence") {
    const auto kind =
        to == "llama-session" ? interop::LlamaFile::kSession : interop::LlamaFile::kSequence;
    return export_llama(reader, path, kind, options, write.overwrite, progress);
  }
  return invalid(fmt::format("'{}': tqkv, hf, mlx-lm, npz, llama-session or llama-sequence", to));
}

}  // namespace
}  // namespace tqcache::capi

extern "C" {

// --- writers

int tqcache_writer_new(const int32_t* tokens, int64_t n_tokens, const tqcache_identity* identity,
                       tqcache_writer** writer, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    if (n_tokens < 0 || n_tokens > cache::kMaxTokens) {
      return invalid(fmt::format("{} tokens", n_tokens));
    }
    auto made = std::make_unique<tqcache_writer>();
    TQC_TRY_ASSIGN(made->description.identity, to_identity(identity));
    if (tokens == nullptr) {
      made->description.tokens.assign(to_size(n_tokens), cache::kUnknownToken);
      if (n_tokens > 0) made->description.hidden_tokens.emplace();
    } else {
      made->description.tokens.assign(tokens, tokens + n_tokens);
    }
    *writer = made.release();
    return {};
  });
}

int tqcache_writer_attention(tqcache_writer* writer, const tqcache_tensor* keys,
                             const tqcache_tensor* values, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const TensorView k, to_tensor(keys));
    TQC_TRY_ASSIGN(const TensorView v, to_tensor(values));
    TQC_TRY_ASSIGN(auto layer, describe_pair(k, v, writer->description.n_tokens()));
    writer->description.layers.emplace_back(std::move(layer));
    writer->sources.push_back({{k, v}, {}, {}});
    return {};
  });
}

int tqcache_writer_attention_from(tqcache_writer* writer, const tqcache_tensor* keys,
                                  const tqcache_tensor* values, tqcache_fill fill, void* user,
                                  tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(TensorView k, to_tensor(keys, /*needs_data=*/false));
    TQC_TRY_ASSIGN(TensorView v, to_tensor(values, /*needs_data=*/false));
    if (fill == nullptr) return invalid("no function that gives keys and values");
    k.data = v.data = nullptr;
    TQC_TRY_ASSIGN(auto layer, describe_pair(k, v, writer->description.n_tokens()));
    writer->description.layers.emplace_back(std::move(layer));
    auto filler = std::make_shared<CallerCache::Filler>();
    filler->call = fill;
    filler->user = user;
    writer->sources.push_back({{k, v}, {}, std::move(filler)});
    return {};
  });
}

int tqcache_writer_window(tqcache_writer* writer, const tqcache_tensor* keys,
                          const tqcache_tensor* values, int64_t window, int64_t keep,
                          tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const TensorView k, to_tensor(keys));
    TQC_TRY_ASSIGN(const TensorView v, to_tensor(values));
    const cache::Window size{window, keep};
    if (window < 1 || keep < 0 || keep >= window) {
      return invalid(fmt::format("a window of {} tokens, of which {} stay", window, keep));
    }
    TQC_TRY_ASSIGN(auto layer,
                   describe_pair(k, v, cache::window_tokens(size, writer->description.n_tokens())));
    writer->description.layers.emplace_back(cache::WindowDesc{std::move(layer), size});
    writer->sources.push_back({{k, v}, {}, {}});
    return {};
  });
}

int tqcache_writer_state(tqcache_writer* writer, const tqcache_array* arrays,
                         const void* const* data, int32_t n_arrays, tqcache_error** error) {
  return guarded(error, [&] { return add_state(*writer, arrays, data, n_arrays); });
}

int tqcache_writer_media(tqcache_writer* writer, const tqcache_media* media,
                         tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const tqcache_media known, known_fields(media));
    cache::CacheDesc& cache = writer->description;
    if (cache.hidden_tokens) return invalid("media among tokens whose ids are not known");
    const std::int64_t end = cache.media.empty() ? 0 : cache.media.back().end();
    if (known.begin < end || known.n_tokens < 1 || known.begin > cache.n_tokens() ||
        known.n_tokens > cache.n_tokens() - known.begin) {
      return invalid(fmt::format("media of {} tokens from token {} on, behind {} of {} tokens",
                                 known.n_tokens, known.begin, end, cache.n_tokens()));
    }
    if (known.kind < TQCACHE_IMAGE || known.kind > TQCACHE_VIDEO || known.id == nullptr) {
      return invalid("media of an unknown kind, or without an id");
    }
    cache::MediaSpan span;
    span.kind = static_cast<cache::MediaKind>(known.kind);
    span.begin = known.begin;
    span.n_tokens = known.n_tokens;
    span.id = known.id;
    span.placeholder = known.placeholder;
    const std::int64_t position = cache::position_of(cache.media, known.begin);
    span.next_position = position + known.n_tokens;
    if (known.coordinates != nullptr) {
      span.coordinates.assign(known.coordinates, known.coordinates + 3 * known.n_tokens);
      span.next_position = known.next_position;
    }
    std::ranges::copy(cache::media_tokens(span, position, cache.n_tokens()),
                      cache.tokens.begin() + static_cast<std::ptrdiff_t>(span.begin));
    cache.media.push_back(std::move(span));
    return {};
  });
}

int tqcache_writer_cache(const tqcache_writer* writer, tqcache_cache** cache,
                         tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    tqcache_cache made;
    made.kind = "memory";
    TQC_TRY_ASSIGN(made.reader, CallerCache::make(writer->description, writer->sources));
    *cache = finish_cache(std::move(made)).release();
    return {};
  });
}

void tqcache_writer_free(tqcache_writer* writer) { delete writer; }

// --- profiles

int tqcache_profile_load(const char* path, tqcache_profile** profile, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const Bytes bytes, in_file(path, read_file(path, eval::kMaxProfileBytes)));
    TQC_TRY_ASSIGN(eval::Profile parsed, in_file(path, eval::parse_profile(bytes)));
    if (!parsed.is_measured()) {
      return in_file(path, Result<void>(invalid("a profile of factors of keys alone: it belongs "
                                                "into a configuration, profile=FILE")));
    }
    *profile = new tqcache_profile{std::move(parsed)};
    return {};
  });
}

int64_t tqcache_profile_layers(const tqcache_profile* profile) {
  return profile->profile.n_layers();
}

int tqcache_profile_step(const tqcache_profile* profile, double kld, double* step,
                         tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(*step, eval::step_for_divergence(profile->profile, kld));
    return {};
  });
}

void tqcache_profile_free(tqcache_profile* profile) { delete profile; }

// --- conversion

int tqcache_convert(const tqcache_cache* cache, const char* path,
                    const tqcache_convert_options* options, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const tqcache_convert_options known, known_fields(options));
    Result<void> done = convert_to_file(*cache, path, known);
    if (done) return done;
    // What is wrong with bytes is wrong with the source.
    const ErrorCode code = done.error().code;
    const bool is_of_source = code == ErrorCode::kCorrupt || code == ErrorCode::kTruncated ||
                              code == ErrorCode::kUnsupported || code == ErrorCode::kMismatch;
    return in_file(is_of_source ? cache->path : path, std::move(done).error());
  });
}

int tqcache_convert_bytes(const tqcache_cache* cache, const tqcache_convert_options* options,
                          tqcache_bytes** bytes, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const tqcache_convert_options known, known_fields(options));
    TQC_TRY_ASSIGN(const format::WriteOptions write, write_options_of(known));
    TQC_TRY_ASSIGN(const Conversion conversion, conversion_of(*cache, known));
    TQC_TRY_ASSIGN(const auto quantized, cache::quantize(conversion.reader, conversion.options));
    TQC_TRY_ASSIGN(Bytes made, format::write_cache_bytes(*quantized, write,
                                                         to_progress(known.progress, known.user)));
    *bytes = new tqcache_bytes{{}, std::move(made)};
    return {};
  });
}

int tqcache_verify(const char* path, const tqcache_verify_options* options,
                   tqcache_verified* verified, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const tqcache_verify_options known, known_fields(options));
    format::ReadOptions read;
    read.n_threads = known.threads;
    TQC_TRY_ASSIGN(read.access, make_access(known.key_file));
    if (known.max_bytes != 0) read.access.memory = MemoryBudget().at_most(known.max_bytes);
    TQC_TRY_ASSIGN(const auto file, in_file(path, open_file(path)));
    TQC_TRY_ASSIGN(
        const format::VerifyReport report,
        in_file(path, format::verify_cache(*file, read, to_progress(known.progress, known.user))));
    tqcache_verified result{};
    result.n_tokens = report.info.n_tokens();
    result.sections = report.sections_checked;
    result.bytes = report.bytes_checked;
    result.n_damage = report.damage.size();
    const std::string digest = to_hex(report.info.content_name);
    std::copy_n(digest.begin(), std::min(digest.size(), sizeof(result.content_digest) - 1),
                result.content_digest);
    ByteWriter lines;
    for (const std::string& line : report.damage) lines.append(as_bytes(line + "\n"));
    result.damage = new tqcache_bytes{{}, std::move(lines).take()};
    give_fields(result, verified);
    return {};
  });
}

const char* tqcache_preset(int32_t index) {
  const auto names = cache::preset_names();
  return index < 0 || index >= std::ssize(names) ? nullptr : names[to_size(index)].data();
}

const char* tqcache_preset_description(int32_t index) {
  const auto names = cache::preset_names();
  if (index < 0 || index >= std::ssize(names)) return nullptr;
  return cache::preset_description(names[to_size(index)]).data();
}

}  // extern "C"
