
#include "tqcache/store/blobs/blob_io.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "tqcache/base/aligned.h"
#include "tqcache/base/shape.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/base/threads.h"

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

Result<void> read_blobs(Backend& backend, std::span<const std::string> keys, const BlobSink& sink) {
  return backend.get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
    if (!value) return sink(i, std::nullopt);
    return sink(i, ReadBlob{*value, decode_blob(keys[i], SharedBytes(nullptr, *value))});
  });
}

namespace {

// Of what is bad no more than this is held until it can be removed; the rest stays.
constexpr std::size_t kMaxBadBytes = std::size_t{64} << 20;

// As many as a backend has in memory at once. Each thread brings so many and looks at them, while
// the others do the same.
constexpr std::size_t kKeysAtOnce = 8;

// What only a later version can read is no damage.
bool is_damage(ErrorCode code) {
  return code == ErrorCode::kCorrupt || code == ErrorCode::kTruncated ||
         code == ErrorCode::kMismatch;
}

}  // namespace

struct BlobReader::Reading {
  const ContentSink& take;
  std::vector<Found> found;
  std::mutex mutex = {};  // of all that follows, and of `take`
  std::vector<Bad> bad = {};
  std::size_t bad_bytes = 0;

  void add_bad(const std::string& key, const SharedBytes& value, Error error) {
    bad_bytes += value.size();
    bad.push_back({key, bad_bytes <= kMaxBadBytes ? value : SharedBytes(), std::move(error)});
  }
};

Result<std::vector<Found>> BlobReader::read(std::span<const std::string> keys,
                                            const ContentSink& take) {
  Reading reading{take, std::vector<Found>(keys.size(), Found::kMissing)};
  const bool is_alone = thread_count(n_threads_) == 1;
  const std::size_t step = is_alone ? std::max(keys.size(), kKeysAtOnce) : kKeysAtOnce;
  const std::size_t n_steps = (keys.size() + step - 1) / step;
  TQC_TRY(parallel_try(n_steps, n_threads_, [&](std::size_t i) {
    const std::size_t first = i * step;
    return read_some(keys.subspan(first, std::min(step, keys.size() - first)), first, reading);
  }));
  TQC_TRY(drop(reading.bad));
  return std::move(reading.found);
}

Result<void> BlobReader::read_some(std::span<const std::string> keys, std::size_t first,
                                   Reading& reading) {
  return backend_->get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
    if (!value) return {};
    const SharedBytes bytes = memory_.copy(*value);
    auto content = decode_blob(keys[i], bytes);
    const std::lock_guard lock(reading.mutex);
    bytes_ += bytes.size();
    Result<void> judged;
    if (content) {
      judged = reading.take(first + i, *std::move(content), bytes.size());
    } else {
      judged = std::move(content).error();
    }
    reading.found[first + i] = judged ? Found::kGood : Found::kBad;
    if (judged) return {};
    if (judged.error().code == ErrorCode::kInterrupted) return judged;
    reading.add_bad(keys[i], bytes, std::move(judged).error());
    return {};
  });
}

Result<void> BlobReader::drop(const std::vector<Bad>& all) {
  for (const Bad& bad : all) {
    tell(bad.key + ": " + bad.error.message);
    if (!is_damage(bad.error.code) || bad.value.size() == 0) continue;
    TQC_TRY(backend_->remove_if_same(bad.key, bad.value.view()));
  }
  return {};
}

void Outbox::push(std::vector<Waiting>& to, Value value, bool is_first) {
  bytes_ += value.bytes.size();
  waiting_bytes_ += value.bytes.size();
  to.push_back({std::move(value), is_first});
}

Result<void> Outbox::add_block(std::vector<Value> parts) {
  for (std::size_t i = 1; i < parts.size(); ++i) push(ready_, std::move(parts[i]), false);
  push(parts.size() == 1 ? ready_ : after_, std::move(parts[0]), true);
  return put_if_many();
}

Result<void> Outbox::add(Value value) {
  push(ready_, std::move(value), false);
  return put_if_many();
}

bool Outbox::is_idle() const {
  return !put_.valid() || put_.wait_for(std::chrono::seconds(0)) != std::future_status::timeout;
}

// An engine takes many at once more quickly, and nothing while it waits.
Result<void> Outbox::put_if_many() {
  if (waiting_bytes_ < kOutboxBytes / 2) return {};
  return is_idle() || waiting_bytes_ >= kOutboxBytes ? begin_put() : Result<void>();
}

Result<void> Outbox::flush() {
  while (!ready_.empty() || !after_.empty()) TQC_TRY(begin_put());
  return end_put();
}

// What comes after `ready_` is ready as soon as that is on its way: nothing else is put before it
// has arrived.
Result<void> Outbox::begin_put() {
  TQC_TRY(end_put());
  going_ = std::exchange(ready_, std::exchange(after_, {}));
  waiting_bytes_ = 0;
  for (const Waiting& waiting : ready_) waiting_bytes_ += waiting.value.bytes.size();
  std::vector<Blob> blobs;
  for (const Waiting& waiting : going_)
    blobs.push_back({waiting.value.key, waiting.value.bytes.view()});
  const auto put = [backend = backend_, blobs = std::move(blobs)] { return backend->put(blobs); };
  try {
    put_ = std::async(std::launch::async, put);
  } catch (const std::system_error&) {  // no more threads: whoever waits for it does it
    put_ = std::async(std::launch::deferred, put);
  }
  return {};
}

Result<void> Outbox::end_put() {
  if (!put_.valid()) return {};
  TQC_TRY_ASSIGN(const std::vector<PutOutcome> outcomes, put_.get());
  for (std::size_t i = 0; i < going_.size(); ++i) {
    if (outcomes[i] == PutOutcome::kExisted) continue;
    new_bytes_ += going_[i].value.bytes.size();
    if (going_[i].is_first) ++new_blocks_;
  }
  going_.clear();
  return {};
}

}  // namespace tqcache::store
