// Prompts with images are found by what was shown.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/library_fixture.h"
#include "support/media.h"
#include "tqcache/store/blobs/blob_format.h"
#include "tqcache/store/library/background_put.h"

namespace tqcache::test {
namespace library_media_test {

// A prompt of 700 tokens with an image of 64 of them from token 200 on.
cache::Cache with_image(const std::string& id) {
  return with_media(CacheBuilder(700).dense(kHeads).build(), {image_of(200, 8, 8, 200, id)});
}

class Media : public testing::Test {
 protected:
  std::int64_t found(const cache::Cache& cache) {
    return must(library_.find(cache.identity, and_more(cache))).n_tokens;
  }

  std::unique_ptr<store::Backend> backend_ = open_store();
  ToldLibrary told_{*backend_};
  store::Library& library_ = told_.library;
};

TEST_F(Media, AreFoundByWhatTheyShow) {
  const cache::Cache cat = with_image("cat"), dog = with_image("dog");
  put(library_, file_of(cat), "");
  EXPECT_EQ(found(cat), 700);
  EXPECT_EQ(found(dog), 0);
  put(library_, file_of(dog), "");
  EXPECT_EQ(found(dog), 700);
  // Tokens of text with the placeholder in place of the image are another prompt.
  cache::Cache text = cat;
  text.tokens = cache::with_placeholders(cat.tokens, cat.media);
  EXPECT_EQ(found(text), 0);
}

TEST_F(Media, ComeBackWithAPrefixThatEndsWithinThem) {
  const cache::Cache cache = with_image("cat");
  put(library_, file_of(cache), "");
  std::vector<std::int32_t> tokens(cache.tokens.begin(), cache.tokens.begin() + 258);
  tokens.resize(600, 7);
  store::Prefix prefix = must(library_.find(cache.identity, tokens));
  EXPECT_EQ(prefix.n_tokens, 256);
  const auto prompt = must(library_.fetch(prefix));
  ASSERT_NE(prompt, nullptr);
  EXPECT_EQ(prompt->description().media, cache.media);
  EXPECT_EQ(load(*prompt).tokens.size(), 256u);
}

TEST_F(Media, HaveBlobsThatOlderProgramsRefuseByName) {
  put(library_, file_of(CacheBuilder(700).dense(kHeads).build()), "text");
  for (const std::string& key : all_keys(*backend_)) {
    EXPECT_EQ(number_at<std::uint32_t>(must(backend_->get(key)).value(), 8), store::kBlobVersion);
  }
  put(library_, file_of(with_image("cat")), "image");
  std::size_t n_media = 0;
  for (const std::string& key : all_keys(*backend_, "b/")) {
    n_media +=
        number_at<std::uint32_t>(must(backend_->get(key)).value(), 8) == store::kMediaBlobVersion;
  }
  EXPECT_EQ(n_media, 2u);  // the image reaches from block 0 into block 1
}

TEST_F(Media, AreAddedWhileACacheGrows) {
  const cache::Cache cache = with_image("cat");
  store::BackgroundPut adding(*backend_, store::BackgroundPutOptions{});
  adding.watch(cache);
  adding.end_prompt(cache);
  adding.finish(cache, std::chrono::seconds(20), [] { return true; });
  store::Prefix prefix = must(library_.find(cache.identity, and_more(cache)));
  ASSERT_GE(prefix.n_tokens, 512);
  EXPECT_EQ(must(library_.fetch(prefix))->description().media, cache.media);
}

}  // namespace library_media_test
}  // namespace tqcache::test
