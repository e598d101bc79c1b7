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
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tqcache::test {

// In the place of an answer: none, until the other side gives up.
inline const std::string kSilence = "(silence)";

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

  void talk(int fd, const std::vector<std::string>& answers) const {
    char asked[4096];
    for (std::string answer : answers) {
      if (const std::size_t at = answer.find(kItself); at != answer.npos) {
        answer.replace(at, kItself.size(), address());
      }
      if (!wait_for(fd) || ::recv(fd, asked, sizeof(asked), 0) <= 0) return;
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
  std::thread thread_;
};

}  // namespace tqcache::test
