#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "tqcache/base/integers.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/interop.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/hf/hf.h"
#include "tqcache/interop/import_any.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/interop/mlx/mlx_lm.h"
#include "tqcache/interop/npz/npz_cache.h"
#include "tqcache/interop/programs.h"
#include "tqcache/interop/turbomlx/turbomlx.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tensors/safetensors.h"
#include "tqcache/tensors/zip_archive.h"
#include "tqcache/tqkv.h"

namespace tqcache::interop {
namespace {

// --- detection

constexpr std::string_view kPickleAdvice =
    ", which is a program and not data: save the cache with tools/tqcache_hf.py, and read that";

// The start of torch.save files that predate its zip format: the pickle of an 80-bit number,
// protocol 2.
constexpr std::array<unsigned char, 15> kOldTorch = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                                     0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e};

// The first bytes of a file, at most `size`.
Result<Bytes> first_bytes(const ByteSource& file, std::size_t size) {
  Bytes bytes(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), size)));
  TQC_TRY(file.read_at(0, bytes));
  return bytes;
}

bool is_torch_zip(const ByteSource& file) {
  const auto begins = tensors::begins_as_zip(file);
  if (!begins || !*begins) return false;
  const std::shared_ptr<const ByteSource> alias(std::shared_ptr<void>(), &file);
  const auto zip = tensors::ZipArchive::open(alias);
  return zip && std::ranges::any_of((*zip)->members(), [](const tensors::ZipMember& member) {
           return member.name == "data.pkl" || member.name.ends_with("/data.pkl");
         });
}

// Protocols 2 to 5 begin with the opcode PROTO, followed by a frame or the opcode of the outermost
// value.
bool begins_as_pickle(ByteView start) {
  constexpr std::string_view kFirstOpcodes = "\x95}](cXUKMGJ\x8c\x8a\x8f)NI";
  if (start.size() < 3 || start[0] != std::byte{0x80}) return false;
  const auto protocol = std::to_integer<int>(start[1]);
  const auto opcode = static_cast<char>(start[2]);
  return protocol >= 2 && protocol <= 5 && kFirstOpcodes.find(opcode) != std::string_view::npos;
}

// Version 1 is a FlatBuffer: the offset of its root, then an identifier.
Result<bool> is_version_1(const ByteSource& file) {
  TQC_TRY_ASSIGN(const Bytes start, first_bytes(file, 8));
  return start.size() == 8 && std::ranges::equal(ByteView(start).subspan(4), as_bytes("TQK1"));
}

// A safetensors file begins with the size of its header, a JSON object, as a u64. The lower bytes
// of some sizes are those of a pickle (640 is 80 02); but no pickle has three zeros and "{" behind
// them, because an opcode or the size of a frame is there.
Result<bool> begins_as_safetensors(const ByteSource& file) {
  TQC_TRY_ASSIGN(const Bytes start, first_bytes(file, 9));
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  return start.size() == 9 && start[8] == std::byte{'{'} &&
         std::ranges::all_of(ByteView(start).subspan(5, 3), is_zero);
}

Result<std::optional<FileKind>> safetensors_kind(const ByteSource& file) {
  TQC_TRY_ASSIGN(const bool is_safetensors, begins_as_safetensors(file));
  if (!is_safetensors) return std::optional<FileKind>();
  auto index = tensors::index_safetensors(file);
  if (!index) return in_context("safetensors", std::move(index).error());
  if (is_hf(*index)) return std::optional(FileKind::kHf);
  if (is_mlx_lm(*index)) return std::optional(FileKind::kMlxLm);
  if (const auto named = name_safetensors(*index)) return unsupported(named->words());
  return unsupported(
      "a safetensors file, but neither a cache of mlx-lm nor one that tools/tqcache_hf.py saved");
}

// --- import

Result<LlamaImported> import_llama(const std::shared_ptr<const ByteSource>& file,
                                   const OpenHints& hints) {
  if (!hints.geometry) {
    return invalid("a state file of llama.cpp does not describe its layers: give the model's GGUF");
  }
  const auto import_as = [&](LlamaRotation rotation) {
    return import_llama_state(file, *hints.geometry,
                              {.rotation = rotation, .turbo_layout = hints.turbo_layout});
  };
  if (hints.rotation) return import_as(*hints.rotation);
  TQC_TRY_ASSIGN(LlamaImported not_rotated, import_as(LlamaRotation::kOff));
  if (!not_rotated.may_be_rotated || not_rotated.rotation_is_stated) return not_rotated;
  if (!hints.decide_rotation) {
    return invalid("quantized rows, which may be Hadamard-rotated: say whether they are");
  }
  TQC_TRY_ASSIGN(LlamaImported rotated, import_as(LlamaRotation::kOn));
  TQC_TRY_ASSIGN(const auto as_rotated, reader_of(rotated.cache));
  TQC_TRY_ASSIGN(const auto as_not_rotated, reader_of(not_rotated.cache));
  TQC_TRY_ASSIGN(const LlamaRotation decided, hints.decide_rotation(*as_rotated, *as_not_rotated));
  return decided == LlamaRotation::kOn ? std::move(rotated) : std::move(not_rotated);
}

// Every pickle is treated as TurboMLX's until it names an object to import.
Result<ForeignCache> import_turbomlx_or_name_pickle(const std::shared_ptr<const ByteSource>& file,
                                                    const OpenHints& hints) {
  auto cache = import_turbomlx(file, {.artifacts = hints.artifacts,
                                      .keep_key_codes = hints.keep_key_codes,
                                      .keep_value_codes = hints.keep_value_codes});
  if (cache || cache.error().code != ErrorCode::kUnsupported) return cache;
  const std::optional<std::string> pickle = name_of_pickle(*file);
  if (!pickle) return cache;
  return unsupported(fmt::format("{}; {}", cache.error().message, *pickle));
}

Result<ForeignCache> import_kind(const std::shared_ptr<const ByteSource>& file, FileKind kind,
                                 const OpenHints& hints, std::vector<std::string>& notes) {
  switch (kind) {
    case FileKind::kMlxLm: {
      std::optional<std::int64_t> n_tokens;
      if (hints.tokens) n_tokens = std::ssize(*hints.tokens);
      return import_mlx_lm(file, {.row = hints.row, .n_tokens = n_tokens});
    }
    case FileKind::kHf:
      return import_hf(file);
    case FileKind::kNpz:
      return import_npz(file, hints.access.memory);
    case FileKind::kTurboMlx:
      return import_turbomlx_or_name_pickle(file, hints);
    case FileKind::kLlama: {
      TQC_TRY_ASSIGN(LlamaImported imported, import_llama(file, hints));
      if (imported.next_token) {
        notes.push_back(fmt::format(
            "the file has one token more than it has state for: generation resumes with token {}",
            *imported.next_token));
      }
      return std::move(imported.cache);
    }
    case FileKind::kTqkv:
    case FileKind::kTqkvVersion1:
      break;
  }
  return invalid(fmt::format("a {} is no file of another program", name_of(kind)));
}

// --- hints that complete a cache of any kind

Result<void> set_tokens(const std::vector<std::int32_t>& ids, ForeignCache& cache) {
  if (cache.tokens && *cache.tokens != ids) {
    return mismatch("the token ids differ from those in the file");
  }
  if (std::ssize(ids) != cache.n_tokens) {
    return mismatch(
        fmt::format("{} token ids for a cache of {} tokens", ids.size(), cache.n_tokens));
  }
  cache.tokens = ids;
  return {};
}

Result<void> keep_first_tokens(std::int64_t n, ForeignCache& cache) {
  if (n >= cache.n_tokens) return {};
  const auto is_array = [](const ForeignLayer& layer) {
    return !std::holds_alternative<cache::AttentionDesc>(layer.description);
  };
  if (std::ranges::any_of(cache.layers, is_array)) {
    // open_any() cuts the cache to a checkpoint.
    if (std::ranges::count(cache.checkpoints, n, &ForeignCheckpoint::n_tokens) > 0) return {};
    return invalid("recurrent state and sliding windows cannot be cut to fewer tokens");
  }
  cache.n_tokens = n;
  if (cache.tokens) cache.tokens->resize(static_cast<std::size_t>(n));
  return {};
}

}  // namespace

std::string_view name_of(FileKind kind) {
  switch (kind) {
    case FileKind::kTqkv:
      return ".tqkv file";
    case FileKind::kTqkvVersion1:
      return ".tqkv file of version 1";
    case FileKind::kMlxLm:
      return "mlx-lm prompt cache";
    case FileKind::kLlama:
      return "llama.cpp state file";
    case FileKind::kHf:
      return "Hugging Face cache (tqcache-hf-1)";
    case FileKind::kNpz:
      return "NumPy cache (tqcache-npz-1)";
    case FileKind::kTurboMlx:
      return "TurboMLX prompt cache";
  }
  return "unknown";
}

std::optional<std::string> name_of_pickle(const ByteSource& file) {
  const auto is_safetensors = begins_as_safetensors(file);
  if (is_safetensors && *is_safetensors) return std::nullopt;
  if (is_torch_zip(file)) return fmt::format("a file of torch.save: a pickle{}", kPickleAdvice);
  const auto start = first_bytes(file, kOldTorch.size());
  if (!start) return std::nullopt;
  if (std::ranges::equal(*start, std::as_bytes(std::span(kOldTorch)))) {
    return fmt::format("an old file of torch.save: a pickle{}", kPickleAdvice);
  }
  if (begins_as_pickle(*start)) return fmt::format("a pickle{}", kPickleAdvice);
  return std::nullopt;
}

Result<std::optional<TurboMlxFile>> is_turbomlx(const ByteSource& file) {
  TQC_TRY_ASSIGN(const Bytes start, first_bytes(file, kTurboMlxV3Magic.size()));
  std::optional<TurboMlxFile> kind;
  if (std::ranges::equal(start, as_bytes(kTurboMlxV3Magic))) kind = TurboMlxFile::kV3;
  if (start.size() < 2 || start[0] != std::byte{0x80}) return kind;
  TQC_TRY_ASSIGN(const bool is_safetensors, begins_as_safetensors(file));
  if (is_safetensors) return kind;
  const auto protocol = std::to_integer<int>(start[1]);
  if (protocol >= 2 && protocol <= 5) kind = TurboMlxFile::kPickle;
  return kind;
}

#ifndef TQCACHE_TURBOMLX
Result<ForeignCache> import_turbomlx(std::shared_ptr<const ByteSource>, const TurboMlxImport&) {
  return unsupported(
      "a TurboMLX prompt cache, and this library was built without TurboMLX: configure it with "
      "-DTQCACHE_TURBOMLX=ON");
}
#endif

Result<std::optional<FileKind>> detect_kind(const ByteSource& file) {
  using Kind = std::optional<FileKind>;
  TQC_TRY_ASSIGN(const auto known, name_by_start(file));
  if (known) return unsupported(known->words());
  if (format::looks_like_cache_file(file)) return Kind(FileKind::kTqkv);
  TQC_TRY_ASSIGN(const bool is_old, is_version_1(file));
  if (is_old) return Kind(FileKind::kTqkvVersion1);
  TQC_TRY_ASSIGN(const auto llama, read_llama_envelope(file));
  if (llama) return Kind(FileKind::kLlama);
  TQC_TRY_ASSIGN(const auto turbomlx, is_turbomlx(file));
  if (turbomlx) return Kind(FileKind::kTurboMlx);
  TQC_TRY_ASSIGN(const bool is_npz, is_npz_cache(file));
  if (is_npz) return Kind(FileKind::kNpz);
  if (const auto pickle = name_of_pickle(file)) return unsupported(*pickle);
  return safetensors_kind(file);
}

// The rotated parts of latent attention, from halves to neighbors.
void reorder_rotated_parts(ForeignCache& cache) {
  for (ForeignLayer& layer : cache.layers) {
    const auto* const attention = std::get_if<cache::AttentionDesc>(&layer.description);
    if (attention == nullptr) continue;
    layer.read_v = [read = std::move(layer.read_v),
                    row_size = to_size(attention->value_shape().head_dim),
                    dtype = attention->v.dtype](std::int64_t first, std::int64_t n,
                                                std::span<std::byte> out) -> Result<void> {
      TQC_TRY(read(first, n, out));
      halves_to_neighbors(row_size, dtype_size(dtype), out);
      return {};
    };
  }
}

Result<ImportedCache> import_any(std::shared_ptr<const ByteSource> file, FileKind kind,
                                 const OpenHints& hints) {
  ImportedCache imported;
  TQC_TRY_ASSIGN(imported.cache, import_kind(file, kind, hints, imported.notes));
  ForeignCache& cache = imported.cache;
  std::string source = std::move(cache.identity.source_format);
  if (cache.is_quantized && !source.ends_with(")")) source += " (quantized)";
  const std::uint32_t llama_streams = cache.identity.llama_streams;
  std::string source_layout = std::move(cache.identity.source_layout);
  if (hints.identity) {
    if (kind == FileKind::kHf && has_halves_in_v(cache.identity, *hints.identity)) {
      reorder_rotated_parts(cache);
    }
    cache.identity = *hints.identity;
  }
  cache.identity.source_format = std::move(source);
  cache.identity.llama_streams = llama_streams;
  cache.identity.source_layout = std::move(source_layout);
  if (hints.tokens) TQC_TRY(set_tokens(*hints.tokens, cache));
  if (hints.first_tokens) TQC_TRY(keep_first_tokens(*hints.first_tokens, cache));
  return imported;
}

Result<OpenedCache> open_any(const std::filesystem::path& path, const OpenHints& hints) {
  TQC_TRY_ASSIGN(std::unique_ptr<ByteSource> file, open_file(path));
  return open_any(std::shared_ptr<const ByteSource>(std::move(file)), hints);
}

Result<OpenedCache> open_any(std::shared_ptr<const ByteSource> file, const OpenHints& hints) {
  TQC_TRY_ASSIGN(const std::optional<FileKind> kind, detect_kind(*file));
  if (!kind) {
    std::array<std::byte, 4> head{};
    if (file->size() >= head.size()) TQC_TRY(file->read_at(0, head));
    const bool is_model = std::memcmp(head.data(), "GGUF", head.size()) == 0;
    return unsupported(is_model ? "a GGUF file, which holds a model and no cache"
                                : "not a cache file of any known kind");
  }
  if (*kind == FileKind::kTqkvVersion1) {
    return unsupported("a .tqkv file of version 1: migrate it first (tqcache migrate)");
  }
  OpenedCache opened;
  opened.kind = *kind;
  if (*kind == FileKind::kTqkv) {
    TQC_TRY_ASSIGN(auto reader, format::SectionReader::open(std::move(file), hints.access));
    opened.cache = std::make_shared<format::SectionReader>(std::move(reader));
    if (hints.first_tokens) {
      TQC_TRY_ASSIGN(opened.cache, cache::first_tokens(opened.cache, *hints.first_tokens));
    }
    return opened;
  }
  TQC_TRY_ASSIGN(ImportedCache imported, import_any(std::move(file), *kind, hints));
  opened.metadata = std::move(imported.cache.metadata);
  opened.dropped_fields = std::move(imported.cache.dropped_fields);
  opened.notes = std::move(imported.notes);
  TQC_TRY_ASSIGN(opened.cache, reader_of(std::move(imported.cache)));
  if (hints.first_tokens && *hints.first_tokens < opened.cache->n_tokens()) {
    TQC_TRY_ASSIGN(opened.cache, cache::first_tokens(opened.cache, *hints.first_tokens));
  }
  return opened;
}

}  // namespace tqcache::interop
