#pragma once
// server/tqcache/serve/prompt_page.h: the page that shows which prompts a server keeps, and what
// was reused of the last ones.
//
// Plain HTML without scripts and external files. Texts of clients are escaped.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/serve/http_message.h"
#include "tqcache/serve/prompt_ledger.h"

namespace tqcache::serve {

struct PageFacts {
  std::string model = {};
  std::string store = {};      // URL without the password; empty: prompts are kept in memory only
  bool shows_text = false;     // columns with words of prompts
  bool is_of_one_key = false;  // other keys have other pages
  bool has_others = false;     // prompts of clients with a key, which this page does not show
  std::int64_t now = 0;
};

// Safe for untrusted texts. `recent`: the newest first.
std::string prompt_page(const PageFacts& facts, std::span<const KeptPrompt> prompts,
                        std::span<const PromptReuse> recent);

// The sums of each tenant, without names.
std::string totals_page(const PageFacts& facts, std::span<const TenantTotal> totals);

// The page with headers that forbid scripts, frames and external files.
Response page_response(std::string page);

// Who sees the sums of all tenants in place of the prompts of one.
struct PageAccess {
  std::vector<std::string> admin_keys = {};
  bool is_open = false;  // everybody who comes without a key
};

// Answers a request for the page: prompts of `tenant`, or of all, or the sums of all tenants.
//
// Who comes without a key sees prompts of clients without a key. If there are only prompts of
// clients with keys, or if the query is "key", a browser is asked for one (status 401).
Response answer_page(const Request& request, PageFacts facts, const PromptLedger& ledger,
                     std::optional<std::string_view> tenant, const PageAccess& access = {});

}  // namespace tqcache::serve
