#include "fuzz/npz_parts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fuzz/fuzz.h"
#include "tqcache/tensors/npy.h"

namespace tqcache::fuzz {
namespace {

constexpr std::size_t kDictLength = 8;  // where it stands in a .npy file of version 1.0
constexpr std::size_t kDictBegin = 10;
constexpr std::size_t kMaxArray = 1024;  // bytes; more fills an input with nothing new

// A length, and so many bytes or all that are left.
Bytes take_bytes(ByteView& rest) {
  Input input(rest);
  const std::size_t length = input.take<std::uint16_t>();
  const ByteView taken = input.rest().first(std::min(length, input.rest().size()));
  rest = input.rest().subspan(taken.size());
  return Bytes(taken.begin(), taken.end());
}

void append_bytes(ByteWriter& out, const Bytes& bytes) {
  out.write(static_cast<std::uint16_t>(bytes.size()));
  out.append(bytes);
}

// As many values as its shape says.
void fit_values(Bytes& npy) {
  const auto header = tensors::parse_npy_header(npy);
  if (!header || header->bytes > kMaxArray) return;
  npy.resize(static_cast<std::size_t>(header->data_offset + header->bytes));
}

// The dict of the header, or the values behind it.
void change_array(Chance& chance, Bytes& npy, std::size_t room) {
  const auto header = tensors::parse_npy_header(npy);
  if (!header || npy[6] != std::byte{1} || chance.one_in(8)) {
    return change_bytes(npy, 0, npy.size(), room);
  }
  const auto end = static_cast<std::size_t>(header->data_offset);
  if (chance.one_in(4)) return change_bytes(npy, end, npy.size(), room);
  const std::size_t old_size = npy.size();
  change_bytes(npy, kDictBegin, end, room);
  const auto length = static_cast<std::uint16_t>(end - kDictBegin + npy.size() - old_size);
  std::memcpy(npy.data() + kDictLength, &length, sizeof length);
  if (!chance.one_in(8)) fit_values(npy);
}

}  // namespace

NpzParts take_npz_apart(ByteView input) {
  NpzParts parts;
  parts.text = take_bytes(input);
  while (parts.members.size() < kMaxNpzMembers && !input.empty()) {
    const auto name = std::to_integer<std::uint8_t>(input.front());
    input = input.subspan(1);
    parts.members.push_back({name, take_bytes(input)});
  }
  return parts;
}

Bytes put_npz_together(const NpzParts& parts) {
  ByteWriter out;
  append_bytes(out, parts.text);
  for (const NpzMember& member : parts.members) {
    out.write(member.name);
    append_bytes(out, member.npy);
  }
  return std::move(out).take();
}

void change_npz(Chance& chance, NpzParts& parts, std::size_t room) {
  if (parts.members.empty() || chance.one_in(3)) {
    return change_bytes(parts.text, 0, parts.text.size(), room);
  }
  if (chance.one_in(8)) return change_order(chance, parts.members, kMaxNpzMembers);
  NpzMember& member = parts.members[chance.below(parts.members.size())];
  if (chance.one_in(8)) return change_number(chance, member.name);
  change_array(chance, member.npy, room);
}

}  // namespace tqcache::fuzz
