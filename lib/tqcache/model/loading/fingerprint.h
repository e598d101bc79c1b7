#pragma once
// model/loading/fingerprint.h: names a model's weights, so that a cache is only used with the weights that
// made it.
//
// SHA-256 over every tensor's GGUF name, type and shape and a sample of its bytes: 16 pieces of
// 4 KiB, spread evenly, the first and the last included (all bytes of a tensor up to 64 KiB).
// A sample, because a model of 16 GB would take a minute to read: fine-tuning changes nearly
// every tensor everywhere, so what differs differs in the sample. It is no proof against someone
// who sets out to make two models alike.
//
// Spec: docs/reference/format.md §Fingerprints. The tokenizer's stands in model/tokenizer.h.

#include <map>
#include <string>

#include "tqcache/base/hash.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::model {

// Shapes: `tensors` by GGUF name, all tensors of the model.
// Bytes:  the same for the same tensors, whatever file or files they come from.
Sha256 weights_fingerprint(const std::map<std::string, tensors::TensorView>& tensors);

}  // namespace tqcache::model
