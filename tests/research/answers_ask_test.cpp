#include <gtest/gtest.h>

#include <cmath>

#include "model/tiny_model.h"
#include "tqcache/research/questions.h"

namespace tqcache::research {
namespace answers_ask_test {

using test::must;
using test::TinyModel;

class Asking : public testing::Test {
 protected:
  cache::Cache read(std::int64_t n_tokens) {
    cache::Cache cache = model_.make_cache(Dtype::kF32);
    const Ids ids = model_.prompt(n_tokens);
    must(decoder_.prefill(cache, ids));
    return cache;
  }

  const TinyModel model_;
  model::Decoder decoder_{model_.config, model_.weights, 1};
  const Ids question_ = {5, 9, 2};
  const EndsAnswer never_ = [](std::int32_t) { return false; };
};

TEST_F(Asking, GivesAsManyTokensAsAskedFor) {
  const Ids answer = must(greedy_answer(decoder_, read(40), question_, 6, never_, {}));
  EXPECT_EQ(answer.size(), 6u);
  const Ids shorter = must(greedy_answer(decoder_, read(40), question_, 4, never_, {}));
  EXPECT_EQ(shorter, Ids(answer.begin(), answer.begin() + 4));
}

TEST_F(Asking, EndsBeforeATokenThatEndsTheAnswer) {
  const Ids answer = must(greedy_answer(decoder_, read(40), question_, 6, never_, {}));
  const std::int32_t last = answer.back();
  const auto at = std::ranges::find(answer, last) - answer.begin();
  const Ids cut = must(greedy_answer(decoder_, read(40), question_, 6,
                                     [last](std::int32_t id) { return id == last; }, {}));
  EXPECT_EQ(cut, Ids(answer.begin(), answer.begin() + at));
}

TEST_F(Asking, EveryTokenOfTheModelsOwnAnswerIsTheLikeliest) {
  const Ids answer = must(greedy_answer(decoder_, read(40), question_, 5, never_, {}));
  const Forced own = must(forced_answer(decoder_, read(40), question_, answer, {}));
  EXPECT_TRUE(own.all_likeliest);
  for (std::size_t i = 0; i < answer.size(); ++i) {
    Ids other = answer;
    other[i] = (other[i] + 1) % static_cast<std::int32_t>(model_.config.vocab_size);
    const Forced forced = must(forced_answer(decoder_, read(40), question_, other, {}));
    EXPECT_FALSE(forced.all_likeliest) << i;
  }
}

TEST_F(Asking, LogProbabilityIsTheMeanOverTheAnswer) {
  const Ids expected = {3, 8};
  const Forced forced = must(forced_answer(decoder_, read(40), question_, expected, {}));
  cache::Cache cache = read(40);
  const auto first = must(decoder_.prefill(cache, question_));
  const double of_first = log_probability(first, 3);
  const double of_second = log_probability(must(decoder_.decode_step(cache, 3)), 8);
  EXPECT_DOUBLE_EQ(forced.log_probability, (of_first + of_second) / 2);
}

TEST_F(Asking, LeavesTheCacheAsItWas) {
  const cache::Cache cache = read(40);
  must(greedy_answer(decoder_, cache, question_, 3, never_, {}));
  EXPECT_EQ(cache.n_tokens(), 40);
  EXPECT_EQ(test::difference(cache, read(40)), "");
}

TEST_F(Asking, StopsWhenInterrupted) {
  int left = 4;
  const KeepGoing few = [&left] { return left-- > 0; };
  const auto answer = greedy_answer(decoder_, read(40), question_, 50, never_, few);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kInterrupted);
  left = 0;
  EXPECT_EQ(forced_answer(decoder_, read(40), question_, question_, few).error().code,
            ErrorCode::kInterrupted);
}

TEST_F(Asking, RefusesMoreThanTheContextHolds) {
  const auto answer = greedy_answer(decoder_, read(598), question_, 5, never_, {});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kInvalidArgument);
}

TEST(LogProbability, IsThatOfSoftmax) {
  const std::vector<float> logits = {0, 0, 0, std::log(5.0f)};
  EXPECT_NEAR(log_probability(logits, 3), std::log(5.0 / 8), 1e-6);
  EXPECT_NEAR(log_probability(logits, 0), std::log(1.0 / 8), 1e-6);
  const std::vector<float> large = {1000, 0};
  EXPECT_EQ(log_probability(large, 0), 0);
  EXPECT_EQ(log_probability(large, 1), -1000);
}

}  // namespace answers_ask_test
}  // namespace tqcache::research
