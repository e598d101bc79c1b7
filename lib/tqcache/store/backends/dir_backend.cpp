
#include <algorithm>
#include <cerrno>
#include <ctime>
#include <deque>
#include <future>
#include <system_error>
#include <thread>

#include "tqcache/base/posix.h"
#include "tqcache/file.h"
#include "tqcache/store/backends/backend_support.h"
#include "tqcache/store/backends/dir_files.h"
#include "tqcache/store/backends/dir_index.h"
#include "tqcache/store/backends/store_url.h"

namespace tqcache::store {
namespace {

constexpr std::size_t kFilesAtOnce = 16;
constexpr std::size_t kRowsAtOnce = 128;
// Files that the disk reads ahead.
constexpr std::size_t kFilesAhead = 8;

bool says_exists(const Error& error) { return error.code == ErrorCode::kInvalidArgument; }

class DirBackend : public Backend {
 public:
  DirBackend(DirLayout layout, const BackendOptions& options)
      : Backend("dir:" + layout.root().string(), options),
        layout_(std::move(layout)),
        index_(layout_, {options.idle_timeout, options.interrupted}) {}

  Result<Leftovers> leftovers(std::chrono::seconds min_age, bool remove) override {
    const AbandonedFiles found = layout_.abandoned(min_age, remove);
    return Leftovers{found.files, found.bytes};
  }

 private:
  Result<void> check_interrupted() const {
    return options().interrupted && options().interrupted() ? interrupted_error() : Result<void>();
  }

  Result<std::vector<PutOutcome>> do_put(std::span<const Blob> blobs) override {
    return put_in_batches(blobs, kRowsAtOnce, [this](std::span<const Blob> some, auto& outcomes) {
      return put_some(some, outcomes);
    });
  }

  // Rows are added before the files are written, and again afterwards, because an index that was
  // rebuilt meanwhile may lack them.
  Result<void> put_some(std::span<const Blob> blobs, std::vector<PutOutcome>& outcomes) {
    std::vector<Entry> rows;
    for (const Blob& blob : blobs) rows.push_back({blob.key, blob.value.size(), {}});
    TQC_TRY(index_.add(rows));
    if (Result<void> done = put_files(blobs, outcomes); !done) {
      forget_absent(rows);
      return done;
    }
    return index_.add(rows);
  }

  // After a put that failed. A row that stays is found out later, by list().
  void forget_absent(std::span<const Entry> rows) {
    std::vector<std::string> absent;
    for (const Entry& row : rows) {
      if (!size_of_file(row)) absent.push_back(row.key);
    }
    if (!absent.empty() && !index_.forget(absent)) return;
    std::vector<Entry> back;  // put meanwhile by another process
    for (const std::string& key : absent) {
      if (const auto bytes = size_of_file({key, 0, {}})) back.push_back({key, *bytes, {}});
    }
    if (!back.empty()) (void)index_.add(back).ok();
  }

  // nullopt: there is nothing. What cannot be looked at is as large as its row says.
  std::optional<std::uint64_t> size_of_file(const Entry& row) const {
    posix::Stat info{};
    if (posix::lstat(layout_.blob(row.key).c_str(), &info) != 0) {
      return errno == ENOENT || errno == ENOTDIR ? std::nullopt : std::optional(row.bytes);
    }
    return S_ISREG(info.st_mode) ? static_cast<std::uint64_t>(info.st_size) : 0;
  }

  // A written file that is flushed while others are written.
  struct Flushing {
    std::optional<AtomicFile> file;  // not open: the file existed already
    std::future<Result<PutOutcome>> outcome;
  };

  Result<void> put_files(std::span<const Blob> blobs, std::vector<PutOutcome>& outcomes) {
    std::deque<Flushing> flushing;
    const auto await_first = [&]() -> Result<void> {
      TQC_TRY_ASSIGN(const PutOutcome outcome, flushing.front().outcome.get());
      outcomes.push_back(outcome);
      flushing.pop_front();
      return {};
    };
    for (const Blob& blob : blobs) {
      TQC_TRY(check_interrupted());
      if (flushing.size() == kFilesAtOnce) TQC_TRY(await_first());
      Flushing& one = flushing.emplace_back();
      TQC_TRY_ASSIGN(one.file, write_file(blob));
      one.outcome = publish_meanwhile(blob.key, one.file);
    }
    while (!flushing.empty()) TQC_TRY(await_first());
    return {};
  }

  // Uses its own thread, whatever the number of processors: it waits for the disk, which flushes
  // many files as quickly as one. If no thread can be started, the work is done when its result is
  // needed.
  std::future<Result<PutOutcome>> publish_meanwhile(const std::string& key,
                                                    std::optional<AtomicFile>& file) {
    return std::async(std::launch::async | std::launch::deferred,
                      [this, &key, &file] { return publish(key, file); });
  }

  Result<std::optional<AtomicFile>> write_file(const Blob& blob) {
    const std::filesystem::path path = layout_.blob(blob.key);
    if (is_no_file(path)) return std::optional<AtomicFile>();  // a link would be followed
    if (auto made = layout_.make_folder_of(blob.key); !made)
      return in_context(blob.key, made.error());
    Result<AtomicFile> file = AtomicFile::create(path, Overwrite::kRefuse);
    if (!file && says_exists(file.error())) return std::optional<AtomicFile>();
    if (!file) return in_context(blob.key, std::move(file).error());
    if (auto written = file->write(blob.value); !written)
      return in_context(blob.key, written.error());
    return std::optional<AtomicFile>(std::move(file).value());
  }

  Result<PutOutcome> publish(const std::string& key, std::optional<AtomicFile>& file) {
    if (file) {
      const Result<void> done = file->commit();
      if (done) return PutOutcome::kStored;
      if (!says_exists(done.error())) return in_context(key, done.error());
    }
    // The process that put the file may not have flushed the folder yet.
    TQC_TRY(flush_folder(layout_.blob(key).parent_path()));
    return PutOutcome::kExisted;
  }

  // The lock of the old file, which AtomicFile holds, keeps others from removing or replacing it
  // meanwhile.
  Result<void> do_replace(const Blob& blob) override {
    const Entry row{blob.key, blob.value.size(), {}};
    TQC_TRY(index_.add(std::span(&row, 1)));
    const std::filesystem::path path = layout_.blob(blob.key);
    Result<void> made = layout_.make_folder_of(blob.key);
    if (made && is_no_file(path)) made = remove_no_file(path);
    if (!made) return in_context(blob.key, made.error());
    constexpr std::chrono::milliseconds kPause{10};
    for (auto waited = std::chrono::milliseconds(0);; waited += kPause) {
      const Result<void> done = write_file_atomically(path, blob.value, Overwrite::kAllow);
      const bool is_busy = !done && done.error().code == ErrorCode::kBusy;
      if (!is_busy || waited >= options().idle_timeout) {
        if (!done) return in_context(blob.key, done.error());
        TQC_TRY(index_.add(std::span(&row, 1)));
        return index_.touch(std::span(&blob.key, 1));
      }
      TQC_TRY(check_interrupted());
      std::this_thread::sleep_for(kPause);
    }
  }

  Result<void> do_get(std::span<const std::string> keys, const ValueSink& sink) override {
    Bytes value;  // one buffer for all values: new memory for each would take longer than reading
    std::size_t n_announced = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      for (; n_announced < std::min(keys.size(), i + kFilesAhead); ++n_announced) {
        announce_reading(layout_.blob(keys[n_announced]));
      }
      TQC_TRY(check_interrupted());
      const Result<bool> found = read_blob(keys[i], value);
      if (!found) return in_context(keys[i], found.error());
      TQC_TRY(sink(i, *found ? std::optional<ByteView>(value) : std::nullopt));
    }
    return {};
  }

  // Returns false if the blob does not exist.
  Result<bool> read_blob(const std::string& key, Bytes& value) const {
    const std::filesystem::path path = layout_.blob(key);
    value.clear();
    if (is_no_file(path)) return true;
    const Result<std::unique_ptr<ByteSource>> file = open_file(path);
    if (!file && file.error().code == ErrorCode::kNotFound) return false;
    if (!file) return file.error();
    const std::uint64_t size = (*file)->size();
    if (size > options().max_value_bytes) {
      return too_large(std::to_string(size) + " bytes");
    }
    value.resize(static_cast<std::size_t>(size));
    TQC_TRY((*file)->read_at(0, value));
    return true;
  }

  Result<std::vector<bool>> do_exists(std::span<const std::string> keys) override {
    std::vector<bool> found;
    for (const std::string& key : keys) {
      if (found.size() % kRowsAtOnce == 0) TQC_TRY(check_interrupted());
      posix::Stat info{};
      found.push_back(posix::lstat(layout_.blob(key).c_str(), &info) == 0);
    }
    return found;
  }

  // Holds the lock of the file, so that no other process removes it between comparison and removal,
  // and the removed file is the compared one: a new file of that name is another file.
  Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) override {
    const std::filesystem::path path = layout_.blob(key);
    if (is_no_file(path)) {
      if (only && !only->empty()) return false;
      if (auto removed = remove_no_file(path); !removed) return in_context(key, removed.error());
      return forget(key, true);
    }
    const auto file = lock_patiently(path, options().idle_timeout, options().interrupted);
    if (!file && file.error().code == ErrorCode::kNotFound) return forget(key, false);
    if (!file) return in_context(key, file.error());
    if (only) {
      TQC_TRY_ASSIGN(const bool same, holds(**file, *only));
      if (!same) return false;
    }
    if (posix::unlink(path.c_str()) == 0) return forget(key, true);
    return Error{ErrorCode::kIo, key + ": remove: " + std::generic_category().message(errno)};
  }

  static Result<bool> holds(const ByteSource& file, ByteView wanted) {
    if (file.size() != wanted.size()) return false;
    Bytes bytes(wanted.size());
    TQC_TRY(file.read_at(0, bytes));
    return std::ranges::equal(bytes, wanted);
  }

  // Restores the row of a blob that was put again meanwhile. On a full disk it may be impossible to
  // remove a row: then it stays without a file, and list() skips it.
  Result<bool> forget(const std::string& key, bool removed) {
    const Result<void> forgotten = index_.forget(std::span(&key, 1));
    if (!forgotten && forgotten.error().code != ErrorCode::kIo) return forgotten.error();
    if (!forgotten) return removed;
    std::error_code none;
    const std::uint64_t bytes = std::filesystem::file_size(layout_.blob(key), none);
    if (none) return removed;
    const Entry row{key, bytes, {}};
    TQC_TRY(index_.add(std::span(&row, 1)));
    return removed;
  }

  // The files decide which blobs there are, and how large they are. A row without a file is of a
  // put in progress, or of one that was killed: then it is forgotten.
  Result<void> do_list(const std::string& prefix, const EntrySink& sink) override {
    constexpr std::chrono::hours kLongestPut{1};
    std::string after;
    for (;;) {
      Result<std::vector<Entry>> entries = index_.list(prefix, after, kRowsAtOnce);
      if (!entries && after.empty() && entries.error().code == ErrorCode::kIo) {
        return list_files(prefix, sink);
      }
      if (!entries) return entries.error();
      if (entries->empty()) return {};
      after = entries->back().key;
      std::vector<std::string> phantoms;
      for (Entry& entry : *entries) {
        const std::optional<std::uint64_t> bytes =
            check_key(entry.key) ? size_of_file(entry) : std::nullopt;
        if (bytes) {
          entry.bytes = *bytes;
          TQC_TRY(sink(entry));
        } else if (entry.idle >= kLongestPut) {
          phantoms.push_back(entry.key);
        }
      }
      if (!phantoms.empty()) (void)index_.forget(phantoms).ok();
    }
  }

  // Without the index, which a full disk can make unusable: by the times of the files.
  Result<void> list_files(const std::string& prefix, const EntrySink& sink) {
    const std::int64_t now = std::time(nullptr);
    std::vector<Entry> entries;
    TQC_TRY(layout_.visit([&](const DirLayout::File& file) -> Result<void> {
      if (!file.key.starts_with(prefix)) return {};
      const std::chrono::seconds idle(std::max<std::int64_t>(now - file.modified, 0));
      entries.push_back({file.key, file.bytes, idle});
      return {};
    }));
    std::ranges::sort(entries, {}, &Entry::key);
    for (const Entry& entry : entries) TQC_TRY(sink(entry));
    return {};
  }

  Result<void> do_touch(std::span<const std::string> keys) override { return index_.touch(keys); }

  DirLayout layout_;
  DirIndex index_;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_dir_backend(StoreUrl url, const BackendOptions& options) {
  TQC_TRY_ASSIGN(DirLayout layout, DirLayout::open(url.path, options.create));
  return std::unique_ptr<Backend>(std::make_unique<DirBackend>(std::move(layout), options));
}

}  // namespace tqcache::store
