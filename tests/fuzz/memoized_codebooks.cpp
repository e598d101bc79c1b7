// Codebooks of TurboMLX, each computed once: one takes milliseconds, and a thousand inputs ask for
// the same few. Linked in the place of the library's own (CMakeLists.txt).

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tqcache::interop {

std::vector<float> real_codebook(int head_dim, int bits) __asm__(
    "__real__ZN7tqcache7interop17turbomlx_codebookEii");

std::vector<float> kept_codebook(int head_dim, int bits) __asm__(
    "__wrap__ZN7tqcache7interop17turbomlx_codebookEii");

std::vector<float> kept_codebook(int head_dim, int bits) {
  static std::mutex mutex;
  static std::map<std::pair<int, int>, std::vector<float>> kept;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = kept.try_emplace({head_dim, bits});
  if (is_new) place->second = real_codebook(head_dim, bits);
  return place->second;
}

}  // namespace tqcache::interop
