#include "report/codec_text.h"

#include <fmt/format.h>

#include "tqcache/format/type_names.h"

namespace tqcache::cli {
namespace {

int channels_of(const cache::QuantSpec& quant) {
  int channels = 0;
  for (const codec::PartSpec& part : quant.parts) {
    if (!part.of_residual) channels += part.quantizer.head_dim;
  }
  return channels;
}

const char* residual_word(codec::TransformKind rotation) {
  if (rotation == codec::TransformKind::kGaussian) return "gaussian";
  return rotation == codec::TransformKind::kMatrix ? "given" : "orthogonal";
}

std::string mode_text(const cache::QuantSpec& quant) {
  const codec::PartSpec& first = quant.parts.front();
  const codec::PartSpec& last = quant.parts.back();
  if (last.of_residual) {
    return fmt::format("prod {} bits, {} residual", first.quantizer.bits + last.quantizer.bits,
                       residual_word(last.quantizer.rotation));
  }
  if (first.has_bias) {
    return fmt::format("affine {} bits, groups of {}", first.quantizer.bits,
                       first.quantizer.head_dim);
  }
  if (quant.parts.size() > 1) {
    return fmt::format("mixed {} bits for {} channels, {} for {}", first.quantizer.bits,
                       first.quantizer.head_dim, last.quantizer.bits, last.quantizer.head_dim);
  }
  if (first.quantizer.scale == codec::ScaleRule::kStep) {
    return fmt::format("archive, step {:.4f}{}", first.quantizer.step,
                       quant.transforms.empty() ? "" : ", maps made for its vectors");
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

std::string codec_text(const cache::QuantSpec& quant) {
  std::string text = mode_text(quant) + turn_text(quant.parts.front());
  text += fmt::format(", centering {}", name_of(format::kCenteringNames, quant.centering));
  if (quant.n_sinks > 0) text += fmt::format(", {} sink tokens", quant.n_sinks);
  return text;
}

double code_bits(const cache::QuantSpec& quant) {
  double bits = 0;
  for (const codec::PartSpec& part : quant.parts) {
    bits += static_cast<double>(part.quantizer.bits) * part.quantizer.head_dim;
  }
  return bits / channels_of(quant);
}

}  // namespace tqcache::cli
