// Library::put(): the writing of a prompt's parameters, blocks, snapshot and record.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tqcache/base/threads.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/error.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/quantize.h"
#include "tqcache/store.h"
#include "tqcache/store/backends/backend_support.h"
#include "tqcache/store/blobs/blob_format.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/chain_layout.h"
#include "tqcache/store/blobs/section_digests.h"
#include "tqcache/store/library/chain_writer.h"
#include "tqcache/store/library/put_source.h"

namespace tqcache::store {
namespace {

// How many times a prompt is put if the backend drops its blocks meanwhile.
constexpr int kMaxAttempts = 3;

// Upper limit for sections in memory on their way to the store, before compression.
constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 20;

bool is_zero(const Sha256& digest) { return digest == Sha256{}; }

Result<void> check_source(const format::Manifest& manifest, bool is_named) {
  if (manifest.hidden_tokens) {
    return unsupported("its tokens are hidden, and a store finds prompts by their tokens");
  }
  const cache::Identity& identity = manifest.identity;
  if (identity.architecture.empty() || is_zero(identity.weights_fingerprint)) {
    return unsupported("its origin is unknown, so no model could find it");
  }
  if (manifest.tokens.empty()) return invalid("it holds no tokens");
  if (identity.standing == cache::Standing::kShifted) {
    return unsupported(
        "its context was shifted: it is not what the model computes from its tokens, so no other "
        "prompt may begin with it; keep it as a file, or put what prefill makes of the tokens");
  }
  if (identity.standing == cache::Standing::kUnchecked && !is_named) {
    return unsupported(
        "its model was stated and not checked, so it is found by a name alone; give it one, or "
        "convert it again with the model and its token ids");
  }
  return {};
}

Result<void> check_name(std::string_view name) {
  if (name.size() <= kMaxNameBytes) return {};
  return Error{
      ErrorCode::kInvalidArgument,
      fmt::format("a name of {} bytes, at most {} are allowed", name.size(), kMaxNameBytes)};
}

Error taken(std::string_view name) {
  return {ErrorCode::kInvalidArgument, "another prompt has the name " + in_quotes(name)};
}

// Puts everything of a prompt except its record.
class PromptPutter {
 public:
  PromptPutter(Backend& backend, const LibraryOptions& options, const PutSource& source,
               bool is_named)
      : backend_(backend),
        options_(options),
        source_(source),
        manifest_(source.manifest()),
        is_named_(is_named),
        n_final_(static_cast<std::size_t>(final_blocks(manifest_.n_tokens()))),
        places_(place_sections(manifest_)),
        stored_infos_(manifest_.sections) {}

  // May be called again when the backend dropped blocks meanwhile.
  Result<void> put(const Progress& progress) {
    // Parameters: equal ones in a candidate slot are shared, otherwise they take a free slot. A
    // named prompt needs none.
    const Tokens tokens = manifest_.tokens;
    const Tokens first_block = tokens.first(std::min(kBlockTokens, tokens.size()));
    Parameters parameters{manifest_.identity, {}, manifest_.layers};
    parameters.tokens.assign(first_block.begin(), first_block.end());
    const Tokens final_tokens = tokens.first(n_final_ * kBlockTokens);
    TQC_TRY_ASSIGN(
        ChainWriter writer,
        ChainWriter::open(backend_, options_.salt, std::move(parameters), options_.on_warning));
    if (!writer.is_findable() && !is_named_) {
      return too_large(
          fmt::format("the store has {} other quantizations of these first tokens, and takes no "
                      "more without a name; remove some, or put it with a name",
                      kCandidateSlots));
    }

    // Existing blocks are reused. They are touched so that gc does not remove them meanwhile.
    block_keys_ = writer.keys(final_tokens);
    TQC_TRY_ASSIGN(const std::vector<bool> exists, writer.has(final_tokens));
    std::vector<std::optional<ExistingBlock>> existing(n_final_);
    std::vector<std::string> existing_keys;
    for (std::size_t block = 0; block < n_final_; ++block) {
      if (!exists[block]) continue;
      existing[block].emplace();
      existing_keys.insert(existing_keys.end(), block_keys_[block].begin(),
                           block_keys_[block].end());
    }
    TQC_TRY(backend_.touch(existing_keys));

    // What another process put is not relied on unread. Bad blocks are put again.
    TQC_TRY(read_existing(existing));

    // Blocks: the sections of missing blocks are read and compressed on all threads, and put in
    // order.
    other_blocks_ = 0;
    std::vector<std::vector<StoredSection>> slots(slot_count(options_.n_threads));
    const auto make = [&](std::size_t block, std::size_t slot) -> Result<void> {
      const SectionNumbers& numbers = places_.blocks[block];
      if (!existing[block]) {
        TQC_TRY_ASSIGN(slots[slot], read_sections(numbers));
      } else {
        for (const std::size_t i : numbers) {
          TQC_TRY_ASSIGN(stored_infos_[i].raw_sha256, source_.digest(i));
        }
      }
      return {};
    };
    const auto take = [&](std::size_t block, std::size_t slot) -> Result<void> {
      const Tokens block_tokens = tokens.subspan(block * kBlockTokens, kBlockTokens);
      if (existing[block]) {
        TQC_TRY(writer.skip_block(block_tokens, existing[block]->bytes));
        reuse_existing(places_.blocks[block], *existing[block]);
      } else {
        keep_infos(places_.blocks[block], slots[slot]);
        const auto begin = static_cast<std::int64_t>(block * kBlockTokens);
        TQC_TRY(
            writer.put_block(block_tokens, std::exchange(slots[slot], {}),
                             cache::media_in(manifest_.media, begin, begin + cache::kTokenBlock)));
      }
      return report_progress(progress, block + 1, n_final_);
    };
    TQC_TRY(run_in_order({.count = n_final_,
                          .make = make,
                          .take = take,
                          .bytes = [&](std::size_t) { return block_bytes(manifest_.layers); },
                          .window_bytes = kWindowBytes},
                         options_.n_threads));
    TQC_TRY(writer.flush());
    TQC_TRY(writer.put_nexts(final_tokens));

    // Snapshot: the tail, windows and arrays. Without a final block it has no slot, and only a
    // record needs it.
    const Tokens tail = tokens.subspan(n_final_ * kBlockTokens);
    TQC_TRY_ASSIGN(std::vector<StoredSection> sections, read_sections(places_.snapshot));
    keep_infos(places_.snapshot, sections);
    snapshot_ = {};
    snapshot_.n_tokens = manifest_.n_tokens();
    snapshot_.tail.assign(tail.begin(), tail.end());
    snapshot_.media = cache::media_in(manifest_.media, manifest_.n_tokens() - std::ssize(tail),
                                      manifest_.n_tokens());
    snapshot_.layers = bare_layers(manifest_.layers);
    if (is_named_) snapshot_.content_name = content_digest();
    if (n_final_ > 0) {
      TQC_TRY_ASSIGN(snapshot_key_, writer.put_snapshot(snapshot_, std::move(sections)));
    } else if (is_named_) {
      TQC_TRY(writer.put_data(snapshot_, std::move(sections)));
    }

    met_others_ = writer.has_met_others();
    parameters_key_ = writer.parameters_key();
    chain_ = writer.chain();
    new_blocks_ += writer.new_blocks();
    new_bytes_ += writer.new_bytes();
    next_bytes_ += writer.next_bytes();
    bytes_ = writer.bytes();
    return {};
  }

  // Whether everything that was put or reused exists at this moment, with the values that were put
  // or read.
  Result<bool> is_complete() {
    if (met_others_) return false;
    std::vector<std::string> keys = flatten(block_keys_);
    keys.push_back(parameters_key_);
    if (!snapshot_key_.empty()) keys.push_back(snapshot_key_);
    keys.insert(keys.end(), snapshot_.data_keys.begin(), snapshot_.data_keys.end());
    // Until the record exists, only their age protects these blobs from gc.
    if (backend_.touches_cheaply()) TQC_TRY(backend_.touch(keys));
    TQC_TRY_ASSIGN(const std::vector<bool> there, backend_.exists(keys));
    return std::ranges::find(there, false) == there.end();
  }

  PromptRecord record(std::string_view name, std::int64_t created) const {
    PromptRecord record;
    record.name = name;
    record.model_name = manifest_.identity.model_name;
    record.architecture = manifest_.identity.architecture;
    record.parameters_key = parameters_key_;
    record.chain = chain_;
    record.snapshot = snapshot_;
    record.state_key = snapshot_key_;
    record.created = created;
    record.bytes = bytes_;
    record.standing = manifest_.identity.standing;
    return record;
  }

  PutReport report() const {
    PutReport report;
    report.n_tokens = manifest_.n_tokens();
    report.blocks = static_cast<std::int64_t>(n_final_);
    report.new_blocks = new_blocks_;
    report.other_blocks = other_blocks_;
    report.bytes = bytes_ + next_bytes_;
    report.new_bytes = new_bytes_;
    report.content_name = snapshot_.content_name;
    return report;
  }

 private:
  using Tokens = std::span<const std::int32_t>;
  using SectionInfos = std::vector<format::SectionInfo>;
  using SectionNumbers = std::vector<std::size_t>;

  // A block that the store has.
  struct ExistingBlock {
    SectionInfos sections;
    std::uint64_t bytes = 0;  // of its blobs
  };

  // Reads the existing blocks, and drops those that are missing or bad: damaged, or with other
  // content than that of the digests that they state.
  Result<void> read_existing(std::vector<std::optional<ExistingBlock>>& existing) {
    std::vector<std::string> keys;
    std::vector<std::size_t> block_of_key;
    for (std::size_t block = 0; block < n_final_; ++block) {
      if (!existing[block]) continue;
      keys.insert(keys.end(), block_keys_[block].begin(), block_keys_[block].end());
      block_of_key.resize(keys.size(), block);
    }
    const Parameters parameters{manifest_.identity, {}, manifest_.layers};
    std::vector<SectionInfos> infos(keys.size());
    const auto take = [&](std::size_t i, Content content, std::uint64_t bytes) -> Result<void> {
      TQC_TRY_ASSIGN(const Block block, BlobReader::take_kind<Block>(std::move(content)));
      TQC_TRY(check_block(parameters, block));
      for (const StoredSection& section : block.sections) infos[i].push_back(section.info);
      existing[block_of_key[i]]->bytes += bytes;
      return {};
    };
    const SectionDigests digests(manifest_.layers);
    const auto compare = [&](std::size_t, const Content& content) {
      return digests.compare(content);
    };
    BlobReader reader(backend_, BadBlobs::kRemove, options_.on_warning, options_.n_threads);
    TQC_TRY_ASSIGN(const std::vector<Found> found, reader.read(keys, take, compare));
    for (std::size_t i = 0; i < found.size(); ++i) {
      std::optional<ExistingBlock>& block = existing[block_of_key[i]];
      if (found[i] != Found::kGood) block.reset();
      if (block) block->sections.insert(block->sections.end(), infos[i].begin(), infos[i].end());
    }
    return {};
  }

  Result<std::vector<StoredSection>> read_sections(const SectionNumbers& numbers) const {
    std::vector<StoredSection> sections;
    for (const std::size_t i : numbers) {
      TQC_TRY_ASSIGN(StoredSection section, source_.section(i));
      sections.push_back(std::move(section));
    }
    return sections;
  }

  void keep_infos(const SectionNumbers& numbers, const std::vector<StoredSection>& sections) {
    for (std::size_t i = 0; i < sections.size(); ++i) stored_infos_[numbers[i]] = sections[i].info;
  }

  // The record describes the blocks in the store, even if the prompt has other values.
  void reuse_existing(const SectionNumbers& numbers, const ExistingBlock& existing) {
    bool is_same = true;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      format::SectionInfo& ours = stored_infos_[numbers[i]];
      is_same = is_same && ours.raw_sha256 == existing.sections[i].raw_sha256;
      ours = existing.sections[i];
    }
    if (!is_same) ++other_blocks_;
  }

  Sha256 content_digest() const {
    format::Manifest manifest;
    manifest.identity = manifest_.identity;
    manifest.tokens = manifest_.tokens;
    manifest.media = manifest_.media;
    manifest.layers = manifest_.layers;
    manifest.sections = stored_infos_;
    return format::content_name(manifest);
  }

  Backend& backend_;
  const LibraryOptions& options_;
  const PutSource& source_;
  const format::Manifest& manifest_;
  bool is_named_;
  std::size_t n_final_;
  SectionPlaces places_;
  SectionInfos stored_infos_;  // of the sections that the store has at the end

  std::vector<std::vector<std::string>> block_keys_;  // [block][part]
  std::string parameters_key_, snapshot_key_;
  std::vector<Sha256> chain_;
  Snapshot snapshot_;
  std::int64_t new_blocks_ = 0, other_blocks_ = 0;
  std::uint64_t bytes_ = 0, new_bytes_ = 0, next_bytes_ = 0;
  bool met_others_ = false;
};

// Puts everything that the record needs, until it is complete.
Result<void> put_all(PromptPutter& putter, const Progress& progress) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    TQC_TRY(putter.put(progress));
    TQC_TRY_ASSIGN(const bool is_complete, putter.is_complete());
    if (is_complete) return {};
  }
  return too_large("the backend drops blocks as they are put");
}

// The record of one prompt.
class RecordPutter {
 public:
  RecordPutter(Backend& backend, const LibraryOptions& options, std::string_view name)
      : backend_(backend),
        reader_(backend, BadBlobs::kRemove, options.on_warning),
        name_(name),
        key_(record_key(options.salt, name)) {}

  // Called first: fails if the name belongs to another prompt.
  Result<void> look_up(const format::Manifest& manifest, bool replace) {
    TQC_TRY_ASSIGN(old_, read());
    if (!old_ || replace) return {};
    const Snapshot& snapshot = old_->snapshot;
    const bool may_be =
        snapshot.n_tokens == manifest.n_tokens() &&
        std::ranges::equal(snapshot.tail, std::span(manifest.tokens).last(snapshot.tail.size()));
    return may_be ? Result<void>() : taken(name_);
  }

  Result<void> write(const PromptRecord& record, bool replace) {
    if (old_ && is_same(*old_, record)) return {};
    if (old_ && !replace) return taken(name_);
    TQC_TRY_ASSIGN(const Bytes blob, encode_blob(key_, Content(record)));
    if (replace) return backend_.replace(key_, blob);
    TQC_TRY_ASSIGN(const PutOutcome outcome, backend_.put(key_, blob));
    if (outcome == PutOutcome::kStored) return {};
    TQC_TRY_ASSIGN(const std::optional<PromptRecord> other, read());
    return other && is_same(*other, record) ? Result<void>() : taken(name_);
  }

  const std::string& key() const { return key_; }

 private:
  static bool is_same(const PromptRecord& a, const PromptRecord& b) {
    return a.chain == b.chain && a.parameters_key == b.parameters_key &&
           a.snapshot.content_name == b.snapshot.content_name &&
           a.snapshot.data_keys == b.snapshot.data_keys;
  }

  // A damaged record is removed, so that it does not keep the name.
  Result<std::optional<PromptRecord>> read() { return read_record(reader_, key_, name_); }

  Backend& backend_;
  BlobReader reader_;
  std::string name_, key_;
  std::optional<PromptRecord> old_;
};

struct Target {
  Backend& backend;
  const LibraryOptions& options;
};

// Puts the checkpoints of a prompt, whose state is then found at their numbers of tokens.
Result<void> put_checkpoints(const Target& target, const cache::CacheReader& prompt,
                             PutReport& report) {
  for (std::size_t i = 0; i < prompt.checkpoints().size(); ++i) {
    if (final_blocks(prompt.checkpoints()[i].n_tokens()) == 0) {
      ++report.short_checkpoints;
      continue;
    }
    TQC_TRY_ASSIGN(const auto state, cache::at_checkpoint(cache::borrow(prompt), i));
    TQC_TRY_ASSIGN(const PutSource source, PutSource::open(*state));
    PromptPutter putter(target.backend, target.options, source, /*is_named=*/false);
    TQC_TRY(putter.put({}));
    ++report.checkpoints;
    report.new_checkpoint_bytes += putter.report().new_bytes;
  }
  return {};
}

Result<PutReport> put_prompt(const Target& target, const PutSource& source, std::string_view name,
                             const Progress& progress, const PutOptions& options) {
  PromptPutter putter(target.backend, target.options, source, !name.empty());
  if (name.empty()) {
    TQC_TRY(putter.put(progress));
    return putter.report();
  }
  RecordPutter named(target.backend, target.options, name);
  TQC_TRY(named.look_up(source.manifest(), options.replace));
  TQC_TRY(put_all(putter, progress));
  TQC_TRY(named.write(putter.record(name, options.created), options.replace));
  PutReport report = putter.report();
  report.key = named.key();
  return report;
}

}  // namespace

// See PutOptions::quantization.
Result<std::shared_ptr<const cache::CacheReader>> Library::quantized(
    std::shared_ptr<const cache::CacheReader> prompt, const cache::ConvertOptions& options) {
  TQC_TRY_ASSIGN(auto fitted, cache::quantize(prompt, options));
  const cache::CacheDesc& cache = fitted->description();
  const bool is_shared = options.fit == cache::Fit::kFirstBlock;
  if (!is_shared || final_blocks(cache.n_tokens()) == 0) return fitted;
  FindOptions of_first_block;
  of_first_block.max_tokens = cache::kTokenBlock;
  of_first_block.settings = &cache.layers;
  TQC_TRY_ASSIGN(const Prefix known, find(cache.identity, cache.tokens, of_first_block));
  if (known.n_tokens == 0) return fitted;
  auto as_stored =
      cache::quantize_like(std::move(prompt), known.parameters.layers, options.n_threads);
  // What is quantized already, with another codec, keeps that.
  const bool is_packed = !as_stored && as_stored.error().code == ErrorCode::kInvalidArgument;
  return is_packed ? fitted : as_stored;
}

Result<PutReport> Library::put(const cache::CacheReader& whole, std::string_view name,
                               const Progress& progress, const PutOptions& options) {
  std::shared_ptr<const cache::CacheReader> quantized_prompt = cache::borrow(whole);
  if (options.quantization) {
    TQC_TRY_ASSIGN(quantized_prompt, quantized(quantized_prompt, *options.quantization));
  }
  const cache::CacheReader& prompt = *quantized_prompt;
  TQC_TRY_ASSIGN(const PutSource source, PutSource::open(prompt));
  TQC_TRY(check_source(source.manifest(), !name.empty()));
  TQC_TRY(check_name(name));
  const Target target{backend_, options_};
  TQC_TRY_ASSIGN(PutReport report, put_prompt(target, source, name, progress, options));
  // Checkpoints have no names.
  if (source.manifest().identity.standing != cache::Standing::kNone) return report;
  TQC_TRY(put_checkpoints(target, prompt, report));
  return report;
}

Result<PutReport> Library::put_file(const ByteSource& file, std::string_view name,
                                    const Progress& progress, const PutOptions& options) {
  TQC_TRY_ASSIGN(const auto reader, format::SectionReader::open(file, options.access));
  return put(reader, name, progress, options);
}

Result<PutReport> Library::put_cache(const cache::Cache& cache, std::string_view name,
                                     const Progress& progress, const PutOptions& options) {
  TQC_TRY(cache::validate(cache));
  return put(*cache::reader_of(cache), name, progress, options);
}

}  // namespace tqcache::store
