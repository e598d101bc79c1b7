#pragma once
// tests/serve/raw_socket.h: a TCP client, and a server, that send exactly the bytes of a test.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace tqcache::test {

class RawSocket {
 public:
  explicit RawSocket(int fd) : fd_(fd) {}
  ~RawSocket() { close(); }
  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;
  RawSocket& operator=(RawSocket&&) = delete;

  // From another address of this machine: `from` 2 is 127.0.0.2.
  static RawSocket connect(int port, std::uint8_t from = 1) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl((INADDR_LOOPBACK & 0xffffff00) | from);
    if (from != 1) ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      ::close(fd);
      throw std::runtime_error("connect failed");
    }
    return RawSocket(fd);
  }

  // Returns false if the peer has closed.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }

  // Bytes that arrive next; empty: the end, or nothing within the time.
  std::string receive(int timeout_ms = 280'000) const {
    pollfd ready = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, timeout_ms) <= 0) return {};
    std::string bytes(65536, '\0');
    const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), 0);
    bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return bytes;
  }
  std::string receive_all() const {
    std::string all;
    while (true) {
      const std::string bytes = receive();
      if (bytes.empty()) return all;
      all += bytes;
    }
  }
  // Until this text has arrived, or the end.
  std::string receive_until(std::string_view text) const {
    std::string all;
    while (all.find(text) == std::string::npos) {
      const std::string bytes = receive();
      if (bytes.empty()) break;
      all += bytes;
    }
    return all;
  }
  // A head and a body of Content-Length bytes.
  std::string receive_message() const {
    std::string all = receive_until("\r\n\r\n");
    const std::size_t end = all.find("\r\n\r\n");
    const std::size_t at = all.find("Content-Length: ");
    if (end == std::string::npos || at == std::string::npos || at > end) return all;
    const std::size_t length = std::stoul(all.substr(at + 16));
    while (all.size() < end + 4 + length) {
      const std::string bytes = receive();
      if (bytes.empty()) break;
      all += bytes;
    }
    return all;
  }

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// The status of an answer; 0: no answer.
inline int status_of(std::string_view answer) {
  if (!answer.starts_with("HTTP/1.1 ") || answer.size() < 12) return 0;
  return std::stoi(std::string(answer.substr(9, 3)));
}
inline std::string body_of(const std::string& answer) {
  const std::size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? std::string() : answer.substr(end + 4);
}

// Sends `bytes`, closes the sending side, and returns all that comes back.
inline std::string raw_exchange(int port, std::string_view bytes) {
  const RawSocket socket = RawSocket::connect(port);
  socket.send(bytes);
  return socket.receive_all();
}

// A POST with a JSON body; the connection is closed behind the answer.
inline std::string post_text(std::string_view target, std::string_view body,
                             std::string_view headers = {}) {
  return "POST " + std::string(target) + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
         std::string(headers) +
         "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + std::string(body);
}
inline std::string get_text(std::string_view target, std::string_view headers = {}) {
  return "GET " + std::string(target) + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
         std::string(headers) + "\r\n";
}

// A port of 127.0.0.1 that no other program is given meanwhile: a server of a test can end and
// begin again there. Nothing listens before it does.
class ReservedPort {
 public:
  ReservedPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof(yes));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("cannot reserve a port");
    }
    port_ = ntohs(address.sin_port);
  }
  ~ReservedPort() { ::close(fd_); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

// Calls `serve` for each connection, one after another.
class RawServer {
 public:
  explicit RawServer(std::function<void(RawSocket&)> serve, int port = 0)
      : serve_(std::move(serve)), fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        ::listen(fd_, 128) != 0 ||
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("cannot listen");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      while (true) {
        const int client = ::accept(fd_, nullptr, nullptr);
        if (client < 0) return;
        RawSocket socket(client);
        serve_(socket);
      }
    });
  }
  ~RawServer() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  int port() const { return port_; }

 private:
  std::function<void(RawSocket&)> serve_;
  int fd_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace tqcache::test
