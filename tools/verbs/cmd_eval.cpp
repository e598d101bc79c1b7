// tools/verbs/cmd_eval.cpp: the measurements that `tqcache eval` has.

#include <array>

#include "verbs/eval_verbs.h"

namespace tqcache::cli {
namespace {

// "eval NAME": as it stands on the command line, in help and in messages.
constexpr std::array kEvalVerbs = {
    Verb{"eval ppl", "How well a model predicts a text, its cache kept in several ways",
         define_eval_ppl},
    Verb{"eval kld", "How far its predictions get from those with a dense cache", define_eval_kld},
    Verb{"eval needle", "How often a model finds what is hidden in a long text",
         define_eval_needle},
    Verb{"eval jsonl", "How many questions of a file a model answers", define_eval_jsonl},
    Verb{"eval memory", "What a model still knows of a conversation, saved and loaded",
         define_eval_memory},
    Verb{"eval cache", "How far a cache is from another, and attention over it, head by head",
         define_eval_cache},
};

}  // namespace

std::span<const Verb> eval_verbs() { return kEvalVerbs; }

}  // namespace tqcache::cli
