#pragma once
// model/loading/gguf_parts.h: the tensors of a GGUF model that stands in one file or in several. Safe for
// untrusted input.
//
// A split model is named by its first part, NAME-00001-of-00003.gguf, which has the metadata; the
// others stand beside it. Every part tells its number, split.no from 0 on, and how many there are,
// split.count; split.tensors.count is the number of tensors in all of them.
//
// Source: llama.cpp src/llama-model-loader.cpp, tools/gguf-split.

#include <filesystem>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/model/loading/model_files.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::model {

// Maps the other parts of a model whose first one is mapped and read; none if it is not split.
//
// Errors: kInvalidArgument (`path` is another part than the first, or has not the name of one);
//         kNotFound, kIo and those of read_gguf (the message names the file); kCorrupt (parts that
//         contradict each other, a tensor that comes twice); kTooLarge (more than 1,024 parts).
Result<ModelTensors> map_gguf_parts(const std::filesystem::path& path, MappedFile mapped,
                                    const tensors::Gguf& first);

}  // namespace tqcache::model
