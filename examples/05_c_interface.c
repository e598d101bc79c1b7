/* Makes a small cache in C, quantizes it into a file, verifies the file and reads it again.
 *
 *   05_c_interface OUT.tqkv
 *
 * Built with the flags of `pkg-config --cflags --libs tqcache-c`.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tqcache/tqcache.h"

enum { kHeads = 2, kTokens = 300, kDim = 64 };

/* Ends the program if a call has failed. */
static void check(int code, tqcache_error* error) {
  if (code == TQCACHE_OK) return;
  fprintf(stderr, "%s: %s\n", tqcache_error_file(error), tqcache_error_message(error));
  tqcache_error_free(error);
  exit(code);
}

int main(int argc, char** argv) {
  if (argc != 2) return TQCACHE_USAGE;
  if (tqcache_abi() < TQCACHE_ABI) return TQCACHE_UNSUPPORTED;
  tqcache_error* error = NULL;

  /* Keys and values as a model would have them: [heads, tokens, dim]. */
  static float keys[kHeads][kTokens][kDim], values[kHeads][kTokens][kDim];
  int32_t tokens[kTokens];
  for (int token = 0; token < kTokens; ++token) {
    tokens[token] = token;
    for (int head = 0; head < kHeads; ++head) {
      for (int i = 0; i < kDim; ++i) {
        keys[head][token][i] = (float)sin(token * 0.1 + i * head + i);
        values[head][token][i] = (float)cos(token * 0.3 + i);
      }
    }
  }
  tqcache_tensor k = TQCACHE_INIT(tqcache_tensor);
  k.data = keys;
  k.dtype = TQCACHE_F32;
  k.n_heads = kHeads;
  k.n_tokens = kTokens;
  k.head_dim = kDim;
  tqcache_tensor v = k;
  v.data = values;

  /* Write it, quantized to 4 bits. */
  tqcache_writer* writer = NULL;
  check(tqcache_writer_new(tokens, kTokens, NULL, &writer, &error), error);
  check(tqcache_writer_attention(writer, &k, &v, &error), error);
  tqcache_cache* made = NULL;
  check(tqcache_writer_cache(writer, &made, &error), error);
  tqcache_convert_options options = TQCACHE_INIT(tqcache_convert_options);
  options.config = "turbo4";
  options.overwrite = 1;
  check(tqcache_convert(made, argv[1], &options, &error), error);
  tqcache_close(made);
  tqcache_writer_free(writer);

  tqcache_verified verified = TQCACHE_INIT(tqcache_verified);
  check(tqcache_verify(argv[1], NULL, &verified, &error), error);
  tqcache_bytes_free(verified.damage);

  /* Read the keys again. */
  tqcache_cache* cache = NULL;
  check(tqcache_open(argv[1], NULL, &cache, &error), error);
  static float again[kHeads][kTokens][kDim];
  tqcache_tensor out = k;
  out.data = again;
  check(tqcache_read(cache, 0, TQCACHE_KEYS, 0, &out, 0, &error), error);
  tqcache_close(cache);
  double difference = 0, length = 0;
  for (int i = 0; i < kHeads * kTokens * kDim; ++i) {
    const double x = (&keys[0][0][0])[i], y = (&again[0][0][0])[i];
    difference += (x - y) * (x - y);
    length += x * x;
  }
  printf("%d tokens, %d damaged, error of keys %.3f\n", (int)verified.n_tokens,
         (int)verified.n_damage, sqrt(difference / length));
  return sqrt(difference / length) < 0.2 ? TQCACHE_OK : TQCACHE_FAILED;
}
