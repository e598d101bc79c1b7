#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "cli/terminal.h"
#include "cli/text.h"
#include "report/info.h"
#include "tqcache/bytes.h"
#include "tqcache/format/type_names.h"

namespace tqcache::cli {
namespace {

// Every text from a file is shown without control characters.
std::string line(std::string_view label, std::string_view value) {
  const std::string_view gap = label.size() < 16 ? "" : "  ";
  return fmt::format("{:<16}{}{}\n", label, gap, printable(value));
}

std::string prediction_text(const format::Prediction& prediction, std::optional<double> kld) {
  return fmt::format("step {:.4g}, {} sink tokens, expected KLD {}, profile {}", prediction.step,
                     prediction.n_sinks,
                     kld ? fmt::format("{:.3g}", *kld) : "unknown without its profile",
                     to_hex(prediction.profile));
}

std::string head_text(const InfoView& view) {
  const format::CacheFileInfo& info = view.info;
  const std::string encryption =
      info.encryption ? line("encryption", "AES-256-GCM, key " + to_hex(info.encryption->key_id))
                      : std::string();
  const std::string prediction =
      info.prediction ? line("predicted", prediction_text(*info.prediction, view.expected_kld))
                      : std::string();
  return line("format", fmt::format("version {}, generation {}", info.version, info.generation)) +
         encryption + prediction + line("written by", info.writer) +
         line("content", "sha256 " + to_hex(info.content_name));
}

std::string range_text(std::size_t first, std::size_t last) {
  return first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
}

// Metadata of the whole cache. Values are included only if the prompt may be shown, because they
// can contain it.
std::string metadata_text(const V1Summary& file, bool show_values) {
  std::string keys;
  std::string text;
  for (const auto& [key, value] : file.metadata) {
    keys += (keys.empty() ? "" : ", ") + key;
    text += line("fact", key + " = " + value);
  }
  if (show_values) return text;
  return keys.empty() ? "" : line("facts", keys);
}

std::string v1_text(const V1Summary& file, bool show_values) {
  std::string text = line("format", "version 1, deprecated") + metadata_text(file, show_values);
  const std::vector<std::string>& paths = file.class_paths;
  for (std::size_t first = 0; first < paths.size();) {
    std::size_t last = first;
    while (last + 1 < paths.size() && paths[last + 1] == paths[first]) ++last;
    text += line("class " + range_text(first, last), paths[first]);
    first = last + 1;
  }
  return text;
}

std::string rope_text(const cache::Rope& rope) {
  return fmt::format("{}, {} components, base {}{}", rope_word(rope.style), rope.n_dims, rope.base,
                     rope.factors.empty() ? "" : ", scaled");
}

// Of configuration and weights.
std::string model_fingerprint_text(const cache::Identity& identity) {
  if (!identity.model_fingerprint) return "no fingerprint (the file has version 1 of them)";
  return fmt::format("sha256 {} (fingerprint version {})",
                     to_hex(identity.model_fingerprint->digest),
                     identity.model_fingerprint->version);
}

std::string source_text(const cache::Identity& identity) {
  std::string text = identity.source_format;
  if (identity.llama_streams > 1) text += fmt::format(", {} streams", identity.llama_streams);
  if (!identity.source_layout.empty()) text += ", " + identity.source_layout;
  if (identity.standing == cache::Standing::kUnchecked) {
    text += ", identity stated, not checked";
  }
  if (identity.standing == cache::Standing::kShifted) {
    text += ", context-shifted: not what the model computes from these tokens alone";
  }
  return text;
}

std::string identity_text(const cache::Identity& identity) {
  if (!is_of_known_origin(identity)) return line("model", "unknown");
  const std::string adapter =
      identity.adapter_fingerprint ? "sha256 " + to_hex(*identity.adapter_fingerprint) : "none";
  return line("model", fmt::format("{} ({})", identity.model_name, identity.architecture)) +
         line("weights", "sha256 " + to_hex(identity.weights_fingerprint)) +
         line("tokenizer", "sha256 " + to_hex(identity.tokenizer_fingerprint)) +
         line("config", model_fingerprint_text(identity)) + line("adapter", adapter) +
         line("rope", rope_text(identity.rope)) + line("values from", source_text(identity));
}

std::string tensor_text(const cache::TensorDesc& tensor) {
  const std::string_view dtype = dtype_name(tensor.dtype);
  if (!tensor.quant) return fmt::format("dense {}", dtype);
  return fmt::format("{} (tail {})", codec_text(*tensor.quant), dtype);
}

// "2 KV heads of 64", "1 KV head of 512 (k) and 64 (v)"
std::string heads_text(const cache::AttentionDesc& attention) {
  const auto [n_kv_heads, head_dim] = attention.shape;
  std::string text = fmt::format("{} of {}", counted(n_kv_heads, "KV head"), head_dim);
  if (attention.value_dim != 0) text += fmt::format(" (k) and {} (v)", attention.value_dim);
  return text;
}

std::string attention_text(std::string_view kind, const cache::AttentionDesc& attention) {
  return fmt::format("{}, {}: k {}, v {}", kind, heads_text(attention), tensor_text(attention.k),
                     tensor_text(attention.v));
}

std::string arrays_text(const std::vector<cache::ArrayDesc>& arrays) {
  std::vector<std::string> texts;
  for (const cache::ArrayDesc& array : arrays) {
    std::string text = fmt::format("{} {}", array.name, dtype_name(array.dtype));
    if (!array.shape.empty()) text += fmt::format(" [{}]", fmt::join(array.shape, ", "));
    texts.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string state_text(const cache::LayerDesc& layer, std::optional<std::int64_t> n_tokens) {
  return std::visit(
      Overload{
          [](const cache::AttentionDesc& attention) {
            return attention_text("attention", attention);
          },
          [&](const cache::WindowDesc& window) {
            const auto [size, keep] = window.window;
            const std::string kind = fmt::format("sliding window of {} tokens", size);
            if (cache::is_quantized(window.attention)) {
              return attention_text(kind, window.attention);
            }
            return fmt::format("{} ({} kept permanently), {}: {}", kind, keep,
                               heads_text(window.attention),
                               arrays_text(cache::arrays_of(layer, n_tokens)));
          },
          [](const cache::StateDesc& state) { return "arrays: " + arrays_text(state.arrays); }},
      layer);
}

std::string layer_text(const LayerGroup& group, std::optional<std::int64_t> n_tokens) {
  const auto first = static_cast<std::size_t>(group.first);
  const auto last = static_cast<std::size_t>(group.last);
  return line("layers " + range_text(first, last), state_text(*group.layer, n_tokens));
}

// "media   image, tokens 5 to 68, id sha256:..."
std::string media_text(const cache::CacheDesc& info) {
  std::string text;
  for (const cache::MediaSpan& span : info.media) {
    const std::string id = span.id.empty() ? "" : ", id " + span.id;
    text += line("media", fmt::format("{}, tokens {} to {}{}", name_of(span.kind),
                                      grouped(static_cast<std::uint64_t>(span.begin)),
                                      grouped(static_cast<std::uint64_t>(span.end() - 1)), id));
  }
  const std::int64_t next = cache::position_of(info.media, info.n_tokens());
  if (next == info.n_tokens()) return text;
  return text + line("next position", grouped(static_cast<std::uint64_t>(next)));
}

std::string tokens_text(const cache::CacheDesc& info) {
  const std::string count = grouped(info.tokens.size());
  if (!info.hidden_tokens) return line("tokens", count);
  if (info.hidden_tokens->empty()) return line("tokens", count + ", ids not stored");
  const std::size_t n_hashes = info.hidden_tokens->size();
  return line("tokens", fmt::format("{}, hidden behind {} hash{}", count, n_hashes,
                                    n_hashes == 1 ? "" : "es"));
}

std::string part_text(std::string_view label, std::uint64_t bytes) {
  return bytes == 0 ? "" : fmt::format("  {:<14}{:>15}\n", label, grouped(bytes));
}

std::string bytes_text(const format::CacheFileInfo& info) {
  const PartBytes parts = bytes_by_part(info);
  return "bytes\n" + part_text("keys packed", parts.key_packed) +
         part_text("keys dense", parts.key_dense) + part_text("values packed", parts.value_packed) +
         part_text("values dense", parts.value_dense) + part_text("arrays", parts.arrays) +
         part_text("checkpoints", parts.checkpoints) + part_text("manifest", parts.manifest) +
         part_text("dead", parts.dead) + part_text("padding", parts.header_and_padding) +
         part_text("whole file", info.file_bytes) + part_text("behind it", info.trailing_bytes);
}

// "320 zstd, 16 none"
std::string compression_text(const format::CacheFileInfo& info) {
  std::vector<std::string> parts;
  for (const auto kind : kCompressions) {
    const auto n = compressed_count(info, kind);
    if (n > 0) parts.push_back(fmt::format("{} {}", n, compression_word(kind)));
  }
  return parts.empty() ? "" : line("compression", fmt::format("{}", fmt::join(parts, ", ")));
}

std::string checksums_text(const format::CacheFileInfo& info) {
  return line("checksums", fmt::format("{} sections, XXH3-128 and SHA-256 each (--sections)",
                                       info.sections.size()));
}

// A line for each of the newest checkpoints.
std::string checkpoints_text(const std::vector<CheckpointView>& checkpoints) {
  constexpr std::size_t kMaxShown = 64;
  std::string text;
  const std::size_t first = checkpoints.size() - std::min(checkpoints.size(), kMaxShown);
  if (first > 0) text += line("checkpoints", fmt::format("{} more before these", first));
  for (const CheckpointView& each : std::span(checkpoints).subspan(first)) {
    text += line("checkpoint", fmt::format("at {}, {} bytes", counted(each.n_tokens, "token"),
                                           grouped(each.bytes)));
  }
  return text;
}

std::string section_text(const format::SectionInfo& section) {
  return fmt::format("  {:>5} {:<5} {:>5} {:<6} {:<6} {:>13} {:>11} {:>11} {}\n", section.layer,
                     tensor_word(section.tensor), section.block,
                     section.packed ? "packed" : "dense", compression_word(section.compression),
                     section.file_offset, section.stored_bytes, section.raw_bytes,
                     to_hex(section.checksum));
}

std::string sections_text(const format::CacheFileInfo& info) {
  std::string text =
      fmt::format("  {:>5} {:<5} {:>5} {:<6} {:<6} {:>13} {:>11} {:>11} {}\n", "layer", "side",
                  "block", "kind", "comp", "offset", "stored", "raw", "xxh3-128");
  for (const format::SectionInfo& section : info.sections) text += section_text(section);
  return text;
}

std::string prompt_text(const InfoView& view) {
  if (view.text) return fmt::format("text\n{}\n", printable_lines(*view.text));
  return fmt::format("token ids\n{}\n", fmt::join(view.info.tokens, ","));
}

}  // namespace

std::string layers_text(const std::vector<cache::LayerDesc>& layers,
                        std::optional<std::int64_t> n_tokens) {
  std::string text;
  for (const LayerGroup& group : group_layers(layers)) text += layer_text(group, n_tokens);
  return text;
}

std::string info_text(const InfoView& view) {
  const format::CacheFileInfo& info = view.info;
  const std::optional<V1Summary>& v1 = view.input.v1;
  std::string text = line("file", view.input.name) +
                     (v1 ? v1_text(*v1, view.show_prompt) : head_text(view)) +
                     identity_text(info.identity) + tokens_text(info) + media_text(info);
  text += layers_text(info.layers, info.n_tokens());
  text += checkpoints_text(checkpoints_of(info));
  const std::uint64_t n_values = value_count(info, info.n_tokens());
  const std::uint64_t file_bytes = v1 ? view.input.file_bytes : info.file_bytes;
  if (const auto bits = bits_per_value(file_bytes, n_values)) {
    text += line("bits per value", fmt::format("{:.3f}, for the whole file", *bits));
  }
  if (v1) {
    text += line("bytes", grouped(file_bytes));
  } else {
    text += bytes_text(info) + compression_text(info) + checksums_text(info);
    if (view.sections) text += sections_text(info);
  }
  if (view.show_prompt) text += prompt_text(view);
  return text;
}

std::string info_text(const ForeignView& view) {
  std::string text = line("file", view.name) + line("format", view.kind);
  for (const auto& [label, value] : view.facts) {
    text += line(label == "format" ? "format inside" : label, value);
  }
  text += line("bytes", grouped(view.file_bytes));
  if (const cache::CacheDesc* cache = view.manifest) {
    text += tokens_text(*cache) + media_text(*cache);
    text += layers_text(cache->layers, cache->n_tokens());
    text += checkpoints_text(view.checkpoints);
    const std::uint64_t n_values = value_count(*cache, cache->n_tokens());
    if (const auto bits = bits_per_value(view.file_bytes, n_values)) {
      text += line("bits per value", fmt::format("{:.3f}, for the whole file", *bits));
    }
  }
  for (const std::string& each : view.notes) text += line("note", each);
  for (const std::string& each : view.losses) text += line("dropped", each);
  return text;
}

}  // namespace tqcache::cli
