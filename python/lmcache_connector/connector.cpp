// A native connector of LMCache over a store of tqcache: LMCache's own ConnectorBase above the C
// interface of tqcache (tqcache/tqcache.h). build.sh compiles it; docs/guide/plugins.md, "LMCache".
//
// LMCache gives keys (model, ranks, hash of the chunk) and bytes without a shape. `geometry` is any
// text that differs between layouts: it is part of the key, and is compared when a value is read.

#include <pybind11/pybind11.h>
#include <tqcache/tqcache.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "connector_pybind_utils.h"

namespace tqcache_lmcache {

// Throws what an error object says, and frees it.
[[noreturn]] void throw_error(tqcache_error* error) {
  const std::string message = tqcache_error_message(error);
  tqcache_error_free(error);
  throw std::runtime_error(message);
}

void warn(void*, const char* message) { std::fprintf(stderr, "tqcache: %s\n", message); }

struct ValuesFree {
  void operator()(tqcache_values* values) const { tqcache_values_free(values); }
};
using Values = std::unique_ptr<tqcache_values, ValuesFree>;

// All workers share the handles, so that a worker's connection is nothing.
struct NoConnection {};

class TqcacheConnector final : public lmcache::connector::ConnectorBase<NoConnection> {
 public:
  // element_size: of the numbers, 2 or 4: they are stored as byte planes; 1: as they are.
  TqcacheConnector(const std::string& store, std::string geometry, const std::string& key_file,
                   int num_workers, int element_size)
      : ConnectorBase(num_workers), geometry_(std::move(geometry)), element_size_(element_size) {
    if (element_size != 1 && element_size != 2 && element_size != 4) {
      throw std::runtime_error("element_size is 1, 2 or 4");
    }
    plain_ = open(store, key_file, 0);
    planes_ = open(store, key_file, element_size == 1 ? 0 : element_size);
    start_workers();
  }
  // The workers call virtual functions of this class: they have to end before it does.
  ~TqcacheConnector() override { close(); }

 protected:
  NoConnection create_connection() override { return {}; }

  void do_single_get(NoConnection&, const std::string& key, void* buffer, size_t size,
                     size_t) override {
    if (!read(key, buffer, size)) throw std::runtime_error("not stored");
  }

  // A miss is no error, and is not reported.
  void do_batch_get(NoConnection&, const lmcache::connector::Request& request) override {
    for (size_t i = 0; i < request.keys.size(); ++i) {
      const bool found = read(request.keys[i], request.buf_ptrs[i], request.buf_lens[i]);
      request.batch->per_key_results[request.start_idx + i] = found ? 1 : 0;
    }
  }

  void do_single_set(NoConnection&, const std::string& key, const void* buffer, size_t size,
                     size_t) override {
    const bool is_whole = size % static_cast<size_t>(element_size_) == 0;
    const tqcache_part part = {const_cast<void*>(buffer), size};
    tqcache_error* error = nullptr;
    if (tqcache_values_put((is_whole ? planes_ : plain_).get(), full(key).c_str(), geometry_.data(),
                           geometry_.size(), &part, 1, nullptr, &error) != TQCACHE_OK) {
      throw_error(error);
    }
  }

  bool do_single_exists(NoConnection&, const std::string& key) override {
    const std::string name = full(key);
    const char* const names[] = {name.c_str()};
    uint8_t exists = 0;
    tqcache_error* error = nullptr;
    if (tqcache_values_exist(plain_.get(), names, 1, &exists, &error) != TQCACHE_OK) {
      return missing(error);
    }
    return exists != 0;
  }

  bool do_single_delete(NoConnection&, const std::string& key) override {
    int existed = 0;
    tqcache_error* error = nullptr;
    if (tqcache_values_remove(plain_.get(), full(key).c_str(), &existed, &error) != TQCACHE_OK) {
      return missing(error);
    }
    return existed != 0;
  }

  void on_workers_stopped() override {
    plain_.reset();
    planes_.reset();
  }

 private:
  static Values open(const std::string& store, const std::string& key_file, int planes) {
    tqcache_values_options options = TQCACHE_INIT(tqcache_values_options);
    options.key_file = key_file.empty() ? nullptr : key_file.c_str();
    options.planes = planes;
    options.warning = warn;
    tqcache_values* values = nullptr;
    tqcache_error* error = nullptr;
    if (tqcache_values_open(store.c_str(), "lmcache-cpp", &options, &values, &error) !=
        TQCACHE_OK) {
      throw_error(error);
    }
    return Values(values);
  }

  std::string full(const std::string& key) const {
    return std::to_string(geometry_.size()) + ":" + geometry_ + key;
  }

  // Fills the buffer if there is a whole value of its size.
  bool read(const std::string& key, void* buffer, size_t size) {
    const tqcache_part part = {buffer, size};
    int found = 0;
    tqcache_error* error = nullptr;
    if (tqcache_values_read(plain_.get(), full(key).c_str(), geometry_.data(), geometry_.size(),
                            &part, 1, &found, &error) != TQCACHE_OK) {
      return missing(error);
    }
    return found != 0;
  }

  // A store that fails is a miss, reported once.
  bool missing(tqcache_error* error) {
    if (!has_failed_.exchange(true)) {
      const std::string message = std::string("the store fails, its blocks count as missing: ") +
                                  tqcache_error_message(error);
      warn(nullptr, message.c_str());
    }
    tqcache_error_free(error);
    return false;
  }

  std::string geometry_;
  int element_size_;
  Values plain_;   // reads every value, whatever its coding
  Values planes_;  // writes
  std::atomic<bool> has_failed_ = false;
};

}  // namespace tqcache_lmcache

PYBIND11_MODULE(tqcache_lmcache_native, module) {
  using tqcache_lmcache::TqcacheConnector;
  module.doc() = "A native connector of LMCache over a store of tqcache.";
  py::class_<TqcacheConnector>(module, "TqcacheNativeConnector")
      .def(py::init<const std::string&, std::string, const std::string&, int, int>(),
           py::arg("store"), py::arg("geometry"), py::arg("key_file") = "",
           py::arg("num_workers") = 4, py::arg("element_size") = 2)
          LMCACHE_BIND_CONNECTOR_METHODS(TqcacheConnector);
}
