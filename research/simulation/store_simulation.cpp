// research/simulation/store_simulation.cpp: simulation of a prompt store: prefill time saved, bytes
// stored, load of the backends. No bytes are moved: prompts are random, and stores hold keys and
// sizes only. docs/explain/scaling.md has the results.
//
// usage: store_simulation [FLAGS]      --help lists them with their defaults
//
// One row for each combination of --forms, --machines, --local and --store. Sizes are bytes, with
// K, M, G and T for powers of 1,000; "inf" means unlimited, and 0 disables a store.

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "research/simulation/replay.h"
#include "research/simulation/trace.h"

namespace tqcache::simulation {
namespace {

struct Flags {
  Workload workload;
  std::vector<std::string> forms = {"f16", "turbo4", "archive"};
  std::vector<std::int64_t> machines = {1};
  std::vector<std::string> stores = {"10G", "100G", "1T", "inf"};
  std::vector<std::string> locals = {"0"};
  std::string routing = "spread";
  std::int64_t n_kept = 0;
  double warm_up = 0.5;
  std::string states = "all";
  std::int64_t n_layers = 32, n_kv_heads = 8, head_dim = 128;
  double turbo_bits = 4.125, archive_bits = 3.0;
  double blob_mib = 2;
  double prefill_rate = 0;            // tokens per second
  double get_rate = 0, put_rate = 0;  // bytes per second of one backend
  double round_trip_ms = 0;
  bool as_json = false, as_csv = false;
};

struct Row {
  std::string form, store, local;
  std::int64_t n_machines = 0;
  Outcome outcome;
};

// Seconds until the last token of a prompt is read, without a store and with one. Generation takes
// equally long in both cases, and storing runs in parallel.
double seconds_without(const Flags& flags, const Counts& c) {
  if (flags.prefill_rate <= 0) return std::nan("");
  return static_cast<double>(c.prompt_tokens) / flags.prefill_rate;
}

double seconds_with(const Flags& flags, const Counts& c) {
  if (flags.get_rate <= 0) return std::nan("");
  return seconds_without(flags, c) - static_cast<double>(c.reused_tokens) / flags.prefill_rate +
         static_cast<double>(c.get_bytes) / flags.get_rate +
         static_cast<double>(c.round_trips) * flags.round_trip_ms / 1000;
}

// The number of backends that would be fully busy. "per-engine": the requests per second that one
// backend can serve; "carried/s": the requests per second of the machines.
double engines(const Flags& flags, const Counts& c) {
  if (flags.get_rate <= 0 || flags.put_rate <= 0) return std::nan("");
  return (static_cast<double>(c.get_bytes) / flags.get_rate +
          static_cast<double>(c.put_bytes) / flags.put_rate) /
         c.seconds;
}

struct Column {
  const char* name;
  int digits;
  std::function<double(const Flags&, const Row&)> value;
};

template <class Number>
Column per_second(const char* name, int digits, Number Counts::*what, double unit = 1) {
  return {name, digits, [what, unit](const Flags&, const Row& row) {
            const Counts& c = row.outcome.counts;
            return static_cast<double>(c.*what) / c.seconds / unit;
          }};
}

double share(std::int64_t part, std::int64_t whole) {
  return 100 * static_cast<double>(part) / static_cast<double>(whole);
}

double each(double seconds, const Row& row) {
  return seconds / static_cast<double>(row.outcome.counts.requests);
}

double carried(double seconds, const Row& row) {
  return static_cast<double>(row.n_machines) / each(seconds, row);
}

std::vector<Column> columns() {
  using F = const Flags&;
  using R = const Row&;
  return {
      {"reused%", 2,
       [](F, R r) {
         return share(r.outcome.counts.reused_tokens, r.outcome.counts.prompt_tokens);
       }},
      {"hits%", 2, [](F, R r) { return share(r.outcome.counts.hits, r.outcome.counts.requests); }},
      {"stored-GB", 2, [](F, R r) { return static_cast<double>(r.outcome.shared_bytes) / 1e9; }},
      {"local-GB", 2, [](F, R r) { return static_cast<double>(r.outcome.local_bytes) / 1e9; }},
      per_second("req/s", 4, &Counts::requests),
      per_second("get-MB/s", 3, &Counts::get_bytes, 1e6),
      per_second("put-MB/s", 3, &Counts::put_bytes, 1e6),
      per_second("near-MB/s", 3, &Counts::local_get_bytes, 1e6),
      per_second("gets/s", 3, &Counts::get_blobs),
      per_second("puts/s", 3, &Counts::put_blobs),
      per_second("lookups/s", 3, &Counts::lookups),
      {"saved-s/s", 4,
       [](F f, R r) {
         const Counts& c = r.outcome.counts;
         return (seconds_without(f, c) - seconds_with(f, c)) / c.seconds;
       }},
      {"s/req", 3, [](F f, R r) { return each(seconds_with(f, r.outcome.counts), r); }},
      {"s/req-bare", 3, [](F f, R r) { return each(seconds_without(f, r.outcome.counts), r); }},
      {"carried/s", 3, [](F f, R r) { return carried(seconds_with(f, r.outcome.counts), r); }},
      {"engines", 3, [](F f, R r) { return engines(f, r.outcome.counts); }},
      {"per-engine", 2,
       [](F f, R r) {
         const Counts& c = r.outcome.counts;
         return static_cast<double>(c.requests) / c.seconds / engines(f, c);
       }},
  };
}

std::string text_of(const Column& column, double value) {
  if (!std::isfinite(value)) return "-";
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", column.digits, value);
  return text;
}

std::vector<std::string> names_of(const Row& row) {
  return {row.form, std::to_string(row.n_machines), row.local, row.store};
}

constexpr const char* kNames[] = {"form", "machines", "local", "store"};

void print_lines(const Flags& flags, const std::vector<Row>& rows, bool as_csv) {
  const auto cell = [&](const std::string& text, bool is_last) {
    if (as_csv) std::printf("%s%s", text.c_str(), is_last ? "\n" : ",");
    if (!as_csv) std::printf("%11s%s", text.c_str(), is_last ? "\n" : " ");
  };
  const std::vector<Column> all = columns();
  for (const char* name : kNames) cell(name, false);
  for (const Column& column : all) cell(column.name, &column == &all.back());
  for (const Row& row : rows) {
    for (const std::string& name : names_of(row)) cell(name, false);
    for (const Column& c : all) cell(text_of(c, c.value(flags, row)), &c == &all.back());
  }
}

void print_json(const Flags& flags, const std::vector<Row>& rows) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json object;
    const std::vector<std::string> names = names_of(row);
    for (std::size_t i = 0; i < names.size(); ++i) object[kNames[i]] = names[i];
    object["machines"] = row.n_machines;
    object["seconds"] = row.outcome.counts.seconds;
    object["requests"] = row.outcome.counts.requests;
    object["prompt_tokens"] = row.outcome.counts.prompt_tokens;
    object["answer_tokens"] = row.outcome.counts.answer_tokens;
    for (const Column& c : columns()) {
      const double value = c.value(flags, row);
      object[c.name] =
          std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
    }
    all.push_back(std::move(object));
  }
  std::printf("%s\n", all.dump(2).c_str());
}

std::optional<std::uint64_t> parse_size(const std::string& text) {
  if (text == "inf") return BlockStore::kEndless;
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0) || end - rest > 1) return std::nullopt;
  const std::size_t unit = rest == end ? 0 : std::string_view(" KMGT").find(*rest, 1);
  if (unit == std::string_view::npos) return std::nullopt;
  const double bytes = number * std::pow(1000, static_cast<double>(unit));
  if (bytes > 1e18) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::string check_size(const std::string& text) {
  return parse_size(text) ? "" : "not a size: " + text;
}

Form form_of(const Flags& flags, const std::string& name) {
  const auto values = static_cast<double>(2 * flags.n_layers * flags.n_kv_heads * flags.head_dim);
  const double bits = name == "f16" ? 16 : name == "turbo4" ? flags.turbo_bits : flags.archive_bits;
  return {values * bits / 8, values * 2, static_cast<std::uint64_t>(flags.blob_mib * (1 << 20))};
}

Machines machines_of(const Flags& flags, const Row& row) {
  Machines machines;
  machines.form = form_of(flags, row.form);
  machines.shared_bytes = *parse_size(row.store);
  machines.local_bytes = *parse_size(row.local);
  machines.n_machines = row.n_machines;
  machines.routing = flags.routing == "sticky" ? Routing::kSticky : Routing::kSpread;
  machines.n_kept = flags.n_kept;
  machines.stores_states = flags.states == "all";
  machines.warm_up = flags.warm_up;
  return machines;
}

std::vector<Row> rows_of(const Flags& flags) {
  std::vector<Row> rows;
  for (const std::string& form : flags.forms)
    for (const std::int64_t n_machines : flags.machines)
      for (const std::string& local : flags.locals)
        for (const std::string& store : flags.stores)
          rows.push_back({form, store, local, n_machines, {}});
  return rows;
}

void add_workload(CLI::App& app, Workload& w) {
  const auto add = [&](const char* name, auto& value, const char* help) -> CLI::Option* {
    return app.add_option(name, value, help)->capture_default_str()->group("Workload");
  };
  add("--seed", w.seed, "of all that is drawn");
  add("--requests", w.n_requests, "how many")->check(CLI::Range(2, 100'000'000));
  add("--users", w.n_users, "how many")->check(CLI::Range(1, 10'000'000));
  add("--system-prompts", w.n_system_prompts, "how many")->check(CLI::Range(1, 10'000'000));
  add("--zipf", w.zipf_exponent, "exponent of their popularity")->check(CLI::Range(0.0, 5.0));
  add("--system-tokens", w.system_tokens, "median length of a system prompt")
      ->check(CLI::Range(1.0, 1e6));
  add("--system-sigma", w.system_sigma, "of its logarithm")->check(CLI::Range(0.0, 5.0));
  add("--user-tokens", w.user_tokens, "median of what a user says")->check(CLI::Range(1.0, 1e6));
  add("--user-sigma", w.user_sigma, "of its logarithm")->check(CLI::Range(0.0, 5.0));
  add("--answer-tokens", w.answer_tokens, "median of an answer")->check(CLI::Range(1.0, 1e6));
  add("--answer-sigma", w.answer_sigma, "of its logarithm")->check(CLI::Range(0.0, 5.0));
  add("--max-tokens", w.max_tokens, "of a conversation")->check(CLI::Range(1024, 10'000'000));
  add("--turns", w.turns, "mean, of one sitting")->check(CLI::Range(1.0, 1e6));
  add("--think", w.think_seconds, "median seconds between turns")->check(CLI::Range(0.001, 1e9));
  add("--think-sigma", w.think_sigma, "of its logarithm")->check(CLI::Range(0.0, 5.0));
  add("--pause", w.pause_seconds, "mean seconds between sittings")->check(CLI::Range(0.001, 1e9));
  add("--resume", w.resume, "share of sittings that take up an earlier conversation")
      ->check(CLI::Range(0.0, 1.0));
  add("--remembered", w.n_remembered, "earlier conversations of a user")
      ->check(CLI::Range(1, 100'000));
}

void add_setup(CLI::App& app, Flags& f) {
  const auto add = [&](const char* name, auto& value, const char* help) -> CLI::Option* {
    return app.add_option(name, value, help)->capture_default_str()->group("Machines and stores");
  };
  const CLI::Validator size(check_size, "SIZE");
  add("--forms", f.forms, "f16, turbo4, archive")
      ->delimiter(',')
      ->check(CLI::IsMember({"f16", "turbo4", "archive"}));
  add("--machines", f.machines, "how many")->delimiter(',')->check(CLI::Range(1, 100'000));
  add("--store", f.stores, "sizes of the shared store")->delimiter(',')->check(size);
  add("--local", f.locals, "sizes of each machine's own store")->delimiter(',')->check(size);
  add("--routing", f.routing, "sticky: a user's requests go to one machine; spread: to any")
      ->check(CLI::IsMember({"sticky", "spread"}));
  add("--kept", f.n_kept, "system prompts that are never evicted, the most common ones")
      ->check(CLI::Range(0, 10'000'000));
  add("--states", f.states, "all: the state at the end of each prompt is stored, too; none")
      ->check(CLI::IsMember({"all", "none"}));
  add("--warm-up", f.warm_up, "share of the requests that are not counted")
      ->check(CLI::Range(0.0, 0.99));
}

void add_costs(CLI::App& app, Flags& f) {
  const auto add = [&](const char* name, auto& value, const char* help) -> CLI::Option* {
    return app.add_option(name, value, help)->capture_default_str()->group("Costs");
  };
  const CLI::Range shape(1, 100'000);
  add("--layers", f.n_layers, "of the model")->check(shape);
  add("--kv-heads", f.n_kv_heads, "of a layer")->check(shape);
  add("--head-dim", f.head_dim, "of a kv head")->check(shape);
  add("--turbo-bits", f.turbo_bits, "bits per value in turbo4")->check(CLI::Range(0.5, 32.0));
  add("--archive-bits", f.archive_bits, "bits per value in an archive")
      ->check(CLI::Range(0.5, 32.0));
  add("--blob-mib", f.blob_mib, "largest blob, MiB")->check(CLI::Range(0.001, 512.0));
  add("--prefill-rate", f.prefill_rate, "tokens per second; 0: unknown")
      ->check(CLI::NonNegativeNumber);
  add("--get-rate", f.get_rate, "bytes per second of a backend; 0: unknown")
      ->check(CLI::NonNegativeNumber);
  add("--put-rate", f.put_rate, "bytes per second of a backend; 0: unknown")
      ->check(CLI::NonNegativeNumber);
  add("--round-trip", f.round_trip_ms, "milliseconds of a batch of requests to the store")
      ->check(CLI::NonNegativeNumber);
}

int run(int argc, char** argv) {
  Flags flags;
  CLI::App app("What a store of prompts saves, holds and has to carry, by simulation.");
  add_workload(app, flags.workload);
  add_setup(app, flags);
  add_costs(app, flags);
  app.add_flag("--csv", flags.as_csv, "print CSV");
  app.add_flag("--json", flags.as_json, "print JSON");
  CLI11_PARSE(app, argc, argv);

  const std::vector<Request> trace = make_trace(flags.workload);
  std::vector<Row> rows = rows_of(flags);
  for (Row& row : rows) row.outcome = replay(trace, machines_of(flags, row));
  if (flags.as_json) {
    print_json(flags, rows);
  } else {
    print_lines(flags, rows, flags.as_csv);
  }
  return 0;
}

}  // namespace
}  // namespace tqcache::simulation

int main(int argc, char** argv) { return tqcache::simulation::run(argc, argv); }
