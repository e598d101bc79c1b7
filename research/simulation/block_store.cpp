#include "block_store.h"

namespace tqcache::simulation {

std::size_t BlockStore::leading(std::span<const Link> chain) const {
  std::size_t n = 0;
  while (n < chain.size() && has(chain[n].key)) ++n;
  return n;
}

Added BlockStore::use(std::span<const Link> chain) {
  Added added;
  path_.clear();
  std::uint32_t parent = kNone;
  for (const Link& link : chain) {
    const std::uint32_t at = find_or_add(link, parent, added);
    if (at == kNone && !link.is_state) break;
    if (at == kNone) continue;
    path_.push_back(at);
    if (!link.is_state) parent = at;
  }
  for (std::size_t i = path_.size(); i-- > 0;) {
    if (nodes_[path_[i]].link.kept) continue;
    take_out(path_[i]);
    put_first(path_[i]);
  }
  while (bytes_ > capacity_ && oldest_ != kNone) evict_last();
  return added;
}

std::uint32_t BlockStore::find_or_add(const Link& link, std::uint32_t parent, Added& added) {
  const auto found = where_.find(link.key);
  if (found != where_.end()) return found->second;
  if (!fits(link, parent)) {
    totals_.bytes_refused += link.bytes;
    return kNone;
  }
  added.bytes += link.bytes;
  added.blobs += link.blobs;
  return add(link, parent);
}

bool BlockStore::fits(const Link& link, std::uint32_t parent) const {
  if (link.is_state && (parent == kNone || nodes_[parent].states == kMaxStates)) return false;
  return link.bytes <= capacity_ - kept_bytes_;
}

std::uint32_t BlockStore::add(const Link& link, std::uint32_t parent) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(nodes_.size()));
    nodes_.emplace_back();
  }
  const std::uint32_t at = free_.back();
  free_.pop_back();
  nodes_[at] = {link, parent};
  if (link.is_state) ++nodes_[parent].states;
  if (link.kept) kept_bytes_ += link.bytes;
  if (!link.kept) put_first(at);
  bytes_ += link.bytes;
  totals_.bytes_in += link.bytes;
  where_.emplace(link.key, at);
  return at;
}

void BlockStore::take_out(std::uint32_t at) {
  const Node& node = nodes_[at];
  (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
  (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
}

void BlockStore::put_first(std::uint32_t at) {
  nodes_[at].newer = kNone;
  nodes_[at].older = newest_;
  (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = at;
  newest_ = at;
}

void BlockStore::evict_last() {
  const std::uint32_t at = oldest_;
  const Link& link = nodes_[at].link;
  take_out(at);
  if (link.is_state) --nodes_[nodes_[at].parent].states;
  bytes_ -= link.bytes;
  totals_.bytes_evicted += link.bytes;
  where_.erase(link.key);
  free_.push_back(at);
}

}  // namespace tqcache::simulation
