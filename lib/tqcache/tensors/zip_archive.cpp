#include "tqcache/tensors/zip_archive.h"

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "tqcache/error.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::tensors {
namespace {

constexpr std::size_t kMaxZipNameBytes = 256;
constexpr std::uint64_t kEndBytes = 22;  // of the smallest zip file, which is a single record
constexpr std::size_t kPiece = 256 << 10;
// Deflate expands a byte to at most 1032 bytes (RFC 1951: 258 bytes for two bits).
constexpr std::uint64_t kMaxDeflateRatio = 1032;

ErrorCode code_of(int zip_error) {
  switch (zip_error) {
    case ZIP_ER_COMPNOTSUPP:
    case ZIP_ER_ENCRNOTSUPP:
    case ZIP_ER_MULTIDISK:
    case ZIP_ER_NOPASSWD:
    case ZIP_ER_OPNOTSUPP:
      return ErrorCode::kUnsupported;
    case ZIP_ER_EOF:
      return ErrorCode::kTruncated;
    case ZIP_ER_MEMORY:
      return ErrorCode::kTooLarge;
    default:
      return ErrorCode::kCorrupt;
  }
}

// The source that libzip reads from, with its last error: libzip's own errors do not give the
// cause.
struct Input {
  std::shared_ptr<const ByteSource> file;
  std::uint64_t size = 0;
  std::uint64_t position = 0;
  std::optional<std::uint64_t> budget;  // bytes that may still be read
  std::optional<Error> failure;
  zip_error_t error{};

  std::int64_t fail(int zip_error) {
    zip_error_set(&error, zip_error, 0);
    return -1;
  }

  std::int64_t read(void* data, std::uint64_t wanted) {
    const std::uint64_t n = std::min(wanted, size - std::min(position, size));
    if (budget && n > *budget) {
      failure = too_large("zip: a directory of too many bytes");
      return fail(ZIP_ER_READ);
    }
    if (budget) *budget -= n;
    auto done = file->read_at(
        position, std::span(static_cast<std::byte*>(data), static_cast<std::size_t>(n)));
    if (!done) {
      failure = std::move(done).error();
      return fail(ZIP_ER_READ);
    }
    position += n;
    return static_cast<std::int64_t>(n);
  }

  std::int64_t seek(void* data, std::uint64_t bytes) {
    const auto target = zip_source_seek_compute_offset(position, size, data, bytes, &error);
    if (target < 0) return -1;
    position = static_cast<std::uint64_t>(target);
    return 0;
  }

  std::int64_t stat(void* data, std::uint64_t bytes) {
    if (bytes < sizeof(zip_stat_t)) return fail(ZIP_ER_INVAL);
    auto* const out = static_cast<zip_stat_t*>(data);
    zip_stat_init(out);
    out->size = size;
    out->valid = ZIP_STAT_SIZE;
    return sizeof(zip_stat_t);
  }
};

std::int64_t call(void* user, void* data, zip_uint64_t bytes, zip_source_cmd_t command) {
  Input& input = *static_cast<Input*>(user);
  switch (command) {
    case ZIP_SOURCE_OPEN:
      input.position = 0;
      return 0;
    case ZIP_SOURCE_READ:
      return input.read(data, bytes);
    case ZIP_SOURCE_SEEK:
      return input.seek(data, bytes);
    case ZIP_SOURCE_TELL:
      return static_cast<std::int64_t>(input.position);
    case ZIP_SOURCE_STAT:
      return input.stat(data, bytes);
    case ZIP_SOURCE_ERROR:
      return zip_error_to_data(&input.error, data, bytes);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
      return 0;
    case ZIP_SOURCE_SUPPORTS:
      return zip_source_make_command_bitmap(
          ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
          ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL, ZIP_SOURCE_SUPPORTS, -1);
    default:
      return input.fail(ZIP_ER_OPNOTSUPP);
  }
}

// libzip allocates as many members as a zip64 directory claims, so every claim that it may find is
// checked first.
Result<void> check_claims(const ByteSource& file, std::uint64_t size, std::size_t max_members) {
  constexpr std::uint64_t kTail = (64 << 10) + 1024;  // the longest comment and the records
  constexpr std::string_view kLocator = "PK\x06\x07";
  Bytes tail(static_cast<std::size_t>(std::min(size, kTail)));
  TQC_TRY(file.read_at(size - tail.size(), tail));
  const std::string_view text(reinterpret_cast<const char*>(tail.data()), tail.size());
  for (std::size_t at = text.find(kLocator); at != std::string_view::npos;
       at = text.find(kLocator, at + 1)) {
    if (tail.size() - at < 20) break;
    const auto record = number_at<std::uint64_t>(tail, at + 8);
    std::array<std::byte, 40> start;
    if (size < start.size() || record > size - start.size()) continue;
    TQC_TRY(file.read_at(record, start));
    const auto n_members = number_at<std::uint64_t>(start, 32);
    if (number_at<std::uint32_t>(start, 0) == 0x06064b50 && n_members > max_members) {
      return too_large(fmt::format("zip: {} members", n_members));
    }
  }
  return {};
}

struct CloseFile {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using OpenMember = std::unique_ptr<zip_file_t, CloseFile>;

}  // namespace

struct ZipArchive::State {
  Input input;
  zip_t* zip = nullptr;
  std::vector<ZipMember> members;
  ZipLimits limits;
  std::mutex mutex;
  std::vector<std::shared_ptr<const Bytes>> inflated;  // by member; null until needed

  ~State() {
    if (zip != nullptr) zip_discard(zip);
    zip_error_fini(&input.error);
  }

  // The cause: a read error of the file, or its content.
  Error error_of(zip_error_t* error) {
    if (input.failure) return *std::exchange(input.failure, std::nullopt);
    const int code = zip_error_code_zip(error);
    if (code == ZIP_ER_NOZIP) return corrupt("zip: no directory at its end");
    return {code_of(code), std::string("zip: ") + zip_error_strerror(error)};
  }
  Error error_of(std::size_t member, zip_error_t* error) {
    return in_context("member " + printable_name(members[member].name), error_of(error));
  }

  Result<void> open() {
    zip_error_t error;
    zip_error_init(&error);
    zip_source_t* const source = zip_source_function_create(&call, &input, &error);
    if (source != nullptr) zip = zip_open_from_source(source, ZIP_RDONLY, &error);
    if (source != nullptr && zip == nullptr) zip_source_free(source);
    if (zip == nullptr) {
      Error failed = error_of(&error);
      zip_error_fini(&error);
      return failed;
    }
    zip_error_fini(&error);
    return {};
  }

  Result<ZipMember> describe(std::uint64_t index) {
    const char* const name = zip_get_name(zip, index, ZIP_FL_ENC_RAW);
    if (name == nullptr) return error_of(zip_get_error(zip));
    const std::string where = "member " + printable_name(name);
    const std::size_t length = std::string_view(name).size();
    if (length > kMaxZipNameBytes) return too_large(where + ": a long name");
    zip_stat_t stat;
    if (zip_stat_index(zip, index, 0, &stat) != 0) return error_of(zip_get_error(zip));
    if (stat.encryption_method != ZIP_EM_NONE) {
      return unsupported(where + ": encrypted");
    }
    if (stat.comp_method != ZIP_CM_STORE && stat.comp_method != ZIP_CM_DEFLATE) {
      return unsupported(fmt::format("{}: compression {}", where, stat.comp_method));
    }
    const bool is_stored = stat.comp_method == ZIP_CM_STORE;
    if (stat.comp_size > input.size) return Error{ErrorCode::kTruncated, where + ": too large"};
    if (is_stored ? stat.size != stat.comp_size : stat.size / kMaxDeflateRatio > stat.comp_size) {
      return corrupt(fmt::format("{}: {} bytes in {}", where, stat.size, stat.comp_size));
    }
    return ZipMember{name, stat.size, is_stored};
  }

  Result<void> list_members() {
    const std::int64_t n = zip_get_num_entries(zip, 0);
    if (n < 0 || static_cast<std::uint64_t>(n) > limits.max_members) {
      return too_large(fmt::format("zip: {} members", n));
    }
    std::set<std::string> names;  // ordered: the file chooses them
    std::uint64_t n_inflated = 0;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(n); ++i) {
      TQC_TRY_ASSIGN(ZipMember member, describe(i));
      if (!names.insert(member.name).second) {
        return corrupt("member " + printable_name(member.name) + ": there twice");
      }
      if (!member.is_stored && member.bytes > limits.max_inflated_bytes - n_inflated) {
        return too_large(fmt::format("zip: more than {} bytes in compressed members",
                                     limits.max_inflated_bytes));
      }
      if (!member.is_stored) n_inflated += member.bytes;
      members.push_back(std::move(member));
    }
    inflated.resize(members.size());
    return {};
  }

  Result<OpenMember> open_member(std::size_t member) {
    OpenMember file(zip_fopen_index(zip, member, 0));
    if (!file) return error_of(member, zip_get_error(zip));
    return file;
  }

  // Fills as much of `out` as the member provides.
  Result<std::size_t> read_some(std::size_t member, zip_file_t* file, std::span<std::byte> out) {
    std::size_t done = 0;
    while (done < out.size()) {
      const std::int64_t n = zip_fread(file, out.data() + done, out.size() - done);
      if (n < 0) return error_of(member, zip_file_get_error(file));
      if (n == 0) break;
      done += static_cast<std::size_t>(n);
    }
    return done;
  }

  Result<void> read_exactly(std::size_t member, zip_file_t* file, std::span<std::byte> out) {
    TQC_TRY_ASSIGN(const std::size_t n, read_some(member, file, out));
    if (n == out.size()) return {};
    return Error{ErrorCode::kTruncated,
                 "member " + printable_name(members[member].name) + ": ends early"};
  }

  // libzip checks the checksum when a read asks for more bytes than are left.
  Result<void> expect_end(std::size_t member, zip_file_t* file) {
    std::array<std::byte, 1> more;
    TQC_TRY_ASSIGN(const std::size_t n, read_some(member, file, more));
    if (n == 0) return {};
    return corrupt("member " + printable_name(members[member].name) + ": longer than it says");
  }

  Result<void> read_whole(std::size_t member, std::uint64_t n_skipped, std::span<std::byte> out) {
    TQC_TRY_ASSIGN(const OpenMember file, open_member(member));
    Bytes skipped(static_cast<std::size_t>(std::min<std::uint64_t>(n_skipped, kPiece)));
    while (n_skipped > 0) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(n_skipped, kPiece));
      TQC_TRY(read_exactly(member, file.get(), std::span(skipped).first(n)));
      n_skipped -= n;
    }
    TQC_TRY(read_exactly(member, file.get(), out));
    return expect_end(member, file.get());
  }

  Result<void> read_stored(std::size_t member, std::uint64_t offset, std::span<std::byte> out) {
    TQC_TRY_ASSIGN(const OpenMember file, open_member(member));
    if (zip_fseek(file.get(), static_cast<zip_int64_t>(offset), SEEK_SET) != 0) {
      return error_of(member, zip_file_get_error(file.get()));
    }
    return read_exactly(member, file.get(), out);
  }

  Result<void> inflate(std::size_t member) {
    if (inflated[member]) return {};
    Bytes bytes(static_cast<std::size_t>(members[member].bytes));
    TQC_TRY(read_whole(member, 0, bytes));
    inflated[member] = std::make_shared<const Bytes>(std::move(bytes));
    return {};
  }
};

Result<bool> begins_as_zip(const ByteSource& file) {
  std::array<char, 4> magic;
  if (file.size() < magic.size()) return false;
  TQC_TRY(file.read_at(0, std::as_writable_bytes(std::span(magic))));
  const std::string_view text(magic.data(), magic.size());
  return text == "PK\x03\x04" || text == "PK\x05\x06";
}

ZipArchive::ZipArchive(std::unique_ptr<State> state) : state_(std::move(state)) {}
ZipArchive::~ZipArchive() = default;

Result<std::unique_ptr<ZipArchive>> ZipArchive::open(std::shared_ptr<const ByteSource> file,
                                                     const ZipLimits& limits) {
  auto state = std::make_unique<State>();
  // libzip treats an empty file as an archive without members.
  if (file->size() < kEndBytes) return corrupt("zip: no directory at its end");
  state->limits = limits;
  state->limits.max_inflated_bytes =
      std::min(limits.max_inflated_bytes, limits.memory.limit(file->size(), kSmallFileBytes));
  state->input.size = file->size();
  state->input.file = std::move(file);
  zip_error_init(&state->input.error);
  TQC_TRY(check_claims(*state->input.file, state->input.size, limits.max_members));
  state->input.budget = limits.max_directory_bytes;
  TQC_TRY(state->open());
  state->input.budget.reset();
  TQC_TRY(state->list_members());
  return std::unique_ptr<ZipArchive>(new ZipArchive(std::move(state)));
}

const std::vector<ZipMember>& ZipArchive::members() const { return state_->members; }

Result<void> ZipArchive::read_at(std::size_t member, std::uint64_t offset,
                                 std::span<std::byte> out) const {
  const std::uint64_t size = state_->members[member].bytes;
  if (offset > size || out.size() > size - offset) {
    return Error{ErrorCode::kTruncated,
                 "member " + printable_name(state_->members[member].name) + ": ends early"};
  }
  if (out.empty()) return {};
  const std::scoped_lock lock(state_->mutex);
  if (state_->members[member].is_stored) return state_->read_stored(member, offset, out);
  TQC_TRY(state_->inflate(member));
  std::ranges::copy(std::span(*state_->inflated[member]).subspan(offset, out.size()), out.begin());
  return {};
}

Result<void> ZipArchive::read_end(std::size_t member, std::span<std::byte> out) const {
  const std::uint64_t size = state_->members[member].bytes;
  if (out.size() > size) {
    return Error{ErrorCode::kTruncated,
                 "member " + printable_name(state_->members[member].name) + ": ends early"};
  }
  const std::scoped_lock lock(state_->mutex);
  return state_->read_whole(member, size - out.size(), out);
}

Result<Bytes> ZipArchive::read_start(std::size_t member, std::size_t max_bytes) const {
  const std::scoped_lock lock(state_->mutex);
  TQC_TRY_ASSIGN(const OpenMember file, state_->open_member(member));
  Bytes bytes(
      static_cast<std::size_t>(std::min<std::uint64_t>(max_bytes, state_->members[member].bytes)));
  TQC_TRY_ASSIGN(const std::size_t n, state_->read_some(member, file.get(), bytes));
  bytes.resize(n);
  return bytes;
}

}  // namespace tqcache::tensors
