// tools/verbs/store_list.cpp: named prompts of a store: ls, info, rm.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "cli/common_flags.h"
#include "cli/console.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "report/info.h"
#include "report/text_table.h"
#include "tqcache/store/upkeep/inventory.h"

namespace tqcache::cli {
namespace {

constexpr const char* kLsExamples =
    R"(Lists the prompts of one salt by name. The size counts all blobs that a prompt needs, including shared
ones; tqcache store stats reports what sharing saves.

Examples:
  tqcache store ls --store dir:/var/lib/prompts
  tqcache store ls --store dir:/var/lib/prompts --model-name SmolLM2
  tqcache store ls --store redis://localhost --salt-file team.salt --json
)";

constexpr const char* kInfoExamples =
    R"(Shows neither tokens nor text; tqcache store get fetches them.

Examples:
  tqcache store info alice --store dir:/var/lib/prompts
)";

constexpr const char* kRmExamples =
    R"(Removes only the name, at once. The data can still be found by its tokens until tqcache store gc
removes it.

The exit code is 10 if no name exists, and 3 if some did not.

Examples:
  tqcache store rm alice --store dir:/var/lib/prompts
)";

std::uint64_t n_tokens_of(const store::PromptRecord& record) {
  return static_cast<std::uint64_t>(record.snapshot.n_tokens);
}

// The fields of a record that a list shows; its tokens are not kept.
struct Row {
  std::string name, model_name;
  Json json;
  std::uint64_t n_tokens = 0;
  std::uint64_t bytes = 0;
  std::int64_t created = 0;
  std::optional<std::chrono::seconds> idle;
};

Row row_of(const store::Entry& entry, const store::PromptRecord& record) {
  Row row{record.name,  record.model_name, record_json(record), n_tokens_of(record),
          record.bytes, record.created,    entry.idle};
  row.json["idle_seconds"] = entry.idle ? Json(entry.idle->count()) : Json(nullptr);
  return row;
}

eval::Cell count_cell(std::uint64_t value) { return eval::Number{static_cast<double>(value), 0}; }

eval::Table table_of(const std::vector<Row>& rows) {
  eval::Table table{"", {"name", "tokens", "size", "put (UTC)", "last used", "model"}, {}};
  for (const Row& row : rows) {
    table.rows.push_back({printable(row.name), count_cell(row.n_tokens), human_bytes(row.bytes),
                          time_text(row.created), row.idle ? duration_text(*row.idle) + " ago" : "",
                          printable(row.model_name)});
  }
  return table;
}

Json list_json(const OpenStore& store, const std::vector<Row>& rows) {
  Json json;
  json["schema"] = 1;
  json["store"] = store.name();
  json["prompts"] = Json::array();
  for (const Row& row : rows) json["prompts"].push_back(row.json);
  return json;
}

struct LsFlags {
  StoreFlags store;
  std::string model_name;  // part of it; empty: any
};

Result<ExitCode> run_ls(const Console& console, const LsFlags& flags) {
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags.store, StoreUse::kLook));
  std::vector<Row> rows;
  const auto tell = [&](const std::string& message) { warn(store.name(), message); };
  TQC_TRY(store.in(store::list_prompts(
      *store.backend, store::record_prefix(store.salt), tell,
      [&](const store::Entry& entry, const store::PromptRecord& record) -> Result<void> {
        if (interrupted()) return interrupted_error();
        if (record.model_name.find(flags.model_name) == std::string::npos) return {};
        rows.push_back(row_of(entry, record));
        return {};
      })));
  std::ranges::sort(rows, {}, &Row::name);
  if (console.json) {
    TQC_TRY(print_json(list_json(store, rows)));
  } else if (!rows.empty()) {
    TQC_TRY(print(report::text_table(table_of(rows))));
  }
  return ExitCode::kDone;
}

struct InfoFlags {
  StoreFlags store;
  std::string name;
};

std::string line(std::string_view label, std::string_view value) {
  return fmt::format("{:<16}{}\n", label, printable(value));
}

std::string record_text(const OpenStore& store, const store::PromptRecord& record) {
  return line("name", record.name) + line("store", store.name()) +
         line("model", fmt::format("{} ({})", record.model_name, record.architecture)) +
         line("content", "sha256 " + to_hex(record.snapshot.content_name)) +
         line("tokens", grouped(n_tokens_of(record))) +
         line("blocks", grouped(record.chain.size())) + line("bytes", grouped(record.bytes)) +
         line("put", time_text(record.created) + " UTC");
}

Result<ExitCode> run_info(const Console& console, const InfoFlags& flags) {
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags.store, StoreUse::kLook));
  store::Library library = store.library();
  TQC_TRY_ASSIGN(const store::PromptRecord record, find_record(store, library, flags.name));
  TQC_TRY_ASSIGN(const std::vector<cache::LayerDesc> layers, layers_of(store, record));
  if (layers.empty())
    warn(store.name(), record.parameters_key + ": missing; the prompt is incomplete");
  if (console.json) {
    Json json = {{"schema", 1}, {"store", store.name()}};
    json.update(record_json(record));
    json["layers"] = layers_json(layers, record.snapshot.n_tokens);
    TQC_TRY(print_json(json));
  } else {
    TQC_TRY(print(record_text(store, record) + layers_text(layers, record.snapshot.n_tokens)));
  }
  return ExitCode::kDone;
}

struct RmFlags {
  StoreFlags store;
  std::vector<std::string> names;
};

Result<ExitCode> run_rm(const Console& console, const RmFlags& flags) {
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags.store, StoreUse::kLook));
  store::Library library = store.library();
  Tally tally;
  Json removed = Json::array();
  for (const std::string& name : flags.names) {
    TQC_TRY_ASSIGN(const bool was_there, store.in(library.remove(name)));
    if (was_there) {
      tally.done();
      removed.push_back(name);
      note(console, fmt::format("{}: removed", printable(name)));
    } else {
      const std::string message = fmt::format("no prompt has the name {}", printable(name));
      tally.failed(Error{ErrorCode::kNotFound, message, store.name()});
    }
  }
  if (console.json) {
    TQC_TRY(print_json({{"schema", 1}, {"store", store.name()}, {"removed", removed}}));
  }
  return tally.exit_code();
}

}  // namespace

Action define_store_ls(FlagSet& app) {
  const auto flags = std::make_shared<LsFlags>();
  add_store_flag(app, flags->store);
  add_salt_flag(app, flags->store);
  app.add("--model-name", flags->model_name,
          "List only prompts of models whose names contain this text")
      ->type_name("TEXT");
  app.footer(kLsExamples);
  return [flags](const Console& console) { return run_ls(console, *flags); };
}

Action define_store_info(FlagSet& app) {
  const auto flags = std::make_shared<InfoFlags>();
  app.add("name", flags->name, "Name of the prompt")->type_name("")->not_empty()->required();
  add_store_flag(app, flags->store);
  add_salt_flag(app, flags->store);
  app.footer(kInfoExamples);
  return [flags](const Console& console) { return run_info(console, *flags); };
}

Action define_store_rm(FlagSet& app) {
  const auto flags = std::make_shared<RmFlags>();
  app.add("name", flags->names, "Names of prompts")->type_name("")->not_empty()->required();
  add_store_flag(app, flags->store);
  add_salt_flag(app, flags->store);
  app.footer(kRmExamples);
  return [flags](const Console& console) { return run_rm(console, *flags); };
}

}  // namespace tqcache::cli
