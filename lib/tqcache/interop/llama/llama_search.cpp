#include "tqcache/interop/llama/llama_search.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tqcache::interop {
namespace {

// Versions that ik_llama.cpp counts for itself.
constexpr std::uint32_t kIkSession = 10, kIkSequence = 4;

std::string name_of(LlamaFile kind, std::uint32_t version) {
  const std::string what = kind == LlamaFile::kSession ? "session" : "sequence";
  return what + " of version " + std::to_string(version);
}

Result<void> check_not_ik(const LlamaParse& parse, std::uint32_t version) {
  const bool may_be = version == (parse.kind == LlamaFile::kSession ? kIkSession : kIkSequence);
  if (!may_be) return {};
  TQC_TRY_ASSIGN(const bool is_ik, is_ik_llama_body(parse.file, parse.begin, parse.kind));
  if (!is_ik) return {};
  return Error{ErrorCode::kUnsupported, name_of(parse.kind, version) + " of ik_llama.cpp"};
}

// A state without cells is the same in several layouts.
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
  std::optional<Error> error;  // of the one that got furthest
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

Result<void> check_llama_version(LlamaFile kind, std::uint32_t version) {
  const bool is_known =
      kind == LlamaFile::kSession ? version >= 8 && version <= 11 : version >= 2 && version <= 4;
  if (is_known) return {};
  return Error{ErrorCode::kUnsupported, name_of(kind, version)};
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
