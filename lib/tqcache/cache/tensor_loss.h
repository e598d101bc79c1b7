#pragma once
// cache/tensor_loss.h: how much of what tells tokens apart a codec takes from K or V.
//
//   const TensorLoss loss = measure_loss(codec, block, packed, rope);
//
// Spec: docs/explain/quality.md, "Tensors that quantize badly".

#include <memory>

#include "tqcache/bytes.h"
#include "tqcache/cache/rope_angles.h"
#include "tqcache/kv_codec.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {

// The loss of one token block; `layer` and `kind` are left to the caller.
//
// Shapes: packed [codec.packed_bytes(block.index)]: the code of `block`. rope: of keys, null if
//         there is none or it is not known.
TensorLoss measure_loss(const KvCodec& codec, const FullBlock& block, ByteView packed,
                        const std::shared_ptr<const RopeTable>& rope);

}  // namespace tqcache::cache
