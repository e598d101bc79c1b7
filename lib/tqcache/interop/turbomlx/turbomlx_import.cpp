#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "tqcache/error.h"
#include "tqcache/interop/turbomlx/turbomlx.h"
#include "tqcache/interop/turbomlx/turbomlx_layers.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

Result<TurboMlxLayer> import_layer(const TurboMlxSource& file, const ValueTree& tree,
                                   const TurboMlxEntry& entry, TurboMlxArtifacts& artifacts) {
  const std::string& name = entry.class_name;
  if (name == "TurboQuantKVCache") return turbomlx_turbo_layer(file, tree, entry, artifacts);
  if (name == "KVCache" || name == "ConcatenateKVCache")
    return turbomlx_dense_layer(file, tree, entry);
  if (name == "QuantizedKVCache") return turbomlx_quantized_layer(file, tree, entry);
  if (name == "RotatingKVCache") return turbomlx_rotating_layer(file, tree, entry);
  if (name == "ArraysCache" || name == "MambaCache")
    return turbomlx_arrays_layer(file, tree, entry);
  return unsupported("class " + tensors::printable_name(name));
}

// --- for display

// "3 x KVCache; 1 x ArraysCache": each kind with its count.
std::string tally(const std::map<std::string, int>& counts) {
  std::string text;
  for (const auto& [what, count] : counts) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{} x {}", count, what);
  }
  return text;
}

std::string describe_keys(const TurboMlxMeta& meta) {
  std::string text = meta.is_prod ? "prod, " : "mse, ";
  if (meta.mixed) {
    text += meta.mixed_profile;
  } else {
    text += fmt::format("{} bits, codebook {}", meta.bits_total,
                        turbomlx_codebook_id(meta.shape.head_dim, meta.code_bits(meta.bits_total)));
  }
  text += fmt::format("{}{} of seed {}", ", rotation ", (meta.is_wht ? "wht" : "qr"),
                      meta.rotation_seed);
  return meta.is_prod ? fmt::format("{}, signs of seed {}", text, meta.qjl_seed) : text;
}

std::string describe_values(const TurboMlxMeta& meta) {
  if (!meta.has_affine_values) return "dense";
  return fmt::format("affine, {} bits in groups of {}", meta.value_bits, meta.value_group_size);
}

class Report {
 public:
  void add(const TurboMlxEntry& entry, const TurboMlxLayer& layer) {
    ++classes_[entry.class_name];
    for (const TurboMlxCoding& coding : layer.codings) add(coding);
    if (!layer.meta) return;
    ++keys_[describe_keys(*layer.meta)];
    ++values_[describe_values(*layer.meta)];
    if (layer.is_calibrating) ++n_calibrating_;
  }

  void put(const TurboMlxContents& contents, ForeignCache& cache) const {
    const std::string version = fmt::format("version {}", contents.schema_version);
    cache.metadata.emplace_back("TurboMLX", contents.kind == TurboMlxFile::kV3
                                                ? version
                                                : fmt::format("{}, a pickle of protocol {}",
                                                              version, contents.pickle_protocol));
    cache.metadata.emplace_back("classes", tally(classes_));
    if (!keys_.empty()) cache.metadata.emplace_back("keys", tally(keys_));
    if (!values_.empty()) cache.metadata.emplace_back("values", tally(values_));
    put_dropped_fields(cache.n_tokens, cache.dropped_fields);
    cache.is_quantized = has_kept_ || !decoded_keys_.empty() || !decoded_groups_.empty();
  }

 private:
  void add(const TurboMlxCoding& coding) {
    if (!coding.misfit.empty()) {
      ++(coding.are_groups ? decoded_groups_ : decoded_keys_)[coding.misfit];
      return;
    }
    has_kept_ = true;
    if (coding.is_rounded) (coding.are_groups ? has_rounded_groups_ : has_rounded_keys_) = true;
  }

  void put_dropped_fields(std::int64_t n_tokens, std::vector<std::string>& dropped_fields) const {
    if (has_rounded_keys_) {
      dropped_fields.push_back(
          "The lengths of TurboQuant keys are rounded to f16; their codes are kept.");
    }
    if (has_rounded_groups_) {
      dropped_fields.push_back(
          "The scales and biases of groups are rounded to f16; codes are kept.");
    }
    if (const std::int64_t n = n_tokens % cache::kTokenBlock; has_kept_ && n > 0) {
      dropped_fields.push_back(fmt::format(
          "The codes of the last {} tokens, which fill no block, are decoded to f32.", n));
    }
    if (!decoded_keys_.empty()) {
      dropped_fields.push_back(
          "The codes, lengths and signs of TurboQuant keys are decoded to f32 (" +
          tally(decoded_keys_) + ").");
    }
    if (!decoded_groups_.empty()) {
      dropped_fields.push_back("Keys and values in groups are decoded to f32 (" +
                               tally(decoded_groups_) + ").");
    }
    if (!keys_.empty()) {
      dropped_fields.push_back("The settings of TurboQuant caches are not kept.");
    }
    if (n_calibrating_ > 0) {
      dropped_fields.push_back(fmt::format(
          "The calibration that {} layers are in is not kept; their tokens are.", n_calibrating_));
    }
  }

  std::map<std::string, int> classes_, keys_, values_;
  int n_calibrating_ = 0;
  std::map<std::string, int> decoded_keys_, decoded_groups_;  // by reason
  bool has_kept_ = false, has_rounded_keys_ = false, has_rounded_groups_ = false;
};

// Checks that all layers have seen the same number of tokens.
Result<void> agree(std::optional<std::int64_t> layer, std::optional<std::int64_t>& all) {
  if (!layer) return {};
  if (!all) all = layer;
  if (*all == *layer) return {};
  return corrupt(fmt::format("{} tokens where other layers have {}", *layer, *all));
}

// Drops the quantized representations that the options exclude.
void drop_codes(const TurboMlxImport& options, TurboMlxLayer& layer) {
  auto* const attention = std::get_if<cache::AttentionDesc>(&layer.layer.description);
  if (attention == nullptr) return;
  if (!options.keep_key_codes) attention->k.quant.reset();
  if (!options.keep_value_codes) attention->v.quant.reset();
  for (TurboMlxCoding& coding : layer.codings) {
    const bool is_kept = coding.are_keys ? options.keep_key_codes : options.keep_value_codes;
    if (!is_kept) coding.misfit = "as asked for";
  }
}

Result<void> check_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return {};
  return Error{ErrorCode::kNotFound, "no folder of artifacts"};
}

}  // namespace

Result<ForeignCache> import_turbomlx(std::shared_ptr<const ByteSource> file,
                                     const TurboMlxImport& options) {
  TQC_TRY(check_folder(options.artifacts));
  TQC_TRY_ASSIGN(const TurboMlxContents contents, read_turbomlx(*file));
  if (contents.entries.empty()) return corrupt("no layers");
  ForeignCache cache;
  cache.identity.source_format = "turbomlx";
  TurboMlxArtifacts artifacts(options.artifacts);
  Report report;
  std::optional<std::int64_t> n_tokens;
  for (const TurboMlxEntry& entry : contents.entries) {
    const std::string place = fmt::format("layer {}", cache.layers.size());
    auto layer = import_layer(file, contents.tree, entry, artifacts);
    if (!layer) return in_context(place, std::move(layer).error());
    if (auto agreed = agree(layer->n_tokens, n_tokens); !agreed) {
      return in_context(place, std::move(agreed).error());
    }
    drop_codes(options, *layer);
    report.add(entry, *layer);
    cache.layers.push_back(std::move(layer->layer));
  }
  if (!n_tokens) {
    return unsupported("no layer that says how many tokens there are");
  }
  cache.n_tokens = *n_tokens;
  report.put(contents, cache);
  return cache;
}

}  // namespace tqcache::interop
