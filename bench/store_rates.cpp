// How fast a store's engine puts and gets, beside what the engine itself does with the same bytes.
//
// usage: store_rates URL [MIB [BLOB_KIB [ROUNDS]]]
//
// Rounds take turns: the raw rate, then the store's. For `dir:` raw is one file written and flushed
// beside the store, and read; for `redis://HOST:PORT` it is SET and GET of the same values, one
// after another, by hiredis. Medians, in MiB/s.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tqcache/store/backend.h"

#ifdef TQCACHE_STORE_REDIS
#include <hiredis/hiredis.h>
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
  std::vector<double> put, get;
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
  Bytes into(blobs.values[0].size());
  while (::read(fd, into.data(), into.size()) > 0) {
  }
  ::close(fd);
}

void measure_file(const std::string& path, const Blobs& blobs, Rates& rates) {
  rates.put.push_back(rate(blobs.mib, [&] { write_file(path, blobs); }));
  rates.get.push_back(rate(blobs.mib, [&] { read_file(path, blobs); }));
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

void measure_raw(const std::string& url, const Blobs& blobs, Rates& rates) {
  if (url.starts_with("dir:")) return measure_file(url.substr(4) + ".raw", blobs, rates);
#ifdef TQCACHE_STORE_REDIS
  if (url.starts_with("redis://")) return measure_redis(url.substr(8), blobs, rates);
#endif
}

void print(const char* what, const Rates& rates) {
  if (rates.put.empty()) return;
  std::printf("%-6s put %8.1f MiB/s  get %8.1f MiB/s\n", what, median(rates.put),
              median(rates.get));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) give_up("usage: store_rates URL [MIB [BLOB_KIB [ROUNDS]]]");
  const auto number = [&](int i, int otherwise) {
    return static_cast<std::size_t>(std::max(1, argc > i ? std::atoi(argv[i]) : otherwise));
  };
  const Blobs blobs = make_blobs(number(2, 100), number(3, 4096));
  const auto store = tqcache::store::open_backend(argv[1], {});
  if (!store) give_up(store.error().message);
  Rates raw, ours;
  for (std::size_t round = 0; round < number(4, 7); ++round) {
    remove(**store, blobs);
    measure_raw(argv[1], blobs, raw);
    ours.put.push_back(rate(blobs.mib, [&] { put(**store, blobs); }));
    ours.get.push_back(rate(blobs.mib, [&] { get(**store, blobs); }));
  }
  remove(**store, blobs);
  print("engine", raw);
  print("store", ours);
  return 0;
}
