// The page of the prompts that a proxy keeps.

#include <optional>
#include <string>

#include "serve/proxy_fixture.h"
#include "tqcache/serve/prompt_ledger.h"

namespace tqcache::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class ProxyPageTest : public ProxyTest {
 protected:
  ~ProxyPageTest() override { proxy_.reset(); }  // it uses the ledger

  std::string page_of(const std::string& headers) {
    return raw_exchange(proxy_->port(), "GET /tqcache HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers +
                                            "Connection: close\r\n\r\n");
  }
  static constexpr const char* kAnn = "Authorization: Bearer ann\r\n";

  serve::PromptLedger ledger_;
};

TEST_F(ProxyPageTest, ShowsThePromptsOfOneKey) {
  options_.ledger = &ledger_;
  options_.store_name = "memory:<b>";
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "first"}}, n_cached, kAnn);
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  EXPECT_THAT(page_of(kAnn), HasSubstr("<tbody>"));
  EXPECT_THAT(page_of(kAnn), HasSubstr("memory:&lt;b&gt;"));
  EXPECT_THAT(page_of(kAnn), Not(HasSubstr("sentence")));
  // The key as the password that a browser sends: "x:ann".
  EXPECT_THAT(page_of("Authorization: Basic eDphbm4=\r\n"), HasSubstr("<tbody>"));
  EXPECT_EQ(status_of(page_of("Authorization: Bearer bob\r\n")), 200);
  EXPECT_THAT(page_of("Authorization: Bearer bob\r\n"), Not(HasSubstr("<tbody>")));
  // A browser without the key is asked for it.
  for (const char* other : {"", "Authorization: Basic !!!!\r\n"}) {
    EXPECT_EQ(status_of(page_of(other)), 401);
    EXPECT_THAT(page_of(other), HasSubstr("WWW-Authenticate: Basic"));
    EXPECT_THAT(page_of(other), Not(HasSubstr("<tbody>"))) << other;
  }
  ASSERT_EQ(ledger_.entries(std::nullopt).size(), 1u);
  EXPECT_GT(ledger_.entries(std::nullopt)[0].stored_bytes, 1000u);
  EXPECT_EQ(ledger_.entries(std::nullopt)[0].hits, 0);

  start_llama();
  start_proxy();
  ask({{"system", long_text(1, 1500)}, {"user", "second"}}, n_cached, kAnn);
  EXPECT_TRUE(wait_until([&] { return ledger_.entries(std::nullopt)[0].hits == 1; }));
  EXPECT_GE(ledger_.entries(std::nullopt)[0].hit_tokens, 1024);
}

// Without a page file the list begins anew, and what was kept before is counted all the same.
TEST_F(ProxyPageTest, CountsWhatTheStoreGaveAfterARestartOfTheProxy) {
  options_.ledger = &ledger_;
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "first"}}, n_cached);
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  proxy_.reset();
  serve::PromptLedger other;
  options_.ledger = &other;
  start_llama();
  start_proxy();
  ask({{"system", long_text(1, 1500)}, {"user", "second"}}, n_cached);
  EXPECT_GE(n_cached, 1024);
  EXPECT_TRUE(wait_until([&] { return other.entries("").size() == 1; }));
  EXPECT_THAT(page_of(""), HasSubstr("<dt>Hits</dt><dd>1</dd>"));
  EXPECT_EQ(other.entries("")[0].hit_tokens, n_cached);
  proxy_.reset();  // it uses the other ledger
}

TEST_F(ProxyPageTest, AnAdministratorSeesTheSumsOfAllKeys) {
  options_.ledger = &ledger_;
  options_.page_access.admin_keys = {"root"};
  start_llama();
  start_proxy();
  std::int64_t n_cached = -1;
  ask({{"system", long_text(1, 1500)}, {"user", "first"}}, n_cached, kAnn);
  ASSERT_TRUE(wait_for_saves(1)) << proxy_->logged();
  EXPECT_THAT(page_of("Authorization: Bearer root\r\n"), HasSubstr("<dt>Tenants</dt><dd>1</dd>"));
  EXPECT_THAT(page_of(kAnn), Not(HasSubstr("Tenants")));
}

TEST_F(ProxyPageTest, WithoutALedgerThePathIsTheUpstreamServers) {
  start_llama();
  start_proxy();
  EXPECT_THAT(page_of(kAnn), Not(HasSubstr("<html")));
}

}  // namespace
}  // namespace tqcache::test
