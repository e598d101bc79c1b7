// Library::fetch() and load_prefix().

#include <algorithm>
#include <memory>
#include <utility>

#include "tqcache/error.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/reader.h"
#include "tqcache/store.h"
#include "tqcache/store/blobs/blob_io.h"
#include "tqcache/store/blobs/chain_layout.h"
#include "tqcache/store/blobs/section_digests.h"
#include "tqcache/tqkv.h"

namespace tqcache::store {

namespace {

// A part of a block.
struct Part {
  std::size_t block = 0;
  int part = 0;
};

// The sections of a prompt, in the order of a file.
struct Contents {
  format::Manifest manifest;
  std::vector<StoredSection> sections = {};

  void add(const std::vector<StoredSection>& some) {
    sections.insert(sections.end(), some.begin(), some.end());
  }

  Result<std::unique_ptr<StoredPrompt>> check(std::uint64_t blob_bytes) && {
    // Sections of quantized windows go between those of blocks.
    std::ranges::stable_sort(sections, stands_before, &StoredSection::info);
    std::vector<SharedBytes> stored;
    std::uint64_t end = format::kHeaderBytes;
    for (StoredSection& section : sections) {
      format::SectionInfo& info = manifest.sections.emplace_back(section.info);
      info.file_offset = format::align_section(end);
      end = info.file_offset + info.stored_bytes;
      stored.push_back(std::move(section.stored));
    }
    TQC_TRY(format::check_contents(manifest));
    TQC_TRY(format::check_sections(manifest, format::align_section(end)));
    manifest.content_name = format::content_name(manifest);
    return std::make_unique<StoredPrompt>(std::move(manifest), std::move(stored), blob_bytes);
  }
};

// Reads the blobs of a prefix, some thousand at a time, up to the first one that is lost. So a
// record that claims more blobs than the store has takes little memory.
class Fetch {
 public:
  // The prefix of a record has no tokens. They are read from its blocks, which are identified by
  // the hashes of the chain.
  Fetch(Backend& backend, const LibraryOptions& options, const Prefix& prefix)
      : reader_(backend, bad_blobs(options), options.on_warning, options.n_threads),
        prefix_(prefix),
        counts_(prefix.parameters.layers),
        namespace_(hash_namespace({prefix.parameters.identity, options.salt})),
        root_(hash_root(namespace_, hash_parameters(prefix.parameters))),
        tokens_(prefix.chain.size()) {
    if (options.verify_digests) digests_.emplace(prefix.parameters.layers);
  }

  // The keys that were read, in the order of a file.
  const std::vector<std::string>& keys() const { return keys_; }

  // Errors: those of the backend; kInterrupted.
  Result<void> read(const Progress& progress) {
    constexpr std::size_t kKeysAtOnce = 4096;
    const std::span<const Sha256> chain = prefix_.chain;
    const std::size_t n_blocks_at_once = kKeysAtOnce / counts_.of(1) + 1;
    std::size_t block = 0;
    do {
      const std::size_t n_blocks = std::min(chain.size() - block, n_blocks_at_once);
      const auto keys =
          block_keys(counts_, static_cast<std::int64_t>(block), chain.subspan(block, n_blocks));
      for (const auto& parts : keys) {
        for (int part = 0; part < std::ssize(parts); ++part) parts_.push_back({block, part});
        ++block;
      }
      std::vector<std::string> all = flatten(keys);
      if (block == chain.size() && prefix_.snapshot) {
        const std::vector<std::string>& data = prefix_.snapshot->data_keys;
        all.insert(all.end(), data.begin(), data.end());
      }
      TQC_TRY(read_some(all, progress));
    } while (block < chain.size() && !first_lost());
    return {};
  }

  // The index of the first key that is missing or bad, if any. No later ones are read.
  std::optional<std::size_t> first_lost() const {
    const auto lost = std::ranges::find_if(found_, [](Found f) { return f != Found::kGood; });
    if (lost == found_.end()) return std::nullopt;
    return static_cast<std::size_t>(lost - found_.begin());
  }
  bool is_missing(std::size_t i) const { return found_[i] == Found::kMissing; }
  // The number of complete blocks before that lost key.
  std::size_t blocks_before(std::size_t lost) const {
    return lost < parts_.size() ? parts_[lost].block : prefix_.chain.size();
  }

  void warn(const std::string& message) const { reader_.warn(message); }

  // The tokens of all blocks.
  std::vector<std::int32_t> block_tokens() const {
    std::vector<std::int32_t> tokens;
    for (const auto& block : tokens_) tokens.insert(tokens.end(), block.begin(), block.end());
    return tokens;
  }

  // The prompt of `prefix`, which may have become shorter.
  // Errors: kMismatch, kCorrupt and others if its parts do not belong together.
  Result<std::unique_ptr<StoredPrompt>> assemble(const Prefix& prefix) const {
    Contents contents;
    contents.manifest.identity = prefix.parameters.identity;
    contents.manifest.tokens = prefix.tokens;
    contents.manifest.layers = prefix.parameters.layers;
    if (prefix.snapshot) {
      TQC_TRY_ASSIGN(contents.manifest.layers,
                     join_layers(prefix.parameters.layers, prefix.snapshot->layers));
    }
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      const bool is_data = i >= parts_.size();
      if (is_data ? prefix.snapshot.has_value() : parts_[i].block < prefix.chain.size()) {
        contents.add(sections_[i]);
      }
    }
    return std::move(contents).check(reader_.bytes());
  }

 private:
  Result<void> read_some(const std::vector<std::string>& keys, const Progress& progress) {
    const std::size_t first = keys_.size();
    keys_.insert(keys_.end(), keys.begin(), keys.end());
    sections_.resize(keys_.size());
    const auto take = [&](std::size_t i, Content content, std::uint64_t) -> Result<void> {
      TQC_TRY(report_progress(progress, ++n_done_, count_all()));
      const std::size_t at = first + i;
      return at < parts_.size() ? take_block(at, std::move(content))
                                : take_data(at, std::move(content));
    };
    ContentCheck compare;
    if (digests_) {
      compare = [this](std::size_t, const Content& content) { return digests_->compare(content); };
    }
    TQC_TRY_ASSIGN(const std::vector<Found> found, reader_.read(keys, take, compare));
    found_.insert(found_.end(), found.begin(), found.end());
    return {};
  }

  std::size_t count_all() const {
    const std::size_t n_blocks = prefix_.chain.size();
    const std::size_t n_data = prefix_.snapshot ? prefix_.snapshot->data_keys.size() : 0;
    return n_data + (n_blocks == 0 ? 0 : counts_.of(0) + (n_blocks - 1) * counts_.of(1));
  }

  Result<void> take_block(std::size_t i, Content content) {
    TQC_TRY_ASSIGN(Block block, BlobReader::take_kind<Block>(std::move(content)));
    const Part& part = parts_[i];
    const Sha256& parent = part.block == 0 ? root_ : prefix_.chain[part.block - 1];
    if (block.index != static_cast<std::int64_t>(part.block) || block.part != part.part ||
        block.parent != parent || !has_tokens(part.block, block.tokens)) {
      return mismatch("a block of other tokens");
    }
    TQC_TRY(check_block(prefix_.parameters, block));
    sections_[i] = std::move(block.sections);
    tokens_[part.block] = std::move(block.tokens);
    return {};
  }

  // Whether the tokens are those of the prefix, if it has tokens.
  bool has_tokens(std::size_t block, const std::vector<std::int32_t>& tokens) const {
    if (prefix_.tokens.empty()) return true;
    return std::ranges::equal(std::span(prefix_.tokens).subspan(block * kBlockTokens, kBlockTokens),
                              tokens);
  }

  Result<void> take_data(std::size_t i, Content content) {
    TQC_TRY_ASSIGN(Data data, BlobReader::take_kind<Data>(std::move(content)));
    if (data_key(namespace_, data_content(data.sections)) != keys_[i]) {
      return mismatch("data that does not belong to the key");
    }
    sections_[i] = std::move(data.sections);
    return {};
  }

  BlobReader reader_;
  std::optional<SectionDigests> digests_;
  const Prefix& prefix_;
  PartCounts counts_;
  Sha256 namespace_, root_;
  std::size_t n_done_ = 0;
  std::vector<std::string> keys_;  // of block parts, then of data
  std::vector<Part> parts_;
  std::vector<Found> found_;
  std::vector<std::vector<StoredSection>> sections_;  // by key
  std::vector<std::vector<std::int32_t>> tokens_;     // by block
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
    keys.insert(keys.end(), fetch.keys().begin(), fetch.keys().end());
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

Error lost(const std::string& key, bool is_missing) {
  return {is_missing ? ErrorCode::kNotFound : ErrorCode::kCorrupt,
          key + (is_missing ? ": missing" : ": damaged")};
}

}  // namespace

Result<std::unique_ptr<StoredPrompt>> Library::fetch(Prefix& prefix, const Progress& progress) {
  if (prefix.n_tokens == 0) return std::unique_ptr<StoredPrompt>();
  const Prefix wanted = prefix;
  Fetch fetch(backend_, options_, wanted);
  TQC_TRY(fetch.read(progress));
  if (const auto lost = fetch.first_lost()) {
    if (fetch.is_missing(*lost)) fetch.warn(fetch.keys()[*lost] + ": no longer there");
    shorten(prefix, fetch.blocks_before(*lost));
    if (prefix.n_tokens == 0) return std::unique_ptr<StoredPrompt>();
  }
  auto prompt = fetch.assemble(prefix);
  if (!prompt && prefix.snapshot) {
    fetch.warn(prefix.state_key + ": " + prompt.error().message);
    shorten(prefix, prefix.chain.size());
    if (prefix.n_tokens == 0) return std::unique_ptr<StoredPrompt>();
    prompt = fetch.assemble(prefix);
  }
  if (!prompt) {
    fetch.warn(prefix.parameters_key + ": " + prompt.error().message);
    shorten(prefix, 0);
    return std::unique_ptr<StoredPrompt>();
  }
  touch(backend_, fetch, prefix, {});
  return prompt;
}

Result<std::unique_ptr<StoredPrompt>> Library::fetch(const PromptRecord& record,
                                                     const Progress& progress) {
  BlobReader reader(backend_, bad_blobs(options_), options_.on_warning);
  Prefix prefix;
  prefix.n_tokens = record.snapshot.n_tokens;
  prefix.chain = record.chain;
  prefix.snapshot = record.snapshot;
  prefix.state_key = record.state_key;
  for (const std::string& key : parameters_keys(record)) {
    TQC_TRY_ASSIGN(auto parameters, reader.read_one<Parameters>(key));
    if (!parameters || !is_chain_of(record, *parameters, options_.salt)) continue;
    prefix.parameters_key = key;
    prefix.parameters = *std::move(parameters);
    break;
  }
  if (prefix.parameters_key.empty()) return lost(record.parameters_key, true);
  TQC_TRY(check_blob_count(record, PartCounts(prefix.parameters.layers)));

  Fetch fetch(backend_, options_, prefix);
  TQC_TRY(fetch.read(progress));
  if (const auto i = fetch.first_lost()) return lost(fetch.keys()[*i], fetch.is_missing(*i));
  Prefix whole = prefix;
  whole.tokens = fetch.block_tokens();
  whole.tokens.insert(whole.tokens.end(), record.snapshot.tail.begin(), record.snapshot.tail.end());
  TQC_TRY_ASSIGN(auto prompt, fetch.assemble(whole));
  if (prompt->manifest().content_name != record.snapshot.content_name) {
    return corrupt("its blocks were replaced by others with other values");
  }
  touch(backend_, fetch, prefix, record_key(options_.salt, record.name));
  return prompt;
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
  TQC_TRY_ASSIGN(loaded.cache, cache::load(*fetched.stored, {.n_threads = n_threads}));
  const std::vector<std::int32_t>& found = loaded.cache.tokens;
  if (found.size() >= tokens.size() || !std::ranges::equal(found, tokens.first(found.size()))) {
    return corrupt("the store's tokens are not those of the prompt");
  }
  loaded.n_blocks = count(fetched.prefix.chain);
  loaded.parameters = std::move(fetched.prefix.parameters);
  loaded.read_bytes = fetched.stored->blob_bytes();
  return std::optional<LoadedPrefix>(std::move(loaded));
}

}  // namespace tqcache::store
