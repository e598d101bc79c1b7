// bench/store_library.cpp: overhead of the library over its backend and over a plain copy.
//
// usage: store_library URL FOLDER [MIB [ROUNDS]]
//
// lookup: the longest prefix of a prompt of 32,768 tokens, all of which except the last are in the
// store. put, get: a file with a quantized cache of about MIB (100) into the store, and back into
// memory and into a file. Each round also measures the backend's own put() and get() of values of
// the same sizes, and a plain copy of the file, flushed. Medians of ROUNDS (7), in MiB/s. FOLDER
// holds the files; for `dir:` it should be on the disk of the store.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/store.h"
#include "tqcache/tqkv.h"

namespace {

using namespace tqcache;
using test::CacheBuilder;
using test::must;

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> all) {
  std::ranges::sort(all);
  return all[all.size() / 2];
}

// Empties the store.
void empty(store::Backend& backend) {
  std::vector<std::string> keys;
  must(backend.list("", [&](const store::Entry& entry) -> Result<void> {
    keys.push_back(entry.key);
    return {};
  }));
  for (const std::string& key : keys) must(backend.remove(key));
}

// Shapes of a model of 28 layers. Layers repeat, because generating values takes most of the time.
cache::Cache turbo_cache(std::size_t mib) {
  constexpr std::int64_t kBytesOfBlock = 28 * 2 * 8 * (128 / 2 + 2) * 256;
  const auto n_blocks = static_cast<std::int64_t>(mib << 20) / kBytesOfBlock;
  CacheBuilder builder(n_blocks * cache::kTokenBlock + 1);
  for (int i = 0; i < 4; ++i) builder.turbo({8, 128}, 4, 4);
  cache::Cache cache = builder.build();
  while (cache.layers.size() < 28) cache.layers.push_back(cache.layers[cache.layers.size() - 4]);
  return cache;
}

void copy_file(const std::string& from, const std::string& to) {
  const int in = ::open(from.c_str(), O_RDONLY);
  const int out = ::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  std::vector<char> buffer(std::size_t{4} << 20);
  for (ssize_t n = 0; (n = ::read(in, buffer.data(), buffer.size())) > 0;) {
    if (::write(out, buffer.data(), static_cast<std::size_t>(n)) != n) std::abort();
  }
  if (::fsync(out) != 0) std::abort();
  ::close(in);
  ::close(out);
}

// The values of a store under other keys.
struct Raw {
  std::vector<std::string> keys;
  std::vector<Bytes> values;

  explicit Raw(store::Backend& backend) {
    must(backend.list("", [&](const store::Entry& entry) -> Result<void> {
      values.push_back(must(backend.get(entry.key)).value());
      keys.push_back("raw/" + std::to_string(keys.size()));
      return {};
    }));
  }
  void put(store::Backend& backend) const {
    std::vector<store::Blob> blobs;
    for (std::size_t i = 0; i < keys.size(); ++i) blobs.push_back({keys[i], values[i]});
    (void)must(backend.put(blobs));
  }
  void get(store::Backend& backend) const {
    Bytes into(std::size_t{16} << 20);
    must(backend.get(keys, [&](std::size_t, auto value) -> Result<void> {
      std::memcpy(into.data(), value->data(), std::min(into.size(), value->size()));
      return {};
    }));
  }
};

void print(const char* what, double mib, std::vector<double> times) {
  std::printf("%-22s %8.1f MiB/s\n", what, mib / median(std::move(times)));
}

void measure_lookup(store::Backend& backend) {
  empty(backend);
  const cache::Cache cache = CacheBuilder(32769).turbo({2, 64}, 4, 4).build();
  store::Library library(backend, {});
  (void)must(library.put_cache(cache, ""));
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    times.push_back(seconds([&] {
      if (must(library.find(cache.identity, cache.tokens)).n_tokens != 32768) std::abort();
    }));
  }
  std::printf("%-22s %8.2f ms, %.2f at most\n", "lookup of 128 blocks", 1e3 * median(times),
              1e3 * *std::ranges::max_element(times));
}

void measure_rates(store::Backend& backend, const std::string& folder, std::size_t mib,
                   std::size_t rounds) {
  const std::string path = folder + "/store_library.tqkv";
  const std::string copy = folder + "/store_library.copy";
  {
    format::WriteOptions options;
    options.compression = format::Compression::kNone;
    options.overwrite = Overwrite::kAllow;
    must(format::write_cache_file(turbo_cache(mib), path, options));
  }
  const auto file = must(open_file(path));
  const double size = static_cast<double>(file->size()) / (1 << 20);
  store::Library library(backend, {});
  empty(backend);
  (void)must(library.put_file(*file, "a prompt"));
  const Raw raw(backend);

  std::vector<double> copies, raw_puts, puts, raw_gets, gets, gets_to_file;
  for (std::size_t round = 0; round < rounds; ++round) {
    empty(backend);
    copies.push_back(seconds([&] { copy_file(path, copy); }));
    raw_puts.push_back(seconds([&] { raw.put(backend); }));
    puts.push_back(seconds([&] { (void)must(library.put_file(*file, "a prompt")); }));
    raw_gets.push_back(seconds([&] { raw.get(backend); }));
    const store::PromptRecord record = must(library.record("a prompt")).value();
    gets.push_back(seconds([&] { (void)must(library.fetch(record)); }));
    gets_to_file.push_back(seconds([&] {
      AtomicFile out = must(AtomicFile::create(copy, Overwrite::kAllow));
      (void)must(library.fetch_to(out, record));
      must(out.commit());
    }));
  }
  empty(backend);
  ::unlink(path.c_str());
  ::unlink(copy.c_str());
  std::printf("%.1f MiB in %zu blobs\n", size, raw.keys.size());
  print("plain copy, flushed", size, copies);
  print("engine: put", size, raw_puts);
  print("library: put", size, puts);
  print("engine: get", size, raw_gets);
  print("library: get", size, gets);
  print("library: get to file", size, gets_to_file);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: store_library URL FOLDER [MIB [ROUNDS]]\n");
    return 2;
  }
  const auto number = [&](int i, int otherwise) {
    return static_cast<std::size_t>(std::max(1, argc > i ? std::atoi(argv[i]) : otherwise));
  };
  const auto backend =
      must(store::open_backend(argv[1], {.credentials = store::credentials_of_environment()}));
  measure_lookup(*backend);
  measure_rates(*backend, argv[2], number(3, 100), number(4, 7));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "store_library: %s\n", error.what());
  return 1;
}
