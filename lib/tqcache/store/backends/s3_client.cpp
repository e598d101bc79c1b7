// libcurl 7.88 signs correctly only with: an x-amz-content-sha256 header from the caller; no
// removed header ("Expect:"), because that would be signed as well; a '=' after every parameter.

#include "tqcache/store/backends/s3_client.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tqcache/hash.h"
#include "tqcache/store/backends/backend_support.h"

namespace tqcache::store {
namespace {

struct EndEasy {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
// A process that was forked must not end the TLS connections of the one before: they stay open.
struct EndMulti {
  long process = ::getpid();
  void operator()(CURLM* multi) const {
    if (process == ::getpid()) curl_multi_cleanup(multi);
  }
};

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, FreeList>;

// A request in progress.
struct Transfer {
  CURL* easy = nullptr;
  const S3Request* request = nullptr;
  HeaderList headers;
  std::size_t sent = 0;
  S3Answer answer;
  std::uint64_t* bytes_of_all = nullptr;  // of the bodies of several answers
  bool too_large = false;
  char message[CURL_ERROR_SIZE] = "";

  void begin_anew() {
    drop_body();
    sent = 0;
    answer = {};
    message[0] = '\0';
  }
  void drop_body() {
    if (bytes_of_all != nullptr) *bytes_of_all -= answer.body.size();
    answer.body.clear();
  }
};

// Of the bodies of several answers, so that large ones are not in memory at once.
constexpr std::uint64_t kMaxBytesOfAll = std::uint64_t{64} << 20;

// Only a hint, so limited to the usual size of a blob.
std::size_t announced_bytes(const Transfer& transfer) {
  constexpr curl_off_t kMost = 8 << 20;
  curl_off_t bytes = 0;
  curl_easy_getinfo(transfer.easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &bytes);
  return static_cast<std::size_t>(std::clamp<curl_off_t>(bytes, 0, kMost));
}

std::size_t take_body(char* data, std::size_t, std::size_t size, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  ArrivingBytes& body = transfer.answer.body;
  if (size > transfer.request->max_answer_bytes - body.size()) {
    transfer.too_large = true;
    return 0;
  }
  if (transfer.bytes_of_all != nullptr) {
    if (*transfer.bytes_of_all + size > kMaxBytesOfAll) {
      transfer.drop_body();
      transfer.answer.postponed = true;
      return 0;
    }
    *transfer.bytes_of_all += size;
  }
  if (body.size() == 0) body.reserve(announced_bytes(transfer));
  body.append(as_bytes({data, size}));
  return size;
}

std::size_t give_body(char* data, std::size_t, std::size_t room, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  const ByteView rest = transfer.request->body.subspan(transfer.sent);
  const std::size_t size = std::min(room, rest.size());
  if (size > 0) std::memcpy(data, rest.data(), size);
  transfer.sent += size;
  return size;
}

// curl seeks to the start when it repeats a request on another connection.
int seek_body(void* user, curl_off_t offset, int origin) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  const auto size = static_cast<curl_off_t>(transfer.request->body.size());
  if (origin != SEEK_SET || offset < 0 || offset > size) return CURL_SEEKFUNC_FAIL;
  transfer.sent = static_cast<std::size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

std::size_t take_header(char* data, std::size_t, std::size_t size, void* user) {
  constexpr std::string_view kDate = "date:";
  std::string_view line(data, size);
  const bool is_date = line.size() > kDate.size() &&
                       std::ranges::equal(line.substr(0, kDate.size()), kDate, {}, [](char c) {
                         return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
                       });
  if (!is_date) return size;
  line.remove_prefix(kDate.size());
  const std::size_t begin = line.find_first_not_of(' ');
  const std::size_t end = line.find_last_not_of("\r\n ");
  if (begin != std::string_view::npos)
    static_cast<Transfer*>(user)->answer.date = line.substr(begin, end + 1 - begin);
  return size;
}

bool is_broken(CURLcode status) {
  switch (status) {
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
      return true;
    default:
      return false;
  }
}

Error transfer_error(const Transfer& transfer, CURLcode status, Secrets secrets) {
  if (transfer.too_large) {
    return {ErrorCode::kTooLarge,
            fmt::format("an answer of more than {} bytes", transfer.request->max_answer_bytes)};
  }
  const char* const words =
      transfer.message[0] != '\0' ? transfer.message : curl_easy_strerror(status);
  return {ErrorCode::kIo, printable(words, secrets)};
}

HeaderList make_headers(const S3Request& request, const S3Settings& settings) {
  HeaderList list;
  const auto add = [&](const std::string& line) {
    list.reset(curl_slist_append(list.release(), line.c_str()));
  };
  for (const std::string& line : request.headers) add(line);
  add("x-amz-content-sha256: " + to_hex(ByteView(sha256(request.body))));
  if (!settings.session_token.empty()) add("x-amz-security-token: " + settings.session_token);
  return list;
}

void set_method(CURL* easy, const S3Request& request) {
  if (request.method == S3Method::kHead) curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
  if (request.method == S3Method::kDelete) curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "DELETE");
  if (request.method != S3Method::kPut) return;
  curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
  curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
}

void set_callbacks(CURL* easy, Transfer& transfer) {
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_body);
  curl_easy_setopt(easy, CURLOPT_READDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, seek_body);
  curl_easy_setopt(easy, CURLOPT_SEEKDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer.message);
  curl_easy_setopt(easy, CURLOPT_PRIVATE, &transfer);
}

void set_limits(CURL* easy, const S3Settings& settings) {
  const auto seconds = (settings.idle_timeout.count() + 999) / 1000;
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(settings.connect_timeout.count()));
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(settings.time_limit.count()));
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT,
                   static_cast<long>(std::max<std::uint64_t>(settings.least_rate, 1)));
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, static_cast<long>(seconds));
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // an end does not wait for a name server
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  // A proxy would read all prompts on their way to an http:// endpoint. To an https:// endpoint it
  // passes on what it cannot read, so the variables https_proxy and no_proxy count there.
  if (settings.endpoint.starts_with("http://")) curl_easy_setopt(easy, CURLOPT_PROXY, "");
  if (!settings.ca_file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, settings.ca_file.c_str());
  if (!settings.ca_path.empty()) curl_easy_setopt(easy, CURLOPT_CAPATH, settings.ca_path.c_str());
}

// As large as body and answer may be, and at most what speeds up blobs.
void set_buffers(CURL* easy, const S3Request& request) {
  constexpr std::uint64_t kLeast = 16 << 10, kMost = 512 << 10;
  const auto size_for = [=](std::uint64_t bytes) {
    return static_cast<long>(std::clamp(bytes, kLeast, kMost));
  };
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, size_for(request.max_answer_bytes));
  curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, size_for(request.body.size()));
}

void set_signature(CURL* easy, const S3Settings& settings) {
  const std::string service = "aws:amz:" + settings.region + ":s3";
  curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, service.c_str());
  curl_easy_setopt(easy, CURLOPT_USERNAME, settings.access_key.c_str());
  curl_easy_setopt(easy, CURLOPT_PASSWORD, settings.secret_key.c_str());
}

}  // namespace

void ArrivingBytes::reserve(std::size_t n) {
  if (n <= capacity_) return;
  void* const grown = std::realloc(block_.get(), n);
  if (grown == nullptr) throw std::bad_alloc();
  [[maybe_unused]] std::byte* const moved = block_.release();
  block_.reset(static_cast<std::byte*>(grown));
  capacity_ = n;
}

void ArrivingBytes::append(ByteView bytes) {
  if (bytes.empty()) return;
  const std::size_t needed = size_ + bytes.size();
  if (needed > capacity_) reserve(std::max(needed, capacity_ + capacity_ / 2));
  std::memcpy(block_.get() + size_, bytes.data(), bytes.size());
  size_ = needed;
}

void ArrivingBytes::clear() {
  block_.reset();
  size_ = capacity_ = 0;
}

struct S3Client::State {
  const S3Settings& settings;
  std::unique_ptr<CURLM, EndMulti> multi;
  std::vector<std::unique_ptr<CURL, EndEasy>> easies;

  bool prepare(std::size_t count);
  void begin(Transfer& transfer, CURL* easy, const S3Request& request) const;
  Result<void> perform(std::vector<Transfer>& transfers);
  Result<std::size_t> finish_some(std::vector<Transfer*>& broken);
  Result<void> perform_all(const std::vector<Transfer*>& transfers, std::vector<Transfer*>& broken);
};

S3Client::S3Client(const S3Settings& settings) : state_(new State{settings, nullptr, {}}) {}
S3Client::~S3Client() = default;

// A handle is used for one transfer only: libcurl 7.88 keeps a pointer to the last header line of
// a transfer and reads it when the next one begins with a folded line. Connections are those of
// `multi`.
bool S3Client::State::prepare(std::size_t count) {
  easies.clear();
  if (!multi) multi.reset(curl_multi_init());
  while (multi && easies.size() < count) {
    std::unique_ptr<CURL, EndEasy> easy(curl_easy_init());
    if (!easy) return false;
    easies.push_back(std::move(easy));
  }
  return multi != nullptr;
}

void S3Client::State::begin(Transfer& transfer, CURL* easy, const S3Request& request) const {
  transfer.easy = easy;
  transfer.request = &request;
  transfer.headers = make_headers(request, settings);
  const std::string url =
      settings.endpoint + request.path + (request.query.empty() ? "" : "?" + request.query);
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  // Not with CURLOPT_PATH_AS_IS, which newer libcurl refuses beside a signature: no word of a path
  // begins with a dot, so there is nothing to normalize.
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer.headers.get());
  set_method(easy, request);
  set_callbacks(easy, transfer);
  set_limits(easy, settings);
  set_buffers(easy, request);
  set_signature(easy, settings);
}

// Removes finished transfers from `multi` and returns their number. `broken` gets those to repeat.
Result<std::size_t> S3Client::State::finish_some(std::vector<Transfer*>& broken) {
  std::size_t n_done = 0;
  int left = 0;
  while (const CURLMsg* const message = curl_multi_info_read(multi.get(), &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode status = message->data.result;
    CURL* const easy = message->easy_handle;
    Transfer* transfer = nullptr;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, &transfer);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &transfer->answer.status);
    curl_multi_remove_handle(multi.get(), easy);
    ++n_done;
    if (status == CURLE_OK || transfer->answer.postponed) continue;
    if (!is_broken(status)) return transfer_error(*transfer, status, settings.secrets());
    broken.push_back(transfer);
  }
  return n_done;
}

Result<void> S3Client::State::perform_all(const std::vector<Transfer*>& transfers,
                                          std::vector<Transfer*>& broken) {
  for (const Transfer* const one : transfers) curl_multi_add_handle(multi.get(), one->easy);
  for (std::size_t n_done = 0;;) {
    if (settings.interrupted && settings.interrupted()) return interrupted_error();
    int running = 0;
    const CURLMcode status = curl_multi_perform(multi.get(), &running);
    if (status != CURLM_OK) return Error{ErrorCode::kIo, curl_multi_strerror(status)};
    TQC_TRY_ASSIGN(const std::size_t n_new, finish_some(broken));
    n_done += n_new;
    if (n_done == transfers.size()) return {};
    constexpr int kLookMs = 100;  // at least this often
    curl_multi_poll(multi.get(), nullptr, 0, kLookMs, nullptr);
  }
}

Result<void> S3Client::State::perform(std::vector<Transfer>& transfers) {
  std::vector<Transfer*> all;
  for (Transfer& transfer : transfers) all.push_back(&transfer);
  std::vector<Transfer*> broken;
  TQC_TRY(perform_all(all, broken));
  if (broken.empty()) return {};
  for (Transfer* const one : broken) {
    one->begin_anew();
    easies.emplace_back(curl_easy_duphandle(one->easy));
    if (!easies.back()) return Error{ErrorCode::kIo, "no memory for a connection"};
    one->easy = easies.back().get();
  }
  std::vector<Transfer*> broken_again;
  TQC_TRY(perform_all(broken, broken_again));
  if (broken_again.empty()) return {};
  return transfer_error(*broken_again.front(), CURLE_RECV_ERROR, settings.secrets());
}

Result<std::vector<S3Answer>> S3Client::run(std::span<const S3Request> requests) {
  if (!state_->prepare(requests.size())) return Error{ErrorCode::kIo, "no memory for a connection"};
  std::vector<Transfer> transfers(requests.size());
  std::uint64_t bytes_of_all = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests.size() > 1) transfers[i].bytes_of_all = &bytes_of_all;
    state_->begin(transfers[i], state_->easies[i].get(), requests[i]);
  }
  const Result<void> done = state_->perform(transfers);
  // Transfers that are still active after an error.
  for (const Transfer& one : transfers) curl_multi_remove_handle(state_->multi.get(), one.easy);
  if (!done) return done.error();
  std::vector<S3Answer> answers;
  for (Transfer& one : transfers) answers.push_back(std::move(one.answer));
  return answers;
}

std::string url_encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool is_plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == '~';
    if (is_plain) {
      out += c;
      continue;
    }
    constexpr char kDigits[] = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(c);
    out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

}  // namespace tqcache::store
