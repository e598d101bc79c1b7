#include "tqcache/store/outbox.h"

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

Result<void> Outbox::put_if_many() {
  while (waiting_bytes_ >= kOutboxBytes) TQC_TRY(put_ready());
  return {};
}

Result<void> Outbox::flush() {
  while (!ready_.empty() || !after_.empty()) TQC_TRY(put_ready());
  return {};
}

Result<void> Outbox::put_ready() {
  std::vector<Blob> blobs;
  for (const Waiting& waiting : ready_) blobs.push_back({waiting.value.key, waiting.value.bytes});
  TQC_TRY_ASSIGN(const std::vector<PutOutcome> outcomes, backend_->put(blobs));
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    const std::uint64_t size = ready_[i].value.bytes.size();
    waiting_bytes_ -= size;
    if (outcomes[i] == PutOutcome::kExisted) continue;
    new_bytes_ += size;
    if (ready_[i].is_first) ++new_blocks_;
  }
  ready_ = std::exchange(after_, {});
  return {};
}

}  // namespace tqcache::store
