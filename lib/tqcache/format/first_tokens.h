#pragma once
// format/first_tokens.h: a file seen as if it held its first tokens alone.
//
// A section holds one token block, so what the first tokens need stands in the first sections. Only
// those of the token block that is cut hold more than is wanted; of their bytes is kept what
// cache::truncate() would leave of them.
//
// Spec: docs/reference/format.md §4.5 and §6.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/kv_codec.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

// What to do with sections once a manifest is cut.
// Threads: any number may use one at once.
class TokenCut {
 public:
  // Cuts nothing.
  TokenCut() = default;

  // Takes out of `manifest` the tokens from `n_tokens` on, the sections that belong to them alone,
  // and their part of the token block that is cut, whose sections become dense. Where sections
  // stand in the file stays; the SHA-256 of those that are cut and the content name become zero.
  //
  // Requires: check_contents(manifest) and check_sections(manifest).
  // Errors:   as cache::truncate(); the manifest is then as it was. Those of
  //           cache::KvCodec::make().
  static Result<TokenCut> make(Manifest& manifest, std::int64_t n_tokens);

  bool cuts(std::size_t section) const { return section >= first_; }

  // A section that is cut as it stands in the file.
  const SectionInfo& in_file(std::size_t section) const { return in_file_[section - first_]; }

  // What is left of the bytes that such a section holds in the file.
  // Shapes: raw as in_file() says; the result as the manifest that was cut.
  AlignedBytes cut(std::size_t section, AlignedBytes raw) const;

 private:
  std::size_t first_ = std::numeric_limits<std::size_t>::max();  // section that is cut; all behind
  std::vector<SectionInfo> in_file_;
  std::int64_t n_kept_ = 0;  // tokens of the block that is cut
  std::vector<cache::LayerDesc> layers_;
  std::vector<cache::LayerCodecs> codecs_;  // [n_layers]
};

}  // namespace tqcache::format
