// A prompt is put block by block, by whoever has its sections.

#include "tqcache/store/library/chain_writer.h"

#include <gtest/gtest.h>

#include "store/altered_backend.h"
#include "store/library_fixture.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/format/sections/section_compressor.h"
#include "tqcache/reader.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::test {
namespace chain_writer_test {

using Sections = std::vector<store::StoredSection>;

// A cache, and its sections as they would be stored.
struct Prompt {
  explicit Prompt(cache::Cache of)
      : cache(std::move(of)),
        reader(cache::reader_of(cache)),
        layers(reader->description().layers) {}
  Prompt(const Prompt&) = delete;

  cache::Cache cache;
  std::shared_ptr<const cache::CacheReader> reader;
  std::vector<cache::LayerDesc> layers;

  std::span<const std::int32_t> tokens(std::size_t block) const {
    return std::span(cache.tokens).subspan(block * 256, 256);
  }
  store::Parameters parameters() const {
    const auto first = tokens(0);
    return {cache.identity, {first.begin(), first.end()}, layers};
  }
  // All from `first` on, `n` of them.
  Sections sections(std::size_t first, std::size_t n) const {
    const auto as_it_is = must(format::SectionCompressor::make(format::Compression::kNone, 1));
    Sections sections;
    for (std::size_t i = first; i < first + n; ++i) {
      format::SectionInfo info;
      static_cast<cache::BlockInfo&>(info) = reader->blocks()[i];
      const SharedBytes raw = must(reader->share(i));
      Bytes none;
      as_it_is.prepare(layers[0], raw.view(), info, none);
      sections.push_back({info, raw});
    }
    return sections;
  }
  store::Snapshot state() const {
    const auto n = static_cast<std::size_t>(store::final_blocks(cache.n_tokens())) * 256;
    store::Snapshot snapshot;
    snapshot.n_tokens = cache.n_tokens();
    snapshot.tail.assign(cache.tokens.begin() + static_cast<std::ptrdiff_t>(n), cache.tokens.end());
    snapshot.layers = store::bare_layers(layers);
    return snapshot;
  }
};

// Of one layer, so of two sections a block.
Prompt prompt(std::int64_t n, std::uint64_t seed = 1) {
  return Prompt(CacheBuilder(n, seed).dense(kHeads).build());
}

class Writer : public testing::Test {
 protected:
  store::ChainWriter open(const Prompt& of) {
    return must(store::ChainWriter::open(backend_, "", of.parameters()));
  }
  // All blocks and the state.
  std::string put_all(store::ChainWriter& writer, const Prompt& of, store::Snapshot& snapshot) {
    const auto n = static_cast<std::size_t>(store::final_blocks(of.cache.n_tokens()));
    for (std::size_t block = 0; block < n; ++block) {
      must(writer.put_block(of.tokens(block), of.sections(2 * block, 2)));
    }
    return must(writer.put_snapshot(snapshot, of.sections(2 * n, 2)));
  }

  AlteredBackend backend_;
  ToldLibrary told_{backend_};
};

TEST_F(Writer, PutsWhatALibraryFinds) {
  const Prompt one = prompt(700);
  store::ChainWriter writer = open(one);
  store::Snapshot snapshot = one.state();
  const std::string key = put_all(writer, one, snapshot);
  EXPECT_EQ(key, store::state_key(writer.chain().back(), 0));
  EXPECT_EQ(writer.n_blocks(), 2);
  EXPECT_EQ(writer.new_blocks(), 2);
  EXPECT_EQ(writer.bytes(), writer.new_bytes());
  store::Prefix prefix = must(told_->find(one.cache.identity, and_more(one.cache)));
  EXPECT_EQ(prefix.n_tokens, 700);
  EXPECT_EQ(prefix.chain, writer.chain());
  EXPECT_EQ(difference(load(*must(told_->fetch(prefix))), one.cache), "");
}

TEST_F(Writer, ABlockIsThereWhenItIsFlushed) {
  const Prompt one = prompt(700);
  store::ChainWriter writer = open(one);
  EXPECT_EQ(must(writer.has(one.cache.tokens)), (std::vector<bool>{false, false}));
  must(writer.put_block(one.tokens(0), one.sections(0, 2)));
  must(writer.flush());
  store::ChainWriter other = open(one);
  EXPECT_EQ(must(other.has(one.cache.tokens)), (std::vector<bool>{true, false}));
  EXPECT_EQ(must(writer.has(one.cache.tokens)), std::vector<bool>{false});  // those that follow
  must(other.skip_block(one.tokens(0), 5));
  EXPECT_EQ(other.chain(), writer.chain());
  EXPECT_EQ(other.new_blocks(), 0);
}

TEST_F(Writer, FindsItsParametersInWhateverSlotTheyAre) {
  const Prompt one = prompt(700);
  Prompt two = prompt(700);
  two.cache.identity.source_format = "another program";
  store::ChainWriter first = open(one);
  store::ChainWriter second = open(two);
  EXPECT_NE(first.parameters_key(), second.parameters_key());
  EXPECT_NE(first.root(), second.root());
  EXPECT_EQ(open(two).parameters_key(), second.parameters_key());
  EXPECT_EQ(all_keys(backend_, "p/").size(), 2u);
}

// Another took the slot after we had looked.
TEST_F(Writer, TakesTheNextSlotWhenOneIsLost) {
  const Prompt one = prompt(700);
  Prompt two = prompt(700);
  two.cache.identity.source_format = "another program";
  bool done = false;
  backend_.before_put = [&](const std::vector<std::string>& keys) {
    if (done || keys[0][0] != 'p') return;
    done = true;
    must(backend_.inner().put(keys[0],
                              must(store::encode_blob(keys[0], store::Content(two.parameters())))));
  };
  const store::ChainWriter writer = open(one);
  EXPECT_TRUE(writer.parameters_key().ends_with("/1"));
  EXPECT_EQ(all_keys(backend_, "p/").size(), 2u);
}

TEST_F(Writer, SharesASlotThatAnotherTookForTheSame) {
  const Prompt one = prompt(700);
  bool done = false;
  backend_.before_put = [&](const std::vector<std::string>& keys) {
    if (std::exchange(done, true)) return;
    must(backend_.inner().put(keys[0],
                              must(store::encode_blob(keys[0], store::Content(one.parameters())))));
  };
  EXPECT_TRUE(open(one).parameters_key().ends_with("/0"));
  EXPECT_EQ(all_keys(backend_, "p/").size(), 1u);
}

TEST_F(Writer, RefusesSectionsThatAreNotTheBlocks) {
  const Prompt one = prompt(700);
  store::ChainWriter writer = open(one);
  const auto refused = [&](Sections sections) {
    return writer.put_block(one.tokens(0), std::move(sections)).error().code ==
           ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused(one.sections(0, 1)));
  EXPECT_TRUE(refused(one.sections(0, 3)));
  EXPECT_TRUE(refused(one.sections(2, 2)));  // of block 1
  Sections sections = one.sections(0, 2);
  sections[1].info.packed = true;
  EXPECT_TRUE(refused(sections));
  sections = one.sections(0, 2);
  std::swap(sections[0], sections[1]);
  EXPECT_TRUE(refused(sections));
  sections = one.sections(0, 2);
  sections[0].info.checksum.low ^= 1;
  EXPECT_TRUE(refused(sections));
  EXPECT_EQ(writer.n_blocks(), 0);
  EXPECT_TRUE(all_keys(backend_, "b/").empty());
}

TEST_F(Writer, ReturnsTheErrorsOfItsBackend) {
  const Prompt one = prompt(700);
  store::ChainWriter writer = open(one);
  must(writer.put_block(one.tokens(0), one.sections(0, 2)));
  backend_.all_fail = Error{ErrorCode::kIo, "gone"};
  EXPECT_EQ(writer.flush().error().code, ErrorCode::kIo);
  EXPECT_EQ(store::ChainWriter::open(backend_, "", one.parameters()).error().code, ErrorCode::kIo);
}

TEST_F(Writer, ReusesASnapshotIfThePromptHasNoName) {
  const Prompt one = prompt(700);
  Prompt two = prompt(700, 2);
  two.cache.tokens = one.cache.tokens;
  two.cache.identity = one.cache.identity;
  store::ChainWriter writer = open(one);
  store::Snapshot first = one.state();
  const std::string key = put_all(writer, one, first);

  store::ChainWriter again = open(two);
  store::Snapshot second = two.state();
  EXPECT_EQ(put_all(again, two, second), key);
  EXPECT_EQ(second.data_keys, first.data_keys);
  EXPECT_EQ(all_keys(backend_, "d/").size(), 1u);

  // One with a name stays what it is.
  store::ChainWriter named = open(two);
  store::Snapshot third = two.state();
  third.content_name[0] = std::byte{1};
  EXPECT_EQ(put_all(named, two, third), key);
  EXPECT_NE(third.data_keys, first.data_keys);
  EXPECT_EQ(all_keys(backend_, "d/").size(), 2u);
  EXPECT_EQ(all_keys(backend_, "s/").size(), 1u);
}

TEST_F(Writer, ReplacesASnapshotWithoutItsData) {
  const Prompt one = prompt(700);
  store::ChainWriter writer = open(one);
  store::Snapshot snapshot = one.state();
  const std::string key = put_all(writer, one, snapshot);
  must(backend_.remove(snapshot.data_keys[0]));
  store::ChainWriter again = open(one);
  store::Snapshot same = one.state();
  EXPECT_EQ(put_all(again, one, same), key);
  EXPECT_EQ(again.new_blocks(), 0);
  EXPECT_EQ(all_keys(backend_, "d/"), same.data_keys);
}

// More than is held at once.
TEST_F(Writer, PutsBlobsInBoundedBatches) {
  const Prompt large(CacheBuilder(256 * 10 + 1).dense({16, 512}).build());  // 8 MiB a block
  store::ChainWriter writer = open(large);
  store::Snapshot snapshot = large.state();
  put_all(writer, large, snapshot);
  std::size_t n_calls = 0;
  for (const auto& keys : backend_.puts) {
    if (keys[0][0] != 'b') continue;
    ++n_calls;
    EXPECT_LE(keys.size(), 2u * 5);
  }
  EXPECT_GT(n_calls, 2u);
  EXPECT_EQ(all_keys(backend_, "b/").size(), 20u);
}

}  // namespace chain_writer_test
}  // namespace tqcache::test
