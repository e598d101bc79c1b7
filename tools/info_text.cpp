#include "info_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codec_text.h"
#include "file_stats.h"
#include "terminal.h"
#include "text.h"
#include "tqcache/base/dtype.h"

namespace tqcache::cli {
namespace {

// Every text from a file is shown without control characters.
std::string line(std::string_view label, std::string_view value) {
  return fmt::format("{:<16}{}\n", label, printable(value));
}

std::string head_text(const format::CacheFileInfo& info) {
  return line("format", fmt::format("version {}, generation {}", info.version, info.generation)) +
         line("written by", info.writer) + line("content", "sha256 " + to_hex(info.content_name));
}

std::string rope_text(const cache::Rope& rope) {
  return fmt::format("{}, {} components, base {}{}", rope_word(rope.style), rope.n_dims, rope.base,
                     rope.factors.empty() ? "" : ", scaled");
}

std::string identity_text(const cache::Identity& identity) {
  const std::string adapter =
      identity.adapter_fingerprint ? "sha256 " + to_hex(*identity.adapter_fingerprint) : "none";
  return line("model", fmt::format("{} ({})", identity.model_name, identity.architecture)) +
         line("weights", "sha256 " + to_hex(identity.weights_fingerprint)) +
         line("tokenizer", "sha256 " + to_hex(identity.tokenizer_fingerprint)) +
         line("adapter", adapter) + line("rope", rope_text(identity.rope)) +
         line("values from", identity.source_format);
}

std::string side_text(const format::SideInfo& side) {
  const std::string_view dtype = dtype_name(side.dense_dtype);
  if (!is_turbo(side)) return fmt::format("dense {}", dtype);
  return fmt::format("{} (tail {})", codec_text(side), dtype);
}

std::string layer_text(const LayerGroup& group) {
  const std::string range = group.first == group.last
                                ? std::to_string(group.first)
                                : fmt::format("{}-{}", group.first, group.last);
  const format::LayerInfo& layer = *group.layer;
  if (!is_attention(layer)) return line("layers " + range, layer.cache_type_id);
  return line("layers " + range,
              fmt::format("attention, {} kv heads of {}: k {}, v {}", layer.shape.n_kv_heads,
                          layer.shape.head_dim, side_text(layer.k), side_text(layer.v)));
}

std::string part_text(std::string_view label, std::uint64_t bytes) {
  return bytes == 0 ? "" : fmt::format("  {:<14}{:>15}\n", label, grouped(bytes));
}

std::string bytes_text(const format::CacheFileInfo& info) {
  const PartBytes parts = bytes_by_part(info);
  return "bytes\n" + part_text("keys packed", parts.key_packed) +
         part_text("keys dense", parts.key_dense) + part_text("values packed", parts.value_packed) +
         part_text("values dense", parts.value_dense) + part_text("arrays", parts.arrays) +
         part_text("manifest", parts.manifest) + part_text("padding", parts.header_and_padding) +
         part_text("whole file", info.file_bytes);
}

std::string checksums_text(const format::CacheFileInfo& info) {
  return line("checksums", fmt::format("{} sections, XXH3-128 and SHA-256 each (--sections)",
                                       info.sections.size()));
}

std::string section_text(const format::SectionInfo& section) {
  return fmt::format("  {:>5} {:<5} {:>5} {:<6} {:<4} {:>13} {:>11} {:>11} {}\n", section.layer,
                     side_word(section.side), section.block, section.packed ? "packed" : "dense",
                     section.compression == format::Compression::kZstd ? "zstd" : "none",
                     section.file_offset, section.stored_bytes, section.raw_bytes,
                     to_hex(section.checksum));
}

std::string sections_text(const format::CacheFileInfo& info) {
  std::string text =
      fmt::format("  {:>5} {:<5} {:>5} {:<6} {:<4} {:>13} {:>11} {:>11} {}\n", "layer", "side",
                  "block", "kind", "comp", "offset", "stored", "raw", "xxh3-128");
  for (const format::SectionInfo& section : info.sections) text += section_text(section);
  return text;
}

std::string prompt_text(const InfoView& view) {
  if (view.text) return fmt::format("text\n{}\n", printable_lines(*view.text));
  return fmt::format("token ids\n{}\n", fmt::join(view.info.tokens, ","));
}

}  // namespace

std::string info_text(const InfoView& view) {
  const format::CacheFileInfo& info = view.info;
  std::string text = line("file", view.name) + head_text(info) + identity_text(info.identity);
  text += line("tokens", grouped(info.tokens.size()));
  for (const LayerGroup& group : group_layers(info.layers)) text += layer_text(group);
  if (const auto bits = bits_per_value(info.file_bytes, value_count(info))) {
    text += line("bits a value", fmt::format("{:.3f}, everything in the file counted", *bits));
  }
  text += bytes_text(info) + checksums_text(info);
  if (view.sections) text += sections_text(info);
  if (view.show_prompt) text += prompt_text(view);
  return text;
}

}  // namespace tqcache::cli
