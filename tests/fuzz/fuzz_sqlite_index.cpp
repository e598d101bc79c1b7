// Any bytes as the index.sqlite of a store in a folder, and any SQL that makes one. The store works
// all the same: the index is a list of files that can be made anew.

#include <sqlite3.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "fuzz/memory_files.h"
#include "fuzz/store_calls.h"
#include "support/temp_dir.h"
#include "tqcache/store.h"

namespace tqcache {
namespace {

namespace fs = std::filesystem;
using fuzz::require;

// In memory, the index too: it is written anew for every input.
class StoreFolder {
 public:
  StoreFolder() {
    fuzz::keep_sqlite_files_in_memory();
    const fs::path parent = fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    std::string name = (parent / "tqcache-fuzz-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "a folder for the store");
    path_ = name;
    const auto backend = fuzz::must(store::open_backend(url(), {}), "a new store");
    fuzz::must(backend->put("b/0123", as_bytes("blob")), "a blob");
    // Every index that is made anew looks into all folders. A store may lack the empty ones.
    for (const auto& folder : fs::directory_iterator(path_ / "blobs")) {
      std::error_code not_empty;
      fs::remove(folder.path(), not_empty);
    }
  }
  ~StoreFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  std::string url() const { return "dir:" + path_.string(); }
  fs::path index() const { return path_ / "index.sqlite"; }
  void remove_index() const {
    std::error_code ignored;
    fs::remove(index(), ignored);  // its content goes with it
  }

 private:
  fs::path path_;
};

// Statements of the input, for at most some thousand steps, and nothing outside of the file.
void make_index(const fs::path& path, const std::string& statements) {
  sqlite3* database = nullptr;
  if (sqlite3_open(path.c_str(), &database) == SQLITE_OK) {
    sqlite3_limit(database, SQLITE_LIMIT_ATTACHED, 0);
    sqlite3_limit(database, SQLITE_LIMIT_LENGTH, 4 << 20);
    sqlite3_db_config(database, SQLITE_DBCONFIG_DEFENSIVE, 0, nullptr);
    int looks = 0;
    sqlite3_progress_handler(
        database, 1000, [](void* n) { return ++*static_cast<int*>(n) > 20 ? 1 : 0; }, &looks);
    sqlite3_exec(database, "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY", nullptr,
                 nullptr, nullptr);
    sqlite3_exec(database, statements.c_str(), nullptr, nullptr, nullptr);
  }
  sqlite3_close(database);
}

// The list has only keys, with sizes of files, and works after the index was made anew. What is
// done with an index depends on its length, because most of the time goes into that.
void use_store(const StoreFolder& folder, std::size_t choice) {
  const auto backend = fuzz::must(store::open_backend(folder.url(), {}), "the store");
  const auto list = [&](const std::string& prefix) {
    const auto sink = [&](const store::Entry& entry) -> Result<void> {
      require(store::check_key(entry.key).ok(), "what is listed is a key");
      require(entry.key.starts_with(prefix), "and has the prefix");
      require(entry.bytes < std::uint64_t{1} << 63, "and no negative size");
      require(!entry.idle || entry.idle->count() >= 0, "and no negative age");
      return {};
    };
    const Result<void> done = backend->list(prefix, sink);
    if (!done) fuzz::check_error(done.error());
  };
  const std::string key = "b/0123";
  if (choice % 4 < 2) list("");
  if (choice % 4 == 2) list("b/");
  if (choice % 4 != 1) {
    const auto touched = backend->touch(std::vector{key});
    if (!touched) fuzz::check_error(touched.error());
  }
  if (choice % 4 != 0) return;
  const auto value = fuzz::must(backend->get(key), "a blob is read without the index");
  require(value.has_value() && value->size() == 4, "and is there");
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  static const StoreFolder folder;
  const ByteView input = fuzz::view_of(data, size);
  folder.remove_index();
  constexpr std::string_view kMagic = "SQLite format 3";
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (text.starts_with(kMagic)) {
    fuzz::write_memory_file(folder.index(), input);
  } else {
    make_index(folder.index(), text);
  }
  use_store(folder, size);
  return 0;
}
