// Runs a fuzz target without libFuzzer: on every file of its corpus, and on some mutations of each,
// the same every time. An input that breaks a rule ends the process.
//
// usage: fuzz_TARGET PATH...     files, or folders of files

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "support/gaussian.h"
#include "support/temp_dir.h"

// Of targets that have one.
extern "C" __attribute__((weak)) std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data,
                                                                     std::size_t size,
                                                                     std::size_t max_size,
                                                                     unsigned seed);

namespace tqcache::fuzz {
namespace {

constexpr unsigned kMutations = 16;  // of each file

test::SplitMix64& mutations() {
  static test::SplitMix64 random(1);
  return random;
}

void run(ByteView bytes) {
  // A copy that ends where the input ends, so that sanitizers see what reads beyond.
  const std::vector<std::uint8_t> copy = [&] {
    const auto* begin = reinterpret_cast<const std::uint8_t*>(bytes.data());
    return std::vector<std::uint8_t>(begin, begin + bytes.size());
  }();
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

void run_mutations(Bytes input) {
  const std::size_t max_size = input.size() + 64;
  for (unsigned i = 0; i < kMutations; ++i) {
    Bytes mutated = input;
    mutated.resize(max_size);
    auto* data = reinterpret_cast<std::uint8_t*>(mutated.data());
    const auto seed = static_cast<unsigned>(mutations().next());
    const std::size_t size = LLVMFuzzerCustomMutator != nullptr
                                 ? LLVMFuzzerCustomMutator(data, input.size(), max_size, seed)
                                 : LLVMFuzzerMutate(data, input.size(), max_size);
    run(ByteView(mutated).first(size));
  }
}

std::vector<std::filesystem::path> files_at(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

int run_all(int argc, char** argv) {
  std::size_t n = 0;
  for (int i = 1; i < argc; ++i) {
    for (const std::filesystem::path& file : files_at(argv[i])) {
      std::printf("%s\n", file.c_str());
      std::fflush(stdout);  // the last line tells which one ended the process
      const Bytes input = test::read_all(file);
      run(input);
      run_mutations(input);
      ++n;
    }
  }
  std::printf("%zu inputs, and %u mutations of each\n", n, kMutations);
  return n > 0 ? 0 : 1;
}

}  // namespace
}  // namespace tqcache::fuzz

// Changes a byte, puts one in, or takes one out. libFuzzer has a better one under this name.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                        std::size_t max_size) {
  auto& random = tqcache::fuzz::mutations();
  const std::size_t at = random.below(size + 1);
  const auto byte = static_cast<std::uint8_t>(random.next());
  const std::uint64_t kind = random.below(4);
  if (size < max_size && (kind == 0 || size == 0)) {
    std::copy_backward(data + at, data + size, data + size + 1);
    data[at] = byte;
    return size + 1;
  }
  if (size == 0) return 0;
  std::uint8_t* const chosen = data + std::min(at, size - 1);
  if (kind == 1) {
    std::copy(chosen + 1, data + size, chosen);
    return size - 1;
  }
  *chosen = kind == 2 ? byte : static_cast<std::uint8_t>(*chosen ^ 1u << (byte % 8));
  return size;
}

int main(int argc, char** argv) {
  try {
    return tqcache::fuzz::run_all(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
