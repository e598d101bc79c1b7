#pragma once
// tqcache/predict.h: profiles of models, version 2, which predict the keys and values of a layer
// from those of the layers before it.
//
//   TQC_TRY_ASSIGN(const auto profile, tqcache::predict::read_profile("model.tqprofile"));
//   tqcache::predict::Profiles profiles;
//   profiles.add(profile);  // archives that name it can now be read: format::Access
//
// Safe for untrusted input.
//
// Spec: docs/reference/profile.md, "Version 2"; docs/reference/codec.md §11.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"

namespace tqcache::predict {

inline constexpr std::int64_t kMaxDepth = 8;
inline constexpr std::int64_t kMaxFeatures = 1024;
inline constexpr std::int64_t kMaxVocabulary = 1 << 20;
inline constexpr std::int64_t kMaxChannels = 2048;  // n_kv_heads * head_dim
inline constexpr std::size_t kMaxCurvePoints = 64;
inline constexpr std::uint64_t kMaxProfileBytes = std::uint64_t{1} << 30;

// Keys or values of one layer: all kv heads side by side, D channels, keys before RoPE.
struct TensorProfile {
  std::vector<float> mean;           // [D]
  std::vector<float> unit;           // [D] of the channel as an input, above 0
  std::vector<std::int8_t> weights;  // [inputs, D]
  std::vector<float> weight_scale;   // [D]
  std::vector<std::int8_t> map;      // [D, D], row i for component i of the residual
  std::vector<float> map_scale;      // [D]
  std::vector<float> deviation;      // [D] standard deviation of components, for a step of 1
  float explained = 0;               // fraction of the variance, for display
  float sensitivity = 0;             // for display
};

// A measured divergence.
struct CurvePoint {
  float step = 0;
  float kld = 0;  // mean, in nats
};

struct Profile {
  std::string architecture;
  std::string model_name;
  Sha256 weights_fingerprint{};
  Sha256 tokenizer_fingerprint{};
  std::int64_t n_layers = 0;
  cache::HeadShape shape;
  std::int64_t depth = 0;              // earlier layers that a layer is predicted from
  std::int64_t n_features = 0;         // of a token
  std::int64_t vocab_size = 0;         // 0 without features
  std::vector<std::int8_t> features;   // [vocab_size, n_features]
  std::vector<TensorProfile> tensors;  // keys and values of layer 0, of layer 1, ...
  std::uint64_t n_tokens = 0;          // of the calibration
  std::vector<CurvePoint> curve;       // both ascending; may be empty
  // For codes in memory; archives do not use them. cache::read_calibration() reads them, too.
  // Empty: older profiles.
  std::vector<std::vector<std::int8_t>> key_factors;  // [n_layers], cache::Calibration::key_factors
  std::vector<float> key_losses;                      // [n_layers], eval::Profile::key_losses

  std::int64_t channels() const { return shape.n_kv_heads * shape.head_dim; }
  // Number of inputs of the predictor of tensors[tensor]: keys and values of up to `depth` earlier
  // layers, the features, and for values the keys of the layer.
  std::int64_t n_inputs(std::size_t tensor) const;
};

// The file. Requires: check(profile).
Bytes profile_bytes(const Profile& profile);

// Errors: kCorrupt, kUnsupported (a later version), kTooLarge; kMismatch for a profile of version
//         1, which has no predictors.
Result<Profile> parse_profile(ByteView file);

// The SHA-256 in the first line, by which archives name the profile. Requires: a valid file.
Sha256 profile_digest(ByteView file);

// Whether these are the first bytes of a profile of version 2 or later.
bool looks_like_profile(ByteView file);

// A profile that is ready for use.
class Predictor;

// Errors: those of the file and of parse_profile(); kTooLarge (`memory`).
Result<std::shared_ptr<const Predictor>> read_profile(const std::filesystem::path& path,
                                                      const MemoryBudget& memory = {});

// Profiles that archives may name. Copies share those that are known; each looks into its own
// folder. Threads: any.
class Profiles {
 public:
  Profiles();  // none

  void add(std::shared_ptr<const Predictor> predictor);

  // The same profiles, and those of a folder, which is looked into when one is needed.
  Profiles with_folder(std::filesystem::path folder) const;

  // The profile with this digest. One that is read from the folder stays known.
  // Errors: kUnsupported if there is none; those of the file that has it, and of read_profile().
  Result<std::shared_ptr<const Predictor>> find(const Sha256& digest,
                                                const MemoryBudget& memory = {}) const;

 private:
  struct Known;
  std::shared_ptr<Known> known_;
  std::filesystem::path folder_;  // empty: none
};

// Checks that caches of this description can be predicted with the profile.
// Errors: kMismatch (another model), kUnsupported (windows, recurrent state, hidden tokens, tokens
//         without features). The message says why.
Result<void> check_profile(const Profile& profile, const cache::CacheDesc& cache);

}  // namespace tqcache::predict
