// The decoder resumes from a context checkpoint as from the cache at that time.

#include <gtest/gtest.h>

#include <memory>

#include "model/fixture_model.h"
#include "support/checkpoint_reader.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace checkpoints_test {

TEST(Checkpoints, AreResumedFrom) {
  for (const char* name : {"gemma3", "qwen3_5", "qwen3_next"}) {
    SCOPED_TRACE(name);
    const FixtureModel model(name);
    const std::vector<std::int32_t> ids = model.many_ids(300);
    const auto prefilled = [&](std::span<const std::int32_t> tokens) {
      cache::Cache cache = model.make_cache();
      model::Decoder decoder = model.decoder();
      must(decoder.prefill(cache, tokens));
      return cache;
    };
    const CheckpointReader with_checkpoints(prefilled(ids),
                                            {checkpoint_of(prefilled(std::span(ids).first(20))),
                                             checkpoint_of(prefilled(std::span(ids).first(270)))});
    const Bytes file = must(format::write_cache_bytes(with_checkpoints, {}));

    // The prompt leaves the cache after 290 tokens.
    std::vector<std::int32_t> other(ids.begin(), ids.begin() + 290);
    for (std::int32_t id = 1; id < 20; ++id) other.push_back(id);
    cache::Cache cold = prefilled(std::span(other).first(other.size() - 1));
    cache::Cache warm = must(format::read_cache(*memory_source(file), {.first_tokens = 270}));
    model::Decoder first = model.decoder(), second = model.decoder();
    must(first.prefill(warm, std::span(other).subspan(270, other.size() - 1 - 270)));
    const auto expected = must(second.prefill(cold, std::span(other).last(1)));
    const std::vector<float> logits(expected.begin(), expected.end());
    const auto found = must(first.prefill(warm, std::span(other).last(1)));
    ASSERT_EQ(found.size(), logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(found[i], logits[i], 1e-4) << i;
  }
}

}  // namespace checkpoints_test
}  // namespace tqcache::test
