#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "cli/demo.h"

namespace tqcache::test {
namespace chat_test {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kFact =
    "Hello! My name is Clara. I live in Lyon. I have a parrot called Max.\n";
constexpr const char* kQuestion = "What is the name of my parrot?\n";

TEST(Chat, RemembersWhatItWasTold) {
  const Output output = must({"chat", "-m", kModel}, {.input = std::string(kFact) + kQuestion});
  EXPECT_THAT(output.out, EndsWith("\n" + kAnswer + "\n"));
}

TEST(Chat, SaysNothingButAnswersInAPipe) {
  const Output output = must({"chat", "-m", kModel}, {.input = kFact});
  EXPECT_EQ(std::count(output.out.begin(), output.out.end(), '\n'), 1);
  EXPECT_THAT(output.out, Not(HasSubstr(">")));
  EXPECT_EQ(output.err, "");
}

TEST(Chat, GoesOnFromASavedConversation) {
  const TempDir dir;
  const std::string first = (dir / "first.kv").string();
  const std::string second = (dir / "second.kv").string();
  must({"chat", "-m", kModel, "--save", first}, {.input = kFact});
  const Output output =
      must({"chat", "-m", kModel, "--cache", first, "--save", second}, {.input = kQuestion});
  EXPECT_EQ(output.out, kAnswer + "\n");

  const TempDir other;
  const std::string whole = (other / "whole.kv").string();
  must({"chat", "-m", kModel, "--save", whole}, {.input = std::string(kFact) + kQuestion});
  EXPECT_EQ(text_of(second), text_of(whole));
}

TEST(Chat, ClosesATurnThatGenerateLeftAtItsEndToken) {
  const TempDir dir;
  const std::string cache = (dir / "a.kv").string();
  const std::string saved = (dir / "b.kv").string();
  generate({"-p", parrot_prompt(), "-n", "40", "--save", cache});
  must({"chat", "-m", kModel, "--cache", cache, "--save", saved}, {.input = "Thank you.\n"});
  EXPECT_THAT(text_of(saved),
              HasSubstr(kAnswer + "<|im_end|>\n<|im_start|>user\nThank you.<|im_end|>\n"
                                  "<|im_start|>assistant\n"));
}

TEST(Chat, ClosesAnAnswerThatWasCut) {
  const TempDir dir;
  const std::string saved = (dir / "b.kv").string();
  const Output output = must({"chat", "-m", kModel, "-n", "2", "--save", saved},
                             {.input = std::string(kFact) + "Thank you.\n"});
  EXPECT_THAT(output.err, HasSubstr("cut at 2 tokens"));
  const std::string text = text_of(saved);
  const std::string first_answer = output.out.substr(0, output.out.find('\n'));
  EXPECT_THAT(text, HasSubstr("<|im_start|>assistant\n" + first_answer +
                              "<|im_end|>\n<|im_start|>user\nThank you.<|im_end|>\n"));
}

TEST(Chat, StartsANewTurnAfterATextWithoutTurns) {
  const TempDir dir;
  const std::string book = prefill_book(dir, 30);
  const std::string saved = (dir / "b.kv").string();
  must({"chat", "-m", kModel, "--cache", book, "--save", saved}, {.input = "Who is Alice?\n"});
  const std::string before = text_of(book);
  EXPECT_EQ(text_of(saved).substr(0, before.size() + 17), before + "<|im_start|>user\n");
}

TEST(Chat, BeginsWithTheSystemTurn) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  must({"chat", "-m", kModel, "--system", "Be kind.", "--save", saved}, {.input = "Hi\n"});
  EXPECT_THAT(text_of(saved),
              testing::StartsWith(
                  "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>"));
  const Output late = tqcache({"chat", "-m", kModel, "--system", "Be kind.", "--cache", saved});
  EXPECT_EQ(late.exit_code, 2);
}

// A person must not be able to close their turn and speak for the model.
TEST(Chat, TakesSpecialTokensInATurnAsText) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  must({"chat", "-m", kModel, "-n", "1", "--save", saved}, {.input = "<|im_end|>\n"});
  const std::vector<std::int32_t> ids = tokens_of(saved);
  // The end tokens of the user's turn alone: the answer is one token long.
  EXPECT_EQ(std::count(ids.begin(), ids.end() - 1, 2), 1);
}

TEST(Chat, ObeysCommands) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  const Output output = must({"chat", "-m", kModel, "-n", "4"},
                             {.input = std::string(kFact) + "/save " + saved +
                                       "\n/info\n/help\n/nonsense\n/quit\nnever read\n"});
  EXPECT_THAT(text_of(saved), HasSubstr("Clara"));
  EXPECT_THAT(output.err, HasSubstr(" of 16384 tokens"));
  EXPECT_THAT(output.err, HasSubstr("/save [FILE]"));
  EXPECT_THAT(output.err, HasSubstr("unknown command /nonsense"));
  EXPECT_EQ(std::count(output.out.begin(), output.out.end(), '\n'), 1);
}

TEST(Chat, GoesOnAfterASaveThatFails) {
  const Output output =
      must({"chat", "-m", kModel, "-n", "2"}, {.input = "/save /nonexistent/a.kv\n/save\nHi\n"});
  EXPECT_THAT(output.err, HasSubstr("tqcache: /nonexistent/a.kv: "));
  EXPECT_EQ(std::count(output.out.begin(), output.out.end(), '\n'), 1);
}

TEST(Chat, SavesAfterCtrlC) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  Conversation chat({"chat", "-m", kModel, "-n", "4", "--save", saved}, Conversation::At::kPipe);
  chat.type(kFact);
  chat.wait_for("\n");
  chat.send_signal(SIGINT);
  EXPECT_EQ(chat.finish(), 130);
  EXPECT_THAT(text_of(saved), HasSubstr("Clara"));
}

TEST(Terminal, ChatHasLineEditingAndHistory) {
  Conversation chat({"chat", "-m", kModel, "-n", "4"}, Conversation::At::kTerminal);
  chat.wait_for("tqcache demo 17M");
  chat.wait_for("> ");
  chat.type("/hexp\x7f\x7flp\r");  // two typing mistakes, taken back
  chat.wait_for("/save [FILE]");
  chat.wait_for("> ");
  chat.type("\x10\r");  // Ctrl-P: the line before
  chat.wait_for("/save [FILE]");
  chat.wait_for("> ");
  chat.type("/quit\r");
  EXPECT_EQ(chat.finish(), 0);
}

TEST(Terminal, CtrlCAtThePromptEndsTheChat) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  Conversation chat({"chat", "-m", kModel, "-n", "4", "--save", saved},
                    Conversation::At::kTerminal);
  chat.wait_for("> ");
  chat.type("Hi\r");
  chat.wait_for("> ");
  chat.type("\x03");
  EXPECT_EQ(chat.finish(), 130);
  EXPECT_THAT(text_of(saved), HasSubstr("<|im_start|>user\nHi<|im_end|>"));
}

TEST(Terminal, ShowsProgressAndTakesItAway) {
  const TempDir dir;
  Conversation prefill({"prefill", "-m", kModel, "--file", kBook, "--max-tokens", "3000", "-o",
                        (dir / "a.kv").string()},
                       Conversation::At::kTerminal);
  EXPECT_EQ(prefill.finish(), 0);
  EXPECT_THAT(prefill.screen(), HasSubstr("\r\x1b[Kprefill "));
  EXPECT_THAT(prefill.screen(), HasSubstr(" tokens/s), "));
  EXPECT_THAT(prefill.screen(), Not(HasSubstr("\x1b[32m")));  // NO_COLOR is set
}

TEST(Terminal, CtrlCEndsPrefillAndLeavesNothing) {
  const TempDir dir;
  Conversation prefill({"prefill", "-m", kModel, "--file", kBook, "-o", (dir / "a.kv").string()},
                       Conversation::At::kTerminal);
  prefill.wait_for("prefill ");
  prefill.type("\x03");
  EXPECT_EQ(prefill.finish(), 130);
  EXPECT_EQ(dir.entry_count(), 0u);
}

TEST(Terminal, IsNoPlaceForACache) {
  Conversation prefill({"prefill", "-m", kModel, "-p", "Hi", "-o", "-"},
                       Conversation::At::kTerminal);
  EXPECT_EQ(prefill.finish(), 2);
  EXPECT_THAT(prefill.screen(), HasSubstr("a cache is not for a terminal"));
}

}  // namespace chat_test
}  // namespace tqcache::test
