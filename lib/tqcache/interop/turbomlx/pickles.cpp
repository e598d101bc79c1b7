#include "tqcache/interop/turbomlx/pickles.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "tqcache/tensors/zip_archive.h"

namespace tqcache::interop {
namespace {

constexpr std::string_view kAdvice =
    ", which is a program and not data: save the cache with tools/tqcache_hf.py, and read that";

bool is_torch_zip(const ByteSource& file) {
  const auto begins = tensors::begins_as_zip(file);
  if (!begins || !*begins) return false;
  const std::shared_ptr<const ByteSource> alias(std::shared_ptr<void>(), &file);
  const auto zip = tensors::ZipArchive::open(alias);
  return zip && std::ranges::any_of((*zip)->members(), [](const tensors::ZipMember& member) {
           return member.name == "data.pkl" || member.name.ends_with("/data.pkl");
         });
}

// What torch.save wrote before it wrote zip files: the pickle of a number of 80 bits, protocol 2.
constexpr std::array<unsigned char, 15> kOldTorch = {0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                                     0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e};

// Protocols 2 to 5 begin with the opcode PROTO; what follows it is the opcode of the outermost
// value, or a frame.
bool begins_as_pickle(ByteView start) {
  constexpr std::string_view kFirstOpcodes = "\x95}](cXUKMGJ\x8c\x8a\x8f)NI";
  if (start.size() < 3 || start[0] != std::byte{0x80}) return false;
  const auto protocol = std::to_integer<int>(start[1]);
  const auto opcode = static_cast<char>(start[2]);
  return protocol >= 2 && protocol <= 5 && kFirstOpcodes.find(opcode) != std::string_view::npos;
}

}  // namespace

std::optional<std::string> name_of_pickle(const ByteSource& file) {
  if (is_torch_zip(file)) return "a file of torch.save: a pickle" + std::string(kAdvice);
  Bytes start(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), kOldTorch.size())));
  if (!file.read_at(0, start)) return std::nullopt;
  if (std::ranges::equal(start, std::as_bytes(std::span(kOldTorch)))) {
    return "an old file of torch.save: a pickle" + std::string(kAdvice);
  }
  if (begins_as_pickle(start)) return "a pickle" + std::string(kAdvice);
  return std::nullopt;
}

}  // namespace tqcache::interop
