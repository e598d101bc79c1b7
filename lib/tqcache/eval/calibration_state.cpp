#include "tqcache/eval/calibration_state.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tqcache/file.h"

namespace tqcache::eval {
namespace {

constexpr std::string_view kFirstWords = "tqcache-calibration 1 ";
constexpr std::size_t kDigits = 64;
constexpr std::size_t kLineBytes = 22 + kDigits + 1 + kDigits + 1;
constexpr std::uint64_t kMaxStateBytes = std::uint64_t{1} << 36;

// Calls `visit` for every vector of sums, in the order of the file.
template <class State, class Visit>
void for_each_vector(State& state, Visit visit) {
  auto& moments = state.moments;
  for (auto& each : moments.shift) visit(each);
  for (auto& each : moments.sums) visit(each);
  for (auto& layer : moments.products) {
    for (auto& each : layer) visit(each);
  }
  for (auto& each : moments.with_features) visit(each);
  visit(moments.features);
  visit(moments.feature_sums);
  for (auto& layer : state.key_metrics) {
    for (auto& each : layer) visit(each);
  }
}

template <class T>
void put(const T& value, Bytes& out) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

}  // namespace

Result<void> save_state(const std::filesystem::path& path, const Sha256& calibration,
                        const CalibrationState& state) {
  Bytes body;
  put(state.n_windows, body);
  put(state.is_centered, body);
  put(std::uint64_t{state.sensitivities.size()}, body);
  put(state.moments.n, body);
  const auto append = [&](const Doubles& values) {
    const ByteView bytes(reinterpret_cast<const std::byte*>(values.data()), values.size() * 8);
    body.insert(body.end(), bytes.begin(), bytes.end());
  };
  for_each_vector(state, append);
  append(state.sensitivities);
  const std::string line =
      fmt::format("{}{} {}\n", kFirstWords, to_hex(calibration), to_hex(sha256(body)));
  const ByteView first = as_bytes(line);
  body.insert(body.begin(), first.begin(), first.end());
  return write_file_atomically(path, body, Overwrite::kAllow);
}

Result<bool> load_state(const std::filesystem::path& path, const Sha256& calibration,
                        CalibrationState& state) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return false;
  TQC_TRY_ASSIGN(const Bytes file, read_file(path, kMaxStateBytes));
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(kFirstWords) || text.size() < kLineBytes) {
    return corrupt("not the checkpoint of a calibration; delete it to begin anew");
  }
  if (text.substr(kFirstWords.size(), kDigits) != to_hex(calibration)) {
    return mismatch(
        "the checkpoint of a calibration of another model, of other texts or with other flags; "
        "delete it to begin anew");
  }
  const ByteView body = ByteView(file).subspan(kLineBytes);
  if (text.substr(kFirstWords.size() + kDigits + 1, kDigits) != to_hex(sha256(body))) {
    return corrupt("a damaged checkpoint of a calibration; delete it to begin anew");
  }
  std::size_t at = 0;
  bool is_whole = true;
  const auto take = [&](void* to, std::size_t n) {
    is_whole = is_whole && n <= body.size() - at;
    if (!is_whole || n == 0) return;
    std::memcpy(to, body.data() + at, n);
    at += n;
  };
  std::uint64_t n_sensitivities = 0;
  take(&state.n_windows, sizeof(state.n_windows));
  take(&state.is_centered, sizeof(state.is_centered));
  take(&n_sensitivities, sizeof(n_sensitivities));
  take(&state.moments.n, sizeof(state.moments.n));
  for_each_vector(state, [&](Doubles& values) { take(values.data(), values.size() * 8); });
  if (is_whole && n_sensitivities <= (body.size() - at) / 8) {
    state.sensitivities.resize(static_cast<std::size_t>(n_sensitivities));
    take(state.sensitivities.data(), state.sensitivities.size() * 8);
  }
  if (!is_whole || at != body.size()) {
    return corrupt("a checkpoint of another size; delete it to begin anew");
  }
  return true;
}

}  // namespace tqcache::eval
