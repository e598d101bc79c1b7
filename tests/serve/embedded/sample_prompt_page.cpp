// Prints the page of kept prompts with its headers, for tests in a browser. The prompts are
// hostile.

#include <cstdio>
#include <string>
#include <vector>

#include "tqcache/serve/prompt_page.h"

int main() {
  using namespace tqcache::serve;
  std::vector<KeptPrompt> prompts;
  for (const char* text :
       {"</style><script>document.title='owned'</script>", "<img src=x onerror=alert(1)>",
        "&lt;b&gt; \"quoted' \xff\xfe \xe2\x80\xae reversed \x01 \n line",
        "AVeryLongWordWithoutAnySpaceAVeryLongWordWithoutAnySpaceAVeryLongWordWithoutAnySpace",
        "You are a librarian."}) {
    prompts.push_back({.id = prompts.size() + 1,
                       .tenant = "tenant",
                       .model = "model",
                       .text = text,
                       .n_tokens = 131'072,
                       .stored_bytes = 123'456'789,
                       .hits = 1234,
                       .hit_tokens = 98'765'432,
                       .saved_seconds = 45'296.5,
                       .created = 1'795'000'000,
                       .used = 1'795'444'336});
  }
  const PageFacts facts = {.model = "<b>model</b>",
                           .store = "dir:/tmp/\"<i>",
                           .shows_text = true,
                           .is_of_one_key = true,
                           .now = 1'795'444'400};
  const std::vector<PromptReuse> recent = {{.n_tokens = 131'072,
                                            .n_reused = 37,
                                            .from = ReuseSource::kStore,
                                            .parts_at = 37,
                                            .parts_of = 131'000,
                                            .here = "<b>Today is Tuesday</b>",
                                            .there = "\xff<i>Today is Monday",
                                            .time = 1'795'444'336}};
  const Response response = page_response(prompt_page(facts, prompts, recent));
  std::string all;
  for (const Header& header : response.headers) all += header.name + ": " + header.value + "\n";
  all += "\n" + response.body;
  std::fwrite(all.data(), 1, all.size(), stdout);
}
