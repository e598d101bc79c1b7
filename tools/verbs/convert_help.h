#pragma once
// tools/verbs/convert_help.h: the prose and the examples of tqcache convert --help-all.

#include <string>

namespace tqcache::cli {

// For FlagSet::footer().
std::string convert_help();

}  // namespace tqcache::cli
