#include "tqcache/store/blobs/outbox.h"

#include <chrono>
#include <system_error>
#include <utility>

namespace tqcache::store {

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
