#pragma once
// serve/prompt_page.h: the page that shows which prompts a server keeps.
//
// Plain HTML without scripts and external files. Texts of clients are escaped.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tqcache/serve/http_message.h"
#include "tqcache/serve/prompt_ledger.h"

namespace tqcache::serve {

struct PageFacts {
  std::string model;
  std::string store;           // URL without the password; empty: prompts are kept in memory only
  bool shows_text = false;     // a column with the beginning of each prompt
  bool is_of_one_key = false;  // other keys have other pages
  std::int64_t now = 0;
};

// Safe for untrusted texts.
std::string prompt_page(const PageFacts& facts, std::span<const KeptPrompt> prompts);

// The page with headers that forbid scripts, frames and external files.
Response page_response(std::string page);

// Answers a request for the page: prompts of `tenant`, or of all. The server has checked who asks
// (http_access.h).
Response answer_page(const Request& request, const PageFacts& facts, const PromptLedger& ledger,
                     std::optional<std::string_view> tenant);

}  // namespace tqcache::serve
