#pragma once
// support/file_size_limit.h: files that cannot grow, as on a disk that is full.

#include <signal.h>
#include <sys/resource.h>

#include <cstdint>

namespace tqcache::test {

// Lets no file of this process grow beyond so many bytes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::uint64_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  sighandler_t handler_ = ::signal(SIGXFSZ, SIG_IGN);
};

}  // namespace tqcache::test
