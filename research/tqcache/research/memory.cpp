#include "tqcache/research/memory.h"

#include <algorithm>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/eval/total_progress.h"
#include "tqcache/research/answers.h"
#include "tqcache/research/questions.h"
#include "tqcache/tqkv.h"

namespace tqcache::research {
namespace {

constexpr std::array<std::string_view, 20> kNames = {
    "Clara", "Oliver", "Hannah", "Felix", "Nora",  "Hugo",  "Alice", "Victor", "Ruth", "Simon",
    "Julia", "Oscar",  "Maria",  "Leon",  "Diana", "Marco", "Elena", "Karl",   "Iris", "Martin"};
constexpr std::array<std::string_view, 12> kJobs = {"baker",   "teacher", "nurse",  "farmer",
                                                    "painter", "sailor",  "lawyer", "doctor",
                                                    "tailor",  "pilot",   "weaver", "librarian"};
constexpr std::array<std::string_view, 12> kFoods = {"soup",     "bread", "cheese", "apples",
                                                     "pancakes", "salad", "honey",  "olives",
                                                     "potatoes", "beans", "rice",   "lobster"};
constexpr std::array<std::string_view, 8> kPets = {"dog",   "cat",    "parrot",  "rabbit",
                                                   "horse", "turtle", "hamster", "donkey"};
constexpr std::array<std::string_view, 8> kColors = {"red",    "blue",  "green", "yellow",
                                                     "purple", "white", "brown", "silver"};
constexpr std::array<std::string_view, 10> kHobbies = {"chess",   "painting", "fishing", "sailing",
                                                       "dancing", "cooking",  "hiking",  "swimming",
                                                       "cycling", "sewing"};
constexpr std::array<std::string_view, 6> kHellos = {"Hello! ", "Hi! ", "Good morning. ",
                                                     "",        "",     ""};
// Small talk that contains none of the values above. @ is replaced by a city.
constexpr std::array<std::string_view, 12> kEvents = {
    "Yesterday I went to @ by train, and it rained all the way.",
    "This morning the wind took a branch off the old tree behind the house.",
    "@ has bought a new gate, and it makes a terrible noise.",
    "The letter that I had waited for came at last, and it was only a bill.",
    "I met an old friend at the market in @, and we walked along the river.",
    "Last night I could not sleep, so I looked out of the window until the moon was gone.",
    "The bridge near the mill is closed, and everybody has to go the long way round.",
    "My brother wrote from @ that the summer there was very hot.",
    "The clock in the hall has stopped again, and nobody knows why.",
    "We had a storm in the evening, and the lamps went out in the whole street.",
    "There was a concert in the garden, and a great many people came.",
    "I have read half of a long book about the sea, and I like it very much."};
constexpr std::uint64_t kEventStep = 5;  // coprime to their number, so that no event is repeated
constexpr std::array<std::string_view, 3> kReplies = {"I see.", "Thank you for telling me.",
                                                      "Thank you. I will remember that."};

std::string pick(eval::Draw& draw, std::span<const std::string_view> values) {
  return std::string(draw.one_of(values));
}

std::vector<Fact> draw_facts(eval::Draw& draw) {
  const std::string name = pick(draw, kNames);
  const std::string city = pick(draw, eval::kCities);
  const std::string job = pick(draw, kJobs);
  const std::string food = pick(draw, kFoods);
  const std::string pet = pick(draw, kPets);
  std::string pet_name = pick(draw, kNames);
  while (pet_name == name) pet_name = pick(draw, kNames);
  const std::string color = pick(draw, kColors);
  std::string hobby = pick(draw, kHobbies);
  const std::string age = std::to_string(10 + draw.below(80));
  return {
      {"My name is " + name + ".", "What is my name?", "Your name is " + name + ".", name},
      {"I live in " + city + ".", "Where do I live?", "You live in " + city + ".", city},
      {"I work as a " + job + ".", "What is my job?", "You work as a " + job + ".", job},
      {"My favorite food is " + food + ".", "What is my favorite food?",
       "Your favorite food is " + food + ".", food},
      {"I have a " + pet + " called " + pet_name + ".", "What is the name of my " + pet + "?",
       "Your " + pet + " is called " + pet_name + ".", pet_name},
      {"My favorite color is " + color + ".", "What is my favorite color?",
       "Your favorite color is " + color + ".", color},
      {"My hobby is " + hobby + ".", "What is my hobby?", "Your hobby is " + hobby + ".", hobby},
      {"I am " + age + " years old.", "How old am I?", "You are " + age + " years old.", age}};
}

// The assistant uses the name once it has been stated.
Turn statement_turn(eval::Draw& draw, const std::vector<Fact>& facts,
                    std::span<const std::size_t> chosen, bool first) {
  Turn turn;
  if (first) turn.user = pick(draw, kHellos);
  std::string name;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    turn.user += (i > 0 ? " " : "") + facts[chosen[i]].statement;
    if (chosen[i] == 0) name = ", " + facts[0].value;
  }
  turn.assistant =
      first ? "Nice to meet you" + name + "!" : "Thank you for telling me" + name + ".";
  return turn;
}

}  // namespace

Story draw_story(std::uint64_t seed) {
  eval::Draw draw(seed);
  Story story = {draw_facts(draw), {}};
  std::array<std::size_t, kFactKinds.size()> order = {};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto j = static_cast<std::size_t>(draw.below(i + 1));
    order[i] = order[j];
    order[j] = i;
  }
  for (std::size_t done = 0; done < order.size();) {
    const std::size_t n = std::min<std::size_t>(1 + draw.below(4), order.size() - done);
    story.turns.push_back(
        statement_turn(draw, story.facts, std::span(order).subspan(done, n), done == 0));
    done += n;
  }
  return story;
}

std::string SmallTalk::other_city() {
  for (;;) {
    std::string city = pick(draw_, eval::kCities);
    if (city != city_) return city;
  }
}

Turn SmallTalk::next() {
  Turn turn;
  const std::uint64_t n = 2 + draw_.below(3);
  std::uint64_t event = draw_.below(kEvents.size());
  for (std::uint64_t i = 0; i < n; ++i, event += kEventStep) {
    std::string text(kEvents[event % kEvents.size()]);
    if (const std::size_t at = text.find('@'); at != std::string::npos) {
      text.replace(at, 1, other_city());
    }
    turn.user += (i > 0 ? " " : "") + text;
  }
  turn.assistant = pick(draw_, kReplies);
  return turn;
}

namespace {

constexpr std::string_view kFileName = "memory.tqkv";
constexpr std::int64_t kQuestionTokens = 64;  // for a question and the markup of its turns

Result<Ids> turn_ids(const tokenizer::Tokenizer& tokenizer, const Dialogue& dialogue,
                     const Turn& turn) {
  TQC_TRY_ASSIGN(const Ids user, encode_text(tokenizer, turn.user));
  TQC_TRY_ASSIGN(const Ids assistant, encode_text(tokenizer, turn.assistant));
  return join({dialogue.user(user), dialogue.assistant(assistant)});
}

// Removes its file at the end of the scope.
class FileInFolder {
 public:
  explicit FileInFolder(const std::filesystem::path& folder) : path_(folder / kFileName) {}
  FileInFolder(const FileInFolder&) = delete;
  FileInFolder& operator=(const FileInFolder&) = delete;
  ~FileInFolder() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The cache after a round trip through a file.
Result<cache::Cache> save_and_load(const cache::Cache& cache, const MemoryOptions& options) {
  const FileInFolder file(options.folder);
  const auto in_file = [&](Error error) {
    return in_context(file.path().string(), std::move(error));
  };
  format::WriteOptions write;
  write.n_threads = options.n_threads;
  write.keys = options.access.keys;
  if (auto written = format::write_cache_file(cache, file.path(), write); !written) {
    return in_file(std::move(written).error());
  }
  auto source = open_file(file.path());
  if (!source) return in_file(std::move(source).error());
  format::ReadOptions read;
  read.n_threads = options.n_threads;
  read.access = options.access;
  auto loaded = format::read_cache(**source, read);
  if (!loaded) return in_file(std::move(loaded).error());
  return loaded;
}

class MemoryMeasurement {
 public:
  MemoryMeasurement(const model::Model& model, const Dialogue& dialogue,
                    const MemoryOptions& options)
      : model_(model),
        dialogue_(dialogue),
        options_(options),
        ends_(answer_end(dialogue, model.tokenizer)),
        decoder_(model, options.n_threads) {}

  Result<void> measure(const Conversation& conversation, eval::TotalProgress& runs,
                       MemoryResult& result) {
    TQC_TRY_ASSIGN(cache::Cache dense, model::make_cache(model_, Dtype::kF32));
    TQC_TRY(decoder_.prefill(dense, conversation.saved, runs.next_run()));
    runs.finish_run(conversation.saved.size());
    for (std::size_t c = 0; c < options_.configurations.size(); ++c) {
      TQC_TRY_ASSIGN(const cache::Cache converted,
                     convert_copy(dense, options_.configurations[c], options_.n_threads));
      TQC_TRY_ASSIGN(cache::Cache loaded, save_and_load(converted, options_));
      TQC_TRY(cache::check_identity(loaded, model_.identity));
      TQC_TRY(resume(conversation, std::move(loaded), runs, result.scores[c]));
    }
    return {};
  }

 private:
  // Asks all questions after each of the requested numbers of further turns.
  Result<void> resume(const Conversation& conversation, cache::Cache cache,
                      eval::TotalProgress& runs, std::vector<std::vector<AnswerScore>>& scores) {
    std::size_t n_turns = 0;
    for (std::size_t t = 0; t < options_.turns.size(); ++t) {
      for (; n_turns < static_cast<std::size_t>(options_.turns[t]); ++n_turns) {
        TQC_TRY(decoder_.prefill(cache, conversation.further[n_turns], runs.check()));
      }
      for (std::size_t f = 0; f < kFactKinds.size(); ++f) {
        TQC_TRY_ASSIGN(const AnswerScore score,
                       ask(conversation.story.facts[f], cache, runs.keep_going()));
        scores[f][t].add(score);
      }
    }
    return {};
  }

  Result<AnswerScore> ask(const Fact& fact, const cache::Cache& cache,
                          const KeepGoing& keep_going) {
    TQC_TRY_ASSIGN(const Ids question, encode_text(model_.tokenizer, fact.question, keep_going));
    TQC_TRY_ASSIGN(const Ids expected,
                   encode_text(model_.tokenizer, std::string(dialogue_.answer_start) + fact.answer,
                               keep_going));
    const Ids asked = join({dialogue_.user(question), dialogue_.open_answer()});
    TQC_TRY_ASSIGN(const Ids ids,
                   greedy_answer(decoder_, cache, asked, options_.max_tokens, ends_, keep_going));
    TQC_TRY_ASSIGN(const Forced forced,
                   forced_answer(decoder_, cache, asked, expected, keep_going));
    const std::string answer = model_.tokenizer.decode(ids);
    return AnswerScore{.trials = 1,
                       .exact = match_answer(answer, {&fact.answer, 1}).exact,
                       .found = match_answer(answer, {&fact.value, 1}).found,
                       .forced = forced.all_likeliest,
                       .log_probability = forced.log_probability};
  }

  const model::Model& model_;
  const Dialogue& dialogue_;
  const MemoryOptions& options_;
  EndsAnswer ends_;
  model::Decoder decoder_;
};

std::int64_t size_of(const Conversation& conversation) {
  std::int64_t size = std::ssize(conversation.saved);
  for (const Ids& turn : conversation.further) size += std::ssize(turn);
  return size;
}

}  // namespace

Result<Conversation> make_conversation(const tokenizer::Tokenizer& tokenizer,
                                       const Dialogue& dialogue, const MemoryOptions& options,
                                       std::int64_t trial) {
  const std::uint64_t seed = eval::seed_of({options.seed, static_cast<std::uint64_t>(trial)});
  Conversation conversation = {draw_story(seed), dialogue.begin, {}};
  SmallTalk talk(eval::seed_of({seed, 1}), conversation.story.facts[1].value);
  const auto say = [&](const Turn& turn) -> Result<void> {
    TQC_TRY_ASSIGN(const Ids ids, turn_ids(tokenizer, dialogue, turn));
    conversation.saved.insert(conversation.saved.end(), ids.begin(), ids.end());
    return {};
  };
  for (const Turn& turn : conversation.story.turns) {
    TQC_TRY(say(turn));
    TQC_TRY(say(talk.next()));
  }
  while (std::ssize(conversation.saved) < options.n_tokens) TQC_TRY(say(talk.next()));
  for (std::int64_t i = 0; i < options.turns.back(); ++i) {
    TQC_TRY_ASSIGN(Ids ids, turn_ids(tokenizer, dialogue, talk.next()));
    conversation.further.push_back(std::move(ids));
  }
  return conversation;
}

namespace {

// All conversations, each of which fits into the model's context.
Result<std::vector<Conversation>> make_conversations(const model::Model& model,
                                                     const Dialogue& dialogue,
                                                     const MemoryOptions& options) {
  TQC_TRY(check_configurations(model, options.configurations));
  // A turn has more than one token, so this check can fail early, before conversations are made.
  const std::int64_t n_answer = options.max_tokens + kQuestionTokens;
  TQC_TRY(check_context(model.config, options.n_tokens + options.turns.back(), n_answer));
  std::vector<Conversation> conversations;
  for (std::int64_t trial = 0; trial < options.trials; ++trial) {
    TQC_TRY_ASSIGN(Conversation conversation,
                   make_conversation(model.tokenizer, dialogue, options, trial));
    TQC_TRY(check_context(model.config, size_of(conversation), n_answer));
    conversations.push_back(std::move(conversation));
  }
  return conversations;
}

}  // namespace

Result<void> check_memory(const model::Model& model, const Dialogue& dialogue,
                          const MemoryOptions& options) {
  TQC_TRY(make_conversations(model, dialogue, options));
  return {};
}

Result<MemoryResult> measure_memory(const model::Model& model, const Dialogue& dialogue,
                                    const MemoryOptions& options, const Progress& progress) {
  TQC_TRY_ASSIGN(const std::vector<Conversation> conversations,
                 make_conversations(model, dialogue, options));
  std::uint64_t n_tokens = 0;
  for (const Conversation& each : conversations) n_tokens += each.saved.size();
  const std::vector<std::vector<AnswerScore>> empty(kFactKinds.size(),
                                                    std::vector<AnswerScore>(options.turns.size()));
  MemoryResult result = {.scores = {options.configurations.size(), empty}};
  MemoryMeasurement measurement(model, dialogue, options);
  eval::TotalProgress runs(progress, n_tokens);
  for (const Conversation& each : conversations) {
    TQC_TRY(measurement.measure(each, runs, result));
  }
  return result;
}

namespace {

std::string turns_name(std::int64_t turns) {
  if (turns == 0) return "after loading";
  return std::to_string(turns) + (turns == 1 ? " turn later" : " turns later");
}

eval::HeatMap heat_map(const MemoryOptions& options, const std::string& name,
                       const std::vector<std::vector<AnswerScore>>& scores) {
  eval::HeatMap map = found_map("Remembered, " + name, "fact", "asked");
  for (const std::int64_t turns : options.turns) map.columns.push_back(turns_name(turns));
  for (std::size_t f = 0; f < kFactKinds.size(); ++f) {
    add_found_row(map, std::string(kFactKinds[f]), scores[f]);
  }
  return map;
}

}  // namespace

eval::Report memory_report(const MemoryOptions& options, const MemoryResult& result) {
  eval::Report report;
  report.title = "Memory of a saved conversation";
  report.facts = {{"conversations", std::to_string(options.trials)},
                  {"minimum tokens when saved", std::to_string(options.n_tokens)},
                  {"seed", std::to_string(options.seed)}};
  eval::Table summary = {"Memory", score_columns({"configuration"}), {}};
  eval::Table by_turn = {"By turn", score_columns({"configuration", "when"}), {}};
  for (std::size_t c = 0; c < result.scores.size(); ++c) {
    const std::string& name = options.configurations[c].name;
    AnswerScore all;
    for (std::size_t t = 0; t < options.turns.size(); ++t) {
      AnswerScore sum;
      for (const auto& of_fact : result.scores[c]) sum.add(of_fact[t]);
      by_turn.rows.push_back(score_row({name, turns_name(options.turns[t])}, sum));
      all.add(sum);
    }
    summary.rows.push_back(score_row({name}, all));
  }
  report.figures.emplace_back(std::move(summary));
  report.figures.emplace_back(std::move(by_turn));
  for (std::size_t c = 0; c < result.scores.size(); ++c) {
    report.figures.emplace_back(
        heat_map(options, options.configurations[c].name, result.scores[c]));
  }
  report.notes = {std::string(kScoreNote),
                  "The cache was converted, written to a file and read back before the questions."};
  return report;
}

}  // namespace tqcache::research
