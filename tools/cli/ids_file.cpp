#include "cli/ids_file.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tqcache/base/file.h"
#include "tqcache/cache/cache.h"

namespace tqcache::cli {
namespace {

// An id of ten digits, a comma and a space for each token.
constexpr std::uint64_t kMaxBytes = std::uint64_t{cache::kMaxTokens} * 12 + 1024;

Error not_ids() { return {ErrorCode::kCorrupt, "not a JSON array of token ids"}; }

// Takes what the parser tells, so that nothing but numbers is ever kept.
class IdReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  Result<std::vector<std::int32_t>> take() && {
    if (is_too_long_) return Error{ErrorCode::kTooLarge, "more token ids than a cache may have"};
    if (!is_done_) return not_ids();
    return std::move(ids_);
  }

  bool start_array(std::size_t) override { return !std::exchange(is_open_, true); }
  bool end_array() override { return is_done_ = true; }
  bool number_unsigned(std::uint64_t id) override {
    if (!is_open_ || id > std::uint64_t{std::numeric_limits<std::int32_t>::max()}) return false;
    is_too_long_ = std::ssize(ids_) == cache::kMaxTokens;
    if (!is_too_long_) ids_.push_back(static_cast<std::int32_t>(id));
    return !is_too_long_;
  }
  bool null() override { return false; }
  bool boolean(bool) override { return false; }
  bool number_integer(std::int64_t) override { return false; }
  bool number_float(double, const std::string&) override { return false; }
  bool string(std::string&) override { return false; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return false; }
  bool key(std::string&) override { return false; }
  bool end_object() override { return false; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    is_done_ = false;
    return false;
  }

 private:
  std::vector<std::int32_t> ids_;
  bool is_open_ = false;
  bool is_done_ = false;
  bool is_too_long_ = false;
};

Result<std::vector<std::int32_t>> parse_ids(const Bytes& text) {
  IdReader reader;
  const auto* begin = reinterpret_cast<const char*>(text.data());
  nlohmann::json::sax_parse(begin, begin + text.size(), &reader);
  return std::move(reader).take();
}

}  // namespace

Outcome<std::vector<std::int32_t>> read_ids(const std::string& path) {
  TQC_TRY_ASSIGN(const Bytes text, in_file(path, read_file(path, kMaxBytes)));
  return in_file(path, parse_ids(text));
}

}  // namespace tqcache::cli
