// What a blob has to fulfil. Each rule is broken twice: by who makes a blob, and in a blob whose
// digests all fit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/blob_fixture.h"
#include "support/matchers.h"
#include "tqcache/store/blobs/blob_format.h"

namespace tqcache::test {
namespace blob_rules_test {

using cache::TensorKind;
using store::Block;
using store::Data;
using store::Parameters;
using store::PromptRecord;
using store::Snapshot;
using store::UsageNote;
using testing::HasSubstr;

void expect_refused(const std::string& key, const store::Content& content, ErrorCode code,
                    std::string_view message) {
  EXPECT_THAT(store::encode_blob(key, content),
              test::FailsWith(code == ErrorCode::kTooLarge ? code : ErrorCode::kInvalidArgument,
                              HasSubstr(message)));
  EXPECT_THAT(decode(key, must(store::make_blob(key, content))),
              test::FailsWith(code, HasSubstr(message)));
}

// A rule that the sample of this kind breaks once it is changed.
template <class T, class Change>
void expect_rule(std::string_view name, Change change, std::string_view message,
                 ErrorCode code = ErrorCode::kCorrupt) {
  T content = std::get<T>(sample(name).content);
  change(content);
  expect_refused(sample(name).key, content, code, message);
}

TEST(BlobRules, SampleBlobsSatisfyAllRules) {
  for (const SampleBlob& each : sample_blobs()) {
    const auto checked = store::check_content(each.key, each.content);
    EXPECT_TRUE(checked.ok()) << each.name << ": " << checked.error().message;
  }
}

TEST(BlobRules, AKeyIsOneOfItsKind) {
  for (const SampleBlob& each : sample_blobs()) {
    const std::string other = each.key[0] == 'u' ? "d/" + each.key.substr(2) : "u/x";
    expect_refused(other, each.content, ErrorCode::kCorrupt, "not one of this kind");
  }
  EXPECT_FALSE(store::is_key_of(store::BlobKind::kUsage, "u/"));
  EXPECT_FALSE(store::is_key_of(store::BlobKind::kUsage, "u//a"));
  EXPECT_FALSE(store::is_key_of(store::BlobKind::kUsage, "u/A"));
  EXPECT_FALSE(store::is_key_of(store::BlobKind::kUsage, "ua"));
}

TEST(BlobRules, ParametersHaveFirstTokens) {
  const auto rule = [](auto change, std::string_view message) {
    expect_rule<Parameters>("parameters", change, message);
  };
  rule([](Parameters& p) { p.tokens.clear(); }, "0 first tokens");
  rule([](Parameters& p) { p.tokens.push_back(1); }, "257 first tokens");
  rule([](Parameters& p) { p.tokens[3] = -1; }, "a token id of -1");
}

TEST(BlobRules, ParametersAreThoseOfACache) {
  const auto rule = [](auto change, std::string_view message,
                       ErrorCode code = ErrorCode::kCorrupt) {
    expect_rule<Parameters>("parameters", change, message, code);
  };
  rule([](Parameters& p) { p.identity.rope.base = -1; }, "base is no number");
  rule([](Parameters& p) { sample_keys(p.layers).mean.pop_back(); }, "layer 0: k: a mean of 31");
  rule([](Parameters& p) { sample_keys(p.layers).parts[0].centroids[1] = -1; }, "do not ascend");
  rule([](Parameters& p) { sample_window(p.layers).window.keep = 8; }, "layer 1: 8 first tokens");
  rule([](Parameters& p) { sample_attention(p.layers).shape.n_kv_heads = 4096; }, "4096",
       ErrorCode::kTooLarge);
  rule([](Parameters& p) { p.layers.resize(1025, p.layers[2]); }, "layers", ErrorCode::kTooLarge);
}

// encode_blob() drops shapes, so that only a blob that somebody else made has one.
TEST(BlobRules, ParametersHaveNoShapesOfArrays) {
  Parameters parameters = sample_parameters();
  parameters.layers = sample_layers();
  const std::string& key = sample("parameters").key;
  EXPECT_THAT(decode(key, must(store::make_blob(key, parameters))),
              test::FailsWith(ErrorCode::kCorrupt, HasSubstr("an array with a shape")));
}

TEST(BlobRules, ABlockHasItsTokensAndPlace) {
  const auto rule = [](auto change, std::string_view message,
                       ErrorCode code = ErrorCode::kCorrupt) {
    expect_rule<Block>("block", change, message, code);
  };
  rule([](Block& b) { b.tokens.pop_back(); }, "255 tokens");
  rule([](Block& b) { b.tokens[255] = -1; }, "a token id of -1");
  rule([](Block& b) { b.index = 65536; }, "token block 65536", ErrorCode::kTooLarge);
  rule([](Block& b) { b.part = 1; }, "part 1 of 1");
  rule([](Block& b) { b.n_parts = 0; }, "part 0 of 0");
  rule([](Block& b) { b.n_parts = 2049; }, "2049 parts", ErrorCode::kTooLarge);
  rule([](Block& b) { b.index = 2; }, "the key is not that of its tokens");
  rule([](Block& b) { b.parent[0] ^= std::byte{1}; }, "the key is not that of its tokens");
  rule([](Block& b) { b.tokens[0] += 1; }, "the key is not that of its tokens");
}

TEST(BlobRules, ABlockHasItsOwnSections) {
  const auto rule = [](auto change) {
    expect_rule<Block>("block", change, "a section of another block");
  };
  rule([](Block& b) { b.sections[1].info.block = 0; });
  rule([](Block& b) { b.sections[1].info.tensor = cache::TensorKind::kArray; });
}

TEST(BlobRules, SectionsAgreeWithTheirRows) {
  const auto rule = [](auto change, std::string_view message,
                       ErrorCode code = ErrorCode::kCorrupt) {
    expect_rule<Data>("data", change, message, code);
  };
  rule([](Data& d) { d.sections[0].info.layer = 1024; }, "no such layer");
  rule([](Data& d) { d.sections[1].info.raw_bytes = (std::uint64_t{1} << 40) + 1; },
       "too many bytes", ErrorCode::kTooLarge);
  rule([](Data& d) { d.sections[0].info.raw_bytes -= 1; }, "stored size 192 for raw size 191");
  rule([](Data& d) { d.sections[1].info.raw_bytes = 5; }, "stored size 5 for raw size 5");
  rule([](Data& d) { d.sections[2].info.checksum.low ^= 1; }, "checksum mismatch");
  rule([](Data& d) { std::swap(d.sections[0], d.sections[1]); }, "not in the order of a file");
  rule([](Data& d) { std::swap(d.sections[3], d.sections[4]); }, "not in the order of a file");
  rule([](Data& d) { std::swap(d.sections[1], d.sections[2]); }, "not in the order of a file");
  rule([](Data& d) { d.sections[1] = d.sections[0]; }, "not in the order of a file");
  rule([](Data& d) { d.sections[1].info.block = 4; },
       "section 1 (layer 0 v, block 4): a token block before it is missing");
}

TEST(BlobRules, DataMayHaveTheTokenBlocksOfAWindow) {
  Data data;
  for (const std::int64_t block : {3, 4, 5}) {
    for (const cache::TensorKind tensor : {cache::TensorKind::kKeys, cache::TensorKind::kValues}) {
      data.sections.push_back(sample_section(1, tensor, block, 64, 64));
    }
  }
  data.sections.push_back(sample_section(2, cache::TensorKind::kArray, 0, 12, 12));
  const std::string& key = sample("data").key;
  EXPECT_EQ(decode_as<Data>(key, must(store::encode_blob(key, data))).sections.size(), 7u);
  data.sections.erase(data.sections.begin() + 2, data.sections.begin() + 4);
  expect_refused(key, data, ErrorCode::kCorrupt, "a token block before it is missing");
}

// A blob that is made: its bytes are those of the row.
TEST(BlobRules, SectionsHaveAsManyBytesAsTheirRowsSay) {
  Data data = sample_data();
  data.sections[0].stored = data.sections[0].stored.part(0, 191);
  EXPECT_THAT(store::encode_blob(sample("data").key, data),
              test::FailsWith(ErrorCode::kInvalidArgument,
                              HasSubstr("the number of bytes is not its stored size")));
}

TEST(BlobRules, AStateHasItsTail) {
  const auto rule = [](auto change, std::string_view message,
                       ErrorCode code = ErrorCode::kCorrupt) {
    expect_rule<Snapshot>("state", change, message, code);
  };
  rule([](Snapshot& s) { s.n_tokens = 0; }, "0 tokens", ErrorCode::kTooLarge);
  rule([](Snapshot& s) { s.n_tokens = (16 << 20) + 1; }, "tokens", ErrorCode::kTooLarge);
  rule([](Snapshot& s) { s.n_tokens = 512; }, "a tail of 3 tokens where 256 belong");
  rule([](Snapshot& s) { s.tail[0] = -1; }, "a token id of -1");
  rule([](Snapshot& s) { s.data_keys[0].back() = 'g'; }, "an invalid data key");
  rule([](Snapshot& s) { s.data_keys[0] += "0"; }, "an invalid data key");
  rule([](Snapshot& s) { s.data_keys[0][0] = 'b'; }, "an invalid data key");
  rule([](Snapshot& s) { s.data_keys.resize(65537, s.data_keys[0]); }, "65537 data blobs",
       ErrorCode::kTooLarge);
  rule([](Snapshot& s) { sample_window(s.layers).window.size = 0; }, "a window of no tokens");
  rule([](Snapshot& s) { sample_arrays(s.layers)[0].shape.assign(9, 1); }, "9 dimensions",
       ErrorCode::kTooLarge);
}

// Windows grow until they are full: their shape follows from the number of tokens.
TEST(BlobRules, AStateOfFewTokensHasASmallerWindow) {
  Snapshot snapshot = sample_state();
  snapshot.n_tokens = 3;
  EXPECT_TRUE(store::encode_blob(sample("state").key, snapshot));
}

TEST(BlobRules, ARecordAgreesWithItself) {
  const auto rule = [](auto change, std::string_view message,
                       ErrorCode code = ErrorCode::kCorrupt) {
    expect_rule<PromptRecord>("record", change, message, code);
  };
  rule([](PromptRecord& r) { r.name.clear(); }, "a record without a name");
  rule([](PromptRecord& r) { r.name.assign(513, 'n'); }, "513 bytes", ErrorCode::kTooLarge);
  rule([](PromptRecord& r) { r.model_name.assign(1025, 'n'); }, "1025 bytes", ErrorCode::kTooLarge);
  rule([](PromptRecord& r) { r.architecture.assign(1025, 'n'); }, "1025 bytes",
       ErrorCode::kTooLarge);
  rule([](PromptRecord& r) { r.tokens[7] = -1; }, "a token id of -1");
  rule([](PromptRecord& r) { r.tokens.pop_back(); }, "the snapshot has other tokens");
  rule([](PromptRecord& r) { r.tokens.back() += 1; }, "the tail has other tokens");
  rule([](PromptRecord& r) { r.chain.pop_back(); }, "1 blocks");
  rule([](PromptRecord& r) { r.snapshot.tail.pop_back(); }, "a tail of 2 tokens");
  rule([](PromptRecord& r) { r.state_key = "d/x"; }, "an invalid state key");
  rule([](PromptRecord& r) { r.state_key = "s/../x"; }, "an invalid state key");
  rule([](PromptRecord& r) { r.parameters_key.clear(); }, "an invalid parameters key");
  rule([](PromptRecord& r) { r.parameters_key = "n/0/0"; }, "an invalid parameters key");
}

// Its blocks and its tail have them.
TEST(BlobRules, ARecordNeedsNoTokens) {
  PromptRecord record = sample_record();
  record.tokens.clear();
  EXPECT_TRUE(store::encode_blob(sample("record").key, record));
}

// A prompt without a final block has no block whose slots its state could stand in.
TEST(BlobRules, ASnapshotHasASlotOnlyBehindABlock) {
  PromptRecord record = sample_record();
  record.state_key.clear();
  const std::string& key = sample("record").key;
  EXPECT_TRUE(store::encode_blob(key, record));
  record.state_key = sample_record().state_key;
  record.chain.clear();
  record.tokens = record.snapshot.tail = sample_tokens(9);
  record.snapshot.n_tokens = 9;
  expect_refused(key, record, ErrorCode::kCorrupt, "a state key without a final block");
}

TEST(BlobRules, UsageFindsNoMoreTokensThanWanted) {
  const auto rule = [](auto change, std::string_view message,
                       ErrorCode code = ErrorCode::kCorrupt) {
    expect_rule<UsageNote>("usage", change, message, code);
  };
  rule([](UsageNote& u) { u.found_tokens = 516; }, "more tokens found than wanted");
  rule([](UsageNote& u) { u.wanted_tokens = (16 << 20) + 1; }, "tokens", ErrorCode::kTooLarge);
}

TEST(BlobRules, ABlockBehindAnotherHas256Tokens) {
  const std::string& key = sample("next").key;
  EXPECT_TRUE(store::encode_blob(key, store::Next{sample_tokens(256)}));
  for (const std::int64_t n : {0, 255, 257}) {
    expect_refused(key, store::Next{sample_tokens(n)}, ErrorCode::kCorrupt, "tokens");
  }
}

TEST(BlobRules, KeysOfDataAreDigests) {
  EXPECT_TRUE(store::is_data_key(sample_data_key()));
  EXPECT_FALSE(store::is_data_key("d/0"));
  EXPECT_FALSE(store::is_data_key("d/" + std::string(63, '0') + "A"));
  EXPECT_FALSE(store::is_data_key("s/" + std::string(64, '0')));
}

}  // namespace blob_rules_test
}  // namespace tqcache::test
