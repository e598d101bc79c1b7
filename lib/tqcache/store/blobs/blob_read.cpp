
#include <fmt/format.h>
#include <store_v1_generated.h>

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/format/checksum_bytes.h"
#include "tqcache/format/container_format.h"
#include "tqcache/store.h"
#include "tqcache/store/backends/encrypted_backend.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_format.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::store {

namespace {

constexpr std::size_t kChecksumAt = kBlobHeaderBytes - sizeof(std::uint64_t);

// Magic and checksum have the same place in all versions.
Result<void> check_whole(ByteView blob) {
  const std::size_t n_magic = std::min(blob.size(), kBlobMagic.size());
  if (!std::ranges::equal(blob.first(n_magic), ByteView(kBlobMagic).first(n_magic))) {
    return corrupt("not a blob of a store");
  }
  if (blob.size() < kBlobHeaderBytes) {
    return Error{ErrorCode::kTruncated,
                 fmt::format("the blob ends after {} bytes, within the header", blob.size())};
  }
  const auto stored = number_at<std::uint64_t>(blob, kChecksumAt);
  if (stored != xxh3_64(blob.first(kChecksumAt))) return corrupt("header: checksum mismatch");
  return {};
}

Result<void> check_version(std::uint32_t version) {
  if (version == kBlobVersion || version == kMediaBlobVersion) return {};
  const std::string what = "version " + std::to_string(version);
  if (version < kBlobVersion) return corrupt(what);
  return unsupported(fmt::format("{} is newer than version {}", what, kMediaBlobVersion));
}

Result<void> check_sizes(const BlobHeader& header, std::uint64_t size) {
  if (size < header.blob_bytes) {
    return Error{ErrorCode::kTruncated,
                 fmt::format("the blob ends after {} of {} bytes", size, header.blob_bytes)};
  }
  if (size > header.blob_bytes) {
    return corrupt(std::to_string(size - header.blob_bytes) + " bytes after the end");
  }
  if (header.description_bytes > kMaxDescriptionBytes) {
    return too_large(fmt::format("a description of {} bytes", header.description_bytes));
  }
  if (sections_at(header) > size) return corrupt("the description reaches past the end");
  return {};
}

}  // namespace

std::uint64_t sections_at(const BlobHeader& header) {
  return format::align_section(kBlobHeaderBytes + header.description_bytes);
}

Bytes encode_blob_header(const BlobHeader& header) {
  ByteWriter out;
  out.append(kBlobMagic);
  out.write(header.has_media ? kMediaBlobVersion : kBlobVersion);
  out.write(static_cast<std::uint32_t>(header.kind) + 1);
  out.write(header.blob_bytes);
  out.write(header.description_bytes);
  out.append(format::to_bytes(header.description_checksum));
  out.write(std::uint64_t{0});
  assert(out.bytes().size() == kChecksumAt);
  out.write(xxh3_64(out.bytes()));
  return std::move(out).take();
}

Result<BlobHeader> read_blob_header(ByteView blob) {
  TQC_TRY(check_whole(blob));
  const auto version = number_at<std::uint32_t>(blob, 8);
  if (version == kSealedBlobVersion) return sealed_value_error(blob);
  TQC_TRY(check_version(version));
  const auto kind = number_at<std::uint32_t>(blob, 12);
  if (kind == 0 || kind > kBlobKinds) return corrupt("kind " + std::to_string(kind));
  if (number_at<std::uint64_t>(blob, 48) != 0) return corrupt("header: reserved bytes");
  BlobHeader header;
  header.kind = static_cast<BlobKind>(kind - 1);
  header.has_media = version == kMediaBlobVersion;
  header.blob_bytes = number_at<std::uint64_t>(blob, 16);
  header.description_bytes = number_at<std::uint64_t>(blob, 24);
  header.description_checksum =
      format::checksum_from_bytes(blob.subspan(32).first<sizeof(format::ChecksumBytes)>());
  TQC_TRY(check_sizes(header, blob.size()));
  return header;
}

// Reads a blob.
//
// Safe for untrusted input: header, limits, checksum of the description and the FlatBuffers
// verifier are checked before any field is read, and every size before memory is allocated for it.

namespace {

Sha256 to_sha256(const fb::Sha256& digest) {
  Sha256 result;
  std::transform(digest.bytes()->begin(), digest.bytes()->end(), result.begin(),
                 [](std::uint8_t byte) { return std::byte{byte}; });
  return result;
}

Result<void> check_count(std::uint64_t count, std::uint64_t limit, std::string_view what) {
  if (count <= limit) return {};
  return too_large(fmt::format("{} {}", count, what));
}

Result<std::string> read_text(const flatbuffers::String& text, std::uint64_t limit) {
  TQC_TRY(check_count(text.size(), limit, "bytes of text"));
  return text.str();
}

// Token counts are signed.
Result<std::int64_t> read_tokens_count(std::uint64_t count) {
  TQC_TRY(check_count(count, cache::kMaxTokens, "tokens"));
  return static_cast<std::int64_t>(count);
}

bool is_zero(ByteView bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

// The parts of a blob, whose header, checksum and padding are correct.
struct Parts {
  BlobHeader header;
  AlignedBytes description;
  SharedBytes sections;
};

Result<Parts> take_apart(const SharedBytes& blob) {
  Parts parts;
  TQC_TRY_ASSIGN(parts.header, read_blob_header(blob.view()));
  const auto n_description = static_cast<std::size_t>(parts.header.description_bytes);
  const auto begin = static_cast<std::size_t>(sections_at(parts.header));
  const ByteView description = blob.view().subspan(kBlobHeaderBytes, n_description);
  if (xxh3_128(description) != parts.header.description_checksum) {
    return corrupt("description: checksum mismatch");
  }
  if (!is_zero(blob.view().subspan(kBlobHeaderBytes + n_description,
                                   begin - kBlobHeaderBytes - n_description))) {
    return corrupt("bytes between description and sections");
  }
  parts.description.assign(description.begin(), description.end());
  parts.sections = blob.part(begin, blob.size() - begin);
  return parts;
}

Result<const fb::Description*> verified_root(const AlignedBytes& description) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(description.data());
  flatbuffers::Verifier verifier(data, description.size());
  if (!fb::VerifyDescriptionBuffer(verifier)) {
    return corrupt("description: not a valid FlatBuffer");
  }
  return fb::GetDescription(data);
}

// Each kind has exactly its own fields.
Result<void> check_fields(const fb::Description& root, BlobKind kind) {
  const bool is_record = kind == BlobKind::kRecord;
  const bool has_state = kind == BlobKind::kState || is_record;
  const bool fits = (root.manifest() != nullptr) == (kind != BlobKind::kUsage) &&
                    (root.block() != nullptr) == (kind == BlobKind::kBlock) &&
                    (root.state() != nullptr) == has_state &&
                    (root.record() != nullptr) == is_record &&
                    (root.usage() != nullptr) == (kind == BlobKind::kUsage);
  return fits ? Result<void>()
              : corrupt("description: expected the fields of its kind of blob alone");
}

Result<void> check_key_of(const fb::Description& root, std::string_view key) {
  const std::string_view own(root.key()->c_str(), root.key()->size());
  if (own == key) return {};
  return mismatch("the blob is that of another key");
}

Result<format::Manifest> read_manifest(const fb::Description& root) {
  if (root.manifest() == nullptr) return format::Manifest{};
  TQC_TRY(check_count(root.manifest()->size(), format::kMaxManifestBytes, "bytes of manifest"));
  const auto bytes = std::as_bytes(std::span(root.manifest()->data(), root.manifest()->size()));
  const AlignedBytes aligned(bytes.begin(), bytes.end());
  // Parameters have no window shapes.
  format::WindowTokens window_tokens;
  if (root.state() != nullptr) window_tokens = root.state()->n_tokens();
  TQC_TRY_ASSIGN(format::Manifest manifest, format::decode_manifest(aligned, window_tokens));
  if (manifest.hidden_tokens) return corrupt("manifest: hidden tokens");
  if (!manifest.gaps.empty()) return corrupt("manifest: gaps");
  return manifest;
}

// Returns the end of the section. Sections follow one another, padded with zeros to the next
// multiple of 64.
Result<std::uint64_t> check_place(const format::SectionInfo& section, std::uint64_t end,
                                  const SharedBytes& bytes) {
  const std::uint64_t begin = format::align_section(end);
  if (section.file_offset != begin) return corrupt("does not follow the one before");
  if (begin > bytes.size() || section.stored_bytes > bytes.size() - begin) {
    return corrupt("reaches past the end");
  }
  if (!is_zero(bytes.view().subspan(end, begin - end))) return corrupt("bytes before it");
  return begin + section.stored_bytes;
}

Result<std::vector<StoredSection>> read_sections(const format::Manifest& manifest,
                                                 const SharedBytes& bytes) {
  std::vector<StoredSection> sections;
  sections.reserve(manifest.sections.size());
  std::uint64_t end = 0;
  for (const format::SectionInfo& info : manifest.sections) {
    auto next = check_place(info, end, bytes);
    if (!next) {
      return in_context(cache::block_place(sections.size(), info), std::move(next).error());
    }
    end = *next;
    sections.push_back({info, bytes.part(info.file_offset, info.stored_bytes)});
    sections.back().info.file_offset = 0;
  }
  if (end != bytes.size()) return corrupt(std::to_string(bytes.size() - end) + " bytes too many");
  return sections;
}

Result<Block> read_block(const fb::Block& in, format::Manifest manifest,
                         std::vector<StoredSection> sections) {
  TQC_TRY(check_count(in.n_parts(), static_cast<std::uint64_t>(kMaxParts), "parts"));
  if (in.part() >= in.n_parts())
    return corrupt(fmt::format("part {} of {}", in.part(), in.n_parts()));
  Block block;
  block.parent = to_sha256(*in.parent());
  block.index = in.index();
  block.part = static_cast<int>(in.part());
  block.n_parts = static_cast<int>(in.n_parts());
  block.tokens = std::move(manifest.tokens);
  block.sections = std::move(sections);
  block.media = std::move(manifest.media);
  return block;
}

Result<Snapshot> read_state(const fb::State& in, format::Manifest manifest) {
  TQC_TRY(check_count(in.data_keys()->size(), kMaxDataKeys, "data blobs"));
  Snapshot snapshot;
  snapshot.n_tokens = in.n_tokens();
  snapshot.tail = std::move(manifest.tokens);
  snapshot.media = std::move(manifest.media);
  snapshot.layers = bare_layers(std::move(manifest.layers));
  snapshot.content_name = manifest.content_name;
  snapshot.data_bytes = in.data_bytes();
  for (const flatbuffers::String* key : *in.data_keys()) {
    TQC_TRY_ASSIGN(snapshot.data_keys.emplace_back(), read_text(*key, kMaxKeyBytes));
  }
  return snapshot;
}

Result<std::vector<Sha256>> read_chain(const flatbuffers::Vector<const fb::Sha256*>& in) {
  TQC_TRY(check_count(in.size(), final_blocks(cache::kMaxTokens), "token blocks"));
  std::vector<Sha256> chain;
  chain.reserve(in.size());
  for (const fb::Sha256* hash : in) chain.push_back(to_sha256(*hash));
  return chain;
}

Result<PromptRecord> read_record(const fb::Record& in, Snapshot snapshot) {
  PromptRecord record;
  TQC_TRY_ASSIGN(record.name, read_text(*in.name(), kMaxNameBytes));
  TQC_TRY_ASSIGN(record.model_name, read_text(*in.model_name(), cache::kMaxTextBytes));
  TQC_TRY_ASSIGN(record.architecture, read_text(*in.architecture(), cache::kMaxTextBytes));
  TQC_TRY(check_count(in.tokens()->size(), cache::kMaxTokens, "tokens"));
  record.tokens.assign(in.tokens()->begin(), in.tokens()->end());
  TQC_TRY_ASSIGN(record.parameters_key, read_text(*in.parameters_key(), kMaxKeyBytes));
  TQC_TRY_ASSIGN(record.chain, read_chain(*in.chain()));
  record.snapshot = std::move(snapshot);
  TQC_TRY_ASSIGN(record.state_key, read_text(*in.state_key(), kMaxKeyBytes));
  record.created = in.created();
  if (in.standing() > static_cast<std::uint8_t>(cache::Standing::kUnchecked)) {
    return corrupt("standing: " + std::to_string(in.standing()));
  }
  record.standing = static_cast<cache::Standing>(in.standing());
  record.bytes = in.bytes();
  return record;
}

Result<UsageNote> read_usage(const fb::Usage& in) {
  UsageNote usage;
  usage.created = in.created();
  TQC_TRY_ASSIGN(usage.wanted_tokens, read_tokens_count(in.wanted_tokens()));
  TQC_TRY_ASSIGN(usage.found_tokens, read_tokens_count(in.found_tokens()));
  usage.read_bytes = in.read_bytes();
  usage.stored_bytes = in.stored_bytes();
  return usage;
}

// Requires: check_fields().
Result<Content> read_content(const fb::Description& root, BlobKind kind, format::Manifest manifest,
                             std::vector<StoredSection> sections) {
  switch (kind) {
    case BlobKind::kParameters:
      return Content(Parameters{std::move(manifest.identity), std::move(manifest.tokens),
                                std::move(manifest.layers)});
    case BlobKind::kBlock: {
      TQC_TRY_ASSIGN(Block block,
                     read_block(*root.block(), std::move(manifest), std::move(sections)));
      return Content(std::move(block));
    }
    case BlobKind::kData:
      return Content(Data{std::move(sections)});
    case BlobKind::kUsage: {
      TQC_TRY_ASSIGN(const UsageNote usage, read_usage(*root.usage()));
      return Content(usage);
    }
    case BlobKind::kNext:
      if (!sections.empty() || !manifest.layers.empty())
        return corrupt("manifest: more than tokens");
      return Content(Next{std::move(manifest.tokens)});
    case BlobKind::kState:
    case BlobKind::kRecord:
      break;
  }
  TQC_TRY_ASSIGN(Snapshot snapshot, read_state(*root.state(), std::move(manifest)));
  if (kind == BlobKind::kState) return Content(std::move(snapshot));
  TQC_TRY_ASSIGN(PromptRecord record, read_record(*root.record(), std::move(snapshot)));
  return Content(std::move(record));
}

}  // namespace

Result<Content> decode_blob(std::string_view key, const SharedBytes& blob) {
  TQC_TRY_ASSIGN(const Parts parts, take_apart(blob));
  TQC_TRY_ASSIGN(const fb::Description* root, verified_root(parts.description));
  TQC_TRY(check_key_of(*root, key));
  TQC_TRY(check_fields(*root, parts.header.kind));
  TQC_TRY_ASSIGN(format::Manifest manifest, read_manifest(*root));
  TQC_TRY_ASSIGN(std::vector<StoredSection> sections, read_sections(manifest, parts.sections));
  TQC_TRY_ASSIGN(Content content,
                 read_content(*root, parts.header.kind, std::move(manifest), std::move(sections)));
  TQC_TRY(check_content(key, content));
  if (has_media(content) != parts.header.has_media) {
    return corrupt(parts.header.has_media ? "version 3 without media" : "media in version 1");
  }
  return content;
}

}  // namespace tqcache::store
