#pragma once
// A server that says what a test wants it to say, whatever it is asked.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tqcache::test {

// In the place of an answer: none, until the other side gives up.
inline const std::string kSilence = "(silence)";

// At the beginning of an answer: the rest comes a byte at a time, again and again, for a minute.
inline const std::string kTrickle = "(trickle)";

// The same: the rest comes again and again at full speed, up to 256 MiB.
inline const std::string kEndless = "(endless)";

// In the place of an answer: nothing is read any more.
inline const std::string kDeaf = "(deaf)";

// In the place of an answer: the server ends its side, and goes on reading.
inline const std::string kHalfClosed = "(half closed)";

// In an answer: the address of the server itself.
inline const std::string kItself = "(itself)";

// For each connection, what it is answered.
using Script = std::vector<std::vector<std::string>>;

class FakeServer {
 public:
  // Connection i gets answers[i], the last of them every further one too: one answer to each thing
  // that arrives, and then the end of the connection.
  explicit FakeServer(Script answers)
      : answers_(std::move(answers)), listening_(::socket(AF_INET, SOCK_STREAM, 0)) {
    // What tqcache/store.h asks of everyone who wants to be told of broken connections.
    ::signal(SIGPIPE, SIG_IGN);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listening_, any, size) != 0 || ::listen(listening_, 8) != 0 ||
        ::getsockname(listening_, any, &size) != 0 || ::pipe(end_) != 0) {
      throw std::runtime_error("no fake server");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeServer() {
    ::close(end_[1]);
    thread_.join();
    ::close(end_[0]);
    ::close(listening_);
  }
  FakeServer(const FakeServer&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int n_connections() const { return n_connections_; }
  // Whether something that never ends was ended by the server, after a minute or 256 MiB.
  bool has_given_up() const { return given_up_; }
  // All that was said to it, on all connections.
  std::string asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  // False when the test is over.
  bool wait_for(int fd) const {
    pollfd waiting[] = {{fd, POLLIN, 0}, {end_[0], POLLIN, 0}};
    ::poll(waiting, 2, -1);
    return waiting[1].revents == 0;
  }

  void serve() {
    while (wait_for(listening_)) {
      const int fd = ::accept(listening_, nullptr, nullptr);
      const std::size_t i = static_cast<std::size_t>(n_connections_++);
      talk(fd, answers_[std::min(i, answers_.size() - 1)]);
      ::close(fd);
    }
  }

  // Waits; false when the test is over.
  bool pause(int milliseconds) const {
    pollfd ending{end_[0], POLLIN, 0};
    return ::poll(&ending, 1, milliseconds) == 0;
  }

  static bool say(int fd, const std::string& text) {
    return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == std::ssize(text);
  }

  // False if it is none of these.
  bool misbehave(int fd, const std::string& answer) {
    if (answer == kDeaf) {
      while (pause(1000)) {
      }
      return true;
    }
    if (answer == kHalfClosed) {
      ::shutdown(fd, SHUT_WR);
      char any[4096];
      while (wait_for(fd) && ::recv(fd, any, sizeof(any), 0) > 0) {
      }
      return true;
    }
    if (answer.starts_with(kTrickle)) {
      const std::string text = answer.substr(kTrickle.size());
      for (std::size_t i = 0; i < 3000; ++i) {
        if (!pause(20) || !say(fd, text.substr(i % text.size(), 1))) return true;
      }
      given_up_ = true;
      return true;
    }
    if (!answer.starts_with(kEndless)) return false;
    const std::string text = answer.substr(kEndless.size());
    std::string block;
    while (block.size() < (64 << 10)) block += text;
    for (int i = 0; i < 4096; ++i) {
      if (!pause(0) || !say(fd, block)) return true;
    }
    given_up_ = true;
    return true;
  }

  void talk(int fd, const std::vector<std::string>& answers) {
    char asked[4096];
    for (std::string answer : answers) {
      if (const std::size_t at = answer.find(kItself); at != answer.npos) {
        answer.replace(at, kItself.size(), address());
      }
      const ssize_t n_asked = wait_for(fd) ? ::recv(fd, asked, sizeof(asked), 0) : 0;
      if (n_asked <= 0) return;
      {
        const std::lock_guard lock(mutex_);
        asked_.append(asked, static_cast<std::size_t>(n_asked));
      }
      if (misbehave(fd, answer)) continue;
      if (answer != kSilence) {
        ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
        continue;
      }
      while (wait_for(fd) && ::recv(fd, asked, sizeof(asked), 0) > 0) {
      }
    }
  }

  Script answers_;
  int listening_;
  int end_[2] = {-1, -1};
  int port_ = 0;
  std::atomic<int> n_connections_ = 0;
  std::atomic<bool> given_up_ = false;
  mutable std::mutex mutex_;
  std::string asked_;
  std::thread thread_;
};

}  // namespace tqcache::test
