#include "cli/form_flags.h"

#include "cli/codec_flags.h"
#include "cli/outcome.h"

namespace tqcache::cli {

void add_form_flags(CLI::App& app, FormFlags& flags) {
  const std::string group = "Form of a new cache";
  app.add_option("--bits", flags.bits, "Keep it in turbo form of so many bits, as convert does")
      ->type_name("N")
      ->group(group);
  app.add_option("--config", flags.configuration,
                 "Keep it so: turbo4, k=mse:4,v=mse:3, ... (docs/reference/eval.md); f32: dense")
      ->type_name("TEXT")
      ->group(group);
}

Result<std::optional<cache::ConvertOptions>> form_of(const FormFlags& flags) {
  if (!flags.given()) return std::optional<cache::ConvertOptions>();
  if (flags.bits && flags.configuration) {
    return usage_error("only one of --bits and --config can be given");
  }
  CodecFlags codec;
  codec.both.bits = flags.bits;
  codec.configuration = flags.configuration;
  TQC_TRY_ASSIGN(cache::ConvertOptions options, convert_options(codec));
  return std::optional(std::move(options));
}

}  // namespace tqcache::cli
