#include "report/convert_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "cli/cache_io.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "report/info.h"
#include "tqcache/cache/centering.h"
#include "tqcache/codec_spec.h"

namespace tqcache::cli {
namespace {

// ", 3.50 times smaller"; empty for a device, which has no size.
std::string ratio_text(std::uint64_t before, std::uint64_t after) {
  if (after == 0 || before == 0 || after == before) return {};
  const double ratio = static_cast<double>(before) / static_cast<double>(after);
  return fmt::format(", {:.2f} times {}", ratio > 1 ? ratio : 1 / ratio,
                     ratio > 1 ? "smaller" : "larger");
}

// What the user may not know of the result: why it did not become smaller.
std::vector<std::string> hints_of(const cache::CacheDesc& info, const ConvertReport& report) {
  std::vector<std::string> hints;
  const cache::ConvertOptions& options = report.options;
  const bool is_dense = options.keys.dense && options.values.dense;
  if (!report.is_tqkv || options.keep_all || is_dense) return hints;
  const auto n_small = std::ranges::count_if(info.layers, [](const cache::LayerDesc& layer) {
    const auto* attention = std::get_if<cache::AttentionDesc>(&layer);
    return attention != nullptr && std::min(attention->shape.head_dim,
                                            attention->value_shape().head_dim) < codec::kMinHeadDim;
  });
  if (n_small > 0 && options.keys.keep_small_heads) {
    hints.push_back(fmt::format("{} stayed dense: only a head_dim of {} or more is quantized",
                                counted(n_small, "layer"), codec::kMinHeadDim));
  }
  if (report.n_tokens < cache::kTokenBlock) {
    hints.push_back(fmt::format("nothing was quantized: only full blocks of {} tokens are",
                                cache::kTokenBlock));
  }
  const auto n_windows = std::ranges::count_if(info.layers, [](const cache::LayerDesc& layer) {
    const auto* window = std::get_if<cache::WindowDesc>(&layer);
    return window != nullptr && window->window.keep == 0 && !cache::is_quantized(window->attention);
  });
  if (n_windows > 0 && options.windows == cache::WindowMode::kAsTheyAre && !report.archive) {
    hints.push_back(fmt::format("{} stayed dense; --config windows=turbo quantizes {}",
                                counted(n_windows, "sliding-window layer"),
                                n_windows == 1 ? "it" : "them"));
  }
  return hints;
}

// Keys or values that the model will hardly work with, and what could help. Empty: none.
std::string bad_tensors_text(const cache::CacheDesc& cache, const ConvertReport& report,
                             cache::TensorKind kind) {
  std::string layers;
  double share = 0;
  std::int64_t n = 0;
  for (const cache::TensorLoss& loss : report.options.losses->losses()) {
    if (loss.kind != kind || loss.share <= cache::kHeavyLoss) continue;
    if (++n <= 8) layers += fmt::format("{}{}", n > 1 ? ", " : "", loss.layer);
    share = std::max(share, loss.share);
  }
  if (n == 0) return {};
  if (n > 8) layers += fmt::format(" and {} more", n - 8);
  const bool is_key = kind == cache::TensorKind::kKeys;
  const std::string word = is_key ? "key" : "value";
  const cache::Centering center =
      is_key ? report.options.keys.center : report.options.values.center;
  std::string help = report.archive
                         ? "more bits, or codes for memory with a profile of the model, help"
                         : fmt::format("more bits (--bits {}) or dense ones (--bits {}) help",
                                       is_key ? "8,4" : "4,8", is_key ? "16,4" : "4,16");
  if (center == cache::Centering::kNone) {
    help = "they are not centered; without center=none the common part is not coded";
  } else if (is_key && cache.identity.rope == cache::Rope{}) {
    help = "the RoPE of the model is not known; with -m MODEL keys are centered before it";
  } else if (is_key && report.options.calibration == nullptr && !report.archive) {
    help = "a profile of the model (tqcache profile, then --profile), or " + help;
  }
  return fmt::format(
      "the {}s of {} {} quantize badly: the error has {:.1f} times the energy of what tells tokens "
      "apart, in half of a head; {}",
      word, n == 1 ? "layer" : "layers", layers, share, help);
}

void warn_of_losses(const cache::CacheDesc& cache, const ConvertReport& report) {
  if (!report.is_tqkv || report.options.losses == nullptr) return;
  const std::string output = display_name(report.output, "standard output");
  for (const auto kind : {cache::TensorKind::kKeys, cache::TensorKind::kValues}) {
    const std::string text = bad_tensors_text(cache, report, kind);
    if (!text.empty()) warn(output, text);
  }
}

// The largest loss of all keys, and of all values; null: none was quantized.
Json lost_json(const ConvertReport& report) {
  Json lost{{"k", nullptr}, {"v", nullptr}};
  for (const cache::TensorLoss& loss : report.options.losses->losses()) {
    Json& most = lost[loss.kind == cache::TensorKind::kKeys ? "k" : "v"];
    if (most.is_null() || most.get<double>() < loss.share) most = loss.share;
  }
  return lost;
}

Json bad_tensors_json(const ConvertReport& report) {
  Json list = Json::array();
  for (const cache::TensorLoss& loss : report.options.losses->losses()) {
    if (loss.share <= cache::kHeavyLoss) continue;
    list.push_back({{"layer", loss.layer},
                    {"tensor", loss.kind == cache::TensorKind::kKeys ? "k" : "v"},
                    {"lost", loss.share}});
  }
  return list;
}

// Reports that the requested centering of keys before RoPE is not possible.
void report_fallback(const Console& console, const cache::CacheDesc& info,
                     const ConvertReport& report) {
  const cache::ConvertOptions& options = report.options;
  if (!report.is_tqkv) return;
  const cache::TensorPlan& keys = options.keys;
  if (options.keep_all || keys.dense || keys.center != cache::Centering::kPreRope) return;
  // The latents of a model of the decoder do not rotate (ModelConfig::key_rope()).
  const cache::Rope& rope = info.identity.rope;
  if (rope.style == cache::RopeStyle::kInterleaved && rope.n_dims == 0) return;
  for (const cache::LayerDesc& layer : info.layers) {
    const bool is_window = std::holds_alternative<cache::WindowDesc>(layer);
    if (is_window && options.windows != cache::WindowMode::kTurboCentered) continue;
    const cache::AttentionDesc* attention = cache::attention_of(layer);
    if (attention == nullptr || attention->k.quant) continue;
    if (keys.keep_small_heads && attention->shape.head_dim < codec::kMinHeadDim) continue;
    const auto got =
        cache::key_centering(keys.center, info.identity.rope, attention->shape.head_dim);
    if (got == keys.center) continue;
    note(console,
         "the cache does not store the RoPE parameters of its model; keys are centered after RoPE "
         "instead");
    return;
  }
}

// Says which factors the file has: they are part of its bytes.
void report_factors(const Console& console, const cache::CacheDesc& cache,
                    const ConvertReport& report) {
  if (report.options.calibration == nullptr || !report.is_tqkv) return;
  const auto plans = cache::plan_layers(cache, report.options);
  const bool has_any = plans && std::ranges::any_of(*plans, [](const cache::TensorPlan& plan) {
                         return !plan.dense && !plan.factors.empty();
                       });
  note(console, has_any ? fmt::format("factors of keys from {}", report.options.calibration_path)
                        : fmt::format("{}: not used: no keys are quantized in a way that has "
                                      "factors",
                                      report.options.calibration_path));
}

Json report_json(const ConvertReport& report, std::optional<double> bits) {
  Json json;
  json["schema"] = 1;
  json["file"] = report.output;
  json["from"] = report.from;
  json["to"] = report.to;
  json["n_tokens"] = report.n_tokens;
  json["bytes_before"] = report.bytes_before;
  json["bytes_after"] = report.bytes_after;
  json["ratio"] = report.bytes_after == 0 ? 0
                                          : static_cast<double>(report.bytes_before) /
                                                static_cast<double>(report.bytes_after);
  json["bits_per_value"] = bits ? Json(*bits) : Json(nullptr);
  if (report.archive) {
    Json& archive = json["archive"];
    archive["configuration"] = *report.archive;
    if (report.profile) archive["profile"] = *report.profile;
    archive["expected_kld"] = report.expected_kld ? Json(*report.expected_kld) : Json(nullptr);
  }
  json["notes"] = report.notes;
  json["losses"] = report.dropped;
  json["lost"] = lost_json(report);
  json["badly_quantized"] = bad_tensors_json(report);
  return json;
}

}  // namespace

Result<void> report_conversion(const Console& console, const cache::CacheDesc& source,
                               const ConvertReport& report) {
  report_fallback(console, source, report);
  report_factors(console, source, report);
  warn_of_losses(source, report);
  std::optional<double> bits;
  if (report.bytes_after > 0) bits = bits_per_value(report.bytes_after, report.n_values);
  // A ratio of sizes makes no sense if only a part was converted.
  const std::string after = grouped(report.bytes_after);
  const std::string change =
      report.is_cut
          ? fmt::format("the first {}, {} bytes", counted(report.n_tokens, "token"), after)
      : report.bytes_after == 0
          ? fmt::format("{} bytes converted", grouped(report.bytes_before))
          : fmt::format("{} -> {} bytes{}", grouped(report.bytes_before), after,
                        ratio_text(report.bytes_before, report.bytes_after));
  note(console, fmt::format("{}: {}{}", display_name(report.output, "standard output"), change,
                            bits ? fmt::format(", {:.3f} bits per value", *bits) : ""));
  if (report.expected_kld) {
    note(console, fmt::format("expected mean KL divergence: {:.3g} nats", *report.expected_kld));
  }
  for (const std::string& each : report.notes) note(console, fmt::format("note: {}", each));
  for (const std::string& each : report.dropped) note(console, fmt::format("dropped: {}", each));
  for (const std::string& each : hints_of(source, report)) {
    note(console, fmt::format("hint: {}", each));
  }
  return console.json ? print_json(report_json(report, bits)) : Result<void>();
}

}  // namespace tqcache::cli
