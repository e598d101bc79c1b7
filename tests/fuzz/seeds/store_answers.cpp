// What good servers answer, and indexes of a store in a folder.

#include <initializer_list>
#include <string>
#include <string_view>

#include "fuzz/fake_network.h"
#include "fuzz/seeds/seeds.h"

namespace tqcache::fuzz {
namespace {

using namespace std::string_view_literals;

// The first bytes choose a call and a way to name the store.
std::string input(std::initializer_list<int> choices,
                  std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const int choice : choices) text += static_cast<char>(choice);
  const char* border = "";
  for (const std::string_view part : parts) {
    text += border;
    text += part;
    border = "\x1e";
  }
  return text;
}

std::string http(std::string_view status, std::string_view body, std::string_view more = "") {
  std::string text = "HTTP/1.1 " + std::string(status) +
                     "\r\nDate: Mon, 23 Nov 2026 10:00:00 GMT\r\n" + std::string(more) +
                     "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  return text + std::string(body);
}

constexpr std::string_view kList =
    "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>"
    "<Contents><Key>b/0123/4567</Key><LastModified>2026-11-22T14:55:12.000Z</LastModified>"
    "<Size>120</Size></Contents><Contents><Key>some/where/p/89ab</Key>"
    "<LastModified>2026-11-22T14:55:12Z</LastModified><Size>7</Size></Contents>"
    "</ListBucketResult>"sv;
constexpr std::string_view kFirstPage =
    "<ListBucketResult><IsTruncated>true</IsTruncated>"
    "<NextContinuationToken>a/b+c=</NextContinuationToken></ListBucketResult>"sv;
constexpr std::string_view kNoBucket =
    "<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>"sv;

}  // namespace

void make_redis_answers(const SeedFolder& seeds) {
  seeds.add("get", input({0, 0}, {"$4\r\nblob\r\n"}));
  seeds.add("get_all", input({1, 0}, {"$1\r\na\r\n$-1\r\n$0\r\n\r\n"}));
  seeds.add("put", input({2, 8}, {"+OK\r\n"}));
  seeds.add("put_all", input({3, 0}, {"+OK\r\n$-1\r\n+OK\r\n"}));
  seeds.add("exists", input({4, 0}, {":1\r\n:0\r\n:1\r\n"}));
  seeds.add("remove", input({5, 4}, {"+OK\r\n:1\r\n"}));
  seeds.add("remove_if_same", input({6, 1}, {"+OK\r\n:0\r\n"}));
  seeds.add("list", input({7, 0}, {"-ERR This instance has cluster support disabled\r\n"
                                   "*2\r\n$1\r\n0\r\n*1\r\n$19\r\ntqcache:b/0123/4567\r\n"
                                   ":120\r\n:5\r\n"}));
  seeds.add(
      "list_cluster",
      input({8, 0}, {"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:6379\r\n$2\r\nid\r\n"
                     "*2\r\n$2\r\n17\r\n*0\r\n"
                     "*2\r\n$1\r\n0\r\n*1\r\n$19\r\ntqcache:b/0123/4567\r\n:120\r\n:5\r\n"}));
  seeds.add("touch", input({9, 3}, {"+OK\r\n:1\r\n:1\r\n:0\r\n"}));
  seeds.add("moved",
            input({0, 0}, {"-MOVED 3999 127.0.0.1:6381\r\n"
                           "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:6381\r\n",
                           "$4\r\nblob\r\n"}));
  seeds.add("moved_login", input({0, 1}, {"+OK\r\n-MOVED 3999 10.0.0.1:6381\r\n-ERR no\r\n",
                                          "+OK\r\n$4\r\nblob\r\n"}));
  seeds.add("ask", input({4, 0}, {"-ASK 3999 [::1]:6381\r\n:1\r\n:1\r\n", "+OK\r\n:1\r\n"}));
  seeds.add("broken", input({1, 0}, {"$1\r\na\r\n$9\r\nab", "$1\r\nb\r\n$1\r\nc\r\n"}));
  seeds.add("unknown_auth", input({0, 1}, {"-ERR unknown command 'AUTH', with args beginning with: "
                                           "'S3cr3tOfTheUser'\r\n"}));
  seeds.add("too_long", input({0, 0}, {"$100000000000\r\nabc"}));
  seeds.add("endless_array", input({0, 0}, {"*1000000000\r\n:1\r\n:1\r\n:1\r\n"}));
  seeds.add("busy", input({2, 0}, {"-LOADING Redis is loading the dataset in memory\r\n"}));
}

void make_s3_answers(const SeedFolder& seeds) {
  seeds.add("xml_list", input({0}, {kList}));
  seeds.add("xml_page", input({0}, {kFirstPage}));
  seeds.add("xml_error", input({0}, {kNoBucket}));
  seeds.add("time", input({64}, {"2026-11-22T14:55:12.000Z"}));
  seeds.add("url_redis", input({96}, {"a/bc?d"}));
  seeds.add("url_s3", input({97}, {"a:/b"}));
  seeds.add("get", input({128}, {http("200 OK", "blob")}));
  seeds.add("get_miss",
            input({128}, {http("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>")}));
  seeds.add("get_all",
            input({130}, {http("200 OK", "a"), http("200 OK", ""), http("404 Not Found", "")}));
  seeds.add("get_chunked",
            input({128},
                  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nblob\r\n0\r\n\r\n"}));
  seeds.add("no_bucket", input({128}, {http("404 Not Found", kNoBucket)}));
  seeds.add("put", input({132}, {http("200 OK", "")}));
  seeds.add("put_exists", input({132}, {http("412 Precondition Failed", "")}));
  seeds.add("put_conflict", input({132}, {http("409 Conflict", ""), http("200 OK", "")}));
  seeds.add("put_looking",
            input({135}, {http("404 Not Found", ""), http("200 OK", ""), http("200 OK", ""),
                          http("404 Not Found", ""), http("200 OK", "")}));
  seeds.add("exists",
            input({136}, {http("200 OK", ""), http("404 Not Found", ""), http("200 OK", "")}));
  seeds.add("remove", input({138}, {http("200 OK", ""), http("204 No Content", "")}));
  seeds.add("list", input({143}, {http("200 OK", kList)}));
  seeds.add("list_pages", input({143}, {http("200 OK", kFirstPage), http("200 OK", kList)}));
  seeds.add("touch", input({146}, {http("200 OK", "<CopyObjectResult/>"), http("200 OK", ""),
                                   http("404 Not Found", "")}));
  seeds.add("forbidden", input({128}, {http("403 Forbidden",
                                            "<Error><Code>SignatureDoesNotMatch"
                                            "</Code></Error>")}));
  seeds.add("busy", input({132}, {http("503 Slow Down", "<Error><Code>SlowDown</Code></Error>",
                                       "Retry-After: 0\r\n"),
                                  http("200 OK", "")}));
  seeds.add("redirect",
            input({128}, {http("307 Temporary Redirect", "", "Location: http://10.0.0.1/\r\n")}));
  seeds.add("cut", input({128}, {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nblob",
                                 http("200 OK", "b")}));
}

void make_sqlite_index(const SeedFolder& seeds) {
  constexpr auto kTables =
      "CREATE TABLE blob(  key TEXT PRIMARY KEY, bytes INTEGER NOT NULL, used INTEGER NOT NULL) "
      "WITHOUT ROWID;"
      "CREATE TABLE fact(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"sv;
  const auto with = [&](std::string_view more) { return std::string(kTables) + std::string(more); };
  seeds.add("empty", "");
  seeds.add("tables", kTables);
  seeds.add("rows", with("INSERT INTO blob VALUES('b/0123', 4, 1), ('p/89ab', 5, 2);"));
  seeds.add("negative", with("INSERT INTO blob VALUES('b/0123', -1, 99999999999);"));
  seeds.add("no_key", with("INSERT INTO blob VALUES('../x', 1, 1), ('B', 'x', 'y');"));
  seeds.add("long_key", with("INSERT INTO blob VALUES(printf('%2000000c', 'b'), 1, 1);"));
  seeds.add("view",
            "CREATE VIEW blob AS WITH RECURSIVE r(key, bytes, used) AS (SELECT 'b', 1, 1 UNION ALL "
            "SELECT key, bytes, used FROM r) SELECT * FROM r;");
  seeds.add("trigger", with("CREATE TRIGGER t AFTER INSERT ON blob BEGIN DELETE FROM blob; END;"));
  seeds.add("collation", "CREATE TABLE blob(key TEXT COLLATE NOCASE, bytes, used);");
  seeds.add("generated", "CREATE TABLE blob(key, bytes AS (length(key)), used AS (hex(key)));");
  seeds.add("index",
            with("CREATE INDEX i ON blob(abs(bytes)); INSERT INTO blob VALUES('b', 1, 1);"));
  seeds.add("virtual", "CREATE VIRTUAL TABLE blob USING fts5(key, bytes, used);");
  seeds.add("version", with("PRAGMA user_version = 7; PRAGMA application_id = 9;"));
  seeds.add("wal", with("PRAGMA journal_mode = WAL; INSERT INTO blob VALUES('b/0123', 4, 1);"));
  seeds.add("header", "SQLite format 3\0\x10\0\x01\x01\0\x40\x20\x20\0\0\0\x01\0\0\0\x01"sv);
}

}  // namespace tqcache::fuzz
