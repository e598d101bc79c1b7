#include "operations.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "operation_parts.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"

namespace tqcache::faults {

namespace fs = std::filesystem;
using test::must;

format::WriteOptions write_options(Overwrite overwrite) {
  format::WriteOptions options;
  options.n_threads = 1;
  options.overwrite = overwrite;
  return options;
}

KeyRing test_keys(int number) {
  return must(KeyRing::parse(Bytes(32, std::byte(static_cast<unsigned char>(number)))));
}

format::ReadOptions read_options() {
  format::ReadOptions options;
  options.access.keys = test_keys(1);
  options.n_threads = 1;
  return options;
}

Result<cache::Cache> read_whole(const fs::path& path) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_file(path));
  TQC_TRY_ASSIGN(const format::VerifyReport report, format::verify_cache(*source, read_options()));
  if (!report.damage.empty()) return Error{ErrorCode::kCorrupt, report.damage.front()};
  return format::read_cache(*source, read_options());
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = [] {
    std::vector<Operation> rows = writing_operations();
    std::ranges::move(migrating_operations(), std::back_inserter(rows));
    return rows;
  }();
  return all;
}

const Operation& operation(std::string_view name) {
  for (const Operation& candidate : operations()) {
    if (candidate.name == name) return candidate;
  }
  throw std::invalid_argument("no operation " + std::string(name));
}

void prepare(const Operation& operation) {
  const test::TempDir elsewhere;
  set_up(operation, elsewhere.path());
  must(operation.run(elsewhere.path()));
  const std::string state = operation.state(elsewhere.path());
  if (state != "new") throw std::runtime_error(state);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

std::set<std::string> names_before(const Operation& operation) {
  std::set<std::string> names;
  for (const auto& [name, bytes] : operation.before()) names.insert(name);
  return names;
}

void set_up(const Operation& operation, const fs::path& folder) {
  for (const auto& [name, bytes] : operation.before()) test::write_all(folder / name, bytes);
}

}  // namespace tqcache::faults
