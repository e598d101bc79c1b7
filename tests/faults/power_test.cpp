// Loss of power: what was not flushed may be on disk or not, in any order and in parts.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "disk_recorder.h"
#include "operation_parts.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/tqkv.h"

namespace tqcache::faults {
namespace power_test {

namespace fs = std::filesystem;
using test::must;
using test::TempDir;
using Kind = DiskStep::Kind;

std::vector<DiskStep> steps_of(const Operation& operation) {
  prepare(operation);
  const TempDir folder;
  set_up(operation, folder.path());
  const DiskRecording recording;
  must(operation.run(folder.path()));
  return recording.steps();
}

// strace's part is not played here.
std::vector<Operation> plain_operations() {
  std::vector<Operation> plain = operations();
  std::erase_if(plain, [](const Operation& each) { return !each.always.empty(); });
  return plain;
}

class Flushes : public testing::TestWithParam<Operation> {};

INSTANTIATE_TEST_SUITE_P(Operations, Flushes, testing::ValuesIn(plain_operations()),
                         [](const auto& each) { return std::string(each.param.name); });

// A name that is on disk before its file is would stand for anything.
TEST_P(Flushes, ComeBeforeANameAndBeforeTheEnd) {
  std::set<std::uint64_t> unflushed;  // files
  bool names_unflushed = false;
  int n_writes = 0;
  for (const DiskStep& step : steps_of(GetParam())) {
    if (step.kind == Kind::kName) {
      EXPECT_FALSE(unflushed.contains(step.inode));
      EXPECT_FALSE(names_unflushed) << "of the backup, before that of the new file";
      names_unflushed = true;
    } else if (step.kind != Kind::kFlush) {
      unflushed.insert(step.inode);
      ++n_writes;
    } else if (step.is_folder) {
      names_unflushed = false;
    } else {
      unflushed.erase(step.inode);
    }
  }
  EXPECT_GT(n_writes, 5);
  EXPECT_TRUE(unflushed.empty());
  EXPECT_FALSE(names_unflushed);
}

// Of a plain file, 16 bytes here and there: token ids and values.
std::vector<Bytes> secrets() {
  std::vector<Bytes> parts;
  for (const cache::Cache* cache : {&old_cache(), &new_cache()}) {
    format::WriteOptions options = write_options();
    options.compression = format::Compression::kNone;
    const Bytes plain = must(format::write_cache_bytes(*cache, options));
    const auto add = [&](ByteView bytes) {
      for (std::size_t at = 0; at + 16 <= bytes.size(); at += 64) {
        const ByteView part = bytes.subspan(at, 16);
        if (std::ranges::count(part, part[0]) < 8) parts.emplace_back(part.begin(), part.end());
      }
    };
    add(object_bytes(cache->tokens));
    const auto info = must(format::read_cache_info(*memory_source(plain)));
    for (const format::SectionInfo& section : info.sections) {
      add(ByteView(plain).subspan(section.file_offset, section.stored_bytes));
    }
  }
  return parts;
}

// How many of them an operation writes, to whatever file.
std::size_t count_secrets(std::string_view name) {
  std::size_t n_found = 0;
  const std::vector<DiskStep> steps = steps_of(operation(name));
  for (const Bytes& secret : secrets()) {
    for (const DiskStep& step : steps) {
      const auto at =
          std::search(step.bytes.begin(), step.bytes.end(), secret.begin(), secret.end());
      n_found += at != step.bytes.end() ? 1u : 0u;
    }
  }
  return n_found;
}

TEST(EncryptedFiles, NeverPutTheirContentOnTheDisk) {
  EXPECT_GT(secrets().size(), 100u);
  EXPECT_GT(count_secrets("save_over"), 10u);
  for (const auto* name : {"save_encrypted", "append_encrypted", "compact_encrypted", "rekey"}) {
    EXPECT_EQ(count_secrets(name), 0u) << name;
  }
}

// Bytes that a disk writes as one, if it does so at all.
constexpr std::size_t kSectorBytes = 512;
// Less than any disk writes as one: even so.
constexpr std::size_t kWordBytes = 8;

// A file as it may be found after a loss of power.
class Disk {
 public:
  Disk(Bytes bytes, test::Random& random) : bytes_(std::move(bytes)), random_(random) {}

  void apply(const DiskStep& step) {
    if (step.kind == Kind::kCut) bytes_.resize(step.offset);
    if (step.kind == Kind::kWrite) put(step.offset, step.bytes);
  }

  // Nothing of the step, all of it, or parts of it with the others as they were, or zeros where the
  // file was shorter.
  void apply_perhaps(const DiskStep& step, std::size_t unit) {
    const std::uint64_t choice = random_.below(3);
    if (choice == 0) return;
    if (choice == 1 || step.kind == Kind::kCut) return apply(step);
    const std::uint64_t end = step.offset + step.bytes.size();
    for (std::uint64_t at = step.offset; at < end;) {
      const std::uint64_t next = std::min((at / unit + 1) * unit, end);
      if (random_.below(2) == 0) put(at, ByteView(step.bytes).subspan(at - step.offset, next - at));
      at = next;
    }
    if (random_.below(2) == 0) bytes_.resize(std::max<std::uint64_t>(bytes_.size(), end));
  }

  const Bytes& bytes() const { return bytes_; }

 private:
  void put(std::uint64_t offset, ByteView bytes) {
    bytes_.resize(std::max<std::uint64_t>(bytes_.size(), offset + bytes.size()));
    std::ranges::copy(bytes, bytes_.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  Bytes bytes_;
  test::Random& random_;
};

// "old", "new", or what is wrong.
std::string state_of(const Bytes& file) {
  const auto source = memory_source(Bytes(file));
  const Result<cache::Cache> found = format::read_cache(*source, read_options());
  if (!found) return found.error().message;
  if (test::difference(*found, old_cache()).empty()) return "old";
  return test::difference(*found, new_cache()).empty() ? "new" : "neither old nor new";
}

std::string state_after_next_append(const Bytes& file) {
  const TempDir folder;
  test::write_all(folder / kTarget, file);
  if (const Result<void> result = operation("append").run(folder.path()); !result) {
    return result.error().message;
  }
  return operation("append").state(folder.path());
}

TEST(LossOfPower, LeavesTheOldFileOrTheNewOneAtAnyMomentOfAnAppend) {
  const std::vector<DiskStep> steps = steps_of(operation("append"));
  test::Random random(4);
  std::map<std::string, int> seen;
  std::size_t flushed = 0;  // steps that are on disk
  for (std::size_t done = 0; done <= steps.size(); ++done) {
    if (done > 0 && steps[done - 1].kind == Kind::kFlush) flushed = done;
    for (int trial = 0; trial < 40; ++trial) {
      Disk disk(operation("append").before().at(kTargetName), random);
      const std::size_t unit = trial % 2 == 0 ? kSectorBytes : kWordBytes;
      for (std::size_t i = 0; i < flushed; ++i) disk.apply(steps[i]);
      for (std::size_t i = flushed; i < done; ++i) disk.apply_perhaps(steps[i], unit);
      const std::string state = state_of(disk.bytes());
      ASSERT_TRUE(state == "old" || state == "new") << "step " << done << ": " << state;
      EXPECT_EQ(state_after_next_append(disk.bytes()), "new") << "step " << done;
      ++seen[state];
      EXPECT_TRUE(flushed < steps.size() || state == "new") << "it was said to be on disk";
    }
  }
  EXPECT_GT(seen["old"], 100);
  EXPECT_GT(seen["new"], 40);
}

}  // namespace power_test
}  // namespace tqcache::faults
