#include "tqcache/format/growth.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "tqcache/base/threads.h"
#include "tqcache/cache.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/error.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/format/type_names.h"
#include "tqcache/hash.h"

namespace tqcache::format {
namespace {

using cache::AttentionDesc;
using cache::LayerDesc;
using cache::StateDesc;
using cache::TensorDesc;
using cache::WindowDesc;

// Checks the settings that are fixed from the first token on, and by the first packed block.
Result<void> check_tensor(const TensorDesc& file, const TensorDesc& grown) {
  if (type_name(grown) != type_name(file)) {
    return mismatch(fmt::format("{} where the file has {}", type_name(grown), type_name(file)));
  }
  if (grown.dtype != file.dtype) return mismatch("another dtype");
  if (!file.quant) return {};
  const cache::QuantSpec& old = *file.quant;
  const cache::QuantSpec& now = *grown.quant;
  if (!cache::same_bits(now.parts, old.parts)) return mismatch("another codec");
  if (now.centering != old.centering) return mismatch("other centering");
  if (now.n_sinks != old.n_sinks) return mismatch("another number of sink tokens");
  if (!old.mean.empty() && !cache::same_bits(now.mean, old.mean)) return mismatch("another mean");
  if (now.transforms != old.transforms) return mismatch("other maps");
  if (now.factors != old.factors) return mismatch("other factors of keys");
  if (!old.outliers.empty() && now.outliers != old.outliers)
    return mismatch("other outlier channels");
  return {};
}

Result<void> check_attention(const AttentionDesc& file, const AttentionDesc& grown) {
  if (!cache::same_shapes(grown, file)) return mismatch("another shape");
  if (auto k = check_tensor(file.k, grown.k); !k) return in_context("k", std::move(k).error());
  if (auto v = check_tensor(file.v, grown.v); !v) return in_context("v", std::move(v).error());
  return {};
}

// Arrays of a dense window grow with the cache until the window is full.
Result<void> check_window(const WindowDesc& file, const WindowDesc& grown) {
  if (!cache::same_shapes(grown.attention, file.attention)) return mismatch("another shape");
  if (grown.window != file.window) return mismatch("another window");
  if (cache::is_quantized(file.attention)) return check_attention(file.attention, grown.attention);
  const bool is_same = file.attention.k.dtype == grown.attention.k.dtype &&
                       file.attention.v.dtype == grown.attention.v.dtype;
  return is_same ? Result<void>() : mismatch("other arrays");
}

Result<void> check_layer(const LayerDesc& file, const LayerDesc& grown) {
  if (type_name(grown) != type_name(file)) {
    return mismatch(fmt::format("{} where the file has {}", type_name(grown), type_name(file)));
  }
  return std::visit(Overload{[&](const AttentionDesc& attention) {
                               return check_attention(attention, std::get<AttentionDesc>(grown));
                             },
                             [&](const WindowDesc& window) {
                               return check_window(window, std::get<WindowDesc>(grown));
                             },
                             [&](const StateDesc& state) -> Result<void> {
                               if (state.arrays == std::get<StateDesc>(grown).arrays) return {};
                               return mismatch("other arrays");
                             }},
                    file);
}

Result<void> check_layers(const std::vector<LayerDesc>& file, const std::vector<LayerDesc>& grown) {
  if (grown.size() != file.size()) {
    return mismatch(std::to_string(grown.size()) + " layers where the file has " +
                    std::to_string(file.size()));
  }
  for (std::size_t i = 0; i < file.size(); ++i) {
    if (auto layer = check_layer(file[i], grown[i]); !layer) {
      return in_context("layer " + std::to_string(i), std::move(layer).error());
    }
  }
  return {};
}

Error other_token(std::size_t index) {
  return mismatch("token " + std::to_string(index) + " is another than in the file");
}

// A hash covers all earlier tokens as well, so the first one that differs names the block.
Result<void> check_hidden(const std::vector<Sha256>& hashes, std::span<const std::int32_t> ids) {
  if (hashes.empty() && !ids.empty()) {
    return Error{ErrorCode::kUnsupported, "the file does not tell which tokens it holds"};
  }
  const std::vector<Sha256> own = cache::hash_tokens(ids);
  const auto differs = std::ranges::mismatch(hashes, own).in1;
  if (differs == hashes.end()) return {};
  return mismatch("token block " + std::to_string(differs - hashes.begin()) +
                  ": other tokens than in the file");
}

Result<void> check_tokens(const Manifest& file, const cache::Cache& cache) {
  if (!cache::tokens_known(cache)) {
    return Error{ErrorCode::kUnsupported, "the tokens of the cache are hidden"};
  }
  if (cache.n_tokens() < file.n_tokens()) {
    return mismatch(std::to_string(cache.n_tokens()) + " tokens where the file has " +
                    std::to_string(file.n_tokens()));
  }
  const auto ids = std::span(cache.tokens).first(file.tokens.size());
  if (file.hidden_tokens) return check_hidden(*file.hidden_tokens, ids);
  const auto differs = std::ranges::mismatch(file.tokens, ids).in1;
  if (differs == file.tokens.end()) return {};
  return other_token(static_cast<std::size_t>(differs - file.tokens.begin()));
}

// A section of the file, and the section of the grown manifest that it may become.
struct Pair {
  std::size_t old_number = 0;
  std::size_t number = 0;
  bool same = false;
};

// Both tables have the same order. A longer cache has sections between those of a shorter one, and
// lacks some that windows have left.
bool comes_before(const BlockKey& a, const BlockKey& b) {
  const auto rank = [](const BlockKey& key) {
    const bool is_array = key.tensor == TensorKind::kArray;
    return std::tuple(is_array, is_array ? key.layer : key.block, is_array ? key.block : key.layer,
                      key.tensor);
  };
  return rank(a) < rank(b);
}

std::vector<Pair> pair_sections(const Manifest& file, const Manifest& grown) {
  std::vector<Pair> pairs;
  std::size_t in_file = 0;
  const std::size_t n_in_file = count_cache_sections(file);
  for (std::size_t i = 0; i < grown.sections.size(); ++i) {
    const BlockKey key = key_of(grown.sections[i]);
    while (in_file < n_in_file && comes_before(key_of(file.sections[in_file]), key)) ++in_file;
    if (in_file == n_in_file) break;
    if (key_of(file.sections[in_file]) == key) pairs.push_back({in_file, i});
  }
  return pairs;
}

bool may_stay(const SectionInfo& old_section, const SectionInfo& section) {
  return old_section.packed == section.packed && old_section.raw_bytes == section.raw_bytes;
}

bool is_trusted(const SectionInfo& section, std::int64_t n_trusted) {
  return section.tensor != TensorKind::kArray && section.block < n_trusted;
}

}  // namespace

Result<void> check_growth(const Manifest& file, const cache::Cache& cache, const Manifest& grown) {
  TQC_TRY(cache::check_identity(cache, file.identity));
  TQC_TRY(check_layers(file.layers, grown.layers));
  return check_tokens(file, cache);
}

Result<Growth> compare_sections(const ByteSource& source, const Manifest& file,
                                std::int64_t n_trusted, Manifest& grown,
                                const cache::CacheReader& reader, const FileCipher* cipher,
                                unsigned n_threads) {
  const Decompressor decompressor;
  std::vector<SectionInfo>& sections = grown.sections;
  std::vector<Pair> pairs = pair_sections(file, grown);
  // Checkpoints are earlier states, which an append does not change.
  const std::size_t n_of_cache = count_cache_sections(file);
  TQC_TRY(parallel_try(
      file.sections.size() - n_of_cache, n_threads, [&](std::size_t i) -> Result<void> {
        const SectionInfo& section = file.sections[n_of_cache + i];
        AlignedBytes raw;
        Result<void> done = read_section(source, file, section, cipher, decompressor, raw);
        if (done) done = check_digest(section, raw);
        if (done) return {};
        return in_context(block_place(n_of_cache + i, section), std::move(done).error());
      }));
  TQC_TRY(parallel_try(pairs.size(), n_threads, [&](std::size_t i) -> Result<void> {
    Pair& pair = pairs[i];
    const SectionInfo& old_section = file.sections[pair.old_number];
    if (!may_stay(old_section, sections[pair.number])) return {};
    pair.same = is_trusted(old_section, n_trusted);
    if (pair.same) return {};
    TQC_TRY_ASSIGN(const SharedBytes raw, reader.share(pair.number));
    pair.same = sha256(raw.view()) == old_section.raw_sha256;
    if (!pair.same) return {};
    AlignedBytes old_raw;
    Result<void> done = read_section(source, file, old_section, cipher, decompressor, old_raw);
    if (done) done = check_digest(old_section, old_raw);
    if (done) return {};
    return in_context(block_place(pair.old_number, old_section), std::move(done).error());
  }));

  // Predicted sections stay together with all others of their token block.
  std::set<std::int64_t> changed_blocks;
  for (const Pair& pair : pairs) {
    const SectionInfo& old_section = file.sections[pair.old_number];
    const bool is_predicted = old_section.compression == Compression::kPredicted;
    if (is_predicted && !pair.same) changed_blocks.insert(old_section.block);
  }
  for (Pair& pair : pairs) {
    // Blocks behind a changed one are not predicted any more either.
    const SectionInfo& old_section = file.sections[pair.old_number];
    if (old_section.compression == Compression::kPredicted && !changed_blocks.empty() &&
        old_section.block >= *changed_blocks.begin()) {
      pair.same = false;
    }
  }

  Growth growth;
  std::vector<bool> stays(sections.size()), lives(file.sections.size());
  for (const Pair& pair : pairs) {
    stays[pair.number] = lives[pair.old_number] = pair.same;
    if (pair.same) sections[pair.number] = file.sections[pair.old_number];
  }
  for (std::size_t i = 0; i < n_of_cache; ++i) {
    if (!lives[i]) growth.dead_sections.push_back(i);
  }
  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (!stays[i]) growth.new_sections.push_back(i);
  }
  grown.checkpoints = file.checkpoints;
  sections.insert(sections.end(), file.sections.begin() + static_cast<std::ptrdiff_t>(n_of_cache),
                  file.sections.end());
  return growth;
}

std::vector<GapInfo> gaps_after(const Manifest& file, const HeaderSlot& slot,
                                const Growth& growth) {
  std::vector<GapInfo> gaps = file.gaps;
  for (const std::size_t i : growth.dead_sections) {
    const SectionInfo& section = file.sections[i];
    if (section.stored_bytes == 0) continue;
    gaps.push_back({section.file_offset, section.stored_bytes, section.checksum});
  }
  gaps.push_back(
      {slot.manifest_offset, slot.file_bytes - slot.manifest_offset, slot.manifest_checksum});
  std::ranges::sort(gaps, {}, &GapInfo::file_offset);
  return gaps;
}

}  // namespace tqcache::format
