#include "cli/store_salt.h"

#include <cstdlib>
#include <memory>
#include <span>

#include "cli/outcome.h"
#include "tqcache/base/file.h"

namespace tqcache::cli {
namespace {

constexpr std::size_t kMaxSaltBytes = 4096;

Error too_long() { return {ErrorCode::kTooLarge, "a salt has up to 4,096 bytes"}; }

Result<std::string> read_salt(const std::string& path) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> file, open_file(path));
  if (file->size() > kMaxSaltBytes) return too_long();
  std::string salt(static_cast<std::size_t>(file->size()), '\0');
  TQC_TRY(file->read_at(0, std::as_writable_bytes(std::span(salt))));
  while (salt.ends_with('\n') || salt.ends_with('\r')) salt.pop_back();
  if (salt.empty()) return usage_error("the salt is empty");
  return salt;
}

}  // namespace

Result<std::string> tenant_salt(const std::string& file) {
  if (!file.empty()) {
    auto salt = read_salt(file);
    if (!salt) return in_context("--salt-file " + file, std::move(salt).error());
    return salt;
  }
  const char* const variable = std::getenv("TQCACHE_STORE_SALT");
  std::string salt = variable == nullptr ? "" : variable;
  if (salt.size() > kMaxSaltBytes) return in_context("TQCACHE_STORE_SALT", too_long());
  return salt;
}

}  // namespace tqcache::cli
