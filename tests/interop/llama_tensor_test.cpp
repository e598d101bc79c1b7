// Tensors of state files of llama.cpp, a token block at a time, from one thread and from several.

#include "tqcache/interop/llama/llama_tensor.h"

#include <thread>

#include "llama_import_fixture.h"

namespace tqcache::test {
namespace llama_tensor_test {

using interop::LlamaTensor;

constexpr std::int64_t kTokens = 1100;  // four token blocks, and a part of a fifth

// The values of the last layer, which stand last in the file.
struct TransposedFile {
  explicit TransposedFile(const std::string& type) {
    spec.transposed = true;
    spec.v_type = type;
    Bytes bytes = write_state(model, spec);
    tensor.rows = {{interop::find_row_type(type), nullptr}, true, 0};
    tensor.rows.offset = bytes.size() - kTokens * 16 * tensor.rows.format.plain->block_bytes;
    tensor.file = memory_source(std::move(bytes));
    tensor.buffers = std::make_shared<interop::LlamaBuffers>();
    tensor.n_cells = kTokens;
    tensor.shape = {2, 8};
  }
  std::uint64_t block_bytes() const { return 16 * 256 * tensor.rows.format.plain->block_bytes; }

  LlamaGeometry model = plain_model(8);
  StateSpec spec = plain_spec(model, kTokens);
  LlamaTensor tensor;
};

void expect_block(const TransposedFile& file, const interop::ReadRows& read, std::int64_t block) {
  const std::int64_t n = cache::tokens_in_block(kTokens, block);
  const Dtype dtype = *file.tensor.rows.format.plain->dense;
  Bytes raw(static_cast<std::size_t>(n) * 16 * dtype_size(dtype));
  ASSERT_TRUE(read(block * 256, n, raw));
  std::vector<float> values(static_cast<std::size_t>(n) * 16);
  load_f32(dtype, raw.data(), values);
  EXPECT_EQ(values, expected_tensor(file.model, file.spec, 1, false, block * 256, n)) << block;
}

TEST(LlamaTensor, IsTheSameWhateverMayBeKept) {
  for (const char* type : {"f16", "f32"}) {
    TransposedFile file(type);
    for (const std::uint64_t n_blocks : {0U, 1U, 2U, 3U, 5U, 100U}) {
      file.tensor.transposed_bytes = n_blocks * file.block_bytes();
      const interop::ReadRows read = read_llama_tensor(file.tensor);
      for (const std::int64_t block : {0, 1, 2, 3, 4, 3, 0, 4, 1, 1}) {
        expect_block(file, read, block);
      }
    }
  }
}

TEST(LlamaTensor, CanBeReadFromSeveralThreads) {
  TransposedFile file("f16");
  file.tensor.transposed_bytes = 2 * file.block_bytes();
  const interop::ReadRows read = read_llama_tensor(file.tensor);
  std::vector<std::thread> threads;
  for (std::int64_t first = 0; first < 4; ++first) {
    threads.emplace_back([&, first] {
      for (std::int64_t i = 0; i < 20; ++i) expect_block(file, read, (first + i) % 5);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// After a read that failed nothing of it is taken for read.
TEST(LlamaTensor, ReadsAgainWhatFailed) {
  class Failing : public ByteSource {
   public:
    explicit Failing(std::shared_ptr<const ByteSource> file) : file_(std::move(file)) {}
    std::uint64_t size() const override { return file_->size(); }
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
      if (++n_reads_ == 10) return Error{ErrorCode::kIo, "the disk went bad"};
      return file_->read_at(offset, out);
    }

   private:
    std::shared_ptr<const ByteSource> file_;
    mutable int n_reads_ = 0;
  };
  TransposedFile file("f16");
  file.tensor.transposed_bytes = 2 * file.block_bytes();
  file.tensor.file = std::make_shared<Failing>(file.tensor.file);
  const interop::ReadRows read = read_llama_tensor(file.tensor);
  Bytes raw(256 * 16 * 2);
  EXPECT_FALSE(read(0, 256, raw));
  expect_block(file, read, 0);
  expect_block(file, read, 1);
}

}  // namespace llama_tensor_test
}  // namespace tqcache::test
