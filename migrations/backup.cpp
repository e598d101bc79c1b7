#include "migrations/backup.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace tqcache::migrations {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = 1 << 20;

Error system_failure(std::string_view action, int error_number) {
  std::string message(action);
  message.append(": ").append(std::generic_category().message(error_number));
  return {ErrorCode::kIo, std::move(message)};
}

// Calls take(offset, n) for one piece of `size` bytes after the other.
template <class Take>
Result<void> in_pieces(std::uint64_t size, Take take) {
  for (std::uint64_t at = 0; at < size; at += kPieceBytes) {
    TQC_TRY(take(at, static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, size - at))));
  }
  return {};
}

Result<bool> same_bytes(const ByteSource& a, const ByteSource& b) {
  if (a.size() != b.size()) return false;
  Bytes of_a(kPieceBytes);
  Bytes of_b(kPieceBytes);
  bool same = true;
  const auto compare = [&](std::uint64_t at, std::size_t n) -> Result<void> {
    if (!same) return {};
    TQC_TRY(a.read_at(at, std::span(of_a).first(n)));
    TQC_TRY(b.read_at(at, std::span(of_b).first(n)));
    same = std::ranges::equal(std::span(of_a).first(n), std::span(of_b).first(n));
    return {};
  };
  TQC_TRY(in_pieces(a.size(), compare));
  return same;
}

Result<void> copy_bytes(const ByteSource& source, const fs::path& to) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(to, Overwrite::kRefuse));
  Bytes piece(kPieceBytes);
  const auto copy = [&](std::uint64_t at, std::size_t n) -> Result<void> {
    TQC_TRY(source.read_at(at, std::span(piece).first(n)));
    return file.write(std::span(piece).first(n));
  };
  TQC_TRY(in_pieces(source.size(), copy));
  return file.commit();
}

// Whether link() says that this file system, or this file, can have no second name.
bool has_no_links(int error_number) {
  return error_number == EPERM || error_number == EOPNOTSUPP || error_number == ENOSYS ||
         error_number == EMLINK;
}

}  // namespace

fs::path backup_path(const fs::path& path) { return fs::path(path).concat(".v1.bak"); }

Result<void> check_backup(const fs::path& path, const ByteSource& old) {
  const fs::path backup = backup_path(path);
  std::error_code absent;
  if (!fs::exists(fs::symlink_status(backup, absent))) return {};
  if (fs::equivalent(path, backup, absent)) return {};
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> there, open_file(backup));
  TQC_TRY_ASSIGN(const bool same, same_bytes(old, *there));
  if (same) return {};
  std::string message = backup.string();
  return Error{ErrorCode::kInvalidArgument, message.append(": another file stands there")};
}

Result<Backup> Backup::make(const fs::path& path, const ByteSource& old) {
  Backup backup(path);
  if (::link(path.c_str(), backup.path_.c_str()) == 0) {
    backup.is_link_ = true;
  } else if (errno == EEXIST) {
    TQC_TRY(check_backup(path, old));
  } else if (has_no_links(errno)) {
    TQC_TRY(copy_bytes(old, backup.path_));
  } else {
    return in_context(backup.path_.string(), system_failure("link", errno));
  }
  TQC_TRY(flush_folder(path.has_parent_path() ? path.parent_path() : fs::path(".")));
  return backup;
}

Backup::Backup(Backup&& other) noexcept
    : original_(std::move(other.original_)),
      path_(std::move(other.path_)),
      is_link_(std::exchange(other.is_link_, false)) {}

// A copy is left in any case: the next run takes it for what it is.
Backup::~Backup() {
  std::error_code failed;
  if (is_link_ && fs::equivalent(original_, path_, failed)) fs::remove(path_, failed);
}

}  // namespace tqcache::migrations
