#pragma once
// server/tqcache/serve/prompt_history.h: the texts of recent prompts, and where a new prompt parts
// from them.
//
//   const auto parting = history.nearest(tenant, prompt);
//   history.add(tenant, prompt);
//   if (parting && parting->at < parting->of) ...  // it does not continue that prompt
//
// The prompts of a tenant are sorted as bytes. So the ones before and after a text share the
// longest beginnings with it, and are found without a look at the others.
//
// Texts are in memory only, and end with the object.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tqcache::serve {

// Where a prompt parts from another one. All numbers are bytes.
struct Parting {
  std::size_t at = 0;  // the first `at` bytes are equal; the beginning of a UTF-8 character
  std::size_t of = 0;  // size of the other prompt
  // A few characters of the prompt and of the other one, around the place. For logs of servers that
  // may show words of prompts.
  std::string here = {}, there = {};
};

// Safe for untrusted texts. Threads: any number.
class PromptHistory {
 public:
  struct Limits {
    std::size_t max_bytes = std::size_t{64} << 20;  // of all tenants, with what each entry takes
    std::size_t max_prompts = 1000;                 // of all tenants
  };

  PromptHistory() = default;
  explicit PromptHistory(const Limits& limits) : limits_(limits) {}

  // Compares a prompt with the one of the tenant that begins most like it. Absent: the tenant has
  // none. With at == of the text continues that prompt, and with at == text.size() it is a
  // beginning of it.
  std::optional<Parting> nearest(std::string_view tenant, std::string_view text) const;

  // Remembers a prompt. It replaces one that it continues; a beginning of a known prompt is not
  // added. The prompts that were not used for the longest time go when a limit is reached.
  void add(std::string_view tenant, std::string_view text);

  std::size_t n_prompts() const;
  std::size_t n_bytes() const;

 private:
  struct Prompt {
    std::string text;
    std::uint64_t used = 0;  // number of the last add()
  };
  using Prompts = std::vector<Prompt>;  // sorted; none begins with another one

  const Prompts* find(std::string_view tenant) const;
  void erase(Prompts& prompts, std::size_t i);
  void drop_oldest();

  Limits limits_;
  mutable std::mutex mutex_;
  std::map<std::string, Prompts, std::less<>> tenants_;
  std::size_t n_prompts_ = 0, n_bytes_ = 0;
  std::uint64_t now_ = 0;
};

}  // namespace tqcache::serve
