#pragma once
// tests/fuzz/npz_parts.h: what the target npz reads an input as that is no zip file, and changes of
// its parts.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fuzz/mutate.h"
#include "tqcache/bytes.h"

namespace tqcache::fuzz {

struct NpzMember {
  std::uint8_t name = 0;  // a number that stands for one
  Bytes npy;
};

// The text of the description, and arrays beside it. In an input each has its length before it.
struct NpzParts {
  Bytes text;
  std::vector<NpzMember> members;
};

inline constexpr std::size_t kMaxNpzMembers = 8;

// Of any bytes: lengths are cut to what is there.
NpzParts take_npz_apart(ByteView input);
Bytes put_npz_together(const NpzParts& parts);

// Changes the text or an array, and as a rule makes the lengths that stand in the array fit.
// `room`: bytes by which it may grow.
void change_npz(Chance& chance, NpzParts& parts, std::size_t room);

}  // namespace tqcache::fuzz
