#include "tqcache/serve/prompt_page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <initializer_list>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/hash.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::serve {
namespace {

constexpr std::string_view kPageStyle = R"(
:root{color-scheme:light dark;--ink:#1c1b22;--paper:#fff;--soft:#6a6775;--line:#dcd9e2}
@media(prefers-color-scheme:dark){:root{--ink:#eceaf2;--paper:#17161c;--soft:#a5a1b2;--line:#3a3844}}
body{margin:0 auto;max-width:70rem;padding:1.5rem 1rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.4rem;margin:0 0 .25rem}
h2{font-size:1.1rem;margin:1.75rem 0 .25rem}
a{color:inherit}
p{margin:.25rem 0;color:var(--soft)}
dl{display:flex;flex-wrap:wrap;gap:.5rem 2rem;margin:1.25rem 0}
dt{color:var(--soft);font-size:.85rem}
dd{margin:0;font-size:1.3rem;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th{color:var(--soft);font-weight:600;font-size:.85rem}
.text{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:14rem}
)";

std::string escape_html(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const tokenizer::Utf8Character c = tokenizer::first_character(text);
    const std::string_view bytes = text.substr(0, c.n_bytes);
    text.remove_prefix(c.n_bytes);
    const char32_t code = c.code_point;
    if (c.status != tokenizer::Utf8Status::kWhole || tokenizer::changes_direction(code)) {
      out += "\xEF\xBF\xBD";
    } else if (code == '\n' || code == '\t' || code == '\r') {
      out += ' ';
    } else if (tokenizer::is_control(code) || (code & 0xfffe) == 0xfffe ||
               (code >= 0xfdd0 && code <= 0xfdef)) {
      out += "\xEF\xBF\xBD";
    } else if (code == '&') {
      out += "&amp;";
    } else if (code == '<') {
      out += "&lt;";
    } else if (code == '>') {
      out += "&gt;";
    } else if (code == '"') {
      out += "&quot;";
    } else if (code == '\'') {
      out += "&#39;";
    } else {
      out += bytes;
    }
  }
  return out;
}

std::string with_commas(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::ptrdiff_t first = number < 0 ? 1 : 0;
  for (std::ptrdiff_t i = std::ssize(digits) - 3; i > first; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
  }
  return digits;
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double amount = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < kUnits.size(); ++unit) amount /= 1024;
  return fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

// "41.5 s", "12 min", "3.4 h"
std::string duration_text(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  if (seconds < 3600) return fmt::format("{:.1f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

std::string time_text(std::int64_t time) {
  const std::chrono::sys_seconds point{std::chrono::seconds(time)};
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::gmtime(std::chrono::system_clock::to_time_t(point)));
}

std::string term(std::string_view name, const std::string& value) {
  return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, value);
}

std::string table_head(std::initializer_list<const char*> names, const char* text_column) {
  std::string out = "<div class=\"wide\"><table>\n<thead><tr>";
  if (*text_column != '\0') {
    out += fmt::format("<th scope=\"col\" class=\"text\">{}</th>", text_column);
  }
  for (const char* name : names) out += fmt::format("<th scope=\"col\">{}</th>", name);
  return out + "</tr></thead>\n<tbody>\n";
}
constexpr const char* kTableEnd = "</tbody>\n</table></div>\n";

std::string row(const std::string& text_cell, std::initializer_list<std::string> cells) {
  std::string out = "<tr>" + text_cell;
  for (const std::string& cell : cells) out += "<td>" + cell + "</td>";
  return out + "</tr>\n";
}

std::string kept_table(std::span<const KeptPrompt> prompts, bool shows_text) {
  if (prompts.empty()) {
    return "<p>None yet. A prompt of 257 tokens or more is listed when it is kept, or when it "
           "begins "
           "with tokens that were kept before.</p>\n";
  }
  std::string out = table_head({"Tokens", "Added to the store", "Hits", "Tokens reused",
                                "Time saved", "First seen (UTC)", "Last used (UTC)"},
                               shows_text ? "Begins with" : "");
  for (const KeptPrompt& prompt : prompts) {
    std::string text;
    if (shows_text) text = fmt::format("<td class=\"text\">{}</td>", escape_html(prompt.text));
    out += row(text, {with_commas(prompt.n_tokens), size_text(prompt.stored_bytes),
                      with_commas(prompt.hits), with_commas(prompt.hit_tokens),
                      duration_text(prompt.saved_seconds), time_text(prompt.created),
                      time_text(prompt.used)});
  }
  return out + kTableEnd;
}

std::string parting_text(const PromptReuse& reuse) {
  if (!reuse.parts_at) return "";
  if (*reuse.parts_at == 0) return "begins like no other";
  return fmt::format("at token {} of {}", with_commas(*reuse.parts_at),
                     with_commas(reuse.parts_of));
}

// What was reused of the last prompts.
std::string recent_table(std::span<const PromptReuse> recent, bool shows_text) {
  if (recent.empty()) return "";
  std::string out = "<h2>Last prompts</h2>\n";
  out += table_head({"Answered (UTC)", "Tokens", "Reused", "From", "Parts from a known prompt"},
                    shows_text ? "Has, where another has" : "");
  for (const PromptReuse& reuse : recent) {
    std::string words;
    if (shows_text && !(reuse.here.empty() && reuse.there.empty())) {
      words = fmt::format("{} <br>{}", escape_html(reuse.here), escape_html(reuse.there));
    }
    if (shows_text) words = "<td class=\"text\">" + words + "</td>";
    const std::string from(reuse.n_reused > 0 ? name_of(reuse.from) : "");
    out += row(words, {time_text(reuse.time), with_commas(reuse.n_tokens),
                       with_commas(reuse.n_reused), from, parting_text(reuse)});
  }
  return out + kTableEnd;
}

std::string page_begin(const PageFacts& facts, std::string_view note) {
  const std::string place =
      facts.store.empty() ? "in memory only" : "in the store " + escape_html(facts.store);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\">"
      "<title>tqcache: kept prompts</title><style>{}</style></head>\n<body><main>\n"
      "<h1>Kept prompts</h1>\n<p>{}, {}.</p>\n{}",
      kPageStyle, escape_html(facts.model), place, note);
}

std::string page_end(const PageFacts& facts) {
  return fmt::format("<p>{} UTC. Time saved is an estimate.</p>\n</main></body></html>\n",
                     time_text(facts.now));
}

std::string terms(const TenantTotal& total) {
  return term("Prompts", with_commas(total.n_prompts)) +
         term("Added to the store", size_text(total.stored_bytes)) +
         term("Hits", with_commas(total.hits)) +
         term("Tokens reused", with_commas(total.hit_tokens)) +
         term("Time saved", duration_text(total.saved_seconds));
}

std::string base64(ByteView bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                reinterpret_cast<const unsigned char*>(bytes.data()),
                                static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(n));
  return text;
}

}  // namespace

std::string prompt_page(const PageFacts& facts, std::span<const KeptPrompt> prompts,
                        std::span<const PromptReuse> recent) {
  TenantTotal total;
  for (const KeptPrompt& prompt : prompts) {
    ++total.n_prompts;
    total.hits += prompt.hits;
    total.hit_tokens += prompt.hit_tokens;
    total.stored_bytes += prompt.stored_bytes;
    total.saved_seconds += prompt.saved_seconds;
  }
  std::string note;
  if (facts.is_of_one_key) note = "<p>These are the prompts of your API key.</p>\n";
  if (facts.has_others) {
    note =
        "<p>These are the prompts of clients without an API key. <a href=\"?key\">Show those of a "
        "key</a>: your browser asks for it as a password, with any user name.</p>\n";
  }
  return page_begin(facts, note) + "<dl>" + terms(total) + "</dl>\n" +
         kept_table(prompts, facts.shows_text) + recent_table(recent, facts.shows_text) +
         page_end(facts);
}

std::string totals_page(const PageFacts& facts, std::span<const TenantTotal> totals) {
  TenantTotal all;
  std::string rows;
  for (const TenantTotal& total : totals) {
    all.n_prompts += total.n_prompts;
    all.hits += total.hits;
    all.hit_tokens += total.hit_tokens;
    all.stored_bytes += total.stored_bytes;
    all.saved_seconds += total.saved_seconds;
    rows += row("", {with_commas(total.n_prompts), size_text(total.stored_bytes),
                     with_commas(total.hits), with_commas(total.hit_tokens),
                     duration_text(total.saved_seconds), time_text(total.used)});
  }
  return page_begin(facts, "<p>All tenants, one a row.</p>\n") + "<dl>" +
         term("Tenants", with_commas(std::ssize(totals))) + terms(all) + "</dl>\n" +
         table_head({"Prompts", "Added to the store", "Hits", "Tokens reused", "Time saved",
                     "Last used (UTC)"},
                    "") +
         rows + kTableEnd + page_end(facts);
}

Response page_response(std::string page) {
  const std::string style = base64(sha256(as_bytes(kPageStyle)));
  Response response;
  response.headers = {{"Content-Type", "text/html; charset=utf-8"},
                      {"Content-Security-Policy",
                       fmt::format("default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; "
                                   "form-action 'none'; frame-ancestors 'none'",
                                   style)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-store"}};
  response.body = std::move(page);
  return response;
}

Response answer_page(const Request& request, PageFacts facts, const PromptLedger& ledger,
                     std::optional<std::string_view> tenant, const PageAccess& access) {
  const bool has_key = !request.api_key.empty();
  // Digests are compared, so that the time tells nothing of a key.
  const auto is_the_key = [&](const std::string& key) {
    return sha256(as_bytes(key)) == sha256(as_bytes(request.api_key));
  };
  if (has_key ? std::ranges::any_of(access.admin_keys, is_the_key) : access.is_open) {
    return page_response(totals_page(facts, ledger.totals()));
  }
  const std::vector<KeptPrompt> prompts = ledger.entries(tenant);
  const std::vector<PromptReuse> recent = ledger.recent(tenant);
  facts.has_others = !has_key && tenant && ledger.has_others(*tenant);
  const bool has_own = !prompts.empty() || !recent.empty();
  if (!has_key && (request.query == "key" || (facts.has_others && !has_own))) {
    Response response = Response::error(401, "invalid_request_error",
                                        "this page is of clients with an API key: open it with "
                                        "one, as the password of any user");
    response.headers.push_back({"WWW-Authenticate", "Basic realm=\"tqcache\", charset=\"UTF-8\""});
    return response;
  }
  return page_response(prompt_page(facts, prompts, recent));
}

}  // namespace tqcache::serve
