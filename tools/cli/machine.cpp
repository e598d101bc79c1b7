#include "cli/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/crypto.h>
#include <sqlite3.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "cli/cuda_library.h"
#include "tqcache/base/processor.h"
#include "tqcache/base/system.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/model/linear/tiles.h"
#include "tqcache/tokenizer/pretokenizer.h"
#ifdef TQCACHE_SERVE
#include <curl/curl.h>
#endif
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

namespace tqcache::cli {
namespace {

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const codec::Kernels* kernels : codec::all_kernels()) names.emplace_back(kernels->name);
  return names;
}

// 13.2 of 13020, which is how CUDA writes versions.
std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string capability_text(int capability) {
  return fmt::format("{}.{}", capability / 10, capability % 10);
}

}  // namespace

std::string kernels_text() {
  return fmt::format("{} (of {}; TQCACHE_ISA chooses)", codec::best_kernels().name,
                     fmt::join(kernel_names(), ", "));
}

std::string prompts_text() {
  return model::best_tiles() != nullptr ? "AMX (not if TQCACHE_ISA is set)"
                                        : "these kernels (no AMX is used)";
}

Json system_facts() {
  const SystemName system = system_name();
  return {{"name", system.name}, {"release", system.release}, {"machine", system.machine}};
}

Json processor_facts() {
  std::vector<std::string> found;
#if defined(__x86_64__)
  const Processor processor = find_processor();
  if (processor.avx2) found.emplace_back("avx2");
  if (processor.avx_vnni) found.emplace_back("avx_vnni");
  if (processor.avx512) found.emplace_back("avx512");
  if (processor.amx_bf16) found.emplace_back("amx_bf16");
#endif
#if defined(__aarch64__)
  found.emplace_back("neon");
  if (model::has_dot_products()) found.emplace_back("dotprod");
#endif
  return {{"name", cpu_name()},
          {"threads", std::thread::hardware_concurrency()},
          {"instruction_sets", found},
          {"kernels", kernel_names()},
          {"used", codec::best_kernels().name},
          {"amx", model::best_tiles() != nullptr},
          {"prompts", prompts_text()}};
}

Json library_facts() {
  Json facts = {{"zstd", format::zstd_version()},
                {"openssl", OpenSSL_version(OPENSSL_VERSION)},
                {"pcre2", tokenizer::pcre2_version()},
                {"sqlite", sqlite3_libversion()}};
#ifdef TQCACHE_SERVE
  facts["curl"] = curl_version();
#endif
#ifdef __GLIBC__
  facts["glibc"] = gnu_get_libc_version();
#endif
  return facts;
}

Json gpu_facts() {
  const Result<CudaLibrary> library = load_cuda_library();
  if (!library) return {{"available", false}, {"reason", library.error().message}};
  tqcache_cuda_device_info info = {};
  const Result<void> found = library->check(library->device(&info));
  Json facts = {{"available", found.ok()}, {"library", library->file}};
  if (!found) {
    facts["reason"] = found.error().message;
    return facts;
  }
  facts["device"] = info.name;
  facts["capability"] = capability_text(info.capability);
  facts["code"] = capability_text(info.code);
  facts["driver"] = cuda_version(info.driver);
  facts["runtime"] = cuda_version(info.runtime);
  return facts;
}

Json memory_facts(const MemoryBudget& memory) {
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(failed);
  Json facts = {{"bytes", machine_memory()},
                {"budget_bytes", memory.bytes()},
                {"temporary_folder", failed ? "TMPDIR names no folder" : folder.string()}};
  const auto space =
      failed ? std::filesystem::space_info{} : std::filesystem::space(folder, failed);
  facts["temporary_free_bytes"] = failed ? Json(nullptr) : Json(space.available);
  return facts;
}

Json setting_facts() {
  constexpr std::array kNames = {"TQCACHE_ISA",     "TQCACHE_CUDA_LIBRARY", "TMPDIR",
                                 "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
                                 "LD_PRELOAD"};
  Json facts = Json::object();
  for (const char* name : kNames) {
    if (const char* value = std::getenv(name)) facts[name] = value;
  }
  return facts;
}

}  // namespace tqcache::cli
