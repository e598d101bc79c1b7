#include "tqcache/store/backends/s3_listing.h"

#include <gtest/gtest.h>

namespace tqcache::store {
namespace s3_listing_test {

std::string in_list(const std::string& inner) {
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>"
         "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">" +
         inner + "</ListBucketResult>";
}

ErrorCode error_of(const std::string& xml) {
  const auto listing = parse_s3_listing(as_bytes(xml));
  EXPECT_FALSE(listing.ok()) << xml;
  return listing.ok() ? ErrorCode::kInterrupted : listing.error().code;
}

TEST(S3Listing, ReadsObjectsAndTheWayOn) {
  const auto listing = parse_s3_listing(
      as_bytes(in_list("<Name>bucket</Name><Prefix>p/</Prefix><IsTruncated>true</IsTruncated>"
                       "<Contents><Key>p/a&amp;b</Key><LastModified>1970-01-02T00:00:05.000Z</"
                       "LastModified><Size>5</Size>"
                       "<Owner><ID>x</ID></Owner></Contents>"
                       "<Contents><Key>p/c</Key><Size>0</Size></Contents>"
                       "<NextContinuationToken>more==</NextContinuationToken>")));
  ASSERT_TRUE(listing.ok()) << listing.error().message;
  ASSERT_EQ(listing->objects.size(), 2u);
  EXPECT_EQ(listing->objects[0].name, "p/a&b");
  EXPECT_EQ(listing->objects[0].bytes, 5u);
  EXPECT_EQ(listing->objects[0].modified, 86405);
  EXPECT_EQ(listing->objects[1].name, "p/c");
  EXPECT_EQ(listing->objects[1].modified, 0);
  EXPECT_EQ(listing->next, "more==");
}

TEST(S3Listing, EndsWhereItIsNotCut) {
  const auto listing = parse_s3_listing(as_bytes(
      in_list("<IsTruncated>false</IsTruncated><NextContinuationToken>x</NextContinuationToken>")));
  ASSERT_TRUE(listing.ok());
  EXPECT_EQ(listing->next, "");
}

TEST(S3Listing, RefusesWhatIsNone) {
  for (const std::string& xml :
       {std::string(), std::string("text"), std::string("<Error/>"),
        std::string("<ListBucketResult>"), in_list("<IsTruncated>true</IsTruncated>"),
        in_list("<Contents><Size>-1</Size></Contents>"),
        in_list("<Contents><Size>99999999999999999999</Size></Contents>"),
        in_list("<Contents><Size>1 2</Size></Contents>"),
        in_list("<Contents><LastModified>yesterday</LastModified></Contents>"), in_list("</x>"),
        in_list("") + in_list("")}) {
    EXPECT_EQ(error_of(xml), ErrorCode::kCorrupt);
  }
}

TEST(S3Listing, RefusesADocumentTypeOfItsOwn) {
  EXPECT_EQ(error_of("<!DOCTYPE x [<!ENTITY e \"eeee\">]>" + std::string("<ListBucketResult/>")),
            ErrorCode::kCorrupt);
}

TEST(S3Listing, RefusesDepthAndLengthWithoutEnd) {
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "<a>";
  EXPECT_EQ(error_of(in_list(deep)), ErrorCode::kCorrupt);
  EXPECT_EQ(error_of(in_list("<Contents><Key>" + std::string(10'000, 'k') + "</Key></Contents>")),
            ErrorCode::kCorrupt);
  EXPECT_EQ(
      error_of(in_list("<" + std::string(9'000, 'n') + "><b/></" + std::string(9'000, 'n') + ">")),
      ErrorCode::kCorrupt);
}

TEST(S3Error, IsReadFromItsCode) {
  EXPECT_EQ(parse_s3_error(as_bytes("<Error><Code>NoSuchKey</Code></Error>")), "NoSuchKey");
  EXPECT_EQ(parse_s3_error(as_bytes("<html>")), "");
  EXPECT_EQ(parse_s3_error({}), "");
}

TEST(S3Time, IsOfTheUniversalClock) {
  EXPECT_EQ(*parse_s3_time("2026-11-22T14:55:12.000Z"), 1795359312);
  for (const char* text : {"", "2026-11-22", "2026-11-22T14:55:12", "2026-13-22T14:55:12Z"}) {
    EXPECT_FALSE(parse_s3_time(text)) << text;
  }
}

}  // namespace s3_listing_test
}  // namespace tqcache::store
