#include "tqcache/interop/turbomlx/pickle.h"

#include <fmt/format.h>

#include <bit>
#include <cstdio>
#include <map>
#include <utility>

#include "tqcache/error.h"
#include "tqcache/interop/file_cursor.h"

namespace tqcache::interop {
namespace {

using Kind = Value::Kind;

// A file of 128 layers has about 20,000 opcodes.
constexpr std::uint64_t kMaxOpcodes = std::uint64_t{1} << 20;
constexpr std::size_t kMaxMarks = 64;  // nested collections under construction
constexpr std::uint64_t kMaxText = 64u << 20;
constexpr std::uint64_t kMaxPickledNameBytes = 256;
constexpr int kMinProtocol = 2;
constexpr int kMaxProtocol = 5;

std::string opcode_name(std::uint8_t opcode) {
  char text[16];
  std::snprintf(text, sizeof text, "opcode 0x%02x", opcode);
  return text;
}

class Machine {
 public:
  explicit Machine(const ByteSource& file) : in_(file) {}

  Result<Pickle> run() {
    TQC_TRY(read_protocol());
    for (std::uint64_t n = 0; !done_; ++n) {
      if (n == kMaxOpcodes) return too_large("too many opcodes");
      const std::uint64_t at = in_.position();
      TQC_TRY_ASSIGN(const auto opcode, in_.read<std::uint8_t>());
      auto stepped = step(opcode);
      if (!stepped) return in_context(fmt::format("byte {}", at), std::move(stepped).error());
    }
    if (in_.remaining() > 0) {
      return corrupt(fmt::format("{} bytes after the end of the pickle", in_.remaining()));
    }
    return std::move(pickle_);
  }

 private:
  Result<void> read_protocol() {
    TQC_TRY_ASSIGN(const auto opcode, in_.read<std::uint8_t>());
    if (opcode != 0x80) return corrupt("no pickle of protocol 2 or later");
    TQC_TRY_ASSIGN(const auto protocol, in_.read<std::uint8_t>());
    pickle_.protocol = protocol;
    if (protocol >= kMinProtocol && protocol <= kMaxProtocol) return {};
    return unsupported(fmt::format("a pickle of protocol {}", protocol));
  }

  // --- the stack

  Result<void> push(ValueId id) {
    stack_.push_back(id);
    return {};
  }
  Result<void> push(Value value) {
    if (pickle_.tree.size() == kMaxTreeValues) return too_large("too many values");
    return push(pickle_.tree.add(std::move(value)));
  }
  // Number of values pushed since the last mark; only these may be popped.
  std::size_t available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  Result<ValueId> top() const {
    if (available() == 0) return corrupt("a stack without values");
    return stack_.back();
  }
  Result<ValueId> pop() {
    TQC_TRY_ASSIGN(const ValueId id, top());
    stack_.pop_back();
    return id;
  }
  Result<std::vector<ValueId>> pop(std::size_t n) {
    if (available() < n) return corrupt("a stack without values");
    std::vector<ValueId> ids(stack_.end() - static_cast<std::ptrdiff_t>(n), stack_.end());
    stack_.resize(stack_.size() - n);
    return ids;
  }
  Result<std::vector<ValueId>> pop_to_mark() {
    if (marks_.empty()) return corrupt("no mark");
    const std::size_t n = available();
    auto ids = pop(n);
    marks_.pop_back();
    return ids;
  }
  Result<void> mark() {
    if (marks_.size() == kMaxMarks) return too_large("values nested too deep");
    marks_.push_back(stack_.size());
    return {};
  }

  Value& value(ValueId id) { return pickle_.tree.at(id); }

  // --- the memo

  Result<void> remember(std::uint32_t key) {
    TQC_TRY_ASSIGN(const ValueId id, top());
    memo_[key] = id;
    return {};
  }
  Result<void> recall(std::uint32_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) return corrupt(fmt::format("no memo entry {}", key));
    return push(found->second);
  }

  template <class T>
  Result<std::uint32_t> key() {
    TQC_TRY_ASSIGN(const T number, in_.read<T>());
    return static_cast<std::uint32_t>(number);
  }

  // --- numbers, texts, bytes

  template <class T>
  Result<void> push_integer() {
    TQC_TRY_ASSIGN(const T number, in_.read<T>());
    return push(Value{.kind = Kind::kInteger, .integer = number});
  }

  // A two's complement number with a variable number of bytes.
  Result<void> push_long() {
    TQC_TRY_ASSIGN(const auto size, in_.read<std::uint8_t>());
    if (size > 8) return unsupported("a number of more than 64 bits");
    std::uint64_t bits = 0;
    std::uint8_t last = 0;
    for (unsigned i = 0; i < size; ++i) {
      TQC_TRY_ASSIGN(last, in_.read<std::uint8_t>());
      bits |= std::uint64_t{last} << (8 * i);
    }
    if (size < 8 && (last & 0x80u) != 0) bits |= ~std::uint64_t{0} << (8 * size);
    return push(Value{.kind = Kind::kInteger, .integer = static_cast<std::int64_t>(bits)});
  }

  // Most significant byte first, unlike all other numbers here.
  Result<void> push_number() {
    TQC_TRY_ASSIGN(const auto bits, in_.read<std::uint64_t>());
    return push(
        Value{.kind = Kind::kNumber, .number = std::bit_cast<double>(__builtin_bswap64(bits))});
  }

  template <class Size>
  Result<void> push_text() {
    TQC_TRY_ASSIGN(const Size size, in_.read<Size>());
    if (size > texts_left_) {
      TQC_TRY(in_.need(size));
      return too_large("more text than 64 MiB");
    }
    TQC_TRY_ASSIGN(std::string text, in_.read_text(size));
    texts_left_ -= size;
    return push(Value{.kind = Kind::kText, .text = std::move(text)});
  }

  template <class Size>
  Result<void> push_bytes() {
    TQC_TRY_ASSIGN(const Size size, in_.read<Size>());
    const std::uint64_t at = in_.position();
    TQC_TRY(in_.skip(size));
    Value bytes{.kind = Kind::kBytes};
    bytes.bytes = {at, size};
    return push(std::move(bytes));
  }

  // --- collections

  Result<void> push_tuple(Result<std::vector<ValueId>> items) {
    if (!items) return std::move(items).error();
    return push(Value{.kind = Kind::kTuple, .items = std::move(items).value()});
  }

  Result<void> append(Result<std::vector<ValueId>> items) {
    if (!items) return std::move(items).error();
    TQC_TRY_ASSIGN(const ValueId list, top());
    if (value(list).kind != Kind::kList) return corrupt("an item of something that is no list");
    value(list).items.insert(value(list).items.end(), items->begin(), items->end());
    return {};
  }

  Result<void> set_items(Result<std::vector<ValueId>> items) {
    if (!items) return std::move(items).error();
    TQC_TRY_ASSIGN(const ValueId dict, top());
    if (value(dict).kind != Kind::kDict) return corrupt("a key of something that is no dict");
    if (items->size() % 2 != 0) return corrupt("a key without a value");
    value(dict).items.insert(value(dict).items.end(), items->begin(), items->end());
    return {};
  }

  // --- names

  Result<std::string> read_line() {
    std::string line;
    while (line.size() <= kMaxPickledNameBytes) {
      TQC_TRY_ASSIGN(const auto c, in_.read<std::uint8_t>());
      if (c == '\n') return line;
      line.push_back(static_cast<char>(c));
    }
    return corrupt("a name without an end");
  }

  Result<void> push_global(const std::string& module, const std::string& name) {
    TQC_TRY_ASSIGN(Value global, pickle_global(module, name));
    return push(std::move(global));
  }

  Result<void> global() {
    TQC_TRY_ASSIGN(const std::string module, read_line());
    TQC_TRY_ASSIGN(const std::string name, read_line());
    return push_global(module, name);
  }

  Result<void> stack_global() {
    TQC_TRY_ASSIGN(const auto names, pop(2));
    const Value& module = value(names[0]);
    const Value& name = value(names[1]);
    if (module.kind != Kind::kText || name.kind != Kind::kText ||
        module.text.size() > kMaxPickledNameBytes || name.text.size() > kMaxPickledNameBytes) {
      return corrupt("a name that is no text");
    }
    return push_global(module.text, name.text);
  }

  Result<void> reduce() {
    TQC_TRY_ASSIGN(const auto ids, pop(2));
    TQC_TRY_ASSIGN(Value made,
                   pickle_call(pickle_.tree, value(ids[0]), value(ids[1]), texts_left_));
    return push(std::move(made));
  }

  Result<void> build() {
    TQC_TRY_ASSIGN(const ValueId state, pop());
    TQC_TRY_ASSIGN(const ValueId object, top());
    return pickle_build(pickle_.tree, value(object), value(state));
  }

  Result<void> frame() {
    TQC_TRY_ASSIGN(const auto size, in_.read<std::uint64_t>());
    return in_.need(size);
  }

  Result<void> stop() {
    TQC_TRY_ASSIGN(pickle_.tree.root, pop());
    if (!stack_.empty() || !marks_.empty()) return corrupt("values left on the stack");
    done_ = true;
    return {};
  }

  // --- opcodes

  Result<void> step(std::uint8_t opcode) {
    switch (opcode) {
      case '.':
        return stop();
      case '(':
        return mark();
      case 0x95:
        return frame();
      case 'c':
        return global();
      case 0x93:
        return stack_global();
      case 'R':
        return reduce();
      case 'b':
        return build();
      default:
        return step_memo(opcode);
    }
  }

  Result<void> step_memo(std::uint8_t opcode) {
    std::uint32_t at = 0;
    switch (opcode) {
      case 0x94:
        return remember(static_cast<std::uint32_t>(memo_.size()));
      case 'q': {
        TQC_TRY_ASSIGN(at, key<std::uint8_t>());
        return remember(at);
      }
      case 'r': {
        TQC_TRY_ASSIGN(at, key<std::uint32_t>());
        return remember(at);
      }
      case 'h': {
        TQC_TRY_ASSIGN(at, key<std::uint8_t>());
        return recall(at);
      }
      case 'j': {
        TQC_TRY_ASSIGN(at, key<std::uint32_t>());
        return recall(at);
      }
      default:
        return step_value(opcode);
    }
  }

  Result<void> step_value(std::uint8_t opcode) {
    switch (opcode) {
      case 'N':
        return push(Value{});
      case 0x88:
      case 0x89:
        return push(Value{.kind = Kind::kBool, .integer = opcode == 0x88});
      case 'J':
        return push_integer<std::int32_t>();
      case 'K':
        return push_integer<std::uint8_t>();
      case 'M':
        return push_integer<std::uint16_t>();
      case 0x8a:
        return push_long();
      case 'G':
        return push_number();
      case 'X':
        return push_text<std::uint32_t>();
      case 0x8c:
        return push_text<std::uint8_t>();
      case 0x8d:
        return push_text<std::uint64_t>();
      case 'B':
        return push_bytes<std::uint32_t>();
      case 'C':
        return push_bytes<std::uint8_t>();
      case 0x8e:
      case 0x96:
        return push_bytes<std::uint64_t>();
      default:
        return step_collection(opcode);
    }
  }

  Result<void> step_collection(std::uint8_t opcode) {
    switch (opcode) {
      case '}':
        return push(Value{.kind = Kind::kDict});
      case ']':
        return push(Value{.kind = Kind::kList});
      case ')':
        return push(Value{.kind = Kind::kTuple});
      case 't':
        return push_tuple(pop_to_mark());
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(pop(opcode - 0x84u));
      case 'a':
        return append(pop(1));
      case 'e':
        return append(pop_to_mark());
      case 's':
        return set_items(pop(2));
      case 'u':
        return set_items(pop_to_mark());
      default:
        return unsupported(opcode_name(opcode) + ", which not a TurboMLX prompt cache has");
    }
  }

  FileCursor in_;
  Pickle pickle_;
  std::vector<ValueId> stack_;
  std::vector<std::size_t> marks_;         // stack sizes
  std::map<std::uint32_t, ValueId> memo_;  // ordered: the file chooses the keys
  std::uint64_t texts_left_ = kMaxText;
  bool done_ = false;
};

}  // namespace

Result<Pickle> read_pickle(const ByteSource& file) {
  auto pickle = Machine(file).run();
  if (!pickle) return in_context("pickle", std::move(pickle).error());
  return pickle;
}

}  // namespace tqcache::interop
