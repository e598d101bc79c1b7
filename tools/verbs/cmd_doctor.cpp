// tools/verbs/cmd_doctor.cpp: what this program found on this machine, for reports of faults.

#include <fmt/format.h>

#include "cli/console.h"
#include "cli/machine.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "tqcache/store.h"

namespace tqcache::cli {
namespace {

constexpr const char* kDoctorExamples =
    R"(Says what was found on this machine and what of it is used: instruction sets and kernels,
versions of the libraries, the GPU, stores that this program can reach, and limits of memory. It
tries nothing: selftest does. Please put its output into a report of a fault. It shows the values of
some environment variables, and no prompts, keys or files.

Examples:
  tqcache doctor
  tqcache doctor --json
)";

std::string value_text(const Json& value) {
  if (value.is_string()) return printable(value.get<std::string>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_null()) return "unknown";
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& each : value) text += (text.empty() ? "" : ", ") + value_text(each);
  return text.empty() ? "none" : text;
}

Result<ExitCode> run(const Console& console) {
  const Json report = {{"schema", 1},
                       {"version", TQCACHE_VERSION},
                       {"system", system_facts()},
                       {"processor", processor_facts()},
                       {"libraries", library_facts()},
                       {"gpu", gpu_facts()},
                       {"stores", {{"schemes", store::schemes()}}},
                       {"memory", memory_facts(console.access.memory)},
                       {"settings", setting_facts()}};
  if (console.json) {
    TQC_TRY(print_json(report));
    return ExitCode::kDone;
  }
  std::string text = "tqcache " TQCACHE_VERSION "\n";
  for (const auto& [section, facts] : report.items()) {
    if (!facts.is_object()) continue;
    text += fmt::format("\n{}\n", section);
    for (const auto& [name, value] : facts.items()) {
      text += fmt::format("  {:<22}{}\n", name, value_text(value));
    }
    if (facts.empty()) text += "  none\n";
  }
  TQC_TRY(print(text));
  return ExitCode::kDone;
}

}  // namespace

Action define_doctor(FlagSet& app) {
  app.footer(kDoctorExamples);
  return [](const Console& console) { return run(console); };
}

}  // namespace tqcache::cli
