#include "tqcache/store/backends/s3_listing.h"

#include <expat.h>
#include <time.h>

#include <charconv>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "tqcache/store/backends/backend_support.h"

namespace tqcache::store {
namespace {

constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxTextBytes = 8192;

Error bad_listing(const std::string& what) {
  return {ErrorCode::kCorrupt, "list of objects: " + what};
}

// Calls `end` at the end of each element with its path ("ListBucketResult/Contents/Key") and its
// own text.
class XmlReader {
 public:
  using End = std::function<bool(const std::string& path, const std::string& text)>;

  explicit XmlReader(End end) : end_(std::move(end)), parser_(XML_ParserCreate("UTF-8")) {}

  bool read(ByteView xml) {
    if (!parser_ || xml.size() > INT32_MAX) return false;
    XML_SetUserData(parser_.get(), this);
    XML_SetElementHandler(parser_.get(), on_start, on_end);
    XML_SetCharacterDataHandler(parser_.get(), on_text);
    XML_SetStartDoctypeDeclHandler(parser_.get(), on_doctype);
    const auto* const text = reinterpret_cast<const char*>(xml.data());
    return XML_Parse(parser_.get(), text, static_cast<int>(xml.size()), XML_TRUE) == XML_STATUS_OK;
  }

 private:
  struct Free {
    void operator()(XML_Parser parser) const { XML_ParserFree(parser); }
  };

  static void on_start(void* user, const XML_Char* name, const XML_Char**) {
    XmlReader& self = *static_cast<XmlReader*>(user);
    if (self.open_.size() == kMaxDepth || self.path_.size() > kMaxTextBytes) return self.stop();
    self.open_.push_back(self.path_.size());
    self.path_ += (self.path_.empty() ? "" : "/") + std::string(name);
    self.text_.clear();
  }

  static void on_end(void* user, const XML_Char*) {
    XmlReader& self = *static_cast<XmlReader*>(user);
    if (self.stopped_) return;  // the end of an empty element is still reported
    if (!self.end_(self.path_, self.text_)) return self.stop();
    self.path_.resize(self.open_.back());
    self.open_.pop_back();
    self.text_.clear();
  }

  static void on_text(void* user, const XML_Char* text, int size) {
    XmlReader& self = *static_cast<XmlReader*>(user);
    if (self.text_.size() + static_cast<std::size_t>(size) > kMaxTextBytes) return self.stop();
    self.text_.append(text, static_cast<std::size_t>(size));
  }

  static void on_doctype(void* user, const XML_Char*, const XML_Char*, const XML_Char*, int) {
    static_cast<XmlReader*>(user)->stop();
  }

  void stop() {
    stopped_ = true;
    XML_StopParser(parser_.get(), XML_FALSE);
  }

  End end_;
  std::unique_ptr<std::remove_pointer_t<XML_Parser>, Free> parser_;
  std::string path_, text_;
  bool stopped_ = false;
  std::vector<std::size_t> open_;  // length of the path before each open element
};

// The fields of a list that are used.
struct ListingFields {
  S3Listing listing;
  S3Object object;
  bool is_listing = false;
  bool is_cut = false;
  Secrets secrets;
  std::string wrong;  // can be shown

  bool take(const std::string& path, const std::string& text) {
    if (path == "ListBucketResult") return is_listing = true;
    if (path == "ListBucketResult/IsTruncated") return is_cut = text == "true", true;
    if (path == "ListBucketResult/NextContinuationToken") return listing.next = text, true;
    if (path == "ListBucketResult/Contents/Key") return object.name = text, true;
    if (path == "ListBucketResult/Contents/Size") return take_size(text);
    if (path == "ListBucketResult/Contents/LastModified") return take_time(text);
    if (path == "ListBucketResult/Contents") listing.objects.push_back(std::exchange(object, {}));
    return true;
  }

  bool take_size(const std::string& text) {
    const auto [stop, status] =
        std::from_chars(text.data(), text.data() + text.size(), object.bytes);
    if (status == std::errc() && stop == text.data() + text.size()) return true;
    wrong = "size " + in_quotes(text, secrets);
    return false;
  }

  bool take_time(const std::string& text) {
    const std::optional<std::int64_t> time = parse_s3_time(text);
    if (time) object.modified = *time;
    if (!time) wrong = "time " + in_quotes(text, secrets);
    return time.has_value();
  }
};

}  // namespace

Result<S3Listing> parse_s3_listing(ByteView xml, Secrets secrets) {
  ListingFields fields;
  fields.secrets = secrets;
  XmlReader reader(
      [&](const std::string& path, const std::string& text) { return fields.take(path, text); });
  const bool read = reader.read(xml);
  if (!fields.wrong.empty()) return bad_listing(fields.wrong);
  if (!read || !fields.is_listing) return bad_listing("not understood");
  if (fields.is_cut && fields.listing.next.empty())
    return bad_listing("truncated without a continuation token");
  if (!fields.is_cut) fields.listing.next.clear();
  return std::move(fields.listing);
}

std::string parse_s3_error(ByteView xml) {
  std::string code;
  XmlReader reader([&](const std::string& path, const std::string& text) {
    if (path == "Error/Code") code = text;
    return true;
  });
  return reader.read(xml) ? code : "";
}

std::optional<std::int64_t> parse_s3_time(const std::string& text) {
  tm parts{};
  const char* const rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  const bool is_utc = rest != nullptr && text.ends_with('Z');
  if (!is_utc) return std::nullopt;
  return std::int64_t{::timegm(&parts)};
}

}  // namespace tqcache::store
