#pragma once
// A process that puts something into a store until it is ended, and tells of all that was
// acknowledged.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "store/values.h"
#include "tqcache/store.h"

namespace tqcache::test {

class Writer {
 public:
  // Puts number i, or the next few from it on, and gives how many; 0 ends the process.
  using PutNext = std::function<int(store::Backend& store, int i)>;

  // Requires: nothing of this process has the store's index open, as locks do not survive fork().
  Writer(const std::string& url, const PutNext& put_next) {
    if (::pipe(pipe_) != 0) throw std::runtime_error("pipe failed");
    child_ = ::fork();
    if (child_ == 0) ::_exit(write_on(url, put_next));
    ::close(pipe_[1]);
  }
  ~Writer() {
    if (child_ > 0) end(SIGKILL);
    ::close(pipe_[0]);
  }
  Writer(const Writer&) = delete;

  // Waits until it has told of so many, or has ended.
  void wait_for(int n_wanted) {
    char told = 0;
    while (n_told_ < n_wanted && ::read(pipe_[0], &told, 1) == 1) ++n_told_;
  }
  // Gives how many it told of in all; the first ones are those.
  int kill() {
    end(SIGKILL);
    return n_told_;
  }
  // The same after its own end, which comes when a put fails.
  int wait() {
    end(0);
    return n_told_;
  }

 private:
  void end(int signal) {
    if (signal != 0) ::kill(child_, signal);
    wait_for(1 << 30);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }

  int write_on(const std::string& url, const PutNext& put_next) const {
    ::signal(SIGPIPE, SIG_IGN);
    const auto store =
        store::open_backend(url, {.credentials = store::credentials_of_environment()});
    for (int i = 0; store;) {
      const int count = put_next(**store, i);
      const std::string told(static_cast<std::size_t>(count), 'x');
      if (count == 0 || ::write(pipe_[1], told.data(), told.size()) != count) return 1;
      i += count;
    }
    return 1;
  }

  int pipe_[2] = {-1, -1};
  pid_t child_ = -1;
  int n_told_ = 0;
};

// The blobs PREFIX/0, PREFIX/1 and so on, to be put one by one and sometimes three at once.
struct NumberedBlobs {
  std::string prefix;

  std::string key(int i) const { return prefix + "/" + std::to_string(i); }
  static Bytes value(const std::string& key) { return value_of(key, size_of_value(key, 300'000)); }

  int operator()(store::Backend& store, int first) const {
    const int count = first % 5 == 2 ? 3 : 1;
    std::vector<Bytes> values;
    for (int i = first; i < first + count; ++i) values.push_back(value(key(i)));
    std::vector<store::Blob> blobs;
    for (int i = 0; i < count; ++i) {
      blobs.push_back({key(first + i), values[static_cast<std::size_t>(i)]});
    }
    return store.put(blobs).ok() ? count : 0;
  }
};

}  // namespace tqcache::test
