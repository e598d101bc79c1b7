// Any bytes as a GGUF file, and what of it a model would ask for.

#include <string>
#include <variant>
#include <vector>

#include "fuzz/fuzz.h"
#include "tqcache/model/loading/config_readers.h"
#include "tqcache/tensors/gguf.h"
#include "tqcache/tokenizer.h"

namespace tqcache {
namespace {

using fuzz::require;

void check_tensors(const tensors::Gguf& read, ByteView file) {
  std::size_t total = 0;
  for (const auto& [name, tensor] : read.tensors) {
    require(!tensor.bytes.empty(), "a tensor is not empty");
    require(tensor.bytes.data() >= file.data() &&
                tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size(),
            "a tensor lies in the file");
    total += tensor.bytes.size();
  }
  require(total <= file.size(), "tensors do not share bytes");
}

// Every typed look-up gives a value of its kind, or the reason why there is none.
void check_metadata(const tensors::Gguf& read) {
  for (const auto& [key, value] : read.metadata) {
    require(read.get_int(key).ok() == std::holds_alternative<std::int64_t>(value), "get_int");
    require(read.get_bool(key).ok() == std::holds_alternative<bool>(value), "get_bool");
    require(read.get_string(key).ok() == std::holds_alternative<std::string>(value), "get_string");
    require(read.get_ints(key).ok() == std::holds_alternative<std::vector<std::int64_t>>(value),
            "get_ints");
    require(
        read.get_strings(key).ok() == std::holds_alternative<std::vector<std::string_view>>(value),
        "get_strings");
    static_cast<void>(read.get_float(key));
  }
  require(!read.get_int("no such key").ok(), "a key that is not there has no value");
}

}  // namespace
}  // namespace tqcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tqcache;
  const ByteView file = fuzz::view_of(data, size);
  const auto read = tensors::read_gguf(file);
  if (!read) {
    fuzz::require(!read.error().message.empty(), "an error has a message");
    return 0;
  }
  check_tensors(*read, file);
  check_metadata(*read);
  if (const auto config = model::read_gguf_config(*read)) {
    fuzz::require(model::validate(*config), "a config that was read is valid");
  }
  if (const auto tokenizer = tokenizer::Tokenizer::from_gguf(*read)) {
    const auto ids = tokenizer->encode("in  the", tokenizer::Tokenizer::Special::kParse);
    for (const std::int32_t id : ids ? *ids : std::vector<std::int32_t>{}) {
      fuzz::require(id >= 0 && id < tokenizer->vocab_size(), "an id is one of the vocabulary");
    }
  }
  return 0;
}
