#include "migrations/v1_context.h"

#include <algorithm>
#include <utility>

#include "tqcache/format/container_format.h"

namespace tqcache::migrations {
namespace {

bool is_dense_map(const codec::QuantizerSpec& spec) {
  return spec.rotation == codec::TransformKind::kDenseQr ||
         spec.rotation == codec::TransformKind::kGaussian;
}

Result<void> spend(std::uint64_t& used, std::uint64_t more, std::uint64_t limit, const char* what) {
  used += more;
  if (used <= limit) return {};
  return Error{ErrorCode::kTooLarge,
               std::string("more than ") + std::to_string(limit) + " " + what};
}

}  // namespace

const codec::Rotation* CodecPool::find(const codec::QuantizerSpec& spec) const {
  const auto found = std::ranges::find(maps_, spec, &Map::first);
  return found == maps_.end() ? nullptr : &found->second;
}

Result<void> CodecPool::count(const codec::QuantizerSpec& spec) {
  TQC_TRY(spend(n_parts_, 1, format::kMaxDifferentParts, "parts of codecs"));
  if (!is_dense_map(spec) || find(spec) != nullptr) return {};
  const auto dim = static_cast<std::uint64_t>(spec.head_dim);
  return spend(matrix_values_, dim * dim, format::kMaxMatrixValues, "values of matrices");
}

Result<codec::HeadCodec> CodecPool::codec(int head_dim, const std::vector<codec::PartSpec>& parts,
                                          codec::BlockOrder order) {
  const auto is_same = [&](const codec::HeadCodec& known) {
    return known.order() == order && known.parts() == parts;
  };
  const auto found = std::ranges::find_if(codecs_, is_same);
  if (found != codecs_.end()) return *found;
  for (const codec::PartSpec& part : parts) TQC_TRY(count(part.quantizer));
  TQC_TRY_ASSIGN(codec::HeadCodec made, codec::HeadCodec::make(head_dim, parts, order));
  codecs_.push_back(made);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (find(parts[i].quantizer) != nullptr) continue;
    maps_.emplace_back(parts[i].quantizer, made.part(i).quantizer().rotation());
  }
  return made;
}

Result<codec::Rotation> CodecPool::rotation(const codec::QuantizerSpec& spec) {
  if (const codec::Rotation* known = find(spec)) return *known;
  TQC_TRY(count(spec));
  maps_.emplace_back(spec, codec::Rotation(spec));
  return maps_.back().second;
}

Result<void> Context::take(std::uint64_t bytes) {
  if (bytes > bytes_left) {
    return Error{ErrorCode::kTooLarge,
                 std::to_string(bytes) + " bytes of memory, beyond those of the whole cache"};
  }
  bytes_left -= bytes;
  return {};
}

}  // namespace tqcache::migrations
