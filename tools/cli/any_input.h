#pragma once
// tools/cli/any_input.h: a cache file of any program and version, as one reader.
//
//   TQC_TRY_ASSIGN(const InputFile file, open_input_file(path));
//   TQC_TRY_ASSIGN(const AnyInput input, open_any_input(console, file, flags, model, {}, 0));

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/console.h"
#include "cli/foreign_input.h"
#include "cli/model_facts.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/reader.h"

namespace tqcache::cli {

// A source that remembers whether reading failed: then an error is due to the input, otherwise to
// the output.
class WatchedSource : public ByteSource {
 public:
  explicit WatchedSource(std::shared_ptr<const ByteSource> source) : source_(std::move(source)) {}
  std::uint64_t size() const override { return source_->size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    Result<void> read = source_->read_at(offset, out);
    if (!read) failed_ = true;
    return read;
  }
  // The file that caused an error of the work from `input` to `output`.
  const std::string& to_blame(const Error& error, const std::string& input,
                              const std::string& output) const {
    if (error.code == ErrorCode::kBusy) return output;  // another process is writing to it
    return error.code == ErrorCode::kIo && !failed_ ? output : input;
  }

 private:
  std::shared_ptr<const ByteSource> source_;
  mutable std::atomic<bool> failed_ = false;
};

// A file whose kind is known by its content.
struct InputFile {
  std::string name;               // for messages
  std::optional<FileKind> known;  // nullopt: no file of any program that is known
  std::shared_ptr<const WatchedSource> source;

  // Of an unknown file the reader of .tqkv files says what is wrong.
  FileKind kind() const { return known.value_or(FileKind::kTqkv); }
  bool is_own() const { return known == FileKind::kTqkv || known == FileKind::kTqkvVersion1; }
  bool is_foreign() const { return known && !is_own(); }
};

// "-" is standard input. Errors: kUnsupported (not a cache), those of interop::detect_kind().
Result<InputFile> open_input_file(const std::string& path);

struct AnyInput {
  std::uint64_t file_bytes = 0;
  std::uint64_t n_values = 0;  // keys and values of `cache`
  std::shared_ptr<const cache::CacheReader> cache;
  // Of files of other programs: what the content implies, and what a .tqkv file cannot keep.
  std::vector<std::string> notes;
  std::vector<std::string> dropped;
};

// `first_tokens` truncates the cache. flags.decode_keys and decode_values: quantized keys or values
// are decoded; of .tqkv files only if both are set. Warns of version 1, of states that may be lost,
// and of plain files though a key is given.
// Errors: those of the readers; kMismatch if the probe of open_foreign() fails.
Result<AnyInput> open_any_input(const Console& console, const InputFile& file,
                                const ForeignFlags& flags, const ModelFacts& model,
                                std::optional<std::int64_t> first_tokens, unsigned n_threads);

}  // namespace tqcache::cli
