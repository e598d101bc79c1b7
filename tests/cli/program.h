#pragma once
// tests/cli/program.h: runs the tqcache program as a user does and catches all that it says.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tqcache::test {

struct Output {
  int exit_code = -1;
  std::string out;
  std::string err;
  std::uint64_t peak_bytes = 0;  // of memory; at least what the test itself has
};

struct RunOptions {
  std::string input = {};           // what standard input gives
  std::string out_path = {};        // write standard output to this file instead of catching it
  bool out_closed = false;          // nobody reads standard output
  std::uint64_t address_space = 0;  // bytes the program may map; 0: no limit
  std::vector<std::string> environment = {};  // NAME=VALUE, beside that of the test
};

// Runs `tqcache ARGS...` to its end. Throws when it cannot be started.
Output tqcache(const std::vector<std::string>& args, const RunOptions& options = {});

// The same for a program that must end well: throws with its words otherwise.
Output must(const std::vector<std::string>& args, const RunOptions& options = {});

// A running tqcache at a pseudo terminal, as a person has it, or with its input at a pipe.
class Conversation {
 public:
  enum class At { kTerminal, kPipe };
  // `environment`: NAME=VALUE, beside that of the test.
  Conversation(const std::vector<std::string>& args, At at,
               const std::vector<std::string>& environment = {});
  ~Conversation();
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  void type(const std::string& text);

  // Reads on until `text` has been seen after what was waited for before; throws after 280 s.
  void wait_for(const std::string& text);
  // Waits until the line editor has the terminal, which is just after its prompt. Only what is
  // typed from then on is a part of the line when Ctrl-C comes.
  void wait_for_editor();

  void send_signal(int signal);
  // Stops the program, and takes the terminal as a shell does after Ctrl-Z.
  void stop();

  // Reads until the program ends, and gives its exit code.
  int finish();

  pid_t pid() const { return pid_; }
  bool left_core_dump() const { return left_core_dump_; }  // after finish()
  const std::string& screen() const { return screen_; }    // all that was said, on both streams

 private:
  bool read_some();

  pid_t pid_ = -1;
  int write_fd_ = -1;
  int read_fd_ = -1;
  bool left_core_dump_ = false;
  std::string screen_;
  std::size_t seen_ = 0;
};

}  // namespace tqcache::test
