#pragma once
// store/backends/s3_client.h: a client for signed HTTP requests to an S3 service.
//
// Requests are signed by libcurl (AWS Signature, version 4), which signs exactly its input: paths
// and queries are passed here encoded and sorted.
//
// Only for the sources of store.

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

namespace tqcache::store {

enum class S3Method { kGet, kHead, kPut, kDelete };

struct S3Request {
  S3Method method = S3Method::kGet;
  std::string path;                  // "/bucket/key"
  std::string query;                 // "a=b&c=d", sorted, or empty
  std::vector<std::string> headers;  // "Name: value"
  ByteView body;                     // of kPut; must live until the answer arrives
  std::uint64_t max_answer_bytes = 0;
};

// Bytes that arrive piece by piece. Unlike a vector it is not in memory twice while it grows: the
// system moves large blocks by their pages.
class ArrivingBytes {
 public:
  ArrivingBytes() = default;
  ArrivingBytes(ArrivingBytes&& other) noexcept { swap(other); }
  ArrivingBytes& operator=(ArrivingBytes&& other) noexcept {
    clear();
    swap(other);
    return *this;
  }

  // Throws std::bad_alloc.
  void reserve(std::size_t n);
  void append(ByteView bytes);
  void clear();
  void swap(ArrivingBytes& other) noexcept {
    block_.swap(other.block_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  std::size_t size() const { return size_; }
  ByteView view() const { return {block_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };

  std::unique_ptr<std::byte, Free> block_;
  std::size_t size_ = 0, capacity_ = 0;
};

struct S3Answer {
  long status = 0;
  ArrivingBytes body;
  std::string date;        // the HTTP date of the server; empty if missing
  bool postponed = false;  // not taken: all answers together were too large
};

struct S3Settings {
  std::string endpoint;  // "https://host:port"
  std::string region;
  std::string access_key, secret_key;
  std::string session_token;     // of temporary keys; may be empty
  std::string ca_file, ca_path;  // certificates of https:// that are trusted; empty: the system's
  std::chrono::milliseconds connect_timeout{};
  std::chrono::milliseconds idle_timeout{};
  std::chrono::milliseconds time_limit{};  // BackendOptions::time_limit, and so on
  std::uint64_t least_rate = 0;
  std::function<bool()> interrupted;  // may be empty

  std::array<std::string_view, 3> secrets() const {
    return {secret_key, access_key, session_token};
  }
};

// Keeps its connections open. Threads: one at a time.
class S3Client {
 public:
  // `settings` must outlive it.
  explicit S3Client(const S3Settings& settings);
  ~S3Client();

  // Sends all at once; answers in the order of the requests, with any status. A request whose
  // connection breaks is sent once more. Bodies are as the service sent them: what is shown of
  // them is printable(text, settings.secrets()). The bodies of several answers have 64 MiB in all;
  // those above that are postponed. Errors: kIo; kInterrupted; kTooLarge for an answer above its
  // request's limit.
  Result<std::vector<S3Answer>> run(std::span<const S3Request> requests);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Percent-encodes everything but A-Z a-z 0-9 - _ . ~
std::string url_encoded(std::string_view text);

}  // namespace tqcache::store
