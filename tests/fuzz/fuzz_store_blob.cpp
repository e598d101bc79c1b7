// Any bytes as a blob of a store, under the key of each sample (store/blob_samples.h). What is read
// lies in the blob, and is written as what reads the same.

#include <cstdint>
#include <cstring>

#include "fuzz/fuzz.h"
#include "fuzz/mutate.h"
#include "store/blob_fixture.h"

namespace tqcache {
namespace {

using fuzz::require;

const std::vector<test::SampleBlob>& samples() {
  static const std::vector<test::SampleBlob> all = test::sample_blobs();
  return all;
}

void check_sections(const std::vector<store::StoredSection>& sections, const SharedBytes& blob) {
  for (const store::StoredSection& section : sections) {
    const auto offset = static_cast<std::size_t>(section.stored.data() - blob.data());
    require(offset <= blob.size() && section.stored.size() <= blob.size() - offset,
            "sections lie in the blob");
    require(section.stored.size() == section.info.stored_bytes, "and have their size");
  }
}

// With the parameters of the sample, and with those that were read.
void check_together(const store::Content& content) {
  static const store::Parameters kParameters = test::sample_parameters();
  if (const auto* block = std::get_if<store::Block>(&content)) {
    static_cast<void>(store::check_block(kParameters, *block));
  }
  if (const auto* snapshot = std::get_if<store::Snapshot>(&content)) {
    static_cast<void>(store::join_layers(kParameters.layers, snapshot->layers));
  }
  if (const auto* parameters = std::get_if<store::Parameters>(&content)) {
    static_cast<void>(store::hash_parameters(*parameters));
    const std::vector<std::size_t> ends = store::block_parts(parameters->layers, 0);
    require(!ends.empty() && ends.back() <= 2 * parameters->layers.size(), "blocks have parts");
    static_cast<void>(store::check_block(*parameters, test::sample_block()));
  }
}

void check_round_trip(const std::string& key, const store::Content& content) {
  const Bytes once = fuzz::must(store::encode_blob(key, content), "what was read can be written");
  const auto again = fuzz::must(store::decode_blob(key, test::shared(once)), "and is read again");
  require(fuzz::must(store::encode_blob(key, again), "and written") == once, "as the same");
}

void read(const std::string& key, const SharedBytes& blob) {
  const auto content = store::decode_blob(key, blob);
  if (!content) {
    require(!content.error().message.empty(), "an error has a message");
    return;
  }
  if (const auto* block = std::get_if<store::Block>(&*content)) {
    check_sections(block->sections, blob);
  }
  if (const auto* data = std::get_if<store::Data>(&*content)) check_sections(data->sections, blob);
  check_together(*content);
  check_round_trip(key, *content);
}

// Makes sizes and digests of the header fit, so that changes get behind it.
void repair(fuzz::Chance& chance, Bytes& blob) {
  if (blob.size() < store::kBlobHeaderBytes) return;
  std::memcpy(blob.data(), store::kBlobMagic.data(), store::kBlobMagic.size());
  test::put_number(blob, 8, store::kBlobVersion);
  if (chance.one_in(2)) test::put_number(blob, 16, std::uint64_t{blob.size()});
  test::reseal_blob(blob);
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  const SharedBytes blob = test::shared(fuzz::view_of(data, size));
  for (const test::SampleBlob& each : samples()) read(each.key, blob);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace tqcache;
  fuzz::Chance chance(seed);
  const ByteView view = fuzz::view_of(data, size);
  Bytes blob(view.begin(), view.end());
  const std::size_t header = std::min(blob.size(), store::kBlobHeaderBytes);
  if (chance.one_in(6)) {
    fuzz::change_bytes(blob, 0, header, 0);
  } else {
    const std::size_t room = chance.one_in(4) ? max_size - std::min(max_size, size) : 0;
    fuzz::change_bytes(blob, header, blob.size(), std::min<std::size_t>(room, 64));
  }
  if (!chance.one_in(8)) repair(chance, blob);
  return fuzz::give_back(blob, data, size, max_size);
}
