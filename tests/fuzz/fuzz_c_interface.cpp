// The C interface as a caller uses it who makes every kind of mistake that is not a wrong pointer:
// the input is a row of calls with any shapes, strides, dtypes, sizes of structs, orders and
// threads, over memory that is exactly as large as the call says. What was encoded has the shape
// that went in, a file that was made can be opened, values of a dense cache come back bit by bit,
// nothing outside of the caller's memory is read or written, and a result is only written on
// success.

#include <tbb/global_control.h>

#include <array>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fuzz/fuzz.h"
#include "tqcache/tqcache.h"

namespace tqcache {
namespace {

using fuzz::Input;
using fuzz::require;

constexpr std::size_t kMostCalls = 24;
constexpr std::size_t kMostHandles = 4;
constexpr unsigned char kCanary = 0xa7;

// Of the C interface that can fail; told at the end.
struct Calls {
  ~Calls() { std::fprintf(stderr, "%llu calls of the C interface\n", n); }
  void operator++() { ++n; }
  unsigned long long n = 0;
} n_calls;

template <class T, void (*kFree)(T*)>
struct FreeWith {
  void operator()(T* handle) const { kFree(handle); }
};
template <class T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, FreeWith<T, kFree>>;
using OwnedCache = Owned<tqcache_cache, tqcache_close>;
using OwnedBytes = Owned<tqcache_bytes, tqcache_bytes_free>;
using OwnedCodec = Owned<tqcache_codec, tqcache_codec_free>;

// A tensor in memory of its own, which begins and ends with its elements.
struct Room {
  std::vector<unsigned char> bytes;
  tqcache_tensor tensor{};
  bool is_contiguous = false;

  std::size_t width() const { return tensor.dtype == TQCACHE_F32 ? 4 : 2; }
};

class Machine {
 public:
  explicit Machine(ByteView bytes) : in_(bytes) {}

  void run() {
    for (std::size_t i = 0; i < kMostCalls && !in_.empty(); ++i) step();
  }

 private:
  // Checks the code, and that an error goes with it.
  bool done(int code, tqcache_error*& error) {
    ++n_calls;
    const bool is_ok = code == TQCACHE_OK;
    require(is_ok == (error == nullptr), "an error exactly when the call fails");
    if (error != nullptr) {
      require(tqcache_error_code(error) == code, "the code of an error is the result");
      require(tqcache_error_message(error)[0] != '\0', "an error has a message");
    }
    tqcache_error_free(error);
    return is_ok;
  }

  unsigned threads() { return 1 + (in_.flag() ? 1u : 0u); }

  std::int64_t size(std::int64_t usual) {
    switch (in_.below(12)) {
      case 0:
        return in_.one_of<std::int64_t>(
            {0, -1, 1, 2000, std::int64_t{1} << 40, INT64_MIN, INT64_MAX});
      case 1:
        return static_cast<std::int64_t>(in_.below(40));
      default:
        return usual;
    }
  }

  // Shapes that the library refuses get no memory.
  static bool is_possible(const tqcache_tensor& tensor) {
    return tensor.n_heads >= 1 && tensor.n_heads <= 4 && tensor.head_dim >= 1 &&
           tensor.head_dim <= 256 && tensor.n_tokens >= 0 && tensor.n_tokens <= 2000;
  }

  Room make_room(std::int64_t heads, std::int64_t tokens, std::int64_t dim) {
    Room room;
    tqcache_tensor& tensor = room.tensor;
    tensor.size = in_.below(16) == 0 ? in_.one_of<std::size_t>({0, 8, 64, sizeof(tensor) + 8})
                                     : sizeof(tensor);
    tensor.dtype = in_.below(24) == 0 ? in_.one_of<std::int32_t>({-1, 3, 1 << 30})
                                      : static_cast<std::int32_t>(in_.below(3));
    tensor.n_heads = size(heads);
    tensor.n_tokens = size(tokens);
    tensor.head_dim = size(dim);
    if (!is_possible(tensor)) return room;  // without data
    // Axes from the innermost out, perhaps with room between the elements.
    std::array<std::pair<std::int64_t, std::int64_t*>, 3> axes = {
        {{tensor.head_dim, &tensor.component_stride},
         {tensor.n_tokens, &tensor.token_stride},
         {tensor.n_heads, &tensor.head_stride}}};
    const std::size_t kind = in_.below(8);
    if (kind == 1) std::swap(axes[0], axes[1]);
    if (kind == 2) std::swap(axes[1], axes[2]);
    if (kind == 3) std::swap(axes[0], axes[2]);
    std::int64_t extent = 1, before = 0;
    for (const auto& [n, stride] : axes) {
      *stride = extent + (kind == 4 ? static_cast<std::int64_t>(in_.below(3)) : 0);
      const std::int64_t span = *stride * std::max<std::int64_t>(n - 1, 0);
      extent += span;
      if (kind == 5 && in_.flag()) {
        *stride = -*stride;
        before += span;
      }
    }
    room.is_contiguous = kind == 0 || kind > 5;
    if (kind == 6) tensor.component_stride = tensor.token_stride = tensor.head_stride = 0;
    if (tensor.n_tokens == 0) extent = before = 0;
    room.bytes.resize(static_cast<std::size_t>(extent) * room.width());
    // Values of any kind, now and then.
    const bool is_any = in_.below(8) == 0;
    std::uint32_t state = in_.take<std::uint32_t>() | 1;
    for (std::size_t i = 0; i + room.width() <= room.bytes.size(); i += room.width()) {
      state = state * 1664525u + 1013904223u;
      if (is_any) {
        std::memcpy(room.bytes.data() + i, &state, room.width());
        continue;
      }
      const float value = static_cast<float>(static_cast<std::int32_t>(state) >> 16) / 8192.0f;
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, 4);
      if (tensor.dtype == TQCACHE_F32) {
        std::memcpy(room.bytes.data() + i, &bits, 4);
      } else {
        const auto half = static_cast<std::uint16_t>(
            tensor.dtype == TQCACHE_BF16 ? bits >> 16 : 0x3000u | (bits >> 13 & 0x3ffu));
        std::memcpy(room.bytes.data() + i, &half, 2);
      }
    }
    tensor.data = room.bytes.data() + static_cast<std::size_t>(before) * room.width();
    if (in_.below(32) == 0) tensor.data = nullptr;
    return room;
  }

  std::string text(std::initializer_list<const char*> words) {
    std::vector<const char*> all(words);
    if (in_.below(10) == 0) return {reinterpret_cast<const char*>("\xff\x01\n{"), in_.below(5)};
    return all[in_.below(all.size())];
  }
  const char* config() {
    words_ = text({"turbo4", "k=mse:4,v=mse:3,sink=4", "f32", "turbo3.5", "k4v3", "affine:4",
                   "mse:2", "prod:3", "mixed", "windows=turbo", "mse:9", "k="});
    return in_.below(4) == 0 ? nullptr : words_.c_str();
  }

  tqcache_identity identity() {
    tqcache_identity identity = TQCACHE_INIT(tqcache_identity);
    static const std::array<std::uint8_t, 32> kDigest{7};
    if (in_.flag()) {
      identity.architecture = "qwen3";
      identity.weights_fingerprint = identity.tokenizer_fingerprint = kDigest.data();
    }
    identity.rope_style = static_cast<std::int32_t>(in_.below(5)) - 1;
    identity.rope_dims = size(32);
    identity.rope_base = in_.one_of<double>({10000.0, 0.0, -1.0, 1e300, std::nan("")});
    if (in_.flag()) identity.rope_dims = 0;
    return identity;
  }

  tqcache_cache* cache() { return caches_.empty() ? nullptr : some_cache().get(); }
  OwnedCache& some_cache() { return caches_[in_.below(caches_.size())]; }
  void keep(tqcache_cache* cache) {
    require(cache != nullptr, "a call that succeeds gives a cache");
    if (caches_.size() == kMostHandles) caches_.erase(caches_.begin());
    caches_.emplace_back(cache);
  }

  void step() {
    const auto kind = in_.take<std::uint8_t>();
    switch (kind < 240 ? kind % 20 : kind) {
      case 0:
      case 1:
        return begin_writer();
      case 2:
      case 3:
      case 4:
        return add_layer();
      case 5:
      case 6:
        return finish_writer();
      case 7:
      case 8:
      case 9:
        return read();
      case 10:
        return look();
      case 11:
      case 12:
        return convert();
      case 13:
        return open_changed();
      case 14:
      case 15:
      case 16:
        return encode();
      case 17:
        return use_store();
      case 18:
        return use_values();
      case 19:
        return use_planes();
      case 240:
        return add_media();
      default:
        return grow();
    }
  }

  // --- writers

  void begin_writer() {
    n_tokens_ = in_.one_of<std::int64_t>({1, 5, 255, 256, 257, 300, 600});
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(n_tokens_));
    for (std::int32_t& each : tokens) each = static_cast<std::int32_t>(in_.below(256)) - 1;
    if (in_.below(4) != 0) std::ranges::replace(tokens, -1, 3);
    const tqcache_identity identity = this->identity();
    tqcache_writer* writer = nullptr;
    tqcache_error* error = nullptr;
    const std::int64_t n = in_.below(12) == 0 ? size(0) : n_tokens_;
    const bool has_tokens = in_.flag() && n == n_tokens_;
    const int code = tqcache_writer_new(has_tokens ? tokens.data() : nullptr, n,
                                        in_.flag() ? &identity : nullptr, &writer, &error);
    if (done(code, error)) {
      n_tokens_ = n;
      // Caches that share the memory of the old writer's layers stay alive with it.
      writers_.emplace_back(writer);
      if (writers_.size() > 8) caches_.clear(), writers_.pop_front();
    }
  }

  static int fill(void* user, int which, std::int64_t begin, const tqcache_tensor* to) {
    const auto fails_at = *static_cast<const std::int64_t*>(user);
    if (begin >= fails_at) return 1;
    const std::size_t width = to->dtype == TQCACHE_F32 ? 4 : 2;
    std::memset(to->data, which,
                static_cast<std::size_t>(to->n_heads * to->n_tokens * to->head_dim) * width);
    return 0;
  }

  void add_layer() {
    if (writers_.empty()) return begin_writer();
    tqcache_writer* const writer = writers_.back().get();
    const std::int64_t dim = in_.one_of<std::int64_t>({8, 32, 33, 64, 128});
    const std::int64_t heads = 1 + static_cast<std::int64_t>(in_.below(2));
    const std::int64_t window = size(1 + static_cast<std::int64_t>(in_.below(300)));
    const std::int64_t keep = size(0);
    const std::size_t kind = in_.below(6);
    const std::int64_t held =
        kind == 4 ? std::min(n_tokens_, std::max<std::int64_t>(window, 0)) : n_tokens_;
    rooms_.push_back(make_room(heads, held, dim));
    rooms_.push_back(make_room(heads, held, in_.below(6) == 0 ? 16 : dim));
    const tqcache_tensor& k = rooms_[rooms_.size() - 2].tensor;
    const tqcache_tensor& v = rooms_.back().tensor;
    tqcache_error* error = nullptr;
    if (kind == 3) {
      fails_at_.push_back(in_.flag() ? INT64_MAX : 256);
      done(tqcache_writer_attention_from(writer, &k, &v, fill, &fails_at_.back(), &error), error);
    } else if (kind == 4) {
      done(tqcache_writer_window(writer, &k, &v, window, keep, &error), error);
    } else if (kind == 5) {
      add_state(writer);
    } else {
      done(tqcache_writer_attention(writer, &k, &v, &error), error);
    }
  }

  void add_state(tqcache_writer* writer) {
    std::vector<tqcache_array> arrays;
    std::vector<const void*> data;
    const std::size_t n = in_.below(3);
    for (std::size_t i = 0; i < n; ++i) {
      tqcache_array array = TQCACHE_INIT(tqcache_array);
      array.name = in_.below(12) == 0 ? "" : i == 0 ? "conv" : "state";
      array.dtype = static_cast<std::int32_t>(in_.below(4));
      array.rank = static_cast<std::int32_t>(in_.below(4));
      std::int64_t count = 1;
      for (std::int32_t axis = 0; axis < array.rank; ++axis) {
        array.shape[axis] = size(static_cast<std::int64_t>(in_.below(5)));
        if (array.shape[axis] < 0 || array.shape[axis] > 50) count = 0;
        count *= count == 0 ? 0 : array.shape[axis];
      }
      if (in_.below(16) == 0) array.rank = in_.one_of<std::int32_t>({-1, 9, 1 << 20});
      const auto bytes = static_cast<std::size_t>(count) * (array.dtype == TQCACHE_F32 ? 4 : 2);
      array.n_bytes = in_.below(12) == 0 ? in_.take<std::uint64_t>() : bytes;
      states_.emplace_back(bytes, kCanary);
      arrays.push_back(array);
      data.push_back(states_.back().data());
    }
    tqcache_error* error = nullptr;
    done(tqcache_writer_state(writer, arrays.data(), data.data(), static_cast<std::int32_t>(n),
                              &error),
         error);
  }

  void add_media() {
    if (writers_.empty()) return begin_writer();
    tqcache_media media = TQCACHE_INIT(tqcache_media);
    media.kind = static_cast<std::int32_t>(in_.below(5)) - 1;
    media.begin = size(static_cast<std::int64_t>(in_.below(300)));
    media.n_tokens = size(1 + static_cast<std::int64_t>(in_.below(100)));
    media.next_position = size(100);
    const std::string id = text({"sha256:00", "cat", "", "two words"});
    if (in_.below(8) != 0) media.id = id.c_str();
    media.placeholder = static_cast<std::int32_t>(in_.below(300)) - 2;
    std::vector<std::int32_t> coordinates;
    if (in_.flag() && media.n_tokens >= 0 && media.n_tokens <= 2000) {
      coordinates.resize(3 * static_cast<std::size_t>(media.n_tokens));
      for (std::int32_t& each : coordinates) each = in_.take<std::int8_t>();
      if (!coordinates.empty()) media.coordinates = coordinates.data();
    }
    tqcache_error* error = nullptr;
    done(tqcache_writer_media(writers_.back().get(), &media, &error), error);
  }

  // --- the codec of a layer that grows

  // Any size but the right one, now and then.
  std::size_t near(std::size_t right) {
    return in_.below(8) == 0 ? std::min(right, in_.below(65536)) : right;
  }

  void grow() {
    const auto heads = 1 + static_cast<std::int64_t>(in_.below(2));
    const std::int64_t dim = in_.one_of<std::int64_t>({32, 64, 33, 128});
    const std::int64_t n_blocks = 1 + static_cast<std::int64_t>(in_.below(2));
    const tqcache_identity rope = identity();
    const char* const chosen = config();
    std::array<OwnedCodec, 2> codecs;
    std::array<std::vector<unsigned char>, 2> packed;
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
      Room first = make_room(heads, 256, dim);
      const Room shape = in_.below(8) == 0 ? make_room(heads, 0, dim) : Room{{}, first.tensor};
      tqcache_codec* made = nullptr;
      tqcache_error* error = nullptr;
      if (!done(tqcache_codec_new(&shape.tensor, static_cast<int>(in_.below(12) == 0 ? 2 : which),
                                  chosen == nullptr ? "mse:4" : chosen,
                                  in_.flag() ? &rope : nullptr, size(0), &made, &error),
                error)) {
        return;
      }
      codecs[which].reset(made);
      if (in_.below(8) != 0) {
        error = nullptr;
        done(tqcache_codec_fit(made, &first.tensor, 1, threads(), &error), error);
      }
      tqcache_codec_tables tables = TQCACHE_INIT(tqcache_codec_tables);
      error = nullptr;
      done(tqcache_codec_read_tables(made, &tables, &error), error);
      const std::int64_t number = size(0);
      std::size_t bytes = 0;
      for (std::int64_t i = 0; i < n_blocks && number == 0; ++i)
        bytes += tqcache_codec_block_bytes(made, i);
      packed[which].resize(near(bytes));
      Room from = make_room(heads, 256 * n_blocks, dim);
      error = nullptr;
      const bool has_encoded =
          done(tqcache_codec_encode(made, &from.tensor, number, packed[which].data(),
                                    packed[which].size(), threads(), &error),
               error);
      if (has_encoded && in_.flag()) {
        Room to = make_room(heads, 256 * n_blocks, dim);
        error = nullptr;
        done(tqcache_codec_decode(made, packed[which].data(), packed[which].size(), number,
                                  &to.tensor, threads(), &error),
             error);
      }
    }
    if (writers_.empty()) return begin_writer();
    rooms_.push_back(make_room(heads, std::max<std::int64_t>(n_tokens_, 0) % 256, dim));
    rooms_.push_back(make_room(heads, std::max<std::int64_t>(n_tokens_, 0) % 256, dim));
    for (auto& each : packed) states_.push_back(std::move(each));
    const auto& keys = states_[states_.size() - 2];
    const auto& values = states_.back();
    tqcache_error* error = nullptr;
    done(tqcache_writer_packed(writers_.back().get(), codecs[0].get(), keys.data(), keys.size(),
                               codecs[1].get(), values.data(), values.size(),
                               &rooms_[rooms_.size() - 2].tensor, &rooms_.back().tensor, &error),
         error);
  }

  void finish_writer() {
    if (writers_.empty()) return;
    tqcache_cache* made = nullptr;
    tqcache_error* error = nullptr;
    if (done(tqcache_writer_cache(writers_.back().get(), &made, &error), error)) keep(made);
  }

  // --- caches

  // Reads into memory of which nothing but the elements may change.
  void read() {
    if (cache() == nullptr) return finish_writer();
    tqcache_cache* const from = some_cache().get();
    tqcache_info info = TQCACHE_INIT(tqcache_info);
    tqcache_get_info(from, &info);
    const std::int64_t layer = size(static_cast<std::int64_t>(in_.below(3)));
    const int which = static_cast<int>(in_.below(3));
    tqcache_layer of = TQCACHE_INIT(tqcache_layer);
    tqcache_error* error = nullptr;
    if (!done(tqcache_get_layer(from, layer, &of, &error), error)) of = {};
    const std::int64_t begin = size(static_cast<std::int64_t>(in_.below(300)));
    const std::int64_t dim =
        which == TQCACHE_VALUES && of.value_dim != 0 ? of.value_dim : of.head_dim;
    const std::int64_t n =
        begin >= 0 && begin < of.n_tokens
            ? 1 + static_cast<std::int64_t>(in_.below(65536)) % (of.n_tokens - begin)
            : 1;
    const auto read_once = [&](Room& room) {
      tqcache_error* failed = nullptr;
      const int code = tqcache_read(from, layer, which, begin, &room.tensor, in_threads_, &failed);
      tqcache_error_free(failed);
      return code;
    };
    in_threads_ = threads();
    Room room = make_room(of.n_kv_heads, n, dim);
    const bool has_padding = !room.is_contiguous;
    if (has_padding) std::ranges::fill(room.bytes, kCanary);
    if (in_.below(4) == 0) {  // any number of threads may use one cache
      Room other = room;
      if (room.tensor.data != nullptr) {
        other.tensor.data = other.bytes.data() +
                            (static_cast<unsigned char*>(room.tensor.data) - room.bytes.data());
      }
      int codes[2] = {};
      std::thread second([&] { codes[1] = read_once(other); });
      codes[0] = read_once(room);
      second.join();
      require(codes[0] == codes[1], "two threads get the same result");
      require(codes[0] != TQCACHE_OK || room.bytes == other.bytes, "and the same values");
      return;
    }
    const int code = read_once(room);
    if (code == TQCACHE_OK && in_.flag()) {
      Room again = room;
      again.tensor.data =
          again.bytes.data() + (static_cast<unsigned char*>(room.tensor.data) - room.bytes.data());
      require(read_once(again) == TQCACHE_OK && again.bytes == room.bytes,
              "values are read alike twice");
    }
  }

  void look() {
    tqcache_cache* const from = cache();
    if (from == nullptr) return;
    tqcache_error* error = nullptr;
    tqcache_bytes* bytes = nullptr;
    if (done(tqcache_describe(from, &bytes, &error), error)) tqcache_bytes_free(bytes);
    tqcache_identity identity{};
    identity.size = in_.one_of<std::size_t>({8, 16, 24, sizeof(identity)});
    tqcache_get_identity(from, &identity);
    const std::int64_t layer = size(static_cast<std::int64_t>(in_.below(3)));
    const std::int64_t index = size(static_cast<std::int64_t>(in_.below(3)));
    tqcache_array array = TQCACHE_INIT(tqcache_array);
    error = nullptr;
    const bool has_array = done(tqcache_get_array(from, layer, index, &array, &error), error);
    error = nullptr;
    bytes = nullptr;
    if (done(tqcache_share_array(from, layer, index, &bytes, &error), error)) {
      require(has_array && tqcache_bytes_size(bytes) == array.n_bytes, "an array has its bytes");
    }
    tqcache_bytes_free(bytes);
    bytes = nullptr;
    error = nullptr;
    std::int64_t n = -1;
    const int which = static_cast<int>(in_.below(3));
    if (done(tqcache_share_block(from, layer, which, index, &bytes, &n, &error), error)) {
      require((n == 0) == (bytes == nullptr), "a block that is not dense has no bytes");
    }
    tqcache_bytes_free(bytes);
  }

  static int stop_at(void* user, std::uint64_t count, std::uint64_t) {
    return count >= *static_cast<std::uint64_t*>(user) ? 1 : 0;
  }

  void convert() {
    tqcache_cache* const from = cache();
    if (from == nullptr) return;
    tqcache_convert_options options = TQCACHE_INIT(tqcache_convert_options);
    options.config = config();
    const std::string compress = text({"zstd", "planes", "none"});
    options.compress = in_.flag() ? nullptr : compress.c_str();
    if (in_.below(16) == 0) options.archive_bits = in_.one_of<double>({3.0, 0.1, std::nan("")});
    if (in_.below(16) == 0) options.archive_mse = in_.one_of<double>({0.01, -1.0});
    options.hide_tokens = in_.flag();
    options.threads = threads();
    std::uint64_t limit = in_.take<std::uint16_t>();
    if (in_.below(8) == 0) {
      options.progress = stop_at;
      options.user = &limit;
    }
    if (in_.below(12) == 0) options.size = in_.one_of<std::size_t>({0, 8, 16, 40, 56});
    tqcache_bytes* bytes = nullptr;
    tqcache_error* error = nullptr;
    if (!done(tqcache_convert_bytes(from, &options, &bytes, &error), error)) {
      require(bytes == nullptr, "a result is written only on success");
      return;
    }
    const auto* const begin = static_cast<const unsigned char*>(tqcache_bytes_data(bytes));
    file_.assign(begin, begin + tqcache_bytes_size(bytes));
    tqcache_bytes_free(bytes);
    tqcache_cache* made = nullptr;
    error = nullptr;
    const int code = tqcache_open_bytes(file_.data(), file_.size(), nullptr, &made, &error);
    require(done(code, error), "a file that was made can be opened");
    keep(made);
  }

  void open_changed() {
    if (file_.empty()) return;
    std::vector<unsigned char> changed = file_;
    const std::size_t n = 1 + in_.below(3);
    for (std::size_t i = 0; i < n; ++i)
      changed[in_.take<std::uint32_t>() % changed.size()] ^= in_.take<std::uint8_t>();
    if (in_.below(4) == 0) changed.resize(in_.take<std::uint32_t>() % changed.size());
    tqcache_open_options options = TQCACHE_INIT(tqcache_open_options);
    options.first_tokens = in_.below(4) == 0 ? size(3) : 0;
    const tqcache_identity identity = this->identity();
    if (in_.below(4) == 0) options.identity = &identity;
    tqcache_cache* made = nullptr;
    tqcache_error* error = nullptr;
    if (done(tqcache_open_bytes(changed.data(), changed.size(), &options, &made, &error), error)) {
      keep(made);
    }
  }

  // --- the codec

  void encode() {
    const std::int64_t dim = in_.one_of<std::int64_t>({32, 64, 33, 128});
    Room from = make_room(1 + static_cast<std::int64_t>(in_.below(2)),
                          in_.one_of<std::int64_t>({256, 1, 100, 512, 300}), dim);
    const int which = static_cast<int>(in_.below(3));
    const tqcache_identity rope = identity();
    const char* const chosen = config();
    tqcache_bytes* made = nullptr;
    tqcache_error* error = nullptr;
    const int code = tqcache_encode(&from.tensor, which, chosen == nullptr ? "mse:4" : chosen,
                                    in_.flag() ? &rope : nullptr, threads(), &made, &error);
    std::size_t bound = 0;
    tqcache_error* of_bound = nullptr;
    const bool is_bound =
        done(tqcache_encode_bound(&from.tensor, which, chosen == nullptr ? "mse:4" : chosen, &bound,
                                  &of_bound),
             of_bound);
    if (!done(code, error)) return;
    const OwnedBytes block(made);
    const void* const data = tqcache_bytes_data(block.get());
    const std::size_t n_bytes = tqcache_bytes_size(block.get());
    require(is_bound && n_bytes <= bound, "no block is larger than its bound");
    tqcache_tensor shape = TQCACHE_INIT(tqcache_tensor);
    int found = -1;
    error = nullptr;
    require(done(tqcache_block_shape(data, n_bytes, &shape, &found, &error), error),
            "a block tells its shape");
    require(found == which && shape.n_heads == from.tensor.n_heads &&
                shape.n_tokens == from.tensor.n_tokens && shape.head_dim == from.tensor.head_dim,
            "which is the one that went in");
    Room to = make_room(shape.n_heads, shape.n_tokens, shape.head_dim);
    error = nullptr;
    done(tqcache_decode(data, n_bytes, &to.tensor, threads(), &error), error);
    if (which != TQCACHE_KEYS || !in_.flag()) return;
    const std::int64_t n_queries = size(2 * shape.n_heads);
    if (n_queries > 64) return;
    const auto n = static_cast<std::size_t>(std::max<std::int64_t>(n_queries, 0));
    std::vector<float> queries(n * static_cast<std::size_t>(shape.head_dim), 0.5f);
    std::vector<float> scores(n * static_cast<std::size_t>(shape.n_tokens));
    error = nullptr;
    done(tqcache_score(data, n_bytes, queries.data(), n_queries, scores.data(), threads(), &error),
         error);
  }

  // --- stores, values, planes

  void use_store() {
    tqcache_error* error = nullptr;
    if (!store_) {
      tqcache_store* opened = nullptr;
      require(done(tqcache_store_open("memory:", nullptr, &opened, &error), error), "memory opens");
      store_.reset(opened);
    }
    const std::string name = text({"a", "b", "", "a name"});
    tqcache_cache* const from = cache();
    if (from != nullptr) {
      tqcache_put_options options = TQCACHE_INIT(tqcache_put_options);
      options.name = in_.flag() ? name.c_str() : nullptr;
      options.config = in_.below(3) == 0 ? config() : nullptr;
      options.replace = in_.flag();
      tqcache_put_report report = TQCACHE_INIT(tqcache_put_report);
      done(tqcache_store_put(store_.get(), from, &options, in_.flag() ? &report : nullptr, &error),
           error);
      tqcache_info info = TQCACHE_INIT(tqcache_info);
      tqcache_get_info(from, &info);
      tqcache_identity identity = TQCACHE_INIT(tqcache_identity);
      tqcache_get_identity(from, &identity);
      std::int64_t found = -1;
      error = nullptr;
      if (info.tokens != nullptr && done(tqcache_store_find(store_.get(), &identity, info.tokens,
                                                            info.n_tokens, size(0), &found, &error),
                                         error)) {
        require(found >= 0 && found <= info.n_tokens, "a prefix is a part of the prompt");
      }
    }
    tqcache_cache* made = nullptr;
    error = nullptr;
    if (done(tqcache_store_get_named(store_.get(), name.c_str(), nullptr, nullptr, &made, &error),
             error) &&
        made != nullptr) {
      keep(made);
    }
    tqcache_bytes* names = nullptr;
    error = nullptr;
    if (done(tqcache_store_names(store_.get(), &names, &error), error)) tqcache_bytes_free(names);
    int existed = 0;
    error = nullptr;
    if (in_.flag()) done(tqcache_store_remove(store_.get(), name.c_str(), &existed, &error), error);
  }

  // Pieces of memory of any sizes, with `value` in them.
  std::vector<tqcache_part> parts_of(std::vector<std::vector<unsigned char>>& memory) {
    memory.resize(in_.below(4));
    std::vector<tqcache_part> parts;
    for (auto& each : memory) {
      each.assign(in_.one_of<std::size_t>({0, 1, 7, 64, 1000}), in_.take<std::uint8_t>());
      parts.push_back({each.data(), each.size()});
    }
    return parts;
  }

  void use_values() {
    tqcache_error* error = nullptr;
    if (!values_) {
      tqcache_values_options options = TQCACHE_INIT(tqcache_values_options);
      options.planes = in_.one_of<std::int32_t>({0, 2, 4, 1, -2});
      const std::string name = text({"mine", "", "A", ".x"});
      tqcache_values* opened = nullptr;
      if (!done(tqcache_values_open("memory:", name.c_str(), &options, &opened, &error), error))
        return;
      values_.reset(opened);
    }
    const std::string key = text({"one", "two", ""});
    const std::string meta(in_.below(20), 'm');
    std::vector<std::vector<unsigned char>> memory, room;
    const auto parts = parts_of(memory);
    int stored = -1;
    error = nullptr;
    done(tqcache_values_put(values_.get(), key.c_str(), meta.data(), meta.size(), parts.data(),
                            parts.size(), &stored, &error),
         error);
    const auto into = in_.flag() ? parts : parts_of(room);
    int found = -1;
    error = nullptr;
    if (done(tqcache_values_read(values_.get(), key.c_str(), meta.data(), meta.size(), into.data(),
                                 into.size(), &found, &error),
             error)) {
      require(found == 0 || found == 1, "found or not");
    }
    tqcache_bytes* bytes = nullptr;
    error = nullptr;
    if (done(tqcache_values_get(values_.get(), key.c_str(), meta.data(), meta.size(), &bytes,
                                &error),
             error)) {
      tqcache_bytes_free(bytes);
    }
    const char* const keys[] = {"one", key.c_str(), "three"};
    std::uint8_t exists[3] = {9, 9, 9};
    error = nullptr;
    if (done(tqcache_values_exist(values_.get(), keys, 3, exists, &error), error)) {
      require(exists[0] < 2 && exists[1] < 2 && exists[2] == 0, "a key exists or does not");
    }
    std::uint64_t n = 0, total = 0;
    error = nullptr;
    if (in_.flag())
      done(tqcache_values_trim(values_.get(), in_.take<std::uint16_t>(), &n, &total, &error),
           error);
    error = nullptr;
    if (in_.flag()) done(tqcache_values_remove(values_.get(), key.c_str(), &stored, &error), error);
  }

  void use_planes() {
    std::vector<std::vector<unsigned char>> memory;
    const auto parts = parts_of(memory);
    const std::int32_t planes = in_.one_of<std::int32_t>({0, 2, 4, 3});
    tqcache_bytes* packed = nullptr;
    tqcache_error* error = nullptr;
    if (!done(tqcache_planes_encode(parts.data(), parts.size(), planes, threads(), &packed, &error),
              error))
      return;
    const auto* const begin = static_cast<const unsigned char*>(tqcache_bytes_data(packed));
    std::vector<unsigned char> bytes(begin, begin + tqcache_bytes_size(packed));
    tqcache_bytes_free(packed);
    const auto before = memory;
    std::uint64_t n = 0;
    error = nullptr;
    require(done(tqcache_planes_size(bytes.data(), bytes.size(), &n, &error), error),
            "planes have a size");
    error = nullptr;
    require(done(tqcache_planes_decode(bytes.data(), bytes.size(), parts.data(), parts.size(),
                                       threads(), &error),
                 error),
            "planes come back");
    require(memory == before, "as they were");
    if (bytes.empty()) return;
    bytes[in_.take<std::uint32_t>() % bytes.size()] ^= in_.take<std::uint8_t>();
    error = nullptr;
    done(tqcache_planes_decode(bytes.data(), bytes.size(), parts.data(), parts.size(), 1, &error),
         error);
  }

  Input in_;
  std::string words_;
  std::vector<unsigned char> file_;
  std::int64_t n_tokens_ = 0;
  unsigned in_threads_ = 1;
  // What writers and caches refer to. Freed after them.
  std::deque<Room> rooms_;
  std::deque<std::int64_t> fails_at_;
  std::deque<std::vector<unsigned char>> states_;
  std::deque<Owned<tqcache_writer, tqcache_writer_free>> writers_;
  std::vector<OwnedCache> caches_;
  Owned<tqcache_store, tqcache_store_free> store_;
  Owned<tqcache_values, tqcache_values_free> values_;
};

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const tbb::global_control two(tbb::global_control::max_allowed_parallelism, 2);
  tqcache::Machine(tqcache::fuzz::view_of(data, size)).run();
  return 0;
}
