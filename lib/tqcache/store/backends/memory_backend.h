#pragma once
// store/backends/memory_backend.h: a store that lives as long as its object, for tests and simulations.
//
// Only for the sources of store.

#include <memory>

#include "tqcache/store/backend.h"

namespace tqcache::store {

std::unique_ptr<Backend> make_memory_backend(const BackendOptions& options);

}  // namespace tqcache::store
