// Builds a blob: its description as a FlatBuffer, then header and sections around it.

#include <fmt/format.h>
#include <store_v1_generated.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tqcache/format/container_format.h"
#include "tqcache/store.h"
#include "tqcache/store/blobs/blob_format.h"

namespace tqcache::store {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

fb::Sha256 make_sha256(const Sha256& digest) {
  std::array<std::uint8_t, sizeof(Sha256)> bytes;
  std::ranges::transform(digest, bytes.begin(),
                         [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  return fb::Sha256(flatbuffers::make_span(bytes));
}

// Rows of the section table. Offsets count from the first section of the blob.
std::vector<format::SectionInfo> section_rows(const std::vector<StoredSection>& sections) {
  std::vector<format::SectionInfo> rows;
  rows.reserve(sections.size());
  std::uint64_t end = 0;
  for (const StoredSection& section : sections) {
    format::SectionInfo& row = rows.emplace_back(section.info);
    row.file_offset = format::align_section(end);
    end = row.file_offset + row.stored_bytes;
  }
  return rows;
}

// The manifest of a blob.
format::Manifest manifest_of(const Parameters& parameters) {
  format::Manifest manifest;
  manifest.identity = parameters.identity;
  manifest.tokens = parameters.tokens;
  manifest.layers = parameters.layers;
  return manifest;
}
format::Manifest manifest_of(const Block& block) {
  format::Manifest manifest;
  manifest.tokens = block.tokens;
  manifest.media = block.media;
  manifest.sections = section_rows(block.sections);
  return manifest;
}
format::Manifest manifest_of(const Data& data) {
  format::Manifest manifest;
  manifest.sections = section_rows(data.sections);
  return manifest;
}
format::Manifest manifest_of(const Snapshot& snapshot) {
  format::Manifest manifest;
  manifest.tokens = snapshot.tail;
  manifest.media = snapshot.media;
  manifest.layers = snapshot.layers;
  manifest.content_name = snapshot.content_name;
  return manifest;
}

format::Manifest manifest_of(const Next& next) {
  format::Manifest manifest;
  manifest.tokens = next.tokens;
  return manifest;
}

Result<Bytes> manifest_bytes(const UsageNote&) { return Bytes{}; }
// Parameters do not depend on the number of tokens: shapes of windows are left out.
Result<Bytes> manifest_bytes(const Parameters& parameters) {
  return format::encode_manifest(manifest_of(parameters), /*window_tokens=*/{});
}
Result<Bytes> manifest_bytes(const Snapshot& snapshot) {
  return format::encode_manifest(manifest_of(snapshot), snapshot.n_tokens);
}
Result<Bytes> manifest_bytes(const PromptRecord& record) { return manifest_bytes(record.snapshot); }
template <class T>
Result<Bytes> manifest_bytes(const T& content) {
  return format::encode_manifest(manifest_of(content));
}

struct Tables {
  Offset<fb::Block> block = {};
  Offset<fb::State> snapshot = {};
  Offset<fb::Record> record = {};
  Offset<fb::Usage> usage = {};
};

Offset<fb::State> make_state(Builder& out, const Snapshot& snapshot) {
  const auto keys = out.CreateVectorOfStrings(snapshot.data_keys);
  return fb::CreateState(out, static_cast<std::uint32_t>(snapshot.n_tokens), keys,
                         snapshot.data_bytes);
}

Tables make_tables(Builder&, const Parameters&) { return {}; }
Tables make_tables(Builder&, const Data&) { return {}; }
Tables make_tables(Builder&, const Next&) { return {}; }
Tables make_tables(Builder& out, const Block& block) {
  const fb::Sha256 parent = make_sha256(block.parent);
  return {.block = fb::CreateBlock(out, &parent, static_cast<std::uint32_t>(block.index),
                                   static_cast<std::uint32_t>(block.part),
                                   static_cast<std::uint32_t>(block.n_parts))};
}
Tables make_tables(Builder& out, const Snapshot& snapshot) {
  return {.snapshot = make_state(out, snapshot)};
}
Tables make_tables(Builder& out, const PromptRecord& record) {
  std::vector<fb::Sha256> chain;
  chain.reserve(record.chain.size());
  for (const Sha256& hash : record.chain) chain.push_back(make_sha256(hash));
  const auto name = out.CreateString(record.name);
  const auto model_name = out.CreateString(record.model_name);
  const auto architecture = out.CreateString(record.architecture);
  const auto tokens = out.CreateVector(record.tokens);
  const auto parameters_key = out.CreateString(record.parameters_key);
  const auto hashes = out.CreateVectorOfStructs(chain);
  const auto state_key = out.CreateString(record.state_key);
  const auto made = fb::CreateRecord(out, name, model_name, architecture, tokens, parameters_key,
                                     hashes, state_key, record.created, record.bytes,
                                     static_cast<std::uint8_t>(record.standing));
  return {.snapshot = make_state(out, record.snapshot), .record = made};
}
Tables make_tables(Builder& out, const UsageNote& usage) {
  return {.usage =
              fb::CreateUsage(out, usage.created, static_cast<std::uint64_t>(usage.wanted_tokens),
                              static_cast<std::uint64_t>(usage.found_tokens), usage.read_bytes,
                              usage.stored_bytes)};
}

// Returns the FlatBuffer.
Result<Bytes> make_description(std::string_view key, const Content& content) {
  TQC_TRY_ASSIGN(const Bytes manifest,
                 std::visit([](const auto& each) { return manifest_bytes(each); }, content));
  Builder out;
  const auto key_text = out.CreateString(key.data(), key.size());
  const auto nested = manifest.empty()
                          ? 0
                          : out.CreateVector(reinterpret_cast<const std::uint8_t*>(manifest.data()),
                                             manifest.size());
  const Tables tables =
      std::visit([&](const auto& each) { return make_tables(out, each); }, content);
  fb::FinishDescriptionBuffer(
      out, fb::CreateDescription(out, key_text, nested, tables.block, tables.snapshot,
                                 tables.record, tables.usage));
  const auto bytes = std::as_bytes(std::span(out.GetBufferPointer(), out.GetSize()));
  return Bytes(bytes.begin(), bytes.end());
}

const std::vector<StoredSection>* sections_of(const Content& content) {
  if (const auto* block = std::get_if<Block>(&content)) return &block->sections;
  if (const auto* data = std::get_if<Data>(&content)) return &data->sections;
  return nullptr;
}

std::uint64_t sections_end(const std::vector<StoredSection>* sections) {
  if (sections == nullptr || sections->empty()) return 0;
  const format::SectionInfo last = section_rows(*sections).back();
  return last.file_offset + last.stored_bytes;
}

// The parts of a blob.
struct Pieces {
  BlobHeader header;
  Bytes description;
  const std::vector<StoredSection>* sections = nullptr;
};

Result<Pieces> make_pieces(std::string_view key, const Content& content) {
  Pieces pieces;
  TQC_TRY_ASSIGN(pieces.description, make_description(key, content));
  pieces.sections = sections_of(content);
  BlobHeader& header = pieces.header;
  header.kind = kind_of(content);
  header.has_media = has_media(content);
  header.description_bytes = pieces.description.size();
  header.description_checksum = xxh3_128(pieces.description);
  header.blob_bytes = sections_at(header) + sections_end(pieces.sections);
  if (pieces.description.size() > kMaxDescriptionBytes || header.blob_bytes > kMaxValueBytes) {
    return too_large(fmt::format("a blob of {} bytes", header.blob_bytes));
  }
  return pieces;
}

// Fills uninitialized memory.
class Filler {
 public:
  explicit Filler(std::span<std::byte> blob) : blob_(blob) {}

  void append(ByteView bytes) {
    std::ranges::copy(bytes, blob_.subspan(at_).begin());
    at_ += bytes.size();
  }
  void pad_to(std::uint64_t end) {
    const auto n = static_cast<std::size_t>(end) - at_;
    std::ranges::fill(blob_.subspan(at_, n), std::byte{0});
    at_ += n;
  }
  std::size_t at() const { return at_; }

 private:
  std::span<std::byte> blob_;
  std::size_t at_ = 0;
};

// Shapes: blob [header.blob_bytes].
void join(const Pieces& pieces, std::span<std::byte> blob) {
  Filler filler(blob);
  filler.append(encode_blob_header(pieces.header));
  filler.append(pieces.description);
  filler.pad_to(sections_at(pieces.header));
  if (pieces.sections == nullptr) return;
  for (const StoredSection& section : *pieces.sections) {
    filler.pad_to(format::align_section(filler.at()));
    filler.append(section.stored.view());
  }
}

}  // namespace

Result<Bytes> make_blob(std::string_view key, const Content& content) {
  TQC_TRY_ASSIGN(const Pieces pieces, make_pieces(key, content));
  Bytes blob(pieces.header.blob_bytes);
  join(pieces, blob);
  return blob;
}

Result<SharedBytes> make_blob(std::string_view key, const Content& content, BlobMemory& memory) {
  TQC_TRY_ASSIGN(const Pieces pieces, make_pieces(key, content));
  const BlobMemory::Room room = memory.take(pieces.header.blob_bytes);
  join(pieces, room.bytes);
  return room.shared();
}

}  // namespace tqcache::store
