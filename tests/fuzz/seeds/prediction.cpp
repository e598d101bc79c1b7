// Profiles of version 2: a whole file, the bytes behind its first line, and the sections of a token
// block.

#include <algorithm>
#include <vector>

#include "fuzz/seeds/seeds.h"
#include "support/small_profile.h"
#include "tqcache/predict.h"
#include "tqcache/predict/predictor.h"

namespace tqcache::fuzz {

void make_prediction(const SeedFolder& seeds) {
  const Bytes file = predict::profile_bytes(test::small_profile());
  seeds.add("whole", file);
  seeds.add("body", ByteView(file).subspan(83));
  const predict::Predictor predictor(test::small_profile(), Sha256{});
  test::must(predictor.prepare_encoding(1));
  const std::vector<std::int32_t> tokens(9, 0);
  predict::BlockCoder coder(predictor, 0.25f, tokens, 0);
  test::EvenNumbers numbers(5);
  AlignedFloats x(tokens.size() * 64), out(x.size());
  Bytes coded;
  for (float& each : x) each = numbers.next();
  test::must(coder.encode(x, coded, out));
  seeds.add("keys", coded);
}

}  // namespace tqcache::fuzz
