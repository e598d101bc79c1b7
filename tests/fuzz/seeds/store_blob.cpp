// Blobs of a store: the samples of its tests.

#include "fuzz/seeds/seeds.h"
#include "store/blob_fixture.h"

namespace tqcache::fuzz {

void make_store_blob(const SeedFolder& seeds) {
  for (const test::SampleBlob& each : test::sample_blobs()) {
    seeds.add(each.name, test::must(store::encode_blob(each.key, each.content)));
  }
}

}  // namespace tqcache::fuzz
