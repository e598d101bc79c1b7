// Any small cache, written and read: what comes back is equal, and is written as the same bytes.
// Its first tokens are had by themselves too; and a file that grew by appending holds what the file
// of the whole cache holds.

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "fuzz/fuzz.h"
#include "fuzz/small_cache.h"
#include "support/cache_builder.h"
#include "tqcache/cache.h"
#include "tqcache/file.h"
#include "tqcache/tqkv.h"

namespace tqcache {
namespace {

using fuzz::Input;
using fuzz::must;
using fuzz::require;

format::WriteOptions choose_options(Input& input, const fuzz::SmallCache& small) {
  format::WriteOptions options{.n_threads = 1};
  options.compression = static_cast<format::Compression>(input.below(3));
  options.hide_tokens = small.hide_tokens();
  options.writer = input.flag() ? "fuzz" : "";
  options.window_bytes = input.flag() ? 1 : 1 << 20;
  return options;
}

void require_equal(const cache::Cache& a, const cache::Cache& b, std::string_view rule) {
  const std::string difference = test::difference(a, b);
  if (!difference.empty()) std::fprintf(stderr, "differs in: %s\n", difference.c_str());
  require(difference.empty(), rule);
}

cache::Cache read(const Bytes& file, std::optional<std::int64_t> first_tokens = {}) {
  return must(
      format::read_cache(*memory_source(file), {.n_threads = 1, .first_tokens = first_tokens}),
      "what was written can be read");
}

void check_round_trip(const cache::Cache& expected, const Bytes& file,
                      const format::WriteOptions& options) {
  const cache::Cache back = read(file);
  require_equal(back, expected, "a cache comes back as it was");
  require(must(format::write_cache_bytes(back, options), "and can be written") == file,
          "as the same bytes");
}

// Values and codes are any bits here: what verify says of them is right. It has to say nothing
// else.
void check_verifying(const Bytes& file) {
  const auto report = must(format::verify_cache(*memory_source(file), {.n_threads = 1}),
                           "what was written verifies");
  for (const std::string& damage : report.damage) {
    require(damage.find("not finite") != std::string::npos ||
                damage.find("not zero") != std::string::npos,
            "nothing is wrong but values");
  }
}

void check_first_tokens(const cache::Cache& whole, const Bytes& file, std::int64_t n_tokens) {
  const auto expected = cache::truncate(whole, n_tokens);
  const auto part =
      format::read_cache(*memory_source(file), {.n_threads = 1, .first_tokens = n_tokens});
  require(part.ok() == expected.ok(), "a part can be read if it can be cut");
  if (part) require_equal(*part, *expected, "the first tokens are those of the whole");
}

// A file in memory where there is such a folder. Whoever ends the process ends the file.
struct ScratchFile {
  ScratchFile() {
    const std::filesystem::path memory = "/dev/shm";
    const bool has_memory = std::filesystem::is_directory(memory);
    path = (has_memory ? memory : std::filesystem::temp_directory_path()) /
           ("tqcache-fuzz-" + std::to_string(::getpid()) + ".tqkv");
  }
  ~ScratchFile() { std::filesystem::remove(path); }
  std::filesystem::path path;
};

void check_appending(const fuzz::SmallCache& small, const format::WriteOptions& options) {
  static const ScratchFile scratch;
  const std::filesystem::path& path = scratch.path;
  const cache::Cache before = small.at(small.n_tokens());
  cache::Cache after = small.at(small.n_tokens() + small.more_tokens());
  format::WriteOptions replacing = options;
  replacing.overwrite = Overwrite::kAllow;
  require(format::write_cache_file(before, path, replacing), "a file can be written");
  auto appender = must(format::CacheAppender::open(path), "and opened to append");
  const auto report = must(appender.append(after, options), "and appended to");
  require(report.n_tokens == after.n_tokens(), "it holds all tokens then");
  const auto file = must(open_file(path), "it can be opened");
  if (options.hide_tokens) cache::hide_tokens(after);
  const auto back = must(format::read_cache(*file, {.n_threads = 1}), "and read");
  require_equal(back, after, "a file that grew holds the whole cache");
  const auto whole = must(format::write_cache_bytes(after, options), "which can be written");
  require(must(format::read_cache_info(*file), "listed").content_name ==
              must(format::read_cache_info(*memory_source(whole)), "both").content_name,
          "and has the name of the whole");
}

void run(Input input) {
  const fuzz::SmallCache small(input);
  const format::WriteOptions options = choose_options(input, small);
  if (input.below(48) == 0) return check_appending(small, options);
  cache::Cache expected = small.at(small.n_tokens());
  require(cache::validate(expected), "an input makes a valid cache");
  const Bytes file = must(format::write_cache_bytes(expected, options), "it can be written");
  if (options.hide_tokens) cache::hide_tokens(expected);
  check_round_trip(expected, file, options);
  if (input.below(128) == 0) check_verifying(file);  // it takes longer than all else
  if (input.below(3) != 0) return;
  check_first_tokens(expected, file, static_cast<std::int64_t>(input.below(300)));
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tqcache::run(tqcache::fuzz::Input(tqcache::fuzz::view_of(data, size)));
  return 0;
}
