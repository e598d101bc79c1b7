#pragma once
// cuda/tile_stream.cuh: tiles of packed codes on their way from global to shared memory.

#include "tqcache/cuda/attention_args.cuh"
#include "tqcache/cuda/copy_async.cuh"
#include "tqcache/cuda/packed_tile.cuh"

namespace tqcache::cuda {

// The size for which this code is compiled. Host code asks for every size (Choice::launches).
#ifdef __CUDA_ARCH__
constexpr int kMemorySize = memory_size_of(__CUDA_ARCH__ / 10);
#else
constexpr int kMemorySize = 0;
#endif

// Shared memory of a block of threads. kTurns: the keys' mean rotates with RoPE.
template <int kHeadDim, int kKeys, int kValues, bool kTurns, int kSize = kMemorySize>
struct Shape {
  static constexpr int kDim = kHeadDim, kKeyBits = kKeys, kValueBits = kValues;
  static constexpr bool kDenseKeys = kKeyBits == kDenseBits;
  static constexpr int kUnits = kDim / 32;
  static constexpr int kKeyTile = kDenseKeys ? kTile * kDim * 2 : 2 * kUnits * slot_bytes(kKeyBits);
  static constexpr int kValueTile = 2 * kUnits * slot_bytes(kValueBits);
  static constexpr int kScales = kTile * 2;
  static constexpr bool kIsLarge = kSize == 0;
  static constexpr int kStage = kKeyTile + kValueTile + 2 * kScales;
  static constexpr int kKeyEntries = kDenseKeys ? 0 : table_entries(kKeyBits);
  static constexpr int kValueEntries = table_entries(kValueBits);
  static constexpr int kTable =
      (kKeyEntries > kValueEntries ? kKeyEntries : kValueEntries) * kTableRow;
  static constexpr int kQueries = kColumns * kDim * 2;
  static constexpr int kNumbers = 2 * kColumns * 4;  // query factors and constants
  static constexpr int kPrefix = (kMaxSequences + 4) * 4;
  static constexpr int kFixed = (kTable + kQueries + kNumbers + kPrefix + 127) / 128 * 128;
  // Sums that warps pass on at the end of a piece: some columns of half of the warps. Few where
  // memory is short.
  static constexpr int merge_columns(int stages) { return kIsLarge && stages < 3 ? 4 : 2; }
  static constexpr int merge_bytes(int warps, int stages) {
    return (warps + 1) / 2 * merge_columns(stages) * kDim * 4;
  }
  static constexpr int shared_bytes(int warps, int stages, int rows) {
    return kFixed + warps * (stages * kStage + 2 * kColumns * 4) + merge_bytes(warps, stages) +
           rows;
  }
  // More warps leave fewer registers to each: on smaller GPUs too few for some.
  static constexpr int kWarpLimit = kIsLarge ? (kDim <= 128 ? 16 : 8) : (kDim <= 64 ? 12 : 8);
  static constexpr int most_warps(int stages, int rows) {
    for (const int warps : {16, 12, 8, 6, 4, 3, 2}) {
      if (warps <= kWarpLimit && shared_bytes(warps, stages, rows) <= kMemorySizes[kSize]) {
        return warps;
      }
    }
    return 1;
  }
  // Tiles of a warp in shared memory. Three or two where enough warps fit all the same. With one,
  // keys are copied while values are added, and values while keys are scored.
  static constexpr int stages(int rows) {
    if (kIsLarge) return kDim <= 128 && most_warps(3, rows) >= 12 ? 3 : 2;
    return most_warps(2, rows) >= 8 ? 2 : 1;
  }
  static constexpr int warps(int rows) { return most_warps(stages(rows), rows); }
  // Rows of sinusoids, where they cost no warps.
  static constexpr int kRowBytes = kBlockTiles * kEarlySteps * 1024;
  static constexpr int kRows = kTurns && kIsLarge && warps(kRowBytes) == warps(0) ? kRowBytes : 0;
  static constexpr int kStages = stages(kRows);
  static constexpr int kWarps = warps(kRows);
  static constexpr int kMergeColumns = merge_columns(kStages);
  // For each tile: 255 registers do not hold them too. Larger GPUs spill a little instead.
  static constexpr bool kReloadsQueries = kDim > 128 && !kIsLarge;
  static constexpr int kMaxima = 2 * kWarps * kColumns * 4;
  static constexpr int kMerge = merge_bytes(kWarps, kStages);
  static constexpr int kShared = shared_bytes(kWarps, kStages, kRows);
};

// One warp's stream of tiles of one segment (a kv head of a sequence), from global to shared
// memory.
template <class S>
class TileStream {
  static constexpr int kDim = S::kDim, kKeyBits = S::kKeyBits, kValueBits = S::kValueBits;

 public:
  __device__ TileStream(const AttendArgs& p, std::uint8_t* ring, int lane)
      : p_(p), ring_(ring), lane_(lane) {}

  // Begins with tiles first, first + kWarps, ... below last. Requires: nothing of the ring is
  // needed.
  __device__ __forceinline__ void start(int sequence, int head, int first, int last) {
    first_page_ = static_cast<long long>(sequence) * p_.max_blocks;
    first_ = first;
    n_ = first < last ? (last - first + S::kWarps - 1) / S::kWarps : 0;
    const auto begin = [&](const TensorArgs& tensor, int head_bytes) {
      return tensor.data + head * static_cast<long long>(head_bytes) + lane_ * 16;
    };
    const int key_bytes = S::kDenseKeys ? kPageTokens * kDim * 2 : p_.k.code_bytes;
    keys_ = begin(p_.k, key_bytes);
    values_ = begin(p_.v, p_.v.code_bytes);
    key_scales_ = p_.k.scales_at + head * (p_.k.row_bytes - key_bytes);
    value_scales_ = p_.v.scales_at + head * (p_.v.row_bytes - p_.v.code_bytes);
#pragma unroll 1
    for (int i = 0; i < S::kStages; ++i) {
      slot_ = i * S::kStage;
      copy_keys(i);
      copy_values(i);
    }
    slot_ = 0;
  }

  __device__ __forceinline__ int size() const { return n_; }
  __device__ __forceinline__ int tile(int i) const { return first_ + i * S::kWarps; }
  // Of the tile at hand.
  __device__ __forceinline__ const std::uint8_t* keys() const { return ring_ + slot_; }
  __device__ __forceinline__ const std::uint8_t* values() const { return keys() + S::kKeyTile; }
  __device__ __forceinline__ const __half* key_scales() const {
    return reinterpret_cast<const __half*>(values() + S::kValueTile);
  }
  __device__ __forceinline__ const __half* value_scales() const { return key_scales() + kTile; }
  __device__ __forceinline__ void advance() {
    slot_ += S::kStage;
    if (slot_ == S::kStages * S::kStage) slot_ = 0;
  }

  // Begins to copy the keys of tile i to the place of the tile at hand, from which kStages turns
  // lead to it. Called for i = 0, 1, 2, ...; copy_values(i) follows each.
  __device__ __forceinline__ void copy_keys(int i) {
    if (i < n_) {
      if (i % 32 == 0) look_ahead(i);
      const std::uint8_t* const page = page_of(keys_, p_.k, key_pages_, i);
      std::uint8_t* const to = ring_ + slot_;
      const unsigned place = static_cast<unsigned>(tile(i)) % kBlockTiles;
      if constexpr (S::kDenseKeys) {
        const std::uint8_t* const from = page + place * (kTile * kDim * 2);
        constexpr int kRowChunks = kDim / 8;
#pragma unroll
        for (int k = 0; k < kTile * kRowChunks / 32; ++k) {
          const int c = k * 32 + lane_, row = c / kRowChunks, chunk = c % kRowChunks;
          copy_async(to + row * kDim * 2 + (chunk ^ ((row >> 2 & 1) << 2)) * 16, from + k * 512);
        }
      } else {
        copy_codes<kKeyBits, kKeyBits * 64>(to, page + place * (2 * S::kUnits * kKeyBits * 64));
        copy_scales(page + key_scales_, place, to + S::kKeyTile + S::kValueTile);
      }
    }
    commit_copies();
  }

  __device__ __forceinline__ void copy_values(int i) {
    if (i < n_) {
      const std::uint8_t* const page = page_of(values_, p_.v, value_pages_, i);
      std::uint8_t* const to = ring_ + slot_ + S::kKeyTile;
      const unsigned place = static_cast<unsigned>(tile(i)) % kBlockTiles;
      copy_codes<kValueBits, kBlockTiles * kValueBits * 64>(to, page + place * (kValueBits * 64));
      copy_scales(page + value_scales_, place, to + S::kValueTile + S::kScales);
    }
    commit_copies();
  }

 private:
  // The pages of tiles i .. i + 31, one a lane.
  __device__ __forceinline__ void look_ahead(int i) {
    const int at = i + lane_ < n_ ? i + lane_ : n_ - 1;
    const long long place = first_page_ + tile(at) / kBlockTiles;
    key_pages_ = p_.k.table == nullptr ? static_cast<int>(place) : p_.k.table[place];
    value_pages_ = p_.v.table == nullptr ? static_cast<int>(place) : p_.v.table[place];
  }
  __device__ __forceinline__ const std::uint8_t* page_of(const std::uint8_t* first,
                                                         const TensorArgs& tensor, int pages,
                                                         int i) {
    const int page = __shfl_sync(~0u, pages, i % 32);
    // A product of two i32: pages are smaller than 2 GB, and may be before the first one.
    return first + static_cast<long long>(page) * static_cast<int>(tensor.page_bytes);
  }
  // Slots that are kFrom bytes apart. `from` is this lane's.
  template <int kBits, int kFrom>
  __device__ __forceinline__ void copy_codes(std::uint8_t* to, const std::uint8_t* from) {
    constexpr int kSlotChunks = kBits * 4, kChunks = 2 * S::kUnits * kSlotChunks;
    constexpr int kGap = kFrom - kSlotChunks * 16;
    if constexpr (32 % kSlotChunks == 0) from += lane_ / kSlotChunks * kGap;
#pragma unroll
    for (int k = 0; k < (kChunks + 31) / 32; ++k) {
      const int c = k * 32 + lane_;
      if (kChunks % 32 != 0 && c >= kChunks) break;
      if constexpr (32 % kSlotChunks == 0) {  // slots are powers of two, and without gaps
        copy_async(to + swizzled(lane_ * 16) + k * 512, from + k * (32 / kSlotChunks) * kFrom);
      } else {
        const int slot = c / kSlotChunks;
        copy_async(to + swizzled(slot * slot_bytes(kBits) + c % kSlotChunks * 16),
                   from + slot * kGap + k * 512);
      }
    }
  }
  __device__ __forceinline__ void copy_scales(const std::uint8_t* from, unsigned place,
                                              std::uint8_t* to) {
    if (lane_ < S::kScales / 16) copy_async(to + lane_ * 16, from + place * S::kScales);
  }

  const AttendArgs& p_;
  long long first_page_ = 0;
  int first_ = 0, n_ = 0;
  const std::uint8_t *keys_ = nullptr, *values_ = nullptr;  // this lane's, of the head in page 0
  int key_scales_ = 0, value_scales_ = 0;                   // bytes from these
  std::uint8_t* ring_;
  int slot_ = 0;  // byte of the tile at hand
  int lane_;
  int key_pages_ = 0, value_pages_ = 0;
};

}  // namespace tqcache::cuda
