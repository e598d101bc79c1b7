#include "tqcache/store/values/checked_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "tqcache/base/threads.h"
#include "tqcache/format/checksum_bytes.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/format/sections/plane_section.h"
#include "tqcache/hash.h"
#include "tqcache/store/backends/encrypted_backend.h"
#include "tqcache/store/blobs/blob_format.h"

namespace tqcache::store {
namespace {

// The magic of a blob, but with 'C' for checked.
constexpr std::array<std::byte, 8> kValueMagic = {std::byte{'T'},  std::byte{'Q'},  std::byte{'K'},
                                                  std::byte{'C'},  std::byte{'\r'}, std::byte{'\n'},
                                                  std::byte{0x1a}, std::byte{'\n'}};
constexpr std::uint32_t kValueVersion = 1;
constexpr std::size_t kValueHeaderBytes = 64;
constexpr std::size_t kValueAlignment = 64;

constexpr std::size_t align_value(std::size_t n) {
  return (n + kValueAlignment - 1) / kValueAlignment * kValueAlignment;
}

std::size_t number_bytes(ValueCoding coding) {
  return coding == ValueCoding::kPlanes2 ? 2 : coding == ValueCoding::kPlanes4 ? 4 : 1;
}

std::size_t chunk_count(std::uint64_t data_bytes) {
  return static_cast<std::size_t>((data_bytes + kValueChunkBytes - 1) / kValueChunkBytes);
}

std::size_t chunk_bytes(std::uint64_t data_bytes, std::size_t chunk) {
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(kValueChunkBytes, data_bytes - chunk * kValueChunkBytes));
}

template <class Part>
std::size_t total_bytes(std::span<const Part> parts) {
  std::size_t total = 0;
  for (const Part& part : parts) total += part.size();
  return total;
}

// Calls body(part of the parts, offset in the range) for each part of [begin, begin + size).
template <class Part, class Body>
void for_range(std::span<const Part> parts, std::size_t begin, std::size_t size, const Body& body) {
  std::size_t at = 0;
  for (const Part& part : parts) {
    const std::size_t first = std::max(at, begin);
    const std::size_t end = std::min(at + part.size(), begin + size);
    if (first < end) body(part.subspan(first - at, end - first), first - begin);
    at += part.size();
  }
}

// The planes of each chunk; empty where they would not be smaller.
std::vector<Bytes> make_chunks(std::span<const ByteView> data, std::size_t n_bytes,
                               std::size_t width, unsigned n_threads) {
  const format::Compressor compressor = format::Compressor::for_planes();
  std::vector<Bytes> chunks(chunk_count(n_bytes));
  parallel_for(chunks.size(), n_threads, [&](std::size_t i) {
    Bytes raw(chunk_bytes(n_bytes, i));
    for_range(data, i * kValueChunkBytes, raw.size(), [&](ByteView part, std::size_t at) {
      std::memcpy(raw.data() + at, part.data(), part.size());
    });
    if (!format::compress_planes(compressor, raw, width, chunks[i])) chunks[i].clear();
  });
  return chunks;
}

void append_data(std::span<const ByteView> data, std::size_t begin, std::size_t size,
                 ByteWriter& out) {
  for_range(data, begin, size, [&](ByteView part, std::size_t) { out.append(part); });
}

}  // namespace

Result<Bytes> encode_value(std::string_view key, ByteView meta, std::span<const ByteView> data,
                           ValueCoding coding, unsigned n_threads) {
  if (key.size() > kMaxValueKeyBytes) {
    return too_large(
        fmt::format("a key of {} bytes, at most {} are allowed", key.size(), kMaxValueKeyBytes));
  }
  if (meta.size() > kMaxValueMetaBytes) {
    return too_large(fmt::format("metadata of {} bytes, at most {} are allowed", meta.size(),
                                 kMaxValueMetaBytes));
  }
  const std::size_t n_bytes = total_bytes(data);
  const std::size_t width = number_bytes(coding);
  if (n_bytes % width != 0) {
    return invalid(fmt::format("{} bytes, which are not numbers of {} bytes", n_bytes, width));
  }
  std::vector<Bytes> chunks;
  if (coding != ValueCoding::kRaw) chunks = make_chunks(data, n_bytes, width, n_threads);
  const bool is_smaller =
      std::ranges::any_of(chunks, [](const Bytes& chunk) { return !chunk.empty(); });
  if (!is_smaller) coding = ValueCoding::kRaw;

  ByteWriter body;
  body.append(as_bytes(key));
  body.append(meta);
  const std::size_t used = kValueHeaderBytes + body.bytes().size();
  body.append(Bytes(align_value(used) - used));
  if (coding == ValueCoding::kRaw) {
    append_data(data, 0, n_bytes, body);
  } else {
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      body.write<std::uint64_t>(chunks[i].empty() ? chunk_bytes(n_bytes, i) : chunks[i].size());
    }
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].empty()) {
        append_data(data, i * kValueChunkBytes, chunk_bytes(n_bytes, i), body);
      } else {
        body.append(chunks[i]);
      }
    }
  }

  ByteWriter out;
  out.append(kValueMagic);
  out.write(kValueVersion);
  out.write(static_cast<std::uint32_t>(coding));
  out.write<std::uint64_t>(kValueHeaderBytes + body.bytes().size());
  out.write(static_cast<std::uint32_t>(key.size()));
  out.write(static_cast<std::uint32_t>(meta.size()));
  out.write<std::uint64_t>(n_bytes);
  out.append(format::to_bytes(xxh3_128(body.bytes())));
  out.write(xxh3_64(out.bytes()));
  out.append(body.bytes());
  return std::move(out).take();
}

Result<CheckedValue> open_value(ByteView envelope, const MemoryBudget& memory) {
  if (envelope.size() < kValueHeaderBytes) {
    return Error{ErrorCode::kTruncated, fmt::format("a value of {} bytes", envelope.size())};
  }
  const bool is_blob = std::ranges::equal(envelope.first(kBlobMagic.size()), kBlobMagic);
  if (is_blob && number_at<std::uint32_t>(envelope, 8) == kSealedBlobVersion) {
    return sealed_value_error(envelope);
  }
  if (!std::ranges::equal(envelope.first(kValueMagic.size()), kValueMagic)) {
    return corrupt("not a checked value");
  }
  if (xxh3_64(envelope.first(56)) != number_at<std::uint64_t>(envelope, 56)) {
    return corrupt("checksum of the header mismatch");
  }
  if (number_at<std::uint32_t>(envelope, 8) != kValueVersion) {
    return unsupported(
        fmt::format("a checked value of version {}", number_at<std::uint32_t>(envelope, 8)));
  }
  if (number_at<std::uint64_t>(envelope, 16) != envelope.size()) {
    return Error{ErrorCode::kTruncated, fmt::format("{} bytes of {}", envelope.size(),
                                                    number_at<std::uint64_t>(envelope, 16))};
  }
  const ByteView body = envelope.subspan(kValueHeaderBytes);
  const auto checksum = envelope.subspan<40, 16>();
  if (format::checksum_from_bytes(checksum) != xxh3_128(body)) return corrupt("checksum mismatch");

  // From here on only a forger can have chosen the fields, or another writer made a mistake.
  const std::size_t key_bytes = number_at<std::uint32_t>(envelope, 24);
  const std::size_t meta_bytes = number_at<std::uint32_t>(envelope, 28);
  const std::uint32_t coding = number_at<std::uint32_t>(envelope, 12);
  const std::size_t data_at = align_value(kValueHeaderBytes + key_bytes + meta_bytes);
  if (key_bytes > kMaxValueKeyBytes || meta_bytes > kMaxValueMetaBytes ||
      data_at > envelope.size()) {
    return corrupt("key or metadata beyond the end of the value");
  }
  if (coding > static_cast<std::uint32_t>(ValueCoding::kPlanes4)) {
    return unsupported(fmt::format("coding {}", coding));
  }
  CheckedValue value;
  value.key = {reinterpret_cast<const char*>(body.data()), key_bytes};
  value.meta = body.subspan(key_bytes, meta_bytes);
  value.coding = static_cast<ValueCoding>(coding);
  value.data_bytes = number_at<std::uint64_t>(envelope, 32);
  value.stored = envelope.subspan(data_at);
  if (value.coding == ValueCoding::kRaw) {
    if (value.data_bytes != value.stored.size()) return corrupt("data of another length");
    return value;
  }
  // Every chunk of planes takes a size of 8 bytes, so hostile lengths cannot exceed the value's own
  // by more than this factor.
  if (value.data_bytes / kValueChunkBytes > value.stored.size() / 8 ||
      value.data_bytes % number_bytes(value.coding) != 0) {
    return corrupt("data of an impossible length");
  }
  TQC_TRY(memory.check(value.data_bytes, "the value", envelope.size(), kSmallSectionBytes));
  return value;
}

Result<void> read_value(const CheckedValue& value, std::span<const std::span<std::byte>> out,
                        unsigned n_threads) {
  if (value.coding == ValueCoding::kRaw) {
    for_range(out, 0, value.stored.size(), [&](std::span<std::byte> part, std::size_t at) {
      std::memcpy(part.data(), value.stored.data() + at, part.size());
    });
    return {};
  }
  const std::size_t width = number_bytes(value.coding);
  const std::size_t n_chunks = chunk_count(value.data_bytes);
  if (value.stored.size() / 8 < n_chunks) return corrupt("sizes of chunks beyond the end");
  std::vector<ByteView> chunks(n_chunks);
  std::uint64_t at = 8 * n_chunks;
  for (std::size_t i = 0; i < n_chunks; ++i) {
    const auto size = number_at<std::uint64_t>(value.stored, 8 * i);
    if (size > value.stored.size() - at) return corrupt(fmt::format("chunk {} beyond the end", i));
    chunks[i] = value.stored.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(size));
    at += size;
  }
  if (at != value.stored.size()) return corrupt("bytes after the last chunk");
  const format::Decompressor decompressor;
  return parallel_try(n_chunks, n_threads, [&](std::size_t i) -> Result<void> {
    const std::size_t raw_size = chunk_bytes(value.data_bytes, i);
    Bytes raw;
    ByteView decoded = chunks[i];
    if (chunks[i].size() != raw_size) {
      TQC_TRY(format::check_planes(chunks[i], raw_size, width));
      raw.resize(raw_size);
      TQC_TRY(format::decompress_planes(decompressor, chunks[i], width, raw));
      decoded = raw;
    }
    for_range(out, i * kValueChunkBytes, raw_size,
              [&](std::span<std::byte> part, std::size_t offset) {
                std::memcpy(part.data(), decoded.data() + offset, part.size());
              });
    return {};
  });
}

}  // namespace tqcache::store
