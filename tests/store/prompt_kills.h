#pragma once
// Processes that put prompts under names, killed in the middle of it.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "store/kills.h"
#include "support/cache_builder.h"
#include "tqcache/store.h"
#include "tqcache/tqkv.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {

// Some prompts as files: a final block in two parts, and a tail. Made before any process is.
class PromptFiles {
 public:
  PromptFiles() {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      CacheBuilder builder(300, seed);
      for (int layer = 0; layer < 3; ++layer) builder.dense({8, 128});
      format::WriteOptions options;
      options.compression = format::Compression::kNone;
      options.n_threads = 1;  // threads of this process would not be there in another
      files_.push_back(must(format::write_cache_bytes(builder.build(), options)));
      names_.push_back(must(format::read_cache_info(*memory_source(files_.back()))).content_name);
    }
  }

  static std::string name(int i) { return "prompt " + std::to_string(i); }
  const Sha256& content_name(int i) const { return names_[which(i)]; }

  // Each tenant has its own blobs, so that every round puts all of them.
  Writer::PutNext putting(const std::string& salt) const {
    return [this, salt](store::Backend& backend, int i) {
      store::Library library(backend, {salt, 1, {}});
      return library.put_file(*memory_source(files_[which(i)]), name(i)).ok() ? 1 : 0;
    };
  }

 private:
  std::size_t which(int i) const { return static_cast<std::size_t>(i) % files_.size(); }

  std::vector<Bytes> files_;
  std::vector<Sha256> names_;
};

// The first `n_told` prompts are there, bit for bit, as is every other that is to be seen; and the
// store has no damage. Takes all away afterwards.
inline void expect_prompts(const std::string& url, const std::string& salt,
                           const PromptFiles& prompts, int n_told) {
  const std::unique_ptr<store::Backend> backend = backend_at(url);
  store::Library library(*backend, {salt, 1, {}});
  const std::vector<store::PromptRecord> records = must(library.records());
  EXPECT_GE(std::ssize(records), n_told);
  for (int i = 0; i < std::max<int>(n_told, static_cast<int>(records.size())); ++i) {
    const std::optional<store::PromptRecord> record = must(library.record(PromptFiles::name(i)));
    ASSERT_TRUE(record) << i;
    EXPECT_EQ(record->snapshot.content_name, prompts.content_name(i)) << i;
    const auto fetched = library.fetch(*record);
    EXPECT_TRUE(fetched.ok()) << i << ": " << fetched.error().message;
  }
  store::CheckOptions options;
  options.read_data = true;
  options.on_finding = [](const store::Finding& finding) {
    ADD_FAILURE() << finding.prompt << ' ' << finding.key << ": " << finding.error.message;
  };
  EXPECT_TRUE(must(store::check(*backend, options)).is_whole());
  std::vector<std::string> keys;
  must(backend->list("", [&](const store::Entry& entry) -> Result<void> {
    keys.push_back(entry.key);
    return {};
  }));
  for (const std::string& key : keys) must(backend->remove(key));
}

}  // namespace tqcache::test
