// Library::fetch(), fetch_to() and load_prefix().

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/error.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/section_writer.h"
#include "tqcache/reader.h"
#include "tqcache/store.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/chain_layout.h"
#include "tqcache/store/blobs/section_digests.h"
#include "tqcache/tqkv.h"

namespace tqcache::store {

namespace {

// Receives the sections of a prompt in the order of a file. An error ends the fetch.
using SectionSink = std::function<Result<void>(StoredSection section)>;

// At most this many blobs are read at a time, so a record that claims more blobs than the store has
// takes little memory.
constexpr std::size_t kMostBlobsAtOnce = 4096;

// The blobs of a prompt, of its blocks or of its snapshot: those that were read, and the sections
// of the last ones that wait for their turn.
class Lane {
 public:
  const std::vector<std::string>& keys() const { return keys_; }  // that were read
  // The index of the first key that is missing or bad, if any. No later ones are read.
  std::optional<std::size_t> first_lost() const { return lost_; }
  bool is_missing() const { return is_missing_; }  // the first lost one

  bool is_empty() const { return next_ == waiting_.size(); }
  const format::SectionInfo& front() const { return waiting_[next_].info; }
  StoredSection pop() { return std::move(waiting_[next_++]); }

  // Called when it is empty, with blobs that were read together. Their sections up to the first
  // lost one wait now.
  void add(std::span<const std::string> keys, std::span<const Found> found,
           std::span<std::vector<StoredSection>> sections) {
    waiting_.clear();
    next_ = 0;
    const auto is_lost = [](Found each) { return each != Found::kGood; };
    const auto lost = std::ranges::find_if(found, is_lost);
    const auto n_good = static_cast<std::size_t>(lost - found.begin());
    for (auto& some : sections.first(n_good)) std::ranges::move(some, std::back_inserter(waiting_));
    if (lost != found.end()) {
      lost_ = keys_.size() + n_good;
      is_missing_ = *lost == Found::kMissing;
    }
    keys_.insert(keys_.end(), keys.begin(), keys.end());
  }

 private:
  std::vector<std::string> keys_;
  std::optional<std::size_t> lost_;
  bool is_missing_ = false;
  std::vector<StoredSection> waiting_;
  std::size_t next_ = 0;  // of `waiting_`
};

// Reads the blobs of a prefix, some at a time, up to the first one that is lost, and gives their
// sections away.
class Fetch {
 public:
  // The prefix of a record has no tokens. They are read from its blocks, which are identified by
  // the hashes of the chain. `window_bytes`: of blobs that are in memory at a time, about.
  Fetch(Backend& backend, const LibraryOptions& options, const Prefix& prefix,
        std::uint64_t window_bytes)
      : reader_(backend, bad_blobs(options), options.on_warning, options.n_threads),
        prefix_(prefix),
        counts_(prefix.parameters.layers),
        can_be_cut_(store::can_be_cut(prefix.parameters.layers)),
        namespace_(hash_namespace({prefix.parameters.identity, options.salt})),
        root_(hash_root(namespace_, hash_parameters(prefix.parameters))),
        tokens_(prefix.chain.size()),
        media_(prefix.chain.size()),
        ends_(prefix.chain.size()) {
    if (options.verify_digests) digests_.emplace(prefix.parameters.layers);
    const std::uint64_t of_block = block_bytes(prefix.parameters.layers) / counts_.of(1);
    blocks_at_once_ = blobs_in(window_bytes, of_block);
    // What the snapshot says about its size is not relied on.
    const std::uint64_t of_data =
        data_keys().empty() ? 0 : prefix.snapshot->data_bytes / data_keys().size();
    data_at_once_ = blobs_in(window_bytes, std::max(of_data, kBlobBytes));
  }

  // Errors: those of the backend and of `sink`; kInterrupted.
  Result<void> read(const SectionSink& sink, const Progress& progress) {
    while (true) {
      TQC_TRY_ASSIGN(const bool has_read, fill(progress));
      if (lost() && !can_be_cut_) return {};  // nothing is left
      if (has_read) continue;                 // blobs may be without sections
      Lane* const lane = next_lane();
      if (lane == nullptr) return {};
      StoredSection section = lane->pop();
      infos_.push_back(section.info);
      if (lane == &blocks_) ends_[to_size(section.info.block)] = infos_.size();
      TQC_TRY(sink(std::move(section)));
    }
  }

  // The first blob that is missing or bad, if any.
  struct Lost {
    std::string key;
    bool is_missing = false;
    std::size_t blocks_before = 0;  // complete ones
  };
  std::optional<Lost> lost() const {
    if (const auto i = blocks_.first_lost()) {
      return Lost{blocks_.keys()[*i], blocks_.is_missing(), parts_[*i].block};
    }
    if (const auto i = data_.first_lost()) {
      return Lost{data_.keys()[*i], data_.is_missing(), prefix_.chain.size()};
    }
    return std::nullopt;
  }

  // The keys that were read.
  std::vector<std::string> keys() const {
    std::vector<std::string> keys = blocks_.keys();
    keys.insert(keys.end(), data_.keys().begin(), data_.keys().end());
    return keys;
  }
  std::uint64_t blob_bytes() const { return reader_.bytes(); }

  void warn(const std::string& message) const { reader_.warn(message); }

  // The tokens of all blocks.
  std::vector<std::int32_t> block_tokens() const {
    std::vector<std::int32_t> tokens;
    for (const auto& block : tokens_) tokens.insert(tokens.end(), block.begin(), block.end());
    return tokens;
  }

  // The manifest of `prefix`, which may have become shorter, with the first of the sections that
  // were given away.
  // Errors: kMismatch, kCorrupt and others if its parts do not belong together.
  Result<format::Manifest> manifest(const Prefix& prefix) const {
    format::Manifest manifest;
    manifest.identity = prefix.parameters.identity;
    manifest.tokens = prefix.tokens;
    for (std::size_t block = 0; block < prefix.chain.size(); ++block) {
      std::ranges::copy(media_[block], std::back_inserter(manifest.media));
    }
    if (prefix.snapshot) {
      std::ranges::copy(prefix.snapshot->media, std::back_inserter(manifest.media));
    }
    manifest.layers = prefix.parameters.layers;
    if (prefix.snapshot) {
      TQC_TRY_ASSIGN(manifest.layers,
                     join_layers(prefix.parameters.layers, prefix.snapshot->layers));
    }
    manifest.sections = infos_;
    if (!prefix.snapshot) {
      manifest.sections.resize(prefix.chain.empty() ? 0 : ends_[prefix.chain.size() - 1]);
    }
    std::uint64_t end = format::kHeaderBytes;
    for (format::SectionInfo& info : manifest.sections) {
      info.file_offset = format::align_section(end);
      end = info.file_offset + info.stored_bytes;
    }
    TQC_TRY(format::check_contents(manifest));
    TQC_TRY(format::check_sections(manifest, format::align_section(end)));
    manifest.content_name = format::content_name(manifest);
    return manifest;
  }

 private:
  // A part of a block.
  struct Part {
    std::size_t block = 0;
    int part = 0;
  };

  // `of_each`: sections of a blob, which has a description, too.
  static std::size_t blobs_in(std::uint64_t bytes, std::uint64_t of_each) {
    constexpr std::uint64_t kDescription = std::uint64_t{16} << 10;
    return std::clamp<std::uint64_t>(bytes / (of_each + kDescription), 1, kMostBlobsAtOnce);
  }

  std::span<const std::string> data_keys() const {
    if (!prefix_.snapshot) return {};
    return prefix_.snapshot->data_keys;
  }

  // The lane whose first section comes next; null at the end. The tail follows all blocks; sections
  // of windows are among them.
  Lane* next_lane() {
    if (!blocks_.is_empty() && !data_.is_empty()) {
      const bool is_data = !can_be_cut_ && stands_before(data_.front(), blocks_.front());
      return is_data ? &data_ : &blocks_;
    }
    if (!blocks_.is_empty()) return &blocks_;
    return data_.is_empty() || blocks_.first_lost() ? nullptr : &data_;
  }

  // Reads blobs for each empty lane whose turn it may be. False if there are none to be read.
  Result<bool> fill(const Progress& progress) {
    if (lost()) return false;
    const std::span<const Sha256> chain = prefix_.chain;
    std::vector<std::string> keys;
    while (blocks_.is_empty() && next_.block < chain.size() && keys.size() < blocks_at_once_) {
      const auto index = static_cast<std::int64_t>(next_.block);
      keys.push_back(block_key(chain[next_.block], index, next_.part));
      parts_.push_back(next_);
      if (++next_.part == static_cast<int>(counts_.of(index))) next_ = {next_.block + 1, 0};
    }
    const std::size_t n_blocks = keys.size();
    const std::span<const std::string> rest = data_keys().subspan(data_.keys().size());
    if (data_.is_empty() && (!can_be_cut_ || next_.block == chain.size())) {
      const auto some = rest.first(std::min(rest.size(), data_at_once_));
      keys.insert(keys.end(), some.begin(), some.end());
    }
    if (keys.empty()) return false;
    TQC_TRY(read_some(keys, n_blocks, progress));
    return true;
  }

  // The first `n_blocks` keys are those of blocks.
  Result<void> read_some(const std::vector<std::string>& keys, std::size_t n_blocks,
                         const Progress& progress) {
    std::vector<std::vector<StoredSection>> sections(keys.size());
    const std::span<const Part> parts = std::span(parts_).last(n_blocks);
    const auto take = [&](std::size_t i, Content content, std::uint64_t) -> Result<void> {
      TQC_TRY(report_progress(progress, ++n_done_, count_all()));
      return i < n_blocks ? take_block(parts[i], std::move(content), sections[i])
                          : take_data(keys[i], std::move(content), sections[i]);
    };
    ContentCheck compare;
    if (digests_) {
      compare = [this](std::size_t, const Content& content) { return digests_->compare(content); };
    }
    TQC_TRY_ASSIGN(const std::vector<Found> found, reader_.read(keys, take, compare));
    const auto give = [&](Lane& lane, std::size_t first, std::size_t count) {
      if (count == 0) return;
      lane.add(std::span(keys).subspan(first, count), std::span(found).subspan(first, count),
               std::span(sections).subspan(first, count));
    };
    give(blocks_, 0, n_blocks);
    give(data_, n_blocks, keys.size() - n_blocks);
    return {};
  }

  std::size_t count_all() const {
    const std::size_t n_blocks = prefix_.chain.size();
    return data_keys().size() +
           (n_blocks == 0 ? 0 : counts_.of(0) + (n_blocks - 1) * counts_.of(1));
  }

  Result<void> take_block(const Part& part, Content content, std::vector<StoredSection>& sections) {
    TQC_TRY_ASSIGN(Block block, BlobReader::take_kind<Block>(std::move(content)));
    const Sha256& parent = part.block == 0 ? root_ : prefix_.chain[part.block - 1];
    if (block.index != static_cast<std::int64_t>(part.block) || block.part != part.part ||
        block.parent != parent || !has_tokens(part.block, block.tokens)) {
      return mismatch("a block of other tokens");
    }
    TQC_TRY(check_block(prefix_.parameters, block));
    sections = std::move(block.sections);
    tokens_[part.block] = std::move(block.tokens);
    media_[part.block] = std::move(block.media);
    return {};
  }

  // Whether the tokens are those of the prefix, if it has tokens.
  bool has_tokens(std::size_t block, const std::vector<std::int32_t>& tokens) const {
    if (prefix_.tokens.empty()) return true;
    return std::ranges::equal(std::span(prefix_.tokens).subspan(block * kBlockTokens, kBlockTokens),
                              tokens);
  }

  Result<void> take_data(const std::string& key, Content content,
                         std::vector<StoredSection>& sections) {
    TQC_TRY_ASSIGN(Data data, BlobReader::take_kind<Data>(std::move(content)));
    if (data_key(namespace_, data_content(data.sections)) != key) {
      return mismatch("data that does not belong to the key");
    }
    sections = std::move(data.sections);
    return {};
  }

  BlobReader reader_;
  std::optional<SectionDigests> digests_;
  const Prefix& prefix_;
  PartCounts counts_;
  bool can_be_cut_;
  Sha256 namespace_, root_;
  std::size_t blocks_at_once_ = 0, data_at_once_ = 0;  // blobs
  std::size_t n_done_ = 0;
  Lane blocks_, data_;
  Part next_;                                      // to be read
  std::vector<Part> parts_;                        // by key of `blocks_`
  std::vector<std::vector<std::int32_t>> tokens_;  // by block
  std::vector<std::vector<cache::MediaSpan>> media_;
  std::vector<format::SectionInfo> infos_;  // of the sections that were given away
  std::vector<std::size_t> ends_;           // of the sections of a block, in `infos_`
};

// Shortens a prefix to `n_blocks` token blocks, or to length 0 if it cannot be truncated.
void shorten(Prefix& prefix, std::size_t n_blocks) {
  if (!can_be_cut(prefix.parameters.layers)) n_blocks = 0;
  prefix.chain.resize(n_blocks);
  prefix.tokens.resize(n_blocks * kBlockTokens);
  prefix.n_tokens = std::ssize(prefix.tokens);
  prefix.n_common = std::min(prefix.n_common, prefix.n_tokens);
  prefix.snapshot.reset();
  prefix.state_key.clear();
}

void touch(Backend& backend, const Fetch& fetch, const Prefix& prefix, const std::string& key) {
  std::vector<std::string> keys;
  if (!key.empty()) keys.push_back(key);
  if (!prefix.state_key.empty()) keys.push_back(prefix.state_key);
  if (backend.touches_cheaply()) {
    keys.push_back(prefix.parameters_key);
    std::ranges::move(fetch.keys(), std::back_inserter(keys));
  }
  // A failed touch is not an error of the fetch.
  if (auto done = backend.touch(keys); !done) fetch.warn(done.error().message);
}

// The possible keys of the parameters of a record, its own slot first.
std::vector<std::string> parameters_keys(const PromptRecord& record) {
  std::vector<std::string> keys{record.parameters_key};
  if (record.chain.empty()) return keys;  // without a chain, other parameters cannot be recognized
  const std::string stem = record.parameters_key.substr(0, record.parameters_key.rfind('/') + 1);
  for (int slot = 0; slot < kCandidateSlots; ++slot) {
    if (const std::string key = stem + std::to_string(slot); key != record.parameters_key) {
      keys.push_back(key);
    }
  }
  return keys;
}

bool is_chain_of(const PromptRecord& record, const Parameters& parameters,
                 const std::string& salt) {
  const Sha256 name_space = hash_namespace({parameters.identity, salt});
  const Sha256 root = hash_root(name_space, hash_parameters(parameters));
  return record.chain.empty() ||
         hash_chain(root, parameters.tokens) == std::vector{record.chain[0]};
}

Error lost_error(const std::string& key, bool is_missing) {
  return {is_missing ? ErrorCode::kNotFound : ErrorCode::kCorrupt,
          key + (is_missing ? ": missing" : ": damaged")};
}

// A prompt whose sections went to a sink.
struct Fetched {
  format::Manifest manifest;
  std::uint64_t blob_bytes = 0;
};

struct Store {
  Backend& backend;
  const LibraryOptions& options;
  std::uint64_t window_bytes = 0;  // of Fetch
};

// nullopt: no prefix is left. The sink may have received more sections than the prefix has.
Result<std::optional<Fetched>> fetch_prefix(const Store& store, Prefix& prefix,
                                            const SectionSink& sink, const Progress& progress) {
  const auto nothing = [] { return std::optional<Fetched>(); };
  if (prefix.n_tokens == 0) return nothing();
  const Prefix wanted = prefix;
  Fetch fetch(store.backend, store.options, wanted, store.window_bytes);
  TQC_TRY(fetch.read(sink, progress));
  if (const auto lost = fetch.lost()) {
    if (lost->is_missing) fetch.warn(lost->key + ": no longer there");
    shorten(prefix, lost->blocks_before);
    if (prefix.n_tokens == 0) return nothing();
  }
  auto manifest = fetch.manifest(prefix);
  if (!manifest && prefix.snapshot) {
    fetch.warn(prefix.state_key + ": " + manifest.error().message);
    shorten(prefix, prefix.chain.size());
    if (prefix.n_tokens == 0) return nothing();
    manifest = fetch.manifest(prefix);
  }
  if (!manifest) {
    fetch.warn(prefix.parameters_key + ": " + manifest.error().message);
    shorten(prefix, 0);
    return nothing();
  }
  touch(store.backend, fetch, prefix, {});
  return std::optional(Fetched{std::move(manifest).value(), fetch.blob_bytes()});
}

Result<Fetched> fetch_record(const Store& store, const PromptRecord& record,
                             const SectionSink& sink, const Progress& progress) {
  const LibraryOptions& options = store.options;
  BlobReader reader(store.backend, bad_blobs(options), options.on_warning);
  Prefix prefix;
  prefix.n_tokens = record.snapshot.n_tokens;
  prefix.chain = record.chain;
  prefix.snapshot = record.snapshot;
  prefix.state_key = record.state_key;
  for (const std::string& key : parameters_keys(record)) {
    TQC_TRY_ASSIGN(auto parameters, reader.read_one<Parameters>(key));
    if (!parameters || !is_chain_of(record, *parameters, options.salt)) continue;
    prefix.parameters_key = key;
    prefix.parameters = *std::move(parameters);
    break;
  }
  if (prefix.parameters_key.empty()) return lost_error(record.parameters_key, true);
  TQC_TRY(check_blob_count(record, PartCounts(prefix.parameters.layers)));

  Fetch fetch(store.backend, options, prefix, store.window_bytes);
  TQC_TRY(fetch.read(sink, progress));
  if (const auto lost = fetch.lost()) return lost_error(lost->key, lost->is_missing);
  Prefix whole = prefix;
  whole.tokens = fetch.block_tokens();
  whole.tokens.insert(whole.tokens.end(), record.snapshot.tail.begin(), record.snapshot.tail.end());
  TQC_TRY_ASSIGN(format::Manifest manifest, fetch.manifest(whole));
  if (manifest.content_name != record.snapshot.content_name) {
    return corrupt("its blocks were replaced by others with other values");
  }
  touch(store.backend, fetch, prefix, record_key(options.salt, record.name));
  return Fetched{std::move(manifest), fetch.blob_bytes()};
}

// A prompt in memory.
class InMemory {
 public:
  SectionSink sink() {
    return [this](StoredSection section) -> Result<void> {
      stored_.push_back(std::move(section.stored));
      return {};
    };
  }
  Result<std::unique_ptr<StoredPrompt>> finish(Fetched fetched, const MemoryBudget& memory) && {
    TQC_TRY(format::check_memory(fetched.manifest, memory));
    stored_.resize(fetched.manifest.sections.size());
    return std::make_unique<StoredPrompt>(std::move(fetched.manifest), std::move(stored_),
                                          fetched.blob_bytes);
  }

 private:
  std::vector<SharedBytes> stored_;
};

// A prompt in a file.
class InFile {
 public:
  static Result<InFile> begin(AtomicFile& file, const KeyRing& keys) {
    TQC_TRY_ASSIGN(auto writer, format::StoredSectionWriter::begin(file, keys));
    return InFile(std::move(writer));
  }
  SectionSink sink() {
    return [this](const StoredSection& section) {
      return writer_.add(section.info, section.stored.view());
    };
  }
  Result<WrittenPrompt> finish(Fetched fetched) && {
    WrittenPrompt written{std::move(fetched.manifest), fetched.blob_bytes};
    TQC_TRY(writer_.finish(written.manifest));
    return written;
  }

 private:
  explicit InFile(format::StoredSectionWriter writer) : writer_(std::move(writer)) {}
  format::StoredSectionWriter writer_;
};

// Whatever is fetched stays in memory: only the number of blobs is limited.
constexpr std::uint64_t kNoWindow = ~std::uint64_t{0};

}  // namespace

Result<std::unique_ptr<StoredPrompt>> Library::fetch(Prefix& prefix, const Progress& progress) {
  InMemory memory;
  TQC_TRY_ASSIGN(auto fetched,
                 fetch_prefix({backend_, options_, kNoWindow}, prefix, memory.sink(), progress));
  if (!fetched) return std::unique_ptr<StoredPrompt>();
  return std::move(memory).finish(*std::move(fetched), options_.memory);
}

Result<std::unique_ptr<StoredPrompt>> Library::fetch(const PromptRecord& record,
                                                     const Progress& progress) {
  InMemory memory;
  TQC_TRY_ASSIGN(Fetched fetched,
                 fetch_record({backend_, options_, kNoWindow}, record, memory.sink(), progress));
  return std::move(memory).finish(std::move(fetched), options_.memory);
}

Result<std::optional<WrittenPrompt>> Library::fetch_to(AtomicFile& file, Prefix& prefix,
                                                       const KeyRing& keys,
                                                       const Progress& progress) {
  TQC_TRY_ASSIGN(InFile target, InFile::begin(file, keys));
  const Store store{backend_, options_, options_.window_bytes};
  TQC_TRY_ASSIGN(auto fetched, fetch_prefix(store, prefix, target.sink(), progress));
  if (!fetched) return std::optional<WrittenPrompt>();
  TQC_TRY_ASSIGN(WrittenPrompt written, std::move(target).finish(*std::move(fetched)));
  return std::optional(std::move(written));
}

Result<WrittenPrompt> Library::fetch_to(AtomicFile& file, const PromptRecord& record,
                                        const KeyRing& keys, const Progress& progress) {
  TQC_TRY_ASSIGN(InFile target, InFile::begin(file, keys));
  const Store store{backend_, options_, options_.window_bytes};
  TQC_TRY_ASSIGN(Fetched fetched, fetch_record(store, record, target.sink(), progress));
  return std::move(target).finish(std::move(fetched));
}

namespace {

using cache::kTokenBlock;

std::int64_t count(const std::vector<Sha256>& chain) {
  return static_cast<std::int64_t>(chain.size());
}

// Drops the snapshot of a cache that can be truncated: the model reads the tokens after the last
// block.
void end_with_block(Prefix& prefix) {
  if (!prefix.snapshot || !can_be_cut(prefix.parameters.layers)) return;
  prefix.snapshot.reset();
  prefix.state_key.clear();
  prefix.n_tokens = prefix.n_common = count(prefix.chain) * kTokenBlock;
  prefix.tokens.resize(static_cast<std::size_t>(prefix.n_tokens));
}

struct FetchedPrefix {
  Prefix prefix;
  std::unique_ptr<StoredPrompt> stored;  // null: not found
};

Result<FetchedPrefix> find_and_fetch(Library& library, const cache::Identity& identity,
                                     std::span<const std::int32_t> tokens,
                                     const FindOptions& options, const Progress& progress) {
  FetchedPrefix fetched;
  TQC_TRY_ASSIGN(fetched.prefix, library.find(identity, tokens, options));
  end_with_block(fetched.prefix);
  if (fetched.prefix.n_tokens == 0) return fetched;
  if (options.accept) TQC_TRY(options.accept(fetched.prefix.parameters.layers));
  TQC_TRY_ASSIGN(fetched.stored, library.fetch(fetched.prefix, progress));
  return fetched;
}

}  // namespace

std::vector<std::string> blob_names(const Prefix& prefix) {
  std::vector<std::string> names = {prefix.parameters_key};
  for (std::size_t i = 0; i < prefix.chain.size(); ++i) {
    names.push_back(block_name(prefix.chain[i], static_cast<std::int64_t>(i)));
  }
  if (!prefix.state_key.empty()) names.push_back(prefix.state_key);
  if (prefix.snapshot) {
    names.insert(names.end(), prefix.snapshot->data_keys.begin(), prefix.snapshot->data_keys.end());
  }
  return names;
}

Result<std::optional<LoadedPrefix>> load_prefix(Library& library, const cache::Identity& identity,
                                                std::span<const std::int32_t> tokens,
                                                const FindOptions& options, unsigned n_threads,
                                                const Progress& progress) {
  TQC_TRY_ASSIGN(FetchedPrefix fetched,
                 find_and_fetch(library, identity, tokens, options, progress));
  const bool lost = !fetched.stored && !fetched.prefix.parameters.layers.empty();
  // Data of a snapshot was lost. A second search may find a complete shorter prefix.
  if (lost) {
    TQC_TRY_ASSIGN(fetched, find_and_fetch(library, identity, tokens, options, progress));
  }
  if (!fetched.stored) return std::optional<LoadedPrefix>();
  LoadedPrefix loaded;
  TQC_TRY_ASSIGN(loaded.cache, cache::load(*fetched.stored, {library.memory(), n_threads}));
  const std::vector<std::int32_t>& found = loaded.cache.tokens;
  if (found.size() >= tokens.size() || !std::ranges::equal(found, tokens.first(found.size()))) {
    return corrupt("the store's tokens are not those of the prompt");
  }
  loaded.n_blocks = count(fetched.prefix.chain);
  loaded.blobs = blob_names(fetched.prefix);
  loaded.parameters = std::move(fetched.prefix.parameters);
  loaded.read_bytes = fetched.stored->blob_bytes();
  return std::optional<LoadedPrefix>(std::move(loaded));
}

}  // namespace tqcache::store
