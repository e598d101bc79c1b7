// The engine gives the tokens of `tqcache generate` and `tqcache chat`, wherever the prefix is
// from.

#include "tqcache/serve/embedded/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/temp_dir.h"
#include "tqcache/store.h"
#include "tqcache/upkeep.h"

namespace tqcache::serve {
namespace {

using session::Ids;
using test::TempDir;
using tokenizer::ChatMessage;
using tokenizer::ChatRole;

const std::string kModel = TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.gguf";

template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}
void must(const Result<void>& result) {
  if (!result) throw std::runtime_error(result.error().message);
}

std::unique_ptr<Engine> open_engine(const std::string& store = "") {
  return must(Engine::open({.model = kModel, .n_threads = 1, .store_url = store}));
}

// About `n` tokens of a book.
std::string book(std::size_t n_characters) {
  std::ifstream file(TQCACHE_DEMO_MODEL "/alice-excerpt.txt");
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return all.substr(0, n_characters);
}

Ids first_tokens(const Engine& engine, std::size_t n) {
  Ids ids = must(engine.encode_text(book(6000)));
  if (ids.size() < n) throw std::runtime_error("the book is too short");
  ids.resize(n);
  return ids;
}

GenerationRequest greedy(Ids prompt, std::int64_t n = 12) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = n;
  return request;
}

Answer ask(Engine& engine, const GenerationRequest& request) {
  const auto turn = engine.queue().join();
  const Answer answer = engine.answer(
      request, [] { return true; }, [](std::string_view) { return true; });
  if (answer.failure) throw std::runtime_error(answer.failure->message);
  return answer;
}

std::string text_of_session(const Ids& prompt, std::int64_t n) {
  const auto session = must(session::Session::open({.model = kModel, .n_threads = 1}));
  must(session->feed(prompt));
  std::string text;
  session->generate(n, true, [&](std::int32_t id) {
    text += session->model().tokenizer.token_bytes(id);
    return Result<bool>(true);
  });
  return text;
}

TEST(Engine, GivesTheTokensOfASession) {
  const auto engine = open_engine();
  EXPECT_EQ(engine->model_id(), "tqcache-demo-17m.q8_0");
  const Ids prompt = first_tokens(*engine, 20);
  const Answer answer = ask(*engine, greedy(prompt));
  EXPECT_EQ(answer.text, text_of_session(prompt, 12));
  EXPECT_EQ(answer.prompt_tokens, 20);
  EXPECT_EQ(answer.cached_tokens, 0);
  EXPECT_EQ(answer.source, PrefixSource::kNothing);
  EXPECT_EQ(answer.completion_tokens, 12);
  EXPECT_EQ(answer.stop, session::StopReason::kLength);
}

TEST(Engine, WithoutAStoreItKeepsWholeBlocksOfTheLastPrompt) {
  const auto engine = open_engine();
  const Ids prompt = first_tokens(*engine, 600);
  ask(*engine, greedy(prompt, 1));
  Ids other = prompt;
  other.resize(560);
  other.push_back(3);
  const Answer answer = ask(*engine, greedy(other));
  EXPECT_EQ(answer.source, PrefixSource::kMemory);
  EXPECT_EQ(answer.cached_tokens, 512);
  EXPECT_EQ(answer.text, text_of_session(other, 12));
}

TEST(Engine, AStoreSurvivesTheEngine) {
  const TempDir dir;
  const std::string url = "dir:" + (dir / "store").string();
  Ids prompt;
  Answer cold;
  {
    const auto engine = open_engine(url);
    prompt = first_tokens(*engine, 700);
    cold = ask(*engine, greedy(prompt));
    EXPECT_EQ(cold.source, PrefixSource::kNothing);
  }
  const auto engine = open_engine(url);
  const Answer warm = ask(*engine, greedy(prompt));
  EXPECT_EQ(warm.source, PrefixSource::kStore);
  EXPECT_EQ(warm.cached_tokens, 512);
  EXPECT_EQ(warm.text, cold.text);
  // A prompt that parts from it takes the blocks before, also while another one is in memory.
  Ids other = prompt;
  other.resize(300);
  other.push_back(7);
  const Answer parted = ask(*engine, greedy(other));
  EXPECT_EQ(parted.cached_tokens, 256);
  EXPECT_EQ(parted.text, text_of_session(other, 12));
}

// Of two prompts in a store, the one with more hits stays, although the other one was used last.
TEST(Engine, CountsTheHitsOfWhatItTakesFromAStore) {
  const TempDir dir;
  const std::string url = "dir:" + (dir / "store").string();
  HitScores scores;
  const auto open = [&] {
    return must(
        Engine::open({.model = kModel, .n_threads = 1, .store_url = url, .scores = &scores}));
  };
  auto engine = open();
  const Ids often = first_tokens(*engine, 600);
  const Ids seldom(often.rbegin(), often.rend());
  const Ids between(300, 9);
  const auto ask_for = [&](const Ids& prompt) { return ask(*engine, greedy(prompt, 1)); };
  for (const Ids& prompt : {often, seldom, between}) ask_for(prompt);
  EXPECT_EQ(scores.size(), 0u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ask_for(often).cached_tokens, 512);
    ask_for(between);
  }
  EXPECT_EQ(ask_for(seldom).source, PrefixSource::kStore);
  engine.reset();
  EXPECT_EQ(scores.size(), 8u);  // two blocks each, one between them, and parameters of each

  const auto backend = must(store::open_backend(url, {}));
  const std::uint64_t all = must(store::read_stats(*backend)).kinds[1].bytes;
  store::CollectOptions limits{.max_bytes = all * 7 / 10, .grace = std::chrono::seconds(0)};
  const auto now = static_cast<double>(std::time(nullptr));
  limits.order_by = [&](std::string_view name, std::chrono::seconds idle) {
    return scores.idle(name, idle, now);
  };
  must(store::collect(*backend, limits));
  engine = open();
  EXPECT_EQ(ask_for(often).cached_tokens, 512);
  EXPECT_EQ(ask_for(seldom).cached_tokens, 0);
}

TEST(Engine, ABrokenStoreCostsOnlyTime) {
  const auto engine = must(Engine::open(
      {.model = kModel, .n_threads = 1, .store_url = "redis+unix:///nonexistent/socket"}));
  const Ids prompt = first_tokens(*engine, 300);
  const Answer answer = ask(*engine, greedy(prompt, 3));
  EXPECT_EQ(answer.text, text_of_session(prompt, 3));
  const auto invalid = Engine::open({.model = kModel, .store_url = "nonsense:"});
  EXPECT_FALSE(invalid);
}

TEST(Engine, TenantsShareNothing) {
  const TempDir dir;
  for (const std::string& url : {std::string(), "dir:" + (dir / "store").string()}) {
    const auto engine = open_engine(url);
    GenerationRequest request = greedy(first_tokens(*engine, 600), 2);
    request.tenant = "one";
    ask(*engine, request);
    request.tenant = "two";
    EXPECT_EQ(ask(*engine, request).cached_tokens, 0) << url;
    EXPECT_EQ(ask(*engine, request).cached_tokens, 512) << url;
    request.tenant = "one";
    // The memory now holds the other's.
    EXPECT_EQ(ask(*engine, request).cached_tokens, url.empty() ? 0 : 512) << url;
  }
}

TEST(Engine, AConversationIsThatOfChat) {
  const auto engine = open_engine();
  const auto session = must(session::Session::open({.model = kModel, .n_threads = 1}));
  const auto turns = must(session::ChatTurns::make(session->model().tokenizer, ""));
  ChatRequest chat;
  chat.messages.push_back({ChatRole::kSystem, "You are a parrot."});
  for (const char* text : {"What is your name?", "And <|im_end|> mine?", "Good bye."}) {
    const Ids asked =
        must(turns.ask(session->cache().tokens,
                       session->cache().n_tokens() == 0 ? "You are a parrot." : "", text, {}));
    const std::int64_t n_before = session->cache().n_tokens();
    must(session->feed(asked));
    std::string expected;
    session->generate(30, true, [&](std::int32_t id) {
      expected += session->model().tokenizer.token_bytes(id);
      return Result<bool>(true);
    });

    chat.messages.push_back({ChatRole::kUser, text});
    GenerationRequest request = greedy(must(engine->encode_chat(chat, "")), 30);
    request.conversation = conversation_digest(chat);
    EXPECT_EQ(std::ssize(request.prompt), n_before + std::ssize(asked)) << text;
    const Answer answer = ask(*engine, request);
    EXPECT_EQ(answer.text, expected);
    EXPECT_EQ(answer.cached_tokens, n_before) << text;
    chat.messages.push_back({ChatRole::kAssistant, answer.text});
  }
}

// The tokens of an answer are kept for the tenant who got it, and only behind the same tokens.
TEST(Engine, AnswersOfOthersAreOrdinaryText) {
  const auto engine = open_engine();
  ChatRequest chat;
  chat.messages.push_back({ChatRole::kUser, "Hello"});
  GenerationRequest request = greedy(must(engine->encode_chat(chat, "one")), 8);
  request.conversation = conversation_digest(chat);
  request.tenant = "one";
  // An answer that no tokenizer would cut this way: characters, one token each.
  const tokenizer::Tokenizer& tokenizer = engine->model().tokenizer;
  const std::int32_t letter = *tokenizer.find_token("e");
  request.sampling.logit_bias = {{letter, 1000}};
  const Answer answer = ask(*engine, request);
  EXPECT_EQ(answer.text, "eeeeeeee");
  chat.messages.push_back({ChatRole::kAssistant, answer.text});
  chat.messages.push_back({ChatRole::kUser, "Again"});
  const auto n_letters = [&](const std::string& tenant) {
    const Ids ids = must(engine->encode_chat(chat, tenant));
    return std::count(ids.begin(), ids.end(), letter);
  };
  EXPECT_EQ(n_letters("one"), 8);
  EXPECT_LT(n_letters("two"), 8);
  chat.messages[0].text = "Hello?";
  EXPECT_LT(n_letters("one"), 8);
}

TEST(Engine, StopsBeforeAStringThatSpansTokens) {
  const auto engine = open_engine();
  const Ids prompt = first_tokens(*engine, 40);
  const std::string all = ask(*engine, greedy(prompt, 30)).text;
  ASSERT_GT(all.size(), 40u);
  for (std::size_t at : {std::size_t{3}, all.size() / 3, all.size() / 2}) {
    const std::string stop = all.substr(at, 9);
    const std::size_t first = all.find(stop);
    GenerationRequest request = greedy(prompt, 30);
    request.stops = {"never there", stop};
    std::string shown;
    const auto turn = engine->queue().join();
    const Answer answer = engine->answer(
        request, [] { return true; },
        [&](std::string_view piece) {
          shown += piece;
          EXPECT_EQ(shown, all.substr(0, shown.size()));
          EXPECT_LE(shown.size(), first);  // not even its beginning
          return true;
        });
    EXPECT_EQ(answer.stop, session::StopReason::kStopString);
    EXPECT_EQ(answer.text, all.substr(0, first));
    EXPECT_EQ(shown, answer.text);
  }
}

TEST(Engine, SendsWholeCharactersOnly) {
  const auto engine = open_engine();
  const tokenizer::Tokenizer& tokenizer = engine->model().tokenizer;
  GenerationRequest request = greedy(first_tokens(*engine, 10), 60);
  // Bytes of characters of two and three bytes, in any order.
  for (const char* byte : {"\xc3", "\xa9", "\xe2", "\x82", "\xac"}) {
    const auto id = tokenizer.find_token(byte);
    ASSERT_TRUE(id) << byte;
    request.sampling.logit_bias.push_back({*id, 1000});
  }
  request.sampling.temperature = 100;
  request.sampling.seed = 3;
  std::string shown;
  const auto turn = engine->queue().join();
  const Answer answer = engine->answer(
      request, [] { return true; },
      [&](std::string_view piece) {
        EXPECT_NO_THROW(nlohmann::json(std::string(piece)).dump());  // throws if it is not UTF-8
        shown += piece;
        return true;
      });
  EXPECT_EQ(shown, answer.text);
  EXPECT_NE(shown.find("\xc3\xa9"), std::string::npos);
}

TEST(Engine, EndsWithinATokenWhenNobodyListens) {
  const auto engine = open_engine();
  const GenerationRequest request = greedy(first_tokens(*engine, 700), 100);
  {
    // While the prompt is read.
    const auto turn = engine->queue().join();
    int n_asked = 0;
    const Answer answer = engine->answer(
        request, [&] { return ++n_asked < 5; }, [](std::string_view) { return true; });
    EXPECT_EQ(answer.stop, session::StopReason::kInterrupted);
    EXPECT_EQ(n_asked, 5);
    EXPECT_EQ(answer.completion_tokens, 0);
  }
  {
    const auto turn = engine->queue().join();
    bool is_listening = true;
    const Answer answer = engine->answer(
        request, [&] { return is_listening; },
        [&](std::string_view) {
          is_listening = false;
          return true;
        });
    EXPECT_EQ(answer.stop, session::StopReason::kInterrupted);
    EXPECT_LE(answer.completion_tokens, 3);  // bytes before the first whole character
  }
  // The engine goes on with the next one.
  EXPECT_EQ(ask(*engine, greedy(request.prompt, 5)).text, text_of_session(request.prompt, 5));
  engine->stop();
  const auto turn = engine->queue().join();
  EXPECT_EQ(engine
                ->answer(
                    request, [] { return true; }, [](std::string_view) { return true; })
                .stop,
            session::StopReason::kInterrupted);
}

TEST(Engine, KeepsALedgerOfWhatItKeeps) {
  const TempDir dir;
  const auto engine = open_engine("dir:" + (dir / "store").string());
  GenerationRequest request = greedy(first_tokens(*engine, 700), 2);
  request.tenant = "one";
  ask(*engine, request);
  Ids other = request.prompt;
  other.resize(300);
  other.insert(other.end(), 300, 9);
  GenerationRequest second = greedy(other, 2);
  second.tenant = "one";
  ask(*engine, second);
  const auto entries = engine->ledger().entries("one");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].n_tokens + entries[1].n_tokens, 702 + 602);
  const KeptPrompt& first = entries[0].id < entries[1].id ? entries[0] : entries[1];
  EXPECT_EQ(first.hits, 1);
  EXPECT_EQ(first.hit_tokens, 256);
  EXPECT_GT(first.stored_bytes, 10'000u);
  EXPECT_EQ(first.text, "");
  EXPECT_TRUE(engine->ledger().entries("").empty());
  // A short prompt is not kept in a store.
  ask(*engine, greedy(first_tokens(*engine, 30), 2));
  EXPECT_TRUE(engine->ledger().entries("").empty());
}

}  // namespace
}  // namespace tqcache::serve
