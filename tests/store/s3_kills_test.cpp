// An S3 gateway that is killed and started again while a process puts: what was acknowledged
// outlives it. (Its storage, which is another process, goes on.)

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "store/kills.h"
#include "store/prompt_kills.h"
#include "store/server_url.h"

namespace tqcache::test {
namespace s3_kills_test {

class S3GatewayKills : public testing::Test {
 protected:
  S3GatewayKills() {
    ::signal(SIGPIPE, SIG_IGN);
    // As servers/radosgw.sh has made them.
    ::setenv("AWS_ACCESS_KEY_ID", "tqcache-access", 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", "tqcache-secret", 1);
    ::setenv("CEPH_CONF", (folder() / "ceph.conf").c_str(), 1);
  }

  static std::filesystem::path folder() {
    const char* const path = std::getenv("TQCACHE_TEST_S3_KILLS");
    return path == nullptr ? "" : std::filesystem::path(path).parent_path();
  }
  static std::string url(const std::string& prefix) {
    const std::string whole = server_url("TQCACHE_TEST_S3_KILLS");
    const std::size_t query = whole.find('?');
    return whole.substr(0, query) + "/" + prefix + whole.substr(query);
  }

  static void kill_gateway() {
    pid_t gateway = 0;
    std::ifstream(folder() / "run" / "client.rgw.a.pid") >> gateway;
    ASSERT_GT(gateway, 0);
    ASSERT_EQ(::kill(gateway, SIGKILL), 0);
    for (int i = 0; i < 500 && ::kill(gateway, 0) == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  static void start_gateway() {
    ASSERT_EQ(std::system("radosgw -n client.rgw.a > /dev/null 2>&1"), 0);
    const auto store = backend_at(url("start"));
    for (int i = 0; i < 600 && !store->exists("a"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    ASSERT_TRUE(store->exists("a").ok());
  }

  // A start takes a second or more.
  static int n_rounds() { return std::max(3, n_kills() / 4); }

  std::mt19937 random_{3};
};

TEST_F(S3GatewayKills, LoseNothingThatWasAcknowledged) {
  int n_told = 0;
  for (int i = 0; i < n_rounds(); ++i) {
    const std::string place = url("w" + std::to_string(i));
    const NumberedBlobs blobs{"w"};
    Writer writer(place, blobs);
    wait_for_any_moment(writer, random_);
    ASSERT_NO_FATAL_FAILURE(kill_gateway());
    const int n_of_it = writer.wait();
    n_told += n_of_it;
    ASSERT_NO_FATAL_FAILURE(start_gateway());
    ASSERT_NO_FATAL_FAILURE(expect_what_was_told(place, blobs, n_of_it)) << i;
  }
  EXPECT_GT(n_told, 0);
}

TEST_F(S3GatewayKills, LeaveWholePromptsAlone) {
  const PromptFiles prompts;
  for (int i = 0; i < n_rounds(); ++i) {
    const std::string place = url("p");
    const std::string salt = "round " + std::to_string(i);
    Writer writer(place, prompts.putting(salt));
    writer.wait_for(static_cast<int>(random_() % 3));
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20'000));
    ASSERT_NO_FATAL_FAILURE(kill_gateway());
    const int n_of_it = writer.wait();
    ASSERT_NO_FATAL_FAILURE(start_gateway());
    ASSERT_NO_FATAL_FAILURE(expect_prompts(place, salt, prompts, n_of_it)) << i;
  }
}

}  // namespace s3_kills_test
}  // namespace tqcache::test
