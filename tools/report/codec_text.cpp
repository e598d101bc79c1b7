#include "report/codec_text.h"

#include <fmt/format.h>

#include "tqcache/format/type_names.h"

namespace tqcache::cli {
namespace {

int channels_of(const format::SideInfo& side) {
  int channels = 0;
  for (const codec::PartSpec& part : side.parts) {
    if (!part.of_residual) channels += part.quantizer.head_dim;
  }
  return channels;
}

const char* residual_word(codec::TransformKind rotation) {
  if (rotation == codec::TransformKind::kGaussian) return "gaussian";
  return rotation == codec::TransformKind::kMatrix ? "given" : "orthogonal";
}

std::string mode_text(const format::SideInfo& side) {
  const codec::PartSpec& first = side.parts.front();
  const codec::PartSpec& last = side.parts.back();
  if (last.of_residual) {
    return fmt::format("prod {} bits, {} residual", first.quantizer.bits + last.quantizer.bits,
                       residual_word(last.quantizer.rotation));
  }
  if (first.has_bias) {
    return fmt::format("affine {} bits, groups of {}", first.quantizer.bits,
                       first.quantizer.head_dim);
  }
  if (side.parts.size() > 1) {
    return fmt::format("mixed {} bits for {} channels, {} for {}", first.quantizer.bits,
                       first.quantizer.head_dim, last.quantizer.bits, last.quantizer.head_dim);
  }
  if (first.quantizer.scale == codec::ScaleRule::kStep) {
    return fmt::format("archive, step {:.4f}{}", first.quantizer.step,
                       side.transforms.empty() ? "" : ", maps made for its vectors");
  }
  return fmt::format("turbo {} bits", first.quantizer.bits);
}

// What a part does other than by default.
std::string turn_text(const codec::PartSpec& part) {
  const codec::QuantizerSpec& spec = part.quantizer;
  std::string text;
  if (spec.rotation == codec::TransformKind::kDenseQr) text += ", dense rotation";
  if (spec.rotation == codec::TransformKind::kMatrix) text += ", rotation by value";
  if (spec.rounds > 1) text += fmt::format(", {} rounds", spec.rounds);
  if (spec.scale == codec::ScaleRule::kNorm) text += ", scale norm";
  if (spec.scale == codec::ScaleRule::kRaw) text += ", scale raw";
  return text;
}

}  // namespace

std::string codec_text(const format::SideInfo& side) {
  std::string text = mode_text(side) + turn_text(side.parts.front());
  text += fmt::format(", centering {}", name_of(format::kCenteringNames, side.centering));
  if (side.n_sinks > 0) text += fmt::format(", {} sink tokens", side.n_sinks);
  return text;
}

double code_bits(const format::SideInfo& side) {
  double bits = 0;
  for (const codec::PartSpec& part : side.parts) {
    bits += static_cast<double>(part.quantizer.bits) * part.quantizer.head_dim;
  }
  return bits / channels_of(side);
}

}  // namespace tqcache::cli
