// tools/verbs/store_stats.cpp: what a store holds, what sharing saves, and how often it was of use.

#include <fmt/format.h>

#include <memory>

#include "cli/progress.h"
#include "cli/store_flags.h"
#include "cli/text.h"
#include "report/text_table.h"
#include "tqcache/store/upkeep/inventory.h"
#include "verbs/store_verbs.h"

namespace tqcache::cli {
namespace {

constexpr const char* kStoreStatsExamples =
    R"(Of the whole store, whatever the salt. Sharing saves what the kept prompts would
take if each had all of its blobs for itself, less what they take. Runs are those
of generate, chat and prefill that looked for their prompt here; gc takes their
notes as it takes everything else.

Examples:
  tqcache store stats --store dir:/var/lib/prompts
  tqcache store stats --store redis://localhost --json
)";

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

eval::Cell total_cell(std::uint64_t value) { return eval::Number{static_cast<double>(value), 0}; }

eval::Table kinds_table(const store::StoreStats& stats) {
  eval::Table table{"", {"kind", "blobs", "bytes"}, {}};
  const auto add = [&](std::string_view name, const store::KindTotal& total) {
    table.rows.push_back({std::string(name), total_cell(total.blobs), total_cell(total.bytes)});
  };
  for (const store::BlobKind kind : store::kAllKinds) {
    add(store::name_of(kind), stats.kinds[static_cast<std::size_t>(kind)]);
  }
  if (stats.others.blobs > 0) add("not ours", stats.others);
  return table;
}

std::string line(std::string_view label, const std::string& value) {
  return fmt::format("{:<16}{}\n", label, value);
}

std::string stats_text(const store::StoreStats& stats) {
  std::string text = report::text_table(kinds_table(stats)) + "\n";
  text += line("kept prompts", fmt::format("{}, of {} tokens", grouped(stats.prompts),
                                           grouped(stats.prompt_tokens)));
  text += line("they take", fmt::format("{} bytes; alone they would take {}",
                                        grouped(stats.bytes_needed), grouped(stats.bytes_alone)));
  text += line("sharing saves", fmt::format("{} bytes, {:.1f}%", grouped(stats.bytes_saved()),
                                            100 * share(stats.bytes_saved(), stats.bytes_alone)));
  text +=
      line("not needed", fmt::format("{} bytes, which gc may take", grouped(stats.bytes_unneeded)));
  if (stats.runs == 0) return text;
  text += line("runs", fmt::format("{}, {:.1f}% found something", grouped(stats.runs),
                                   100 * share(stats.runs_that_found, stats.runs)));
  text +=
      line("their tokens", fmt::format("{} of {} were had from here, {:.1f}%",
                                       grouped(stats.found_tokens), grouped(stats.wanted_tokens),
                                       100 * share(stats.found_tokens, stats.wanted_tokens)));
  return text + line("their bytes", fmt::format("{} read, {} stored", grouped(stats.read_bytes),
                                                grouped(stats.stored_bytes)));
}

Json total_json(const store::KindTotal& total) {
  return {{"blobs", total.blobs}, {"bytes", total.bytes}};
}

Json stats_json(const OpenStore& store, const store::StoreStats& stats) {
  Json json;
  json["schema"] = 1;
  json["store"] = store.name();
  for (const store::BlobKind kind : store::kAllKinds) {
    json["kinds"][store::name_of(kind)] = total_json(stats.kinds[static_cast<std::size_t>(kind)]);
  }
  json["others"] = total_json(stats.others);
  json["prompts"] = stats.prompts;
  json["prompt_tokens"] = stats.prompt_tokens;
  json["bytes_needed"] = stats.bytes_needed;
  json["bytes_alone"] = stats.bytes_alone;
  json["bytes_saved"] = stats.bytes_saved();
  json["bytes_unneeded"] = stats.bytes_unneeded;
  json["runs"] = {{"count", stats.runs},
                  {"that_found", stats.runs_that_found},
                  {"wanted_tokens", stats.wanted_tokens},
                  {"found_tokens", stats.found_tokens},
                  {"hit_rate", share(stats.found_tokens, stats.wanted_tokens)},
                  {"read_bytes", stats.read_bytes},
                  {"stored_bytes", stats.stored_bytes}};
  return json;
}

Outcome<ExitCode> run(const Console& console, const StoreFlags& flags) {
  TQC_TRY_ASSIGN(const OpenStore store, open_store(flags, StoreUse::kLook));
  ProgressBar bar(console, "reading", Unit::kBlobs);
  TQC_TRY_ASSIGN(const store::StoreStats stats,
                 store.in(store::read_stats(*store.backend, bar.callback())));
  bar.clear();
  TQC_TRY(console.json ? print_json(stats_json(store, stats)) : print(stats_text(stats)));
  return ExitCode::kDone;
}

}  // namespace

Action define_store_stats(CLI::App& app) {
  const auto flags = std::make_shared<StoreFlags>();
  add_store_flag(app, *flags);
  app.footer(kStoreStatsExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
