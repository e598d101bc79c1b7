/* The C interface in C: what a C compiler makes of the header. */

#include "tqcache/cuda/tqcache_cuda.h"

int c_makes_codec(int head_dim, int bits, int is_values, tqcache_cuda_codec** codec);

int c_makes_codec(int head_dim, int bits, int is_values, tqcache_cuda_codec** codec) {
  tqcache_cuda_codec_spec spec = {0};
  spec.head_dim = head_dim;
  spec.bits = bits;
  spec.is_values = is_values;
  spec.rounds = 1;
  return tqcache_cuda_codec_new(&spec, codec);
}
