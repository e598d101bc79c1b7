#include "support/v1_writer.h"

#include <cache_v1_generated.h>
#include <zstd.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tqcache/hash.h"

namespace tqcache::test {
namespace {

namespace fb = migrations::v1::fb;
using migrations::V1Tensor;

using TensorOffsets = std::vector<flatbuffers::Offset<fb::Tensor>>;

class Writer {
 public:
  explicit Writer(const V1WriteOptions& options) : options_(options) {}

  Bytes write(const migrations::V1File& file) {
    std::vector<flatbuffers::Offset<fb::Entry>> entries;
    for (const auto& entry : file.entries) entries.push_back(write_entry(entry));
    std::vector<flatbuffers::Offset<fb::Fact>> facts;
    for (const auto& [key, value] : file.metadata) {
      const auto value_text = text(value);  // before the key, whichever compiler it is
      facts.push_back(fb::CreateFact(builder_, text(key), value_text));
    }
    const auto entry_vector = builder_.CreateVector(entries);
    const auto fact_vector = facts.empty() ? 0 : builder_.CreateVector(facts);
    fb::FinishPromptCacheBuffer(builder_, fb::CreatePromptCache(builder_, options_.schema_version,
                                                                entry_vector, fact_vector));
    const auto* data = reinterpret_cast<const std::byte*>(builder_.GetBufferPointer());
    Bytes bytes(data, data + builder_.GetSize());
    bytes.resize(bytes.size() + Sha256{}.size());
    seal_v1(bytes);
    return bytes;
  }

 private:
  flatbuffers::Offset<flatbuffers::String> text(const std::string& value) {
    return builder_.CreateString(value);
  }

  flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>> write_frame(const Bytes& frame) {
    if (const auto known = frames_.find(frame); known != frames_.end()) return known->second;
    const auto written =
        builder_.CreateVector(reinterpret_cast<const std::uint8_t*>(frame.data()), frame.size());
    if (options_.share_frames) frames_.emplace(frame, written);
    return written;
  }

  flatbuffers::Offset<fb::Tensor> write_tensor(const V1Tensor& tensor) {
    const Bytes frame = options_.frame ? options_.frame(tensor) : zstd_frame(tensor.data);
    const int dtype = options_.dtype ? options_.dtype(tensor) : static_cast<int>(tensor.dtype);
    const auto name = text(tensor.name);
    const auto shape = builder_.CreateVector(tensor.shape);
    const auto data = write_frame(frame);
    return fb::CreateTensor(builder_, name, static_cast<fb::Dtype>(dtype), shape, data);
  }

  TensorOffsets write_tensors(const std::vector<V1Tensor>& tensors) {
    TensorOffsets offsets;
    for (const V1Tensor& tensor : tensors) offsets.push_back(write_tensor(tensor));
    return offsets;
  }

  flatbuffers::Offset<fb::Entry> write_entry(const migrations::V1Entry& entry) {
    const auto class_path = text(entry.class_path);
    const auto state = builder_.CreateVector(write_tensors(entry.state));
    const auto meta = text(entry.meta_state);
    flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<fb::Tensor>>> extra = 0;
    if (!entry.extra_state.empty()) extra = builder_.CreateVector(write_tensors(entry.extra_state));
    const auto extra_meta = entry.extra_meta.empty() ? 0 : text(entry.extra_meta);
    return fb::CreateEntry(builder_, class_path, state, meta, extra, extra_meta);
  }

  const V1WriteOptions& options_;
  flatbuffers::FlatBufferBuilder builder_;
  std::map<Bytes, flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>>> frames_;  // to be shared
};

}  // namespace

Bytes zstd_frame(ByteView raw) {
  if (raw.empty()) return {};
  Bytes frame(ZSTD_compressBound(raw.size()));
  const std::size_t size =
      ZSTD_compress(frame.data(), frame.size(), raw.data(), raw.size(), /*compressionLevel=*/1);
  if (ZSTD_isError(size)) throw std::runtime_error(ZSTD_getErrorName(size));
  frame.resize(size);
  return frame;
}

void seal_v1(Bytes& file) {
  const std::size_t size = file.size() - Sha256{}.size();
  const Sha256 digest = sha256(ByteView(file).first(size));
  std::ranges::copy(digest, file.begin() + static_cast<std::ptrdiff_t>(size));
}

Bytes write_v1(const migrations::V1File& file, const V1WriteOptions& options) {
  return Writer(options).write(file);
}

}  // namespace tqcache::test
