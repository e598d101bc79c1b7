
#include "tqcache/store/blobs/blob_io.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/posix.h"
#include "tqcache/base/system.h"
#include "tqcache/base/threads.h"
#include "tqcache/bytes.h"

namespace tqcache::store {

namespace {

constexpr std::size_t kRegionBytes = std::size_t{16} << 20;
// Smaller values are allocated one by one.
constexpr std::size_t kLargeBytes = std::size_t{64} << 10;

std::shared_ptr<std::byte> allocate(std::size_t size) {
  constexpr std::align_val_t kLine{kAlignment};
  auto* memory = static_cast<std::byte*>(::operator new(std::max<std::size_t>(size, 1), kLine));
  return {memory, [](std::byte* p) { ::operator delete(p, kLine); }};
}

// Anonymous memory: pages are allocated on first access.
std::shared_ptr<std::byte> map_memory(std::size_t size) {
  void* memory =
      posix::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  use_huge_pages(memory, size);
  return {static_cast<std::byte*>(memory), [size](std::byte* p) { posix::munmap(p, size); }};
}

}  // namespace

struct BlobMemory::Region {
  std::shared_ptr<std::byte> memory = map_memory(kRegionBytes);
  std::atomic<std::size_t> n_values = 0;

  // What is written next comes after all that was done with the old values.
  bool is_free() const { return n_values.load(std::memory_order_acquire) == 0; }
};

std::shared_ptr<BlobMemory::Region> BlobMemory::find_free(State& state) {
  const auto is_free = [](const auto& each) { return each->is_free(); };
  const auto found = std::ranges::find_if(state.regions, is_free);
  if (found != state.regions.end()) return *found;
  return state.regions.emplace_back(std::make_shared<Region>());
}

BlobMemory::Room BlobMemory::take(std::size_t size) {
  if (size < kLargeBytes || size > kRegionBytes) {
    std::shared_ptr<std::byte> owner = size < kLargeBytes ? allocate(size) : map_memory(size);
    return {owner, {owner.get(), size}};
  }
  const std::lock_guard lock(state_->mutex);
  if (state_->filling != nullptr && state_->filling->is_free()) state_->used = 0;
  if (state_->filling == nullptr || size > kRegionBytes - state_->used) {
    state_->filling = find_free(*state_);
    state_->used = 0;
  }
  const std::shared_ptr<Region>& region = state_->filling;
  std::byte* const begin = region->memory.get() + state_->used;
  state_->used += align_up(size, kAlignment).value();
  region->n_values.fetch_add(1, std::memory_order_relaxed);
  const auto release = [region](std::byte*) {
    region->n_values.fetch_sub(1, std::memory_order_release);
  };
  return {std::shared_ptr<std::byte>(begin, release), {begin, size}};
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

// Limit for bad values kept in memory until they are removed. Further ones are not removed.
constexpr std::size_t kMaxBadBytes = std::size_t{64} << 20;

// The number of values that a backend has in memory at once. Each thread reads and decodes as many.
constexpr std::size_t kKeysAtOnce = 8;

// A blob of a later version is not damaged.
bool is_damage(ErrorCode code) {
  return code == ErrorCode::kCorrupt || code == ErrorCode::kTruncated ||
         code == ErrorCode::kMismatch;
}

}  // namespace

struct BlobReader::Reading {
  const ContentSink& take;
  const ContentCheck& check;
  std::vector<Found> found;
  std::mutex mutex = {};  // guards all members below, and `take`
  std::vector<Bad> bad = {};
  std::size_t bad_bytes = 0;

  void add_bad(const std::string& key, const SharedBytes& value, Error error) {
    bad_bytes += value.size();
    const bool is_kept = bad_bytes <= kMaxBadBytes;
    bad.push_back({key, is_kept ? std::optional(value) : std::nullopt, std::move(error)});
  }
};

Result<std::vector<Found>> BlobReader::read(std::span<const std::string> keys,
                                            const ContentSink& take, const ContentCheck& check) {
  Reading reading{take, check, std::vector<Found>(keys.size(), Found::kMissing)};
  const bool is_alone = thread_count(n_threads_) == 1;
  const std::size_t step = is_alone ? std::max(keys.size(), kKeysAtOnce) : kKeysAtOnce;
  const std::size_t n_steps = (keys.size() + step - 1) / step;
  TQC_TRY(parallel_try(n_steps, n_threads_, [&](std::size_t i) {
    const std::size_t first = i * step;
    return read_some(keys.subspan(first, std::min(step, keys.size() - first)), first, reading);
  }));
  TQC_TRY(settle(reading.bad));
  return std::move(reading.found);
}

Result<void> BlobReader::read_some(std::span<const std::string> keys, std::size_t first,
                                   Reading& reading) {
  return backend_->get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
    if (!value) return {};
    const SharedBytes bytes = memory_.copy(*value);
    auto content = decode_blob(keys[i], bytes);
    if (content && reading.check) {
      if (auto checked = reading.check(first + i, *content); !checked) {
        content = std::move(checked).error();
      }
    }
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

Result<void> BlobReader::settle(const std::vector<Bad>& all) {
  bool removes = bad_blobs_ == BadBlobs::kRemove;
  for (const Bad& bad : all) {
    warn(bad.key + ": " + bad.error.message);
    if (!removes || !is_damage(bad.error.code) || !bad.value) continue;
    const Result<bool> removed = backend_->remove_if_same(bad.key, bad.value->view());
    if (removed) continue;
    if (removed.error().code == ErrorCode::kInterrupted) return removed.error();
    // The next removal would probably fail in the same way, perhaps after as long a wait.
    removes = false;
    warn(bad.key + ": cannot be removed: " + removed.error().message);
  }
  return {};
}

Result<std::optional<PromptRecord>> read_record(BlobReader& reader, const std::string& key,
                                                std::string_view name) {
  std::optional<PromptRecord> found;
  TQC_TRY(reader.read(std::span(&key, 1),
                      [&](std::size_t, Content content, std::uint64_t) -> Result<void> {
                        TQC_TRY_ASSIGN(PromptRecord record,
                                       BlobReader::take_kind<PromptRecord>(std::move(content)));
                        if (record.name != name) return mismatch("a record of another name");
                        found = std::move(record);
                        return {};
                      }));
  return found;
}

void WriteBatcher::push(std::vector<Waiting>& to, Value value, bool is_first) {
  bytes_ += value.bytes.size();
  waiting_bytes_ += value.bytes.size();
  to.push_back({std::move(value), is_first});
}

Result<void> WriteBatcher::add_block(std::vector<Value> parts) {
  for (std::size_t i = 1; i < parts.size(); ++i) push(ready_, std::move(parts[i]), false);
  push(parts.size() == 1 ? ready_ : after_, std::move(parts[0]), true);
  return put_if_many();
}

Result<void> WriteBatcher::add(Value value) {
  push(ready_, std::move(value), false);
  return put_if_many();
}

bool WriteBatcher::is_idle() const {
  return !put_.valid() || put_.wait_for(std::chrono::seconds(0)) != std::future_status::timeout;
}

// Large batches are faster, but the backend should not be idle.
Result<void> WriteBatcher::put_if_many() {
  if (waiting_bytes_ < kBatchBytes / 2) return {};
  return is_idle() || waiting_bytes_ >= kBatchBytes ? start_put() : Result<void>();
}

Result<void> WriteBatcher::flush() {
  while (!ready_.empty() || !after_.empty()) TQC_TRY(start_put());
  return end_put();
}

// `after_` becomes ready when the put of `ready_` starts. The next put waits for the end of this
// one.
Result<void> WriteBatcher::start_put() {
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
  } catch (const std::system_error&) {  // no thread can be started: end_put() does the work
    put_ = std::async(std::launch::deferred, put);
  }
  return {};
}

Result<void> WriteBatcher::end_put() {
  if (!put_.valid()) return {};
  TQC_TRY_ASSIGN(const std::vector<PutOutcome> outcomes, put_.get());
  for (std::size_t i = 0; i < going_.size(); ++i) {
    PutOutcome outcome = outcomes[i];
    if (outcome == PutOutcome::kExisted) {
      TQC_TRY_ASSIGN(outcome, settle_existing(going_[i].value));
    }
    if (outcome == PutOutcome::kExisted) continue;
    new_bytes_ += going_[i].value.bytes.size();
    if (going_[i].is_first) ++new_blocks_;
  }
  going_.clear();
  return {};
}

// What another process put under the key counts only after it was compared.
Result<PutOutcome> WriteBatcher::settle_existing(const Value& value) {
  TQC_TRY_ASSIGN(const std::optional<Bytes> existing, backend_->get(value.key));
  if (existing && std::ranges::equal(*existing, value.bytes.view())) return PutOutcome::kExisted;
  if (existing && accept_other_ && accept_other_(value.key, *existing)) {
    has_met_others_ = true;
    return PutOutcome::kExisted;
  }
  if (existing) TQC_TRY(backend_->remove_if_same(value.key, *existing));
  TQC_TRY_ASSIGN(const PutOutcome outcome, backend_->put(value.key, value.bytes.view()));
  if (outcome == PutOutcome::kExisted) has_met_others_ = true;  // another one, put just now
  return outcome;
}

}  // namespace tqcache::store
