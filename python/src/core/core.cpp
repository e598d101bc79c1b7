// python/src/core/core.cpp: the extension module tqcache._core, a thin layer over the C interface.
//
// Arguments are checked and described in Python (tqcache/__init__.py). Every call releases the GIL
// while the library works.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tqcache/tqcache.h"

namespace nb = nanobind;
using namespace nb::literals;

// A wheel for another system is compiled with the pyconfig.h of this one (python/build_wheel.sh).
static_assert(SIZEOF_VOID_P == sizeof(void*) && SIZEOF_SIZE_T == sizeof(std::size_t) &&
                  SIZEOF_LONG == sizeof(long) && SIZEOF_WCHAR_T == sizeof(wchar_t),
              "pyconfig.h is that of a machine with other types");

namespace {

using Text = std::optional<std::string>;
using Input = nb::ndarray<nb::ro, nb::device::cpu>;
using Output = nb::ndarray<nb::device::cpu>;
using Bytes = std::unique_ptr<tqcache_bytes, decltype(&tqcache_bytes_free)>;

// A text for the C interface, which would take it to its first NUL: another name, or another file.
const char* c_text(const std::string& text) {
  if (text.find('\0') != std::string::npos) throw nb::value_error("embedded null character");
  return text.c_str();
}

const char* c_text(const Text& text) { return text ? c_text(*text) : nullptr; }

// --- errors

// Raises what tqcache._errors makes of the error.
[[noreturn]] void raise(int code, tqcache_error* error) {
  const std::unique_ptr<tqcache_error, decltype(&tqcache_error_free)> owner(error,
                                                                            &tqcache_error_free);
  const nb::object make = nb::module_::import_("tqcache._errors").attr("make_error");
  const nb::object exception = make(code, tqcache_error_message(error), tqcache_error_file(error));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw nb::python_error();
}

// Runs call(&error), a function of the C interface, without the GIL.
template <class Call>
void run(const Call& call) {
  tqcache_error* error = nullptr;
  int code = TQCACHE_OK;
  {
    const nb::gil_scoped_release released;
    code = call(&error);
  }
  if (code != TQCACHE_OK) raise(code, error);
}

// A progress callback in Python, or none: then Ctrl-C stops the work, where it runs on the main
// thread. An exception stops the work and goes on to the caller.
class Progress {
 public:
  explicit Progress(nb::object callback) : callback_(std::move(callback)) {}

  static int call(void* user, std::uint64_t done, std::uint64_t total) {
    auto& self = *static_cast<Progress*>(user);
    const nb::gil_scoped_acquire acquired;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (self.callback_.is_none()) return 0;
      const nb::object result = self.callback_(done, total);
      return result.is(nb::bool_(false)) ? 1 : 0;
    } catch (...) {
      self.thrown_ = std::current_exception();
      return 1;
    }
  }

  template <class Call>
  void run(const Call& call) {
    tqcache_error* error = nullptr;
    int code = TQCACHE_OK;
    {
      const nb::gil_scoped_release released;
      code = call(&error);
    }
    if (thrown_) {
      tqcache_error_free(error);
      std::rethrow_exception(std::exchange(thrown_, nullptr));
    }
    if (code != TQCACHE_OK) raise(code, error);
  }

 private:
  nb::object callback_;
  std::exception_ptr thrown_;
};

// A callback for warnings. What it raises cannot go on through the library: it is printed.
class Warnings {
 public:
  explicit Warnings(nb::object callback) : callback_(std::move(callback)) {}
  ~Warnings() = default;

  static void call(void* user, const char* message) {
    auto& self = *static_cast<Warnings*>(user);
    const nb::gil_scoped_acquire acquired;
    try {
      self.callback_(message);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("tqcache: on_warning");
    }
  }

 private:
  nb::object callback_;
};

// --- arrays

// [heads, tokens, dim] in the memory of an array; a leading dimension of 1 is ignored.
template <class Array>
tqcache_tensor to_tensor(const Array& array, bool bf16) {
  const std::size_t skipped = array.ndim() == 4 && array.shape(0) == 1 ? 1 : 0;
  if (array.ndim() != 3 + skipped) {
    throw nb::value_error("an array of [heads, tokens, head_dim] is needed");
  }
  const nb::dlpack::dtype dtype = array.dtype();
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return dtype.code == static_cast<std::uint8_t>(code) && dtype.bits == bits && dtype.lanes == 1;
  };
  tqcache_tensor tensor = TQCACHE_INIT(tqcache_tensor);
  if (is(nb::dlpack::dtype_code::Float, 32)) {
    tensor.dtype = TQCACHE_F32;
  } else if (is(nb::dlpack::dtype_code::Float, 16)) {
    tensor.dtype = TQCACHE_F16;
  } else if (is(nb::dlpack::dtype_code::Bfloat, 16) ||
             (bf16 && is(nb::dlpack::dtype_code::UInt, 16))) {
    tensor.dtype = TQCACHE_BF16;
  } else {
    throw nb::type_error("an array of f32, f16 or bf16 is needed (uint16 with bf16=True)");
  }
  tensor.data = const_cast<void*>(static_cast<const void*>(array.data()));
  tensor.n_heads = static_cast<std::int64_t>(array.shape(skipped));
  tensor.n_tokens = static_cast<std::int64_t>(array.shape(skipped + 1));
  tensor.head_dim = static_cast<std::int64_t>(array.shape(skipped + 2));
  tensor.head_stride = array.stride(skipped);
  tensor.token_stride = array.stride(skipped + 1);
  tensor.component_stride = array.stride(skipped + 2);
  // To the C interface three strides of 0 are those of a contiguous array, and here they are one
  // number that was broadcast.
  const bool is_one_number =
      tensor.head_stride == 0 && tensor.token_stride == 0 && tensor.component_stride == 0;
  if (is_one_number && array.size() > 1) {
    throw nb::value_error(
        "an array with strides of 0 on all axes, as broadcast_to() or expand() make them: pass a "
        "contiguous copy");
  }
  return tensor;
}

// Likewise for an array that is written. Every element needs memory of its own.
template <class Array>
tqcache_tensor to_output(const Array& array, bool bf16) {
  if (array.size() == 0) return to_tensor(array, bf16);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> axes;  // stride and size
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    const std::int64_t stride = array.stride(i);
    if (array.shape(i) > 1) axes.emplace_back(stride < 0 ? 0 - stride : stride, array.shape(i));
  }
  std::sort(axes.begin(), axes.end());
  std::uint64_t extent = 1;  // of the axes so far, in elements
  for (const auto& [stride, size] : axes) {
    if (stride < extent) throw nb::value_error("`out` overlaps itself: pass an array of its own");
    extent += stride * (size - 1);
  }
  return to_tensor(array, bf16);
}

// Bytes in contiguous arrays of any type.
template <class Array>
std::vector<tqcache_part> to_parts(const std::vector<Array>& arrays) {
  std::vector<tqcache_part> parts;
  for (const Array& array : arrays) {
    std::int64_t stride = 1;
    for (std::size_t i = array.ndim(); i-- > 0;) {
      if (array.shape(i) != 1 && array.size() > 0 && array.stride(i) != stride) {
        throw nb::value_error("a contiguous buffer is needed");
      }
      stride *= static_cast<std::int64_t>(array.shape(i));
    }
    parts.push_back({const_cast<void*>(static_cast<const void*>(array.data())), array.nbytes()});
  }
  return parts;
}

nb::bytes to_bytes(const tqcache_bytes* bytes) {
  return nb::bytes(tqcache_bytes_data(bytes), tqcache_bytes_size(bytes));
}

// A read-only numpy array of bytes over shared memory.
nb::object to_view(tqcache_bytes* bytes) {
  const nb::capsule owner(
      bytes, [](void* each) noexcept { tqcache_bytes_free(static_cast<tqcache_bytes*>(each)); });
  static const std::uint8_t kNothing = 0;
  const std::size_t size = tqcache_bytes_size(bytes);
  const void* const data = size == 0 ? &kNothing : tqcache_bytes_data(bytes);
  return nb::cast(nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(data, {size}, owner));
}

// The memory of an array as an object with __dlpack__ that names its numbers f32, f16 or bf16.
nb::object as_dlpack(const Output& array, int dtype) {
  nb::dlpack::dtype type;
  type.code = static_cast<std::uint8_t>(dtype == TQCACHE_BF16 ? nb::dlpack::dtype_code::Bfloat
                                                              : nb::dlpack::dtype_code::Float);
  type.bits = dtype == TQCACHE_F32 ? 32 : 16;
  type.lanes = 1;
  std::vector<std::size_t> shape;
  for (std::size_t i = 0; i < array.ndim(); ++i) shape.push_back(array.shape(i));
  return nb::cast(nb::ndarray<nb::array_api>(array.data(), shape.size(), shape.data(),
                                             nb::cast(array, nb::rv_policy::reference), nullptr,
                                             type, nb::device::cpu::value));
}

// --- identities: tuples of plain values, whose class is in Python

using IdentityTuple =
    std::tuple<std::string, std::string, std::string, nb::bytes, nb::bytes, nb::object, nb::object,
               int, int, std::int64_t, double, std::vector<float>>;

class IdentityArgument {
 public:
  explicit IdentityArgument(IdentityTuple fields) : fields_(std::move(fields)) {
    auto& [architecture, model_name, source, weights, tokenizer, adapter, model, version, style,
           dims, base, factors] = fields_;
    c_.architecture = c_text(architecture);
    c_.model_name = c_text(model_name);
    c_.source_format = c_text(source);
    c_.weights_fingerprint = digest(weights);
    c_.tokenizer_fingerprint = digest(tokenizer);
    c_.adapter_fingerprint = digest(adapter);
    c_.model_fingerprint = digest(model);
    c_.model_fingerprint_version = version;
    c_.rope_style = style;
    c_.rope_dims = dims;
    c_.rope_base = base;
    if (!factors.empty()) {
      if (static_cast<std::int64_t>(factors.size()) != dims / 2) {
        throw nb::value_error("factors: one for each pair of rotated components");
      }
      c_.rope_factors = factors.data();
    }
  }
  IdentityArgument(const IdentityArgument&) = delete;
  IdentityArgument& operator=(const IdentityArgument&) = delete;

  const tqcache_identity* get() const { return &c_; }

 private:
  static const std::uint8_t* digest(nb::handle bytes) {
    if (bytes.is_none()) return nullptr;
    const auto each = nb::cast<nb::bytes>(bytes);
    if (each.size() == 0) return nullptr;
    if (each.size() != 32) throw nb::value_error("a fingerprint has 32 bytes");
    return reinterpret_cast<const std::uint8_t*>(each.c_str());
  }

  IdentityTuple fields_;
  tqcache_identity c_ = TQCACHE_INIT(tqcache_identity);
};

nb::object digest_bytes(const std::uint8_t* digest) {
  return digest == nullptr ? nb::object(nb::none())
                           : nb::object(nb::bytes(reinterpret_cast<const char*>(digest), 32));
}

IdentityTuple from_identity(const tqcache_identity& from) {
  std::vector<float> factors;
  if (from.rope_factors != nullptr) {
    factors.assign(from.rope_factors, from.rope_factors + from.rope_dims / 2);
  }
  return {from.architecture,
          from.model_name,
          from.source_format,
          nb::bytes(reinterpret_cast<const char*>(from.weights_fingerprint), 32),
          nb::bytes(reinterpret_cast<const char*>(from.tokenizer_fingerprint), 32),
          digest_bytes(from.adapter_fingerprint),
          digest_bytes(from.model_fingerprint),
          from.model_fingerprint_version,
          from.rope_style,
          from.rope_dims,
          from.rope_base,
          std::move(factors)};
}

IdentityTuple identify_model(const std::string& path) {
  tqcache_model* model = nullptr;
  run([&](auto error) { return tqcache_model_identify(c_text(path), &model, error); });
  const std::unique_ptr<tqcache_model, decltype(&tqcache_model_free)> owner(model,
                                                                            &tqcache_model_free);
  tqcache_identity identity = TQCACHE_INIT(tqcache_identity);
  tqcache_model_identity(model, &identity);
  return from_identity(identity);
}

// --- caches

// The options of conversions, of which the library has the strings' addresses.
struct ConvertArguments {
  Text config, compress, to, model, key_file;
  bool hide_tokens = false, overwrite = false;
  unsigned threads = 0;

  tqcache_convert_options c(Progress& progress) const {
    tqcache_convert_options options = TQCACHE_INIT(tqcache_convert_options);
    options.config = c_text(config);
    options.compress = c_text(compress);
    options.to = c_text(to);
    options.model = c_text(model);
    options.key_file = c_text(key_file);
    options.hide_tokens = hide_tokens ? 1 : 0;
    options.overwrite = overwrite ? 1 : 0;
    options.threads = threads;
    options.progress = &Progress::call;
    options.user = &progress;
    return options;
  }
};

class Cache {
 public:
  explicit Cache(tqcache_cache* cache) : cache_(cache, &tqcache_close) {}

  // Another thread may close the cache meanwhile.
  std::shared_ptr<tqcache_cache> get() const {
    if (cache_ == nullptr) throw nb::value_error("the cache is closed");
    return cache_;
  }
  void close() { cache_.reset(); }

  auto info() const {
    const auto cache = get();
    tqcache_info info = TQCACHE_INIT(tqcache_info);
    tqcache_get_info(cache.get(), &info);
    nb::object tokens = nb::none();
    if (info.tokens != nullptr) {
      tokens = nb::bytes(reinterpret_cast<const char*>(info.tokens),
                         static_cast<std::size_t>(info.n_tokens) * sizeof(std::int32_t));
    }
    return std::tuple(std::string(info.kind), info.n_tokens, info.n_layers, tokens,
                      std::string(info.content_digest), info.file_bytes, info.encrypted != 0,
                      std::string(info.notes));
  }

  IdentityTuple identity() const {
    const auto cache = get();
    tqcache_identity identity = TQCACHE_INIT(tqcache_identity);
    tqcache_get_identity(cache.get(), &identity);
    return from_identity(identity);
  }

  auto layer(std::int64_t index) const {
    const auto cache = get();
    tqcache_layer layer = TQCACHE_INIT(tqcache_layer);
    run([&](auto error) { return tqcache_get_layer(cache.get(), index, &layer, error); });
    return std::tuple(layer.kind, layer.key_dtype, layer.value_dtype, layer.n_arrays,
                      layer.n_kv_heads, layer.head_dim, layer.n_tokens, layer.first_token,
                      layer.window, layer.keep, std::string(layer.key_codec),
                      std::string(layer.value_codec), layer.value_dim);
  }

  void read(std::int64_t layer, int which, std::int64_t begin, const Output& out, bool bf16,
            unsigned threads) const {
    const auto cache = get();
    const tqcache_tensor to = to_output(out, bf16);
    run([&](auto error) {
      return tqcache_read(cache.get(), layer, which, begin, &to, threads, error);
    });
  }

  auto array(std::int64_t layer, std::int64_t index) const {
    const auto cache = get();
    tqcache_array array = TQCACHE_INIT(tqcache_array);
    run([&](auto error) { return tqcache_get_array(cache.get(), layer, index, &array, error); });
    return std::tuple(std::string(array.name), array.dtype,
                      std::vector<std::int64_t>(array.shape, array.shape + array.rank));
  }

  nb::object share_array(std::int64_t layer, std::int64_t index) const {
    const auto cache = get();
    tqcache_bytes* bytes = nullptr;
    run([&](auto error) { return tqcache_share_array(cache.get(), layer, index, &bytes, error); });
    return to_view(bytes);
  }

  std::tuple<nb::object, std::int64_t> share_block(std::int64_t layer, int which,
                                                   std::int64_t block) const {
    const auto cache = get();
    tqcache_bytes* bytes = nullptr;
    std::int64_t n_tokens = 0;
    run([&](auto error) {
      return tqcache_share_block(cache.get(), layer, which, block, &bytes, &n_tokens, error);
    });
    return {bytes == nullptr ? nb::object(nb::none()) : to_view(bytes), n_tokens};
  }

  std::string describe() const {
    const auto cache = get();
    tqcache_bytes* json = nullptr;
    run([&](auto error) { return tqcache_describe(cache.get(), &json, error); });
    const Bytes owner(json, &tqcache_bytes_free);
    return {static_cast<const char*>(tqcache_bytes_data(json)), tqcache_bytes_size(json)};
  }

  void convert(const std::string& path, const Text& config, const Text& compress, const Text& to,
               const Text& model, const Text& key_file, bool hide_tokens, bool overwrite,
               unsigned threads, nb::object callback) const {
    const auto cache = get();
    const ConvertArguments arguments{config,   compress,    to,        model,
                                     key_file, hide_tokens, overwrite, threads};
    Progress progress(std::move(callback));
    const tqcache_convert_options options = arguments.c(progress);
    progress.run(
        [&](auto error) { return tqcache_convert(cache.get(), c_text(path), &options, error); });
  }

  nb::bytes convert_bytes(const Text& config, const Text& compress, unsigned threads) const {
    const auto cache = get();
    const ConvertArguments arguments{config, compress, {}, {}, {}, false, false, threads};
    Progress progress{nb::none()};
    const tqcache_convert_options options = arguments.c(progress);
    tqcache_bytes* bytes = nullptr;
    progress.run(
        [&](auto error) { return tqcache_convert_bytes(cache.get(), &options, &bytes, error); });
    const Bytes owner(bytes, &tqcache_bytes_free);
    return to_bytes(bytes);
  }

 private:
  std::shared_ptr<tqcache_cache> cache_;
};

Cache open_cache(const std::string& path, const Text& key_file, bool map, bool trust,
                 std::int64_t first_tokens, std::optional<std::vector<std::int32_t>> tokens,
                 std::optional<IdentityTuple> identity, const Text& model) {
  tqcache_open_options options = TQCACHE_INIT(tqcache_open_options);
  options.key_file = c_text(key_file);
  options.map = map ? 1 : 0;
  options.trust = trust ? 1 : 0;
  options.first_tokens = first_tokens;
  if (tokens) {
    options.tokens = tokens->data();
    options.n_tokens = static_cast<std::int64_t>(tokens->size());
  }
  std::optional<IdentityArgument> argument;
  if (identity) options.identity = argument.emplace(*identity).get();
  options.model = c_text(model);
  tqcache_cache* cache = nullptr;
  run([&](auto error) { return tqcache_open(c_text(path), &options, &cache, error); });
  return Cache(cache);
}

Cache open_bytes(const Input& data, const Text& key_file) {
  const std::vector<tqcache_part> parts = to_parts(std::vector{data});
  tqcache_open_options options = TQCACHE_INIT(tqcache_open_options);
  options.key_file = c_text(key_file);
  tqcache_cache* cache = nullptr;
  run([&](auto error) {
    return tqcache_open_bytes(parts[0].data, parts[0].size, &options, &cache, error);
  });
  return Cache(cache);
}

// The codec of the keys or values of a layer that grows.
class Codec {
 public:
  Codec(std::int64_t heads, std::int64_t dim, int dtype, const Text& config, int which,
        std::optional<IdentityTuple> rope, std::int64_t layer) {
    tqcache_tensor shape = TQCACHE_INIT(tqcache_tensor);
    shape.n_heads = heads;
    shape.head_dim = dim;
    shape.dtype = dtype;
    std::optional<IdentityArgument> argument;
    if (rope) argument.emplace(*rope);
    tqcache_codec* codec = nullptr;
    run([&](auto error) {
      return tqcache_codec_new(&shape, which, c_text(config), argument ? argument->get() : nullptr,
                               layer, &codec, error);
    });
    codec_.reset(codec);
    heads_ = heads;
    dim_ = dim;
  }

  void fit(const std::vector<Input>& blocks, bool bf16, unsigned threads) {
    std::vector<tqcache_tensor> tensors;
    for (const Input& each : blocks) tensors.push_back(to_tensor(each, bf16));
    run([&](auto error) {
      return tqcache_codec_fit(codec_.get(), tensors.data(),
                               static_cast<std::int64_t>(tensors.size()), threads, error);
    });
  }

  std::size_t block_bytes(std::int64_t block) const {
    return tqcache_codec_block_bytes(codec_.get(), block);
  }

  nb::bytes encode(const Input& array, std::int64_t block, bool bf16, unsigned threads) const {
    const tqcache_tensor from = to_tensor(array, bf16);
    const std::size_t n = from.n_tokens / 256;
    std::size_t size = 0;
    if (n > 0) size = block_bytes(block) + (n - 1) * block_bytes(block + 1);
    std::vector<char> out(size);
    run([&](auto error) {
      return tqcache_codec_encode(codec_.get(), &from, block, out.data(), size, threads, error);
    });
    return nb::bytes(out.data(), size);
  }

  void decode(const Input& packed, std::int64_t block, const Output& out, bool bf16,
              unsigned threads) const {
    const tqcache_part part = to_parts(std::vector{packed})[0];
    const tqcache_tensor to = to_output(out, bf16);
    run([&](auto error) {
      return tqcache_codec_decode(codec_.get(), part.data, part.size, block, &to, threads, error);
    });
  }

  // Numbers, and bytes of f32 and f64 arrays; None where there is none.
  nb::dict tables() const {
    tqcache_codec_tables t = TQCACHE_INIT(tqcache_codec_tables);
    run([&](auto error) { return tqcache_codec_read_tables(codec_.get(), &t, error); });
    const auto bytes = [](const void* data, std::size_t size) -> nb::object {
      if (data == nullptr) return nb::none();
      return nb::bytes(static_cast<const char*>(data), size);
    };
    const auto vectors = static_cast<std::size_t>(heads_ * dim_) * sizeof(float);
    const auto pairs = static_cast<std::size_t>(t.n_pairs);
    nb::dict d;
    d["mode"] = t.mode;
    d["bits"] = t.bits;
    d["rotation"] = t.rotation;
    d["rounds"] = t.rounds;
    d["scale"] = t.scale;
    d["n_sinks"] = t.n_sinks;
    d["seed"] = t.seed;
    d["n_pairs"] = t.n_pairs;
    d["mean"] = bytes(t.mean, vectors);
    d["turns"] = bytes(t.turns, pairs * sizeof(double));
    d["cos"] = bytes(t.cos, 256 * pairs * sizeof(float));
    d["sin"] = bytes(t.sin, 256 * pairs * sizeof(float));
    d["factors"] = bytes(t.factors, vectors);
    d["inverses"] = bytes(t.inverses, vectors);
    return d;
  }

  const tqcache_codec* get() const { return codec_.get(); }

 private:
  std::unique_ptr<tqcache_codec, decltype(&tqcache_codec_free)> codec_{nullptr,
                                                                       &tqcache_codec_free};
  std::int64_t heads_ = 0, dim_ = 0;
};

class Writer {
 public:
  Writer(std::optional<std::vector<std::int32_t>> tokens, std::int64_t n_tokens,
         std::optional<IdentityTuple> identity) {
    std::optional<IdentityArgument> argument;
    if (identity) argument.emplace(*identity);
    tqcache_writer* writer = nullptr;
    const std::int32_t* const ids = tokens ? tokens->data() : nullptr;
    run([&](auto error) {
      return tqcache_writer_new(ids, n_tokens, argument ? argument->get() : nullptr, &writer,
                                error);
    });
    writer_.reset(writer);
  }

  void attention(const Input& keys, const Input& values, bool bf16) {
    const tqcache_tensor k = to_tensor(keys, bf16);
    const tqcache_tensor v = to_tensor(values, bf16);
    run([&](auto error) { return tqcache_writer_attention(writer_.get(), &k, &v, error); });
    keep_.insert(keep_.end(), {keys, values});
  }

  void packed(const Codec& key_codec, const Input& keys, const Codec& value_codec,
              const Input& values, const Input& key_tail, const Input& value_tail, bool bf16) {
    const tqcache_part k = to_parts(std::vector{keys})[0];
    const tqcache_part v = to_parts(std::vector{values})[0];
    const tqcache_tensor tail_k = to_tensor(key_tail, bf16);
    const tqcache_tensor tail_v = to_tensor(value_tail, bf16);
    run([&](auto error) {
      return tqcache_writer_packed(writer_.get(), key_codec.get(), k.data, k.size,
                                   value_codec.get(), v.data, v.size, &tail_k, &tail_v, error);
    });
    keep_.insert(keep_.end(), {keys, values, key_tail, value_tail});
  }

  void window(const Input& keys, const Input& values, std::int64_t size, std::int64_t keep,
              bool bf16) {
    const tqcache_tensor k = to_tensor(keys, bf16);
    const tqcache_tensor v = to_tensor(values, bf16);
    run([&](auto error) {
      return tqcache_writer_window(writer_.get(), &k, &v, size, keep, error);
    });
    keep_.insert(keep_.end(), {keys, values});
  }

  void media(int kind, std::int64_t begin, std::int64_t n_tokens, const std::string& id,
             const std::optional<std::vector<std::int32_t>>& coordinates,
             std::int64_t next_position, std::int32_t placeholder) {
    tqcache_media span = TQCACHE_INIT(tqcache_media);
    span.kind = kind;
    span.placeholder = placeholder;
    span.begin = begin;
    span.n_tokens = n_tokens;
    span.id = c_text(id);
    span.next_position = next_position;
    if (coordinates) {
      if (static_cast<std::int64_t>(coordinates->size()) / 3 != n_tokens ||
          coordinates->size() % 3 != 0) {
        throw nb::value_error("coordinates: [3, n_tokens] is needed");
      }
      span.coordinates = coordinates->data();
    }
    run([&](auto error) { return tqcache_writer_media(writer_.get(), &span, error); });
  }

  void state(const std::vector<std::tuple<std::string, int, Input>>& arrays) {
    std::vector<tqcache_array> described;
    std::vector<const void*> data;
    for (const auto& [name, dtype, array] : arrays) {
      tqcache_array each = TQCACHE_INIT(tqcache_array);
      each.name = c_text(name);
      each.dtype = dtype;
      each.rank = static_cast<std::int32_t>(array.ndim());
      if (array.ndim() > 8) throw nb::value_error("an array of more than 8 dimensions");
      for (std::size_t i = 0; i < array.ndim(); ++i) {
        each.shape[i] = static_cast<std::int64_t>(array.shape(i));
      }
      described.push_back(each);
      data.push_back(to_parts(std::vector{array})[0].data);
    }
    run([&](auto error) {
      return tqcache_writer_state(writer_.get(), described.data(), data.data(),
                                  static_cast<std::int32_t>(described.size()), error);
    });
    for (const auto& each : arrays) keep_.push_back(std::get<2>(each));
  }

  Cache cache() const {
    tqcache_cache* made = nullptr;
    run([&](auto error) { return tqcache_writer_cache(writer_.get(), &made, error); });
    return Cache(made);
  }

 private:
  std::unique_ptr<tqcache_writer, decltype(&tqcache_writer_free)> writer_{nullptr,
                                                                          &tqcache_writer_free};
  std::vector<Input> keep_;  // the memory that the writer reads
};

auto verify(const std::string& path, const Text& key_file, unsigned threads,
            std::uint64_t max_bytes, nb::object callback) {
  Progress progress(std::move(callback));
  tqcache_verify_options options = TQCACHE_INIT(tqcache_verify_options);
  options.key_file = c_text(key_file);
  options.threads = threads;
  options.max_bytes = max_bytes;
  options.progress = &Progress::call;
  options.user = &progress;
  tqcache_verified verified = TQCACHE_INIT(tqcache_verified);
  progress.run(
      [&](auto error) { return tqcache_verify(c_text(path), &options, &verified, error); });
  const Bytes damage(verified.damage, &tqcache_bytes_free);
  const std::string lines(static_cast<const char*>(tqcache_bytes_data(damage.get())),
                          tqcache_bytes_size(damage.get()));
  return std::tuple(verified.n_tokens, verified.sections, verified.bytes,
                    std::string(verified.content_digest), lines);
}

std::vector<std::tuple<std::string, std::string>> presets() {
  std::vector<std::tuple<std::string, std::string>> list;
  for (int i = 0; tqcache_preset(i) != nullptr; ++i) {
    list.emplace_back(tqcache_preset(i), tqcache_preset_description(i));
  }
  return list;
}

// --- the codec

nb::bytes encode(const Input& array, const Text& config, int which,
                 std::optional<IdentityTuple> rope, bool bf16, unsigned threads) {
  const tqcache_tensor from = to_tensor(array, bf16);
  std::optional<IdentityArgument> argument;
  if (rope) argument.emplace(*rope);
  tqcache_bytes* block = nullptr;
  run([&](auto error) {
    return tqcache_encode(&from, which, c_text(config), argument ? argument->get() : nullptr,
                          threads, &block, error);
  });
  const Bytes owner(block, &tqcache_bytes_free);
  return to_bytes(block);
}

std::size_t encode_bound(std::int64_t heads, std::int64_t tokens, std::int64_t dim,
                         const Text& config, int dtype, int which) {
  tqcache_tensor shape = TQCACHE_INIT(tqcache_tensor);
  shape.n_heads = heads;
  shape.n_tokens = tokens;
  shape.head_dim = dim;
  shape.dtype = dtype;
  std::size_t bound = 0;
  run([&](auto error) {
    return tqcache_encode_bound(&shape, which, c_text(config), &bound, error);
  });
  return bound;
}

auto block_shape(const Input& packed) {
  const tqcache_part part = to_parts(std::vector{packed})[0];
  tqcache_tensor shape = TQCACHE_INIT(tqcache_tensor);
  int which = 0;
  run([&](auto error) { return tqcache_block_shape(part.data, part.size, &shape, &which, error); });
  return std::tuple(shape.n_heads, shape.n_tokens, shape.head_dim, shape.dtype, which);
}

void decode(const Input& packed, const Output& out, bool bf16, unsigned threads) {
  const tqcache_part part = to_parts(std::vector{packed})[0];
  const tqcache_tensor to = to_output(out, bf16);
  run([&](auto error) { return tqcache_decode(part.data, part.size, &to, threads, error); });
}

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Scores = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void score(const Input& packed, const Floats& queries, const Scores& scores, unsigned threads) {
  const tqcache_part part = to_parts(std::vector{packed})[0];
  run([&](auto error) {
    return tqcache_score(part.data, part.size, queries.data(),
                         static_cast<std::int64_t>(queries.shape(0)), scores.data(), threads,
                         error);
  });
}

nb::bytes planes_encode(const std::vector<Input>& data, int element_size, unsigned threads) {
  const std::vector<tqcache_part> parts = to_parts(data);
  tqcache_bytes* packed = nullptr;
  run([&](auto error) {
    return tqcache_planes_encode(parts.data(), parts.size(), element_size, threads, &packed, error);
  });
  const Bytes owner(packed, &tqcache_bytes_free);
  return to_bytes(packed);
}

std::uint64_t planes_size(const Input& packed) {
  const tqcache_part part = to_parts(std::vector{packed})[0];
  std::uint64_t size = 0;
  run([&](auto error) { return tqcache_planes_size(part.data, part.size, &size, error); });
  return size;
}

void planes_decode(const Input& packed, const std::vector<Output>& out, unsigned threads) {
  const tqcache_part part = to_parts(std::vector{packed})[0];
  const std::vector<tqcache_part> parts = to_parts(out);
  run([&](auto error) {
    return tqcache_planes_decode(part.data, part.size, parts.data(), parts.size(), threads, error);
  });
}

// --- stores

class Store {
 public:
  Store(const std::string& url, const Text& key_file, const std::string& salt, unsigned threads,
        nb::object on_warning)
      : warnings_(std::make_unique<Warnings>(std::move(on_warning))) {
    tqcache_store_options options = TQCACHE_INIT(tqcache_store_options);
    options.key_file = c_text(key_file);
    options.salt = c_text(salt);
    options.threads = threads;
    options.warning = &Warnings::call;
    options.user = warnings_.get();
    tqcache_store* store = nullptr;
    run([&](auto error) { return tqcache_store_open(c_text(url), &options, &store, error); });
    store_.reset(store);
  }

  auto put(const Cache& cache, const Text& name, bool replace, const Text& config,
           std::int64_t created, nb::object callback) {
    Progress progress(std::move(callback));
    const auto handle = cache.get();
    tqcache_put_options options = TQCACHE_INIT(tqcache_put_options);
    options.name = c_text(name);
    options.config = c_text(config);
    options.replace = replace ? 1 : 0;
    options.created = created;
    options.progress = &Progress::call;
    options.user = &progress;
    tqcache_put_report report = TQCACHE_INIT(tqcache_put_report);
    progress.run([&](auto error) {
      return tqcache_store_put(store_.get(), handle.get(), &options, &report, error);
    });
    return std::tuple(report.n_tokens, report.blocks, report.new_blocks, report.bytes,
                      report.new_bytes);
  }

  std::int64_t find(const IdentityTuple& identity, const std::vector<std::int32_t>& tokens,
                    std::int64_t max_tokens) {
    const IdentityArgument argument(identity);
    std::int64_t found = 0;
    run([&](auto error) {
      return tqcache_store_find(store_.get(), argument.get(), tokens.data(),
                                static_cast<std::int64_t>(tokens.size()), max_tokens, &found,
                                error);
    });
    return found;
  }

  std::optional<Cache> get(const IdentityTuple& identity, const std::vector<std::int32_t>& tokens,
                           std::int64_t max_tokens, nb::object callback) {
    const IdentityArgument argument(identity);
    Progress progress(std::move(callback));
    tqcache_cache* cache = nullptr;
    progress.run([&](auto error) {
      return tqcache_store_get(store_.get(), argument.get(), tokens.data(),
                               static_cast<std::int64_t>(tokens.size()), max_tokens,
                               &Progress::call, &progress, &cache, error);
    });
    return cache == nullptr ? std::nullopt : std::optional(Cache(cache));
  }

  std::optional<Cache> get_named(const std::string& name, nb::object callback) {
    Progress progress(std::move(callback));
    tqcache_cache* cache = nullptr;
    progress.run([&](auto error) {
      return tqcache_store_get_named(store_.get(), c_text(name), &Progress::call, &progress, &cache,
                                     error);
    });
    return cache == nullptr ? std::nullopt : std::optional(Cache(cache));
  }

  std::string names() {
    tqcache_bytes* json = nullptr;
    run([&](auto error) { return tqcache_store_names(store_.get(), &json, error); });
    const Bytes owner(json, &tqcache_bytes_free);
    return {static_cast<const char*>(tqcache_bytes_data(json)), tqcache_bytes_size(json)};
  }

  bool remove(const std::string& name) {
    int existed = 0;
    run([&](auto error) {
      return tqcache_store_remove(store_.get(), c_text(name), &existed, error);
    });
    return existed != 0;
  }

 private:
  std::unique_ptr<Warnings> warnings_;
  std::unique_ptr<tqcache_store, decltype(&tqcache_store_free)> store_{nullptr,
                                                                       &tqcache_store_free};
};

class Values {
 public:
  Values(const std::string& url, const std::string& name_space, const Text& key_file, int planes,
         unsigned threads, nb::object on_warning)
      : warnings_(std::make_unique<Warnings>(std::move(on_warning))) {
    tqcache_values_options options = TQCACHE_INIT(tqcache_values_options);
    options.key_file = c_text(key_file);
    options.planes = planes;
    options.threads = threads;
    options.warning = &Warnings::call;
    options.user = warnings_.get();
    tqcache_values* values = nullptr;
    run([&](auto error) {
      return tqcache_values_open(c_text(url), c_text(name_space), &options, &values, error);
    });
    values_.reset(values);
  }

  bool put(const std::string& key, const nb::bytes& meta, const std::vector<Input>& data) {
    const std::vector<tqcache_part> parts = to_parts(data);
    int stored = 0;
    run([&](auto error) {
      return tqcache_values_put(values_.get(), c_text(key), meta.c_str(), meta.size(), parts.data(),
                                parts.size(), &stored, error);
    });
    return stored != 0;
  }

  bool read(const std::string& key, const nb::bytes& meta, const std::vector<Output>& out) {
    const std::vector<tqcache_part> parts = to_parts(out);
    int found = 0;
    run([&](auto error) {
      return tqcache_values_read(values_.get(), c_text(key), meta.c_str(), meta.size(),
                                 parts.data(), parts.size(), &found, error);
    });
    return found != 0;
  }

  std::optional<nb::bytes> get(const std::string& key, const nb::bytes& meta) {
    tqcache_bytes* bytes = nullptr;
    run([&](auto error) {
      return tqcache_values_get(values_.get(), c_text(key), meta.c_str(), meta.size(), &bytes,
                                error);
    });
    if (bytes == nullptr) return std::nullopt;
    const Bytes owner(bytes, &tqcache_bytes_free);
    return to_bytes(bytes);
  }

  std::vector<bool> exists(const std::vector<std::string>& keys) {
    std::vector<const char*> texts;
    for (const std::string& key : keys) texts.push_back(c_text(key));
    std::vector<std::uint8_t> found(keys.size());
    run([&](auto error) {
      return tqcache_values_exist(values_.get(), texts.data(), texts.size(), found.data(), error);
    });
    return {found.begin(), found.end()};
  }

  bool remove(const std::string& key) {
    int existed = 0;
    run([&](auto error) {
      return tqcache_values_remove(values_.get(), c_text(key), &existed, error);
    });
    return existed != 0;
  }

  auto total() {
    std::uint64_t n = 0;
    std::uint64_t bytes = 0;
    run([&](auto error) { return tqcache_values_total(values_.get(), &n, &bytes, error); });
    return std::tuple(n, bytes);
  }

  auto trim(std::uint64_t max_bytes) {
    std::uint64_t n = 0;
    std::uint64_t bytes = 0;
    run([&](auto error) {
      return tqcache_values_trim(values_.get(), max_bytes, &n, &bytes, error);
    });
    return std::tuple(n, bytes);
  }

 private:
  std::unique_ptr<Warnings> warnings_;
  std::unique_ptr<tqcache_values, decltype(&tqcache_values_free)> values_{nullptr,
                                                                          &tqcache_values_free};
};

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The C interface of tqcache. Use the package tqcache.";
  m.attr("__version__") = tqcache_version();
  m.def("identify_model", &identify_model);
  m.def("open", &open_cache, nb::arg("path"), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg().none(), nb::arg().none(), nb::arg().none());
  m.def("open_bytes", &open_bytes, nb::arg(), nb::arg().none());
  m.def("verify", &verify, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none());
  m.def("presets", &presets);
  m.def("as_dlpack", &as_dlpack);
  m.def("encode", &encode, nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(),
        nb::arg());
  m.def("encode_bound", &encode_bound);
  m.def("block_shape", &block_shape);
  m.def("decode", &decode);
  m.def("score", &score);
  m.def("planes_encode", &planes_encode);
  m.def("planes_size", &planes_size);
  m.def("planes_decode", &planes_decode);
  nb::class_<Cache>(m, "Cache")
      .def("close", &Cache::close)
      .def("info", &Cache::info)
      .def("identity", &Cache::identity)
      .def("layer", &Cache::layer)
      .def("read", &Cache::read)
      .def("array", &Cache::array)
      .def("share_array", &Cache::share_array)
      .def("share_block", &Cache::share_block)
      .def("describe", &Cache::describe)
      .def("convert", &Cache::convert, nb::arg(), nb::arg().none(), nb::arg().none(),
           nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg().none())
      .def("convert_bytes", &Cache::convert_bytes, nb::arg().none(), nb::arg().none(), nb::arg());
  nb::class_<Codec>(m, "Codec")
      .def(nb::init<std::int64_t, std::int64_t, int, const Text&, int, std::optional<IdentityTuple>,
                    std::int64_t>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(),
           nb::arg())
      .def("fit", &Codec::fit)
      .def("block_bytes", &Codec::block_bytes)
      .def("encode", &Codec::encode)
      .def("decode", &Codec::decode)
      .def("tables", &Codec::tables);
  nb::class_<Writer>(m, "Writer")
      .def(nb::init<std::optional<std::vector<std::int32_t>>, std::int64_t,
                    std::optional<IdentityTuple>>(),
           nb::arg().none(), nb::arg(), nb::arg().none())
      .def("attention", &Writer::attention)
      .def("packed", &Writer::packed)
      .def("window", &Writer::window)
      .def("media", &Writer::media)
      .def("state", &Writer::state)
      .def("cache", &Writer::cache);
  nb::class_<Store>(m, "Store")
      .def(nb::init<const std::string&, const Text&, const std::string&, unsigned, nb::object>(),
           nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none())
      .def("put", &Store::put, nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg(),
           nb::arg().none())
      .def("find", &Store::find)
      .def("get", &Store::get, nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
      .def("get_named", &Store::get_named, nb::arg(), nb::arg().none())
      .def("names", &Store::names)
      .def("remove", &Store::remove);
  nb::class_<Values>(m, "Values")
      .def(nb::init<const std::string&, const std::string&, const Text&, int, unsigned,
                    nb::object>(),
           nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none())
      .def("put", &Values::put)
      .def("read", &Values::read)
      .def("get", &Values::get)
      .def("exists", &Values::exists)
      .def("remove", &Values::remove)
      .def("total", &Values::total)
      .def("trim", &Values::trim);
}
