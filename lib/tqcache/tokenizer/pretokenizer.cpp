#include "tqcache/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <new>
#include <utility>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {
namespace {

constexpr std::size_t kMaxPatternBytes = 16 * 1024;  // the longest in use has about 1,000

// A run of a million spaces takes a few million steps with the patterns in use; a second or so of
// work is where a pattern counts as runaway.
constexpr std::uint32_t kMatchLimit = 100'000'000;
constexpr std::uint32_t kDepthLimit = 1'000'000;
constexpr std::uint32_t kHeapLimit = 256 * 1024;               // KiB, when there is no JIT
constexpr std::size_t kJitStackStart = std::size_t{32} << 10;  // bytes
constexpr std::size_t kJitStackMax = std::size_t{8} << 20;

template <auto function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    function(object);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using ContextPtr = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using JitStackPtr = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

std::string message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR as_subject(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

template <class Pointer>
Pointer require_memory(Pointer pointer) {
  if (!pointer) throw std::bad_alloc();
  return pointer;
}

}  // namespace

struct Pretokenizer::State {
  CodePtr code;
};

Pretokenizer::Pretokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

Result<Pretokenizer> Pretokenizer::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return Error{ErrorCode::kTooLarge, "pattern: " + std::to_string(pattern.size()) + " bytes"};
  }
  TQC_TRY_ASSIGN(const std::string translated, translate_pattern(pattern));
  int error = 0;
  std::size_t place = 0;
  CodePtr code(pcre2_compile(as_subject(translated), translated.size(), PCRE2_UTF | PCRE2_UCP,
                             &error, &place, nullptr));
  if (!code) return Error{ErrorCode::kCorrupt, "pattern: " + message(error)};
  // Where there is no JIT, or no executable memory to be had, the interpreter does the same work.
  static_cast<void>(pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE));
  return Pretokenizer(std::make_unique<State>(State{std::move(code)}));
}

struct Pretokenizer::Matcher::State {
  const pcre2_code* code;
  MatchDataPtr data;
  ContextPtr context;
  JitStackPtr jit_stack;
};

Pretokenizer::Matcher::Matcher(const Pretokenizer& pretokenizer) {
  const pcre2_code* code = pretokenizer.state_->code.get();
  state_ = std::make_unique<State>(
      State{code, require_memory(MatchDataPtr(pcre2_match_data_create_from_pattern(code, nullptr))),
            require_memory(ContextPtr(pcre2_match_context_create(nullptr))),
            JitStackPtr(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr))});
  pcre2_match_context* context = state_->context.get();
  pcre2_set_match_limit(context, kMatchLimit);
  pcre2_set_depth_limit(context, kDepthLimit);
  pcre2_set_heap_limit(context, kHeapLimit);
  pcre2_jit_stack_assign(context, nullptr, state_->jit_stack.get());
}

Pretokenizer::Matcher::Matcher(Matcher&&) noexcept = default;
Pretokenizer::Matcher::~Matcher() = default;

Result<void> Pretokenizer::Matcher::split(std::string_view text,
                                          const std::function<void(std::string_view)>& piece) {
  const auto emit = [&](std::size_t begin, std::size_t end) {
    if (begin < end) piece(text.substr(begin, end - begin));
  };
  std::size_t done = 0;    // everything before is in pieces
  std::size_t search = 0;  // where the next match may begin
  while (search < text.size()) {
    const int n_groups = pcre2_match(state_->code, as_subject(text), text.size(), search,
                                     PCRE2_NO_UTF_CHECK, state_->data.get(), state_->context.get());
    if (n_groups == PCRE2_ERROR_NOMATCH) break;
    if (n_groups < 0) return Error{ErrorCode::kTooLarge, "pattern: " + message(n_groups)};

    const std::size_t* range = pcre2_get_ovector_pointer(state_->data.get());
    const std::size_t begin = range[0];
    const std::size_t end = range[1];
    if (begin == end) {  // an empty match is no piece; look on behind the next character
      if (end == text.size()) break;
      search = end + first_character(text.substr(end)).n_bytes;
      continue;
    }
    emit(done, begin);
    emit(begin, end);
    done = search = end;
  }
  emit(done, text.size());
  return {};
}

}  // namespace tqcache::tokenizer
