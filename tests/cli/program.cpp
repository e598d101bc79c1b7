#include "cli/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "cli/json_schema.h"
#include "support/temp_dir.h"

namespace tqcache::test {
namespace {

constexpr int kWaitMilliseconds = 280'000;

[[noreturn]] void execute(const std::vector<std::string>& args) {
  std::vector<std::string> words = {TQCACHE_PROGRAM};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv.front(), argv.data());
  ::_exit(127);
}

void set_environment(const std::vector<std::string>& variables) {
  for (const std::string& variable : variables) ::putenv(const_cast<char*>(variable.c_str()));
}

// A program that then hangs is ended by the limit of CPU time.
void limit_memory(std::uint64_t bytes) {
  if (bytes == 0) return;
  const rlimit space = {bytes, bytes};
  ::setrlimit(RLIMIT_AS, &space);
  const rlimit seconds = {60, 60};
  ::setrlimit(RLIMIT_CPU, &seconds);
}

int open_or_throw(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (fd < 0) throw std::runtime_error("cannot open " + path);
  return fd;
}

// The end of a pipe that nobody reads.
int unread_pipe() {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  ::close(ends[0]);
  return ends[1];
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string joined(const std::vector<std::string>& words) {
  std::string text = "tqcache";
  for (const std::string& word : words) text += " " + word;
  return text;
}

}  // namespace

Output tqcache(const std::vector<std::string>& args, const RunOptions& options) {
  const TempDir dir;
  write_all(dir / "in", options.input);
  const std::string out = options.out_path.empty() ? (dir / "out").string() : options.out_path;
  const std::string err = (dir / "err").string();
  const int in_fd = open_or_throw((dir / "in").string(), O_RDONLY);
  const int out_fd = options.out_closed ? unread_pipe() : open_or_throw(out, O_CREAT | O_WRONLY);
  const int err_fd = open_or_throw(err, O_CREAT | O_WRONLY);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) {
    ::dup2(in_fd, STDIN_FILENO);
    ::dup2(out_fd, STDOUT_FILENO);
    ::dup2(err_fd, STDERR_FILENO);
    set_environment(options.environment);
    limit_memory(options.address_space);
    execute(args);
  }
  for (const int fd : {in_fd, out_fd, err_fd}) ::close(fd);
  int status = 0;
  rusage usage{};
  ::wait4(pid, &status, 0, &usage);
  Output output{exit_code_of(status), {}, read_text(err)};
  output.peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  if (options.out_path.empty() && !options.out_closed) output.out = read_text(out);
  const std::string wrong = json_mismatch(args, output.out, output.err, output.exit_code);
  EXPECT_EQ(wrong, "") << joined(args);
  return output;
}

Output must(const std::vector<std::string>& args, const RunOptions& options) {
  Output output = tqcache(args, options);
  if (output.exit_code != 0) {
    throw std::runtime_error(joined(args) + ": exit code " + std::to_string(output.exit_code) +
                             ": " + output.err);
  }
  return output;
}

Conversation::Conversation(const std::vector<std::string>& args, At at,
                           const std::vector<std::string>& environment) {
  if (at == At::kTerminal) {
    winsize size = {};
    size.ws_row = 24;
    size.ws_col = 200;  // no line wraps
    pid_ = ::forkpty(&read_fd_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      ::setenv("TERM", "xterm", 1);
      ::setenv("NO_COLOR", "1", 1);
      set_environment(environment);
      execute(args);
    }
    write_fd_ = read_fd_;
  } else {
    std::array<int, 2> in;
    std::array<int, 2> out;
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error("pipe2 failed");
    }
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::dup2(out[1], STDERR_FILENO);
      set_environment(environment);
      execute(args);
    }
    ::close(in[0]);
    ::close(out[1]);
    write_fd_ = in[1];
    read_fd_ = out[0];
  }
  if (pid_ < 0) throw std::runtime_error("fork failed");
}

Conversation::~Conversation() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(read_fd_);
  if (write_fd_ != read_fd_) ::close(write_fd_);
}

void Conversation::type(const std::string& text) {
  if (::write(write_fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw std::runtime_error("cannot type " + text);
  }
}

void Conversation::send_signal(int signal) { ::kill(pid_, signal); }

void Conversation::stop() {
  termios settings{};
  int status = 0;
  ::kill(pid_, SIGSTOP);
  if (::waitpid(pid_, &status, WUNTRACED) != pid_ || !WIFSTOPPED(status) ||
      ::tcgetattr(write_fd_, &settings) != 0) {
    throw std::runtime_error("not stopped");
  }
  settings.c_lflag |= ECHO | ICANON;
  if (::tcsetattr(write_fd_, TCSANOW, &settings) != 0) throw std::runtime_error("not a terminal");
}

bool Conversation::read_some() {
  pollfd waiting = {read_fd_, POLLIN, 0};
  if (::poll(&waiting, 1, kWaitMilliseconds) <= 0) {
    throw std::runtime_error("no answer in time; so far: " + screen_);
  }
  std::array<char, 4096> piece;
  const ssize_t n = ::read(read_fd_, piece.data(), piece.size());
  if (n <= 0) return false;  // a terminal whose program has ended gives EIO
  screen_.append(piece.data(), static_cast<std::size_t>(n));
  return true;
}

void Conversation::wait_for(const std::string& text) {
  std::size_t at = std::string::npos;
  while ((at = screen_.find(text, seen_)) == std::string::npos) {
    if (!read_some()) throw std::runtime_error("ended before \"" + text + "\"; said: " + screen_);
  }
  seen_ = at + text.size();
}

void Conversation::wait_for_editor() {
  termios settings{};
  do {
    if (::tcgetattr(write_fd_, &settings) != 0) throw std::runtime_error("not a terminal");
    ::usleep(1000);
  } while ((settings.c_lflag & ECHO) != 0);
}

int Conversation::finish() {
  while (read_some()) {
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  left_core_dump_ = WIFSIGNALED(status) && WCOREDUMP(status);
  return exit_code_of(status);
}

}  // namespace tqcache::test
