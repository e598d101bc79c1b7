#pragma once
// tests/fuzz/manifest_changes.h: changes a manifest field by field, so that what comes out is one
// that means something and is wrong in one or two places.

#include "tqcache/format/manifest.h"

namespace tqcache::fuzz {

class Chance;

// One change, of anything that a manifest says.
void change_manifest(Chance& chance, format::Manifest& manifest);

}  // namespace tqcache::fuzz
