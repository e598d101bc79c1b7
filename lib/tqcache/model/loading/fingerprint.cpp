#include "tqcache/model/loading/fingerprint.h"

#include <cstdint>

#include "tqcache/base/bytes.h"

namespace tqcache::model {
namespace {

constexpr std::size_t kPieceBytes = 4096;
constexpr std::size_t kPieces = 16;

void hash_sample(ByteView bytes, Sha256Hasher& hasher) {
  if (bytes.size() <= kPieces * kPieceBytes) return hasher.update(bytes);
  // No file comes near the 2^60 bytes where the product below would wrap around.
  const std::size_t last = bytes.size() - kPieceBytes;
  for (std::size_t i = 0; i < kPieces; ++i) {
    hasher.update(bytes.subspan(last * i / (kPieces - 1), kPieceBytes));
  }
}

Bytes describe(const std::string& name, const tensors::TensorView& tensor) {
  ByteWriter out;
  out.append_sized(as_bytes(name));
  out.append_sized(as_bytes(tensor.type_name));
  out.write<std::uint64_t>(tensor.shape.size());
  for (const std::uint64_t size : tensor.shape) out.write<std::uint64_t>(size);
  out.write<std::uint64_t>(tensor.bytes.size());
  return std::move(out).take();
}

}  // namespace

Sha256 weights_fingerprint(const std::map<std::string, tensors::TensorView>& tensors) {
  ByteWriter start;
  start.append_sized(as_bytes("tqcache weights 1"));
  start.write<std::uint64_t>(tensors.size());
  Sha256Hasher hasher;
  hasher.update(start.bytes());
  for (const auto& [name, tensor] : tensors) {
    hasher.update(describe(name, tensor));
    hash_sample(tensor.bytes, hasher);
  }
  return hasher.finish();
}

}  // namespace tqcache::model
