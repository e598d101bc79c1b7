#pragma once
// fuzz/memory_files.h: files of SQLite in memory, for a target that makes and opens a database for
// every input. SQLite makes some three hundred system calls for each, a third of its time.

#include <filesystem>

#include "tqcache/bytes.h"

namespace tqcache::fuzz {

// From now on SQLite keeps its files in memory. A database also has an empty file on disk, because
// stores tell by it whether they still have the same one: without that file the database is
// gone, and with another one it is empty. No two connections may have a database at a time.
void keep_sqlite_files_in_memory();

// Makes a database of these bytes.
void write_memory_file(const std::filesystem::path& path, ByteView bytes);

}  // namespace tqcache::fuzz
