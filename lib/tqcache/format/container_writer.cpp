#include "tqcache/format/container_writer.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/threads.h"
#include "tqcache/format/compression.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest_rules.h"

namespace tqcache::format {
namespace {

// Where the file goes: to disk or to memory.
struct Output {
  std::function<Result<void>(ByteView)> append;
  std::function<Result<void>(ByteView)> replace_start;  // the first bytes, once all is known
};

// Lays the parts of the file behind one another.
class Layout {
 public:
  explicit Layout(Output output) : output_(std::move(output)) {}

  // The header stays empty until all else is written: a file without it is none.
  Result<void> begin() { return append(std::array<std::byte, kHeaderBytes>{}); }

  // Gives the file offset where the bytes begin.
  Result<std::uint64_t> append_aligned(ByteView bytes) {
    constexpr std::array<std::byte, kSectionAlignment> kZeros{};
    const std::uint64_t offset = align_section(position_);
    if (offset > position_) TQC_TRY(append(ByteView(kZeros).first(offset - position_)));
    TQC_TRY(append(bytes));
    return offset;
  }

  Result<void> finish(ByteView manifest) {
    HeaderSlot slot;
    slot.manifest_checksum = xxh3_128(manifest);
    TQC_TRY_ASSIGN(slot.manifest_offset, append_aligned(manifest));
    slot.file_bytes = position_;
    return output_.replace_start(encode_slot(slot));
  }

 private:
  Result<void> append(ByteView bytes) {
    position_ += bytes.size();
    return output_.append(bytes);
  }

  Output output_;
  std::uint64_t position_ = 0;
};

// One section on its way into the file.
struct PreparedSection {
  SharedBytes raw;
  Bytes frame;  // empty: stored as it is

  ByteView stored() const { return frame.empty() ? raw.view() : ByteView(frame); }
};

class SectionWriter {
 public:
  // Without a compressor all sections are stored. What is given must outlive this.
  SectionWriter(ContainerContent& content, const Compressor* compressor, Layout& layout)
      : content_(content), compressor_(compressor), layout_(layout) {}

  Result<void> write_all(const WriteOptions& options) {
    slots_.resize(slot_count(options.n_threads));
    return run_in_order(
        {.count = content_.manifest.sections.size(),
         .make = [this](std::size_t i, std::size_t slot) { return prepare(i, slots_[slot]); },
         .take = [this](std::size_t i, std::size_t slot) { return write(i, slots_[slot]); },
         .bytes = [this](std::size_t i) { return held_bytes(i); },
         .window_bytes = options.window_bytes},
        options.n_threads);
  }

 private:
  SectionInfo& section(std::size_t i) { return content_.manifest.sections[i]; }

  std::uint64_t held_bytes(std::size_t i) {
    return section(i).raw_bytes * (compressor_ != nullptr ? 2 : 1);
  }

  // Fills in the digests and the compression of a section.
  Result<void> prepare(std::size_t i, PreparedSection& prepared) {
    SectionInfo& info = section(i);
    TQC_TRY_ASSIGN(prepared.raw, content_.make_section(i));
    assert(prepared.raw.size() == info.raw_bytes);
    info.raw_sha256 = sha256(prepared.raw.view());
    if (compressor_ != nullptr) {
      TQC_TRY_ASSIGN(const bool shrank, compressor_->compress(prepared.raw.view(), prepared.frame));
      if (shrank) info.compression = Compression::kZstd;
    }
    info.stored_bytes = prepared.stored().size();
    info.checksum = xxh3_128(prepared.stored());
    return {};
  }

  Result<void> write(std::size_t i, PreparedSection& prepared) {
    TQC_TRY_ASSIGN(section(i).file_offset, layout_.append_aligned(prepared.stored()));
    prepared = {};  // gives the memory back
    if (content_.after_section && !content_.after_section(i)) {
      return Error{ErrorCode::kInterrupted, "interrupted"};
    }
    return {};
  }

  ContainerContent& content_;
  const Compressor* compressor_;
  Layout& layout_;
  std::vector<PreparedSection> slots_;
};

Result<void> write_container(ContainerContent content, const WriteOptions& options, Output output) {
  TQC_TRY_ASSIGN(const Compressor compressor, Compressor::make(options.zstd_level));
  Manifest& manifest = content.manifest;
  manifest.writer = options.writer.empty() ? "tqcache " TQCACHE_VERSION : options.writer;
  TQC_TRY(check_contents(manifest));
  // Its size does not depend on what is still missing: too large a manifest shows before the work.
  TQC_TRY(encode_manifest(manifest));

  Layout layout(std::move(output));
  TQC_TRY(layout.begin());
  const bool compress = options.compression == Compression::kZstd;
  TQC_TRY(SectionWriter(content, compress ? &compressor : nullptr, layout).write_all(options));
  manifest.content_name = content_name(manifest);
  TQC_TRY_ASSIGN(const Bytes bytes, encode_manifest(manifest));
  return layout.finish(bytes);
}

}  // namespace

Result<void> write_container_file(ContainerContent content, AtomicFile file,
                                  const WriteOptions& options) {
  const bool is_stream = !file.write_at(0, {});
  if (is_stream) {
    TQC_TRY_ASSIGN(const Bytes bytes, write_container_bytes(std::move(content), options));
    TQC_TRY(file.write(bytes));
    return file.commit();
  }
  TQC_TRY(write_container(std::move(content), options,
                          {[&](ByteView bytes) { return file.write(bytes); },
                           [&](ByteView bytes) { return file.write_at(0, bytes); }}));
  return file.commit();
}

Result<Bytes> write_container_bytes(ContainerContent content, const WriteOptions& options) {
  Bytes out;
  const auto append = [&](ByteView bytes) -> Result<void> {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return {};
  };
  const auto replace_start = [&](ByteView bytes) -> Result<void> {
    std::ranges::copy(bytes, out.begin());
    return {};
  };
  TQC_TRY(write_container(std::move(content), options, {append, replace_start}));
  return out;
}

}  // namespace tqcache::format
