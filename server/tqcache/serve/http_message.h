#pragma once
// server/tqcache/serve/http_message.h: HTTP requests and responses, and the strict parser of a
// head.
//
// Two programs in a row that read one request differently can be made to see two requests (request
// smuggling). So a head is accepted only if it has one meaning: everything else is refused.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"

namespace tqcache::serve {

struct Header {
  std::string name;
  std::string value;

  friend bool operator==(const Header&, const Header&) = default;
};

// Whether the name is a word, and the value has no control character.
bool is_well_formed(const Header& header);

// Names of headers, and some values, are compared without regard to case.
bool same_word(std::string_view a, std::string_view b);

struct Request {
  std::string method;     // "POST"
  std::string target;     // as sent: "/v1/models?x=1"
  std::string path;       // "/v1/models", not decoded
  std::string query;      // "x=1"
  int minor_version = 1;  // of HTTP/1
  std::vector<Header> headers;
  std::string body;
  std::string remote;   // address of the client
  std::string api_key;  // that the client sent; empty: none

  // The value of the first header of that name; empty if there is none.
  std::string_view header(std::string_view name) const;
};

// The client of a request that is being answered.
class Client {
 public:
  virtual ~Client() = default;

  // Whether the client has closed its connection, or the server is being stopped at once. Then
  // nobody needs the answer.
  virtual bool is_gone() = 0;
};

// Takes the body of a streaming response.
class Sink {
 public:
  virtual ~Sink() = default;

  // Sends the bytes now. Returns false if the client is gone.
  virtual bool write(std::string_view bytes) = 0;
};

struct Response {
  int status = 200;
  std::vector<Header> headers;  // without those of the connection and the length
  std::string body;

  // If set, it is called after the head was sent and makes the body, in place of `body`. False: the
  // body ends early, and the connection is closed so that the client can see that.
  std::function<bool(Sink& sink)> stream = {};
  // The length of a streamed body. Without one it is sent in chunks.
  std::optional<std::uint64_t> stream_length = {};

  static Response json(int status, std::string text);
  static Response text(int status, std::string text);
  // {"error": {"message", "type", "code"}}, which clients of OpenAI's interface understand.
  static Response error(int status, std::string_view type, std::string_view message);
};

// The reason phrase: "Not Found".
std::string_view reason_of(int status);

// A request that is not accepted.
struct Refusal {
  int status = 400;
  std::string message;
  std::string challenge = {};  // of the header WWW-Authenticate
};

// What a head says about its body and connection.
struct Head {
  Request request;  // without a body
  std::optional<std::uint64_t> content_length;
  bool is_chunked = false;
  bool expects_continue = false;
  bool keep_alive = true;
};

struct HeadLimits {
  std::size_t max_bytes = std::size_t{64} << 10;
  std::size_t max_headers = 128;
  std::size_t max_target_bytes = std::size_t{8} << 10;
};

// Parses a head: request line, headers, empty line. `text` ends with the empty line.
//
// Refused: line ends other than CR LF, control characters, folded lines, a name with a character
// that no token has (as a space before the colon), more than one Content-Length, Transfer-Encoding
// or Host, Content-Length together with Transfer-Encoding, a length that is not only digits,
// another encoding than "chunked", a chunked body in HTTP/1.0, HTTP/1.1 without Host, another
// version, a target that does not begin with "/", and "Expect" other than "100-continue".
std::optional<Refusal> parse_head(std::string_view text, const HeadLimits& limits, Head& head);

// Decodes a chunked body, piece by piece. Chunk extensions and trailers are refused: nobody who
// speaks to this server needs them, and they are a way to smuggle.
class ChunkDecoder {
 public:
  explicit ChunkDecoder(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Consumes the beginning of `bytes` and appends to `body`. Returns how many were consumed: all,
  // unless the body is complete or refused.
  std::size_t feed(std::string_view bytes, std::string& body);

  bool is_complete() const { return state_ == State::kDone; }
  const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  enum class State { kSize, kSizeEnd, kData, kDataCr, kDataLf, kLastCr, kLastLf, kDone };

  void refuse(int status, std::string message);

  std::uint64_t max_bytes_;
  std::uint64_t n_bytes_ = 0;
  std::uint64_t left_ = 0;  // of the chunk
  int n_digits_ = 0;
  State state_ = State::kSize;
  std::optional<Refusal> refusal_;
};

}  // namespace tqcache::serve
