#include "tqcache/format/convert_file.h"

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/base/pool.h"
#include "tqcache/base/threads.h"
#include "tqcache/format/compression.h"
#include "tqcache/format/container_writer.h"
#include "tqcache/format/describe.h"
#include "tqcache/format/section_bytes.h"
#include "tqcache/format/section_plan.h"
#include "tqcache/format/section_reader.h"

namespace tqcache::format {
namespace {

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

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

// One side that is turbo in the target.
struct SideJob {
  std::size_t layer = 0;
  SideName name = SideName::kKeys;
  cache::OutlierPolicy policy;
  std::vector<std::int64_t> sample;  // token blocks that its mean and loud channels are taken from
};

// The token blocks that have to be seen before the first one of a side can be packed.
std::vector<std::int64_t> sample_of(const cache::TurboSide& side, cache::OutlierPolicy policy,
                                    std::int64_t n_tokens) {
  std::vector<std::int64_t> blocks = cache::mean_blocks(n_tokens);
  if (!side.mean.is_fixed() || !side.maps.is_fixed()) return blocks;
  if (side.outliers.is_fixed()) return {};
  const bool first_decides = policy == cache::OutlierPolicy::kCalibrationVariance;
  if (first_decides && !blocks.empty()) return {blocks.front()};
  return blocks;
}

// A cache that passes by. In `target_` stands what it will be: every layer and side, its codec,
// mean and loud channels, and room for its token blocks, none of which is ever there. The sections
// of source and target are the same ones in the same order; only their form and bytes differ.
class Conversion {
 public:
  // Everything must outlive this.
  Conversion(const SectionSource& source, const cache::ConvertOptions& options)
      : source_(source), options_(options) {}

  // Makes the target, but for means and loud channels.
  Result<void> plan() {
    TQC_TRY_ASSIGN(target_, make_empty_cache(source_.manifest()));
    TQC_TRY_ASSIGN(const auto plans, cache::plan_layers(target_, options_));
    cache::SideMaker maker(target_.identity.rope);
    for (std::size_t i = 0; i < target_.layers.size(); ++i) {
      for (const SideName name : {SideName::kKeys, SideName::kValues}) {
        const cache::SidePlan& plan = plans[2 * i + static_cast<std::size_t>(name)];
        if (!plan.dense) TQC_TRY(plan_side(i, name, plan, maker));
      }
    }
    number_sections();
    return {};
  }

  // Bytes of the source that are to be read.
  std::uint64_t total_bytes() const {
    std::uint64_t total = total_raw_bytes(source_.manifest());
    for (const SideJob& job : jobs_) {
      for (const std::int64_t block : job.sample) total += sample_section(job, block).raw_bytes;
    }
    return total;
  }

  // Pass one, side by side.
  Result<void> fix_sides(ByteCounter& counter) {
    std::vector<AlignedBytes> blocks;
    for (const SideJob& job : jobs_) {
      if (job.sample.empty()) continue;
      TQC_TRY(read_sample(job, blocks));
      fix_one(job, blocks);
      for (const AlignedBytes& block : blocks) {
        if (!counter.add(block.size())) return Error{ErrorCode::kInterrupted, "interrupted"};
      }
    }
    return {};
  }

  // Pass two, section by section.
  ContainerContent content(ByteCounter& counter) {
    ContainerContent content{describe(target_, {}), {}};
    std::vector<bool> is_packed;
    for (const SectionInfo& section : content.manifest.sections) {
      is_packed.push_back(section.packed);
    }
    content.make_section = [this, is_packed = std::move(is_packed)](std::size_t i) {
      return is_packed[i] && !section(i).packed ? pack(i) : carry_over(i);
    };
    content.after_section = [this, &counter](std::size_t i) {
      return counter.add(section(i).raw_bytes);
    };
    return content;
  }

 private:
  const SectionInfo& section(std::size_t i) const { return source_.manifest().sections[i]; }
  cache::AttentionLayer& layer_of(std::size_t layer) {
    return std::get<cache::AttentionLayer>(target_.layers[layer]);
  }
  cache::Side& side_of(std::size_t layer, SideName name) {
    return name == SideName::kKeys ? layer_of(layer).k : layer_of(layer).v;
  }
  cache::TurboSide& turbo_of(std::size_t layer, SideName name) {
    return std::get<cache::TurboSide>(side_of(layer, name));
  }

  Result<void> plan_side(std::size_t layer, SideName name, const cache::SidePlan& plan,
                         cache::SideMaker& maker) {
    cache::Side& side = side_of(layer, name);
    if (const auto* dense = std::get_if<cache::DenseSide>(&side)) {
      TQC_TRY_ASSIGN(cache::TurboSide made,
                     maker.make(plan, order_of(name), layer_of(layer).shape, dense->dtype));
      side = std::move(made);
    }
    cache::TurboSide& turbo = std::get<cache::TurboSide>(side);
    const std::int64_t n_tokens = target_.n_tokens();
    const std::int64_t n_full = n_tokens / cache::kTokenBlock;
    turbo.packed.resize(to_size(n_full));
    turbo.tail.blocks.resize(to_size(cache::block_count(n_tokens) - n_full));
    jobs_.push_back(
        {layer, name, plan.outlier_policy, sample_of(turbo, plan.outlier_policy, n_tokens)});
    return {};
  }

  // Where each side's token blocks stand in the section table.
  void number_sections() {
    const std::vector<SectionInfo>& sections = source_.manifest().sections;
    numbers_.resize(2 * target_.layers.size());
    for (std::size_t i = 0; i < sections.size(); ++i) {
      if (sections[i].side == SideName::kArray) break;  // they stand behind all others
      numbers_[2 * to_size(sections[i].layer) + static_cast<std::size_t>(sections[i].side)]
          .push_back(i);
    }
  }
  std::size_t number_of(const SideJob& job, std::int64_t block) const {
    return numbers_[2 * job.layer + static_cast<std::size_t>(job.name)][to_size(block)];
  }
  const SectionInfo& sample_section(const SideJob& job, std::int64_t block) const {
    return section(number_of(job, block));
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
      sample.push_back({layer_of(job.layer).shape, side.tail.dtype, job.sample[i], blocks[i]});
    }
    cache::fix_side(side, sample, job.policy, options_.n_threads);
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
    auto packed =
        cache::pack_block(side, {layer_of(layer).shape, side.tail.dtype, section.block, *raw}, 1);
    if (packed) return std::move(packed->bytes);
    const std::string where = "layer " + std::to_string(section.layer) +
                              (section.side == SideName::kKeys ? " k" : " v") + ": token block " +
                              std::to_string(section.block);
    return in_context(where, std::move(packed).error());
  }

  const SectionSource& source_;
  const cache::ConvertOptions& options_;
  cache::Cache target_;
  std::vector<SideJob> jobs_;
  std::vector<std::vector<std::size_t>> numbers_;  // [2 n_layers][token block]
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
