#include "cli/common_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>
#include <utility>

#include "cli/store_flags.h"
#include "tqcache/base/posix.h"

namespace tqcache::cli {
namespace {

constexpr unsigned kMaxThreads = 1024;  // more is a typing mistake
constexpr const char* kSampling = "Sampling";

template <class T>
bool read_number(std::string_view word, T& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size();
}

// "15=-2.5"
std::optional<model::LogitBias> read_bias(std::string_view word) {
  const std::size_t equals = word.find('=');
  model::LogitBias bias;
  if (equals == std::string_view::npos || !read_number(word.substr(0, equals), bias.id) ||
      !read_number(word.substr(equals + 1), bias.bias)) {
    return std::nullopt;
  }
  return bias;
}

}  // namespace

void add_model_flag(FlagSet& flags, std::string& path, bool required) {
  flags.add("-m,--model", path, "GGUF file, or Hugging Face folder")
      ->type_name("PATH")
      ->file()
      ->required(required);
}

void add_memory_flag(FlagSet& flags) {
  flags
      .add_text(
          "--max-memory",
          [&flags](const std::string& word) { flags.max_memory = parse_bytes(word).value(); },
          "Limit for the values of caches in memory: 500MB, 8GiB. By default three quarters of the "
          "memory, and for each file 64 times its size, or 256 MiB")
      ->type_name("SIZE")
      ->shared()
      ->check([](const std::string& word) -> Result<void> {
        if (auto parsed = parse_bytes(word); !parsed) return std::move(parsed).error();
        return {};
      });
}

void add_resource_flags(FlagSet& flags, unsigned& n_threads) {
  flags.add("-t,--threads", n_threads, "Number of threads; 0 uses all processors")
      ->type_name("N")
      ->shared()
      ->range(0, kMaxThreads)
      ->show_default();
  add_memory_flag(flags);
}

void add_scorer_flag(FlagSet& flags, model::Scorer& scorer) {
  const auto take = [&scorer](const std::string& word) {
    scorer = word == "exact" ? model::Scorer::kExact : model::Scorer::kFast;
  };
  flags
      .add_text("--scorer", take,
                "How attention scores quantized keys: fast (integer arithmetic where the CPU has "
                "it) or exact (float32)")
      ->type_name("HOW")
      ->one_of({"exact", "fast"})
      ->show_default("fast");
}

void add_activations_flag(FlagSet& flags, model::ActivationBits& bits) {
  const auto take = [&bits](const std::string& word) {
    bits = word == "8" ? model::ActivationBits::k8 : model::ActivationBits::k16;
  };
  flags
      .add_text("--activations", take,
                "Bits of the numbers that decode steps multiply with quantized weights: 16, or 8, "
                "which is faster and less exact, also for the keys and values of these tokens")
      ->type_name("BITS")
      ->one_of({"8", "16"})
      ->show_default("16");
}

void add_map_flag(FlagSet& flags, bool& map) {
  flags.add("--map", map,
            "Map the uncompressed sections of the cache file into memory instead of reading them "
            "first. The file must not change meanwhile");
}

void add_verify_digest_flag(FlagSet& flags, bool& verify_digests) {
  flags.add("--verify-digest", verify_digests,
            "Compare everything that is loaded with its SHA-256, as the content digest has it; "
            "without it only checksums are compared, which do not show forgery");
}

void add_first_tokens_flag(FlagSet& flags, std::optional<std::int64_t>& first_tokens) {
  flags.add("--tokens", first_tokens, "Use only the first N tokens of the cache")
      ->type_name("N")
      ->at_least(1);
}

void add_no_tokens_flag(FlagSet& flags, bool& no_tokens) {
  flags.add("--no-tokens", no_tokens,
            "Store hashes in place of the token ids. To resume such a cache, pass the whole "
            "prompt again");
}

void add_force_flag(FlagSet& flags, bool& force) {
  flags.add("-f,--force", force, "Overwrite the output file")->shared()->group("Output");
}

void add_compression_flags(FlagSet& flags, CompressionFlags& compression,
                           const std::string& method) {
  compression.method = method;
  const auto take = [&compression](const std::string& word) {
    compression.method = word;
    compression.is_given = true;
  };
  flags
      .add_text("--compress", take,
                "Compression of the file's sections: zstd, planes (splits dense values into byte "
                "planes before zstd) or none")
      ->type_name("METHOD")
      ->one_of({"zstd", "planes", "none"})
      ->show_default(method);
  flags.add("--level", compression.level, "Level of zstd, 1 to 19")
      ->type_name("N")
      ->range(1, 19)
      ->show_default();
}

Result<format::WriteOptions> write_options(const CompressionFlags& flags, unsigned n_threads,
                                           bool force) {
  format::WriteOptions options;
  options.compression = flags.method == "none"     ? format::Compression::kNone
                        : flags.method == "planes" ? format::Compression::kPlanes
                                                   : format::Compression::kZstd;
  options.zstd_level = flags.level;
  options.n_threads = n_threads;
  options.overwrite = force ? Overwrite::kAllow : Overwrite::kRefuse;
  return options;
}

void add_sampling_flags(FlagSet& flags, SamplingFlags& sampling) {
  model::SamplerOptions& options = sampling.options;
  const auto add = [&](const char* name, auto& value, const char* type, const char* text) {
    flags.add(name, value, text)->type_name(type)->group(kSampling)->show_default();
  };
  add("--temperature", options.temperature, "T",
      "Sampling temperature; 0 always takes the most probable token");
  add("--top-k", options.top_k, "K", "Sample from the K most probable tokens; 0 means all");
  add("--top-p", options.top_p, "P",
      "Sample from the fewest tokens whose probabilities add up to P");
  add("--min-p", options.min_p, "P",
      "Drop tokens less probable than P times the most probable one");
  add("--repeat-penalty", options.repeat_penalty, "R",
      "Divide the logits of tokens that already occur in the text by R");
  add("--repeat-last-n", options.repeat_last_n, "N",
      "Tokens that --repeat-penalty looks back at; 0 means none, -1 all");
  flags
      .add_text(
          "--logit-bias",
          [&options](const std::string& word) { options.logit_bias.push_back(*read_bias(word)); },
          "Add B to the logit of token ID; -inf bans the token. Repeatable")
      ->type_name("ID=B")
      ->group(kSampling)
      ->repeats()
      ->check([](const std::string& word) -> Result<void> {
        if (read_bias(word)) return {};
        return invalid(fmt::format("{} is not ID=NUMBER", word));
      });
  add("--seed", options.seed, "N", "Random seed; the same seed gives the same text");
  flags.add("--stop", sampling.stops, "Stop before this text. Repeatable")
      ->type_name("TEXT")
      ->group(kSampling)
      ->repeats()
      ->check([](const std::string& word) -> Result<void> {
        if (!word.empty()) return {};
        return invalid("the text is empty");
      });
}

Result<void> check_sampling(const SamplingFlags& flags) {
  if (Result<void> valid = model::validate(flags.options); !valid) {
    return usage_error("--" + valid.error().message);
  }
  return {};
}

Result<std::vector<std::string>> read_api_keys(const std::string& file) {
  std::vector<std::string> keys;
  if (file.empty()) return keys;
  posix::Stat info = {};
  if (posix::stat(file.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    warn(file, "other users can use this file: chmod 600");
  }
  TQC_TRY_ASSIGN(const Bytes bytes, in_file(file, read_file(file, std::uint64_t{1} << 20)));
  std::string line;
  const auto end_line = [&] {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) keys.push_back(line);
    line.clear();
  };
  for (const std::byte byte : bytes) {
    const char c = static_cast<char>(byte);
    if (c == '\n') {
      end_line();
    } else {
      line += c;
    }
  }
  end_line();
  if (keys.empty()) return Error{ErrorCode::kInvalidArgument, "the file has no key", file};
  return keys;
}

}  // namespace tqcache::cli
