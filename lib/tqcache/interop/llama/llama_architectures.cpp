#include "tqcache/interop/llama/llama_architectures.h"

#include <algorithm>
#include <array>

namespace tqcache::interop {
namespace {

using enum LlamaRope;

// Only architectures with one key and one value a token in every layer that has attention. Others,
// and whatever comes after these, are refused rather than guessed.
constexpr std::array kArchitectures = {
    LlamaArchitecture{"llama", kPairs},
    LlamaArchitecture{"dots1"},
    LlamaArchitecture{"exaone"},
    LlamaArchitecture{"falcon"},
    LlamaArchitecture{"gemma"},
    LlamaArchitecture{"gemma2", kHalfSplit, {.period = 2, .default_window = 4096}},
    LlamaArchitecture{"gemma3", kHalfSplit, {.period = 6}},
    LlamaArchitecture{"gpt-oss", kHalfSplit, {.period = 2}},
    LlamaArchitecture{"gptneox"},
    LlamaArchitecture{"hunyuan-dense"},
    LlamaArchitecture{"hunyuan-moe"},
    LlamaArchitecture{"nemotron"},
    LlamaArchitecture{"olmo2", kHalfSplit, {.period = 4}},
    LlamaArchitecture{"olmoe"},
    LlamaArchitecture{"phi2"},
    // Files of phi3 name a window; llama.cpp does not use it.
    LlamaArchitecture{"phi3"},
    LlamaArchitecture{"phimoe"},
    LlamaArchitecture{"qwen2"},
    LlamaArchitecture{"qwen2moe"},
    LlamaArchitecture{"qwen2vl", kHalfSplitWith2d},
    LlamaArchitecture{"qwen3"},
    LlamaArchitecture{"qwen35", kHalfSplitWith2d, {}, true},
    LlamaArchitecture{"qwen35moe", kHalfSplitWith2d, {}, true},
    LlamaArchitecture{"qwen3moe"},
    LlamaArchitecture{"qwen3next", kHalfSplit, {}, true},
    LlamaArchitecture{"qwen3vl", kHalfSplitWith2d},
    LlamaArchitecture{"qwen3vlmoe", kHalfSplitWith2d},
    LlamaArchitecture{"seed_oss"},
    LlamaArchitecture{"stablelm"},
    LlamaArchitecture{"starcoder2"},
    LlamaArchitecture{"arcee", kPairsNotKnown},
    LlamaArchitecture{"arctic", kPairsNotKnown},
    LlamaArchitecture{"baichuan", kPairsNotKnown},
    LlamaArchitecture{"bailingmoe", kPairsNotKnown},
    LlamaArchitecture{"chameleon", kPairsNotKnown},
    LlamaArchitecture{"chatglm", kPairsNotKnown},
    LlamaArchitecture{"cohere2", kPairsNotKnown},
    LlamaArchitecture{"command-r", kPairsNotKnown},
    LlamaArchitecture{"deci", kPairsNotKnown},
    LlamaArchitecture{"deepseek", kPairsNotKnown},
    LlamaArchitecture{"ernie4_5", kPairsNotKnown},
    LlamaArchitecture{"ernie4_5-moe", kPairsNotKnown},
    LlamaArchitecture{"glm4", kPairsNotKnown},
    LlamaArchitecture{"granite", kPairsNotKnown},
    LlamaArchitecture{"granitehybrid", kPairsNotKnown},
    LlamaArchitecture{"granitemoe", kPairsNotKnown},
    LlamaArchitecture{"internlm2", kPairsNotKnown},
    LlamaArchitecture{"llada", kPairsNotKnown},
    LlamaArchitecture{"llama4", kPairsNotKnown},
    LlamaArchitecture{"llama-embed", kPairsNotKnown},
    LlamaArchitecture{"maincoder", kPairsNotKnown},
    LlamaArchitecture{"minicpm", kPairsNotKnown},
    LlamaArchitecture{"mistral3", kPairsNotKnown},
    LlamaArchitecture{"neo-bert", kPairsNotKnown},
    LlamaArchitecture{"olmo", kPairsNotKnown},
    LlamaArchitecture{"plm", kPairsNotKnown},
    LlamaArchitecture{"smollm3", kPairsNotKnown},
    LlamaArchitecture{"starcoder", kPairsNotKnown},
    LlamaArchitecture{"xverse", kPairsNotKnown},
};

}  // namespace

const LlamaArchitecture* find_llama_architecture(std::string_view name) {
  const auto found = std::ranges::find(kArchitectures, name, &LlamaArchitecture::name);
  return found == kArchitectures.end() ? nullptr : &*found;
}

}  // namespace tqcache::interop
