// What a writer of zip files does where it gets large, and when the disk is full.

#include "tqcache/tensors/zip_writer.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "interop/zip_builder.h"
#include "support/file_size_limit.h"
#include "support/temp_dir.h"
#include "tqcache/file.h"
#include "tqcache/tensors/zip_archive.h"

namespace tqcache::tensors {
namespace zip_writer_test {

using test::must;
using test::TempDir;

TEST(ZipWriter, ADirectoryThatBeginsFarBehindTakesZip64) {
  // The member and the directory are smaller than this, and where the directory begins is not.
  const Bytes file = test::zip_file({{"a", Bytes(80)}, {"b", Bytes(80)}}, 200);
  EXPECT_NE(test::find_record(file, "PK\x06\x06"), std::string::npos);
  const auto zip = must(ZipArchive::open(memory_source(file)));
  Bytes all(80, std::byte{1});
  must(zip->read_end(1, all));
  EXPECT_EQ(all, Bytes(80));
}

Result<void> write_zip(const std::filesystem::path& path) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, Overwrite::kRefuse));
  ZipWriter zip(std::move(file));
  const Bytes values(100);
  const std::array<ByteView, 2> parts = {ByteView(values).first(60), ByteView(values).subspan(60)};
  TQC_TRY(zip.add("a", parts));
  return zip.finish();
}

TEST(ZipWriter, LeavesNothingWhereThereIsNoRoom) {
  const TempDir folder;
  constexpr std::uint64_t kNeeded = 200;
  // Ends in the local header, in each part of the member, and in the directory.
  for (const std::uint64_t room : {0u, 20u, 31u, 80u, 100u, 131u, 140u, 199u}) {
    const test::FileSizeLimit limit(room);
    const auto done = write_zip(folder / "zip");
    ASSERT_FALSE(done.ok()) << room;
    EXPECT_EQ(done.error().code, ErrorCode::kIo);
    EXPECT_EQ(folder.entry_count(), 0u);
  }
  const test::FileSizeLimit limit(kNeeded);
  EXPECT_TRUE(write_zip(folder / "zip").ok());
}

}  // namespace zip_writer_test
}  // namespace tqcache::tensors
