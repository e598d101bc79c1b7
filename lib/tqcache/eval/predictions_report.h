#pragma once
// eval/predictions_report.h: costs of predictions as tables and figures.

#include "tqcache/eval/predictions.h"
#include "tqcache/eval/report.h"

namespace tqcache::eval {

// What the reader wants to know first: perplexity, or the distance from the dense run.
enum class PredictionFocus { kPerplexity, kDivergence };

// Facts begin with those of the windows; who knows model and text puts them before.
Report predictions_report(const PredictionCosts& costs, PredictionFocus focus);

}  // namespace tqcache::eval
