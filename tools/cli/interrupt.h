#pragma once
// tools/cli/interrupt.h: Ctrl-C and its relatives as a flag that long work looks at.

#include "tqcache/base/result.h"

namespace tqcache::cli {

// SIGINT and SIGTERM set the flag and cut waiting reads short. SIGPIPE and SIGXFSZ are ignored:
// the write that meets them fails and is reported as what it is.
void install_signal_handlers();

bool interrupted();

// Lowers the flag: what was made so far is about to be saved, and only another Ctrl-C ends that.
void acknowledge_interrupt();

// Waits until `fd` can be read or is at its end. False when interrupted, at whatever moment: a
// signal just before a plain read() would be noticed only after it.
bool wait_readable(int fd);

}  // namespace tqcache::cli
