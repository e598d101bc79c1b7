#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/encryption.h"
#include "tqcache/format/growth.h"
#include "tqcache/format/header.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/section_writer.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {
namespace {

std::uint64_t slot_offset(std::uint32_t generation) { return slot_index(generation) * kSlotBytes; }

// A file during an append. Until commit() the old state is valid. If commit() is never called,
// everything written is removed as far as the system allows; the rest is announced, so it is
// harmless.
class GrowingFile {
 public:
  // Both must outlive this.
  GrowingFile(LockedFile& file, const Header& header) : file_(file), header_(header) {}
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;
  ~GrowingFile() { withdraw(); }

  // Removes what an earlier append left, and announces this one. Nothing is written after the end
  // before the announcement is on disk, so that extra bytes are always explained.
  Result<void> begin() {
    if (header_.trailing_bytes > 0) TQC_TRY(file_.truncate(header_.slot.file_bytes));
    begun_ = true;
    TQC_TRY(file_.write_at(other_slot(), encode_slot(announcement(header_.slot))));
    return file_.flush();
  }

  FileEnd end() {
    return {header_.slot.file_bytes,
            [this](std::uint64_t offset, ByteView bytes) { return file_.write_at(offset, bytes); }};
  }

  // Switches to the new state, which is completely written. If writing the slot fails it may or may
  // not be on disk, so nothing may be removed any more.
  Result<void> commit(const HeaderSlot& slot) {
    TQC_TRY(file_.flush());
    begun_ = false;
    TQC_TRY(file_.write_at(other_slot(), encode_slot(slot)));
    return file_.flush();
  }

 private:
  std::uint64_t other_slot() const { return slot_offset(header_.slot.generation + 1); }

  void withdraw() noexcept try {
    if (!begun_) return;
    // The announcement is removed last: it explains the bytes after the end while there are any.
    if (!file_.truncate(header_.slot.file_bytes) || !file_.flush()) return;
    if (file_.write_at(other_slot(), header_.other)) (void)file_.flush();
  } catch (...) {
  }

  LockedFile& file_;
  const Header& header_;
  bool begun_ = false;
};

Result<void> check_options(const CacheFileInfo& info, const WriteOptions& options) {
  if (!options.keys.empty() && !info.encryption) {
    return invalid(
        "the file is not encrypted, but a key is given: encrypt the file first, or "
        "append without the key");
  }
  if (options.hide_tokens && !info.hidden_tokens) {
    return Error{ErrorCode::kInvalidArgument,
                 "the file tells its tokens already: only writing it anew hides them"};
  }
  if (info.generation == std::numeric_limits<std::uint32_t>::max()) {
    return Error{ErrorCode::kTooLarge, "appended to too often: it has to be compacted"};
  }
  return {};
}

// Number of token blocks of a cache that an append does not change.
std::int64_t lasting_blocks(const cache::Cache& cache) {
  return std::max<std::int64_t>(0, cache::block_count(cache.n_tokens()) - 1);
}

}  // namespace

struct CacheAppender::State {
  std::unique_ptr<LockedFile> file;
  Access access;
  OpenContainer container;
  // Number of leading token blocks known to be equal in the file and the caller's cache.
  std::int64_t n_trusted = 0;
  bool stale = false;  // the container may differ from the file

  Result<void> open() {
    TQC_TRY_ASSIGN(container, open_container(*file, access));
    const Manifest& manifest = container.info;
    TQC_TRY(check_memory(manifest, access.memory));
    return check_content_name(container.info);
  }

  Result<void> reopen() {
    if (!stale) return {};
    TQC_TRY(open());
    stale = false;
    return {};
  }

  AppendReport report(std::int64_t n_tokens_before, std::uint64_t bytes_written) const {
    const CacheFileInfo& info = container.info;
    return {n_tokens_before, info.n_tokens(), bytes_written, info.file_bytes, info.gap_bytes};
  }

  // The cipher of the next state; null for a plain file. Each attempt to append draws a new salt.
  Result<std::shared_ptr<const FileCipher>> next_cipher(
      const std::vector<std::size_t>& new_sections, Manifest& manifest) const {
    if (container.cipher == nullptr) return container.cipher;
    TQC_TRY_ASSIGN(auto cipher,
                   container.cipher->for_append(prune_writes(container.info.encryption->writes,
                                                             new_sections, manifest.sections)));
    manifest.encryption = cipher->description();
    return cipher;
  }

  // Writes the new sections and makes the result the state of the file.
  Result<void> write(Manifest manifest, const cache::CacheReader& reader,
                     const std::vector<std::size_t>& new_sections, const WriteOptions& options,
                     const Progress& progress, std::shared_ptr<const FileCipher> cipher) {
    stale = true;
    GrowingFile growing(*file, container.header);
    TQC_TRY(growing.begin());
    FileEnd end = growing.end();
    TQC_TRY(write_sections(manifest, reader, new_sections, options, cipher.get(), end, progress));
    const std::uint32_t generation = container.header.slot.generation + 1;
    TQC_TRY_ASSIGN(const HeaderSlot slot, write_manifest(manifest, generation, cipher.get(), end));
    TQC_TRY(growing.commit(slot));

    Header header;
    header.slot = slot;
    header.other = encode_slot(container.header.slot);
    container = {make_info(header, std::move(manifest)), std::move(header), std::move(cipher)};
    stale = false;
    return {};
  }
};

CacheAppender::CacheAppender(std::unique_ptr<State> state) : state_(std::move(state)) {}
CacheAppender::CacheAppender(CacheAppender&&) noexcept = default;
CacheAppender& CacheAppender::operator=(CacheAppender&&) noexcept = default;
CacheAppender::~CacheAppender() = default;

Result<CacheAppender> CacheAppender::open(const std::filesystem::path& path, const Access& access) {
  auto state = std::make_unique<State>();
  state->access = access;
  TQC_TRY_ASSIGN(state->file, LockedFile::open(path));
  TQC_TRY(state->open());
  return CacheAppender(std::move(state));
}

const CacheFileInfo& CacheAppender::info() const { return state_->container.info; }

Result<cache::Cache> CacheAppender::read(const ReadOptions& options, const Progress& progress) {
  ReadOptions comparing = options;
  comparing.access = state_->access;
  comparing.verify_digests = true;
  TQC_TRY_ASSIGN(cache::Cache cache, read_cache(*state_->file, comparing, progress));
  const bool is_whole = cache.n_tokens() == info().n_tokens();
  state_->n_trusted = is_whole ? lasting_blocks(cache) : 0;
  return cache;
}

Result<AppendReport> CacheAppender::append(const cache::Cache& cache, const WriteOptions& options,
                                           const Progress& progress) {
  TQC_TRY(state_->reopen());
  const CacheFileInfo& info = state_->container.info;
  TQC_TRY(check_options(info, options));
  TQC_TRY(cache::validate(cache));
  const auto reader = cache::reader_of(cache);
  Manifest manifest = manifest_of(*reader);
  TQC_TRY(check_growth(info, cache, manifest));
  TQC_TRY_ASSIGN(const Growth growth,
                 compare_sections(*state_->file, info, state_->n_trusted, manifest, *reader,
                                  state_->container.cipher.get(), options.n_threads));

  const std::int64_t n_before = info.n_tokens();
  const std::uint64_t bytes_before = info.file_bytes;
  manifest.writer = info.writer;
  if (info.hidden_tokens) hide_tokens(manifest);
  if (growth.new_sections.empty() && content_name(manifest) == info.content_name) {
    state_->n_trusted = lasting_blocks(cache);
    return state_->report(n_before, 0);
  }
  manifest.gaps = gaps_after(info, state_->container.header.slot, growth);
  if (info.prediction && predicted_block_count(manifest) > 0) {
    manifest.prediction = info.prediction;
    manifest.predicted = std::make_shared<PredictedBlocks>(state_->access);
  }
  TQC_TRY_ASSIGN(auto cipher, state_->next_cipher(growth.new_sections, manifest));
  TQC_TRY(prepare_manifest(manifest, options));
  TQC_TRY(state_->write(std::move(manifest), *reader, growth.new_sections, options, progress,
                        std::move(cipher)));
  state_->n_trusted = lasting_blocks(cache);
  return state_->report(n_before, this->info().file_bytes - bytes_before + kHeaderBytes);
}

}  // namespace tqcache::format
