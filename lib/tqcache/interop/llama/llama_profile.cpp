#include "tqcache/interop/llama/llama_profile.h"

#include <algorithm>
#include <utility>

namespace tqcache::interop {
namespace {

constexpr std::uint64_t kExt2d = 8;      // i32 x, y
constexpr std::uint64_t kExtToken = 12;  // i32 x, y, token

std::string words_of(const LlamaProfile& profile, bool has_windows) {
  std::string words;
  if (profile.outputs == LlamaOutputs::kOutputs) words += "outputs, ";
  if (profile.outputs == LlamaOutputs::kRngAndOutputs) words += "sampler state and outputs, ";
  words += profile.has_streams ? "cells in streams" : "cells without streams";
  if (profile.cell_ext == kExt2d) words += ", with coordinates";
  if (profile.cell_ext == kExtToken) words += ", with coordinates and tokens";
  if (has_windows && !profile.windows_are_apart) words += ", window layers among the others";
  return words;
}

std::vector<LlamaProfile> session_profiles(std::uint32_t version) {
  using enum LlamaOutputs;
  switch (version) {
    case 8:
      return {{kRngAndOutputs, false, 0}};
    case 9:
      return {{kNone, true, 0}, {kNone, true, kExt2d}, {kOutputs, true, 0}, {kOutputs, false, 0}};
    case 10:
      return {{kNone, true, 0}, {kNone, true, kExtToken}};
    case 11:
      return {{kNone, true, 0, true}, {kNone, true, kExtToken, true}};
    default:
      return {};
  }
}

std::vector<LlamaProfile> sequence_profiles(std::uint32_t version) {
  using enum LlamaOutputs;
  switch (version) {
    case 2:
      return {{kNone, true, 0}, {kNone, true, kExt2d}, {kNone, false, 0}};
    case 3:
      return {{kNone, true, 0}, {kNone, true, kExtToken}};
    case 4:
      return {{kNone, true, 0, true}, {kNone, true, kExtToken, true}};
    default:
      return {};
  }
}

bool has_layers(const LlamaGeometry& model, LlamaLayerKind kind) {
  return std::ranges::count(model.layers, kind, &LlamaLayer::kind) > 0;
}

}  // namespace

std::vector<LlamaProfile> llama_profiles(LlamaFile kind, std::uint32_t version,
                                         const LlamaGeometry& model) {
  const bool has_windows = has_layers(model, LlamaLayerKind::kSlidingWindow);
  const bool has_attention = has_windows || has_layers(model, LlamaLayerKind::kAttention);
  std::vector<LlamaProfile> profiles;
  const auto add = [&](LlamaProfile profile) {
    profile.words = words_of(profile, has_windows);
    if (std::ranges::count(profiles, profile) == 0) profiles.push_back(std::move(profile));
  };
  for (LlamaProfile& profile :
       kind == LlamaFile::kSession ? session_profiles(version) : sequence_profiles(version)) {
    // The one cell of a state without attention never had any of it.
    if (!has_attention) profile = {.outputs = profile.outputs, .has_streams = false};
    add(profile);
    // Window layers got their own section before cells got streams.
    if (!has_windows || profile.has_streams) continue;
    profile.windows_are_apart = false;
    add(profile);
  }
  return profiles;
}

}  // namespace tqcache::interop
