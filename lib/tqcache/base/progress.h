#pragma once
// base/progress.h: how long work tells its caller how far it is, and hears that it should stop.

#include <cstdint>
#include <functional>

namespace tqcache {

// Called now and then, from one thread at a time, with the work done and the whole of it (in
// units that the function taking it names). Returns false to stop: the work then ends with
// ErrorCode::kInterrupted and leaves nothing behind. May be empty.
using Progress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

}  // namespace tqcache
