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
ones; tqcache store stats reports what sharing saves. Prompts that serve, generate and chat keep have no
names: if no prompt has one, a line says how much is stored without.

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
  std::string name, model_name;  // the latter with a word on its standing
  Json json;
  std::uint64_t n_tokens = 0;
  std::uint64_t bytes = 0;
  std::int64_t created = 0;
  std::optional<std::chrono::seconds> idle;
};

Row row_of(const store::Entry& entry, const store::PromptRecord& record) {
  Row row{record.name,  record.model_name, record_json(record), n_tokens_of(record),
          record.bytes, record.created,    entry.idle};
  if (record.standing == cache::Standing::kUnchecked) row.model_name += " (not checked)";
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

// What is stored if no prompt of the salt has a name.
struct Unlisted {
  std::uint64_t names = 0;  // of other salts
  std::uint64_t blobs = 0, bytes = 0;
};

Result<Unlisted> read_unlisted(const OpenStore& store) {
  TQC_TRY(store.check_key());
  TQC_TRY_ASSIGN(const store::Inventory inventory,
                 store.in(store::Inventory::take(*store.backend)));
  Unlisted unlisted;
  unlisted.names = inventory.total(store::BlobKind::kRecord).blobs;
  for (const store::BlobKind kind : store::kAllKinds) {
    if (kind == store::BlobKind::kRecord || kind == store::BlobKind::kUsage) continue;
    unlisted.blobs += inventory.total(kind).blobs;
    unlisted.bytes += inventory.total(kind).bytes;
  }
  return unlisted;
}

// "no named prompts; 51 blobs, 24.8 MiB, of prompts without a name: tqcache store stats"
std::string unlisted_text(const Unlisted& unlisted) {
  if (unlisted.blobs == 0) return "no named prompts; nothing is stored";
  const std::string blobs =
      fmt::format("{}, {},", counted(unlisted.blobs, "blob"), human_bytes(unlisted.bytes));
  if (unlisted.names == 0) {
    return fmt::format("no named prompts; {} of prompts without a name: tqcache store stats",
                       blobs);
  }
  return fmt::format(
      "no named prompts of this salt; {} named with other salts, and {} in all: "
      "tqcache store stats",
      counted(unlisted.names, "prompt"), blobs);
}

Json list_json(const OpenStore& store, const std::vector<Row>& rows,
               const std::optional<Unlisted>& unlisted) {
  Json json;
  json["schema"] = 1;
  json["store"] = store.name();
  json["prompts"] = Json::array();
  for (const Row& row : rows) json["prompts"].push_back(row.json);
  if (unlisted) {
    json["unlisted"] = {{"names_of_other_salts", unlisted->names},
                        {"blobs", unlisted->blobs},
                        {"bytes", unlisted->bytes}};
  }
  return json;
}

struct LsFlags {
  StoreFlags store;
  std::string model_name;  // part of it; empty: any
};

Result<ExitCode> run_ls(const Console& console, const LsFlags& flags) {
  TQC_TRY_ASSIGN(const OpenStore store, open_store(console, flags.store, StoreUse::kLook));
  std::vector<Row> rows;
  std::uint64_t n_others = 0;  // of other models than those that were asked for
  const auto tell = [&](const std::string& message) { warn(store.name(), message); };
  TQC_TRY(store.in(store::list_prompts(
      *store.backend, store::record_prefix(store.salt), tell,
      [&](const store::Entry& entry, const store::PromptRecord& record) -> Result<void> {
        if (interrupted()) return interrupted_error();
        if (record.model_name.find(flags.model_name) == std::string::npos) {
          ++n_others;
        } else {
          rows.push_back(row_of(entry, record));
        }
        return {};
      })));
  std::ranges::sort(rows, {}, &Row::name);
  std::optional<Unlisted> unlisted;
  if (rows.empty() && n_others == 0) {
    TQC_TRY_ASSIGN(unlisted, read_unlisted(store));
  }
  if (console.json) {
    TQC_TRY(print_json(list_json(store, rows, unlisted)));
  } else if (unlisted) {
    note(console, unlisted_text(*unlisted));
  } else if (rows.empty()) {
    note(console, fmt::format("{} of other models", counted(n_others, "named prompt")));
  } else {
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
         line("model",
              fmt::format(
                  "{} ({}){}", record.model_name, record.architecture,
                  record.standing == cache::Standing::kUnchecked ? ", stated, not checked" : "")) +
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
      if (removed.empty() && tally.n_failed() == 0) TQC_TRY(store.check_key());
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
