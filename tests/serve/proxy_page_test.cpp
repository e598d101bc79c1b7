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
  for (const char* other : {"", "Authorization: Bearer bob\r\n", "Authorization: Basic !!!!\r\n"}) {
    EXPECT_EQ(status_of(page_of(other)), 200);
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

TEST_F(ProxyPageTest, WithoutALedgerThePathIsTheUpstreamServers) {
  start_llama();
  start_proxy();
  EXPECT_THAT(page_of(kAnn), Not(HasSubstr("<html")));
}

}  // namespace
}  // namespace tqcache::test
