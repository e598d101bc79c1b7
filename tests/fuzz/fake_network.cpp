#include "fuzz/fake_network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "fuzz/fuzz.h"
#include "support/libc.h"

namespace tqcache::fuzz {
namespace {

struct Peer {
  int fd;
  std::string address;
};

std::mutex mutex;
bool active = false;
std::vector<ByteView> streams;
std::vector<Peer> peers;

std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    const auto& in = *reinterpret_cast<const sockaddr_in*>(address);
    ::inet_ntop(AF_INET, &in.sin_addr, text.data(), text.size());
    return std::string(text.data()) + ":" + std::to_string(ntohs(in.sin_port));
  }
  if (address->sa_family == AF_INET6) {
    const auto& in = *reinterpret_cast<const sockaddr_in6*>(address);
    ::inet_ntop(AF_INET6, &in.sin6_addr, text.data(), text.size());
    return "[" + std::string(text.data()) + "]:" + std::to_string(ntohs(in.sin6_port));
  }
  return reinterpret_cast<const sockaddr_un*>(address)->sun_path;
}

// Puts a socket whose other end has been given the next stream in the place of `fd`.
int connect_to_next(int fd, const sockaddr* address) {
  const std::lock_guard lock(mutex);
  if (!active || peers.size() >= streams.size()) {
    errno = ECONNREFUSED;
    return -1;
  }
  std::array<int, 2> ends{};
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return -1;
  require(::dup3(ends[0], fd, O_CLOEXEC) == fd && ::fcntl(fd, F_SETFL, flags) == 0, "a socket");
  ::close(ends[0]);
  const ByteView stream = streams[peers.size()];
  const ssize_t sent = ::send(ends[1], stream.data(), stream.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  require(sent == static_cast<ssize_t>(stream.size()), "a stream fits into a socket");
  ::shutdown(ends[1], SHUT_WR);
  peers.push_back({ends[1], text_of(address)});
  return 0;
}

std::string received(int fd) {
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t n = ::recv(fd, piece.data(), piece.size(), MSG_DONTWAIT);
    if (n <= 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(n));
  }
}

}  // namespace

std::vector<ByteView> parts_of(ByteView input, std::size_t most) {
  std::vector<ByteView> parts;
  for (;;) {
    const auto end = std::ranges::find(input, kBorder);
    if (end == input.end() || parts.size() + 1 == most) break;
    const auto n = static_cast<std::size_t>(end - input.begin());
    parts.push_back(input.first(n));
    input = input.subspan(n + 1);
  }
  parts.push_back(input);
  return parts;
}

FakeNetwork::FakeNetwork(std::vector<ByteView> all) {
  std::signal(SIGPIPE, SIG_IGN);
  const std::lock_guard lock(mutex);
  streams = std::move(all);
  active = true;
}

FakeNetwork::~FakeNetwork() {
  const std::lock_guard lock(mutex);
  for (const Peer& peer : peers) ::close(peer.fd);
  peers.clear();
  streams.clear();
  active = false;
}

std::vector<FakeNetwork::Connection> FakeNetwork::connections() const {
  const std::lock_guard lock(mutex);
  std::vector<Connection> all;
  for (const Peer& peer : peers) all.push_back({peer.address, received(peer.fd)});
  return all;
}

}  // namespace tqcache::fuzz

extern "C" {

int connect(int fd, const sockaddr* address, socklen_t /*size*/) {
  return tqcache::fuzz::connect_to_next(fd, address);
}

// The sockets of above are not of TCP.
int setsockopt(int fd, int level, int option, const void* value,
               socklen_t size) TQCACHE_LIBC_NOEXCEPT {
  if (level == IPPROTO_TCP) return 0;
  return static_cast<int>(::syscall(SYS_setsockopt, fd, level, option, value, size));
}

// Addresses only, no names.
int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  struct Found {
    addrinfo info;
    sockaddr_in6 address;
  };
  auto* const one = static_cast<Found*>(std::calloc(1, sizeof(Found)));
  const auto port =
      htons(static_cast<std::uint16_t>(std::atoi(service == nullptr ? "0" : service)));
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&one->address);
  one->info.ai_socktype = SOCK_STREAM;
  one->info.ai_protocol = IPPROTO_TCP;
  one->info.ai_addr = reinterpret_cast<sockaddr*>(&one->address);
  const int family = hints == nullptr ? AF_UNSPEC : hints->ai_family;
  if (node != nullptr && family != AF_INET6 && ::inet_pton(AF_INET, node, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = port;
    one->info.ai_family = AF_INET;
    one->info.ai_addrlen = sizeof(sockaddr_in);
  } else if (node != nullptr && family != AF_INET &&
             ::inet_pton(AF_INET6, node, &one->address.sin6_addr) == 1) {
    one->address.sin6_family = AF_INET6;
    one->address.sin6_port = port;
    one->info.ai_family = AF_INET6;
    one->info.ai_addrlen = sizeof(sockaddr_in6);
  } else {
    std::free(one);
    return EAI_NONAME;
  }
  *found = &one->info;
  return 0;
}

void freeaddrinfo(addrinfo* list) TQCACHE_LIBC_NOEXCEPT { std::free(list); }

}  // extern "C"
