#pragma once
// server/tqcache/serve/http_connection.h: the socket of one client: reads requests within limits,
// and writes answers.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "tqcache/serve/http_message.h"
#include "tqcache/serve/http_options.h"

namespace tqcache::serve {

// What all connections of a server share.
struct ServerState {
  std::atomic<bool> is_stopping = false;  // no new requests
  std::atomic<bool> is_cut_off = false;   // running requests end, too
  std::atomic<std::uint64_t> buffered_bytes = 0;
};

// Bytes of a body that count against max_buffered_bytes.
class BufferedBytes {
 public:
  BufferedBytes(ServerState& state, std::uint64_t limit) : state_(state), limit_(limit) {}
  ~BufferedBytes() { state_.buffered_bytes -= n_bytes_; }
  BufferedBytes(const BufferedBytes&) = delete;
  BufferedBytes& operator=(const BufferedBytes&) = delete;

  // Returns false if that is too much.
  bool grow_to(std::uint64_t n_bytes);

 private:
  ServerState& state_;
  std::uint64_t limit_;
  std::uint64_t n_bytes_ = 0;
};

// Threads: one, but is_gone() may be called from any.
class Connection : public Client {
 public:
  // The socket stays the caller's.
  Connection(int fd, const HttpOptions& options, ServerState& state)
      : fd_(fd), options_(options), state_(state) {}

  enum class Outcome { kDone, kRefused, kClosed };

  // Reads the head of the next request, whose first byte comes within `idle`, and the rest within
  // `limit`. A refusal is in `refusal`; kClosed: there is no other request.
  Outcome read_head(std::chrono::milliseconds idle, std::chrono::milliseconds limit, Head& head,
                    Refusal& refusal);
  Outcome read_body(Head& head, BufferedBytes& buffered, Refusal& refusal);

  // A client that has closed both ways is gone. One that has closed its sending side alone, as `nc
  // -N` does, waits for its answer. TCP tells one from the other only when something is sent: so a
  // client of HTTP/1.1 gets a "100 Continue", which every client skips, and one that has closed
  // refuses it. With HTTP/1.0, and when the end comes in the middle of an answer, such a client
  // counts as gone.
  bool is_gone() override;

  // Writes the answer to a request. Returns false if the client did not get all of it: then the
  // connection has to be closed.
  bool answer(const Request& request, const Response& response, bool keep_alive);

  // Call it before the socket is closed. Tells the client that nothing more comes, and reads for a
  // moment what it still sends: a socket that is closed with unread bytes would take the last
  // answer from the client.
  void end();

 private:
  enum class ReadResult { kBytes, kEnd, kTimeout };
  class BodySink;

  ReadResult read_more(std::chrono::steady_clock::time_point deadline);
  bool wait_for_request(std::chrono::milliseconds idle);
  bool send(std::string_view bytes);
  bool send_locked(std::string_view bytes);
  std::chrono::milliseconds time_for(std::uint64_t n_bytes) const;

  int fd_;
  const HttpOptions& options_;
  ServerState& state_;
  std::string input_;           // read from the socket, not yet used
  bool is_broken_off_ = false;  // the client must not take the answer for complete

  // Of this request and its answer.
  std::mutex mutex_;
  int minor_version_ = 1;
  bool is_half_closed_ = false;
  std::uint64_t n_sent_ = 0;
  std::chrono::steady_clock::duration waited_{};  // for the client to take bytes
  std::string held_;                              // a head that goes out with what follows
  std::chrono::steady_clock::time_point held_since_;
};

}  // namespace tqcache::serve
