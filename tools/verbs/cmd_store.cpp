// tools/verbs/cmd_store.cpp: the verbs that `tqcache store` has.

#include <array>

#include "verbs/store_verbs.h"

namespace tqcache::cli {
namespace {

// "store NAME": as it stands on the command line, in help and in messages.
constexpr std::array kStoreVerbs = {
    Verb{"store put", "Put a cache file into a store, under a name", define_store_put},
    Verb{"store get", "Fetch a prompt as a file, by its name or by its longest stored beginning",
         define_store_get},
    Verb{"store find", "Tell how much of a prompt is there", define_store_find},
    Verb{"store ls", "List the prompts that are kept", define_store_ls},
    Verb{"store info", "Tell what is kept under a name", define_store_info},
    Verb{"store rm", "Keep prompts no longer", define_store_rm},
    Verb{"store gc", "Make a store smaller: what was not used for longest goes first",
         define_store_gc},
    Verb{"store stats", "Tell what a store holds, what sharing saves, and how often it was of use",
         define_store_stats},
    Verb{"store check", "Check that all is there, and with --read-data that all is whole",
         define_store_check},
    Verb{"store copy", "Copy prompts, or everything, from one store to another", define_store_copy},
};

}  // namespace

std::span<const Verb> store_verbs() { return kStoreVerbs; }

}  // namespace tqcache::cli
