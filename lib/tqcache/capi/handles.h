#pragma once
// capi/handles.h: the objects behind the handles of the C interface, and the conversion of errors,
// options and descriptions.
//
// Spec: docs/reference/c_interface.md.

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/key_factors.h"
#include "tqcache/cache/rope_angles.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/eval.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/kv_codec.h"
#include "tqcache/progress.h"
#include "tqcache/quantize.h"
#include "tqcache/reader.h"
#include "tqcache/store.h"
#include "tqcache/store/values/values.h"
#include "tqcache/tqcache.h"

struct tqcache_error {
  int code = TQCACHE_FAILED;
  std::string message;
  std::string file;
};

struct tqcache_bytes {
  tqcache::SharedBytes shared;  // either these
  tqcache::Bytes own;           // or these

  tqcache::ByteView view() const { return shared.size() > 0 ? shared.view() : own; }
};

struct tqcache_codec {
  tqcache::cache::KvCodec codec;
  tqcache::codec::CodecSpec spec;
  tqcache::cache::KeyFactors factors = {};
  // Of keys whose mean rotates:
  std::vector<double> frequencies = {};
  std::optional<tqcache::cache::RopeTable> rope = {};
};

struct tqcache_model {
  tqcache::cache::Identity identity;
};

struct tqcache_profile {
  tqcache::eval::Profile profile;
};

struct tqcache_cache {
  std::string kind;
  std::shared_ptr<const tqcache::cache::CacheReader> reader;
  std::string path;  // empty: not a file
  std::string content_digest;
  std::string notes;
  std::uint64_t file_bytes = 0;
  bool encrypted = false;

  // Of a mapped .tqkv file: its bytes, and the reader of its sections.
  tqcache::SharedBytes mapped = {};
  std::shared_ptr<const tqcache::format::SectionReader> sections = {};
  bool trusted = false;

  // Filled by finish_cache().
  std::optional<tqcache::cache::BlockIndex> index = {};
  struct LayerText {
    std::string key_codec, value_codec;
    std::vector<tqcache::cache::ArrayDesc> arrays;
  };
  std::vector<LayerText> texts = {};

  // Made when a quantized block is first read.
  struct Codecs {
    std::once_flag once;
    std::optional<tqcache::Error> error;
    std::vector<tqcache::cache::LayerCodecs> layers;
  };
  std::unique_ptr<Codecs> codecs = std::make_unique<Codecs>();
};

namespace tqcache::capi {

// The code of the program for an error.
int code_of(ErrorCode code);

// Fills *error, if it is wanted; returns the code. `noexcept`: without memory there is a code only.
int report_error(const Error& error, tqcache_error** out) noexcept;

// Runs `body`, a function that returns a Result<void>, for a function of the interface.
template <class Body>
int guarded(tqcache_error** error, const Body& body) noexcept {
  try {
    const Result<void> result = body();
    return result ? int{TQCACHE_OK} : report_error(result.error(), error);
  } catch (const std::bad_alloc&) {
    return report_error({ErrorCode::kIo, "out of memory"}, error);
  } catch (const std::exception& failure) {
    return report_error({ErrorCode::kIo, failure.what()}, error);
  } catch (...) {
    return report_error({ErrorCode::kIo, "unknown failure"}, error);
  }
}

// The fields of the caller's struct that this library knows; 0 for those that the caller's header
// did not have. Null: all 0.
// Errors: kInvalidArgument if `size` is not set.
template <class Struct>
Result<Struct> known_fields(const Struct* from) {
  Struct to{};
  if (from == nullptr) return to;
  if (from->size < sizeof(std::size_t)) return invalid("a struct without its size: TQCACHE_INIT");
  std::memcpy(&to, from, std::min(from->size, sizeof(Struct)));
  return to;
}

// Copies the fields that the caller's header has. Requires: to->size is set.
template <class Struct>
void give_fields(Struct from, Struct* to) {
  from.size = to->size;
  std::memcpy(to, &from, std::min(to->size, sizeof(Struct)));
}

inline Progress to_progress(tqcache_progress progress, void* user) {
  if (progress == nullptr) return {};
  return [progress, user](std::uint64_t done, std::uint64_t total) {
    return progress(user, done, total) == 0;
  };
}

// Errors: those of KeyRing::read_file(). Null or "": no keys.
Result<KeyRing> read_keys(const char* key_file);
// The same keys, with the profiles in the folder that TQCACHE_PROFILES names.
Result<format::Access> make_access(const char* key_file);

// Requires: the pointers of `from` are valid. Errors: kInvalidArgument.
Result<cache::Identity> to_identity(const tqcache_identity* from);
// The pointers of the result are those of `from`.
tqcache_identity from_identity(const cache::Identity& from);

// A tensor of the caller's, checked, with strides in elements.
struct TensorView {
  std::byte* data = nullptr;
  Dtype dtype = Dtype::kF32;
  std::int64_t n_heads = 0, n_tokens = 0, head_dim = 0;
  std::int64_t head_stride = 0, token_stride = 0, component_stride = 0;

  std::byte* row(std::int64_t head, std::int64_t token) const {
    return data + (head * head_stride + token * token_stride) *
                      static_cast<std::int64_t>(dtype_size(dtype));
  }
};
// Errors: kInvalidArgument. `needs_data`: `data` may not be null if there are values.
Result<TensorView> to_tensor(const tqcache_tensor* from, bool needs_data = true);

// Converts `count` rows of head_dim values, contiguous in `rows`, to tokens [token, token + count)
// of a head of `to`; and back.
void write_rows(ByteView rows, Dtype dtype, const TensorView& to, std::int64_t head,
                std::int64_t token, std::int64_t count);
void read_rows(const TensorView& from, std::int64_t head, std::int64_t token, std::int64_t count,
               std::span<std::byte> rows);

// Completes a handle whose reader is set.
std::unique_ptr<tqcache_cache> finish_cache(tqcache_cache cache);

// The codecs of all layers. Errors: those of make_codecs().
Result<const std::vector<cache::LayerCodecs>*> codecs_of(const tqcache_cache& cache);

// The bytes of a block, in place where the file is mapped, plain and uncompressed.
// Errors: those of the reader.
Result<SharedBytes> share_in_place(const tqcache_cache& cache, std::size_t block);

// Whether TQCACHE_KEYS or TQCACHE_VALUES. Errors: kInvalidArgument for anything else.
Result<bool> is_keys_word(int which);

// The options of one tensor: "mse:4,sink=4" means "k=mse:4,sink=4". No first tokens stay dense
// unless the text says so. Errors: kInvalidArgument, also where it quantizes nothing.
Result<cache::ConvertOptions> parse_block_options(const char* config, bool is_keys,
                                                  unsigned threads);

// A cache of tensors in the caller's memory. Without token ids they are unknown.
class CallerCache : public cache::CacheReader {
 public:
  // A function of the caller's that writes tokens where it is told; called by one thread at a time.
  struct Filler {
    tqcache_fill call = nullptr;
    void* user = nullptr;
    std::mutex mutex = {};
  };
  struct Source {
    std::vector<TensorView> tensors;       // keys, values; without data: zeros
    std::vector<const std::byte*> arrays;  // of recurrent state
    std::shared_ptr<Filler> filler = {};   // has the values of `tensors`, which have no data
    // Packed blocks of keys and of values, one behind the other; `tensors` are the tokens behind
    // them. Empty: nothing is packed.
    std::vector<ByteView> packed = {};
  };
  // Errors: those of cache::validate(CacheDesc).
  static Result<std::shared_ptr<const CallerCache>> make(cache::CacheDesc description,
                                                         std::vector<Source> sources);

  const cache::CacheDesc& description() const override { return description_; }
  const std::vector<cache::BlockInfo>& blocks() const override { return blocks_; }
  // Errors: kCorrupt for values that are not finite.
  Result<void> read(std::size_t block, AlignedBytes& raw) const override;

 private:
  cache::CacheDesc description_;
  std::vector<Source> sources_;
  std::vector<cache::BlockInfo> blocks_;
};

// What a configuration makes of a cache: quantized, dense or as it is.
struct Conversion {
  std::shared_ptr<const cache::CacheReader> reader;
  cache::ConvertOptions options;
};
// Errors: those of the configuration, and of dequantize().
Result<Conversion> apply_config(const tqcache_cache& cache, const char* config, unsigned threads);

}  // namespace tqcache::capi
