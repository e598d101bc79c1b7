#pragma once
// migrations/v1_classes.h: which kind of layer a class of version 1 is.
//
// Files name the class that wrote a layer. Names are compared with the ones in a table, and lead
// nowhere else.

#include <string_view>

#include "tqcache/base/result.h"

namespace tqcache::migrations {

enum class V1Class { kTurbo, kDense, kQuantized, kRotating, kArrays };

// Errors: kUnsupported, with the name in printable ASCII.
Result<V1Class> class_of(std::string_view class_path);

}  // namespace tqcache::migrations
