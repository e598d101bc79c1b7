#include "verbs/serve_embedded.h"

#include <utility>

#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "tqcache/tokenizer.h"

namespace tqcache::cli {

void add_embedded_flags(FlagSet& app, EmbeddedFlags& flags) {
  const std::string group = "Model of its own";
  app.add("-m,--model", flags.model,
          "Answer from this model, a GGUF file or a Hugging Face folder, one request at a time")
      ->type_name("PATH")
      ->file()
      ->group(group);
  app.add("--model-id", flags.model_id,
          "Name of the model for clients (default: that of the file, without .gguf)")
      ->type_name("NAME")
      ->not_empty()
      ->group(group);
  app.add("--template", flags.chat_template,
          "Chat template to use instead of the one in the model: " +
              tokenizer::ChatTemplate::names())
      ->type_name("NAME")
      ->group(group);
  app.add("--queue", flags.max_waiting,
          "Requests that may wait while one is answered; more get status 429")
      ->type_name("N")
      ->range(0, 4096)
      ->show_default()
      ->group(group);
  app.add("--show-prompts", flags.shows_text, "The page at / shows how each kept prompt begins")
      ->group(group);
  add_scorer_flag(app, flags.scorer);
  add_verify_digest_flag(app, flags.verify_digests);
}

#ifdef TQCACHE_SERVE

namespace {

// Errors: kInvalidArgument.
Result<std::optional<cache::ConvertOptions>> quantization_of(const std::string& config) {
  if (config == "lossless") return std::optional<cache::ConvertOptions>();
  if (config == "archive") {
    return usage_error("--config: a model cannot extend an archive; use turbo");
  }
  FormFlags form;
  if (config == "turbo") {
    form.bits = 4;
  } else {
    form.configuration = config;
  }
  return form_of(form);
}

}  // namespace

Result<std::unique_ptr<serve::Engine>> open_engine(const Console& console,
                                                   const EmbeddedFlags& flags,
                                                   const EmbeddedStore& store, serve::Log& log) {
  if (!flags.chat_template.empty()) TQC_TRY(tokenizer::ChatTemplate::by_name(flags.chat_template));
  serve::EngineOptions options;
  options.model = flags.model;
  options.model_id = flags.model_id;
  options.chat_template = flags.chat_template;
  TQC_TRY_ASSIGN(options.quantization, quantization_of(store.config));
  options.n_threads = flags.n_threads;
  options.scorer = flags.scorer;
  options.store_url = store.url;
  options.keys = console.keys;
  options.store_read_only = store.read_only;
  options.same_quantization = store.config_is_given;
  options.verify_digests = flags.verify_digests;
  options.max_waiting = static_cast<std::size_t>(flags.max_waiting);
  options.shows_text = flags.shows_text;
  options.on_warning = [&log](const std::string& where, const std::string& message) {
    log.warning("store", {{"where", where}, {"message", message}});
  };
  return serve::Engine::open(std::move(options));
}

#endif

}  // namespace tqcache::cli
