#include "cli/store_selection.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <variant>

#include "cli/cli.h"
#include "report/info_json.h"
#include "cli/terminal.h"
#include "tqcache/model/loading/model.h"
#include "tqcache/store/blobs/blob.h"

namespace tqcache::cli {

void add_selection_flags(CLI::App& app, StoreSelection& selection) {
  app.add_option("name", selection.name, "The name it is kept under")
      ->type_name("")
      ->check(file_name());
  add_model_flag(app, selection.model, false);
  add_prompt_flags(app, selection.prompt);
}

Result<void> check_selection(const StoreSelection& selection) {
  TQC_TRY(check_prompt_flags(selection.prompt));
  if (selection.by_name() == selection.prompt.given()) {
    return usage_error("which prompt? a NAME, or one of --prompt, --file and --ids with --model");
  }
  if (selection.by_name() && !selection.model.empty()) {
    return usage_error("--model is of use only with --prompt, --file or --ids");
  }
  if (!selection.by_name() && selection.model.empty()) {
    return usage_error("--model: prompts are found for the model that reads them");
  }
  return {};
}

Outcome<FoundPrefix> find_prefix(const OpenStore& store, store::Library& library,
                                 const StoreSelection& selection) {
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model,
                 in_file(selection.model, model::load_model(selection.model)));
  TQC_TRY_ASSIGN(const std::vector<std::int32_t> tokens,
                 read_prompt(selection.prompt, model->tokenizer));
  FoundPrefix found;
  found.n_wanted = std::ssize(tokens);
  store::FindOptions options;
  options.max_tokens = found.n_wanted;
  TQC_TRY_ASSIGN(found.prefix, store.in(library.find(model->identity, tokens, options)));
  if (found.prefix.n_tokens > 0) return found;
  const std::string message = fmt::format("nothing of the prompt's {} tokens", found.n_wanted);
  return Failure{{ErrorCode::kNotFound, message}, store.name(), false};
}

Outcome<store::Record> find_record(const OpenStore& store, store::Library& library,
                                   const std::string& name) {
  TQC_TRY_ASSIGN(std::optional<store::Record> record, store.in(library.record(name)));
  if (record) return std::move(*record);
  const std::string message = fmt::format("no prompt is kept as {}", printable(name));
  return Failure{{ErrorCode::kNotFound, message}, store.name(), false};
}

Outcome<std::vector<cache::LayerDesc>> layers_of(const OpenStore& store,
                                                  const store::Record& record) {
  const std::string& key = record.parameters_key;
  TQC_TRY_ASSIGN(const std::optional<Bytes> blob, store.in(store.backend->get(key)));
  if (!blob) return std::vector<cache::LayerDesc>{};
  TQC_TRY_ASSIGN(store::Content content,
                 store.in(store::decode_blob(key, SharedBytes(nullptr, ByteView(*blob)))));
  const auto* parameters = std::get_if<store::Parameters>(&content);
  if (parameters == nullptr) return std::vector<cache::LayerDesc>{};
  return store.in(store::join_layers(parameters->layers, record.state.layers));
}

Json record_json(const store::Record& record) {
  Json json;
  json["name"] = record.name;
  json["model_name"] = record.model_name;
  json["architecture"] = record.architecture;
  json["n_tokens"] = record.state.n_tokens;
  json["n_blocks"] = record.chain.size();
  json["bytes"] = record.bytes;
  json["created"] = record.created;
  json["content_name"] = to_hex(record.state.content_name);
  return json;
}

Json prefix_json(const FoundPrefix& found) {
  const store::Prefix& prefix = found.prefix;
  Json json;
  json["prompt_tokens"] = found.n_wanted;
  json["found_tokens"] = prefix.n_tokens;
  json["n_blocks"] = prefix.chain.size();
  json["ends_with_state"] = prefix.state.has_value();
  json["layers"] = layers_json(prefix.parameters.layers, {});
  return json;
}

}  // namespace tqcache::cli
