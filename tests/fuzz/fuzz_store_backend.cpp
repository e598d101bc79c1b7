// A library of prompts over a hostile backend: blobs that were changed, removed, exchanged or made
// up, with digests that fit or not; calls that fail; a list that lies. The input chooses the
// changes and what is then done with the store. Whatever is found is a prefix of what was looked
// for, what is fetched can be read or is an error, and a copy holds good blobs only.

#include <tbb/global_control.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "fuzz/mutate.h"
#include "store/blob_fixture.h"
#include "store/library_fixture.h"
#include "tqcache/upkeep.h"

namespace tqcache {
namespace {

using fuzz::Input;
using fuzz::require;

using Values = std::map<std::string, Bytes>;

// Says what `values` has, but for lies.
class HostileBackend : public store::Backend {
 public:
  explicit HostileBackend(Values all) : Backend("hostile:", {}), values(std::move(all)) {}

  Values values;
  std::optional<std::int64_t> failing_call;  // counted from 0
  ErrorCode failure = ErrorCode::kIo;
  std::map<std::string, std::uint64_t> listed_sizes;
  std::optional<std::chrono::seconds> listed_idle;

 private:
  Result<void> next_call() {
    const std::int64_t number = n_calls_++;
    if (failing_call && number == *failing_call) return Error{failure, "the backend failed"};
    return {};
  }

  Result<std::vector<store::PutOutcome>> do_put(std::span<const store::Blob> blobs) override {
    const std::lock_guard lock(mutex_);
    TQC_TRY(next_call());
    std::vector<store::PutOutcome> outcomes;
    for (const store::Blob& blob : blobs) {
      const bool is_new = values.try_emplace(blob.key, blob.value.begin(), blob.value.end()).second;
      outcomes.push_back(is_new ? store::PutOutcome::kStored : store::PutOutcome::kExisted);
    }
    return outcomes;
  }
  Result<void> do_get(std::span<const std::string> keys, const store::ValueSink& sink) override {
    std::vector<std::optional<Bytes>> found;
    {
      const std::lock_guard lock(mutex_);
      TQC_TRY(next_call());
      for (const std::string& key : keys) {
        const auto value = values.find(key);
        found.push_back(value == values.end() ? std::nullopt : std::optional(value->second));
      }
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      TQC_TRY(sink(i, found[i] ? std::optional<ByteView>(*found[i]) : std::nullopt));
    }
    return {};
  }
  Result<std::vector<bool>> do_exists(std::span<const std::string> keys) override {
    const std::lock_guard lock(mutex_);
    TQC_TRY(next_call());
    std::vector<bool> found;
    for (const std::string& key : keys) found.push_back(values.contains(key));
    return found;
  }
  Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) override {
    const std::lock_guard lock(mutex_);
    TQC_TRY(next_call());
    const auto value = values.find(key);
    if (value == values.end() || (only && !std::ranges::equal(value->second, *only))) return false;
    values.erase(value);
    return true;
  }
  Result<void> do_list(const std::string& prefix, const store::EntrySink& sink) override {
    std::vector<store::Entry> entries;
    {
      const std::lock_guard lock(mutex_);
      TQC_TRY(next_call());
      for (const auto& [key, value] : values) {
        if (!key.starts_with(prefix)) continue;
        const auto lie = listed_sizes.find(key);
        entries.push_back(
            {key, lie == listed_sizes.end() ? value.size() : lie->second, listed_idle});
      }
    }
    for (const store::Entry& entry : entries) TQC_TRY(sink(entry));
    return {};
  }
  Result<void> do_touch(std::span<const std::string>) override {
    const std::lock_guard lock(mutex_);
    return next_call();
  }

  std::mutex mutex_;
  std::int64_t n_calls_ = 0;
};

// --- a good store

cache::Cache make_prompt(std::size_t which) {
  switch (which) {
    case 0:
      return test::CacheBuilder(514).dense({1, 8}).arrays().build();
    case 1:
      return test::CacheBuilder(516, 2).turbo(test::kHeads, 2, 2).build();
    default:
      return test::CacheBuilder(259, 3).turbo(test::kHeads, 2, 4).build();
  }
}

const cache::Cache& prompt(std::size_t which) {
  static const std::vector<cache::Cache> all = {make_prompt(0), make_prompt(1), make_prompt(2)};
  return all[which % all.size()];
}

constexpr const char* kNames[] = {"arrays", "turbo", ""};

Values make_store(std::initializer_list<std::size_t> prompts) {
  HostileBackend backend({});
  store::Library library(backend, {.n_threads = 1});
  for (const std::size_t which : prompts) {
    fuzz::must(library.put_cache(prompt(which), kNames[which]), "a good prompt is put");
  }
  return backend.values;
}

// Most have one prompt, because the time of an input grows with them.
const Values& good_store(Input& input) {
  static const Values all = make_store({0, 1, 2});
  static const Values one[] = {make_store({0}), make_store({1}), make_store({2})};
  const std::size_t which = input.below(8);
  return which < 2 ? all : one[which % std::size(one)];
}

// --- changes

Values::iterator choose(Values& values, Input& input) {
  auto at = values.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(input.below(values.size())));
  return at;
}

void change_byte(Bytes& blob, Input& input) {
  if (blob.empty()) return;
  const std::size_t at = input.below(65536) % blob.size();
  blob[at] =
      input.flag() ? blob[at] ^ std::byte{1} : static_cast<std::byte>(input.take<std::uint8_t>());
}

// Usually few, because every entry of a chain is a blob that is read.
std::size_t many(Input& input, std::size_t bound) {
  return input.below(input.below(64) == 63 ? bound : 8);
}

// Makes a record and parameters claim more than there is, in a blob that is a good one.
void exaggerate(const std::string& key, Bytes& blob, Input& input) {
  auto content = store::decode_blob(key, test::shared(blob));
  if (!content) return;
  if (auto* record = std::get_if<store::PromptRecord>(&*content)) {
    const std::size_t n = many(input, 2000);
    if (!record->chain.empty()) record->chain.resize(n, record->chain.front());
    record->snapshot.n_tokens =
        256 * static_cast<std::int64_t>(n) + std::ssize(record->snapshot.tail);
    if (input.flag()) record->tokens.clear();
    record->bytes = input.take<std::uint64_t>();
    record->snapshot.data_bytes = input.take<std::uint64_t>();
  } else if (auto* parameters = std::get_if<store::Parameters>(&*content)) {
    const std::size_t n = 1 + many(input, 1024);
    if (!parameters->layers.empty()) parameters->layers.resize(n, parameters->layers.front());
  } else if (auto* block = std::get_if<store::Block>(&*content)) {
    block->n_parts = static_cast<int>(1 + input.below(2048));
    block->part = static_cast<int>(input.below(2048)) % block->n_parts;
  } else if (auto* snapshot = std::get_if<store::Snapshot>(&*content)) {
    const std::size_t n = many(input, 2000);
    if (!snapshot->data_keys.empty()) snapshot->data_keys.resize(n, snapshot->data_keys.front());
    snapshot->data_bytes = input.take<std::uint64_t>();
  } else {
    return;
  }
  if (auto changed = store::encode_blob(key, *content)) blob = *std::move(changed);
}

void change(HostileBackend& backend, Input& input) {
  Values& values = backend.values;
  if (values.empty()) return;
  const auto one = choose(values, input);
  constexpr ErrorCode kCodes[] = {ErrorCode::kIo,       ErrorCode::kBusy,
                                  ErrorCode::kTooLarge, ErrorCode::kInvalidArgument,
                                  ErrorCode::kCorrupt,  ErrorCode::kNotFound};
  switch (input.below(10)) {
    case 0:
      return change_byte(one->second, input);
    case 1:
      change_byte(one->second, input);
      if (one->second.size() >= store::kBlobHeaderBytes) test::reseal_blob(one->second);
      return;
    case 2:
      values.erase(one);
      return;
    case 3:
      std::swap(one->second, choose(values, input)->second);
      return;
    case 4:
      one->second.resize(input.below(65536) % (one->second.size() + 1));
      return;
    case 5: {  // under a key that nobody gave it
      std::string key = one->first;
      key.back() = key.back() == '0' ? '1' : '0';
      values.insert_or_assign(key, one->second);
      return;
    }
    case 6:
      backend.failing_call = input.below(64);
      backend.failure = input.one_of(kCodes);
      return;
    case 7:
      backend.listed_sizes[one->first] = input.one_of(fuzz::kEdges);
      if (input.flag()) backend.listed_idle = std::chrono::seconds(input.take<std::uint32_t>());
      return;
    default:
      return exaggerate(one->first, one->second, input);
  }
}

// --- what is done with it

bool is_prefix(std::span<const std::int32_t> tokens, std::span<const std::int32_t> of) {
  return tokens.size() <= of.size() && std::ranges::equal(tokens, of.first(tokens.size()));
}

void read_all(const store::StoredPrompt& stored) {
  AlignedBytes raw;
  for (std::size_t i = 0; i < stored.blocks().size(); ++i) {
    const Result<void> read = stored.read(i, raw);
    require(read.ok() || !read.error().message.empty(), "an error has a message");
    require(!read || raw.size() == stored.blocks()[i].raw_bytes, "a section has its size");
  }
}

AtomicFile file_of_nobody() {
  return fuzz::must(AtomicFile::create("/dev/null", Overwrite::kAllow), "there is /dev/null");
}

void find_and_fetch(store::Library& library, const cache::Cache& wanted, bool to_file) {
  const std::vector<std::int32_t> tokens = test::and_more(wanted);
  auto prefix = library.find(wanted.identity, tokens);
  if (!prefix) return;
  require(prefix->n_tokens >= 0 && prefix->n_tokens < std::ssize(tokens), "a prefix is shorter");
  require(is_prefix(prefix->tokens, tokens), "and has the same tokens");
  if (prefix->n_tokens == 0) return;
  if (to_file) {
    AtomicFile file = file_of_nobody();
    const auto written = library.fetch_to(file, *prefix);
    if (written && *written) {
      require(is_prefix((*written)->manifest.tokens, tokens), "so has what is written");
    }
    return;
  }
  const auto stored = library.fetch(*prefix);
  if (!stored || *stored == nullptr) return;
  require(is_prefix((*stored)->description().tokens, tokens), "so has what is fetched");
  read_all(**stored);
}

void fetch_record(store::Library& library, const char* name, bool to_file) {
  const auto record = library.record(name);
  if (!record || !*record) return;
  require((*record)->name == name, "a record has its name");
  if (to_file) {
    AtomicFile file = file_of_nobody();
    const auto written = library.fetch_to(file, **record);
    require(written.ok() || !written.error().message.empty(), "an error has a message");
    return;
  }
  const auto stored = library.fetch(**record);
  if (stored && *stored != nullptr) read_all(**stored);
}

void copy(HostileBackend& backend) {
  HostileBackend target({});
  const auto report = store::copy_store(backend, target, {});
  if (!report) return;
  store::CheckOptions options;
  options.read_data = true;
  const auto checked = store::check(target, options);
  require(checked.ok(), "a copy can be checked");
  require(checked->damaged == 0, "a copy has good blobs only");
}

void use(HostileBackend& backend, Input& input) {
  // A file gets one blob at a time.
  store::Library library(backend, {.n_threads = 1, .window_bytes = 1});
  const cache::Cache& wanted = prompt(input.below(3));
  switch (input.below(9)) {
    case 0:
      return find_and_fetch(library, wanted, true);
    case 1:
      return find_and_fetch(library, wanted, false);
    case 2:
      return fetch_record(library, input.flag() ? kNames[0] : kNames[1], input.flag());
    case 3: {
      store::PutOptions options;
      options.replace = input.flag();
      const auto put = library.put_cache(wanted, input.flag() ? "turbo" : "other", {}, options);
      require(put.ok() || !put.error().message.empty(), "an error has a message");
      return;
    }
    case 4: {
      store::CheckOptions options;
      options.read_data = input.flag();
      options.repair = input.flag();
      static_cast<void>(store::check(backend, options));
      return;
    }
    case 5: {
      store::CollectOptions options;
      options.max_bytes = input.take<std::uint16_t>();
      options.drop_prompts = input.flag();
      options.grace = std::chrono::seconds(input.take<std::uint8_t>());
      static_cast<void>(store::collect(backend, options));
      return;
    }
    case 6:
      return copy(backend);
    case 7: {
      static_cast<void>(store::read_stats(backend));
      static_cast<void>(library.records());
      return;
    }
    default:
      const auto loaded =
          store::load_prefix(library, wanted.identity, test::and_more(wanted), {}, 1);
      if (loaded && *loaded) {
        require(is_prefix((*loaded)->cache.tokens, wanted.tokens), "what is loaded is a prefix");
      }
  }
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  // One thread: others would mostly wait, and what a failing call hits would be left to chance.
  static const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
  Input input(fuzz::view_of(data, size));
  HostileBackend backend(good_store(input));
  const std::size_t n_changes = input.below(5);
  for (std::size_t i = 0; i < n_changes; ++i) change(backend, input);
  const std::size_t n_uses = input.below(4) == 3 ? 2 : 1;
  for (std::size_t i = 0; i < n_uses; ++i) use(backend, input);
  return 0;
}
