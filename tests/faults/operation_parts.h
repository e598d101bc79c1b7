#pragma once
// faults/operation_parts.h: what the tables of operations have in common.

#include <string>

#include "operations.h"
#include "tqcache/tqkv.h"

namespace tqcache::faults {

using Files = std::map<std::string, Bytes>;

inline const std::string kTargetName(kTarget);

// A key, which read_options() has, and another one.
KeyRing test_keys(int number);

format::WriteOptions write_options(Overwrite overwrite = Overwrite::kRefuse);
format::ReadOptions read_options();

// What the writing operations make, and the same with fewer tokens.
const cache::Cache& new_cache();
const cache::Cache& old_cache();

// The cache in a file of the current version that is whole in every respect.
Result<cache::Cache> read_whole(const std::filesystem::path& path);

// The rows of operations().
std::vector<Operation> writing_operations();
std::vector<Operation> migrating_operations();

}  // namespace tqcache::faults
