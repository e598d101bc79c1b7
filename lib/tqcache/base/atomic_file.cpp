// AtomicFile, and the temporary file that it writes.

#include <stdio.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/file_io.h"
#include "tqcache/base/posix.h"
#include "tqcache/base/system.h"
#include "tqcache/error.h"
#include "tqcache/file.h"

namespace tqcache {

// Deletes the file in its destructor, unless it was renamed.
class TemporaryFile {
 public:
  TemporaryFile() = default;
  // Creates ".NAME.tmp-XXXXXX" for a writer of `name`, or ".tqcache-XXXXXX" if that name would be
  // too long, with permissions 0600, open for reading and writing, and locked if the file system
  // has locks. First removes temporary files of the same kind that nobody has locked: their writers
  // were killed. `folder` must outlive the object.
  // Errors: kIo.
  static Result<TemporaryFile> make(const Descriptor& folder, const std::string& name);

  TemporaryFile(TemporaryFile&& other) noexcept { swap(other); }
  TemporaryFile& operator=(TemporaryFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~TemporaryFile() { remove(); }

  Descriptor& file() { return file_; }
  const std::string& name() const { return name_; }  // in the folder; empty: no file

  // Removes the file while it is still locked, and then closes it.
  void remove();
  // Call this after renaming the file.
  void mark_renamed() { name_.clear(); }

 private:
  TemporaryFile(int folder, std::string name) : folder_(folder), name_(std::move(name)) {}
  void swap(TemporaryFile& other) noexcept;
  int create();  // returns an errno, or 0
  Result<bool> claim();

  int folder_ = -1;
  std::string name_;
  Descriptor file_;
};

namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz234567";
constexpr std::size_t kRandomLetters = 6;

constexpr std::string_view kNameless = ".tqcache-";

bool is_temporary_name(std::string_view name, std::string_view prefix) {
  return name.size() == prefix.size() + kRandomLetters && name.starts_with(prefix) &&
         name.find_first_not_of(kLetters, prefix.size()) == std::string_view::npos;
}

// ".NAME.tmp-XXXXXX", of any NAME, or ".tqcache-XXXXXX".
bool is_any_temporary_name(std::string_view name) {
  if (is_temporary_name(name, kNameless)) return true;
  const std::size_t mark = name.rfind(".tmp-");
  return mark != std::string_view::npos && mark > 1 && name[0] == '.' &&
         is_temporary_name(name, name.substr(0, mark + 5));
}

// Empty if the folder cannot be listed: in that case no file is removed.
template <class IsWanted>
std::vector<std::string> temporary_names(const Descriptor& folder, IsWanted is_wanted) {
  std::vector<std::string> names = names_in(folder.get());
  std::erase_if(names, [&](const std::string& name) { return !is_wanted(name); });
  return names;
}

// Whether the writer of the file was killed: a live writer holds the lock.
bool is_left_behind(const Descriptor& file) {
  posix::Stat info{};
  if (posix::fstat(file.get(), &info) != 0) return false;
  if (!S_ISREG(info.st_mode) || info.st_uid != posix::geteuid()) return false;
  const Result<bool> locked = lock(file);
  return locked.ok() && *locked;
}

constexpr int kOpenToSweep = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

void remove_left_behind(const Descriptor& folder, std::string_view prefix) {
  const auto is_wanted = [&](std::string_view name) { return is_temporary_name(name, prefix); };
  for (const std::string& name : temporary_names(folder, is_wanted)) {
    const Descriptor file(posix::openat(folder.get(), name.c_str(), kOpenToSweep));
    if (file.is_open() && is_left_behind(file)) posix::unlinkat(folder.get(), name.c_str(), 0);
  }
}

}  // namespace

Result<std::string> random_letters() {
  std::array<unsigned char, kRandomLetters> random{};
  if (posix::getentropy(random.data(), random.size()) != 0)
    return system_error("getentropy", errno);
  std::string letters;
  for (const unsigned char byte : random) letters += kLetters[byte % kLetters.size()];
  return letters;
}

Result<TemporaryFile> TemporaryFile::make(const Descriptor& folder, const std::string& name) {
  std::string prefix = "." + name + ".tmp-";
  remove_left_behind(folder, prefix);
  for (int attempt = 0; attempt < 100; ++attempt) {
    TQC_TRY_ASSIGN(const std::string letters, random_letters());
    TemporaryFile temporary(folder.get(), prefix + letters);
    if (const int error_number = temporary.create()) {
      if (error_number == EEXIST) continue;
      if (error_number != ENAMETOOLONG) return system_error("temporary file", error_number);
      prefix = kNameless;
      remove_left_behind(folder, prefix);
      continue;
    }
    TQC_TRY_ASSIGN(const bool claimed, temporary.claim());
    if (claimed) return temporary;
  }
  return system_error("temporary file", EEXIST);
}

AbandonedFiles find_abandoned(const std::filesystem::path& folder, std::chrono::seconds min_age,
                              bool remove) {
  AbandonedFiles found;
  const Descriptor opened(posix::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open()) return found;
  const std::time_t now = std::time(nullptr);
  for (const std::string& name : temporary_names(opened, is_any_temporary_name)) {
    posix::Stat info{};
    const Descriptor file(posix::openat(opened.get(), name.c_str(), kOpenToSweep));
    if (!file.is_open() || posix::fstat(file.get(), &info) != 0) continue;
    if (now - info.st_mtime < min_age.count() || !is_left_behind(file)) continue;
    if (remove && posix::unlinkat(opened.get(), name.c_str(), 0) != 0) continue;
    found.files += 1;
    found.bytes += static_cast<std::uint64_t>(info.st_size);
  }
  return found;
}

int TemporaryFile::create() {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  file_ = Descriptor(
      retry_interrupted([&] { return posix::openat(folder_, name_.c_str(), kFlags, kOwnerOnly); }));
  if (file_.is_open()) return 0;
  const int error_number = errno;
  name_.clear();  // a file of that name belongs to another process
  return error_number;
}

// False if another process removed the file as abandoned before it was locked.
Result<bool> TemporaryFile::claim() {
  const Result<bool> locked = lock(file_);
  if (!locked) {
    if (locked.error().code == ErrorCode::kBusy) return false;
    return in_context("temporary file", locked.error());
  }
  posix::Stat info{};
  if (posix::fstat(file_.get(), &info) != 0) return system_error("temporary file: stat", errno);
  return info.st_nlink > 0;
}

void TemporaryFile::remove() {
  if (!name_.empty()) posix::unlinkat(folder_, name_.c_str(), 0);
  name_.clear();
  file_.close();
}

void TemporaryFile::swap(TemporaryFile& other) noexcept {
  std::swap(folder_, other.folder_);
  name_.swap(other.name_);
  std::swap(file_, other.file_);
}

// Every call names the folder by a descriptor, so that the temporary file, the rename and the flush
// use the same folder even if someone moves it or this process changes its working directory.

namespace {

// Writeback starts after each run of this many bytes, so that the final flush is short.
constexpr std::uint64_t kWritebackBytes = 8 << 20;

Error exists_already() { return {ErrorCode::kInvalidArgument, "exists already"}; }

// The descriptor number if `path` is a well-known name of a descriptor.
std::optional<int> named_descriptor(const std::string& path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    const char* const end = path.data() + path.size();
    int number = -1;
    const auto [stop, status] = std::from_chars(path.data() + folder.size(), end, number);
    if (status == std::errc() && stop == end && number >= 0) return number;
  }
  return std::nullopt;
}

// A duplicate, not a second opening: it keeps the position and the append mode of `stdout >> x`.
Result<Descriptor> duplicate(int number) {
  Descriptor copy(duplicate_descriptor(number));
  if (!copy.is_open()) return system_error("open", errno);
  return copy;
}

Result<Descriptor> open_folder(const std::filesystem::path& folder) {
  Descriptor opened(retry_interrupted(
      [&] { return posix::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (opened.is_open()) return opened;
  const std::string place = "folder " + folder.string();
  if (errno == ENOENT) return Error{ErrorCode::kIo, place + " does not exist"};
  if (errno == ENOTDIR) return Error{ErrorCode::kIo, folder.string() + " is not a folder"};
  return system_error(place, errno);
}

// The current mode of the named file, links not followed; nullopt if it does not exist.
Result<std::optional<mode_t>> mode_of(const Descriptor& folder, const std::string& name) {
  posix::Stat info{};
  if (posix::fstatat(folder.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
    return std::optional<mode_t>(info.st_mode);
  }
  if (errno == ENOENT) return std::optional<mode_t>();
  return system_error("stat", errno);
}

bool is_stream(mode_t mode) { return S_ISCHR(mode) || S_ISFIFO(mode); }

Result<void> check_replaceable(mode_t mode, Overwrite overwrite) {
  if (S_ISLNK(mode)) return Error{ErrorCode::kIo, "is a symbolic link"};
  if (S_ISDIR(mode)) return Error{ErrorCode::kIo, "is a folder"};
  if (!S_ISREG(mode)) return Error{ErrorCode::kIo, "is neither a file nor a stream"};
  if (overwrite == Overwrite::kRefuse) return exists_already();
  return {};
}

// Not retried after a signal: opening a pipe waits for its reader, and the user may want to stop
// that.
Result<Descriptor> open_stream(const Descriptor& folder, const std::string& name) {
  Descriptor stream(
      posix::openat(folder.get(), name.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY));
  if (!stream.is_open()) {
    if (errno == EINTR) return Error{ErrorCode::kInterrupted, "open: interrupted"};
    return system_error("open", errno);
  }
  posix::Stat info{};
  if (posix::fstat(stream.get(), &info) != 0) return system_error("stat", errno);
  if (!is_stream(info.st_mode)) return Error{ErrorCode::kIo, "changed while it was opened"};
  return stream;
}

// Moves the position to the new end.
Result<void> shorten(const Descriptor& file, std::uint64_t size) {
  const auto end = static_cast<posix::Offset>(size);
  const bool done = retry_interrupted([&] { return posix::ftruncate(file.get(), end); }) == 0 &&
                    posix::lseek(file.get(), end, SEEK_SET) == end;
  return done ? Result<void>() : system_error("truncate", errno);
}

Result<void> close_checked(Descriptor file) {
  if (const int error_number = file.close()) return system_error("close", error_number);
  return {};
}

// Closing any descriptor of a file reports late write errors. Here a duplicate is closed, so that
// the file stays open, and locked, until it is renamed.
Result<void> check_closing(const Descriptor& file) {
  TQC_TRY_ASSIGN(Descriptor copy, duplicate(file.get()));
  return close_checked(std::move(copy));
}

// A descriptor for locking the file; not open if access is denied or the file no longer exists.
// Tries one for writing first, because some network file systems lock only with that.
Result<Descriptor> open_to_lock(const Descriptor& folder, const std::string& name) {
  for (const int access : {O_RDWR, O_RDONLY}) {
    const int flags = access | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    Descriptor file(
        retry_interrupted([&] { return posix::openat(folder.get(), name.c_str(), flags); }));
    if (file.is_open()) return file;
  }
  const bool is_fine = errno == EACCES || errno == EPERM || errno == ENOENT || errno == ELOOP;
  return is_fine ? Result<Descriptor>(Descriptor()) : system_error("open", errno);
}

Result<void> rename_over(const Descriptor& folder, const std::string& from, const std::string& to) {
  if (posix::renameat(folder.get(), from.c_str(), folder.get(), to.c_str()) == 0) return {};
  return system_error("rename", errno);
}

// Fails if `to` exists, even if it was created a moment ago.
Result<void> rename_new(const Descriptor& folder, const std::string& from, const std::string& to) {
  const int at = folder.get();
  if (rename_exclusively(at, from.c_str(), to.c_str()) == 0) return {};
  // Not every file system can do that in one step.
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) {
    if (posix::linkat(at, from.c_str(), at, to.c_str(), 0) == 0) {
      posix::unlinkat(at, from.c_str(), 0);
      return {};
    }
  }
  return errno == EEXIST ? exists_already() : system_error("rename", errno);
}

}  // namespace

struct AtomicFile::State {
  // Of a stream: the target, and what commit() sends. The rest is then unused.
  Descriptor stream, scratch;
  Descriptor folder;
  TemporaryFile temporary;
  Descriptor replaced;  // the file that is to be replaced, locked; not open if there is none
  const LockedFile* held = nullptr;  // the caller's lock on it
  std::string name;                  // in the folder
  Overwrite overwrite = Overwrite::kRefuse;
  std::uint64_t size = 0;
  std::uint64_t written_back = 0;  // the first bytes of `size`, for which writeback was started
  std::optional<Error> failed;     // why no more can be written
  bool committed = false;
  bool skips_flush = false;

  bool is_for_stream() const { return !folder.is_open(); }
  Descriptor& file() { return is_for_stream() ? scratch : temporary.file(); }

  // Removes the temporary file unless it was renamed, and releases the locks.
  void end() {
    temporary.remove();
    replaced.close();
    scratch.close();
    stream.close();
  }

  // Only a hint: the flush reports failures.
  void begin_writeback() {
    if (is_for_stream() || skips_flush || size - written_back < kWritebackBytes) return;
    start_writeback(temporary.file().get(), written_back, size - written_back);
    written_back = size;
  }

  Result<void> may_go_on() const {
    if (failed) return *failed;
    if (committed) return Error{ErrorCode::kInvalidArgument, "committed already"};
    return {};
  }

  // Remembers a failure, so that commit() cannot publish an incomplete file.
  Result<void> noting(Result<void> result) {
    if (!result) {
      end();
      failed = result.error();
    }
    return result;
  }

  // Makes sure that no other process is writing the file that has the name now. Called at the start
  // and again at the end, when the name may refer to another file.
  Result<void> lock_replaced() {
    if (held != nullptr) {
      TQC_TRY_ASSIGN(const bool same, held->is_named(folder.get(), name));
      return same ? Result<void>() : busy_error();
    }
    for (int attempt = 0; attempt < 100; ++attempt) {
      TQC_TRY_ASSIGN(const std::optional<mode_t> mode, mode_of(folder, name));
      if (!mode || !S_ISREG(*mode)) return {};
      if (replaced.is_open()) {
        TQC_TRY_ASSIGN(const bool same, is_named(replaced, folder.get(), name));
        if (same) return {};
      }
      TQC_TRY_ASSIGN(replaced, open_to_lock(folder, name));
      if (!replaced.is_open()) return {};
      TQC_TRY(lock(replaced));
    }
    return busy_error();
  }

  Result<void> send() {
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
    Bytes piece;
    for (std::uint64_t at = 0; at < size; at += piece.size()) {
      piece.resize(static_cast<std::size_t>(std::min(kPiece, size - at)));
      TQC_TRY(read_fully_at(scratch, at, piece));
      TQC_TRY(put_all(piece, [&](ByteView rest, std::size_t) {
        return posix::write(stream.get(), rest.data(), rest.size());
      }));
    }
    if (!skips_flush) TQC_TRY(flush_with(flush_file, stream));
    return close_checked(std::move(stream));
  }

  Result<void> publish() {
    if (is_for_stream()) return send();
    if (!skips_flush) TQC_TRY(flush_with(flush_file, file()));
    TQC_TRY(check_closing(temporary.file()));
    if (overwrite == Overwrite::kAllow) {
      TQC_TRY(lock_replaced());
      TQC_TRY(rename_over(folder, temporary.name(), name));
    } else {
      TQC_TRY(rename_new(folder, temporary.name(), name));
    }
    temporary.mark_renamed();
    return skips_flush ? Result<void>() : flush_with(flush_file, folder);
  }
};

AtomicFile::AtomicFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
void AtomicFile::skip_flush() { state_->skips_flush = true; }
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path, Overwrite overwrite,
                                      const LockedFile* held) {
  auto state = std::make_unique<State>();
  if (const std::optional<int> number = named_descriptor(path.string())) {
    TQC_TRY_ASSIGN(state->stream, duplicate(*number));
    TQC_TRY_ASSIGN(state->scratch, open_scratch());
    return AtomicFile(std::move(state));
  }
  if (path.empty()) return Error{ErrorCode::kIo, "the file name is empty"};
  const std::string name = path.filename().string();
  if (name.empty() || name == "." || name == "..") return Error{ErrorCode::kIo, "is a folder"};

  TQC_TRY_ASSIGN(Descriptor folder, open_folder(path.has_parent_path() ? path.parent_path() : "."));
  TQC_TRY_ASSIGN(const std::optional<mode_t> mode, mode_of(folder, name));
  if (mode && is_stream(*mode)) {
    TQC_TRY_ASSIGN(state->stream, open_stream(folder, name));
    TQC_TRY_ASSIGN(state->scratch, open_scratch());
    return AtomicFile(std::move(state));
  }
  if (mode) TQC_TRY(check_replaceable(*mode, overwrite));

  state->folder = std::move(folder);
  state->name = name;
  state->overwrite = overwrite;
  state->held = held;
  TQC_TRY_ASSIGN(state->temporary, TemporaryFile::make(state->folder, name));
  if (overwrite == Overwrite::kAllow) TQC_TRY(state->lock_replaced());
  return AtomicFile(std::move(state));
}

Result<void> AtomicFile::write(ByteView bytes) {
  TQC_TRY(state_->may_go_on());
  TQC_TRY(state_->noting(put_all(bytes, [&](ByteView rest, std::size_t) {
    return posix::write(state_->file().get(), rest.data(), rest.size());
  })));
  state_->size += bytes.size();
  state_->begin_writeback();
  return {};
}

Result<void> AtomicFile::write_at(std::uint64_t offset, ByteView bytes) {
  TQC_TRY(state_->may_go_on());
  if (offset > state_->size || bytes.size() > state_->size - offset) {
    return Error{ErrorCode::kInvalidArgument,
                 "byte " + std::to_string(offset) + ": written over before it was written"};
  }
  return state_->noting(write_fully_at(state_->file(), offset, bytes));
}

Result<void> AtomicFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  TQC_TRY(state_->may_go_on());
  return read_fully_at(state_->file(), offset, out);
}

Result<void> AtomicFile::truncate(std::uint64_t size) {
  TQC_TRY(state_->may_go_on());
  if (size > state_->size) {
    return Error{ErrorCode::kInvalidArgument,
                 "byte " + std::to_string(size) + ": behind the end of the file"};
  }
  TQC_TRY(state_->noting(shorten(state_->file(), size)));
  state_->size = size;
  state_->written_back = std::min(state_->written_back, size);
  return {};
}

std::uint64_t AtomicFile::size() const { return state_->size; }

Result<void> AtomicFile::commit() {
  TQC_TRY(state_->may_go_on());
  TQC_TRY(state_->noting(state_->publish()));
  state_->end();  // releases only the locks: the file has been renamed
  state_->committed = true;
  return {};
}

Result<void> flush_folder(const std::filesystem::path& folder) {
  TQC_TRY_ASSIGN(const Descriptor opened, open_folder(folder));
  return flush_with(flush_file, opened);
}

Result<void> write_file_atomically(const std::filesystem::path& path, ByteView bytes,
                                   Overwrite overwrite) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, overwrite));
  TQC_TRY(file.write(bytes));
  return file.commit();
}

}  // namespace tqcache
