#include "tqcache/store/backends/store_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tqcache/store.h"

namespace tqcache::store {
namespace store_url_test {

using testing::HasSubstr;
using testing::Not;

TEST(StoreUrl, TakesAllPartsApart) {
  const auto url = parse_store_url("redis://me:se%40cret@host:123/4?prefix=a%2Fb&ttl=5");
  ASSERT_TRUE(url.ok()) << url.error().message;
  EXPECT_EQ(url->scheme, "redis");
  EXPECT_EQ(url->user, "me");
  EXPECT_EQ(url->password, "se@cret");
  EXPECT_EQ(url->host, "host");
  EXPECT_EQ(url->port, 123);
  EXPECT_EQ(url->path, "/4");
  EXPECT_EQ(url->query.at("prefix"), "a/b");
  EXPECT_EQ(url->query.at("ttl"), "5");
}

TEST(StoreUrl, TakesWhatThereIs) {
  EXPECT_EQ(parse_store_url("redis://:word@h")->password, "word");
  EXPECT_EQ(parse_store_url("s3://bucket")->host, "bucket");
  EXPECT_EQ(parse_store_url("redis://[::1]:7")->host, "::1");
  EXPECT_EQ(parse_store_url("redis://[::1]:7")->port, 7);
  EXPECT_EQ(parse_store_url("redis+unix:/run/s")->path, "/run/s");
}

TEST(StoreUrl, APathMayHaveAnAtSign) {
  EXPECT_EQ(parse_store_url("redis+unix:/run/a@b")->path, "/run/a@b");
  EXPECT_EQ(parse_store_url("redis+unix:///run/a@b")->path, "/run/a@b");
  EXPECT_EQ(parse_store_url("dir:/a?b@c")->path, "/a?b@c");
  EXPECT_EQ(parse_store_url("redis://:a%2Fb%3F@h")->password, "a/b?");
}

TEST(StoreUrl, LeavesAPathAsItIs) {
  EXPECT_EQ(parse_store_url("dir:a%20b?c&d:e")->path, "a%20b?c&d:e");
}

TEST(StoreUrl, RefusesWhatIsNone) {
  for (const char* text : {"", "folder", "redis://h:0", "redis://h:65536", "redis://h:",
                           "redis://h:1x", "redis://[::1", "redis://[::1]x", "redis://h/%",
                           "redis://h/%4", "redis://h/%00", "redis://h/%zz", "redis://h?a=1&a=2"}) {
    const auto url = parse_store_url(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_EQ(url.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(OpenBackend, RefusesWhatItDoesNotKnow) {
  for (const char* text :
       {"ftp://host/", "memory:name", "dir:", "redis://h?color=blue", "redis://h/x",
        "redis://h?ttl=0", "redis://h?ttl=soon", "redis://h?prefix=a*",
        "redis+unix:", "redis+unix://host/path", "s3://", "s3://b", "s3://bucket?endpoint=ftp://x",
        "s3://bucket?endpoint=http://", "s3://bucket?region=a/b", "s3://bucket/A",
        "s3://bucket?conditional=maybe", "s3://bucket?style=dns"}) {
    const auto backend = open_backend(text, {});
    ASSERT_FALSE(backend.ok()) << text;
    const bool is_left_out = backend.error().code == ErrorCode::kUnsupported;
    EXPECT_TRUE(is_left_out || backend.error().code == ErrorCode::kInvalidArgument)
        << text << ": " << backend.error().message;
  }
}

TEST(OpenBackend, SaysWhatToDoWithoutTls) {
  const auto backend = open_backend("rediss://user:secret@host", {});
  ASSERT_FALSE(backend.ok());
  EXPECT_EQ(backend.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(backend.error().message.find("stunnel"), std::string::npos);
  EXPECT_EQ(backend.error().message.find("secret"), std::string::npos);
}

TEST(OpenBackend, NeverShowsAPassword) {
  for (const char* text :
       {"redis://me:secret@h:x", "redis://me:secret@h?ttl=x", "redis://me:secret@h?a=1&a=2",
        "redis://:secret/rest@h", "redis://:pass/secret@h", "redis://:pass?secret@h",
        "redis://:secret", "redis://me:secret", "redis://:1/secret", "redis://:1?secret=1",
        "redis://:1?secret=1&secret=1", "redis+unix://:secret/x@/run/s", "redis://h/secret",
        "s3://bucket?endpoint=http://me:secret@h", "s3://bucket?endpoint=http://me:secret%40h",
        "s3://me:secret@bucket", "s3://me:secret"}) {
    const auto backend = open_backend(text, {});
    ASSERT_FALSE(backend.ok());
    EXPECT_THAT(backend.error().message, Not(HasSubstr("secret")));
  }
  const auto backend = open_backend("redis://me:secret@h", {});
  EXPECT_THAT(backend ? (*backend)->name() : "", Not(HasSubstr("secret")));
}

TEST(OpenBackend, NamesTheBuiltInBackends) {
  EXPECT_THAT(schemes(), testing::Contains("dir"));
  for (const std::string_view scheme : {"redis", "s3"}) {
    const bool is_there = std::ranges::count(schemes(), scheme) > 0;
    const auto backend = open_backend(std::string(scheme) + "://bucket?color=blue", {});
    ASSERT_FALSE(backend.ok());
    EXPECT_EQ(backend.error().code,
              is_there ? ErrorCode::kInvalidArgument : ErrorCode::kUnsupported);
  }
}

}  // namespace store_url_test
}  // namespace tqcache::store
