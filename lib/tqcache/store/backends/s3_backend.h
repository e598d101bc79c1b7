#pragma once
// store/backends/s3_backend.h: a store in a bucket of an S3 service.
//
// Only for the sources of store. Spec: docs/reference/store.md, 5.

#include <memory>

#include "tqcache/store/backend.h"
#include "tqcache/store/backends/store_url.h"

namespace tqcache::store {

// Connects to nothing yet. The environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY
// say who asks; AWS_REGION where, if the URL does not.
// Errors: kInvalidArgument, also when there are no such variables.
Result<std::unique_ptr<Backend>> open_s3_backend(StoreUrl url, const BackendOptions& options);

}  // namespace tqcache::store
