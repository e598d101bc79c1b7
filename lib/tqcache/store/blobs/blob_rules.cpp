#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tqcache/cache/blocks.h"
#include "tqcache/error.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/store.h"
#include "tqcache/store/blobs/blob_format.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/store/blobs/chain_layout.h"

namespace tqcache::store {
namespace {

constexpr std::size_t kHexDigits = 2 * sizeof(Sha256);

// "p", "b", ...: in the order of BlobKind.
constexpr std::string_view kFirstWords = "pbsdnuc";

char first_word(BlobKind kind) { return kFirstWords[static_cast<std::size_t>(kind)]; }

Result<void> check_text(std::string_view what, std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return {};
  return too_large(fmt::format("{} of {} bytes", what, text.size()));
}

// A blob has a part of a prompt: media may have begun before. The whole prompt is checked when it
// is fetched.
Result<void> check_tokens(std::span<const std::int32_t> tokens) {
  if (std::ssize(tokens) > cache::kMaxTokens) {
    return too_large(fmt::format("{} tokens", tokens.size()));
  }
  return std::ranges::count(tokens, cache::kUnknownToken) == 0 ? Result<void>()
                                                               : corrupt("a token id of -1");
}

// Media of a part of a prompt, which has `n_tokens` tokens from token `first` on.
Result<void> check_media(std::span<const cache::MediaSpan> media, std::int64_t first,
                         std::int64_t n_tokens) {
  std::int64_t end = first;
  for (const cache::MediaSpan& span : media) {
    if (span.begin < end || span.begin >= first + n_tokens) {
      return corrupt(fmt::format("a medium from token {} on", span.begin));
    }
    end = span.end();
  }
  return {};
}

bool has_array_shapes(const std::vector<cache::LayerDesc>& layers) {
  const auto has_shape = [](const cache::ArrayDesc& array) { return !array.shape.empty(); };
  return std::ranges::any_of(layers, [&](const cache::LayerDesc& layer) {
    return std::ranges::any_of(cache::arrays_of(layer, {}), has_shape);
  });
}

Result<void> check_parameters(std::string_view, const Parameters& parameters) {
  const std::size_t n_tokens = parameters.tokens.size();
  if (n_tokens == 0 || n_tokens > static_cast<std::size_t>(cache::kTokenBlock)) {
    return corrupt(std::to_string(n_tokens) + " first tokens");
  }
  if (has_array_shapes(parameters.layers)) return corrupt("an array with a shape");
  format::Manifest manifest;
  manifest.identity = parameters.identity;
  TQC_TRY(format::check_contents(manifest));
  TQC_TRY(check_tokens(parameters.tokens));
  return cache::validate_layers(parameters.layers, parameters.identity.rope, 1);
}

// Checks of a section that do not need its layer.
Result<void> check_section(const StoredSection& section) {
  const format::SectionInfo& info = section.info;
  if (info.layer < 0 || info.layer >= cache::kMaxLayers) return corrupt("no such layer");
  if (info.raw_bytes > cache::kMaxArrayBytes) return too_large("a section of too many bytes");
  const bool fits = info.compression == format::Compression::kNone
                        ? info.stored_bytes == info.raw_bytes
                        : info.stored_bytes > 0 && info.stored_bytes < info.raw_bytes;
  if (!fits) {
    return corrupt(
        fmt::format("stored size {} for raw size {}", info.stored_bytes, info.raw_bytes));
  }
  if (section.stored.size() != info.stored_bytes)
    return corrupt("the number of bytes is not its stored size");
  if (xxh3_128(section.stored.view()) != info.checksum) return corrupt("checksum mismatch");
  return {};
}

Result<void> check_sections(const std::vector<StoredSection>& sections) {
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const format::SectionInfo& info = sections[i].info;
    const std::string place = cache::block_place(i, info);
    if (auto section = check_section(sections[i]); !section) {
      return in_context(place, std::move(section).error());
    }
    if (i > 0 && !stands_before(sections[i - 1].info, info)) {
      return corrupt(place + ": not in the order of a file");
    }
  }
  return {};
}

Result<void> check_block_key(std::string_view key, const Block& block) {
  const Sha256 hash = hash_chain(block.parent, block.tokens).front();
  if (block_key(hash, block.index, block.part) == key) return {};
  return corrupt("the key is not that of its tokens and the block before");
}

Result<void> check_block_content(std::string_view key, const Block& block) {
  if (std::ssize(block.tokens) != cache::kTokenBlock) {
    return corrupt(std::to_string(block.tokens.size()) + " tokens");
  }
  TQC_TRY(check_tokens(block.tokens));
  if (block.index < 0 || block.index >= cache::block_count(cache::kMaxTokens)) {
    return too_large("token block " + std::to_string(block.index));
  }
  if (block.n_parts > kMaxParts) return too_large(std::to_string(block.n_parts) + " parts");
  if (block.part < 0 || block.part >= block.n_parts) {
    return corrupt(fmt::format("part {} of {}", block.part, block.n_parts));
  }
  TQC_TRY(check_media(block.media, block.index * cache::kTokenBlock, cache::kTokenBlock));
  TQC_TRY(check_block_key(key, block));
  const auto is_other = [&](const StoredSection& section) {
    return section.info.tensor == cache::TensorKind::kArray || section.info.block != block.index;
  };
  if (std::ranges::any_of(block.sections, is_other)) return corrupt("a section of another block");
  return check_sections(block.sections);
}

Result<void> check_data_keys(const std::vector<std::string>& keys) {
  if (keys.size() > kMaxDataKeys) return too_large(std::to_string(keys.size()) + " data blobs");
  if (!std::ranges::all_of(keys, is_data_key)) return corrupt("an invalid data key");
  return {};
}

Result<void> check_state(std::string_view, const Snapshot& snapshot) {
  if (snapshot.n_tokens < 1 || snapshot.n_tokens > cache::kMaxTokens) {
    return too_large(std::to_string(snapshot.n_tokens) + " tokens");
  }
  const std::int64_t n_tail =
      snapshot.n_tokens - final_blocks(snapshot.n_tokens) * cache::kTokenBlock;
  if (std::ssize(snapshot.tail) != n_tail) {
    return corrupt(
        fmt::format("a tail of {} tokens where {} belong", snapshot.tail.size(), n_tail));
  }
  TQC_TRY(check_tokens(snapshot.tail));
  TQC_TRY(check_media(snapshot.media, snapshot.n_tokens - n_tail, n_tail));
  TQC_TRY(check_data_keys(snapshot.data_keys));
  return cache::validate_layers(snapshot.layers, cache::Rope{}, snapshot.n_tokens);
}

// A quantized window has all token blocks from its first to the tail.
Result<void> check_data(std::string_view, const Data& data) {
  TQC_TRY(check_sections(data.sections));
  for (std::size_t i = 1; i < data.sections.size(); ++i) {
    const format::SectionInfo& before = data.sections[i - 1].info;
    const format::SectionInfo& info = data.sections[i].info;
    if (info.tensor == cache::TensorKind::kArray) break;
    if (info.block - before.block > 1) {
      return corrupt(cache::block_place(i, info) + ": a token block before it is missing");
    }
  }
  return {};
}

Result<void> check_record_keys(const PromptRecord& record) {
  if (!is_key_of(BlobKind::kParameters, record.parameters_key)) {
    return corrupt("an invalid parameters key");
  }
  if (record.chain.empty() && !record.state_key.empty()) {
    return corrupt("a state key without a final block");
  }
  if (!record.state_key.empty() && !is_key_of(BlobKind::kState, record.state_key)) {
    return corrupt("an invalid state key");
  }
  return {};
}

// The tokens may be left out, because the blocks have them.
Result<void> check_record_tokens(const PromptRecord& record) {
  if (record.tokens.empty()) return {};
  TQC_TRY(check_tokens(record.tokens));
  if (std::ssize(record.tokens) != record.snapshot.n_tokens)
    return corrupt("the snapshot has other tokens");
  const std::vector<std::int32_t>& tail = record.snapshot.tail;
  if (std::ranges::equal(tail, std::span(record.tokens).last(tail.size()))) return {};
  return corrupt("the tail has other tokens");
}

Result<void> check_record(std::string_view key, const PromptRecord& record) {
  if (record.name.empty()) return corrupt("a record without a name");
  TQC_TRY(check_text("name", record.name, kMaxNameBytes));
  TQC_TRY(check_text("model name", record.model_name, cache::kMaxTextBytes));
  TQC_TRY(check_text("architecture", record.architecture, cache::kMaxTextBytes));
  TQC_TRY(check_state(key, record.snapshot));
  TQC_TRY(check_record_tokens(record));
  if (std::ssize(record.chain) != final_blocks(record.snapshot.n_tokens)) {
    return corrupt(std::to_string(record.chain.size()) + " blocks");
  }
  return check_record_keys(record);
}

Result<void> check_usage(std::string_view, const UsageNote& usage) {
  if (usage.wanted_tokens > cache::kMaxTokens) {
    return too_large(std::to_string(usage.wanted_tokens) + " tokens");
  }
  if (usage.found_tokens >= 0 && usage.found_tokens <= usage.wanted_tokens) return {};
  return corrupt("more tokens found than wanted");
}

Result<void> check_next(std::string_view, const Next& next) {
  if (std::ssize(next.tokens) != cache::kTokenBlock) {
    return corrupt(std::to_string(next.tokens.size()) + " tokens");
  }
  return check_tokens(next.tokens);
}

}  // namespace

bool is_key_of(BlobKind kind, std::string_view key) {
  return key.size() > 2 && key[0] == first_word(kind) && key[1] == '/' && check_key(key).ok();
}

bool is_data_key(std::string_view key) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return key.size() == 2 + kHexDigits && key.starts_with("d/") &&
         std::ranges::all_of(key.substr(2), is_digit);
}

std::vector<cache::LayerDesc> without_array_shapes(std::vector<cache::LayerDesc> layers) {
  for (cache::LayerDesc& layer : layers) {
    auto* state = std::get_if<cache::StateDesc>(&layer);
    if (state == nullptr) continue;
    for (cache::ArrayDesc& array : state->arrays) array.shape.clear();
  }
  return layers;
}

bool has_media(const Content& content) {
  const auto tokens = std::visit(
      Overload{[](const Parameters& parameters) { return std::span(parameters.tokens); },
               [](const Block& block) { return std::span(block.tokens); },
               [](const Snapshot& snapshot) { return std::span(snapshot.tail); },
               [](const PromptRecord& record) { return std::span(record.snapshot.tail); },
               [](const Next& next) { return std::span(next.tokens); },
               [](const auto&) { return std::span<const std::int32_t>(); }},
      content);
  return std::ranges::any_of(tokens, [](std::int32_t id) { return id < cache::kUnknownToken; });
}

Result<void> check_content(std::string_view key, const Content& content) {
  if (!is_key_of(kind_of(content), key)) return corrupt("the key is not one of this kind");
  struct Rules {
    std::string_view key;
    Result<void> operator()(const Parameters& each) const { return check_parameters(key, each); }
    Result<void> operator()(const Block& each) const { return check_block_content(key, each); }
    Result<void> operator()(const Snapshot& each) const { return check_state(key, each); }
    Result<void> operator()(const Data& each) const { return check_data(key, each); }
    Result<void> operator()(const PromptRecord& each) const { return check_record(key, each); }
    Result<void> operator()(const UsageNote& each) const { return check_usage(key, each); }
    Result<void> operator()(const Next& each) const { return check_next(key, each); }
  };
  return std::visit(Rules{key}, content);
}

}  // namespace tqcache::store
