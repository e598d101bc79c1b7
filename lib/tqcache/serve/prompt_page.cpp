#include "tqcache/serve/prompt_page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <chrono>
#include <utility>

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

std::string row(const KeptPrompt& prompt, bool shows_text) {
  std::string cells;
  if (shows_text) {
    cells = fmt::format("<td class=\"text\">{}</td>", escape_html(prompt.text));
  }
  for (const std::string& cell :
       {with_commas(prompt.n_tokens), size_text(prompt.stored_bytes), with_commas(prompt.hits),
        with_commas(prompt.hit_tokens), duration_text(prompt.saved_seconds),
        time_text(prompt.created), time_text(prompt.used)}) {
    cells += "<td>" + cell + "</td>";
  }
  return "<tr>" + cells + "</tr>\n";
}

std::string table(std::span<const KeptPrompt> prompts, bool shows_text) {
  if (prompts.empty()) return "<p>No prompt of 257 tokens or more has been answered yet.</p>\n";
  std::string out = "<div class=\"wide\"><table>\n<thead><tr>";
  if (shows_text) out += "<th scope=\"col\" class=\"text\">Begins with</th>";
  for (const char* name : {"Tokens", "Added to the store", "Hits", "Tokens reused", "Time saved",
                           "First seen (UTC)", "Last used (UTC)"}) {
    out += fmt::format("<th scope=\"col\">{}</th>", name);
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const KeptPrompt& prompt : prompts) out += row(prompt, shows_text);
  return out + "</tbody>\n</table></div>\n";
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

std::string prompt_page(const PageFacts& facts, std::span<const KeptPrompt> prompts) {
  std::int64_t hits = 0;
  std::int64_t hit_tokens = 0;
  std::uint64_t bytes = 0;
  double saved = 0;
  for (const KeptPrompt& prompt : prompts) {
    hits += prompt.hits;
    hit_tokens += prompt.hit_tokens;
    bytes += prompt.stored_bytes;
    saved += prompt.saved_seconds;
  }
  const std::string place =
      facts.store.empty() ? "in memory only" : "in the store " + escape_html(facts.store);
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width\">"
      "<title>tqcache: kept prompts</title><style>{}</style></head>\n<body><main>\n"
      "<h1>Kept prompts</h1>\n<p>{}, {}.</p>\n",
      kPageStyle, escape_html(facts.model), place);
  if (facts.is_of_one_key) out += "<p>These are the prompts of your API key.</p>\n";
  out += "<dl>" + term("Prompts", with_commas(std::ssize(prompts))) +
         term("Added to the store", size_text(bytes)) + term("Hits", with_commas(hits)) +
         term("Tokens reused", with_commas(hit_tokens)) + term("Time saved", duration_text(saved)) +
         "</dl>\n";
  out += table(prompts, facts.shows_text);
  return out + fmt::format("<p>{} UTC. Time saved is an estimate.</p>\n</main></body></html>\n",
                           time_text(facts.now));
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

Response answer_page(const Request&, const PageFacts& facts, const PromptLedger& ledger,
                     std::optional<std::string_view> tenant) {
  return page_response(prompt_page(facts, ledger.entries(tenant)));
}

}  // namespace tqcache::serve
