// Ctrl-C and SIGTERM in the middle of long work: the exit code says so, and no part of a file
// stays.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "cli/demo.h"
#include "store/fake_server.h"
#include "support/long_file.h"

namespace tqcache::test {
namespace interrupt_test {

using Args = std::vector<std::string>;
using testing::HasSubstr;

constexpr int kInterrupted = 130;

// Seconds of work for one thread.
void write_large_file(const std::string& path) {
  const Result<void> written = write_long_file(path, 1200);
  ASSERT_TRUE(written.ok()) << written.error().message;
}

TEST(Interrupt, ConvertLeavesNoFile) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TempDir dir;
    const std::string large = (dir / "large.kv").string();
    write_large_file(large);
    Conversation run({"convert", large, (dir / "small.kv").string(), "--config", "archive",
                      "--bits", "3", "-t", "1"},
                     Conversation::At::kTerminal);
    run.wait_for("converting");
    run.send_signal(signal);
    EXPECT_EQ(run.finish(), kInterrupted);
    EXPECT_THAT(run.screen(), HasSubstr("interrupted"));
    EXPECT_EQ(dir.entry_count(), 1u);
  }
}

// What stood there before is kept.
TEST(Interrupt, ConvertKeepsTheOldFile) {
  const TempDir dir;
  const std::string large = (dir / "large.kv").string();
  const std::string old = (dir / "old.kv").string();
  write_large_file(large);
  must(write_long_file(old, 2));
  const Bytes before = read_all(old);
  Conversation run({"convert", large, old, "-f", "--config", "archive", "--bits", "3", "-t", "1"},
                   Conversation::At::kTerminal);
  run.wait_for("converting");
  run.send_signal(SIGINT);
  EXPECT_EQ(run.finish(), kInterrupted);
  EXPECT_EQ(read_all(old), before);
  EXPECT_EQ(dir.entry_count(), 2u);
}

TEST(Interrupt, PrefillLeavesNoFile) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TempDir dir;
    std::string ids = "1";
    for (int i = 0; i < 15'000; ++i) ids += ",1";
    Conversation run(
        {"prefill", "-m", kModel, "--ids", ids, "-t", "1", "-o", (dir / "new.kv").string()},
        Conversation::At::kTerminal);
    run.wait_for("prefill");
    run.send_signal(signal);
    EXPECT_EQ(run.finish(), kInterrupted);
    EXPECT_EQ(dir.entry_count(), 0u);
  }
}

// A text as long as many books, from a pipe: when all of it is written, the program has read all
// but the last part, and seconds of tokenizing lie before it.
TEST(Interrupt, ALongTextEndsBeforeItIsTokenized) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TempDir dir;
    const std::string pipe = (dir / "text").string();
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    Conversation run(
        {"prefill", "-m", kModel, "--file", pipe, "-t", "1", "-o", (dir / "new.kv").string()},
        Conversation::At::kPipe);
    {
      std::ofstream out(pipe);  // waits until the program opens it
      const std::string book = book_text(SIZE_MAX);
      for (std::size_t n = 0; n < (std::size_t{64} << 20); n += book.size()) out << book;
      ASSERT_TRUE(out.good());
    }
    run.send_signal(signal);
    EXPECT_EQ(run.finish(), kInterrupted);
    EXPECT_EQ(dir.entry_count(), 1u);
  }
}

// A server that never ends its answer.
TEST(Interrupt, StoreGetAndPutLeaveNoFile) {
  if (must({"--version"}).out.find("redis") == std::string::npos) GTEST_SKIP();
  const TempDir dir;
  const std::string book = prefill_book(dir, 300);
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const Args& verb : {Args{"get", "book", "-o", (dir / "new.kv").string()},
                             Args{"put", book, "--name", "book"}}) {
      const FakeServer server(Script{{kTrickle + "$1000\r\n"}});
      Args args = {"store"};
      args.insert(args.end(), verb.begin(), verb.end());
      args.insert(args.end(), {"--store", "redis://" + server.address()});
      Conversation run(args, Conversation::At::kPipe);
      while (server.asked().empty()) ::usleep(1000);
      run.send_signal(signal);
      EXPECT_EQ(run.finish(), kInterrupted) << verb[0] << run.screen();
      EXPECT_FALSE(server.has_given_up());
      EXPECT_EQ(dir.entry_count(), 1u);
    }
  }
}

}  // namespace interrupt_test
}  // namespace tqcache::test
