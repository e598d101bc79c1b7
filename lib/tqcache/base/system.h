#pragma once
// base/system.h: what Linux, macOS and Windows have different calls for.
//
// Calls that POSIX has are in base/posix.h. What is here for macOS has been compiled, and not been
// run (docs/support.md).

#ifndef _WIN32
#include <sys/socket.h>
#endif

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tqcache {

// As fsync: the bytes are on the disk when it returns, which on macOS takes another call.
// flush_data() may leave out times. Returns 0, or -1 and errno.
int flush_file(int fd);
int flush_data(int fd);

// Starts writing to the disk what was written to these bytes of a file, where that helps.
void start_writeback(int fd, std::uint64_t offset, std::uint64_t bytes);

// Opens a new file without a name in a folder, close-on-exec; -1 and errno.
int open_nameless(const std::filesystem::path& folder);

// Opens a new file that lies in memory, close-on-exec; -1 and errno.
int open_in_memory();

// A second descriptor of an open file, with the same position, close-on-exec; -1 and errno.
int duplicate_descriptor(int fd);

// The names in an open folder; empty if it cannot be listed.
std::vector<std::string> names_in(int folder);

// Renames within a folder, or fails with EEXIST. EINVAL, ENOSYS or ENOTSUP: the file system cannot
// do that in one step.
int rename_exclusively(int folder, const char* from, const char* to);

// Reads the first bytes of a file ahead, in the background, if they are not in memory.
void read_ahead(int fd, std::size_t bytes);

// A hint: this memory will be filled.
void use_huge_pages(void* memory, std::size_t bytes);

#ifndef _WIN32
// A pipe: close-on-exec, both ends non-blocking. Returns 0, or -1 and errno.
int open_pipe(int (&ends)[2]);

// A stream socket: close-on-exec and non-blocking; -1 and errno.
int open_socket(int family);

// Accepts a connection: close-on-exec and blocking; -1 and errno.
int accept_connection(int listener, sockaddr* from, socklen_t* size);

// The flag of send() with which a lost connection is an error and no signal.
extern const int kNoSignal;

// Whether the other side of a connection still sends. What it has sent may not have been read.
enum class PeerState { kOpen, kHalfClosed, kGone };
PeerState peer_state(int fd);

// A path that opens an open file again.
std::string path_of_descriptor(int fd);
#endif

// Whether files of a folder lie in memory and not on a disk.
bool is_in_memory(const char* folder);

// The file with the certificates that this system trusts, for TLS: distributions have it in
// different places. Empty if there is none.
std::string certificate_file();

// A name of this start of the system; empty if unknown.
std::string boot_name();

// {"Linux", "6.1.0-25-amd64", "x86_64"}; empty fields are unknown.
struct SystemName {
  std::string name, release, machine;
};
SystemName system_name();

// "AMD EPYC 9R14"; empty if the system does not tell.
std::string cpu_name();

// The memory of this machine, and what this process may have of it, in bytes; the largest number if
// unknown or not limited.
std::uint64_t machine_memory();
std::uint64_t process_memory_limit();

// The most memory that this process has had, in bytes.
std::uint64_t peak_memory();

}  // namespace tqcache
