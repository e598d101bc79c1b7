#pragma once
// tools/cli/template_flags.h: flags that choose a chat template and the date that it writes.

#include <optional>
#include <string>

#include "cli/flags.h"
#include "tqcache/error.h"
#include "tqcache/tokenizer.h"

namespace tqcache::cli {

struct TemplateFlags {
  std::string chosen;  // --template
  std::string date;    // --date
};

void add_template_flags(FlagSet& app, TemplateFlags& flags, const std::string& group = {});

// What session::ChatTurns::make() takes: the name, the text of the file, or nothing.
// Errors: those of reading the file; those of ChatTemplate::parse(), with the file.
Result<std::string> read_template(const TemplateFlags& flags);

// The date, if it is given. Errors: kInvalidArgument.
Result<std::optional<tokenizer::CivilTime>> read_date(const TemplateFlags& flags);

// The time of the clock, in the zone of the machine.
tokenizer::CivilTime local_time();

}  // namespace tqcache::cli
