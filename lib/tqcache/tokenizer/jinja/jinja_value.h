#pragma once
// tokenizer/jinja/jinja_value.h: values of a chat template's program, with the meaning that Python
// gives them.
//
// Texts are shared and never change. Lists, dictionaries and the rest live in a Heap until the
// program ends, so cycles need no care. The Heap also counts the work of a program: a step costs 1,
// and so does each byte that is made. The first error ends the program: whoever finds it calls
// Heap::fail(), which takes what is left of the budget, so all loops end, and what they return is
// not looked at. All functions are safe for untrusted values.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/error.h"

namespace tqcache::tokenizer::jinja {

constexpr int kMaxNesting = 64;  // of lists in lists and the like

// Who wrote a byte of a text. Control tokens are parsed in the template's bytes alone.
enum class Mark : char { kTemplate = 0, kMessage = 1, kSoughtMessage = 2 };

// UTF-8, and a mark for each byte. Empty marks: all bytes are the template's.
struct Text {
  std::string bytes;
  std::string marks = {};
  bool is_safe = false;  // the filter `safe` was applied: it can be written out, and nothing more
};

struct Dict;
struct Function;
struct List;
struct Loop;
struct Namespace;
struct Statement;

struct Undefined {
  std::string name;  // for messages: what is not defined
};
struct None {};
// What Heap::fail() returns, in the place of any value.
struct Failed {
  template <class T>
  operator T() const {
    return T();
  }
};

struct Value {
  using TextPtr = std::shared_ptr<const Text>;
  std::variant<None, Undefined, bool, std::int64_t, double, TextPtr, List*, Dict*, Function*, Loop*,
               Namespace*>
      held;

  Value() = default;
  template <class T>
  requires(!std::is_same_v<T, Failed>) Value(T value)
      : held(std::move(value)) {}  // NOLINT(implicit)

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(held);
  }
  // Null unless it is one.
  const Text* text() const { return is<TextPtr>() ? std::get<TextPtr>(held).get() : nullptr; }
  List* list() const { return is<List*>() ? std::get<List*>(held) : nullptr; }
  Dict* dict() const { return is<Dict*>() ? std::get<Dict*>(held) : nullptr; }
  const Undefined* undefined() const { return std::get_if<Undefined>(&held); }
  std::optional<std::int64_t> integer() const;  // bools are integers
  std::optional<double> number() const;         // and integers are numbers
};

// A list and its relatives. An iterator is used up by its first reader.
struct List {
  enum class Kind : std::uint8_t { kList, kTuple, kRange, kView, kIterator };
  Kind kind = Kind::kList;
  std::vector<Value> items = {};
  bool has_indices() const { return kind <= Kind::kRange; }
};

// In the order of insertion, as in Python.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
};

struct Namespace {
  Dict fields;
};

// Variables of a block; a name that is not there is looked for in the block around it.
struct Scope {
  Scope* around = nullptr;
  std::vector<std::pair<std::string, Value>> variables = {};
};

// What can be called: a function or a class of the program's environment, a method of a value, or
// a macro (or the body of a call block) with the scope that it was written in.
struct Function {
  enum class Kind : std::uint8_t { kGlobal, kMethod, kMacro };
  Kind kind;
  std::string name;
  Value self = {};
  const Statement* macro = nullptr;
  Scope* scope = nullptr;
};

struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;  // of the current one
};

// The objects of a running program, and what it may still do.
class Heap {
 public:
  explicit Heap(std::uint64_t budget) : budget_(budget) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Counts work. Returns false once the program has to end.
  bool spend(std::uint64_t work);
  bool is_spent() const { return budget_ == 0; }
  Failed fail(std::string message, ErrorCode code = ErrorCode::kUnsupported);
  Failed fail_undefined(const Undefined& undefined);
  const std::optional<Error>& error() const { return error_; }
  void set_line(int line) { line_ = line; }  // of the program, for messages

  Value text(Text text) { return std::make_shared<const Text>(std::move(text)); }
  Value text(std::string_view bytes) { return text(Text{std::string(bytes)}); }
  List* list(List::Kind kind = List::Kind::kList, std::vector<Value> items = {});
  Dict* dict(Dict dict = {}) { return add(dicts_, std::move(dict)); }
  Namespace* name_space(Dict fields) { return add(namespaces_, {std::move(fields)}); }
  Function* function(Function function) { return add(functions_, std::move(function)); }
  Loop* loop(std::vector<Value> items) { return add(loops_, {std::move(items)}); }
  Scope* scope(Scope* around) { return add(scopes_, {around}); }

 private:
  template <class T>
  T* add(std::deque<T>& all, T object) {
    spend(sizeof(T));
    return &all.emplace_back(std::move(object));
  }

  std::uint64_t budget_;
  std::optional<Error> error_;
  int line_ = 0;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> namespaces_;
  std::deque<Function> functions_;
  std::deque<Loop> loops_;
  std::deque<Scope> scopes_;
};

// A text in the making, paid for byte by byte. Once the budget is spent, nothing is added.
class TextBuilder {
 public:
  explicit TextBuilder(Heap& heap) : heap_(&heap) {}

  void add(std::string_view bytes, Mark mark = Mark::kTemplate);
  void add(const Text& text) { add(text, 0, text.bytes.size()); }
  void add(const Text& text, std::size_t begin, std::size_t end);
  bool is_spent() const { return heap_->is_spent(); }
  Text take() { return std::move(text_); }
  Value value() { return heap_->text(take()); }

 private:
  Heap* heap_;
  Text text_;
};

Mark mark_at(const Text& text, std::size_t at);
Text part(const Text& text, std::size_t begin, std::size_t end);

// "str", "list", "NoneType": the name that Python has for the type.
std::string type_name(const Value& value);
bool is_true(const Value& value);

// Python's == and <, and `item in container`.
bool equal(Heap& heap, const Value& a, const Value& b, int depth = 0);
bool less(Heap& heap, const Value& a, const Value& b, int depth = 0);
bool contains(Heap& heap, const Value& container, const Value& item);

// The value of a key; null if it is absent.
const Value* find(Heap& heap, const Dict& dict, const Value& key, int depth = 0);
const Value* find(const Dict& dict, std::string_view key);
void set_item(Heap& heap, Dict& dict, Value key, Value value);

// The items that a loop over the value sees: characters of a text, keys of a dictionary. Takes what
// is left of an iterator.
std::vector<Value> items_of(Heap& heap, const Value& value);

// Python's str() and repr(float).
void write_str(Heap& heap, const Value& value, TextBuilder& out);
Text to_text(Heap& heap, const Value& value);
std::string float_text(double value);

// json.dumps() of Python. `indent` is put before each level; absent: one line.
struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent = {};
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
void write_json(Heap& heap, const Value& value, const JsonStyle& style, TextBuilder& out);

// The value of a JSON text, with all strings marked. Errors: kCorrupt (not JSON), kTooLarge.
Result<Value> value_of_json(Heap& heap, std::string_view json, Mark mark);

}  // namespace tqcache::tokenizer::jinja
