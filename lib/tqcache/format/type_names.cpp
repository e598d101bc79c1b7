#include "tqcache/format/type_names.h"

#include <string>

namespace tqcache::format {

std::string_view type_name(const cache::TensorDesc& tensor) {
  return tensor.quant ? name_of(kTurboTypes, tensor.quant->mode) : kDenseType;
}

std::string_view type_name(const cache::LayerDesc& layer) {
  return std::visit(Overload{[](const cache::AttentionDesc& attention) {
                               return attention.value_dim == 0 ? kAttentionType
                                                               : kUnequalAttentionType;
                             },
                             [](const cache::WindowDesc& window) {
                               const bool is_equal = window.attention.value_dim == 0;
                               if (cache::is_quantized(window.attention)) {
                                 return is_equal ? kTurboRotatingType : kUnequalTurboRotatingType;
                               }
                               return is_equal ? kRotatingType : kUnequalRotatingType;
                             },
                             [](const cache::StateDesc& state) {
                               return state.is_opaque ? kOpaqueType : kArraysType;
                             }},
                    layer);
}

std::string_view centering_name(const cache::QuantSpec& quant) {
  return quant.factors.empty() ? name_of(kCenteringNames, quant.centering)
                               : name_of(kFactorCenteringNames, quant.centering);
}

bool is_centering_with_factors(std::string_view name) {
  return kind_of(kFactorCenteringNames, "centering", name).ok();
}

Result<cache::Centering> centering_of(std::string_view name) {
  if (const auto found = kind_of(kFactorCenteringNames, "centering", name)) return *found;
  return kind_of(kCenteringNames, "centering", name);
}

Error unknown_name(std::string_view what, std::string_view name) {
  constexpr std::size_t kShown = 64;
  std::string text = std::string(what) + " \"";
  for (const char c : name.substr(0, kShown)) text += c >= ' ' && c <= '~' ? c : '?';
  return {ErrorCode::kUnsupported, text + "\""};
}

}  // namespace tqcache::format
