#include "tqcache/store/blobs/slots.h"

namespace tqcache::store {

std::vector<std::string> parameters_slots(const Sha256& first) {
  std::vector<std::string> keys;
  for (int slot = 0; slot < kSlots; ++slot) keys.push_back(parameters_key(first, slot));
  return keys;
}

std::vector<std::string> state_slots(const Sha256& hash) {
  std::vector<std::string> keys;
  for (int slot = 0; slot < kSlots; ++slot) keys.push_back(state_key(hash, slot));
  return keys;
}

}  // namespace tqcache::store
