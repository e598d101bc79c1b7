#include "tqcache/store/blobs/blob_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tqcache/base/aligned.h"
#include "tqcache/base/shape.h"

namespace tqcache::store {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 20;
// Smaller values are not worth a large page.
constexpr std::size_t kLargeBytes = std::size_t{64} << 10;

std::shared_ptr<std::byte> allocate(std::size_t size) {
  constexpr std::align_val_t kLine{kAlignment};
  auto* memory = static_cast<std::byte*>(::operator new(std::max<std::size_t>(size, 1), kLine));
  return {memory, [](std::byte* p) { ::operator delete(p, kLine); }};
}

// Nothing of it is there before it is touched.
std::shared_ptr<std::byte> map_piece(std::size_t size) {
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  ::madvise(memory, size, MADV_HUGEPAGE);  // only a wish
  return {static_cast<std::byte*>(memory), [size](std::byte* p) { ::munmap(p, size); }};
}

}  // namespace

BlobMemory::Room BlobMemory::take(std::size_t size) {
  if (size < kLargeBytes || size > kPieceBytes) {
    std::shared_ptr<std::byte> owner = allocate(size);
    return {owner, {owner.get(), size}};
  }
  const std::lock_guard lock(state_->mutex);
  if (state_->piece == nullptr || size > kPieceBytes - state_->used) {
    state_->piece = map_piece(kPieceBytes);
    state_->used = 0;
  }
  std::byte* const begin = state_->piece.get() + state_->used;
  state_->used += align_up(size, kAlignment).value();
  return {state_->piece, {begin, size}};
}

SharedBytes BlobMemory::copy(ByteView value) {
  const Room room = take(value.size());
  if (!value.empty()) std::memcpy(room.bytes.data(), value.data(), value.size());
  return room.shared();
}

}  // namespace tqcache::store
