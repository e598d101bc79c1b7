#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

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
  const Output output =
      must({"chat", "-m", kModel, "--temperature", "0"}, {.input = std::string(kFact) + kQuestion});
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
  must({"chat", "-m", kModel, "--temperature", "0", "--save", first}, {.input = kFact});
  const Output output =
      must({"chat", "-m", kModel, "--temperature", "0", "--cache", first, "--save", second},
           {.input = kQuestion});
  EXPECT_EQ(output.out, kAnswer + "\n");

  const TempDir other;
  const std::string whole = (other / "whole.kv").string();
  must({"chat", "-m", kModel, "--temperature", "0", "--save", whole},
       {.input = std::string(kFact) + kQuestion});
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
  EXPECT_THAT(output.err, HasSubstr("stopped after 2 tokens"));
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
  EXPECT_THAT(output.err, HasSubstr(" of 16,384 tokens"));
  EXPECT_THAT(output.err, HasSubstr("\n  /undo         take back the last turn and its answer\n"));
  EXPECT_THAT(output.err, HasSubstr("pasted text is one turn. Ctrl-C stops an answer.\n"));
  EXPECT_THAT(output.err, HasSubstr("unknown command /nonsense, see /help"));
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
  if (!TQCACHE_HAS_LINE_EDITING) GTEST_SKIP() << "built without line editing";
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
  EXPECT_THAT(prefill.screen(), HasSubstr("refusing to write a cache to a terminal"));
}

// --- system texts

TEST(Chat, KeepsASystemTextWithoutTurns) {
  const TempDir dir;
  const std::string file = (dir / "rules.txt").string();
  write_all(dir / "rules.txt", "Be kind.\n");
  const std::string alone = (dir / "alone.kv").string();
  const Output kept = must({"chat", "-m", kModel, "--system-file", file, "--save", alone});
  EXPECT_THAT(kept.err, HasSubstr(" tokens, "));
  EXPECT_EQ(text_of(alone), "<|im_start|>system\nBe kind.<|im_end|>\n");

  const std::string after = (dir / "after.kv").string();
  const std::string whole = (dir / "whole.kv").string();
  const std::vector<std::string> common = {"chat", "-m", kModel, "--temperature", "0", "-n", "8"};
  const auto chat = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), common.begin(), common.end());
    return must(flags, {.input = "Hi\n"});
  };
  chat({"--cache", alone, "--save", after});
  chat({"--system", "Be kind.", "--save", whole});
  EXPECT_EQ(tokens_of(after), tokens_of(whole));
}

TEST(Chat, SavesASystemTextByCommand) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  must({"chat", "-m", kModel, "--system", "Be kind."}, {.input = "/save " + saved + "\n"});
  EXPECT_EQ(text_of(saved), "<|im_start|>system\nBe kind.<|im_end|>\n");
}

TEST(Chat, SaysWhenThereIsNothingToSave) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  const Output output = must({"chat", "-m", kModel, "--save", saved}, {.input = "/save\n"});
  EXPECT_THAT(output.err,
              HasSubstr("tqcache: " + saved + ": not written: the conversation has no"));
  EXPECT_THAT(output.err, EndsWith(saved + ": not written, because the conversation has no turn "
                                           "that was read\n"));
  EXPECT_EQ(dir.entry_count(), 0u);
}

TEST(Chat, RefusesTwoSystemTextsAndAnEmptyFile) {
  const TempDir dir;
  write_all(dir / "empty.txt", "\n");
  const std::string empty = (dir / "empty.txt").string();
  EXPECT_EQ(tqcache({"chat", "-m", kModel, "--system", "x", "--system-file", empty}).exit_code, 2);
  const Output output = tqcache({"chat", "-m", kModel, "--system-file", empty});
  EXPECT_EQ(output.exit_code, 2);
  EXPECT_THAT(output.err, HasSubstr("the file is empty"));
}

// --- turns of several lines

std::string user_turn(const std::string& text) {
  return "<|im_start|>user\n" + text + "<|im_end|>\n";
}

TEST(Chat, ReadsTurnsOfSeveralLines) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  must({"chat", "-m", kModel, "-n", "1", "--save", saved},
       {.input = "one\\\ntwo\n\"\"\"\n/three\n\nfour\n\"\"\"\n  /five\n\"\"\"six\"\"\"\n"});
  const std::string text = text_of(saved);
  for (const char* turn : {"one\ntwo", "/three\n\nfour", "/five", "six"}) {
    EXPECT_THAT(text, HasSubstr(user_turn(turn)));
  }
}

TEST(Terminal, APastedTextIsOneTurn) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  Conversation chat({"chat", "-m", kModel, "-n", "1", "--save", saved},
                    Conversation::At::kTerminal);
  chat.wait_for("> ");
  chat.type("\x1b[200~first line\r\rthird \x1b\x07line\r\x1b[201~!\r");
  chat.wait_for("(stopped after 1 token,");
  chat.wait_for("> ");
  chat.type("/quit\r");
  EXPECT_EQ(chat.finish(), 0);
  EXPECT_THAT(text_of(saved), HasSubstr(user_turn("first line\n\nthird line!")));
}

// LANG is not set in containers, in cron, and behind many ssh logins.
TEST(Terminal, KeepsEveryCharacterInTheCLocale) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  Conversation chat({"chat", "-m", kModel, "-n", "1", "--save", saved}, Conversation::At::kTerminal,
                    {"LC_ALL=C"});
  chat.wait_for("> ");
  chat.type("na\u00efve caf\u00e9 \u65e5\u672c\u8a9e\r");
  chat.wait_for("(stopped after 1 token,");
  chat.wait_for("> ");
  chat.type(
      "\xff"
      "a\xc3"
      "b\r");  // not UTF-8: shown as what it is not, and not dropped
  chat.wait_for("(stopped after 1 token,");
  chat.wait_for("> ");
  chat.type("/quit\r");
  EXPECT_EQ(chat.finish(), 0);
  EXPECT_THAT(text_of(saved), HasSubstr(user_turn("na\u00efve caf\u00e9 \u65e5\u672c\u8a9e")));
  EXPECT_THAT(text_of(saved), HasSubstr(user_turn("\ufffd"
                                                  "a\ufffd"
                                                  "b")));
}

// A terminal that cannot be redrawn has no line editing, but loses no bytes either.
TEST(Terminal, ADumbOneKeepsEveryCharacter) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  Conversation chat({"chat", "-m", kModel, "-n", "1", "--save", saved}, Conversation::At::kTerminal,
                    {"LC_ALL=C", "TERM=dumb"});
  chat.wait_for("> ");
  chat.type("na\u00efve\n");
  chat.wait_for("(stopped after 1 token,");
  chat.wait_for("> ");
  chat.type("/quit\n");
  EXPECT_EQ(chat.finish(), 0);
  EXPECT_THAT(text_of(saved), HasSubstr(user_turn("na\u00efve")));
}

// --- going back

TEST(Chat, TakesTurnsBackAndAnswersThemAgain) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  const std::string plain = (dir / "b.kv").string();
  const std::vector<std::string> common = {"chat", "-m", kModel, "-n", "4", "--temperature", "0"};
  const auto talk = [&](const std::string& file, const std::string& input) {
    std::vector<std::string> args = common;
    args.insert(args.end(), {"--save", file});
    return must(args, {.input = input});
  };
  const Output output =
      talk(saved, "/undo\nHi\nBye\n/undo\n/retry\nHow are you?\n/retry\n/clear\n/undo\n");
  EXPECT_THAT(output.err, HasSubstr("this chat has no turn to take back"));
  EXPECT_THAT(output.err, HasSubstr("taken back; 1 turn of this chat left"));
  EXPECT_EQ(std::count(output.out.begin(), output.out.end(), '\n'), 5);
  EXPECT_FALSE(std::filesystem::exists(saved));  // cleared

  talk(saved, "Hi\nBye\n/undo\n/retry\nHow are you?\n/retry\n");
  talk(plain, "Hi\nHow are you?\n");
  EXPECT_EQ(tokens_of(saved), tokens_of(plain));
}

TEST(Chat, TakesNothingBackFromAFileThatGrows) {
  const TempDir dir;
  const std::string talk = (dir / "a.kv").string();
  must({"chat", "-m", kModel, "-n", "2", "--save", talk}, {.input = "Hi\n"});
  const Output output = must({"chat", "-m", kModel, "-n", "2", "--cache", talk, "--save", talk},
                             {.input = "/clear\nBye\n/save\n/undo\nBye\n/undo\n"});
  EXPECT_THAT(output.err, HasSubstr("appending cannot shorten a file"));
  must({"verify", talk, "-m", kModel});
  const std::string text = text_of(talk);
  EXPECT_EQ(text.find(user_turn("Bye")), text.rfind(user_turn("Bye")));
}

TEST(Chat, SaysThatTheContextIsFull) {
  std::string line;
  for (int i = 0; i < 4; ++i) line += book_text(24000);
  std::ranges::replace(line, '\n', ' ');
  const Output full = tqcache({"chat", "-m", kModel}, {.input = line + "\n"});
  EXPECT_EQ(full.exit_code, 21);
  EXPECT_THAT(full.err, HasSubstr("the context of the model is full: this turn needs "));
  EXPECT_THAT(full.err, HasSubstr(" of 16,384 are free; /undo takes back a turn"));
}

TEST(Terminal, AFullContextDoesNotEndTheChat) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 4; ++i) text += book_text(24000);
  write_all(dir / "rules.txt", text);
  Conversation chat({"chat", "-m", kModel, "--system-file", (dir / "rules.txt").string()},
                    Conversation::At::kTerminal);
  chat.wait_for("> ");
  chat.type("Hi\r");
  chat.wait_for("the context of the model is full");
  chat.wait_for("> ");
  chat.type("/quit\r");
  EXPECT_EQ(chat.finish(), 0);
}

// --- Ctrl-C

TEST(Terminal, CtrlCStopsAnAnswerAndThePromptReturns) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  // The model writes nothing but " the".
  Conversation chat(
      {"chat", "-m", kModel, "-n", "8000", "--logit-bias", "263=1000", "--save", saved},
      Conversation::At::kTerminal);
  chat.wait_for("> ");
  chat.type("Hi\r");
  chat.wait_for(" the the the");
  chat.type("\x03");
  chat.wait_for("(stopped; /retry");
  chat.wait_for("> ");
  chat.wait_for_editor();
  chat.type("half a line");
  chat.wait_for("half a line");
  chat.type("\x03");  // drops the line
  chat.type("/info\r");
  chat.wait_for("last turn: ");
  chat.wait_for("> ");
  chat.type("/quit\r");
  EXPECT_EQ(chat.finish(), 0);
  EXPECT_THAT(text_of(saved), HasSubstr(user_turn("Hi")));
}

TEST(Terminal, ALineThatCtrlZInterruptedIsShownAgain) {
  Conversation chat({"chat", "-m", kModel, "-n", "2", "--temperature", "0"},
                    Conversation::At::kTerminal);
  chat.wait_for("> ");
  chat.wait_for_editor();
  chat.type("Hel");
  chat.wait_for("Hel");
  chat.stop();
  chat.send_signal(SIGCONT);
  chat.wait_for("> ");
  chat.wait_for("Hel");
  chat.wait_for_editor();
  chat.type("lo\r");
  chat.wait_for("(stopped after 2 tokens,");
  chat.wait_for("> ");
  chat.type("/quit\r");
  EXPECT_EQ(chat.finish(), 0);
}

TEST(Terminal, CtrlCWhileATurnIsReadKeepsTheChatAndWhatWasRead) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  const std::string plain = (dir / "b.kv").string();
  write_all(dir / "rules.txt", book_text(20000));
  const std::vector<std::string> common = {"chat",
                                           "-m",
                                           kModel,
                                           "-n",
                                           "2",
                                           "--temperature",
                                           "0",
                                           "--system-file",
                                           (dir / "rules.txt").string(),
                                           "-t",
                                           "1",
                                           "--save"};
  std::vector<std::string> args = common;
  args.push_back(saved);
  Conversation chat(args, Conversation::At::kTerminal);
  chat.wait_for("> ");
  chat.type("Hi\r");
  chat.wait_for("prefill ");
  chat.type("\x03");
  chat.wait_for("interrupted: ");
  chat.wait_for("this turn is not part of it");
  chat.wait_for("> ");
  chat.type("Bye\r");
  chat.wait_for("(stopped after 2 tokens,");
  chat.wait_for("> ");
  chat.type("/quit\r");
  EXPECT_EQ(chat.finish(), 0);
  args = common;
  args.push_back(plain);
  must(args, {.input = "Bye\n"});
  EXPECT_EQ(tokens_of(saved), tokens_of(plain));
}

TEST(Terminal, ASystemTextIsReadOnToBeSaved) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  write_all(dir / "rules.txt", book_text(12000));
  Conversation chat({"chat", "-m", kModel, "--system-file", (dir / "rules.txt").string(), "-t", "1",
                     "--save", saved},
                    Conversation::At::kTerminal);
  chat.wait_for("> ");
  chat.type("Hi\r");
  chat.wait_for("prefill ");
  chat.type("\x03");
  chat.wait_for("interrupted: ");
  chat.wait_for("> ");
  chat.type("/quit\r");
  EXPECT_EQ(chat.finish(), 0);
  // The number behind `text`.
  const auto number_behind = [&](const std::string& text) {
    const std::size_t begin = chat.screen().find(text) + text.size();
    std::string digits = chat.screen().substr(begin, chat.screen().find(' ', begin) - begin);
    std::erase(digits, ',');
    return std::stoi(digits);
  };
  const int n_read = number_behind("interrupted: ");
  const int n_left = number_behind("reading the system text, to save it: ");
  const int n_system = static_cast<int>(tokens_of(saved).size());
  EXPECT_EQ(n_left, n_system - std::min(n_read, n_system - 1));
  EXPECT_THAT(text_of(saved), testing::StartsWith("<|im_start|>system\n"));
  EXPECT_EQ(text_of(saved).find("Hi<|im_end|>"), std::string::npos);
}

TEST(Chat, SaysThatAnInterruptedFirstTurnIsNotSaved) {
  const TempDir dir;
  const std::string saved = (dir / "a.kv").string();
  write_all(dir / "rules.txt", book_text(20000));
  Conversation chat({"chat", "-m", kModel, "--system-file", (dir / "rules.txt").string(), "-t", "1",
                     "--save", saved},
                    Conversation::At::kTerminal);
  chat.wait_for("> ");
  chat.type("Hi\r");
  chat.wait_for("prefill ");
  chat.send_signal(SIGTERM);
  EXPECT_EQ(chat.finish(), 130);
  EXPECT_THAT(chat.screen(), HasSubstr("this turn is not part of it"));
  EXPECT_THAT(chat.screen(), HasSubstr(saved + ": not written, because"));
  EXPECT_FALSE(std::filesystem::exists(saved));
}

TEST(Prompt, ComesFromAPipeByName) {
  const TempDir dir;
  const std::string fifo = (dir / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(fifo) << "Once upon a time"; });
  const std::string one = (dir / "one.kv").string();
  const Output output = tqcache({"prefill", "-m", kModel, "--file", fifo, "-o", one});
  writer.join();
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(text_of(one), "Once upon a time");
}

}  // namespace chat_test
}  // namespace tqcache::test
