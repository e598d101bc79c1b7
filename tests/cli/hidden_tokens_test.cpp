// Files that keep hashes in the place of the prompt's tokens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "cli/demo.h"

namespace tqcache::test {
namespace hidden_tokens_test {

using testing::HasSubstr;
using testing::Not;

using Ids = std::vector<std::int32_t>;

// The first tokens of the book, and the same in a file that hides them.
struct Books {
  std::string plain;
  std::string hidden;
  Ids ids;
};

Books books(const TempDir& dir, int n_tokens) {
  Books books{prefill_book(dir, n_tokens), (dir / "hidden.kv").string(), {}};
  must({"prefill", "-m", kModel, "--file", kBook, "--max-tokens", std::to_string(n_tokens), "-o",
        books.hidden, "--no-tokens"});
  books.ids = tokens_of(books.plain);
  return books;
}

bool holds_ids(const std::string& file, const Ids& ids) {
  const Bytes bytes = read_all(file);
  Bytes wanted(ids.size() * sizeof(std::int32_t));
  std::memcpy(wanted.data(), ids.data(), wanted.size());
  return std::search(bytes.begin(), bytes.end(), wanted.begin(), wanted.end()) != bytes.end();
}

Output go_on(const std::string& cache, const Ids& prompt,
             const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"generate", "-m", kModel,   "--cache", cache,
                                   "-n",       "4",  "--json", "--ids",   id_list(prompt)};
  args.insert(args.end(), more.begin(), more.end());
  return tqcache(args);
}

TEST(HiddenTokens, AppearNowhereInTheFile) {
  const TempDir dir;
  const Books book = books(dir, 300);
  const Ids few(book.ids.begin(), book.ids.begin() + 3);
  EXPECT_TRUE(holds_ids(book.plain, few));
  EXPECT_FALSE(holds_ids(book.hidden, few));
  EXPECT_THAT(must({"info", book.hidden}).out, HasSubstr("300, hidden behind 2 hashes\n"));
  EXPECT_EQ(info_of(book.hidden)["token_hashes"], 2);
  EXPECT_TRUE(info_of(book.plain)["token_hashes"].is_null());
  const Output output = tqcache({"info", book.hidden, "--show-text"});
  EXPECT_EQ(output.exit_code, 21);
  must({"verify", book.hidden});
}

TEST(HiddenTokens, CanBeResumedWithThePrompt) {
  const TempDir dir;
  const Books book = books(dir, 300);
  const Ids expected = generate_ids({"--cache", book.plain, "-n", "4"});
  const nlohmann::json same = nlohmann::json::parse(go_on(book.hidden, book.ids).out);
  EXPECT_EQ(same["token_ids"].get<Ids>(), expected);
  EXPECT_EQ(same["cached_tokens"], 300);
  EXPECT_EQ(same["prompt_tokens"], 0);

  Ids longer = book.ids;
  longer.insert(longer.end(), {5, 6, 7});
  const nlohmann::json more = nlohmann::json::parse(go_on(book.hidden, longer).out);
  EXPECT_EQ(more["prompt_tokens"], 3);
  EXPECT_EQ(more["token_ids"].get<Ids>(),
            generate_ids({"--cache", book.plain, "-n", "4", "--ids", "5,6,7"}));
}

TEST(HiddenTokens, CanBeResumedWithThePromptAsText) {
  const TempDir dir;
  const std::string cache = (dir / "a.kv").string();
  must({"prefill", "-m", kModel, "-p", parrot_prompt(), "-o", cache, "--no-tokens"});
  EXPECT_EQ(
      must({"generate", "-m", kModel, "--cache", cache, "-p", parrot_prompt(), "-n", "40"}).out,
      kAnswer + "\n");
}

TEST(HiddenTokens, RefuseAnotherPromptNamingTheBlock) {
  const TempDir dir;
  const Books book = books(dir, 300);
  const auto expect_mismatch = [&](const Ids& ids, const std::string& block) {
    const Output output = go_on(book.hidden, ids);
    EXPECT_EQ(output.exit_code, 22) << output.err;
    EXPECT_EQ(output.out, "");
    EXPECT_THAT(output.err, HasSubstr("\"file\":\"" + book.hidden + "\""));
    EXPECT_THAT(output.err, HasSubstr(block));
  };
  Ids other = book.ids;
  other[299] += 1;
  expect_mismatch(other, "block 1");
  other[17] += 1;
  expect_mismatch(other, "block 0");
  expect_mismatch(Ids(book.ids.begin(), book.ids.end() - 1), "299");
  const Output without = tqcache({"generate", "-m", kModel, "--cache", book.hidden, "-n", "4"});
  EXPECT_EQ(without.exit_code, 21);
  EXPECT_THAT(without.err, HasSubstr("pass the whole prompt"));
}

TEST(HiddenTokens, StayHiddenWhenTheCacheIsSavedAgain) {
  const TempDir dir;
  const Books book = books(dir, 300);
  const std::string saved = (dir / "saved.kv").string();
  EXPECT_EQ(go_on(book.hidden, book.ids, {"--save", saved}).exit_code, 0);
  EXPECT_EQ(info_of(saved)["token_hashes"], 2);
  EXPECT_EQ(info_of(saved)["n_tokens"], 304);
  EXPECT_FALSE(holds_ids(saved, {book.ids[0], book.ids[1], book.ids[2]}));
  const std::string turbo = pack(book.hidden);
  EXPECT_EQ(info_of(turbo)["token_hashes"], 2);
}

TEST(HiddenTokens, StayHiddenWhenTheFileGrows) {
  const TempDir dir;
  const Books book = books(dir, 255);
  const Ids expected = generate_ids({"--cache", book.plain, "-n", "8"});
  const Output first = go_on(book.hidden, book.ids, {"--append"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  Ids ids = nlohmann::json::parse(first.out)["token_ids"];
  EXPECT_EQ(info_of(book.hidden)["n_tokens"], 259);
  EXPECT_EQ(info_of(book.hidden)["token_hashes"], 2);
  must({"verify", book.hidden});
  Ids whole = book.ids;
  whole.insert(whole.end(), ids.begin(), ids.end());
  const Ids second =
      nlohmann::json::parse(go_on(book.hidden, whole, {"--append"}).out)["token_ids"];
  ids.insert(ids.end(), second.begin(), second.end());
  EXPECT_EQ(ids, expected);
}

TEST(HiddenTokens, AreWrittenByEveryVerbWithNoTokens) {
  const TempDir dir;
  const std::string plain = prefill_book(dir, 20);
  const std::string a = (dir / "a.kv").string();
  const std::string b = (dir / "b.kv").string();
  const std::string c = (dir / "c.kv").string();
  must({"convert", plain, a, "--no-tokens"});
  generate({"--cache", plain, "-n", "2", "--save", b, "--no-tokens"});
  must({"chat", "-m", kModel, "-n", "2", "--save", c, "--no-tokens"}, {.input = "Hi\n/save\nHi\n"});
  for (const std::string& file : {a, b, c}) EXPECT_EQ(info_of(file)["token_hashes"], 1);
  const Output useless = tqcache({"generate", "-m", kModel, "-p", "Hi", "-n", "1", "--no-tokens"});
  EXPECT_EQ(useless.exit_code, 2);
  const Output grows =
      tqcache({"chat", "-m", kModel, "--cache", plain, "--save", plain, "--no-tokens"});
  EXPECT_EQ(grows.exit_code, 2);
}

TEST(HiddenTokens, CannotBeResumedByChat) {
  const TempDir dir;
  const Books book = books(dir, 20);
  const Output output = tqcache({"chat", "-m", kModel, "--cache", book.hidden}, {.input = "Hi\n"});
  EXPECT_EQ(output.exit_code, 21);
  EXPECT_THAT(output.err, HasSubstr("tqcache: " + book.hidden + ": the tokens are hidden"));
}

TEST(HiddenTokens, CannotBeProbed) {
  const TempDir dir;
  const Books book = books(dir, 20);
  const Output output = tqcache({"verify", book.hidden, "-m", kModel});
  EXPECT_EQ(output.exit_code, 21);
  EXPECT_THAT(output.err, HasSubstr("--probe 0"));
  EXPECT_THAT(must({"verify", book.hidden, "-m", kModel, "--probe", "0"}).out,
              HasSubstr("fingerprints match\n"));
  EXPECT_EQ(tqcache({"verify", book.hidden, "-m", kOtherModel}).exit_code, 22);
}

TEST(HiddenTokens, AreComparedByTheirHashes) {
  const TempDir dir;
  const Books book = books(dir, 300);
  const nlohmann::json json =
      nlohmann::json::parse(must({"diff", book.plain, book.hidden, "--json"}).out);
  EXPECT_EQ(json["n_tokens_checked"], 300);
  EXPECT_EQ(json["k"]["max_abs"], 0);
  EXPECT_THAT(must({"diff", book.plain, book.hidden}).out, Not(HasSubstr("only of")));
}

TEST(HiddenTokens, AreCutAtTheEndOfABlockAlone) {
  const TempDir dir;
  const Books book = books(dir, 600);
  const std::string part = (dir / "part.kv").string();
  EXPECT_EQ(tqcache({"convert", book.hidden, part, "--tokens", "300"}).exit_code, 21);
  must({"convert", book.hidden, part, "--tokens", "512"});
  EXPECT_EQ(info_of(part)["token_hashes"], 2);
}

}  // namespace hidden_tokens_test
}  // namespace tqcache::test
