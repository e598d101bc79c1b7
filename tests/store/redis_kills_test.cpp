// A Redis server that writes every command to disk before it answers, killed and started again
// while a process puts: what it has acknowledged outlives it.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "store/kills.h"
#include "store/prompt_kills.h"
#include "store/redis_server.h"

namespace tqcache::test {
namespace redis_kills_test {

class RedisServerKills : public RedisServer {
 protected:
  void start_durable() { start({"--appendonly", "yes", "--appendfsync", "always"}); }

  // What it wrote, which is read at every start, grows otherwise.
  void begin_anew() {
    stop();
    std::filesystem::remove_all(folder_ / "appendonlydir");
    start_durable();
  }

  std::mt19937 random_{2};
};

TEST_F(RedisServerKills, LoseNothingThatWasAcknowledged) {
  int n_told = 0;
  for (int i = 0; i < n_kills(); ++i) {
    if (i % 50 == 0) {
      ASSERT_NO_FATAL_FAILURE(begin_anew());
    }
    const NumberedBlobs blobs{"w/" + std::to_string(i)};
    Writer writer(url(), blobs);
    wait_for_any_moment(writer, random_);
    stop();
    const int n_of_it = writer.wait();
    n_told += n_of_it;
    ASSERT_NO_FATAL_FAILURE(start_durable());
    ASSERT_NO_FATAL_FAILURE(expect_what_was_told(url(), blobs, n_of_it)) << i;
  }
  EXPECT_GT(n_told, n_kills());
}

TEST_F(RedisServerKills, LeaveWholePromptsAlone) {
  const PromptFiles prompts;
  int n_told = 0;
  for (int i = 0; i < n_kills(); ++i) {
    if (i % 20 == 0) {
      ASSERT_NO_FATAL_FAILURE(begin_anew());
    }
    const std::string salt = "round " + std::to_string(i);
    Writer writer(url(), prompts.putting(salt));
    writer.wait_for(static_cast<int>(random_() % 3));
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20'000));
    stop();
    const int n_of_it = writer.wait();
    n_told += n_of_it;
    ASSERT_NO_FATAL_FAILURE(start_durable());
    ASSERT_NO_FATAL_FAILURE(expect_prompts(url(), salt, prompts, n_of_it)) << i;
  }
  EXPECT_GE(n_told, n_kills() / 2);
}

// The reader is told of an error or gets what was put, and goes on when the server is there again.
TEST_F(RedisServerKills, ShowNoReaderAPartOfAValue) {
  start_durable();
  const NumberedBlobs blobs{"w"};
  std::vector<std::string> keys;
  for (int i = 0; i < 40; ++i) {
    keys.push_back(blobs.key(i));
    ASSERT_TRUE(open()->put(keys.back(), NumberedBlobs::value(keys.back())).ok());
  }
  const auto store = open();
  for (int i = 0; i < n_kills() / 4; ++i) {
    std::atomic<bool> done = false;
    std::thread reader([&] {
      while (!done) {
        (void)store
            ->get(keys,
                  [&](std::size_t j, std::optional<ByteView> value) -> Result<void> {
                    EXPECT_TRUE(value && std::ranges::equal(*value, NumberedBlobs::value(keys[j])))
                        << keys[j];
                    return {};
                  })
            .ok();
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20000));
    stop();
    start_durable();
    done = true;
    reader.join();
  }
  EXPECT_TRUE(store->get("w/0")->has_value());
}

}  // namespace redis_kills_test
}  // namespace tqcache::test
