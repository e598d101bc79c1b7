// State files of llama.cpp, of every layout that a small model's may have.

#include "tqcache/interop/llama/llama_state.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "fuzz/seeds/seeds.h"
#include "interop/llama_models.h"
#include "interop/llama_state_writer.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/llama/llama_parse.h"

namespace tqcache::fuzz {
namespace {

using interop::LlamaFile;

constexpr std::size_t kQuantized = 1;  // the model whose rows are wide enough

test::StateSpec spec_of(const interop::LlamaGeometry& geometry, LlamaFile kind,
                        std::uint32_t version, const interop::LlamaProfile& profile) {
  test::StateSpec spec = test::plain_spec(geometry, 2);
  spec.kind = kind;
  spec.version = version;
  spec.profile = profile;
  spec.wrapped = version == 3;
  spec.rotated = profile.has_rotations;
  return spec;
}

// The byte that takes the model and the options, and the file.
Bytes input_of(std::size_t model, const test::StateSpec& spec) {
  constexpr std::uint8_t kRotated = 8;
  ByteWriter out;
  out.write(static_cast<std::uint8_t>(model == kQuantized ? kRotated | model : model));
  out.append(test::write_state(test::models_to_fuzz()[model], spec));
  return std::move(out).take();
}

void make_states(const SeedFolder& seeds, std::size_t model, LlamaFile kind,
                 std::uint32_t version) {
  const interop::LlamaGeometry geometry = test::models_to_fuzz()[model];
  const std::string name =
      "model" + std::to_string(model) + "_version" + std::to_string(version) + '_';
  int number = 0;
  for (const auto& profile : interop::llama_profiles(kind, version, geometry)) {
    test::StateSpec spec = spec_of(geometry, kind, version, profile);
    spec.transposed = version == 9 && number == 0;
    if (model == kQuantized) spec.k_type = spec.v_type = "q4_0";
    seeds.add(name + std::to_string(number++), input_of(model, spec));
  }
}

// A sequence of ik_llama.cpp: one cell, one layer with rows of 4 bytes, values transposed.
Bytes ik_input() {
  ByteWriter out;
  out.write<std::uint8_t>(0);
  constexpr std::uint32_t kWords[] = {0x67677371, 4, 1, 5, 1, 0, 0, 1, 1, 1,
                                      4,          0, 7, 1, 2, 2, 7, 0, 0};
  for (const std::uint32_t word : kWords) out.write(word);
  return std::move(out).take();
}

// A slot of 8 tokens with checkpoints at 3 and 7, as llama-server writes it.
Bytes slot_input(std::size_t model) {
  const interop::LlamaGeometry geometry = test::models_to_fuzz()[model];
  const auto cache_of = [&](std::int64_t n_tokens) {
    test::StateSpec spec = test::plain_spec(geometry, n_tokens);
    spec.kind = LlamaFile::kSequence;
    spec.version = 4;
    spec.profile = interop::llama_profiles(spec.kind, spec.version, geometry).front();
    auto file = memory_source(test::write_state(geometry, spec));
    return test::must(interop::import_llama_state(std::move(file), geometry)).cache;
  };
  interop::ForeignCache cache = cache_of(8);
  for (const std::int64_t n_tokens : {3, 7}) {
    interop::ForeignCheckpoint checkpoint{n_tokens, n_tokens - 1, {}};
    for (interop::ForeignLayer& layer : cache_of(n_tokens).layers) {
      if (std::holds_alternative<cache::AttentionDesc>(layer.description)) continue;
      checkpoint.layers.push_back(std::move(layer));
    }
    cache.checkpoints.push_back(std::move(checkpoint));
  }
  const test::TempDir folder;
  test::must(interop::export_llama_state(*test::must(interop::reader_of(std::move(cache))),
                                         geometry, folder / "slot",
                                         {.kind = LlamaFile::kSequence, .version = 4}));
  ByteWriter out;
  out.write(static_cast<std::uint8_t>(model));
  out.append(test::read_all(folder / "slot"));
  return std::move(out).take();
}

}  // namespace

void make_llama_state(const SeedFolder& seeds) {
  for (const std::size_t model : {0u, 2u, 3u, 4u, 5u}) {
    for (const std::uint32_t version : {8u, 9u, 10u}) {
      make_states(seeds, model, LlamaFile::kSession, version);
    }
    for (const std::uint32_t version : {2u, 3u}) {
      make_states(seeds, model, LlamaFile::kSequence, version);
    }
  }
  make_states(seeds, kQuantized, LlamaFile::kSequence, 3);
  make_states(seeds, kQuantized, LlamaFile::kSequence, 4);
  make_states(seeds, 0, LlamaFile::kSession, 11);
  for (const std::size_t model : {2u, 3u, 4u, 5u}) {
    seeds.add("model" + std::to_string(model) + "_slot", slot_input(model));
  }
  seeds.add("ik", ik_input());
}

}  // namespace tqcache::fuzz
