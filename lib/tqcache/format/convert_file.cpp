#include "tqcache/format/convert_file.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/base/pool.h"
#include "tqcache/base/result.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/pack_side.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/container_writer.h"
#include "tqcache/format/describe.h"
#include "tqcache/format/section_plan.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/format/sections/section_bytes.h"

namespace tqcache::format {
namespace {

// Counts bytes of the source, and asks whether to go on.
class ByteCounter {
 public:
  ByteCounter(const Progress& progress, std::uint64_t total) : progress_(progress), total_(total) {}

  bool add(std::uint64_t bytes) {
    done_ += bytes;
    return !progress_ || progress_(done_, total_);
  }

 private:
  const Progress& progress_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
};

// One side in token blocks that is turbo in the target.
struct SideJob {
  std::size_t layer = 0;
  SideName name = SideName::kKeys;
  cache::OutlierPolicy policy;
  std::vector<std::int64_t> sample;  // token blocks that its mean and outlier channels are taken from
};

// A cache that passes by. In `target_` stands what it will be: every layer and side, its codec,
// mean and outlier channels, and room for its token blocks, none of which is ever there. The sections
// of source and target are the same ones in the same order; only their form and bytes differ.
//
// Windows that become turbo are the exception: arrays in the source, token blocks in the target.
// They are short, so they are packed in memory and wait there until they are written.
class Conversion {
 public:
  // Everything must outlive this.
  Conversion(const SectionSource& source, const cache::ConvertOptions& options)
      : source_(source), options_(options) {}

  // Makes the target, but for means and outlier channels.
  Result<void> plan() {
    TQC_TRY_ASSIGN(target_, make_empty_cache(source_.manifest()));
    TQC_TRY_ASSIGN(const auto plans, cache::plan_layers(source_.manifest(), options_));
    number_sections();
    tables_.emplace(target_.identity.rope);
    for (std::size_t i = 0; i < target_.layers.size(); ++i) {
      const auto of_layer = std::span(plans).subspan(2 * i, 2);
      if (of_layer[0].dense && of_layer[1].dense) continue;
      if (is_dense_window(i)) {
        windows_.push_back({i, {of_layer.begin(), of_layer.end()}});
        continue;
      }
      for (const SideName name : {SideName::kKeys, SideName::kValues}) {
        const cache::SidePlan& plan = of_layer[static_cast<std::size_t>(name)];
        if (!plan.dense) TQC_TRY(plan_side(i, name, plan));
      }
    }
    return check_window_memory();
  }

  // Bytes of the source that are to be read.
  std::uint64_t total_bytes() const {
    std::uint64_t total = total_raw_bytes(source_.manifest());
    for (const SideJob& job : jobs_) {
      for (const std::int64_t block : job.sample) total += sample_section(job, block).raw_bytes;
    }
    return total;
  }

  // Pass one, side by side; and windows.
  Result<void> fix_sides(ByteCounter& counter) {
    for (const WindowJob& job : windows_) {
      TQC_TRY(pack_window(job));
      if (!counter.add(window_bytes(job))) return interrupted_error();
    }
    std::vector<AlignedBytes> blocks;
    for (const SideJob& job : jobs_) {
      if (job.sample.empty()) continue;
      TQC_TRY(read_sample(job, blocks));
      fix_one(job, blocks);
      for (const AlignedBytes& block : blocks) {
        if (!counter.add(block.size())) return interrupted_error();
      }
    }
    return {};
  }

  // Pass two, section by section.
  ContainerContent content(ByteCounter& counter) {
    ContainerContent content{describe(target_, {}), {}};
    // A copy: the writer changes those of the manifest while others are made.
    content.make_section =
        [this, sections = content.manifest.sections](std::size_t i) -> Result<SharedBytes> {
      const auto origin = number_of(key_of(sections[i]));
      if (!origin) return take_from_window(sections[i]);
      return sections[i].packed && !section(*origin).packed ? pack(*origin) : carry_over(*origin);
    };
    content.after_section = [this, &counter, sections = content.manifest.sections](std::size_t i) {
      const auto origin = number_of(key_of(sections[i]));
      return counter.add(origin ? section(*origin).raw_bytes : 0);
    };
    return content;
  }

 private:
  // A window that becomes turbo.
  struct WindowJob {
    std::size_t layer;
    std::vector<cache::SidePlan> plans;  // [2]
  };

  const SectionInfo& section(std::size_t i) const { return source_.manifest().sections[i]; }
  bool is_dense_window(std::size_t layer) const {
    const auto* window = std::get_if<cache::WindowDesc>(&source_.manifest().layers[layer]);
    return window != nullptr && !cache::is_quantized(window->attention);
  }
  cache::AttentionLayer& layer_of(std::size_t layer) {
    return *cache::attention_of(target_.layers[layer]);
  }
  cache::Side& side_of(std::size_t layer, SideName name) {
    return name == SideName::kKeys ? layer_of(layer).k : layer_of(layer).v;
  }
  cache::TurboSide& turbo_of(std::size_t layer, SideName name) {
    return std::get<cache::TurboSide>(side_of(layer, name));
  }
  // The first token that a layer holds.
  std::int64_t begin_of(std::size_t layer) const {
    return cache::first_token(target_.layers[layer], target_.n_tokens());
  }

  Result<void> plan_side(std::size_t layer, SideName name, const cache::SidePlan& plan) {
    cache::Side& side = side_of(layer, name);
    if (const auto* dense = std::get_if<cache::DenseSide>(&side)) {
      const Dtype dtype = dense->dtype;
      TQC_TRY_ASSIGN(
          cache::KvCodec codec,
          cache::make_codec(plan, order_of(name), layer_of(layer).shape, dtype, *tables_));
      side = cache::TurboSide{std::move(codec), {}, {dtype, {}}};
    }
    cache::TurboSide& turbo = std::get<cache::TurboSide>(side);
    const std::int64_t n_tokens = target_.n_tokens();
    const std::int64_t n_full = n_tokens / cache::kTokenBlock;
    turbo.packed.resize(to_size(n_full));
    turbo.tail.blocks.resize(to_size(cache::block_count(n_tokens) - n_full));
    jobs_.push_back({layer, name, plan.outlier_policy,
                     turbo.codec.blocks_to_fit(plan.outlier_policy, n_tokens, begin_of(layer))});
    return {};
  }

  // Where sections stand in the source's table.
  void number_sections() {
    const std::vector<SectionInfo>& sections = source_.manifest().sections;
    for (std::size_t i = 0; i < sections.size(); ++i) numbers_[key_of(sections[i])] = i;
  }
  std::optional<std::size_t> number_of(const SectionKey& key) const {
    const auto found = numbers_.find(key);
    if (found == numbers_.end()) return std::nullopt;
    return found->second;
  }
  std::size_t number_of(const SideJob& job, std::int64_t block) const {
    return number_of(SectionKey{static_cast<std::int64_t>(job.layer), job.name, block}).value();
  }
  const SectionInfo& sample_section(const SideJob& job, std::int64_t block) const {
    return section(number_of(job, block));
  }

  std::size_t array_number(const WindowJob& job, std::int64_t array) const {
    return number_of(SectionKey{static_cast<std::int64_t>(job.layer), SideName::kArray, array})
        .value();
  }
  std::uint64_t window_bytes(const WindowJob& job) const {
    return section(array_number(job, 0)).raw_bytes + section(array_number(job, 1)).raw_bytes;
  }

  // All of them are in memory in the end.
  Result<void> check_window_memory() const {
    std::uint64_t bytes = 0;
    for (const WindowJob& job : windows_) bytes += window_bytes(job);
    if (bytes <= ReadOptions{}.max_payload_bytes) return {};
    return Error{ErrorCode::kTooLarge, "windows of " + std::to_string(bytes) + " bytes"};
  }

  // Reads a window's arrays and packs them where they are.
  Result<void> pack_window(const WindowJob& job) {
    for (const std::int64_t i : {0, 1}) {
      AlignedBytes raw;
      const std::size_t number = array_number(job, i);
      TQC_TRY(source_.read(number, raw));
      place_section(section(number), std::move(raw), target_);
    }
    const std::int64_t n_tokens = target_.n_tokens();
    const auto no_progress = [](std::uint64_t) -> Result<void> { return {}; };
    for (const cache::PackJob& side :
         cache::pack_jobs(target_.layers[job.layer], job.layer, job.plans, n_tokens)) {
      auto packed = cache::pack_side(side, n_tokens, options_.n_threads, *tables_, no_progress);
      if (!packed) return in_context(side.name, std::move(packed).error());
    }
    return {};
  }

  Result<SharedBytes> take_from_window(const SectionInfo& section) const {
    const auto copy = std::make_shared<AlignedBytes>();
    const ByteView bytes = section_bytes(target_, section, *copy);
    return SharedBytes(copy, bytes);
  }

  Result<void> read_sample(const SideJob& job, std::vector<AlignedBytes>& blocks) const {
    blocks.resize(job.sample.size());
    return parallel_try(blocks.size(), options_.n_threads, [&](std::size_t i) {
      return source_.read(number_of(job, job.sample[i]), blocks[i]);
    });
  }

  void fix_one(const SideJob& job, const std::vector<AlignedBytes>& blocks) {
    cache::TurboSide& side = turbo_of(job.layer, job.name);
    std::vector<cache::FullBlock> sample;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      sample.push_back({layer_of(job.layer).shape, side.tail.dtype, job.sample[i], blocks[i],
                        cache::tokens_before(begin_of(job.layer), job.sample[i])});
    }
    side.codec.fit(sample, job.policy, options_.n_threads);
  }

  Result<SharedBytes> carry_over(std::size_t i) const {
    AlignedBytes raw;
    TQC_TRY(source_.read(i, raw));
    return SharedBytes(std::move(raw));
  }

  Result<SharedBytes> pack(std::size_t i) {
    const auto raw = buffers_.borrow([] { return std::make_unique<AlignedBytes>(); });
    TQC_TRY(source_.read(i, *raw));
    const SectionInfo& section = this->section(i);
    const auto layer = to_size(section.layer);
    const cache::TurboSide& side = turbo_of(layer, section.side);
    // One thread: other sections keep the others busy.
    auto packed = side.codec.encode({layer_of(layer).shape, side.tail.dtype, section.block, *raw,
                                     cache::tokens_before(begin_of(layer), section.block)},
                                    1);
    if (packed) return packed;
    const std::string where = "layer " + std::to_string(section.layer) +
                              (section.side == SideName::kKeys ? " k" : " v") + ": token block " +
                              std::to_string(section.block);
    return in_context(where, std::move(packed).error());
  }

  const SectionSource& source_;
  const cache::ConvertOptions& options_;
  cache::Cache target_;
  std::vector<SideJob> jobs_;
  std::vector<WindowJob> windows_;
  std::optional<cache::KvTables> tables_;
  std::map<SectionKey, std::size_t> numbers_;  // of sections of the source
  Pool<AlignedBytes> buffers_;
};

Result<void> convert_into(AtomicFile file, const SectionSource& source,
                          const cache::ConvertOptions& options, const WriteOptions& write,
                          const Progress& progress) {
  TQC_TRY(check_largest(source.manifest(), ReadOptions{}.max_payload_bytes));
  Conversion conversion(source, options);
  TQC_TRY(conversion.plan());
  ByteCounter counter(progress, conversion.total_bytes());
  TQC_TRY(conversion.fix_sides(counter));
  WriteOptions on_all_threads = write;
  on_all_threads.n_threads = options.n_threads;
  return write_container_file(conversion.content(counter), std::move(file), on_all_threads);
}

}  // namespace

Result<void> convert_file(const ByteSource& source, const std::filesystem::path& path,
                          const cache::ConvertOptions& options, const WriteOptions& write,
                          const Progress& progress, std::optional<std::int64_t> first_tokens) {
  TQC_TRY(Compressor::make(write.zstd_level));  // a bad level is told before the work
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, write.overwrite));
  TQC_TRY_ASSIGN(const SectionReader reader, SectionReader::open(source, first_tokens));
  return convert_into(std::move(file), reader, options, write, progress);
}

Result<void> convert_sections(const SectionSource& source, const std::filesystem::path& path,
                              const cache::ConvertOptions& options, const WriteOptions& write,
                              const Progress& progress) {
  TQC_TRY(Compressor::make(write.zstd_level));
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, write.overwrite));
  return convert_into(std::move(file), source, options, write, progress);
}

}  // namespace tqcache::format
