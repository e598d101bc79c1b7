#include "tqcache/capi/handles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "tqcache/base/integers.h"
#include "tqcache/format/sections/section_checks.h"
#include "tqcache/quantize.h"
#include "tqcache/version.h"

namespace tqcache::capi {
namespace {

using cache::TensorKind;

std::string codec_text(const cache::TensorDesc& tensor) {
  if (!tensor.quant) return "dense";
  const cache::QuantSpec& quant = *tensor.quant;
  const codec::PartSpec& first = quant.parts.front();
  if (quant.mode == codec::Mode::kTrellis) return fmt::format("trellis:{:.6g}", first.step);
  int bits = first.bits;
  // prod names the bits of both parts together, mixed those of regular channels.
  if (quant.mode == codec::Mode::kProd) bits += quant.parts.back().bits;
  if (quant.mode == codec::Mode::kMixed) bits = quant.parts.back().bits;
  return fmt::format("{}:{}", codec::mode_word(quant.mode), bits);
}

Result<Sha256> to_digest(const std::uint8_t* bytes) {
  Sha256 digest{};
  if (bytes != nullptr) std::memcpy(digest.data(), bytes, digest.size());
  return digest;
}

std::string text_or_empty(const char* text) { return text == nullptr ? std::string() : text; }

const std::uint8_t* digest_pointer(const Sha256& digest) {
  return reinterpret_cast<const std::uint8_t*>(digest.data());
}

}  // namespace

int code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kTruncated:
    case ErrorCode::kCorrupt:
      return TQCACHE_CORRUPT;
    case ErrorCode::kUnsupported:
    case ErrorCode::kTooLarge:
      return TQCACHE_UNSUPPORTED;
    case ErrorCode::kMismatch:
    case ErrorCode::kNoKey:
      return TQCACHE_MISMATCH;
    case ErrorCode::kInvalidArgument:
      return TQCACHE_USAGE;
    case ErrorCode::kNotFound:
      return TQCACHE_NOT_FOUND;
    case ErrorCode::kIo:
      return TQCACHE_FAILED;
    case ErrorCode::kBusy:
      return TQCACHE_BUSY;
    case ErrorCode::kInterrupted:
      return TQCACHE_INTERRUPTED;
  }
  return TQCACHE_FAILED;
}

int report_error(const Error& error, tqcache_error** out) noexcept {
  const int code = code_of(error.code);
  if (out == nullptr) return code;
  try {
    *out = new tqcache_error{code, error.message, error.file};
  } catch (...) {
    *out = nullptr;
  }
  return code;
}

Result<KeyRing> read_keys(const char* key_file) {
  if (key_file == nullptr || *key_file == '\0') return KeyRing();
  return in_file(key_file, KeyRing::read_file(key_file));
}

Result<format::Access> make_access(const char* key_file) {
  static const predict::Profiles known;  // callers have no object that could keep what was read
  format::Access access;
  TQC_TRY_ASSIGN(access.keys, read_keys(key_file));
  const char* const folder = std::getenv("TQCACHE_PROFILES");
  access.profiles = known.with_folder(folder == nullptr ? "" : folder);
  return access;
}

Result<cache::Identity> to_identity(const tqcache_identity* caller) {
  TQC_TRY_ASSIGN(const tqcache_identity from, known_fields(caller));
  cache::Identity to;
  to.architecture = text_or_empty(from.architecture);
  to.model_name = text_or_empty(from.model_name);
  to.source_format = text_or_empty(from.source_format);
  TQC_TRY_ASSIGN(to.weights_fingerprint, to_digest(from.weights_fingerprint));
  TQC_TRY_ASSIGN(to.tokenizer_fingerprint, to_digest(from.tokenizer_fingerprint));
  if (from.adapter_fingerprint != nullptr) {
    TQC_TRY_ASSIGN(to.adapter_fingerprint, to_digest(from.adapter_fingerprint));
  }
  if (from.model_fingerprint != nullptr) {
    if (from.model_fingerprint_version < 2 || from.model_fingerprint_version > 255) {
      return invalid("version of the model fingerprint");
    }
    cache::ModelFingerprint fingerprint;
    fingerprint.version = static_cast<std::uint8_t>(from.model_fingerprint_version);
    TQC_TRY_ASSIGN(fingerprint.digest, to_digest(from.model_fingerprint));
    to.model_fingerprint = fingerprint;
  }
  if (from.rope_style < TQCACHE_ROPE_NONE || from.rope_style > TQCACHE_ROPE_INTERLEAVED) {
    return invalid(fmt::format("RoPE style {}", from.rope_style));
  }
  if (from.rope_dims < 0 || from.rope_dims > cache::kMaxHeadDim) {
    return invalid(fmt::format("RoPE of {} components", from.rope_dims));
  }
  to.rope.style = static_cast<cache::RopeStyle>(from.rope_style);
  to.rope.n_dims = from.rope_dims;
  to.rope.base = from.rope_base;
  if (from.rope_factors != nullptr) {
    to.rope.factors.assign(from.rope_factors, from.rope_factors + from.rope_dims / 2);
  }
  return to;
}

tqcache_identity from_identity(const cache::Identity& from) {
  tqcache_identity to{};
  to.size = sizeof(to);
  to.architecture = from.architecture.c_str();
  to.model_name = from.model_name.c_str();
  to.source_format = from.source_format.c_str();
  to.weights_fingerprint = digest_pointer(from.weights_fingerprint);
  to.tokenizer_fingerprint = digest_pointer(from.tokenizer_fingerprint);
  if (from.adapter_fingerprint) to.adapter_fingerprint = digest_pointer(*from.adapter_fingerprint);
  if (from.model_fingerprint) {
    to.model_fingerprint = digest_pointer(from.model_fingerprint->digest);
    to.model_fingerprint_version = from.model_fingerprint->version;
  }
  to.rope_style = static_cast<std::int32_t>(from.rope.style);
  to.rope_dims = from.rope.n_dims;
  to.rope_base = from.rope.base;
  to.rope_factors = from.rope.factors.empty() ? nullptr : from.rope.factors.data();
  return to;
}

Result<TensorView> to_tensor(const tqcache_tensor* caller, bool needs_data) {
  if (caller == nullptr) return invalid("no tensor");
  TQC_TRY_ASSIGN(const tqcache_tensor from, known_fields(caller));
  if (from.dtype < TQCACHE_F32 || from.dtype > TQCACHE_BF16) {
    return invalid(fmt::format("dtype {}", from.dtype));
  }
  TensorView to;
  to.data = static_cast<std::byte*>(from.data);
  to.dtype = static_cast<Dtype>(from.dtype);
  to.n_heads = from.n_heads;
  to.n_tokens = from.n_tokens;
  to.head_dim = from.head_dim;
  const bool is_in_bounds = from.n_heads >= 1 && from.n_heads <= cache::kMaxKvHeads &&
                            from.head_dim >= 1 && from.head_dim <= cache::kMaxHeadDim &&
                            from.n_tokens >= 0 && from.n_tokens <= cache::kMaxTokens;
  if (!is_in_bounds) {
    return invalid(fmt::format("a tensor of {} heads, {} tokens and {} components", from.n_heads,
                               from.n_tokens, from.head_dim));
  }
  if (needs_data && from.data == nullptr && from.n_tokens > 0)
    return invalid("a tensor without data");
  to.head_stride = from.head_stride;
  to.token_stride = from.token_stride;
  to.component_stride = from.component_stride;
  if (from.head_stride == 0 && from.token_stride == 0 && from.component_stride == 0) {
    to.component_stride = 1;
    to.token_stride = from.head_dim;
    to.head_stride = from.n_tokens * from.head_dim;
  }
  return to;
}

void write_rows(ByteView rows, Dtype dtype, const TensorView& to, std::int64_t head,
                std::int64_t token, std::int64_t count) {
  const std::size_t dim = to_size(to.head_dim);
  const std::size_t row_bytes = dim * dtype_size(dtype);
  const bool is_dense_row = to.component_stride == 1;
  if (is_dense_row && dtype == to.dtype && to.token_stride == to.head_dim) {
    std::memcpy(to.row(head, token), rows.data(), to_size(count) * row_bytes);
    return;
  }
  const std::size_t width = dtype_size(to.dtype);
  std::vector<float> values(dim);
  std::vector<std::byte> converted(dim * width);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::byte* const row = rows.data() + to_size(i) * row_bytes;
    std::byte* const out = to.row(head, token + i);
    std::byte* const contiguous = is_dense_row ? out : converted.data();
    if (dtype == to.dtype) {
      std::memcpy(contiguous, row, row_bytes);
    } else {
      load_f32(dtype, row, values);
      store_f32(to.dtype, values, contiguous);
    }
    if (is_dense_row) continue;
    for (std::size_t c = 0; c < dim; ++c) {
      std::memcpy(out + static_cast<std::int64_t>(c) * to.component_stride *
                            static_cast<std::int64_t>(width),
                  contiguous + c * width, width);
    }
  }
}

void read_rows(const TensorView& from, std::int64_t head, std::int64_t token, std::int64_t count,
               std::span<std::byte> rows) {
  const std::size_t width = dtype_size(from.dtype);
  const std::size_t row_bytes = to_size(from.head_dim) * width;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::byte* const row = from.row(head, token + i);
    std::byte* const out = rows.data() + to_size(i) * row_bytes;
    if (from.component_stride == 1) {
      std::memcpy(out, row, row_bytes);
      continue;
    }
    for (std::int64_t c = 0; c < from.head_dim; ++c) {
      std::memcpy(out + to_size(c) * width,
                  row + c * from.component_stride * static_cast<std::int64_t>(width), width);
    }
  }
}

std::unique_ptr<tqcache_cache> finish_cache(tqcache_cache cache) {
  auto handle = std::make_unique<tqcache_cache>(std::move(cache));
  const cache::CacheDesc& description = handle->reader->description();
  handle->index.emplace(handle->reader->blocks());
  for (const cache::LayerDesc& layer : description.layers) {
    tqcache_cache::LayerText text;
    if (const cache::AttentionDesc* attention = cache::attention_of(layer)) {
      text.key_codec = codec_text(attention->k);
      text.value_codec = codec_text(attention->v);
    }
    text.arrays = cache::arrays_of(layer, description.n_tokens());
    handle->texts.push_back(std::move(text));
  }
  return handle;
}

Result<const std::vector<cache::LayerCodecs>*> codecs_of(const tqcache_cache& cache) {
  tqcache_cache::Codecs& codecs = *cache.codecs;
  std::call_once(codecs.once, [&] {
    const cache::CacheDesc& description = cache.reader->description();
    auto made = cache::make_codecs(description.layers, description.identity.rope);
    if (made) {
      codecs.layers = std::move(made).value();
    } else {
      codecs.error = std::move(made).error();
    }
  });
  if (codecs.error) return *codecs.error;
  return &codecs.layers;
}

Result<SharedBytes> share_in_place(const tqcache_cache& cache, std::size_t block) {
  if (cache.mapped.size() == 0) return cache.reader->share(block);
  const format::SectionInfo& section = cache.sections->info().sections[block];
  if (section.compression != format::Compression::kNone || cache.encrypted || section.packed) {
    return cache.reader->share(block);
  }
  SharedBytes stored = cache.mapped.part(section.file_offset, section.stored_bytes);
  if (!cache.trusted) {
    if (auto checked = format::check_stored(section, stored.view()); !checked) {
      return in_context(cache::block_place(block, section), std::move(checked).error());
    }
  }
  return stored;
}

// --- caches in the caller's memory

Result<std::shared_ptr<const CallerCache>> CallerCache::make(cache::CacheDesc description,
                                                             std::vector<Source> sources) {
  TQC_TRY(cache::validate(description));
  auto made = std::make_shared<CallerCache>();
  made->description_ = std::move(description);
  made->sources_ = std::move(sources);
  for (const cache::BlockKey& key :
       cache::plan_blocks(made->description_.layers, made->description_.n_tokens())) {
    const bool is_tensor = key.tensor != TensorKind::kArray;
    const auto& packed = made->sources_[to_size(key.layer)].packed;
    const bool is_packed = is_tensor && !packed.empty() &&
                           (key.block + 1) * cache::kTokenBlock <= made->description_.n_tokens();
    made->blocks_.push_back(cache::make_block(made->description_, key, is_packed));
  }
  return std::shared_ptr<const CallerCache>(std::move(made));
}

Result<void> CallerCache::read(std::size_t block, AlignedBytes& raw) const {
  const cache::BlockInfo& info = blocks_[block];
  const Source& source = sources_[to_size(info.layer)];
  raw.resize(info.raw_bytes);
  if (!source.arrays.empty()) {
    if (!raw.empty()) std::memcpy(raw.data(), source.arrays[to_size(info.block)], raw.size());
    return {};
  }
  if (info.packed) {
    const ByteView blocks = source.packed[info.tensor == TensorKind::kKeys ? 0 : 1];
    // The first block is larger than the others, if it has sink tokens.
    const std::int64_t behind = n_tokens() / cache::kTokenBlock - info.block;
    const std::size_t at = info.block == 0 ? 0 : blocks.size() - to_size(behind) * raw.size();
    std::memcpy(raw.data(), blocks.data() + at, raw.size());
    return {};
  }
  // Token blocks of keys and values; or a window's two arrays, which are its tensors.
  const bool is_array = info.tensor == TensorKind::kArray;
  const bool is_keys = is_array ? info.block == 0 : info.tensor == TensorKind::kKeys;
  const TensorView& tensor = source.tensors[is_keys ? 0 : 1];
  if (tensor.data == nullptr && source.filler == nullptr) {
    std::ranges::fill(raw, std::byte{0});
    return {};
  }
  const bool is_tail = !source.packed.empty();
  const std::int64_t first = is_array || is_tail ? 0 : info.block * cache::kTokenBlock;
  const std::int64_t count =
      is_array ? tensor.n_tokens : cache::tokens_in_block(n_tokens(), info.block);
  if (source.filler != nullptr) {
    tqcache_tensor to = TQCACHE_INIT(tqcache_tensor);
    to.data = raw.data();
    to.dtype = static_cast<std::int32_t>(tensor.dtype);
    to.n_heads = tensor.n_heads;
    to.n_tokens = count;
    to.head_dim = tensor.head_dim;
    const std::scoped_lock lock(source.filler->mutex);
    const int code = source.filler->call(source.filler->user,
                                         is_keys ? TQCACHE_KEYS : TQCACHE_VALUES, first, &to);
    if (code != 0) {
      return in_context(cache::block_place(block, info),
                        {ErrorCode::kIo, fmt::format("the caller's function returns {}", code)});
    }
  } else {
    const std::size_t head_bytes = to_size(count * tensor.head_dim) * dtype_size(tensor.dtype);
    for (std::int64_t head = 0; head < tensor.n_heads; ++head) {
      read_rows(tensor, head, first, count,
                std::span(raw).subspan(to_size(head) * head_bytes, head_bytes));
    }
  }
  const cache::LayerDesc& layer = description_.layers[to_size(info.layer)];
  format::SectionInfo section;
  static_cast<cache::BlockInfo&>(section) = info;
  const auto checked = format::check_values(layer, section, raw);
  if (!checked) return in_context(cache::block_place(block, info), checked.error());
  return {};
}

Result<Conversion> apply_config(const tqcache_cache& cache, const char* config, unsigned threads) {
  Conversion conversion{cache.reader, {}};
  conversion.options.n_threads = threads;
  if (config == nullptr) {
    conversion.options.keep_all = true;
    return conversion;
  }
  TQC_TRY_ASSIGN(cache::Configuration parsed, cache::parse_configuration(config));
  conversion.options = parsed.options;
  conversion.options.n_threads = threads;
  if (parsed.is_dense()) {
    TQC_TRY_ASSIGN(conversion.reader, cache::dequantize(cache.reader));
  }
  return conversion;
}

}  // namespace tqcache::capi

using namespace tqcache::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

int tqcache_abi(void) { return TQCACHE_ABI; }
const char* tqcache_version(void) { return tqcache::version().data(); }

int tqcache_error_code(const tqcache_error* error) {
  return error == nullptr ? int{TQCACHE_OK} : error->code;
}
const char* tqcache_error_message(const tqcache_error* error) {
  return error == nullptr ? "out of memory" : error->message.c_str();
}
const char* tqcache_error_file(const tqcache_error* error) {
  return error == nullptr ? "" : error->file.c_str();
}
void tqcache_error_free(tqcache_error* error) { delete error; }

const void* tqcache_bytes_data(const tqcache_bytes* bytes) {
  return bytes == nullptr ? nullptr : bytes->view().data();
}
size_t tqcache_bytes_size(const tqcache_bytes* bytes) {
  return bytes == nullptr ? 0 : bytes->view().size();
}
void tqcache_bytes_free(tqcache_bytes* bytes) { delete bytes; }

}  // extern "C"
