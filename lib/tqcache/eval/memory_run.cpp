#include "tqcache/eval/memory_run.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "tqcache/cache/cache.h"
#include "tqcache/eval/answers.h"
#include "tqcache/eval/answers_ask.h"
#include "tqcache/eval/answers_configurations.h"
#include "tqcache/eval/answers_progress.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/model/decoder.h"

namespace tqcache::eval {
namespace {

constexpr std::string_view kFileName = "memory.tqkv";
constexpr std::int64_t kQuestionTokens = 64;  // room for a question and the frames of its turns

Result<Ids> turn_ids(const tokenizer::Tokenizer& tokenizer, const Dialogue& dialogue,
                     const Turn& turn) {
  TQC_TRY_ASSIGN(const Ids user, encode_text(tokenizer, turn.user));
  TQC_TRY_ASSIGN(const Ids assistant, encode_text(tokenizer, turn.assistant));
  return join({dialogue.user(user), dialogue.assistant(assistant)});
}

// Takes its file away at the end of the scope.
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

// The cache as it comes back from a file.
Result<cache::Cache> save_and_load(const cache::Cache& cache, const MemoryOptions& options) {
  const FileInFolder file(options.folder);
  const auto in_file = [&](Error error) {
    return in_context(file.path().string(), std::move(error));
  };
  format::WriteOptions write;
  write.n_threads = options.n_threads;
  if (auto written = format::write_cache_file(cache, file.path(), write); !written) {
    return in_file(std::move(written).error());
  }
  auto source = open_file(file.path());
  if (!source) return in_file(std::move(source).error());
  format::ReadOptions read;
  read.n_threads = options.n_threads;
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

  Result<void> measure(const Conversation& conversation, Pieces& pieces, MemoryResult& result) {
    TQC_TRY_ASSIGN(cache::Cache dense, model::make_cache(model_, Dtype::kF32));
    TQC_TRY(decoder_.prefill(dense, conversation.saved, pieces.piece()));
    pieces.finish(conversation.saved.size());
    for (std::size_t c = 0; c < options_.configurations.size(); ++c) {
      TQC_TRY_ASSIGN(const cache::Cache converted,
                     convert_copy(dense, options_.configurations[c], options_.n_threads));
      TQC_TRY_ASSIGN(cache::Cache loaded, save_and_load(converted, options_));
      TQC_TRY(cache::check_identity(loaded, model_.identity));
      TQC_TRY(go_on(conversation, std::move(loaded), pieces, result.scores[c]));
    }
    return {};
  }

 private:
  // Asks after each of the wanted numbers of further turns.
  Result<void> go_on(const Conversation& conversation, cache::Cache cache, Pieces& pieces,
                     std::vector<std::vector<AnswerScore>>& scores) {
    std::size_t n_turns = 0;
    for (std::size_t t = 0; t < options_.turns.size(); ++t) {
      for (; n_turns < static_cast<std::size_t>(options_.turns[t]); ++n_turns) {
        TQC_TRY(decoder_.prefill(cache, conversation.further[n_turns], pieces.check()));
      }
      for (std::size_t f = 0; f < kFactKinds.size(); ++f) {
        TQC_TRY_ASSIGN(const AnswerScore score,
                       ask(conversation.story.facts[f], cache, pieces.keep_going()));
        scores[f][t].add(score);
      }
    }
    return {};
  }

  Result<AnswerScore> ask(const Fact& fact, const cache::Cache& cache,
                          const KeepGoing& keep_going) {
    TQC_TRY_ASSIGN(const Ids question, encode_text(model_.tokenizer, fact.question));
    TQC_TRY_ASSIGN(
        const Ids expected,
        encode_text(model_.tokenizer, std::string(dialogue_.answer_start) + fact.answer));
    const Ids asked = join({dialogue_.user(question), dialogue_.open_assistant});
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
  const std::uint64_t seed = seed_of({options.seed, static_cast<std::uint64_t>(trial)});
  Conversation conversation = {draw_story(seed), {}, {}};
  SmallTalk talk(seed_of({seed, 1}), conversation.story.facts[1].value);
  const auto say = [&](const Turn& turn) -> Result<void> {
    TQC_TRY_ASSIGN(const Ids ids, turn_ids(tokenizer, dialogue, turn));
    conversation.saved.insert(conversation.saved.end(), ids.begin(), ids.end());
    return {};
  };
  for (const Turn& turn : conversation.story.telling) {
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

// All that are to be measured, each of which fits into the model's context.
Result<std::vector<Conversation>> make_conversations(const model::Model& model,
                                                     const Dialogue& dialogue,
                                                     const MemoryOptions& options) {
  TQC_TRY(check_configurations(model, options.configurations));
  // A turn has more than a token: what cannot fit is known before it is made.
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
  Pieces pieces(progress, n_tokens);
  for (const Conversation& each : conversations) {
    TQC_TRY(measurement.measure(each, pieces, result));
  }
  return result;
}

}  // namespace tqcache::eval
