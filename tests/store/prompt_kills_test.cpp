// Prompts that a process puts until it is killed with SIGKILL, at moments that nobody has chosen:
// every put that was acknowledged can be had bit for bit, no other prompt is to be seen in part,
// and the store checks as whole.

#include "store/prompt_kills.h"

#include <gtest/gtest.h>

#include "store/test_backends.h"
#include "support/temp_dir.h"

namespace tqcache::test {
namespace prompt_kills_test {

class PromptKills : public testing::TestWithParam<TestBackend> {};

INSTANTIATE_TEST_SUITE_P(Store, PromptKills, testing::ValuesIn(test_backends()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(PromptKills, OfAWriterLeaveWholePromptsAlone) {
  if (!GetParam().many_processes) return;
  const TempDir folder;
  const std::string url = GetParam().new_url(folder.path());
  const PromptFiles prompts;
  std::mt19937 random(3);
  int n_told = 0;
  for (int i = 0; i < n_kills(); ++i) {
    const std::string salt = "round " + std::to_string(i);
    Writer writer(url, prompts.putting(salt));
    writer.wait_for(static_cast<int>(random() % 3));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    const int n_of_it = writer.kill();
    n_told += n_of_it;
    ASSERT_NO_FATAL_FAILURE(expect_prompts(url, salt, prompts, n_of_it)) << i;
  }
  EXPECT_GE(n_told, n_kills() / 2);
}

}  // namespace prompt_kills_test
}  // namespace tqcache::test
