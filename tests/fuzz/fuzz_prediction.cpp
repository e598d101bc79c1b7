// Any bytes as a profile of version 2, as what stands behind its first line, and as the sections of
// a token block that a small profile predicts. What is taken is within its limits; a profile is
// written as what reads the same, and decoded values are finite.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "support/small_profile.h"
#include "tqcache/hash.h"
#include "tqcache/predict.h"
#include "tqcache/predict/predictor.h"

namespace tqcache {
namespace {

using fuzz::require;
using predict::Predictor;

// Decodes all tensors of a token block from equal parts of the bytes.
void decode(const Predictor& predictor, ByteView coded, bool is_finite) {
  const predict::Profile& profile = predictor.profile();
  const std::size_t n_tensors = std::min<std::size_t>(profile.tensors.size(), 6);
  const std::vector<std::int32_t> tokens(1 + coded.size() % 24, 0);
  predict::BlockCoder coder(predictor, 0.25f, tokens, coded.size() % 3);
  AlignedFloats out(tokens.size() * static_cast<std::size_t>(profile.channels()));
  const std::size_t size = coded.size() / n_tensors;
  for (std::size_t i = 0; i < n_tensors; ++i) {
    const auto done = coder.decode(coded.subspan(i * size, size), out);
    if (!done) return require(done.error().code == ErrorCode::kCorrupt, "bad symbols are corrupt");
    const bool all_finite = std::ranges::all_of(out, [](float x) { return std::isfinite(x); });
    require(all_finite || !is_finite, "decoded values are finite");
  }
}

void read(ByteView file) {
  auto profile = predict::parse_profile(file);
  if (!profile) return require(!profile.error().message.empty(), "an error has a message");
  require(profile->tensors.size() == static_cast<std::size_t>(2 * profile->n_layers),
          "every layer has two tensors");
  const auto again = predict::parse_profile(predict::profile_bytes(*profile));
  require(again.ok(), "what is written is read");
  require(predict::profile_bytes(*again) == predict::profile_bytes(*profile), "... as the same");
  const Predictor predictor(std::move(*profile), predict::profile_digest(file));
  decode(predictor, file.first(std::min<std::size_t>(file.size(), 600)), false);
}

// With the SHA-256 that changes would have to guess.
std::string sealed(ByteView body) {
  return "tqcache-profile 2 " + to_hex(sha256(body)) + "\n" +
         std::string(reinterpret_cast<const char*>(body.data()), body.size());
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  static const predict::Predictor small(test::small_profile(), Sha256{});
  const ByteView bytes = fuzz::view_of(data, size);
  read(bytes);
  const std::string file = sealed(bytes);
  read(std::as_bytes(std::span(file)));
  decode(small, bytes, true);
  return 0;
}
