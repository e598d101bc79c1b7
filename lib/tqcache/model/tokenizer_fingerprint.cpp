#include <cstdint>

#include "tqcache/base/bytes.h"
#include "tqcache/model/tokenizer_spec.h"

namespace tqcache::model {
namespace {

constexpr std::uint8_t kNormalizedFlag = 4;  // beside the kind, 0 to 3

// GGUF files fill the ids up to the height of the embedding matrix; tokenizer.json does not.
std::int64_t count_used(const Vocabulary& vocabulary) {
  std::int64_t n = vocabulary.size();
  while (n > 0 && vocabulary.token(n - 1).kind == TokenKind::kUnused) --n;
  return n;
}

}  // namespace

Sha256 tokenizer_fingerprint(const TokenizerSpec& spec, const Vocabulary& vocabulary,
                             const std::vector<Merge>& merges) {
  ByteWriter out;
  out.append_sized(as_bytes("tqcache tokenizer 1"));
  out.append_sized(as_bytes(normalizer_name(spec.normalizer)));
  out.append_sized(as_bytes(spec.pattern));
  out.write<std::uint8_t>(spec.ignore_merges ? 1 : 0);
  const std::int64_t n_tokens = count_used(vocabulary);
  out.write<std::uint64_t>(static_cast<std::uint64_t>(n_tokens));
  for (std::int64_t id = 0; id < n_tokens; ++id) {
    const Token& token = vocabulary.token(id);
    const std::uint8_t normalized = token.normalized ? kNormalizedFlag : 0;
    out.write<std::uint8_t>(static_cast<std::uint8_t>(token.kind) | normalized);
    out.append_sized(as_bytes(token.bytes));
  }
  out.write<std::uint64_t>(merges.size());
  for (const Merge& merge : merges) {
    out.write<std::int32_t>(merge.left);
    out.write<std::int32_t>(merge.right);
  }
  return sha256(out.bytes());
}

}  // namespace tqcache::model
