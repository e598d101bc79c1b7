#include "tqcache/format/sections/compression.h"

#include <zstd.h>
#include <zstd_errors.h>

#include <new>
#include <string>
#include <utility>

#include "tqcache/base/pool.h"

namespace tqcache::format {
namespace {

constexpr int kMinLevel = 1;
constexpr int kMaxLevel = 19;  // above it zstd uses windows that a reader may reject

// For Compressor::for_planes(): only long repetitions, found with few search positions.
constexpr int kPlaneMinMatch = 7;
constexpr int kPlaneHashLog = 6;

// Frame limits, RFC 8878 §3.1.1. The densest frame repeats a byte: a block of 4 bytes (header and
// byte) makes 128 KiB, and the frame's own header takes more than one such block.
constexpr std::uint64_t kMaxBlockContent = std::uint64_t{128} << 10;
constexpr std::uint64_t kMinBlockBytes = 4;
constexpr std::uint64_t kMaxWindowBytes = std::uint64_t{128} << 20;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

template <class Context>
std::unique_ptr<Context, FreeContext> made(Context* context) {
  if (context == nullptr) throw std::bad_alloc();
  return std::unique_ptr<Context, FreeContext>(context);
}

// With valid parameters zstd fails only if memory runs out.
std::size_t require(std::size_t result) {
  if (ZSTD_isError(result)) throw std::bad_alloc();
  return result;
}

Error corrupt_frame(std::string fact) { return {ErrorCode::kCorrupt, "zstd: " + std::move(fact)}; }

// How far back a frame's blocks may refer; 0 if as far as the content reaches. RFC 8878 §3.1.1.1.
// Requires: the frame's header is complete.
std::uint64_t window_bytes(ByteView frame) {
  const auto descriptor = std::to_integer<unsigned>(frame[4]);  // after the magic number
  const bool is_single_segment = (descriptor & 0x20) != 0;
  if (is_single_segment) return 0;
  const auto window = std::to_integer<unsigned>(frame[5]);
  const std::uint64_t base = std::uint64_t{1} << (10 + (window >> 3));
  return base + base / 8 * (window & 7);
}

// Checks the claims of a frame's header before its content is used.
Result<void> check_frame_header(ByteView frame, std::uint64_t raw_size) {
  // Also rejects frames without a content size, and skippable frames, which report 0.
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != raw_size || raw_size == 0) {
    return corrupt_frame("the frame does not say that it holds " + std::to_string(raw_size) +
                         " bytes");
  }
  if (raw_size > frame.size() / kMinBlockBytes * kMaxBlockContent) {
    return corrupt_frame("a frame of " + std::to_string(frame.size()) + " bytes cannot hold " +
                         std::to_string(raw_size));
  }
  if (ZSTD_getDictID_fromFrame(frame.data(), frame.size()) != 0) {
    return corrupt_frame("the frame needs a dictionary");
  }
  if (window_bytes(frame) > kMaxWindowBytes) {
    return corrupt_frame("the frame needs a window of " + std::to_string(window_bytes(frame)) +
                         " bytes");
  }
  return {};
}

}  // namespace

struct Compressor::State {
  int level = 1;
  bool for_planes = false;
  Pool<ZSTD_CCtx, FreeContext> contexts;

  void set(ZSTD_CCtx* context) const {
    require(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level));
    if (!for_planes) return;
    require(ZSTD_CCtx_setParameter(context, ZSTD_c_strategy, ZSTD_fast));
    require(ZSTD_CCtx_setParameter(context, ZSTD_c_minMatch, kPlaneMinMatch));
    require(ZSTD_CCtx_setParameter(context, ZSTD_c_hashLog, kPlaneHashLog));
  }
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

Compressor Compressor::for_planes() {
  auto state = std::make_unique<State>();
  state->for_planes = true;
  return Compressor(std::move(state));
}

bool Compressor::compress(ByteView raw, Bytes& frame) const {
  frame.resize(raw.empty() ? 0 : raw.size() - 1);
  frame.resize(compress_into(raw, frame));
  return !frame.empty();
}

std::size_t Compressor::compress_into(ByteView raw, std::span<std::byte> room) const {
  const auto context = state_->contexts.borrow([] { return made(ZSTD_createCCtx()); });
  state_->set(context.get());
  const std::size_t size =
      ZSTD_compress2(context.get(), room.data(), room.size(), raw.data(), raw.size());
  return ZSTD_getErrorCode(size) == ZSTD_error_dstSize_tooSmall ? 0 : require(size);
}

std::size_t Compressor::compress_pieces(ByteView raw, std::span<const std::size_t> sizes,
                                        std::span<std::byte> room) const {
  const auto context = state_->contexts.borrow([] { return made(ZSTD_createCCtx()); });
  require(ZSTD_CCtx_reset(context.get(), ZSTD_reset_session_only));
  state_->set(context.get());
  require(ZSTD_CCtx_setPledgedSrcSize(context.get(), raw.size()));
  ZSTD_outBuffer out{room.data(), room.size(), 0};
  for (std::size_t i = 0, at = 0; i < sizes.size(); at += sizes[i], ++i) {
    ZSTD_inBuffer in{raw.data() + at, sizes[i], 0};
    const auto end = i + 1 < sizes.size() ? ZSTD_e_flush : ZSTD_e_end;
    // Some output is left, but `room` is full.
    if (require(ZSTD_compressStream2(context.get(), &out, &in, end)) != 0) {
      require(ZSTD_CCtx_reset(context.get(), ZSTD_reset_session_only));
      return 0;
    }
  }
  return out.pos;
}

struct Decompressor::State {
  Pool<ZSTD_DCtx, FreeContext> contexts;
};

const char* zstd_version() { return ZSTD_versionString(); }

Decompressor::Decompressor() : state_(std::make_unique<State>()) {}
Decompressor::~Decompressor() = default;

Result<void> Decompressor::check_frame(ByteView frame, std::uint64_t raw_size) {
  const std::size_t frame_size = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (ZSTD_isError(frame_size)) return corrupt_frame(ZSTD_getErrorName(frame_size));
  if (frame_size != frame.size()) {
    return corrupt_frame(std::to_string(frame.size() - frame_size) + " bytes behind the frame");
  }
  return check_frame_header(frame, raw_size);
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
