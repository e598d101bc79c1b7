// bench/store_rates.cpp: speed of a store's backend, compared with direct use of the same medium or
// server.
//
// usage: store_rates URL [MIB [BLOB_KIB [ROUNDS]]]
//
// Each round measures the raw rate and then the backend's. The raw rate handles the same values one
// after another:
//   dir:PATH           written to one file beside the store, which is then flushed; and read
//   redis://HOST:PORT  SET and GET by hiredis
//   s3://BUCKET?...    PUT and GET by libcurl, signed except for the body
// Both copy every received value to the same buffer. A folder is read a second time after its files
// have been dropped from the page cache ("cold"). Medians, in MiB/s.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tqcache/store.h"

#ifdef TQCACHE_STORE_REDIS
#include <hiredis/hiredis.h>
#endif
#ifdef TQCACHE_STORE_S3
#include <curl/curl.h>
#endif

namespace {

using tqcache::Bytes;
using tqcache::store::Backend;

struct Blobs {
  std::vector<std::string> keys;
  std::vector<Bytes> values;
  double mib = 0;
};

struct Rates {
  std::vector<double> put, get, get_cold;
};

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "store_rates: %s\n", why.c_str());
  std::exit(1);
}

double rate(double mib, const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return mib / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> all) {
  std::ranges::sort(all);
  return all[all.size() / 2];
}

Blobs make_blobs(std::size_t mib, std::size_t blob_kib) {
  std::mt19937_64 random(1);
  Blobs blobs;
  for (std::size_t i = 0; i < (mib << 10) / blob_kib; ++i) {
    blobs.keys.push_back("b/rates/" + std::to_string(i));
    Bytes value(blob_kib << 10);
    for (std::size_t j = 0; j < value.size(); j += 8) {
      const std::uint64_t word = random();
      std::memcpy(value.data() + j, &word, 8);
    }
    blobs.values.push_back(std::move(value));
  }
  blobs.mib = static_cast<double>(blobs.keys.size() * blob_kib) / 1024;
  return blobs;
}

void put(Backend& store, const Blobs& blobs) {
  std::vector<tqcache::store::Blob> all;
  for (std::size_t i = 0; i < blobs.keys.size(); ++i)
    all.push_back({blobs.keys[i], blobs.values[i]});
  const auto done = store.put(all);
  if (!done) give_up(done.error().message);
}

void get(Backend& store, const Blobs& blobs) {
  Bytes into(blobs.values[0].size());
  const auto done = store.get(blobs.keys, [&](std::size_t, auto value) -> tqcache::Result<void> {
    if (!value) give_up("a miss");
    std::memcpy(into.data(), value->data(), value->size());
    return {};
  });
  if (!done) give_up(done.error().message);
}

void remove(Backend& store, const Blobs& blobs) {
  for (const std::string& key : blobs.keys) (void)store.remove(key).ok();
}

void write_file(const std::string& path, const Blobs& blobs) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  for (const Bytes& value : blobs.values) {
    if (::write(fd, value.data(), value.size()) != static_cast<ssize_t>(value.size()))
      give_up("write failed");
  }
  if (::fsync(fd) != 0) give_up("fsync failed");
  ::close(fd);
}

void read_file(const std::string& path, const Blobs& blobs) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  Bytes value(blobs.values[0].size());
  Bytes into(value.size());
  while (::read(fd, value.data(), value.size()) > 0) {
    std::memcpy(into.data(), value.data(), value.size());
  }
  ::close(fd);
}

// Drops a file, or all files of a folder, from the page cache.
void drop_pages(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) drop_pages(entry.path());
    }
    return;
  }
  const int fd = ::open(path.c_str(), O_RDONLY);
  (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

void measure_file(const std::string& path, const Blobs& blobs, Rates& rates) {
  rates.put.push_back(rate(blobs.mib, [&] { write_file(path, blobs); }));
  rates.get.push_back(rate(blobs.mib, [&] { read_file(path, blobs); }));
  drop_pages(path);
  rates.get_cold.push_back(rate(blobs.mib, [&] { read_file(path, blobs); }));
  ::unlink(path.c_str());
}

#ifdef TQCACHE_STORE_REDIS
void measure_redis(const std::string& address, const Blobs& blobs, Rates& rates) {
  const std::size_t colon = address.find(':');
  redisContext* const redis =
      redisConnect(address.substr(0, colon).c_str(), std::atoi(address.c_str() + colon + 1));
  if (redis == nullptr || redis->err != 0) give_up("redis does not answer");
  Bytes into(blobs.values[0].size());
  rates.put.push_back(rate(blobs.mib, [&] {
    for (std::size_t i = 0; i < blobs.keys.size(); ++i) {
      freeReplyObject(redisCommand(redis, "SET raw:%s %b", blobs.keys[i].c_str(),
                                   blobs.values[i].data(), blobs.values[i].size()));
    }
  }));
  rates.get.push_back(rate(blobs.mib, [&] {
    for (const std::string& key : blobs.keys) {
      auto* const reply = static_cast<redisReply*>(redisCommand(redis, "GET raw:%s", key.c_str()));
      if (reply == nullptr || reply->type != REDIS_REPLY_STRING) give_up("a miss");
      std::memcpy(into.data(), reply->str, std::min(into.size(), reply->len));
      freeReplyObject(reply);
    }
  }));
  for (const std::string& key : blobs.keys)
    freeReplyObject(redisCommand(redis, "DEL raw:%s", key.c_str()));
  redisFree(redis);
}
#endif

#ifdef TQCACHE_STORE_S3
struct Place {
  char* bytes;
  std::size_t size, done;
};

std::size_t take(char* data, std::size_t, std::size_t size, void* user) {
  Place& place = *static_cast<Place*>(user);
  size = std::min(size, place.size - place.done);
  std::memcpy(place.bytes + place.done, data, size);
  place.done += size;
  return size;
}

std::size_t give(char* data, std::size_t, std::size_t room, void* user) {
  Place& place = *static_cast<Place*>(user);
  const std::size_t size = std::min(room, place.size - place.done);
  std::memcpy(data, place.bytes + place.done, size);
  place.done += size;
  return size;
}

void transfer(CURL* easy, const std::string& url, bool upload, Bytes& bytes) {
  Place place{reinterpret_cast<char*>(bytes.data()), bytes.size(), 0};
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, upload ? CURLOPT_UPLOAD : CURLOPT_HTTPGET, 1L);
  curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(bytes.size()));
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, upload ? nullptr : take);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, upload ? static_cast<void*>(stderr) : &place);
  curl_easy_setopt(easy, CURLOPT_READFUNCTION, give);
  curl_easy_setopt(easy, CURLOPT_READDATA, &place);
  long status = 0;
  if (curl_easy_perform(easy) != CURLE_OK) give_up("s3 does not answer");
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200 || place.done != bytes.size()) give_up("s3: HTTP " + std::to_string(status));
}

// "s3://BUCKET?endpoint=URL"
void measure_s3(const std::string& url, Blobs& blobs, Rates& rates) {
  const std::size_t query = url.find("?endpoint=");
  const std::string base = url.substr(query + 10) + "/" + url.substr(5, query - 5) + "/raw-";
  CURL* const easy = curl_easy_init();
  curl_slist* const headers = curl_slist_append(nullptr, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(easy, CURLOPT_AWS_SIGV4, "aws:amz:us-east-1:s3");
  curl_easy_setopt(easy, CURLOPT_USERNAME, std::getenv("AWS_ACCESS_KEY_ID"));
  curl_easy_setopt(easy, CURLOPT_PASSWORD, std::getenv("AWS_SECRET_ACCESS_KEY"));
  const auto all = [&](bool upload) {
    Bytes into(blobs.values[0].size());
    for (std::size_t i = 0; i < blobs.keys.size(); ++i) {
      transfer(easy, base + std::to_string(i), upload, upload ? blobs.values[i] : into);
    }
  };
  rates.put.push_back(rate(blobs.mib, [&] { all(true); }));
  rates.get.push_back(rate(blobs.mib, [&] { all(false); }));
  curl_slist_free_all(headers);
  curl_easy_cleanup(easy);
}
#endif

void measure_raw(const std::string& url, Blobs& blobs, Rates& rates) {
  if (url.starts_with("dir:")) return measure_file(url.substr(4) + ".raw", blobs, rates);
#ifdef TQCACHE_STORE_REDIS
  if (url.starts_with("redis://")) return measure_redis(url.substr(8), blobs, rates);
#endif
#ifdef TQCACHE_STORE_S3
  if (url.starts_with("s3://")) return measure_s3(url, blobs, rates);
#endif
}

void print(const char* what, const Rates& rates) {
  if (rates.put.empty()) return;
  std::printf("%-6s put %8.1f MiB/s  get %8.1f MiB/s", what, median(rates.put), median(rates.get));
  if (!rates.get_cold.empty()) std::printf("  cold %8.1f MiB/s", median(rates.get_cold));
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) give_up("usage: store_rates URL [MIB [BLOB_KIB [ROUNDS]]]");
  const auto number = [&](int i, int otherwise) {
    return static_cast<std::size_t>(std::max(1, argc > i ? std::atoi(argv[i]) : otherwise));
  };
  Blobs blobs = make_blobs(number(2, 100), number(3, 4096));
  const auto store = tqcache::store::open_backend(
      argv[1], {.credentials = tqcache::store::credentials_of_environment()});
  if (!store) give_up(store.error().message);
  Rates raw, ours;
  for (std::size_t round = 0; round < number(4, 7); ++round) {
    remove(**store, blobs);
    measure_raw(argv[1], blobs, raw);
    ours.put.push_back(rate(blobs.mib, [&] { put(**store, blobs); }));
    ours.get.push_back(rate(blobs.mib, [&] { get(**store, blobs); }));
    if (raw.get_cold.empty()) continue;
    drop_pages(std::string(argv[1]).substr(4));
    ours.get_cold.push_back(rate(blobs.mib, [&] { get(**store, blobs); }));
  }
  remove(**store, blobs);
  print("engine", raw);
  print("store", ours);
  return 0;
}
