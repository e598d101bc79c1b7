#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer.h"
#include "tqcache/tokenizer/jinja/jinja_program.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {

namespace {

using jinja::Heap;
using jinja::Mark;
using jinja::Value;

// What a template may do: 64 MiB of steps and bytes, and 256 for each byte of the conversation.
constexpr std::uint64_t kBudget = std::uint64_t{64} << 20;
constexpr std::uint64_t kBudgetPerByte = 256;

constexpr std::string_view kChatMl = R"({%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %})";

// The switches by which templates turn thinking off.
constexpr const char* kThinking[] = {"enable_thinking", "thinking"};

const char* name_of(ChatRole role) {
  static constexpr const char* kNames[] = {"system", "user", "assistant", "tool"};
  return kNames[static_cast<int>(role)];
}

Result<Value> value_of(Heap& heap, const ChatMessage& message, Mark mark) {
  if (const std::size_t n = valid_utf8_bytes(message.text); n != message.text.size()) {
    return corrupt("text: byte " + std::to_string(n) + ": not UTF-8");
  }
  jinja::TextBuilder content(heap);
  content.add(message.text, mark);
  jinja::Dict* const dict = heap.dict();
  set_item(heap, *dict, heap.text("role"), heap.text(name_of(message.role)));
  set_item(heap, *dict, heap.text("content"), content.value());
  if (message.fields.empty()) return Value(dict);
  TQC_TRY_ASSIGN(const Value fields, value_of_json(heap, message.fields, mark));
  if (fields.dict() == nullptr) return corrupt("the fields of a message are not a JSON object");
  for (const auto& [key, value] : fields.dict()->items) set_item(heap, *dict, key, value);
  return Value(dict);
}

// The ranges of a text that messages have written.
ChatText text_of(jinja::Text text) {
  ChatText out;
  for (std::size_t begin = 0; begin < text.marks.size();) {
    const auto mark = static_cast<Mark>(text.marks[begin]);
    const std::size_t end =
        std::min(text.marks.find_first_not_of(text.marks[begin], begin), text.marks.size());
    if (mark != Mark::kTemplate) out.plain.push_back({begin, end});
    if (mark == Mark::kSoughtMessage) {
      out.sought = {out.sought ? out.sought->begin : begin, end};
    }
    begin = end;
  }
  out.text = std::move(text.bytes);
  return out;
}

}  // namespace

struct ChatTemplate::State {
  jinja::Program program;
};

Result<ChatTemplate> ChatTemplate::parse(std::string_view jinja) {
  auto program = jinja::Program::parse(jinja);
  if (!program) return in_context("chat template", std::move(program).error());
  return ChatTemplate(std::make_shared<const State>(State{std::move(program).value()}));
}

Result<ChatTemplate> ChatTemplate::by_name(std::string_view name) {
  if (is_name(name)) return parse(kChatMl);
  return invalid("chat template " + tensors::printable_name(name) + ": none of " + names());
}

bool ChatTemplate::is_name(std::string_view name) { return name == "chatml"; }

std::string ChatTemplate::names() { return "chatml"; }

bool ChatTemplate::can_avoid_thinking() const {
  return std::ranges::any_of(kThinking,
                             [&](const char* name) { return state_->program.uses(name); });
}

bool ChatTemplate::takes_tools() const { return state_->program.uses("tools"); }

Result<ChatText> ChatTemplate::render(std::span<const ChatMessage> messages,
                                      const RenderOptions& options) const {
  if (!options.thinks && !can_avoid_thinking()) {
    return unsupported("the model's chat template has no way to answer without thinking first");
  }
  std::uint64_t n_bytes = options.tools.size();
  for (const ChatMessage& each : messages) n_bytes += each.text.size() + each.fields.size();
  Heap heap(kBudget + kBudgetPerByte * n_bytes);

  jinja::List* const list = heap.list();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Mark mark = options.seek == i ? Mark::kSoughtMessage : Mark::kMessage;
    TQC_TRY_ASSIGN(Value message, value_of(heap, messages[i], mark));
    list->items.push_back(std::move(message));
  }
  std::vector<std::pair<std::string, Value>> variables = {{"messages", list},
                                                          {"add_generation_prompt", options.asks},
                                                          {"tools", jinja::None{}},
                                                          {"documents", jinja::None{}}};
  if (!options.tools.empty()) {
    TQC_TRY_ASSIGN(variables[2].second, value_of_json(heap, options.tools, Mark::kMessage));
  }
  for (const auto& [name, text] : options.named_tokens)
    variables.emplace_back(name, heap.text(text));
  for (const char* name : kThinking) {
    if (!options.thinks) variables.emplace_back(name, false);
  }
  auto text =
      state_->program.run(heap, std::move(variables), options.now ? &*options.now : nullptr);
  if (!text) return in_context("chat template", std::move(text).error());
  return text_of(std::move(text).value());
}

}  // namespace tqcache::tokenizer
