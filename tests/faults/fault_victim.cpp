// fault_victim [--short-transfers] [--file-limit BYTES] [--as-nobody] OPERATION FOLDER
//
// Does one operation in the folder and ends, with 0 or a status that tells the ErrorCode. A system
// call that does nothing marks where it begins.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "operations.h"
#include "victim.h"

namespace {

constexpr std::size_t kMost = 7;
bool short_transfers = false;

std::size_t shortened(std::size_t count) {
  return short_transfers ? std::min(count, kMost) : count;
}

}  // namespace

// In the place of the C library's: the system may always read and write less than it was asked to.
extern "C" ssize_t write(int fd, const void* bytes, std::size_t count) {
  return ::syscall(SYS_write, fd, bytes, shortened(count));
}
extern "C" ssize_t pwrite(int fd, const void* bytes, std::size_t count, off_t offset) {
  return ::syscall(SYS_pwrite64, fd, bytes, shortened(count), offset);
}
extern "C" ssize_t pread(int fd, void* bytes, std::size_t count, off_t offset) {
  return ::syscall(SYS_pread64, fd, bytes, shortened(count), offset);
}

namespace tqcache::faults {
namespace {

struct Arguments {
  bool short_transfers = false;
  bool as_nobody = false;
  rlim_t file_limit = RLIM_INFINITY;
  std::string_view operation;
  const char* folder = "";
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  int i = 1;
  for (; i < argc && std::string_view(argv[i]).starts_with("--"); ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--short-transfers") arguments.short_transfers = true;
    if (flag == "--as-nobody") arguments.as_nobody = true;
    if (flag == "--file-limit") arguments.file_limit = std::strtoul(argv[++i], nullptr, 10);
  }
  if (argc - i == 2) {
    arguments.operation = argv[i];
    arguments.folder = argv[i + 1];
  }
  return arguments;
}

// False when the system does not let us.
bool restrict_this_process(const Arguments& arguments) {
  constexpr uid_t kNobody = 65534;
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{arguments.file_limit, arguments.file_limit};
  if (arguments.file_limit != RLIM_INFINITY && ::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
  return !arguments.as_nobody || ::geteuid() != 0 || ::setuid(kNobody) == 0;
}

int run(const Arguments& arguments) {
  const Operation& wanted = operation(arguments.operation);
  prepare(wanted);
  if (!restrict_this_process(arguments)) return kNotPossibleHere;
  short_transfers = arguments.short_transfers;
  (void)::access(kMarker, F_OK);
  const Result<void> result = wanted.run(arguments.folder);
  if (result) return 0;
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  return status_of(result.error().code);
}

}  // namespace
}  // namespace tqcache::faults

int main(int argc, char** argv) { return tqcache::faults::run(tqcache::faults::parse(argc, argv)); }
