// Library::put_file() and put_cache().

#include <algorithm>
#include <string>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/base/threads.h"
#include "tqcache/format/content_name.h"
#include "tqcache/store/backends/backend_support.h"
#include "tqcache/store/blobs/blob_format.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/chain_layout.h"
#include "tqcache/store/library/chain_writer.h"
#include "tqcache/store/library/library.h"
#include "tqcache/store/library/put_source.h"

namespace tqcache::store {
namespace {

// How often blocks that the engine dropped meanwhile are put again.
constexpr int kMaxAttempts = 3;

// Sections on their way to the store hold no more than this, before compression.
constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 20;

bool is_zero(const Sha256& digest) { return digest == Sha256{}; }

Result<void> check_source(const format::Manifest& manifest) {
  if (manifest.hidden_tokens) {
    return Error{ErrorCode::kUnsupported, "its tokens are hidden, and a store finds by tokens"};
  }
  const cache::Identity& identity = manifest.identity;
  if (identity.architecture.empty() || is_zero(identity.weights_fingerprint)) {
    return Error{ErrorCode::kUnsupported, "of unknown origin: no model would find it"};
  }
  if (manifest.tokens.empty()) return Error{ErrorCode::kInvalidArgument, "it holds no tokens"};
  return {};
}

Result<void> check_name(std::string_view name) {
  if (name.size() <= kMaxNameBytes) return {};
  return Error{ErrorCode::kInvalidArgument, "a name of " + std::to_string(name.size()) +
                                                " bytes, at most " + std::to_string(kMaxNameBytes) +
                                                " are allowed"};
}

Error taken(std::string_view name) {
  return {ErrorCode::kInvalidArgument, "another prompt has the name " + in_quotes(name)};
}

// Puts everything of a prompt but its record.
class Putter {
 public:
  Putter(Backend& backend, const LibraryOptions& options, const PutSource& source, bool is_named)
      : backend_(backend),
        options_(options),
        source_(source),
        manifest_(source.manifest()),
        is_named_(is_named),
        n_final_(static_cast<std::size_t>(final_blocks(manifest_.n_tokens()))),
        places_(place_sections(manifest_)),
        infos_(manifest_.sections) {}

  Result<void> put(const Progress& progress) {
    const Tokens tokens = manifest_.tokens;
    Parameters parameters{manifest_.identity, {}, manifest_.layers};
    parameters.tokens.assign(
        tokens.begin(),
        tokens.begin() + std::ssize(tokens.first(std::min(kBlockTokens, tokens.size()))));
    TQC_TRY_ASSIGN(
        ChainWriter writer,
        ChainWriter::open(backend_, options_.salt, std::move(parameters), options_.on_trouble));
    TQC_TRY(look_around(writer));
    TQC_TRY(put_blocks(writer, progress));
    TQC_TRY(put_state(writer));
    parameters_key_ = writer.parameters_key();
    chain_ = writer.chain();
    new_blocks_ += writer.new_blocks();
    new_bytes_ += writer.new_bytes();
    bytes_ = writer.bytes();
    return {};
  }

  // Whether all that was put or found is there at this moment.
  Result<bool> is_complete() {
    std::vector<std::string> keys = flatten(keys_);
    keys.push_back(parameters_key_);
    if (!state_key_.empty()) keys.push_back(state_key_);
    keys.insert(keys.end(), state_.data_keys.begin(), state_.data_keys.end());
    // Until the record says that they are needed, nothing but this keeps them from gc.
    if (backend_.touches_cheaply()) TQC_TRY(backend_.touch(keys));
    TQC_TRY_ASSIGN(const std::vector<bool> there, backend_.exists(keys));
    return std::ranges::find(there, false) == there.end();
  }

  Record record(std::string_view name, std::int64_t created) const {
    Record record;
    record.name = name;
    record.model_name = manifest_.identity.model_name;
    record.architecture = manifest_.identity.architecture;
    record.parameters_key = parameters_key_;
    record.chain = chain_;
    record.state = state_;
    record.state_key = state_key_;
    record.created = created;
    record.bytes = bytes_;
    return record;
  }

  PutReport report() const {
    PutReport report;
    report.n_tokens = manifest_.n_tokens();
    report.blocks = static_cast<std::int64_t>(n_final_);
    report.new_blocks = new_blocks_;
    report.other_blocks = other_blocks_;
    report.bytes = bytes_;
    report.new_bytes = new_bytes_;
    report.content_name = state_.content_name;
    return report;
  }

 private:
  using Tokens = std::span<const std::int32_t>;
  using Infos = std::vector<format::SectionInfo>;
  using Numbers = std::vector<std::size_t>;  // of sections

  Tokens final_tokens() const { return Tokens(manifest_.tokens).first(n_final_ * kBlockTokens); }
  Tokens block_tokens(std::size_t block) const {
    return Tokens(manifest_.tokens).subspan(block * kBlockTokens, kBlockTokens);
  }

  // Finds out which blocks are there. With a name they have to be whole, and what they hold counts;
  // what is used is told to the engine, so that nobody removes it as old meanwhile.
  Result<void> look_around(ChainWriter& writer) {
    keys_ = writer.keys(final_tokens());
    TQC_TRY_ASSIGN(has_, writer.has(final_tokens()));
    known_.assign(n_final_, {});
    known_bytes_.assign(n_final_, 0);
    std::vector<std::string> keys;
    std::vector<std::size_t> blocks;
    for (std::size_t block = 0; block < n_final_; ++block) {
      if (!has_[block]) continue;
      keys.insert(keys.end(), keys_[block].begin(), keys_[block].end());
      blocks.resize(keys.size(), block);
    }
    TQC_TRY(backend_.touch(keys));
    if (!is_named_) return {};
    return read_known(keys, blocks);
  }

  Result<void> read_known(const std::vector<std::string>& keys,
                          const std::vector<std::size_t>& blocks) {
    const Parameters parameters{manifest_.identity, {}, manifest_.layers};
    BlobReader reader(backend_, options_.on_trouble, options_.n_threads);
    std::vector<Infos> infos(keys.size());
    const auto take = [&](std::size_t i, Content content, std::uint64_t bytes) -> Result<void> {
      TQC_TRY_ASSIGN(const Block block, BlobReader::take_kind<Block>(std::move(content)));
      TQC_TRY(check_block(parameters, block));
      for (const StoredSection& section : block.sections) infos[i].push_back(section.info);
      known_bytes_[blocks[i]] += bytes;
      return {};
    };
    TQC_TRY_ASSIGN(const std::vector<Found> found, reader.read(keys, take));
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] != Found::kGood) has_[blocks[i]] = false;
      Infos& known = known_[blocks[i]];
      known.insert(known.end(), infos[i].begin(), infos[i].end());
    }
    return {};
  }

  Result<void> put_blocks(ChainWriter& writer, const Progress& progress) {
    std::vector<std::vector<StoredSection>> slots(slot_count(options_.n_threads));
    other_blocks_ = 0;
    const auto make = [&](std::size_t block, std::size_t slot) -> Result<void> {
      if (!has_[block]) return make_sections(places_.blocks[block], slots[slot]);
      return is_named_ ? make_digests(places_.blocks[block]) : Result<void>();
    };
    const auto take = [&](std::size_t block, std::size_t slot) -> Result<void> {
      TQC_TRY(put_block(writer, block, std::exchange(slots[slot], {})));
      if (!progress || progress(block + 1, n_final_)) return {};
      return interrupted_error();
    };
    TQC_TRY(run_in_order({.count = n_final_,
                          .make = make,
                          .take = take,
                          .bytes = [&](std::size_t) { return block_bytes(manifest_.layers); },
                          .window_bytes = kWindowBytes},
                         options_.n_threads));
    return writer.flush();
  }

  // The sections of these numbers.
  Result<void> make_sections(const Numbers& numbers, std::vector<StoredSection>& sections) const {
    sections.clear();
    for (const std::size_t i : numbers) {
      TQC_TRY_ASSIGN(StoredSection section, source_.section(i));
      sections.push_back(std::move(section));
    }
    return {};
  }

  // All that has to be known of sections that are there.
  Result<void> make_digests(const Numbers& numbers) {
    for (const std::size_t i : numbers) {
      TQC_TRY_ASSIGN(infos_[i].raw_sha256, source_.digest(i));
    }
    return {};
  }

  Result<void> put_block(ChainWriter& writer, std::size_t block,
                         std::vector<StoredSection> sections) {
    note_infos(places_.blocks[block], sections);
    if (!has_[block]) return writer.put_block(block_tokens(block), std::move(sections));
    writer.pass(block_tokens(block), known_bytes_[block]);
    if (is_named_) take_known(places_.blocks[block], known_[block]);
    return {};
  }

  void note_infos(const Numbers& numbers, const std::vector<StoredSection>& sections) {
    for (std::size_t i = 0; i < sections.size(); ++i) infos_[numbers[i]] = sections[i].info;
  }

  // What is there counts, whatever was to be put.
  void take_known(const Numbers& numbers, const Infos& known) {
    bool is_same = true;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      format::SectionInfo& ours = infos_[numbers[i]];
      is_same = is_same && ours.raw_sha256 == known[i].raw_sha256;
      ours = known[i];
    }
    if (!is_same) ++other_blocks_;
  }

  Result<void> put_state(ChainWriter& writer) {
    std::vector<StoredSection> sections;
    TQC_TRY(make_sections(places_.state, sections));
    note_infos(places_.state, sections);
    const Tokens tail = Tokens(manifest_.tokens).subspan(n_final_ * kBlockTokens);
    state_ = {};
    state_.n_tokens = manifest_.n_tokens();
    state_.tail.assign(tail.begin(), tail.end());
    state_.layers = bare_layers(manifest_.layers);
    if (is_named_) state_.content_name = name_of_content();
    if (n_final_ == 0)
      return is_named_ ? writer.put_data(state_, std::move(sections)) : Result<void>();
    TQC_TRY_ASSIGN(state_key_, writer.put_state(state_, std::move(sections)));
    return {};
  }

  Sha256 name_of_content() const {
    format::Manifest manifest;
    manifest.identity = manifest_.identity;
    manifest.tokens = manifest_.tokens;
    manifest.layers = manifest_.layers;
    manifest.sections = infos_;
    return format::content_name(manifest);
  }

  Backend& backend_;
  const LibraryOptions& options_;
  const PutSource& source_;
  const format::Manifest& manifest_;
  bool is_named_;
  std::size_t n_final_;
  SectionPlaces places_;
  Infos infos_;  // of what the store has in the end

  std::vector<std::vector<std::string>> keys_;  // [block][part]
  std::vector<bool> has_;                       // by block: no need to put it
  std::vector<Infos> known_;                    // by block: what is there
  std::vector<std::uint64_t> known_bytes_;
  std::string parameters_key_, state_key_;
  std::vector<Sha256> chain_;
  State state_;
  std::int64_t new_blocks_ = 0, other_blocks_ = 0;
  std::uint64_t bytes_ = 0, new_bytes_ = 0;
};

// Puts all that the record needs, until it is there.
Result<void> put_all(Putter& putter, const Progress& progress) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    TQC_TRY(putter.put(progress));
    TQC_TRY_ASSIGN(const bool is_complete, putter.is_complete());
    if (is_complete) return {};
  }
  return Error{ErrorCode::kTooLarge, "the store drops blocks as they are put"};
}

// Puts one prompt under one name.
class NamedPut {
 public:
  NamedPut(Library& library, Backend& backend, const LibraryOptions& options, std::string_view name)
      : library_(library), backend_(backend), name_(name), key_(record_key(options.salt, name)) {}

  // Before the work: whether it can be the same prompt, if the name stands for one.
  Result<void> look_up(const format::Manifest& manifest, bool replace) {
    TQC_TRY_ASSIGN(old_, library_.record(name_));
    if (!old_ || replace) return {};
    const State& state = old_->state;
    const bool may_be =
        state.n_tokens == manifest.n_tokens() &&
        std::ranges::equal(state.tail, std::span(manifest.tokens).last(state.tail.size()));
    return may_be ? Result<void>() : taken(name_);
  }

  Result<void> write(const Record& record, bool replace) {
    if (old_ && is_same(*old_, record)) return {};
    if (old_ && !replace) return taken(name_);
    if (old_) TQC_TRY(backend_.remove(key_));
    TQC_TRY_ASSIGN(const Bytes blob, encode_blob(key_, Content(record)));
    TQC_TRY_ASSIGN(const PutOutcome outcome, backend_.put(key_, blob));
    if (outcome == PutOutcome::kStored) return {};
    TQC_TRY_ASSIGN(const std::optional<Record> other, library_.record(name_));
    return other && is_same(*other, record) ? Result<void>() : taken(name_);
  }

  const std::string& key() const { return key_; }

 private:
  static bool is_same(const Record& a, const Record& b) {
    return a.chain == b.chain && a.parameters_key == b.parameters_key &&
           a.state.content_name == b.state.content_name && a.state.data_keys == b.state.data_keys;
  }

  Library& library_;
  Backend& backend_;
  std::string name_, key_;
  std::optional<Record> old_;
};

struct Target {
  Library& library;
  Backend& backend;
  const LibraryOptions& options;
};

Result<PutReport> put_prompt(const Target& target, const PutSource& source, std::string_view name,
                             const Progress& progress, const PutOptions& options) {
  TQC_TRY(check_source(source.manifest()));
  TQC_TRY(check_name(name));
  Putter putter(target.backend, target.options, source, !name.empty());
  if (name.empty()) {
    TQC_TRY(putter.put(progress));
    return putter.report();
  }
  NamedPut named(target.library, target.backend, target.options, name);
  TQC_TRY(named.look_up(source.manifest(), options.replace));
  TQC_TRY(put_all(putter, progress));
  TQC_TRY(named.write(putter.record(name, options.created), options.replace));
  PutReport report = putter.report();
  report.key = named.key();
  return report;
}

}  // namespace

Result<PutReport> Library::put_file(const ByteSource& file, std::string_view name,
                                    const Progress& progress, const PutOptions& options) {
  TQC_TRY_ASSIGN(const FileSource source, FileSource::open(file));
  return put_prompt({*this, backend_, options_}, source, name, progress, options);
}

Result<PutReport> Library::put_cache(const cache::Cache& cache, std::string_view name,
                                     const Progress& progress, const PutOptions& options) {
  TQC_TRY_ASSIGN(const CacheSource source, CacheSource::open(cache));
  return put_prompt({*this, backend_, options_}, source, name, progress, options);
}

}  // namespace tqcache::store
