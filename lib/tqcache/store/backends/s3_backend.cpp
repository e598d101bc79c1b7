#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <random>
#include <thread>

#include "tqcache/base/pool.h"
#include "tqcache/base/system.h"
#include "tqcache/store/backends/backend_support.h"
#include "tqcache/store/backends/s3_client.h"
#include "tqcache/store/backends/s3_listing.h"
#include "tqcache/store/backends/store_url.h"

namespace tqcache::store {
namespace {

constexpr std::size_t kValuesAtOnce = 8;
constexpr std::size_t kObjectsAtOnce = 16;
constexpr std::uint64_t kMaxListingBytes = 16 << 20;  // of 1000 objects
constexpr std::uint64_t kMaxErrorBytes = 64 << 10;

struct S3Place {
  S3Settings settings;
  std::string bucket;
  std::string prefix;           // empty, or ending with '/'
  bool conditional = true;      // whether the service knows If-None-Match
  bool bucket_is_host = false;  // https://BUCKET.HOST/KEY, and not https://HOST/BUCKET/KEY

  std::string root() const { return bucket_is_host ? "/" : "/" + bucket + "/"; }
};

ErrorCode code_of(long status, const std::string& word) {
  if (word == "QuotaExceeded") return ErrorCode::kIo;  // as a full disk
  if (word == "EntityTooLarge") return ErrorCode::kTooLarge;
  switch (status) {
    case 404:
      return ErrorCode::kNotFound;
    case 409:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return ErrorCode::kBusy;
    case 405:
    case 501:
      return ErrorCode::kUnsupported;
    case 507:
      return ErrorCode::kIo;
    case 413:
      return ErrorCode::kTooLarge;
    default:
      return status >= 300 && status < 500 ? ErrorCode::kInvalidArgument : ErrorCode::kCorrupt;
  }
}

class S3Backend : public Backend {
 public:
  S3Backend(std::string name, S3Place place, const BackendOptions& options)
      : Backend(std::move(name), options),
        place_(std::move(place)),
        conditional_(place_.conditional) {}

  // A touch copies the object.
  bool touches_cheaply() const override { return false; }

 private:
  Error refused(const S3Answer& answer) const {
    const std::string word = parse_s3_error(answer.body.view());
    const std::string shown = printable(word, place_.settings.secrets());
    std::string message =
        "refused: HTTP " + std::to_string(answer.status) + (word.empty() ? "" : " " + shown);
    // Alibaba's OSS and Tencent's COS.
    if (word == "SecondLevelDomainForbidden" || word == "PathStyleDomainForbidden") {
      message += ": this service wants style=host in the URL of the store";
    }
    return {code_of(answer.status, word), std::move(message)};
  }

  Result<std::vector<PutOutcome>> do_put(std::span<const Blob> blobs) override {
    return put_in_batches(blobs, kValuesAtOnce, [this](std::span<const Blob> some, auto& outcomes) {
      return put_some(some, outcomes);
    });
  }

  Result<void> put_some(std::span<const Blob> blobs, std::vector<PutOutcome>& outcomes) {
    if (!conditional_) return put_after_looking(blobs, outcomes);
    std::vector<S3Request> requests;
    for (const Blob& blob : blobs) requests.push_back(put_request(blob, {"If-None-Match: *"}));
    TQC_TRY_ASSIGN(const std::vector<S3Answer> answers, run(requests));
    for (std::size_t i = 0; i < blobs.size(); ++i) {
      const S3Answer& answer = answers[i];
      const bool is_unknown =
          answer.status == 501 ||
          (answer.status == 400 && parse_s3_error(answer.body.view()) == "NotImplemented");
      if (is_unknown) {
        conditional_ = false;
        return put_after_looking(blobs.subspan(i), outcomes);
      }
      if (answer.status != 200 && answer.status != 412) {
        return in_context(blobs[i].key, refused(answer));
      }
      outcomes.push_back(answer.status == 200 ? PutOutcome::kStored : PutOutcome::kExisted);
    }
    return {};
  }

  // If two writers of one key both reach the second step, the last value stays.
  Result<void> put_after_looking(std::span<const Blob> blobs, std::vector<PutOutcome>& outcomes) {
    for (const Blob& blob : blobs) {
      TQC_TRY_ASSIGN(const std::vector<bool> found, do_exists(std::span(&blob.key, 1)));
      outcomes.push_back(found.front() ? PutOutcome::kExisted : PutOutcome::kStored);
      if (found.front()) continue;
      TQC_TRY_ASSIGN(const S3Answer answer, run_one(put_request(blob, {})));
      if (answer.status != 200) return in_context(blob.key, refused(answer));
    }
    return {};
  }

  Result<void> do_replace(const Blob& blob) override {
    TQC_TRY_ASSIGN(const S3Answer answer, run_one(put_request(blob, {})));
    return answer.status == 200 ? Result<void>() : in_context(blob.key, refused(answer));
  }

  S3Request put_request(const Blob& blob, std::vector<std::string> headers) const {
    return {S3Method::kPut, path_of(blob.key), "", std::move(headers), blob.value, kMaxErrorBytes};
  }

  Result<void> do_get(std::span<const std::string> keys, const ValueSink& sink) override {
    const S3Request like{S3Method::kGet, "", "", {}, {}, options().max_value_bytes};
    return in_batches(keys, kValuesAtOnce, [&](std::size_t i, auto some) -> Result<void> {
      TQC_TRY_ASSIGN(auto answers, run_on_each(like, some));
      for (std::size_t j = 0; j < some.size(); ++j) {
        if (answers[j].postponed) {
          S3Request request = like;
          request.path = path_of(some[j]);
          TQC_TRY_ASSIGN(answers[j], run_one(request));
        }
        const S3Answer answer = std::move(answers[j]);
        const Result<bool> found = is_there(answer);
        if (!found) return in_context(some[j], found.error());
        TQC_TRY(sink(i + j, *found ? std::optional<ByteView>(answer.body.view()) : std::nullopt));
      }
      return {};
    });
  }

  Result<std::vector<bool>> do_exists(std::span<const std::string> keys) override {
    std::vector<bool> found;
    const S3Request like{S3Method::kHead, "", "", {}, {}, 0};
    TQC_TRY(in_batches(keys, kObjectsAtOnce, [&](std::size_t, auto some) -> Result<void> {
      TQC_TRY_ASSIGN(const auto answers, run_on_each(like, some));
      for (std::size_t j = 0; j < some.size(); ++j) {
        const Result<bool> one = is_there(answers[j]);
        if (!one) return in_context(some[j], one.error());
        found.push_back(*one);
      }
      return {};
    }));
    return found;
  }

  // A missing key is a miss, a missing bucket an error. An answer to HEAD has no body to
  // distinguish them.
  Result<bool> is_there(const S3Answer& answer) const {
    if (answer.status == 200) return true;
    if (answer.status != 404 || parse_s3_error(answer.body.view()) == "NoSuchBucket")
      return refused(answer);
    return false;
  }

  // DELETE does not say whether the object existed, and has no condition that all services support.
  // So the object is looked up first.
  Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) override {
    TQC_TRY_ASSIGN(const bool wanted, only ? holds(key, *only) : exists(key));
    if (!wanted) return false;
    TQC_TRY_ASSIGN(const S3Answer answer,
                   run_one({S3Method::kDelete, path_of(key), "", {}, {}, kMaxErrorBytes}));
    if (answer.status == 204 || answer.status == 200) return true;
    if (answer.status == 404) return false;
    return in_context(key, refused(answer));
  }

  Result<bool> holds(const std::string& key, ByteView wanted) {
    TQC_TRY_ASSIGN(const std::optional<Bytes> value, get(key));
    return value && std::ranges::equal(*value, wanted);
  }

  // Copying an object onto itself makes it new again and keeps its bytes.
  Result<void> do_touch(std::span<const std::string> keys) override {
    for (const std::string& key : keys) {
      const std::string path = path_of(key);
      TQC_TRY_ASSIGN(const S3Answer answer,
                     run_one({S3Method::kPut,
                              path,
                              "",
                              {"x-amz-copy-source: /" + place_.bucket + "/" + place_.prefix + key,
                               "x-amz-metadata-directive: REPLACE"},
                              {},
                              kMaxErrorBytes}));
      if (const Result<bool> found = is_there(answer); !found)
        return in_context(key, found.error());
    }
    return {};
  }

  Result<void> do_list(const std::string& prefix, const EntrySink& sink) override {
    std::string token;
    std::uint64_t n_pages = 0;
    do {
      if (n_pages++ == options().max_list_pages) {
        return too_large(fmt::format("list of objects: does not end after {} pages", n_pages - 1));
      }
      TQC_TRY_ASSIGN(const S3Answer answer, run_one(list_request(prefix, token)));
      if (answer.status != 200) return refused(answer);
      TQC_TRY_ASSIGN(const S3Listing listing,
                     parse_s3_listing(answer.body.view(), place_.settings.secrets()));
      const std::time_t now = ::curl_getdate(answer.date.c_str(), nullptr);
      for (const S3Object& object : listing.objects) TQC_TRY(list_object(object, now, sink));
      if (!token.empty() && listing.next == token) {
        return corrupt("list of objects: its continuation token repeats");
      }
      token = listing.next;
    } while (!token.empty());
    return {};
  }

  S3Request list_request(const std::string& prefix, const std::string& token) const {
    std::string query = token.empty() ? "" : "continuation-token=" + url_encoded(token) + "&";
    query += "list-type=2&max-keys=1000&prefix=" + url_encoded(place_.prefix + prefix);
    const std::string path = place_.bucket_is_host ? "/" : "/" + place_.bucket;
    return {S3Method::kGet, path, query, {}, {}, kMaxListingBytes};
  }

  // Foreign objects are skipped.
  Result<void> list_object(const S3Object& object, std::time_t now, const EntrySink& sink) const {
    if (!object.name.starts_with(place_.prefix)) return {};
    Entry entry{object.name.substr(place_.prefix.size()), object.bytes, std::nullopt};
    if (!check_key(entry.key)) return {};
    // The age by the clock of the service, from the date of its answer.
    if (now > 0)
      entry.idle = std::chrono::seconds(std::max<std::int64_t>(now - object.modified, 0));
    return sink(entry);
  }

  std::string path_of(const std::string& key) const { return place_.root() + place_.prefix + key; }

  Result<std::vector<S3Answer>> run_on_each(const S3Request& like,
                                            std::span<const std::string> keys) {
    std::vector<S3Request> requests(keys.size(), like);
    for (std::size_t i = 0; i < keys.size(); ++i) requests[i].path = path_of(keys[i]);
    return run(requests);
  }

  Result<S3Answer> run_one(const S3Request& request) {
    TQC_TRY_ASSIGN(std::vector<S3Answer> answers, run(std::span(&request, 1)));
    return std::move(answers.front());
  }

  // Whether the same request may succeed later. 409: another client is writing the same key, and
  // its write may fail.
  static bool may_pass(const S3Answer& answer) {
    return code_of(answer.status, parse_s3_error(answer.body.view())) == ErrorCode::kBusy;
  }

  // Sends the requests that the service cannot answer now again, after pauses that double. All
  // pauses together are no longer than the wait for a silent service.
  Result<std::vector<S3Answer>> run(std::span<const S3Request> requests) {
    const auto client = this->client();
    TQC_TRY_ASSIGN(std::vector<S3Answer> answers, client->run(requests));
    std::chrono::milliseconds left = options().idle_timeout;
    for (std::chrono::milliseconds pause(100);; pause *= 2) {
      std::vector<std::size_t> again;
      std::vector<S3Request> rest;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        if (answers[i].postponed || !may_pass(answers[i])) continue;
        again.push_back(i);
        rest.push_back(requests[i]);
      }
      if (again.empty() || pause > left) return answers;
      left -= pause;
      TQC_TRY(sleep(pause));
      TQC_TRY_ASSIGN(std::vector<S3Answer> later, client->run(rest));
      for (std::size_t i = 0; i < again.size(); ++i) answers[again[i]] = std::move(later[i]);
    }
  }

  // At least half of the time: clients that were refused at once should not come back at once.
  Result<void> sleep(std::chrono::milliseconds longest) {
    constexpr std::chrono::milliseconds kStep{50};
    thread_local std::minstd_rand random{std::random_device{}()};
    std::uniform_int_distribution<std::int64_t> shorter(0, longest.count() / 2);
    auto left = longest - std::chrono::milliseconds(shorter(random));
    while (left.count() > 0) {
      if (options().interrupted && options().interrupted()) return interrupted_error();
      std::this_thread::sleep_for(std::min(left, kStep));
      left -= kStep;
    }
    return {};
  }

  Pool<S3Client>::Lease client() {
    return clients_.borrow([&] { return std::make_unique<S3Client>(place_.settings); });
  }

  const S3Place place_;
  std::atomic<bool> conditional_;  // until the service refuses it
  Pool<S3Client> clients_;
};

bool is_plain(std::string_view text, std::string_view others) {
  return std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           others.find(c) != std::string_view::npos;
  });
}

Result<void> take_region(StoreUrl& url, const Credentials& credentials, S3Place& place) {
  const std::string& usual = credentials.s3_region;
  place.settings.region = url.take("region", usual.empty() ? "us-east-1" : usual);
  if (is_plain(place.settings.region, "-") && place.settings.region.size() <= 64) return {};
  return bad_url("region " + in_quotes(place.settings.region));
}

Result<void> take_endpoint(StoreUrl& url, S3Place& place) {
  std::string endpoint =
      url.take("endpoint", "https://s3." + place.settings.region + ".amazonaws.com");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const std::size_t scheme = endpoint.starts_with("http://")    ? 7
                             : endpoint.starts_with("https://") ? 8
                                                                : 0;
  const std::string_view host = std::string_view(endpoint).substr(scheme);
  if (scheme == 0 || host.empty() || !is_plain(host, ".-_:[]")) {
    return bad_url("endpoint: expected http[s]://HOST[:PORT]");  // not shown: it may have keys
  }
  place.settings.endpoint = endpoint;
  return {};
}

// The prefix follows the rules of keys, so that it can be used in a URL unchanged.
Result<void> take_bucket(const StoreUrl& url, S3Place& place) {
  if (url.host.size() < 3 || url.host.size() > 63 || !is_plain(url.host, ".-_") || url.port != 0 ||
      !url.user.empty()) {
    return bad_url("expected s3://BUCKET[/PREFIX]");
  }
  place.bucket = url.host;
  std::string prefix = url.path.empty() ? "" : url.path.substr(1);
  while (prefix.ends_with('/')) prefix.pop_back();
  if (prefix.empty()) return {};
  if (!check_key(prefix))
    return bad_url("prefix " + in_quotes(prefix) + ": it must follow the rules of keys");
  place.prefix = prefix + "/";
  return {};
}

Result<void> take_conditional(StoreUrl& url, S3Place& place) {
  const std::string conditional = url.take("conditional", "on");
  place.conditional = conditional == "on";
  if (place.conditional || conditional == "off") return {};
  return bad_url("conditional=on or conditional=off");
}

Result<void> take_style(StoreUrl& url, S3Place& place) {
  const std::string style = url.take("style", "path");
  if (style == "path") return {};
  if (style != "host") return bad_url("style=path or style=host");
  place.bucket_is_host = true;
  const std::size_t host = place.settings.endpoint.find("://") + 3;
  place.settings.endpoint.insert(host, place.bucket + ".");
  return {};
}

Result<void> take_credentials(const Credentials& credentials, S3Place& place) {
  if (credentials.s3_access_key.empty()) return invalid("s3: AWS_ACCESS_KEY_ID is not set");
  if (credentials.s3_secret_key.empty()) return invalid("s3: AWS_SECRET_ACCESS_KEY is not set");
  // A header may not be left early.
  const auto is_visible = [](char c) { return c > ' ' && c <= '~'; };
  if (!std::ranges::all_of(credentials.s3_session_token, is_visible)) {
    return invalid("s3: AWS_SESSION_TOKEN has characters that no token has");
  }
  place.settings.access_key = credentials.s3_access_key;
  place.settings.secret_key = credentials.s3_secret_key;
  place.settings.session_token = credentials.s3_session_token;
  place.settings.ca_file = credentials.ca_file;
  place.settings.ca_path = credentials.ca_folder;
  return {};
}

}  // namespace

Result<std::unique_ptr<Backend>> open_s3_backend(StoreUrl url, const BackendOptions& options) {
  S3Place place;
  TQC_TRY(take_bucket(url, place));
  TQC_TRY(take_region(url, options.credentials, place));
  TQC_TRY(take_endpoint(url, place));
  TQC_TRY(take_conditional(url, place));
  TQC_TRY(take_style(url, place));
  TQC_TRY(check_all_taken(url));
  TQC_TRY(take_credentials(options.credentials, place));
  if (place.settings.ca_file.empty() && place.settings.ca_path.empty()) {
    place.settings.ca_file = certificate_file();
  }
  place.settings.connect_timeout = options.connect_timeout;
  place.settings.idle_timeout = options.idle_timeout;
  place.settings.time_limit = options.time_limit;
  place.settings.least_rate = options.least_rate;
  place.settings.interrupted = options.interrupted;
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    return Error{ErrorCode::kIo, "s3: libcurl cannot be used"};
  }
  std::string name = "s3://" + place.bucket + (place.prefix.empty() ? "" : "/" + place.prefix) +
                     " at " + place.settings.endpoint;
  return std::unique_ptr<Backend>(
      std::make_unique<S3Backend>(std::move(name), std::move(place), options));
}

}  // namespace tqcache::store
