// Any bytes as a state file of llama.cpp, of one of a few small models: what is read of it is a
// cache, and all of it can be had. The first byte takes the model and the options.

#include <memory>
#include <utility>

#include "fuzz/fuzz.h"
#include "interop/foreign_cache_reading.h"
#include "interop/llama_models.h"
#include "tqcache/file.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache {
namespace {

using fuzz::must;
using fuzz::require;
using interop::import_llama_state;
using interop::LlamaImport;
using interop::LlamaRotation;

std::shared_ptr<const ByteSource> source_of(ByteView bytes) {
  return memory_source(Bytes(bytes.begin(), bytes.end()));
}

// What only reading can find: a row of a fork that is wrong, a value that is not finite.
bool is_of_values(const Error& error) {
  return error.code == ErrorCode::kUnsupported || error.message.ends_with("is not finite");
}

void run(ByteView bytes) {
  static const auto models = test::models_to_fuzz();
  fuzz::Input input(bytes);
  const auto choice = input.take<std::uint8_t>();
  const interop::LlamaGeometry& model = models[choice % 8 % models.size()];
  LlamaImport options;
  if ((choice & 8) != 0) options.rotation = LlamaRotation::kOn;
  if ((choice & 16) != 0) options.turbo_layout = "turbo2,turbo3,turbo4";
  const ByteView file = input.rest();
  auto imported = import_llama_state(source_of(file), model, options);
  if (!imported) return require(!imported.error().message.empty(), "an error has a message");
  require(!import_llama_state(source_of(file.first(file.size() - 1)), model, options).ok(),
          "a state ends where the file does");
  const std::int64_t n_tokens = imported->cache.n_tokens;
  const auto sections =
      must(interop::reader_of(std::move(imported->cache)), "what is imported can be described");
  const auto cache = test::read_sections(*sections);
  if (!cache) return require(is_of_values(cache.error()), "and be read");
  require(cache->n_tokens() == n_tokens, "and has the tokens that it said");
  for (const cache::Checkpoint& checkpoint : sections->checkpoints()) {
    const auto state = test::read_sections(*checkpoint.state);
    if (!state) return require(is_of_values(state.error()), "and be read");
    const auto first = cache::first_tokens(sections, checkpoint.n_tokens());
    require(first && (*first)->n_tokens() == checkpoint.n_tokens(), "and cut there");
  }
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tqcache::run(tqcache::fuzz::view_of(data, size));
  return 0;
}
