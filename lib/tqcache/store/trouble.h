#pragma once
// store/trouble.h: how a library of prompts tells what went wrong and did not stop it.

#include <functional>
#include <string>

namespace tqcache::store {

// Told of each thing that was missing or damaged though it should have been there. May be empty.
using OnTrouble = std::function<void(const std::string& message)>;

}  // namespace tqcache::store
