// A new file under a temporary name, renamed when it is whole.
//
// Every call names the folder by a descriptor, so that the temporary file, the rename and the
// flush mean the same folder even if someone moves it or this process changes its own.

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <optional>
#include <string>

#include "tqcache/base/descriptor.h"
#include "tqcache/base/file.h"

namespace tqcache {
namespace {

constexpr mode_t kOwnerOnly = 0600;

// After so many bytes the disk is set to work, so that the flush at the end finds little to do.
constexpr std::uint64_t kWritebackBytes = 8 << 20;

Error exists_already() { return {ErrorCode::kInvalidArgument, "exists already"}; }

// The number of the descriptor that `path` is a well-known name of.
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

// A duplicate and no second opening: it keeps the position and the append mode of `stdout >> x`.
Result<Descriptor> duplicate(int number) {
  Descriptor copy(::fcntl(number, F_DUPFD_CLOEXEC, 0));
  if (!copy.is_open()) return system_error("open", errno);
  return copy;
}

Result<Descriptor> open_folder(const std::filesystem::path& folder) {
  Descriptor opened(retry_interrupted(
      [&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (opened.is_open()) return opened;
  const std::string place = "folder " + folder.string();
  if (errno == ENOENT) return Error{ErrorCode::kIo, place + " does not exist"};
  if (errno == ENOTDIR) return Error{ErrorCode::kIo, folder.string() + " is not a folder"};
  return system_error(place, errno);
}

// What stands under the name now, links not followed; nullopt when nothing does.
Result<std::optional<mode_t>> mode_of(const Descriptor& folder, const std::string& name) {
  struct stat info {};
  if (::fstatat(folder.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
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

// Not retried after a signal: opening a pipe waits for its reader, and the user may have had
// enough of it.
Result<Descriptor> open_stream(const Descriptor& folder, const std::string& name) {
  Descriptor stream(
      ::openat(folder.get(), name.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY));
  if (!stream.is_open()) {
    if (errno == EINTR) return Error{ErrorCode::kInterrupted, "open: interrupted"};
    return system_error("open", errno);
  }
  struct stat info {};
  if (::fstat(stream.get(), &info) != 0) return system_error("stat", errno);
  if (!is_stream(info.st_mode)) return Error{ErrorCode::kIo, "changed while it was opened"};
  return stream;
}

struct TemporaryFile {
  Descriptor file;
  std::string name;
};

Result<std::string> random_letters() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz234567";
  std::array<unsigned char, 6> random{};
  if (::getentropy(random.data(), random.size()) != 0) return system_error("getentropy", errno);
  std::string letters;
  for (const unsigned char byte : random) letters += kLetters[byte % kLetters.size()];
  return letters;
}

Result<TemporaryFile> make_temporary(const Descriptor& folder, const std::string& name) {
  std::string prefix = "." + name + ".tmp-";
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  for (int attempt = 0; attempt < 100; ++attempt) {
    TQC_TRY_ASSIGN(const std::string letters, random_letters());
    TemporaryFile temporary{{}, prefix + letters};
    temporary.file = Descriptor(retry_interrupted(
        [&] { return ::openat(folder.get(), temporary.name.c_str(), kFlags, kOwnerOnly); }));
    if (temporary.file.is_open()) return temporary;
    if (errno == ENAMETOOLONG) {
      prefix = ".tqcache-";
    } else if (errno != EEXIST) {
      return system_error("temporary file", errno);
    }
  }
  return system_error("temporary file", EEXIST);
}

// `put` writes some of the bytes it is given, which begin `done` bytes into `bytes`.
template <class Put>
Result<void> put_all(ByteView bytes, Put put) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = retry_interrupted([&] { return put(bytes.subspan(done), done); });
    if (count <= 0) return system_error("write", count == 0 ? EIO : errno);
    done += static_cast<std::size_t>(count);
  }
  return {};
}

// Devices, pipes and some network file systems have no flush to offer.
Result<void> flush(const Descriptor& file) {
  if (retry_interrupted([&] { return ::fsync(file.get()); }) == 0) return {};
  if (errno == EINVAL || errno == ENOTSUP) return {};
  return system_error("flush", errno);
}

Result<void> close_checked(Descriptor& file) {
  if (const int error_number = file.close()) return system_error("close", error_number);
  return {};
}

Result<void> rename_over(const Descriptor& folder, const std::string& from, const std::string& to) {
  if (::renameat(folder.get(), from.c_str(), folder.get(), to.c_str()) == 0) return {};
  return system_error("rename", errno);
}

// Fails when something stands at `to`, even if it was put there a moment ago.
Result<void> rename_new(const Descriptor& folder, const std::string& from, const std::string& to) {
  const int at = folder.get();
  if (::renameat2(at, from.c_str(), at, to.c_str(), RENAME_NOREPLACE) == 0) return {};
  if (errno == EINVAL || errno == ENOSYS) {  // not every file system knows the flag
    if (::linkat(at, from.c_str(), at, to.c_str(), 0) == 0) {
      ::unlinkat(at, from.c_str(), 0);
      return {};
    }
  }
  return errno == EEXIST ? exists_already() : system_error("rename", errno);
}

}  // namespace

struct AtomicFile::State {
  Descriptor file;
  Descriptor folder;      // not open when the file is written in place
  std::string name;       // in the folder
  std::string temporary;  // in the folder; empty when there is none, or no more
  Overwrite overwrite = Overwrite::kRefuse;
  std::uint64_t size = 0;
  std::uint64_t written_back = 0;  // the first bytes of `size`: given to the disk, or on their way
  std::optional<Error> ended;      // why nothing can be written any more

  ~State() { discard(); }

  bool in_place() const { return !folder.is_open(); }

  void discard() {
    file.close();
    if (!temporary.empty()) ::unlinkat(folder.get(), temporary.c_str(), 0);
    temporary.clear();
  }

  // A hint and no promise: what goes wrong the flush will tell.
  void begin_writeback() {
    if (in_place() || size - written_back < kWritebackBytes) return;
    ::sync_file_range(file.get(), static_cast<off_t>(written_back),
                      static_cast<off_t>(size - written_back), SYNC_FILE_RANGE_WRITE);
    written_back = size;
  }

  // Remembers a failure, so that commit() cannot publish what was not written.
  Result<void> noting(Result<void> result) {
    if (!result) {
      ended = result.error();
      discard();
    }
    return result;
  }

  Result<void> publish() {
    TQC_TRY(flush(file));
    TQC_TRY(close_checked(file));
    if (in_place()) return {};
    TQC_TRY(overwrite == Overwrite::kAllow ? rename_over(folder, temporary, name)
                                           : rename_new(folder, temporary, name));
    temporary.clear();
    return flush(folder);
  }
};

AtomicFile::AtomicFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path, Overwrite overwrite) {
  auto state = std::make_unique<State>();
  if (const std::optional<int> number = named_descriptor(path.string())) {
    TQC_TRY_ASSIGN(state->file, duplicate(*number));
    return AtomicFile(std::move(state));
  }
  if (path.empty()) return Error{ErrorCode::kIo, "the file name is empty"};
  const std::string name = path.filename().string();
  if (name.empty() || name == "." || name == "..") return Error{ErrorCode::kIo, "is a folder"};

  TQC_TRY_ASSIGN(Descriptor folder, open_folder(path.has_parent_path() ? path.parent_path() : "."));
  TQC_TRY_ASSIGN(const std::optional<mode_t> mode, mode_of(folder, name));
  if (mode && is_stream(*mode)) {
    TQC_TRY_ASSIGN(state->file, open_stream(folder, name));
    return AtomicFile(std::move(state));
  }
  if (mode) TQC_TRY(check_replaceable(*mode, overwrite));

  TQC_TRY_ASSIGN(TemporaryFile temporary, make_temporary(folder, name));
  state->file = std::move(temporary.file);
  state->folder = std::move(folder);
  state->name = name;
  state->temporary = std::move(temporary.name);
  state->overwrite = overwrite;
  return AtomicFile(std::move(state));
}

Result<void> AtomicFile::write(ByteView bytes) {
  if (state_->ended) return *state_->ended;
  TQC_TRY(state_->noting(put_all(bytes, [&](ByteView rest, std::size_t) {
    return ::write(state_->file.get(), rest.data(), rest.size());
  })));
  state_->size += bytes.size();
  state_->begin_writeback();
  return {};
}

Result<void> AtomicFile::write_at(std::uint64_t offset, ByteView bytes) {
  if (state_->ended) return *state_->ended;
  if (state_->in_place()) {
    return Error{ErrorCode::kInvalidArgument, "a stream cannot be written over"};
  }
  if (offset > state_->size || bytes.size() > state_->size - offset) {
    return Error{ErrorCode::kInvalidArgument,
                 "byte " + std::to_string(offset) + ": written over before it was written"};
  }
  return state_->noting(put_all(bytes, [&](ByteView rest, std::size_t done) {
    return ::pwrite(state_->file.get(), rest.data(), rest.size(),
                    static_cast<off_t>(offset + done));
  }));
}

std::uint64_t AtomicFile::size() const { return state_->size; }

Result<void> AtomicFile::commit() {
  if (state_->ended) return *state_->ended;
  TQC_TRY(state_->noting(state_->publish()));
  state_->ended = Error{ErrorCode::kInvalidArgument, "committed already"};
  return {};
}

Result<void> write_file_atomically(const std::filesystem::path& path, ByteView bytes,
                                   Overwrite overwrite) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, overwrite));
  TQC_TRY(file.write(bytes));
  return file.commit();
}

}  // namespace tqcache
