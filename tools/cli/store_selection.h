#pragma once
// tools/cli/store_selection.h: which prompt of a store: by the name it is kept under, or by what it
// says.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "cli/console.h"
#include "cli/prompt.h"
#include "cli/store_flags.h"
#include "tqcache/store/library/library.h"

namespace tqcache::cli {

struct StoreSelection {
  std::string name;
  std::string model;
  PromptFlags prompt;

  bool by_name() const { return !name.empty(); }
};
void add_selection_flags(CLI::App& app, StoreSelection& selection);

// Errors: kInvalidArgument when it is not one of both.
Result<void> check_selection(const StoreSelection& selection);

struct FoundPrefix {
  std::int64_t n_wanted = 0;  // tokens of the prompt
  store::Prefix prefix;
};

// The longest beginning of the prompt that is there, up to all of it.
// Errors: those of the model, the prompt and the store; kNotFound when nothing is there.
Outcome<FoundPrefix> find_prefix(const OpenStore& store, store::Library& library,
                                 const StoreSelection& selection);

// What is kept under the name. Errors: those of the store; kNotFound.
Outcome<store::Record> find_record(const OpenStore& store, store::Library& library,
                                   const std::string& name);

// Of a record: forms of its layers, for people and for JSON. Empty if its parameters are gone.
Outcome<std::vector<cache::LayerDesc>> layers_of(const OpenStore& store,
                                                  const store::Record& record);

Json record_json(const store::Record& record);
Json prefix_json(const FoundPrefix& found);

}  // namespace tqcache::cli
