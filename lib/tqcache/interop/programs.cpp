#include "tqcache/interop/programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using enum MarkIn;
using namespace std::string_view_literals;

// Bytes at the start of a file that marks may be in.
constexpr std::size_t kStartBytes = 16;
// Of a pickle: the modules and classes of its outermost objects stand there.
constexpr std::size_t kPickleBytes = 4096;
constexpr std::size_t kShownBytes = 64;  // of a version

constexpr std::string_view kNotData =
    "a pickle is a program and not data: save the cache with tools/tqcache_hf.py, and read that";
constexpr std::string_view kConvertSlot = "convert the slot file";
constexpr std::string_view kSaveWithMlxLm = "save the prompt with mlx-lm's save_prompt_cache";
constexpr std::string_view kPartOfAPrompt =
    "it is a part of a prompt: save the whole prompt with mlx-lm's save_prompt_cache";
constexpr std::string_view kMlxVlmClass = "save the cache with classes of mlx-lm";
constexpr std::string_view kNoTurboQuant =
    "its quantized state has a form of its own: save a cache without TurboQuant";

constexpr std::array kMarks = {
    // --- containers
    ProgramMark{kStart, "TQKV\x01"sv, "", "aither-kvcache", "1",
                "a .tqkv file, which has the extension of ours and nothing else in common with it",
                "decompress it there"},
    ProgramMark{kStart, "KVC\x01"sv, "", "antirez/ds4", "1",
                "a checkpoint of its key-value store (ds4-server --kv-disk-dir)",
                "its state is that of ds4's own graph: keep it there"},
    ProgramMark{kStart, "KVC\x02"sv, "", "antirez/ds4", "2",
                "a checkpoint of its key-value store (ds4-server --kv-disk-dir)",
                "its state is that of ds4's own graph: keep it there"},
    ProgramMark{kStart, "PKCL"sv, "", "TheTom/llama-cpp-turboquant", "",
                "context checkpoints beside a slot file (.ckpt)", kConvertSlot},
    ProgramMark{kStart, "LSCKPT2\0"sv, "", "llama.cpp's pull request 24028", "",
                "context checkpoints beside a slot file", kConvertSlot},
    ProgramMark{kStart, "SCKP"sv, "", "llama-server", "",
                "context checkpoints without the slot file that they belong behind", kConvertSlot},
    ProgramMark{
        kStart, "SQLite format 3\0"sv, "", "llama-cpp-python", "",
        "an SQLite database, as its LlamaDiskCache has (cache.db, whose values are pickles)",
        "save the state with llama_state_save_file"},
    ProgramMark{kStart, "\x93NUMPY"sv, "", "NumPy", "", "a single array (.npy)",
                "only .npz files of tqcache are read"},
    ProgramMark{kStart, "TQKB\r\n\x1a\n"sv, "", "tqcache", "", "a blob of a store",
                "tqcache store ls and get read stores (--store dir:FOLDER)"},
    ProgramMark{kStart, "TQP2"sv, "", "tqcache", "2", "a profile of a model (.tqprofile)",
                "give it with --profile", 4},
    // --- pickles
    ProgramMark{kPickle, "LlamaState", "", "llama-cpp-python", "",
                "a pickled LlamaState, with the bytes of llama_copy_state_data", kNotData},
    ProgramMark{kPickle, "transformers.cache_utils", "", "transformers", "", "a pickled cache",
                kNotData},
    // --- safetensors
    ProgramMark{kMetadata, "layout", "exact_cache_v1", "mlx-vlm", "",
                "a prompt of its prefix cache (APC, disk tier)", kSaveWithMlxLm},
    ProgramMark{kMetadata, "layout", "layer_major_v", "mlx-vlm", "",
                "blocks of its prefix cache (APC, disk tier)", kPartOfAPrompt},
    ProgramMark{kMetadata, "layout", "token_major_v", "mlx-vlm", "",
                "blocks of its prefix cache (APC, disk tier)", kPartOfAPrompt},
    ProgramMark{kMetadata, "omlx_cache_format_version", "", "omlx", "*",
                "a block of its prompt cache on disk", kPartOfAPrompt},
    ProgramMark{
        kOnlyTensor, "kv_cache", "", "vLLM", "",
        "one layer of its ExampleConnector (SharedStorageConnector)",
        "its pages are those of an engine's memory: use the plug-in (docs/guide/plugins.md)"},
    ProgramMark{kAnyTensor, ".weight", "", "a model", "", "weights (safetensors), and not a cache",
                "give its folder with --model"},
    // --- classes of mlx-lm's caches
    ProgramMark{kClass, "TurboQuantKVCache", "5", "mlx-swift-lm", "", "", kNoTurboQuant},
    ProgramMark{kClass, "TurboQuantKVCache", "7", "Rapid-MLX", "", "", kNoTurboQuant},
    ProgramMark{kClass, "TurboQuantKVCache", "",
                "mlx-vlm, omlx, Rapid-MLX and mlx-swift-lm, which differ", "", "", kNoTurboQuant},
    ProgramMark{kClass, "BufferedRotatingKVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "BatchQuantizedKVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "BatchPoolingCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "PoolingCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "SimpleKVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "StaticPrefixKVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "RingSlidingKVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "MiniMaxM3KVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "MiniMaxM3BatchKVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "HyV4KVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "QSAKVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "QSAQuantizedKVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "BatchQSAKVCache", "", "mlx-vlm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "QuantizedRotatingKVCache", "", "mlx-lm pull request 968", "", "",
                kMlxVlmClass},
    ProgramMark{kClass, "VarianceNormalizedKVCache", "", "mlx-swift-lm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "DeepSeekV4Cache", "", "mlx-swift-lm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "SSMStateCache", "", "ekryski/mlx-swift-lm", "", "", kMlxVlmClass},
    ProgramMark{kClass, "AffineQuantizedKVCache", "", "ekryski/mlx-swift-lm", "", "", kMlxVlmClass},
};

NamedFile named_by(const ProgramMark& mark, std::string_view value = {}) {
  NamedFile named{std::string(mark.program), std::string(mark.version), std::string(mark.holds),
                  std::string(mark.advice)};
  if (named.version == "*") named.version = tensors::printable_name(value.substr(0, kShownBytes));
  return named;
}

// What was written without a header: the whole state of a context begins with the name of its
// architecture, as u32 length and text.
std::optional<NamedFile> name_raw_state(ByteView start) {
  constexpr std::size_t kLength = sizeof(std::uint32_t);
  if (start.size() < kStartBytes) return std::nullopt;
  ByteReader in(start);
  const auto length = in.read<std::uint32_t>();
  if (!length || *length < 2 || *length > kStartBytes - kLength) return std::nullopt;
  const auto is_of_name = [](std::byte byte) {
    const auto c = static_cast<char>(byte);
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  const ByteView name = start.subspan(kLength, *length);
  if (!std::ranges::all_of(name, is_of_name)) return std::nullopt;
  std::string architecture;
  for (const std::byte byte : name) architecture += static_cast<char>(byte);
  return NamedFile{"llama.cpp", "",
                   fmt::format("the state of a context of architecture {} without a header "
                               "(llama_state_get_data, as LLamaSharp and llama-cpp-python keep it)",
                               architecture),
                   "save it with llama_state_save_file, which notes version and tokens"};
}

bool contains(ByteView bytes, std::string_view text) {
  const ByteView wanted = as_bytes(text);
  return std::search(bytes.begin(), bytes.end(), wanted.begin(), wanted.end()) != bytes.end();
}

}  // namespace

std::span<const ProgramMark> program_marks() { return kMarks; }

std::string NamedFile::words() const {
  std::string text = fmt::format("{}, of {}", holds, program);
  if (!version.empty()) text += ", version " + version;
  return fmt::format("{}: not read; {}", text, advice);
}

std::optional<NamedFile> name_class(std::string_view class_name, std::size_t n_numbers) {
  const std::string count = std::to_string(n_numbers);
  for (const ProgramMark& mark : kMarks) {
    if (mark.in != kClass || mark.mark != class_name) continue;
    if (mark.value.empty() || mark.value == count) return named_by(mark);
  }
  return std::nullopt;
}

std::optional<NamedFile> name_safetensors(const tensors::SafetensorsIndex& index) {
  // Classes stand under "1.<layer>" or "2.<layer>", and their numbers under "0.<layer>.<i>".
  for (const auto& [key, value] : index.metadata) {
    if (!key.starts_with("1.") && !key.starts_with("2.")) continue;
    const std::string numbers = "0." + key.substr(2) + ".";
    const auto is_number = [&](const auto& entry) { return entry.first.starts_with(numbers); };
    const auto n = std::ranges::count_if(index.metadata, is_number);
    if (auto named = name_class(value, static_cast<std::size_t>(n))) {
      named->holds = "a prompt cache with the class " + tensors::printable_name(value);
      return named;
    }
  }
  for (const ProgramMark& mark : kMarks) {
    if (mark.in == kMetadata) {
      const auto found = index.metadata.find(std::string(mark.mark));
      if (found == index.metadata.end() || !found->second.starts_with(mark.value)) continue;
      return named_by(mark, found->second);
    }
    if (mark.in == kOnlyTensor && index.tensors.size() == 1 &&
        index.tensors.begin()->first == mark.mark) {
      return named_by(mark);
    }
    const auto ends_so = [&](const auto& entry) { return entry.first.ends_with(mark.mark); };
    if (mark.in == kAnyTensor && std::ranges::any_of(index.tensors, ends_so)) return named_by(mark);
  }
  return std::nullopt;
}

Result<std::optional<NamedFile>> name_by_start(const ByteSource& file) {
  Bytes start(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), kStartBytes)));
  TQC_TRY(file.read_at(0, start));
  const ByteView view(start);
  for (const ProgramMark& mark : kMarks) {
    if (mark.in != kStart || view.size() < mark.offset + mark.mark.size()) continue;
    const ByteView there = view.subspan(mark.offset, mark.mark.size());
    if (std::ranges::equal(there, as_bytes(mark.mark))) return std::optional(named_by(mark));
  }
  return name_raw_state(view);
}

Result<std::optional<NamedFile>> name_pickled(const ByteSource& file) {
  const auto words = name_of_pickle(file);
  if (!words) return std::optional<NamedFile>();
  Bytes start(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), kPickleBytes)));
  TQC_TRY(file.read_at(0, start));
  for (const ProgramMark& mark : kMarks) {
    if (mark.in == kPickle && contains(start, mark.mark)) return std::optional(named_by(mark));
  }
  // Which program saved it nobody can tell without running it.
  return std::optional(NamedFile{"PyTorch or Python", "", words->substr(0, words->find(", which")),
                                 std::string(kNotData)});
}

Result<std::optional<NamedFile>> name_file(const ByteSource& file) {
  TQC_TRY_ASSIGN(auto named, name_by_start(file));
  if (named) return named;
  TQC_TRY_ASSIGN(named, name_pickled(file));
  if (named) return named;
  const auto index = tensors::index_safetensors(file);
  return index ? name_safetensors(*index) : std::nullopt;
}

std::string_view what_can_be_done(FileKind kind) {
  switch (kind) {
    case FileKind::kTqkv:
      return "everything";
    case FileKind::kTqkvVersion1:
      return "read by tqcache migrate, which writes version 2";
    case FileKind::kMlxLm:
      return "read; written by convert --to mlx-lm for mlx-lm (not for mlx-swift-lm)";
    case FileKind::kLlama:
      return "read with --model M.gguf; written by convert --to llama-session and llama-seq";
    case FileKind::kHf:
      return "read; written by convert --to hf";
    case FileKind::kNpz:
      return "read; written by convert --to npz";
    case FileKind::kTurboMlx:
      return "read, its codes kept; not written";
  }
  return "";
}

}  // namespace tqcache::interop
