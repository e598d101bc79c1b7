// Every state that an append can be left in, or be seen in, is the old one or the new one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "append_fixture.h"

namespace tqcache::test {
namespace append_states_test {

using testing::ElementsAre;
using testing::IsEmpty;

Bytes random_bytes(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(n);
  for (std::byte& byte : bytes) byte = std::byte(random() & 0xff);
  return bytes;
}

std::ptrdiff_t at(std::size_t offset) { return static_cast<std::ptrdiff_t>(offset); }

// One append, and what the file is on the way: old, announced, grown, new.
class AppendStates : public testing::Test {
 protected:
  // The old file with the announcement, and then the first `n` bytes of what the append adds.
  Bytes grown_by(std::size_t n) const {
    Bytes file = old_file_;
    put_slot(file, format::announcement(header_of(old_file_).slot));
    file.insert(file.end(), new_file_.begin() + at(old_file_.size()),
                new_file_.begin() + at(old_file_.size() + n));
    return file;
  }
  Bytes announced() const { return grown_by(0); }
  Bytes written() const { return grown_by(new_file_.size() - old_file_.size()); }

  // The file gives the old state, and an append goes on from there as if nothing had been.
  void expect_old(const Bytes& file, std::uint64_t trailing_bytes) const {
    const cache::Cache loaded = must(load(file));
    EXPECT_EQ(difference(loaded, old_cache_), "");
    const CacheFileInfo info = info_of(file);
    EXPECT_EQ(info.trailing_bytes, trailing_bytes);
    EXPECT_EQ(info.file_bytes, old_file_.size());
    EXPECT_EQ(info.generation, 2u);
    const CacheOnDisk on_disk(file);
    must(on_disk.append(new_cache_));
    EXPECT_EQ(on_disk.bytes(), new_file_);
  }

  static Bytes file_after(const cache::Cache& first, const cache::Cache& second) {
    return appended_file(first, second);
  }

  const cache::Cache first_cache_ = CacheBuilder(3).dense({1, 4}).arrays().build();
  const cache::Cache old_cache_ = grown(first_cache_, 2, 1);
  const cache::Cache new_cache_ = grown(old_cache_, 300, 2);
  const Bytes old_file_ = appended_file(first_cache_, old_cache_);  // so that both slots are used
  const Bytes new_file_ = [this] {
    const CacheOnDisk file(old_file_);
    must(file.append(new_cache_));
    return file.bytes();
  }();
};

TEST_F(AppendStates, AnAnnouncementAloneIsNoDamage) {
  EXPECT_THAT(damage_of(announced()), IsEmpty());
  EXPECT_THAT(info_of(announced()).damage, IsEmpty());
  expect_old(announced(), 0);
}

TEST_F(AppendStates, BytesBehindTheEndAreAnnounced) {
  const std::size_t n_new = new_file_.size() - old_file_.size();
  for (const std::size_t n : {std::size_t{1}, std::size_t{63}, std::size_t{64}, n_new / 2, n_new}) {
    EXPECT_THAT(damage_of(grown_by(n)), IsEmpty());
    expect_old(grown_by(n), n);
  }
}

TEST_F(AppendStates, NobodyLooksAtBytesBehindTheEnd) {
  for (const std::size_t n : {1u, 64u, 5000u}) {
    Bytes file = announced();
    const Bytes garbage = random_bytes(n, 1);
    file.insert(file.end(), garbage.begin(), garbage.end());
    EXPECT_THAT(damage_of(file), IsEmpty());
    expect_old(file, n);
  }
}

TEST_F(AppendStates, NothingToAppendLeavesAnAnnouncement) {
  const CacheOnDisk file(grown_by(10));
  EXPECT_EQ(must(file.append(old_cache_)).bytes_written, 0u);
  EXPECT_EQ(file.bytes(), grown_by(10));
}

TEST_F(AppendStates, ATornSlotLeavesTheOldState) {
  const std::size_t slot = format::slot_index(3) * format::kSlotBytes;
  const std::size_t n_new = new_file_.size() - old_file_.size();
  for (std::size_t n = 0; n <= format::kSlotBytes; ++n) {
    Bytes file = written();
    std::copy(new_file_.begin() + at(slot), new_file_.begin() + at(slot + n),
              file.begin() + at(slot));
    if (file == written()) {
      expect_old(file, n_new);  // as much of it is the same in both
    } else if (file == new_file_) {
      EXPECT_EQ(difference(must(load(file)), new_cache_), "");
    } else {
      EXPECT_THAT(damage_of(file), ElementsAre("header slot 0: checksum mismatch"));
      EXPECT_THAT(info_of(file).damage, ElementsAre("header slot 0: checksum mismatch"));
      expect_old(file, n_new);
    }
  }
}

TEST_F(AppendStates, ATornAnnouncementLeavesTheOldState) {
  const std::size_t slot = format::slot_index(3) * format::kSlotBytes;
  for (std::size_t n = 1; n < format::kSlotBytes; ++n) {
    Bytes file = old_file_;
    const Bytes after = announced();
    std::copy(after.begin() + at(slot), after.begin() + at(slot + n), file.begin() + at(slot));
    expect_old(file, 0);
  }
}

TEST_F(AppendStates, BytesBehindTheEndThatNothingExplainsAreDamage) {
  for (const Bytes& whole : {old_file_, new_file_}) {
    for (std::size_t n = 1; n <= 16; ++n) {
      Bytes file = whole;
      file.resize(whole.size() + n);
      expect_refused(file, ErrorCode::kCorrupt, "bytes behind the end");
    }
  }
}

TEST_F(AppendStates, AShorterFileIsTruncated) {
  const auto expect_truncated = [](const Bytes& file, std::size_t size) {
    const Bytes cut(file.begin(), file.begin() + at(size));
    EXPECT_EQ(load(cut).error().code, ErrorCode::kTruncated) << size;
    EXPECT_FALSE(format::verify_cache(*memory_source(cut)).ok()) << size;
  };
  for (std::size_t size = 0; size < new_file_.size(); size += size < 200 ? 1 : 37) {
    expect_truncated(new_file_, size);
  }
  expect_truncated(announced(), old_file_.size() - 1);
}

TEST(AppendedFile, AnyBitThatFlipsIsFound) {
  const cache::Cache old_cache = CacheBuilder(3).dense({2, 4}).arrays().build();
  const cache::Cache new_cache = grown(old_cache, 2);
  const Bytes file = appended_file(old_cache, new_cache);
  for (std::size_t i = 0; i < file.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      Bytes damaged = file;
      damaged[i] ^= std::byte(1u << bit);
      ASSERT_FALSE(damage_of(damaged).empty()) << "byte " << i << " bit " << bit;
      const auto loaded = load(damaged, {.n_threads = 1});
      if (!loaded) continue;
      const bool is_old = loaded->n_tokens() == old_cache.n_tokens();
      ASSERT_EQ(difference(*loaded, is_old ? old_cache : new_cache), "") << i;
    }
  }
}

// A file that is in another state at every call, as if another process wrote it.
class ChangingSource : public ByteSource {
 public:
  // `state(i)` is the file at call i.
  explicit ChangingSource(std::function<const Bytes&(std::size_t call)> state)
      : state_(std::move(state)) {}

  std::uint64_t size() const override { return next().size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const Bytes& bytes = next();
    if (offset > bytes.size() || out.size() > bytes.size() - offset) {
      return Error{ErrorCode::kTruncated, "the source ends"};
    }
    std::ranges::copy(ByteView(bytes).subspan(offset, out.size()), out.begin());
    return {};
  }

 private:
  const Bytes& next() const { return state_(calls_++); }

  std::function<const Bytes&(std::size_t)> state_;
  mutable std::atomic<std::size_t> calls_ = 0;
};

class ReadingMeanwhile : public AppendStates {
 protected:
  void expect_old_or_new(const ByteSource& source, const std::string& what) const {
    const auto loaded = format::read_cache(source, {.n_threads = 1});
    ASSERT_TRUE(loaded.ok()) << what << ": " << loaded.error().message;
    const bool is_old = loaded->n_tokens() == old_cache_.n_tokens();
    EXPECT_EQ(difference(*loaded, is_old ? old_cache_ : new_cache_), "") << what;
  }

  const std::vector<Bytes> states_ = {old_file_, announced(), grown_by(100), written(), new_file_};
};

TEST_F(ReadingMeanwhile, SeesTheOldStateOrTheNewOne) {
  // The append goes through its states from call `start` on, `step` calls each.
  for (std::size_t start = 0; start < 30; ++start) {
    for (std::size_t step = 0; step < 6; ++step) {
      const ChangingSource source([&](std::size_t call) -> const Bytes& {
        if (call < start) return states_.front();
        if (step == 0) return states_.back();
        return states_[std::min((call - start) / step + 1, states_.size() - 1)];
      });
      std::string what = "start ";
      what.append(std::to_string(start)).append(" step ").append(std::to_string(step));
      expect_old_or_new(source, what);
    }
  }
}

TEST_F(ReadingMeanwhile, IsNotMisledByAnAppendThatFails) {
  for (std::size_t start = 0; start < 12; ++start) {
    for (std::size_t length = 1; length < 8; ++length) {
      const ChangingSource source([&](std::size_t call) -> const Bytes& {
        return states_[call >= start && call < start + length ? 2 : 0];
      });
      expect_old_or_new(source, std::to_string(start));
    }
  }
}

TEST_F(ReadingMeanwhile, GivesUpWhenTheHeaderNeverStandsStill) {
  const ChangingSource source(
      [&](std::size_t call) -> const Bytes& { return states_[call / 2 % 2 == 0 ? 0 : 1]; });
  EXPECT_EQ(format::read_cache(source).error().code, ErrorCode::kBusy);
}

TEST_F(ReadingMeanwhile, GivesUpWhenTheSizeNeverFits) {
  // Every look finds other bytes behind the end that nothing explains.
  Bytes longer = old_file_;
  const ChangingSource source([&](std::size_t) -> const Bytes& {
    longer.push_back(std::byte{0});
    return longer;
  });
  EXPECT_EQ(format::read_cache(source).error().code, ErrorCode::kBusy);
}

TEST(ReadingMeanwhileForReal, SeesOneStateAfterTheOther) {
  std::mt19937 random(1);
  cache::Cache cache = CacheBuilder(200).turbo({1, 32}, 4, 4).build();
  const CacheOnDisk file(cache);
  std::atomic<bool> done = false;
  std::thread writer([&] {
    format::CacheAppender appender = must(format::CacheAppender::open(file.path()));
    for (int i = 0; i < 60; ++i) {
      grow(cache, random, 5);
      must(appender.append(cache, CacheOnDisk::stored()));
    }
    done = true;
  });
  std::int64_t n_tokens = 0;
  while (!done) {
    const auto source = must(open_file(file.path()));
    const auto report = format::verify_cache(*source, {.n_threads = 1});
    EXPECT_TRUE(report.ok()) << report.error().message;
    if (!report) break;
    EXPECT_THAT(report->damage, IsEmpty());
    EXPECT_GE(report->info.n_tokens(), n_tokens);
    EXPECT_EQ(report->info.n_tokens() % 5, 0);
    n_tokens = report->info.n_tokens();
  }
  writer.join();
  EXPECT_EQ(difference(must(load(file.bytes())), cache), "");
}

}  // namespace append_states_test
}  // namespace tqcache::test
