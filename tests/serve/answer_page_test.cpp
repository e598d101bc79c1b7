// Who sees what on the page of kept prompts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tqcache/serve/prompt_page.h"

namespace tqcache::serve {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class AnswerPageTest : public testing::Test {
 protected:
  PromptLedger ledger_;
  PageFacts facts_ = {.model = "m", .now = 1'795'444'400};

  void keep(const std::string& tenant, std::int32_t n) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
    std::iota(tokens.begin(), tokens.end(), 0);
    ledger_.keep({tenant, "m"}, tokens, "", 1'795'444'000);
  }
  // As the proxy answers: the tenant is the key.
  Response open(const std::string& key, const std::string& query = "",
                const PageAccess& access = {}, const std::string& host = "127.0.0.1:8081") const {
    Request request;
    request.headers = {{"Host", host}};
    request.query = query;
    request.api_key = key;
    return answer_page(request, facts_, ledger_, key, access);
  }
  static std::string challenge_of(const Response& response) {
    for (const Header& header : response.headers) {
      if (header.name == "WWW-Authenticate") return header.value;
    }
    return "";
  }
};

TEST_F(AnswerPageTest, ABrowserIsAskedForAKeyWhenOnlyClientsWithKeysHavePrompts) {
  EXPECT_EQ(open("").status, 200);  // nobody has any
  keep("none", 1111);
  const Response asked = open("");
  EXPECT_EQ(asked.status, 401);
  EXPECT_THAT(challenge_of(asked), HasSubstr("Basic realm="));
  EXPECT_THAT(asked.body, Not(HasSubstr("1,111")));
  const Response own = open("none");
  EXPECT_EQ(own.status, 200);
  EXPECT_THAT(own.body, HasSubstr("<td>1,111</td>"));
  EXPECT_EQ(open("another").status, 200);
  EXPECT_THAT(open("another").body, Not(HasSubstr("1,111")));
}

TEST_F(AnswerPageTest, AShortPromptOfAClientWithAKeyIsEnoughToAskForOne) {
  ledger_.note("none", {.n_tokens = 20});
  EXPECT_EQ(open("").status, 401);
  EXPECT_THAT(open("none").body, HasSubstr("Last prompts"));
}

TEST_F(AnswerPageTest, WithoutAKeyThePageHasPromptsWithoutAKeyAndAWayToTheOthers) {
  keep("", 2222);
  EXPECT_THAT(open("").body, AllOf(HasSubstr("2,222"), Not(HasSubstr("?key"))));
  keep("ann", 1111);
  const Response page = open("");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, AllOf(HasSubstr("2,222"), Not(HasSubstr("1,111")), HasSubstr("\"?key\"")));
  EXPECT_EQ(open("", "key").status, 401);
  EXPECT_EQ(open("ann", "key").status, 200);
}

TEST_F(AnswerPageTest, AnAdministratorSeesTheSumsOfAllWithoutNames) {
  keep("ann", 1111);
  keep("bob", 2222);
  ledger_.hit({"bob", "m"}, std::vector<std::int32_t>(300, 7), 300, 2, 1'795'444'100);
  for (const Response& page :
       {open("root", "", {.admin_keys = {"x", "root"}}), open("", "", {.is_open = true})}) {
    EXPECT_EQ(page.status, 200);
    EXPECT_THAT(page.body, HasSubstr("<dt>Tenants</dt><dd>2</dd>"));
    EXPECT_THAT(page.body, HasSubstr("<dt>Prompts</dt><dd>3</dd>"));
    EXPECT_THAT(page.body, HasSubstr("<dt>Tokens reused</dt><dd>300</dd>"));
    for (const char* name : {"ann", "bob", "1,111", "2,222"}) {
      EXPECT_THAT(page.body, Not(HasSubstr(name)));
    }
    for (const KeptPrompt& prompt : ledger_.entries(std::nullopt)) {
      EXPECT_THAT(page.body, Not(HasSubstr(prompt.tenant)));
    }
  }
  // Others do not.
  for (const PageAccess& access :
       {PageAccess{.admin_keys = {"root"}}, PageAccess{.admin_keys = {"root"}, .is_open = true}}) {
    EXPECT_THAT(open("ann", "", access).body, Not(HasSubstr("Tenants")));
    EXPECT_THAT(open("roo", "", access).body, Not(HasSubstr("Tenants")));
  }
  EXPECT_EQ(open("", "", {.admin_keys = {"root"}}).status, 401);
  EXPECT_EQ(open("", "", {.admin_keys = {""}}).status, 401);
}

TEST_F(AnswerPageTest, TheLastPromptsSayWhereTheyPart) {
  ledger_.note("ann", {.n_tokens = 12'034,
                       .n_reused = 37,
                       .from = ReuseSource::kSlot,
                       .parts_at = 37,
                       .parts_of = 12'000,
                       .here = "<b>Tuesday",
                       .there = "Monday",
                       .time = 1'795'444'336});
  ledger_.note("ann", {.n_tokens = 5000, .n_reused = 4999, .from = ReuseSource::kStore});
  ledger_.note("ann", {.n_tokens = 6000, .parts_at = 0, .parts_of = 12'000});
  const std::string page = open("ann").body;
  EXPECT_THAT(page, HasSubstr("<td>12,034</td><td>37</td><td>slot</td>"
                              "<td>at token 37 of 12,000</td>"));
  EXPECT_THAT(page, HasSubstr("<td>5,000</td><td>4,999</td><td>store</td><td></td>"));
  EXPECT_THAT(page, HasSubstr("<td>6,000</td><td>0</td><td></td><td>begins like no other</td>"));
  EXPECT_LT(page.find("6,000"), page.find("12,034"));  // the newest first
  EXPECT_THAT(page, Not(HasSubstr("Monday")));
  facts_.shows_text = true;
  EXPECT_THAT(open("ann").body, HasSubstr("&lt;b&gt;Tuesday <br>Monday"));
}

TEST_F(AnswerPageTest, OneTenantForAllIsNeverAskedForAKey) {
  keep("", 2222);
  keep("", 3333);
  EXPECT_EQ(open("").status, 200);
  Request request;
  request.headers = {{"Host", "localhost"}};
  keep("salt of the server", 1111);
  EXPECT_EQ(answer_page(request, facts_, ledger_, std::nullopt).status, 200);
}

}  // namespace
}  // namespace tqcache::serve
