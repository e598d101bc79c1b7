#pragma once
// tqcache/all.h: all public headers.
//
//   #include "tqcache/all.h"  // in a program; a library includes what it uses
//
// Most programs need these ten:
//
//   error.h         Result<T>, a value or an Error
//   bytes.h         bytes, number formats, memory
//   description.h   what a cache holds, without values
//   cache.h         a cache in memory
//   reader.h        a cache, block by block, wherever it is
//   quantize.h      plans and conversion
//   tqkv.h          .tqkv files
//   interop.h       files of other programs
//   store.h         stores of prompts
//   session.h       generation from a cache or a store
//
// The second tier, for programs that take the parts apart. It may change more often:
//
//   hash.h          digests
//   access.h        secret keys, and the limit of memory
//   progress.h      progress, and stopping
//   file.h          files
//   codec_spec.h    parameters of the codec
//   kv_codec.h      encoding and decoding of token blocks
//   upkeep.h        upkeep of stores
//   tokenizer.h     text and tokens
//   model.h         models
//   decoder.h       the decoder
//   sampler.h       the choice of a token
//   report.h        figures and tables
//   eval.h          what quantization costs
//   predict.h       profiles that predict keys and values
//   version.h       the version of the library

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/codec_spec.h"
#include "tqcache/decoder.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/eval.h"
#include "tqcache/file.h"
#include "tqcache/hash.h"
#include "tqcache/interop.h"
#include "tqcache/kv_codec.h"
#include "tqcache/model.h"
#include "tqcache/predict.h"
#include "tqcache/progress.h"
#include "tqcache/quantize.h"
#include "tqcache/reader.h"
#include "tqcache/report.h"
#include "tqcache/sampler.h"
#include "tqcache/session.h"
#include "tqcache/store.h"
#include "tqcache/tokenizer.h"
#include "tqcache/tqkv.h"
#include "tqcache/upkeep.h"
#include "tqcache/version.h"
