// tools/verbs/cmd_rekey.cpp: encryption of a cache file, its decryption, and a change of its key.

#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/console.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "migrations/v1_file.h"
#include "tqcache/hash.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {
namespace {

constexpr const char* kRekeyExamples =
    R"(Writes the file anew, encrypted with the first key of --key-file, and replaces it, or OUT, once the
new file is safely on disk. The content stays the same. A plain file becomes encrypted. An encrypted
one gets another key: --old-key-file has the key that it has now, unless --key-file has it, too.

A key file is private (chmod 600). It has 32 bytes, or a key of 64 hexadecimal digits in each line:
the first one encrypts, and all of them decrypt. So, to rotate keys, put a new key before the old
one, rekey all files, and then remove the old key.

The old bytes may stay on the disk where they were; tqcache does not overwrite files that it
replaces.

Examples:
  (umask 077; openssl rand -hex 32 > cache.key)
  tqcache rekey book.tqkv --key-file cache.key
  tqcache rekey book.tqkv --key-file new.key --old-key-file cache.key
  tqcache rekey book.tqkv plain.tqkv --decrypt --key-file new.key
)";

struct RekeyFlags {
  std::string input;
  std::string output;        // empty: the same file
  std::string named_output;  // -o: the same
  std::string old_key_file;
  bool decrypt = false;
  bool force = false;
  unsigned n_threads = 0;
};

Result<ExitCode> run(const Console& console, const RekeyFlags& flags) {
  if (console.access.keys.empty() && !(flags.decrypt && !flags.old_key_file.empty())) {
    return usage_error("no key: use --key-file or TQCACHE_KEY_FILE");
  }
  format::Access access = console.access;
  if (!flags.old_key_file.empty()) {
    TQC_TRY_ASSIGN(const KeyRing old,
                   in_file(flags.old_key_file, KeyRing::read_file(flags.old_key_file)));
    access.keys = old.with(access.keys);
  }
  const std::string& given = flags.output.empty() ? flags.named_output : flags.output;
  const std::string& output = given.empty() ? flags.input : given;
  if (flags.input == "-" || output == "-") return usage_error("rekey needs files, not streams");
  {
    TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source,
                   in_file(flags.input, open_file(flags.input)));
    TQC_TRY_ASSIGN(const FileKind kind, in_file(flags.input, own_kind(*source)));
    if (kind == FileKind::kTqkvVersion1) return in_file(flags.input, v1_is_read_only());
  }
  if (!same_file(flags.input, output)) TQC_TRY(check_output(output, flags.force));
  format::WriteOptions write;
  write.n_threads = flags.n_threads;
  write.overwrite = flags.force ? Overwrite::kAllow : Overwrite::kRefuse;
  if (!flags.decrypt) write.keys = console.access.keys;
  format::CompactReport report;
  {
    ProgressBar bar(console, flags.decrypt ? "decrypting" : "encrypting", Unit::kBytes);
    TQC_TRY_ASSIGN(report, in_file(flags.input, format::rekey_file(flags.input, access, output,
                                                                   write, bar.callback())));
  }
  const std::string key_id = flags.decrypt ? std::string() : to_hex(write.keys.first_id());
  note(console, flags.decrypt ? fmt::format("{}: decrypted", output)
                              : fmt::format("{}: encrypted with the key {}", output, key_id));
  if (!console.json) return ExitCode::kDone;
  TQC_TRY(print_json({{"schema", 1},
                      {"file", flags.input},
                      {"output", output},
                      {"key_id", flags.decrypt ? Json(nullptr) : Json(key_id)},
                      {"bytes_before", report.bytes_before},
                      {"bytes_after", report.bytes_after}}));
  return ExitCode::kDone;
}

}  // namespace

Action define_rekey(FlagSet& app) {
  const auto flags = std::make_shared<RekeyFlags>();
  app.add("in", flags->input, "Cache file")->type_name("")->file()->required();
  Flag* const out = app.add("out", flags->output, "Cache file to write; by default IN is replaced");
  out->type_name("")->file();
  app.add("-o,--output", flags->named_output, "Another way to name OUT")
      ->type_name("FILE")
      ->file()
      ->excludes(out);
  app.add("--old-key-file", flags->old_key_file, "File with the key that IN has now")
      ->type_name("FILE")
      ->file()
      ->group("Encryption");
  app.add("--decrypt", flags->decrypt, "Write a plain file")->group("Encryption");
  add_resource_flags(app, flags->n_threads);
  add_force_flag(app, flags->force);
  app.footer(kRekeyExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
