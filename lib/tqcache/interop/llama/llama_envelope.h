#pragma once
// interop/llama/llama_envelope.h: the list of tokens that a state file of llama.cpp begins with. Safe for
// untrusted input.
//
// Spec: docs/reference/interop.md, "llama.cpp".

#include <cstdint>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::interop {

inline constexpr std::uint32_t kSessionMagic = 0x6767736e;   // "ggsn"
inline constexpr std::uint32_t kSequenceMagic = 0x67677371;  // "ggsq"
inline constexpr std::uint64_t kEnvelopeBytes = 12;

struct LlamaTokens {
  std::vector<std::int32_t> ids;
  bool is_wrapped = false;  // as llama-server writes the list
  std::uint64_t end = 0;    // of the list in the file: where the state begins
};

// Requires: `envelope` is what read_llama_envelope() made of the file.
// Errors:   kTruncated, kIo, kCorrupt, kTooLarge, kUnsupported (media).
Result<LlamaTokens> read_llama_tokens(const ByteSource& file, const LlamaEnvelope& envelope);

}  // namespace tqcache::interop
