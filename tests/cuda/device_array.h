#pragma once
// tests/cuda/device_array.h: memory of the GPU that ends with its scope, and checks of CUDA calls.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <span>
#include <vector>

namespace tqcache::cuda {

// Ends the program when a call fails: a test cannot go on.
inline void expect_cuda(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

template <class T>
class DeviceArray {
 public:
  // Filled with bytes 0xcd, so that a value that nothing writes is seen.
  explicit DeviceArray(std::size_t n) : n_(n) {
    void* data = nullptr;
    expect_cuda(cudaMalloc(&data, (n == 0 ? 1 : n) * sizeof(T)));
    data_ = static_cast<T*>(data);
    expect_cuda(cudaMemset(data_, 0xcd, (n == 0 ? 1 : n) * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    expect_cuda(cudaMemcpy(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* get() const { return data_; }
  std::size_t size() const { return n_; }
  std::vector<T> read() const {
    std::vector<T> values(n_);
    expect_cuda(cudaMemcpy(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t n_ = 0;
};

}  // namespace tqcache::cuda
