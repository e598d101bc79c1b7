#include "victim.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <stdexcept>

#include "support/temp_dir.h"

namespace tqcache::faults {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr int kNoSuchProgram = 127;

void close_output() {
  const int nowhere = ::open("/dev/null", O_WRONLY);
  ::dup2(nowhere, STDERR_FILENO);
}

int run_program(const Words& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    close_output();
    ::execvp(argv[0], argv.data());
    ::_exit(kNoSuchProgram);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) throw std::runtime_error("fork failed");
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoSuchProgram) {
    throw std::runtime_error(words[0] + " is missing: apt-get install strace");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

Words strace(const fs::path& log) { return {"strace", "-f", "-o", log.string()}; }

Words victim(const Operation& operation, const fs::path& folder, const Words& options) {
  Words words = {FAULT_VICTIM};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back(operation.name);
  words.push_back(folder.string());
  return words;
}

void append(Words& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

// The name in a line of the log, "PID NAME(ARGUMENTS) = RESULT"; empty in one of another kind.
std::string name_in(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(' ', line.find(' '));
  const std::size_t end = line.find('(', begin);
  if (begin == line.npos || end == line.npos) return {};
  const std::string name = line.substr(begin, end - begin);
  const bool is_name = name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == name.npos;
  return is_name ? name : std::string();
}

// Whether the operation had begun, and only then something was done to one of its calls.
bool was_hit(const fs::path& log, const std::string& name) {
  std::ifstream lines(log);
  bool begun = false;
  for (std::string line; std::getline(lines, line);) {
    const bool failed = line.ends_with("(INJECTED)") && name_in(line) == name;
    if (failed || line.ends_with("killed by SIGKILL +++")) return begun;
    begun = begun || line.find(kMarker) != line.npos;
  }
  return false;
}

// Between two calls that touch files one of these changes nothing that anyone could see; and how
// many there are depends on chance.
bool is_of_memory(std::string_view name) {
  constexpr std::array kOfMemory = {"brk",      "mmap",    "munmap", "mremap",
                                    "mprotect", "madvise", "futex",  "getrandom"};
  return std::ranges::any_of(kOfMemory, [&](std::string_view each) { return each == name; });
}

}  // namespace

std::vector<SystemCall> list_system_calls(const Operation& operation) {
  const test::TempDir folder;
  const test::TempDir elsewhere;
  set_up(operation, folder.path());
  const fs::path log = elsewhere / "log";
  Words words = strace(log);
  if (!operation.always.empty()) append(words, {"-e", "inject=" + std::string(operation.always)});
  append(words, {"-e", "trace=all"});
  append(words, victim(operation, folder.path(), {}));
  const int status = run_program(words);
  if (status != 0) throw std::runtime_error("the victim ended with " + std::to_string(status));

  std::ifstream lines(log);
  std::vector<SystemCall> calls;
  std::map<std::string, int> count;
  bool begun = false;
  for (std::string line; std::getline(lines, line);) {
    const std::string name = name_in(line);
    if (name.empty()) continue;
    const int number = ++count[name];
    const bool is_possible = !is_of_memory(name) && !operation.always.starts_with(name + ":");
    if (begun && is_possible) calls.push_back({name, number});
    begun = begun || line.find(kMarker) != line.npos;
  }
  return calls;
}

int run_victim(const Operation& operation, const fs::path& folder, const Words& options) {
  return run_program(victim(operation, folder, options));
}

int run_victim_with(const Operation& operation, const fs::path& folder, const SystemCall& call,
                    const std::string& deed, bool for_good) {
  const test::TempDir elsewhere;
  const fs::path log = elsewhere / "log";
  const std::string when = ":when=" + std::to_string(call.number) + (for_good ? "+" : "");
  Words words = strace(log);
  // Its filter in the kernel is quick, but lets no signal through.
  if (!deed.starts_with("signal=")) words.emplace_back("--seccomp-bpf");
  append(words, {"-e", "inject=" + call.name + ":" + deed + when});
  std::string traced = "trace=access," + call.name;
  if (!operation.always.empty()) {
    const std::string always(operation.always);
    append(words, {"-e", "inject=" + always});
    traced += "," + always.substr(0, always.find(':'));
  }
  append(words, {"-e", traced});
  append(words, victim(operation, folder, {}));
  const int status = run_program(words);
  if (was_hit(log, call.name)) return status;
  throw std::runtime_error(call.name + " did not come where it was expected");
}

}  // namespace tqcache::faults
