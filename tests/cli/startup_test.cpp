// What the program loads and needs before it does anything.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "cli/demo.h"
#include "cli/program.h"

namespace tqcache::test {
namespace startup_test {

using testing::HasSubstr;

const std::string kGolden = TQCACHE_GOLDEN_V2_FILES;

TEST(Startup, InfoWorksInALittleAddressSpace) {
#if TQCACHE_IS_SANITIZED
  GTEST_SKIP() << "sanitizers map terabytes";
#else
  RunOptions options;
  options.address_space = 200'000 * 1024;  // ulimit -v 200000
  EXPECT_THAT(must({"info", kGolden + "/planes.tqkv"}, options).out, HasSubstr("tokens"));
  EXPECT_THAT(must({"verify", kGolden + "/planes.tqkv"}, options).exit_code, 0);
#endif
}

TEST(Startup, EveryLimitOfMemoryEndsWithAResultOrAMessage) {
#if TQCACHE_IS_SANITIZED
  GTEST_SKIP() << "sanitizers map terabytes";
#elif defined(TQCACHE_TEST_EMULATED)
  GTEST_SKIP() << "the emulator holds no program to the limit";
#else
  const TempDir dir;
  const std::string cache = prefill_book(dir, 300);
  int n_refused = 0, n_done = 0;
  for (const std::uint64_t limit : {60'000u, 70'000u, 100'000u, 200'000u, 600'000u, 3'000'000u}) {
    const std::string out = (dir / "out.kv").string();
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"verify", cache},
          {"verify", cache, "-m", kModel},
          {"convert", cache, out, "-f"},
          {"prefill", "-m", kModel, "--file", kBook, "--max-tokens", "300", "-o", out, "-f"},
          {"generate", "-m", kModel, "--cache", cache, "-p", book_text(900), "-n", "2"}}) {
      SCOPED_TRACE(fmt::format("{} at {} KB", args.front(), limit));
      RunOptions options;
      options.address_space = limit * 1024;
      const Output output = tqcache(args, options);
      if (output.exit_code == 0) {
        ++n_done;
        continue;
      }
      ++n_refused;
      EXPECT_EQ(output.exit_code, 1);
      EXPECT_THAT(output.err, HasSubstr("memory"));
    }
  }
  EXPECT_GT(n_refused, 0);
  EXPECT_GE(n_done, 15);
#endif
}

// A folder that core dumps are written to, without a limit to their size.
class WithCoreDumps {
 public:
  WithCoreDumps() {
    std::filesystem::current_path(folder_.path());
    ::getrlimit(RLIMIT_CORE, &before_);
    const rlimit most = {before_.rlim_max, before_.rlim_max};
    ::setrlimit(RLIMIT_CORE, &most);
  }
  ~WithCoreDumps() {
    ::setrlimit(RLIMIT_CORE, &before_);
    std::filesystem::current_path(folder_before_);
  }

  // Whether the system writes dumps at all: of a process that only aborts.
  static bool are_possible() {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGABRT, SIG_DFL);
      std::abort();
    }
    int status = 0;
    return ::waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WCOREDUMP(status);
  }

 private:
  std::filesystem::path folder_before_ = std::filesystem::current_path();
  TempDir folder_;
  rlimit before_ = {};
};

// Crashes while a prompt is in memory. Returns whether a core dump was left.
bool leaves_core_dump(const std::vector<std::string>& flags) {
  std::vector<std::string> args = flags;
  args.insert(args.end(), {"chat", "-m", kModel, "-n", "4"});
  Conversation chat(args, Conversation::At::kPipe);
  chat.type("Hello\n");
  chat.wait_for("\n");
  chat.send_signal(SIGABRT);
  EXPECT_EQ(chat.finish(), 128 + SIGABRT);
  return chat.left_core_dump();
}

TEST(CoreDumps, AreLeftOnlyWhereAllowed) {
#if TQCACHE_IS_SANITIZED
  GTEST_SKIP() << "AddressSanitizer forbids core dumps itself";
#else
  const WithCoreDumps possible;
  if (!WithCoreDumps::are_possible()) GTEST_SKIP() << "this system writes no core dumps";
  EXPECT_FALSE(leaves_core_dump({}));
  EXPECT_TRUE(leaves_core_dump({"--core-dumps"}));
#endif
}

// Whether the user of the program owns its memory in /proc, and so may attach to it and read that.
// It belongs to root otherwise.
bool is_open_to_its_user(const std::vector<std::string>& flags) {
  std::vector<std::string> args = flags;
  args.insert(args.end(), {"chat", "-m", kModel, "-n", "4"});
  Conversation chat(args, Conversation::At::kPipe);
  chat.type("Hello\n");
  chat.wait_for("\n");
  struct stat about = {};
  if (::stat(("/proc/" + std::to_string(chat.pid()) + "/mem").c_str(), &about) != 0) {
    throw std::runtime_error("no memory in /proc");
  }
  return about.st_uid == ::getuid();
}

// The exit code of `body` in a process of a user without rights.
int as_nobody(int (*body)()) {
  constexpr unsigned kNobody = 65534;
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 125;
    try {
      if (::getuid() != 0 || (::setgid(kNobody) == 0 && ::setuid(kNobody) == 0)) code = body();
    } catch (const std::exception&) {
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(CoreDumps, OtherProcessesMayReadTheMemoryOnlyWhereAllowed) {
  if (as_nobody([] { return ::access(TQCACHE_PROGRAM, X_OK) + ::access(kModel.c_str(), R_OK); }) !=
      0) {
    GTEST_SKIP() << "the build folder is not open to other users";
  }
  EXPECT_EQ(as_nobody([] { return is_open_to_its_user({}) ? 1 : 0; }), 0);
  EXPECT_EQ(as_nobody([] { return is_open_to_its_user({"--core-dumps"}) ? 1 : 0; }), 1);
}

TEST(Startup, CoreDumpsIsAFlagBeforeTheVerb) {
  EXPECT_THAT(must({"--core-dumps", "info", kGolden + "/planes.tqkv"}).out, HasSubstr("tokens"));
  EXPECT_THAT(must({"--help"}).out, HasSubstr("tqcache --core-dumps VERB"));
  EXPECT_EQ(tqcache({"info", "--core-dumps", kGolden + "/planes.tqkv"}).exit_code, 2);
}

}  // namespace startup_test
}  // namespace tqcache::test
