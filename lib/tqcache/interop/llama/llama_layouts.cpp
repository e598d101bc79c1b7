#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/interop/file_cursor.h"
#include "tqcache/interop/llama/llama_cells.h"
#include "tqcache/interop/llama/llama_parse.h"

namespace tqcache::interop {
namespace {

constexpr std::uint32_t kMaxNameBytes = 256;
constexpr std::uint32_t kTransposed = 1, kNoValues = 2;  // 0: rows

Error other() { return {ErrorCode::kCorrupt, "not of ik_llama.cpp"}; }

Result<void> skip_rows(FileCursor& cursor, std::uint64_t n, std::uint64_t bytes) {
  const auto all = checked_mul(n, bytes);
  return all ? cursor.skip(*all) : other();
}

Result<void> skip_session_head(FileCursor& cursor) {
  TQC_TRY_ASSIGN(const auto n, cursor.read<std::uint32_t>());
  if (n > kMaxNameBytes) return other();
  TQC_TRY(cursor.skip(n));
  TQC_TRY_ASSIGN(const auto n_outputs, cursor.read<std::uint32_t>());
  TQC_TRY(skip_rows(cursor, n_outputs, sizeof(std::int32_t)));
  for (int i = 0; i < 2; ++i) {
    TQC_TRY_ASSIGN(const auto n_values, cursor.read<std::uint64_t>());
    TQC_TRY(skip_rows(cursor, n_values, sizeof(float)));
  }
  return {};
}

// Rows: their type, bytes per row, and the rows. Transposed: type, bytes per value and the number
// of values.
Result<void> skip_layer(FileCursor& cursor, std::uint64_t n_cells, bool transposed) {
  TQC_TRY_ASSIGN(const auto type, cursor.read<std::int32_t>());
  TQC_TRY_ASSIGN(const auto first, cursor.read<std::uint32_t>());
  TQC_TRY_ASSIGN(const auto second, cursor.read<std::uint32_t>());
  const std::uint64_t row = std::uint64_t{second} << 32 | first;
  if (type < -1 || (type == -1 && row != 0)) return other();
  return skip_rows(cursor, n_cells, transposed ? std::uint64_t{first} * second : row);
}

Result<void> skip_recurrent(FileCursor& cursor, std::uint32_t n_layers) {
  for (std::uint32_t i = 0; i < n_layers; ++i) {
    TQC_TRY_ASSIGN(const auto type, cursor.read<std::int32_t>());
    TQC_TRY_ASSIGN(const auto row, cursor.read<std::uint64_t>());
    TQC_TRY_ASSIGN(const auto n_rows, cursor.read<std::uint32_t>());
    if (type < -1) return other();
    TQC_TRY(skip_rows(cursor, n_rows, row));
  }
  return {};
}

Result<void> skip_layers(FileCursor& cursor, std::uint64_t n_cells) {
  TQC_TRY_ASSIGN(const auto value_state, cursor.read<std::uint32_t>());
  TQC_TRY_ASSIGN(const auto n_layers, cursor.read<std::uint32_t>());
  if (value_state > kNoValues || n_layers == 0 || n_layers > cache::kMaxLayers) return other();
  for (std::uint32_t i = 0; i < n_layers; ++i) TQC_TRY(skip_layer(cursor, n_cells, false));
  for (std::uint32_t i = 0; value_state != kNoValues && i < n_layers; ++i) {
    TQC_TRY(skip_layer(cursor, n_cells, value_state == kTransposed));
  }
  TQC_TRY_ASSIGN(const auto has_recurrent, cursor.read<std::uint32_t>());
  if (has_recurrent > 1) return other();
  return has_recurrent == 1 ? skip_recurrent(cursor, n_layers) : Result<void>();
}

Result<void> walk(FileCursor cursor, LlamaFile kind) {
  if (kind == LlamaFile::kSession) TQC_TRY(skip_session_head(cursor));
  TQC_TRY_ASSIGN(const LlamaCells cells, read_llama_cells(cursor, {kind, 0}));
  if (cells.positions.empty()) return other();
  TQC_TRY(skip_layers(cursor, cells.positions.size()));
  // What follows occurs only for single architectures.
  TQC_TRY_ASSIGN(const auto has_indexer, cursor.read<std::uint32_t>());
  return has_indexer <= 1 ? Result<void>() : other();
}

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

// Version numbers of ik_llama.cpp's own.
constexpr std::uint32_t kIkSession = 10, kIkSequence = 4;

std::string name_of(LlamaFile kind, std::uint32_t version) {
  const std::string what = kind == LlamaFile::kSession ? "session" : "sequence";
  return fmt::format("{} of version {}", what, version);
}

Result<void> check_not_ik(const LlamaParse& parse, std::uint32_t version) {
  const bool may_be = version == (parse.kind == LlamaFile::kSession ? kIkSession : kIkSequence);
  if (!may_be) return {};
  TQC_TRY_ASSIGN(const bool is_ik, is_ik_llama_body(parse.file, parse.begin, parse.kind));
  if (!is_ik) return {};
  return unsupported(name_of(parse.kind, version) + " of ik_llama.cpp");
}

// A state without cells looks the same in several layouts.
bool is_empty(const LlamaBody& body) {
  for (const LlamaAttentionSection& section : body.attention) {
    if (!section.cells.positions.empty()) return false;
  }
  return !body.recurrent || body.recurrent->cells.positions.empty();
}

Error several_fit(const LlamaBody& a, const LlamaBody& b) {
  return {ErrorCode::kCorrupt,
          "more than one layout fits: " + a.profile.words + "; and " + b.profile.words};
}

struct Attempts {
  std::vector<LlamaBody> fits;
  std::optional<Error> error;  // the error of the layout that got furthest
};

Result<Attempts> attempt_all(const LlamaParse& parse, const std::vector<LlamaProfile>& profiles) {
  Attempts attempts;
  LlamaReached furthest;
  for (const LlamaProfile& profile : profiles) {
    LlamaReached reached;
    auto body = parse_llama_body(parse, profile, reached);
    if (body) {
      attempts.fits.push_back(std::move(body).value());
    } else if (body.error().code == ErrorCode::kIo) {
      return std::move(body).error();
    } else if (!attempts.error || reached > furthest) {
      attempts.error = std::move(body).error();
      furthest = reached;
    }
  }
  return attempts;
}

}  // namespace

Result<bool> is_ik_llama_body(const ByteSource& file, std::uint64_t begin, LlamaFile kind) {
  const auto walked = walk(FileCursor(file, begin), kind);
  if (!walked && walked.error().code == ErrorCode::kIo) return walked.error();
  return walked.ok();
}

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
    // A state without attention has one cell, which never has these fields.
    if (!has_attention) profile = {.outputs = profile.outputs, .has_streams = false};
    add(profile);
    // Window layers got their own section before cells got streams.
    if (!has_windows || profile.has_streams) continue;
    profile.windows_are_apart = false;
    add(profile);
  }
  return profiles;
}

Result<void> check_llama_version(LlamaFile kind, std::uint32_t version) {
  const bool is_known =
      kind == LlamaFile::kSession ? version >= 8 && version <= 11 : version >= 2 && version <= 4;
  if (is_known) return {};
  return unsupported(name_of(kind, version));
}

Result<LlamaBody> find_llama_body(const LlamaParse& parse, std::uint32_t version) {
  const auto profiles = llama_profiles(parse.kind, version, parse.model);
  TQC_TRY_ASSIGN(Attempts attempts, attempt_all(parse, profiles));
  std::vector<LlamaBody>& fits = attempts.fits;
  if (fits.empty()) {
    TQC_TRY(check_not_ik(parse, version));
    return *std::move(attempts.error);
  }
  if (fits.size() > 1 && !is_empty(fits[1])) return several_fit(fits[0], fits[1]);
  return std::move(fits.front());
}

}  // namespace tqcache::interop
