#pragma once
// store/backends/dir_backend.h: a store that is a folder of files.
//
// A blob is a file that is written under another name, flushed and renamed, and its folder is
// flushed, before put() says so. Several processes of one machine may use it at once.
//
// Only for the sources of store. Spec: docs/reference/store.md, 3.

#include <memory>

#include "tqcache/store/backend.h"
#include "tqcache/store/backends/store_url.h"

namespace tqcache::store {

// Errors: as DirLayout::open.
Result<std::unique_ptr<Backend>> open_dir_backend(StoreUrl url, const BackendOptions& options);

}  // namespace tqcache::store
