#pragma once
// capi/capi_handles.h: handles of the C interface that free themselves, and calls that must
// succeed.

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tqcache/tqcache.h"

namespace tqcache::test {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* handle) const {
    Free(handle);
  }
};
using CacheHandle = std::unique_ptr<tqcache_cache, Freed<tqcache_close>>;
using WriterHandle = std::unique_ptr<tqcache_writer, Freed<tqcache_writer_free>>;
using BytesHandle = std::unique_ptr<tqcache_bytes, Freed<tqcache_bytes_free>>;
using StoreHandle = std::unique_ptr<tqcache_store, Freed<tqcache_store_free>>;
using ValuesHandle = std::unique_ptr<tqcache_values, Freed<tqcache_values_free>>;
using ErrorHandle = std::unique_ptr<tqcache_error, Freed<tqcache_error_free>>;

// Runs call(handle pointer..., error pointer) and returns the handle; a failure is one of the test.
template <class Handle, class Call>
Handle made(const Call& call) {
  typename Handle::pointer handle = nullptr;
  tqcache_error* error = nullptr;
  const int code = call(&handle, &error);
  EXPECT_EQ(code, TQCACHE_OK) << tqcache_error_message(error);
  tqcache_error_free(error);
  return Handle(handle);
}

// The code of a call that fails, and its message.
struct Failure {
  int code = 0;
  std::string message, file;
};
template <class Call>
Failure failure_of(const Call& call) {
  tqcache_error* error = nullptr;
  Failure failure;
  failure.code = call(&error);
  EXPECT_EQ(failure.code == TQCACHE_OK, error == nullptr);
  EXPECT_EQ(failure.code, tqcache_error_code(error));
  if (error == nullptr) return failure;
  failure.message = tqcache_error_message(error);
  failure.file = tqcache_error_file(error);
  tqcache_error_free(error);
  return failure;
}

inline std::string text_of(const tqcache_bytes* bytes) {
  return {static_cast<const char*>(tqcache_bytes_data(bytes)), tqcache_bytes_size(bytes)};
}

// A contiguous tensor of f32 in `values`.
inline tqcache_tensor tensor_of(std::vector<float>& values, std::int64_t n_heads,
                                std::int64_t n_tokens, std::int64_t head_dim) {
  tqcache_tensor tensor = TQCACHE_INIT(tqcache_tensor);
  values.resize(static_cast<std::size_t>(n_heads * n_tokens * head_dim));
  tensor.data = values.data();
  tensor.dtype = TQCACHE_F32;
  tensor.n_heads = n_heads;
  tensor.n_tokens = n_tokens;
  tensor.head_dim = head_dim;
  return tensor;
}

}  // namespace tqcache::test
