// The file of a profile: a line of text with the version and the SHA-256 of the rest, a FlatBuffer.

#include <fmt/format.h>
#include <profile_v2_generated.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>

#include "tqcache/access.h"
#include "tqcache/base/integers.h"
#include "tqcache/file.h"
#include "tqcache/predict/integer_matrix.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/version.h"

namespace tqcache::predict {
namespace {

constexpr std::string_view kFirstWord = "tqcache-profile ";
constexpr std::string_view kVersion = "2";
constexpr std::size_t kHashDigits = 64;
constexpr std::size_t kLineBytes = 83;  // "tqcache-profile 2 ", the digits, a line feed
constexpr float kLeastNumber = 1e-30f, kMostNumber = 1e30f;

std::string_view text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The FlatBuffer behind the first line, whose digest has been compared.
Result<ByteView> checked_body(ByteView file) {
  const std::string_view text = text_of(file);
  if (!text.starts_with(kFirstWord)) {
    return corrupt("not a profile: the file does not begin with \"tqcache-profile\"");
  }
  const std::size_t space = text.find(' ', kFirstWord.size());
  // npos is the largest number.
  if (space > kFirstWord.size() + 8) return corrupt("no version in line 1");
  const std::string_view version = text.substr(kFirstWord.size(), space - kFirstWord.size());
  if (version == "1") {
    return Error{ErrorCode::kMismatch,
                 "a profile of version 1, which has no predictors; make one with tqcache profile "
                 "--depth"};
  }
  if (version != kVersion) {
    return unsupported("unknown profile version; this program reads versions 1 and 2");
  }
  if (text.size() <= kLineBytes || text[kLineBytes - 1] != '\n') {
    return corrupt("truncated in line 1");
  }
  const ByteView body = file.subspan(kLineBytes);
  if (to_hex(sha256(body)) != text.substr(kLineBytes - 1 - kHashDigits, kHashDigits)) {
    return corrupt("its SHA-256 does not match line 1");
  }
  return body;
}

template <class T>
Result<std::vector<T>> read_vector(const flatbuffers::Vector<T>* in, std::uint64_t n,
                                   std::string_view what) {
  if (in == nullptr || in->size() != n) {
    return corrupt(
        fmt::format("{}: {} values instead of {}", what, in == nullptr ? 0 : in->size(), n));
  }
  return std::vector<T>(in->begin(), in->end());
}

Result<std::vector<std::int8_t>> read_bytes(const flatbuffers::Vector<std::int8_t>* in,
                                            std::uint64_t n, std::string_view what) {
  TQC_TRY_ASSIGN(auto values, read_vector(in, n, what));
  if (std::ranges::find(values, std::int8_t{-128}) != values.end()) {
    return corrupt(fmt::format("{}: a value of -128", what));
  }
  return values;
}

// Numbers within +-kMostNumber, or above 0 and within those limits.
Result<std::vector<float>> read_floats(const flatbuffers::Vector<float>* in, std::uint64_t n,
                                       bool is_positive, std::string_view what) {
  TQC_TRY_ASSIGN(auto values, read_vector(in, n, what));
  const auto is_good = [&](float x) {
    return std::abs(x) <= kMostNumber && (!is_positive || x >= kLeastNumber);
  };
  if (!std::ranges::all_of(values, is_good)) {
    return corrupt(fmt::format("{}: a number out of range", what));
  }
  return values;
}

Result<TensorProfile> read_tensor(const fb::Tensor& in, std::uint64_t n_inputs, std::uint64_t dim) {
  TensorProfile tensor;
  TQC_TRY_ASSIGN(tensor.mean, read_floats(in.mean(), dim, false, "mean"));
  TQC_TRY_ASSIGN(tensor.unit, read_floats(in.unit(), dim, true, "unit"));
  TQC_TRY_ASSIGN(tensor.weights, read_bytes(in.weights(), n_inputs * dim, "weights"));
  TQC_TRY_ASSIGN(tensor.weight_scale, read_floats(in.weight_scale(), dim, false, "weight_scale"));
  TQC_TRY_ASSIGN(tensor.map, read_bytes(in.map(), dim * dim, "map"));
  TQC_TRY_ASSIGN(tensor.map_scale, read_floats(in.map_scale(), dim, true, "map_scale"));
  TQC_TRY_ASSIGN(tensor.deviation, read_floats(in.deviation(), dim, true, "deviation"));
  tensor.explained = in.explained();
  tensor.sensitivity = in.sensitivity();
  return tensor;
}

// Both ascending, above 0.
Result<std::vector<CurvePoint>> read_curve(const flatbuffers::Vector<const fb::CurvePoint*>* in) {
  std::vector<CurvePoint> curve;
  if (in == nullptr) return curve;
  if (in->size() > kMaxCurvePoints) return too_large(fmt::format("curve: {} points", in->size()));
  CurvePoint before{kLeastNumber, kLeastNumber};
  for (const fb::CurvePoint* each : *in) {
    const CurvePoint point{each->step(), each->kld()};
    if (!(point.step > before.step && point.step <= kMostNumber && point.kld > before.kld &&
          point.kld <= kMostNumber)) {
      return corrupt("curve: not ascending, or out of range");
    }
    curve.push_back(before = point);
  }
  return curve;
}

// Factors of keys for codes in memory, and what is lost without them.
Result<void> read_factors(const fb::Profile& in, Profile& profile) {
  const auto n_layers = to_u64(profile.n_layers);
  if (const auto* const layers = in.key_factors()) {
    if (layers->size() != n_layers) return corrupt("key_factors: not one list for each layer");
    for (const fb::KeyFactors* const layer : *layers) {
      auto& factors = profile.key_factors.emplace_back();
      if (layer->eighths() == nullptr) continue;
      TQC_TRY_ASSIGN(factors,
                     read_bytes(layer->eighths(), to_u64(profile.channels()), "key_factors"));
    }
  }
  if (in.key_losses() == nullptr) return {};
  TQC_TRY_ASSIGN(profile.key_losses, read_floats(in.key_losses(), n_layers, false, "key_losses"));
  return {};
}

Sha256 to_sha256(const fb::Sha256& in) {
  Sha256 digest;
  std::transform(in.bytes()->begin(), in.bytes()->end(), digest.begin(),
                 [](std::uint8_t byte) { return std::byte{byte}; });
  return digest;
}

fb::Sha256 from_sha256(const Sha256& digest) {
  std::array<std::uint8_t, 32> bytes;
  std::ranges::transform(digest, bytes.begin(),
                         [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  return fb::Sha256(flatbuffers::make_span(bytes));
}

Result<std::int64_t> count_in(std::uint32_t value, std::int64_t low, std::int64_t high,
                              std::string_view what) {
  if (value > high) return too_large(fmt::format("{} {}", value, what));
  if (value < low) return corrupt(fmt::format("{} {}", value, what));
  return std::int64_t{value};
}

Result<void> read_counts(const fb::Profile& in, Profile& profile) {
  TQC_TRY_ASSIGN(profile.n_layers, count_in(in.n_layers(), 1, cache::kMaxLayers, "layers"));
  TQC_TRY_ASSIGN(profile.shape.n_kv_heads,
                 count_in(in.n_kv_heads(), 1, cache::kMaxKvHeads, "kv heads"));
  TQC_TRY_ASSIGN(profile.shape.head_dim,
                 count_in(in.head_dim(), 1, cache::kMaxHeadDim, "components of a head vector"));
  if (profile.channels() > kMaxChannels) {
    return too_large(fmt::format("{} channels", profile.channels()));
  }
  TQC_TRY_ASSIGN(profile.depth, count_in(in.depth(), 0, kMaxDepth, "earlier layers"));
  TQC_TRY_ASSIGN(profile.n_features, count_in(in.n_features(), 0, kMaxFeatures, "features"));
  TQC_TRY_ASSIGN(profile.vocab_size,
                 count_in(in.vocab_size(), profile.n_features > 0 ? 1 : 0,
                          profile.n_features > 0 ? kMaxVocabulary : 0, "tokens with features"));
  if (profile.n_inputs(static_cast<std::size_t>(2 * profile.n_layers - 1)) >
      static_cast<std::int64_t>(kMaxMatrixRows)) {
    return too_large("more than 8192 inputs of a predictor");
  }
  if (in.tensors()->size() != static_cast<std::uint64_t>(2 * profile.n_layers)) {
    return corrupt("tensors: not two for each layer");
  }
  return {};
}

// The digest in the first line; nullopt if these are not the first bytes of a profile of version 2.
std::optional<std::string_view> digest_text(std::string_view text) {
  if (text.size() < kLineBytes || !text.starts_with(kFirstWord)) return std::nullopt;
  if (!text.substr(kFirstWord.size()).starts_with("2 ")) return std::nullopt;
  return text.substr(kLineBytes - 1 - kHashDigits, kHashDigits);
}

// The file in the folder whose first line has this digest; empty if there is none.
std::filesystem::path file_with(const std::filesystem::path& folder, const std::string& digest) {
  std::error_code error;
  for (std::filesystem::directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    const auto source = open_file(each->path());
    if (!source || (*source)->size() < kLineBytes) continue;
    std::array<std::byte, kLineBytes> line;
    if (!(*source)->read_at(0, line)) continue;
    if (digest_text(text_of(line)) == digest) return each->path();
  }
  return {};
}

}  // namespace

Bytes profile_bytes(const Profile& profile) {
  flatbuffers::FlatBufferBuilder out;
  std::vector<flatbuffers::Offset<fb::Tensor>> tensors;
  for (const TensorProfile& tensor : profile.tensors) {
    const auto mean = out.CreateVector(tensor.mean);
    const auto unit = out.CreateVector(tensor.unit);
    const auto weights = out.CreateVector(tensor.weights);
    const auto weight_scale = out.CreateVector(tensor.weight_scale);
    const auto map = out.CreateVector(tensor.map);
    const auto map_scale = out.CreateVector(tensor.map_scale);
    const auto deviation = out.CreateVector(tensor.deviation);
    tensors.push_back(fb::CreateTensor(out, mean, unit, weights, weight_scale, map, map_scale,
                                       deviation, tensor.explained, tensor.sensitivity));
  }
  const auto all_tensors = out.CreateVector(tensors);
  flatbuffers::Offset<flatbuffers::Vector<std::int8_t>> features;
  if (profile.n_features > 0) features = out.CreateVector(profile.features);
  std::vector<fb::CurvePoint> points;
  for (const CurvePoint& each : profile.curve) points.emplace_back(each.step, each.kld);
  flatbuffers::Offset<flatbuffers::Vector<const fb::CurvePoint*>> curve;
  if (!points.empty()) curve = out.CreateVectorOfStructs(points);
  std::vector<flatbuffers::Offset<fb::KeyFactors>> of_layers;
  for (const std::vector<std::int8_t>& layer : profile.key_factors) {
    flatbuffers::Offset<flatbuffers::Vector<std::int8_t>> eighths;
    if (!layer.empty()) eighths = out.CreateVector(layer);
    of_layers.push_back(fb::CreateKeyFactors(out, eighths));
  }
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<fb::KeyFactors>>> key_factors;
  if (!of_layers.empty()) key_factors = out.CreateVector(of_layers);
  flatbuffers::Offset<flatbuffers::Vector<float>> key_losses;
  if (!profile.key_losses.empty()) key_losses = out.CreateVector(profile.key_losses);
  const auto writer = out.CreateString(fmt::format("tqcache {}", version()));
  const auto architecture = out.CreateString(profile.architecture);
  const auto name = out.CreateString(profile.model_name);
  const fb::Sha256 weights = from_sha256(profile.weights_fingerprint);
  const fb::Sha256 tokenizer = from_sha256(profile.tokenizer_fingerprint);
  const auto count = [](std::int64_t n) { return static_cast<std::uint32_t>(n); };
  fb::FinishProfileBuffer(
      out, fb::CreateProfile(out, writer, architecture, name, &weights, &tokenizer,
                             count(profile.n_layers), count(profile.shape.n_kv_heads),
                             count(profile.shape.head_dim), count(profile.depth),
                             count(profile.n_features), count(profile.vocab_size), features,
                             all_tensors, profile.n_tokens, curve, key_factors, key_losses));
  const ByteView body(reinterpret_cast<const std::byte*>(out.GetBufferPointer()), out.GetSize());
  const std::string line = fmt::format("{}{} {}\n", kFirstWord, kVersion, to_hex(sha256(body)));
  const ByteView first = as_bytes(line);
  Bytes file(first.begin(), first.end());
  file.insert(file.end(), body.begin(), body.end());
  return file;
}

Result<Profile> parse_profile(ByteView file) {
  if (file.size() > kMaxProfileBytes) {
    return too_large(fmt::format("{} bytes: larger than any profile", file.size()));
  }
  TQC_TRY_ASSIGN(const ByteView unaligned, checked_body(file));
  const AlignedBytes body(unaligned.begin(), unaligned.end());
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(body.data());
  flatbuffers::Verifier verifier(bytes, body.size(), 8, 10'000);
  if (body.size() < 8 || !fb::VerifyProfileBuffer(verifier)) {
    return corrupt("not the FlatBuffer of a profile");
  }
  const fb::Profile& in = *fb::GetProfile(bytes);
  Profile profile;
  TQC_TRY(read_counts(in, profile));
  for (const auto* text : {in.architecture(), in.model_name()}) {
    if (text->size() > cache::kMaxTextBytes) return too_large("a name of more than 1024 bytes");
  }
  profile.architecture = in.architecture()->str();
  profile.model_name = in.model_name()->str();
  profile.weights_fingerprint = to_sha256(*in.weights_fingerprint());
  profile.tokenizer_fingerprint = to_sha256(*in.tokenizer_fingerprint());
  profile.n_tokens = in.n_tokens();
  TQC_TRY_ASSIGN(profile.curve, read_curve(in.curve()));
  TQC_TRY(read_factors(in, profile));
  // Tables may refer to the same vector many times, so the sum is limited before copies are made.
  const std::uint64_t dim = to_u64(profile.channels());
  std::uint64_t n_values = to_u64(profile.vocab_size * profile.n_features);
  for (std::size_t i = 0; i < in.tensors()->size(); ++i) {
    n_values += (to_u64(profile.n_inputs(i)) + dim) * dim;
  }
  if (n_values > kMaxProfileBytes) return too_large(fmt::format("{} numbers", n_values));
  if (n_values > body.size()) return corrupt("smaller than the numbers that it states");
  if (profile.n_features > 0) {
    TQC_TRY_ASSIGN(
        profile.features,
        read_bytes(in.features(), to_u64(profile.vocab_size * profile.n_features), "features"));
  }
  for (std::size_t i = 0; i < in.tensors()->size(); ++i) {
    auto tensor = read_tensor(*in.tensors()->Get(static_cast<flatbuffers::uoffset_t>(i)),
                              to_u64(profile.n_inputs(i)), dim);
    if (!tensor) {
      return in_context(fmt::format("layer {} {}", i / 2, i % 2 == 0 ? "k" : "v"),
                        std::move(tensor).error());
    }
    profile.tensors.push_back(std::move(*tensor));
  }
  return profile;
}

Sha256 profile_digest(ByteView file) {
  return sha256(file.subspan(std::min(kLineBytes, file.size())));
}

bool looks_like_profile(ByteView file) {
  const std::string_view text = text_of(file);
  if (!text.starts_with(kFirstWord)) return false;
  const std::string_view version = text.substr(kFirstWord.size());
  return !version.starts_with("1 ") && !version.starts_with("3 ");  // those are text
}

Result<std::shared_ptr<const Predictor>> read_profile(const std::filesystem::path& path,
                                                      const MemoryBudget& memory) {
  // The file, its aligned copy, what is parsed, and 16-bit matrices of it.
  std::error_code error;
  const std::uintmax_t n_bytes = std::filesystem::file_size(path, error);
  if (!error && n_bytes <= kMaxProfileBytes) {
    TQC_TRY(memory.check(5 * std::uint64_t{n_bytes}, "the profile"));
  }
  TQC_TRY_ASSIGN(const Bytes file, read_file(path, kMaxProfileBytes));
  TQC_TRY_ASSIGN(Profile profile, parse_profile(file));
  return std::shared_ptr<const Predictor>(
      std::make_shared<const Predictor>(std::move(profile), profile_digest(file), memory));
}

Result<std::vector<std::shared_ptr<const Predictor>>> profiles_of_model(
    const std::filesystem::path& folder, const Sha256& weights_fingerprint,
    const MemoryBudget& memory) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  std::filesystem::directory_iterator each(folder, error);
  for (; !error && each != std::filesystem::directory_iterator(); each.increment(error)) {
    paths.push_back(each->path());
  }
  if (error) return in_file(folder.string(), Error{ErrorCode::kIo, error.message()});
  std::ranges::sort(paths);
  std::vector<std::shared_ptr<const Predictor>> found;
  for (const std::filesystem::path& path : paths) {
    const auto source = open_file(path);
    if (!source || (*source)->size() < kLineBytes) continue;
    std::array<std::byte, kLineBytes> line;
    if (!(*source)->read_at(0, line) || !looks_like_profile(line)) continue;
    auto read = read_profile(path, memory);
    if (!read) return in_file(path.string(), std::move(read).error());
    if ((*read)->profile().weights_fingerprint != weights_fingerprint) continue;
    found.push_back(std::move(*read));
  }
  return found;
}

struct Profiles::Known {
  std::mutex mutex;
  std::map<Sha256, std::shared_ptr<const Predictor>> by_digest;
};

Profiles::Profiles() : known_(std::make_shared<Known>()) {}

void Profiles::add(std::shared_ptr<const Predictor> predictor) {
  const std::lock_guard lock(known_->mutex);
  const Sha256 digest = predictor->digest();
  known_->by_digest.emplace(digest, std::move(predictor));
}

Profiles Profiles::with_folder(std::filesystem::path folder) const {
  Profiles profiles = *this;
  profiles.folder_ = std::move(folder);
  return profiles;
}

Result<std::shared_ptr<const Predictor>> Profiles::find(const Sha256& digest,
                                                        const MemoryBudget& memory) const {
  const std::lock_guard lock(known_->mutex);
  auto& by_digest = known_->by_digest;
  if (const auto found = by_digest.find(digest); found != by_digest.end()) return found->second;
  const std::string name = to_hex(digest);
  const std::filesystem::path path = folder_.empty() ? folder_ : file_with(folder_, name);
  if (path.empty()) {
    return unsupported(fmt::format(
        "the file needs the profile {}, which is not known: put it into the folder that the "
        "environment variable TQCACHE_PROFILES names",
        name));
  }
  auto read = read_profile(path, memory);
  if (!read) return in_file(path.string(), std::move(read).error());
  if ((*read)->digest() != digest)
    return in_file(path.string(), corrupt("changed while it was read"));
  return by_digest.emplace(digest, std::move(*read)).first->second;
}

Result<void> check_profile(const Profile& profile, const cache::CacheDesc& cache) {
  const cache::Identity& identity = cache.identity;
  const auto differs = [](std::string_view what, const std::string& own, const std::string& other) {
    return mismatch(
        fmt::format("the profile belongs to another model: {} is {}, that of the cache "
                    "is {}",
                    what, own, other));
  };
  if (identity.weights_fingerprint == Sha256{}) {
    return mismatch("the cache does not name its model, so no profile can be matched to it");
  }
  if (identity.adapter_fingerprint) {
    return mismatch("the cache belongs to a model with an adapter, the profile to one without");
  }
  if (profile.weights_fingerprint != identity.weights_fingerprint) {
    return differs("the weights fingerprint", to_hex(profile.weights_fingerprint),
                   to_hex(identity.weights_fingerprint));
  }
  if (profile.tokenizer_fingerprint != identity.tokenizer_fingerprint) {
    return differs("the tokenizer fingerprint", to_hex(profile.tokenizer_fingerprint),
                   to_hex(identity.tokenizer_fingerprint));
  }
  if (std::ssize(cache.layers) != profile.n_layers) {
    return differs("the number of layers", std::to_string(profile.n_layers),
                   std::to_string(cache.layers.size()));
  }
  for (const cache::LayerDesc& layer : cache.layers) {
    const auto* const attention = std::get_if<cache::AttentionDesc>(&layer);
    if (attention == nullptr) return unsupported("the model has layers without full attention");
    if (attention->shape != profile.shape || attention->value_dim != 0) {
      return mismatch("the layers have another shape");
    }
  }
  if (cache.hidden_tokens) return unsupported("the token ids are hidden");
  if (!cache.media.empty()) return unsupported("it holds media, which no profile predicts");
  for (const std::int32_t id : cache.tokens) {
    if (profile.n_features > 0 && id >= profile.vocab_size) {
      return mismatch(fmt::format("token {}: the profile has {} tokens", id, profile.vocab_size));
    }
  }
  return {};
}

}  // namespace tqcache::predict
