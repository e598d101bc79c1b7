// Reads the FlatBuffer of version 1. Only this file knows it.
//
// The SHA-256 is checked first. Memory for tensors is allocated only after all of them have been
// checked: the sizes of the frames, the shapes, and the limit of the caller.

#include "migrations/v1_file.h"

#include <cache_v1_generated.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tqcache/access.h"
#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/hash.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::migrations {
namespace {

namespace fb = v1::fb;
using tensors::printable_name;

constexpr std::size_t kDigestBytes = 32;
constexpr std::size_t kIdentifierAt = 4;  // FlatBuffers: offset of the root, then the identifier
constexpr std::string_view kIdentifier = "TQK1";

Result<void> check_count(std::uint64_t count, std::uint64_t limit, std::string_view what) {
  if (count <= limit) return {};
  return too_large(fmt::format("{} {}", count, what));
}

ByteView data_of(const fb::Tensor& tensor) {
  return {reinterpret_cast<const std::byte*>(tensor.data()->data()), tensor.data()->size()};
}

// --- the file as bytes

// Requires: a file that is long enough.
Result<bool> has_identifier(const ByteSource& source) {
  std::array<std::byte, kIdentifier.size()> identifier;
  TQC_TRY(source.read_at(kIdentifierAt, identifier));
  return std::ranges::equal(identifier, as_bytes(kIdentifier));
}

// All bytes before the digest, after checking it. FlatBuffers need aligned bytes.
Result<AlignedBytes> read_whole(const ByteSource& source) {
  const std::uint64_t size = source.size();
  TQC_TRY(check_count(size, kMaxFileBytes, "bytes of file"));
  if (size < kIdentifierAt + kIdentifier.size() + kDigestBytes) {
    return Error{ErrorCode::kTruncated, std::to_string(size) + " bytes are too short for a file"};
  }
  TQC_TRY_ASSIGN(const bool is_v1, has_identifier(source));
  if (!is_v1) return corrupt("not a file of version 1");
  AlignedBytes bytes(static_cast<std::size_t>(size) - kDigestBytes);
  Sha256 digest;
  TQC_TRY(source.read_at(0, bytes));
  TQC_TRY(source.read_at(bytes.size(), digest));
  if (sha256(bytes) != digest) return corrupt("SHA-256 of the file: mismatch");
  return bytes;
}

Result<const fb::PromptCache*> verified_root(const AlignedBytes& bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  flatbuffers::Verifier::Options options;
  options.max_depth = kMaxDepth;
  options.max_tables = kMaxTables;
  flatbuffers::Verifier verifier(data, bytes.size(), options);
  if (!fb::VerifyPromptCacheBuffer(verifier)) return corrupt("not a valid FlatBuffer of version 1");
  const fb::PromptCache* root = fb::GetPromptCache(data);
  if (root->schema_version() == kSchemaVersion) return root;
  return unsupported(
      fmt::format("schema_version {} where {} belongs", root->schema_version(), kSchemaVersion));
}

// --- tensors

constexpr std::uint64_t dtype_bytes(V1Dtype dtype) {
  switch (dtype) {
    case V1Dtype::kF32:
    case V1Dtype::kU32:
      return 4;
    case V1Dtype::kF16:
    case V1Dtype::kBf16:
      return 2;
    case V1Dtype::kU8:
    case V1Dtype::kBool:
      break;
  }
  return 1;
}

// Limits on all tensors of a file together. Tables may share bytes, so a small file could need
// much memory: stored bytes count once per reference.
struct Budget {
  std::uint64_t stored_bytes;
  std::uint64_t raw_bytes;
  std::uint64_t text_bytes = kMaxTextBytes;
};

Result<void> spend(std::uint64_t& budget, std::uint64_t bytes, std::string_view what) {
  TQC_TRY(check_count(bytes, budget, what));
  budget -= bytes;
  return {};
}

Result<void> check_data(ByteView data, std::uint64_t raw_bytes, Budget& budget) {
  TQC_TRY(spend(budget.stored_bytes, data.size(), "bytes, more than the file has for all tensors"));
  TQC_TRY(spend(budget.raw_bytes, raw_bytes, "bytes, beyond what tensors may take in memory"));
  if (raw_bytes == 0) {
    if (data.empty()) return {};
    return corrupt(std::to_string(data.size()) + " bytes of an empty tensor");
  }
  return format::Decompressor::check_frame(data, raw_bytes);
}

Result<std::vector<std::uint64_t>> read_shape(const flatbuffers::Vector<std::uint64_t>& shape) {
  TQC_TRY(check_count(shape.size(), kMaxRank, "dimensions"));
  // The verifier checks only the alignment of the length of the vector.
  if (shape.size() > 0 && reinterpret_cast<std::uintptr_t>(shape.Data()) % 8 != 0) {
    return corrupt("shape: not aligned to 8 bytes");
  }
  return std::vector<std::uint64_t>(shape.begin(), shape.end());
}

// A tensor without its values; its size is within the budget.
Result<V1Tensor> read_tensor(const fb::Tensor& in, Budget& budget) {
  V1Tensor tensor;
  tensor.name = in.name()->str();
  if (static_cast<std::uint8_t>(in.dtype()) > static_cast<std::uint8_t>(fb::Dtype::MAX)) {
    return corrupt("unknown dtype " + std::to_string(static_cast<int>(in.dtype())));
  }
  tensor.dtype = static_cast<V1Dtype>(in.dtype());
  TQC_TRY_ASSIGN(tensor.shape, read_shape(*in.shape()));
  const auto count = element_count(tensor.shape);
  const auto bytes = count ? checked_mul(*count, dtype_bytes(tensor.dtype)) : std::nullopt;
  if (!bytes) return too_large("a shape beyond 64 bits");
  TQC_TRY(check_data(data_of(in), *bytes, budget));
  return tensor;
}

using Tensors = flatbuffers::Vector<flatbuffers::Offset<fb::Tensor>>;

Result<std::vector<V1Tensor>> read_tensors(const Tensors* in, Budget& budget) {
  std::vector<V1Tensor> tensors;
  if (in == nullptr) return tensors;
  TQC_TRY(check_count(in->size(), kMaxTensors, "tensors"));
  for (const fb::Tensor* each : *in) {
    TQC_TRY(check_count(each->name()->size(), kMaxNameBytes, "bytes of a tensor's name"));
    const std::string place = "tensor " + printable_name(each->name()->string_view());
    auto tensor = read_tensor(*each, budget);
    if (!tensor) return in_context(place, std::move(tensor).error());
    const bool is_new = std::ranges::find(tensors, tensor->name, &V1Tensor::name) == tensors.end();
    if (!is_new) return corrupt(place + ": duplicate");
    tensors.push_back(std::move(tensor).value());
  }
  return tensors;
}

Result<void> read_values(const Tensors* in, const format::Decompressor& decompressor,
                         std::vector<V1Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    V1Tensor& tensor = tensors[i];
    tensor.data.resize(*element_count(tensor.shape) * dtype_bytes(tensor.dtype));
    if (tensor.data.empty()) continue;
    const std::string place = "tensor " + printable_name(tensor.name);
    auto done = decompressor.decompress(data_of(*in->Get(static_cast<flatbuffers::uoffset_t>(i))),
                                        tensor.data);
    if (!done) return in_context(place, std::move(done).error());
    const auto is_bool = [](std::byte byte) { return byte <= std::byte{1}; };
    if (tensor.dtype == V1Dtype::kBool && !std::ranges::all_of(tensor.data, is_bool)) {
      return corrupt(place + ": a byte that is neither 0 nor 1");
    }
  }
  return {};
}

// --- layers and facts

// Layers may share a text, too.
Result<std::string> read_json(const flatbuffers::String* text, std::string_view what,
                              Budget& budget) {
  if (text == nullptr) return std::string();
  TQC_TRY(check_count(text->size(), kMaxMetaBytes, std::string("bytes of ").append(what)));
  TQC_TRY(spend(budget.text_bytes, text->size(), "bytes, beyond those of all texts"));
  return text->str();
}

Result<V1Entry> read_entry(const fb::Entry& in, Budget& budget) {
  V1Entry entry;
  TQC_TRY(check_count(in.class_path()->size(), kMaxClassPathBytes, "bytes of class_path"));
  entry.class_path = in.class_path()->str();
  TQC_TRY_ASSIGN(entry.meta_state, read_json(in.meta_state(), "meta_state", budget));
  TQC_TRY_ASSIGN(entry.extra_meta, read_json(in.extra_meta(), "extra_meta", budget));
  TQC_TRY_ASSIGN(entry.state, read_tensors(in.state(), budget));
  auto extra = read_tensors(in.extra_state(), budget);
  if (!extra) return in_context("extra_state", std::move(extra).error());
  entry.extra_state = std::move(extra).value();
  return entry;
}

Result<void> read_entry_values(const fb::Entry& in, const format::Decompressor& decompressor,
                               V1Entry& entry) {
  TQC_TRY(read_values(in.state(), decompressor, entry.state));
  auto done = read_values(in.extra_state(), decompressor, entry.extra_state);
  if (!done) return in_context("extra_state", std::move(done).error());
  return {};
}

std::string layer_name(std::size_t i) { return "layer " + std::to_string(i); }

Result<std::vector<V1Entry>> read_entries(const fb::PromptCache& root, Budget& budget) {
  const auto& in = *root.entries();
  TQC_TRY(check_count(in.size(), cache::kMaxLayers, "layers"));
  std::vector<V1Entry> entries;
  for (const fb::Entry* each : in) {
    auto entry = read_entry(*each, budget);
    if (!entry) return in_context(layer_name(entries.size()), std::move(entry).error());
    entries.push_back(std::move(entry).value());
  }
  const format::Decompressor decompressor;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto done = read_entry_values(*in.Get(static_cast<flatbuffers::uoffset_t>(i)), decompressor,
                                  entries[i]);
    if (!done) return in_context(layer_name(i), std::move(done).error());
  }
  return entries;
}

Result<std::vector<std::pair<std::string, std::string>>> read_facts(const fb::PromptCache& root) {
  std::vector<std::pair<std::string, std::string>> facts;
  if (root.metadata() == nullptr) return facts;
  TQC_TRY(check_count(root.metadata()->size(), kMaxFacts, "facts"));
  std::uint64_t value_bytes = kMaxFactBytes;
  for (const fb::Fact* fact : *root.metadata()) {
    TQC_TRY(check_count(fact->key()->size(), kMaxNameBytes, "bytes of a fact's key"));
    TQC_TRY(spend(value_bytes, fact->value()->size(), "bytes, beyond those of all facts"));
    std::string key = fact->key()->str();
    const auto is_key = [&](const auto& other) { return other.first == key; };
    if (std::ranges::any_of(facts, is_key)) {
      return corrupt("fact " + printable_name(key) + ": duplicate");
    }
    facts.emplace_back(std::move(key), fact->value()->str());
  }
  return facts;
}

}  // namespace

bool looks_like_v1(const ByteSource& source) {
  if (source.size() < kIdentifierAt + kIdentifier.size()) return false;
  const Result<bool> has = has_identifier(source);
  return has.ok() && *has;
}

Result<V1File> read_v1(const ByteSource& source, const MemoryBudget& memory) {
  TQC_TRY_ASSIGN(const AlignedBytes bytes, read_whole(source));
  TQC_TRY_ASSIGN(const fb::PromptCache* root, verified_root(bytes));
  V1File file;
  file.file_bytes = bytes.size() + kDigestBytes;
  TQC_TRY_ASSIGN(file.metadata, read_facts(*root));
  Budget budget{.stored_bytes = bytes.size(),
                .raw_bytes = memory.limit(bytes.size(), kSmallFileBytes)};
  TQC_TRY_ASSIGN(file.entries, read_entries(*root, budget));
  return file;
}

}  // namespace tqcache::migrations
