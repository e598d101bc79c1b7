#pragma once
// A Redis server that a test starts, kills and fills itself.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/temp_dir.h"
#include "tqcache/store.h"

namespace tqcache::test {

// On a socket in a folder. Without more options it keeps nothing on disk.
class RedisServer : public testing::Test {
 protected:
  // What tqcache/store.h asks of everyone who wants to be told of broken connections.
  RedisServer() { ::signal(SIGPIPE, SIG_IGN); }
  ~RedisServer() override { stop(); }

  void start(std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"redis-server",
                                      "--port",
                                      "0",
                                      "--unixsocket",
                                      socket_,
                                      "--dir",
                                      folder_.path().string(),
                                      "--save",
                                      "",
                                      "--logfile",
                                      (folder_ / "log").string()};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    child_ = ::fork();
    if (child_ == 0) {
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    const auto store = open();
    for (int i = 0; i < 200 && !store->exists("a"); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ASSERT_TRUE(store->exists("a").ok()) << "redis-server does not answer";
  }

  void stop() {
    if (child_ < 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }

  std::string url() const { return "redis+unix:" + socket_; }

  std::unique_ptr<store::Backend> open(const std::string& query = "") const {
    auto opened = store::open_backend(url() + query, {});
    if (!opened) throw std::runtime_error(opened.error().message);
    return std::move(opened).value();
  }

  TempDir folder_;
  std::string socket_ = (folder_ / "socket").string();
  pid_t child_ = -1;
};

}  // namespace tqcache::test
