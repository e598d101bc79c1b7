#include "tqcache/format/compression.h"

#include <zstd.h>
#include <zstd_errors.h>

#include <new>
#include <string>
#include <utility>

#include "tqcache/base/pool.h"

namespace tqcache::format {
namespace {

constexpr int kMinLevel = 1;
constexpr int kMaxLevel = 19;  // above it zstd wants windows that a reader may refuse

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

template <class Context>
std::unique_ptr<Context, FreeContext> made(Context* context) {
  if (context == nullptr) throw std::bad_alloc();
  return std::unique_ptr<Context, FreeContext>(context);
}

// zstd fails on good parameters only for want of memory.
std::size_t require(std::size_t result) {
  if (ZSTD_isError(result)) throw std::bad_alloc();
  return result;
}

Error corrupt_frame(std::string fact) { return {ErrorCode::kCorrupt, "zstd: " + std::move(fact)}; }

}  // namespace

struct Compressor::State {
  int level = 0;
  Pool<ZSTD_CCtx, FreeContext> contexts;
};

Compressor::Compressor(std::unique_ptr<State> state) : state_(std::move(state)) {}
Compressor::Compressor(Compressor&&) noexcept = default;
Compressor::~Compressor() = default;

Result<Compressor> Compressor::make(int level) {
  if (level < kMinLevel || level > kMaxLevel) {
    return Error{ErrorCode::kInvalidArgument,
                 "zstd level " + std::to_string(level) + " is not 1 to 19"};
  }
  auto state = std::make_unique<State>();
  state->level = level;
  return Compressor(std::move(state));
}

Result<bool> Compressor::compress(ByteView raw, Bytes& frame) const {
  if (raw.empty()) return false;
  const auto context = state_->contexts.borrow([] { return made(ZSTD_createCCtx()); });
  require(ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, state_->level));

  frame.resize(raw.size() - 1);
  const std::size_t size =
      ZSTD_compress2(context.get(), frame.data(), frame.size(), raw.data(), raw.size());
  if (ZSTD_getErrorCode(size) == ZSTD_error_dstSize_tooSmall) {
    frame.clear();
  } else {
    frame.resize(require(size));
  }
  return !frame.empty();
}

struct Decompressor::State {
  Pool<ZSTD_DCtx, FreeContext> contexts;
};

Decompressor::Decompressor() : state_(std::make_unique<State>()) {}
Decompressor::~Decompressor() = default;

Result<void> Decompressor::check_frame(ByteView frame, std::uint64_t raw_size) {
  const std::size_t frame_size = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (ZSTD_isError(frame_size)) return corrupt_frame(ZSTD_getErrorName(frame_size));
  if (frame_size != frame.size()) {
    return corrupt_frame(std::to_string(frame.size() - frame_size) + " bytes behind the frame");
  }
  // Also refuses a frame that does not say, and skippable frames, which say 0.
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != raw_size || raw_size == 0) {
    return corrupt_frame("the frame does not say that it holds " + std::to_string(raw_size) +
                         " bytes");
  }
  return {};
}

Result<void> Decompressor::decompress(ByteView frame, std::span<std::byte> raw) const {
  const auto context = state_->contexts.borrow([] { return made(ZSTD_createDCtx()); });
  const std::size_t size =
      ZSTD_decompressDCtx(context.get(), raw.data(), raw.size(), frame.data(), frame.size());
  if (ZSTD_isError(size)) return corrupt_frame(ZSTD_getErrorName(size));
  if (size != raw.size()) return corrupt_frame("holds " + std::to_string(size) + " bytes");
  return {};
}

}  // namespace tqcache::format
