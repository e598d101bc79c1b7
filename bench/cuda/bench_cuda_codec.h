#pragma once
// bench_cuda_codec.h: the speed of encoding and decoding. Part of bench_cuda.cpp, in its anonymous
// namespace.

struct CodecSetting {
  int head_dim, bits;
  codec::BlockOrder order;
  Dtype dtype;
  enum Mean { kNone, kPlain, kTurns } mean;
};

// Rows of 1 GiB in f16. Bytes counted: read and written.
void bench_codec(const CodecSetting& s, double copy) {
  constexpr int kHeads = 8;
  const auto device = must(cuda::DeviceCodec::make(make_codec(s.head_dim, s.bits, s.order)));
  const std::size_t vector = static_cast<std::size_t>(s.head_dim) * dtype_size(s.dtype);
  const std::size_t n_tokens =
      (std::size_t{1} << 29) / (static_cast<std::size_t>(s.head_dim) * kHeads) / 256 * 256;
  const std::size_t row_bytes = n_tokens * kHeads * vector;
  const auto page = static_cast<std::size_t>(device.page_bytes(kHeads));
  const std::size_t n_pages = n_tokens / 256;
  const Memory rows(row_bytes), pages(n_pages * page), status(4);
  std::vector<std::uint32_t> values(4 << 20);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (auto& value : values) {
    const float a = normal(random), b = normal(random);
    if (s.dtype == Dtype::kF32) {
      std::memcpy(&value, &a, 4);
    } else {
      value = static_cast<std::uint32_t>(f32_to_f16(a)) | static_cast<std::uint32_t>(f32_to_f16(b))
                                                              << 16;
    }
  }
  for (std::size_t at = 0; at < row_bytes; at += values.size() * 4) {
    must(cudaMemcpy(rows.at(at), values.data(), std::min(values.size() * 4, row_bytes - at),
                    cudaMemcpyHostToDevice));
  }
  must(cudaMemset(status.data, 0xff, 4));
  const auto n_pairs = static_cast<std::size_t>(s.head_dim / 2);
  std::vector<float> mean(static_cast<std::size_t>(kHeads * s.head_dim)), cos, sin;
  for (float& x : mean) x = normal(random);
  const std::vector<double> turns = rope_turns(s.head_dim);
  for (int j = 0; j < 256; ++j) {
    for (const double turn : turns) {
      cos.push_back(static_cast<float>(std::cos(6.283185307179586 * turn * j)));
      sin.push_back(static_cast<float>(std::sin(6.283185307179586 * turn * j)));
    }
  }
  const auto on_device = [](const auto& from) {
    auto memory = std::make_unique<Memory>(from.size() * sizeof(from[0]));
    must(cudaMemcpy(memory->data, from.data(), memory->size, cudaMemcpyHostToDevice));
    return memory;
  };
  const auto d_mean = on_device(mean), d_cos = on_device(cos), d_sin = on_device(sin),
             d_turns = on_device(turns);
  cuda::Centering center;
  if (s.mean != CodecSetting::kNone) {
    center = {static_cast<const float*>(d_mean->data),
              s.mean == CodecSetting::kTurns ? static_cast<int>(n_pairs) : 0,
              static_cast<const double*>(d_turns->data), static_cast<const float*>(d_cos->data),
              static_cast<const float*>(d_sin->data)};
  }
  const cuda::TokenRun run{static_cast<std::int64_t>(n_tokens), 0, kHeads, 0, nullptr};
  const Memory workspace(
      std::max<std::size_t>(cuda::codec_workspace_bytes(device, center, run), 16));
  const cuda::DenseRows dense{rows.data, s.dtype, std::int64_t{kHeads} * s.head_dim, s.head_dim};
  const cuda::PackedPages packed{pages.at(), static_cast<std::int64_t>(page), nullptr};
  const double bytes = static_cast<double>(row_bytes + n_pages * page);
  const double encoding = seconds([&](int) {
    must(cuda::encode(device, dense, run, center, packed, workspace.data,
                      static_cast<std::uint32_t*>(status.data), nullptr));
  });
  const double decoding = seconds([&](int) {
    must(cuda::decode(device, packed, run, center, dense, workspace.data, nullptr));
  });
  std::uint32_t word = 0;
  must(cudaMemcpy(&word, status.data, 4, cudaMemcpyDeviceToHost));
  must(cuda::encode_status(word));
  static constexpr const char* kMeans[] = {"none", "after RoPE", "before RoPE"};
  std::printf("| %d | %d | %s | %s | %s | %.0f | %.1f | %.0f | %.1f |\n", s.head_dim, s.bits,
              s.order == codec::BlockOrder::kKeys ? "keys" : "values",
              std::string(dtype_name(s.dtype)).c_str(), kMeans[s.mean], bytes / encoding * 1e-9,
              100 * bytes / encoding / copy, bytes / decoding * 1e-9,
              100 * bytes / decoding / copy);
  std::fflush(stdout);
}

void print_codec_head() {
  std::printf(
      "\n| head_dim | bits | of | rows | mean | encode GB/s | %% of copy | decode GB/s | %% of "
      "copy |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
}

void bench_all_codec(double copy) {
  print_codec_head();
  constexpr auto kKeys = codec::BlockOrder::kKeys, kValues = codec::BlockOrder::kValues;
  for (const auto mean : {CodecSetting::kNone, CodecSetting::kPlain, CodecSetting::kTurns}) {
    bench_codec({128, 4, kKeys, Dtype::kF16, mean}, copy);
  }
  bench_codec({128, 4, kValues, Dtype::kF16, CodecSetting::kNone}, copy);
  bench_codec({128, 4, kValues, Dtype::kF16, CodecSetting::kPlain}, copy);
  for (const int bits : {2, 3, 8}) {
    bench_codec({128, bits, kKeys, Dtype::kF16, CodecSetting::kTurns}, copy);
    bench_codec({128, bits, kValues, Dtype::kF16, CodecSetting::kPlain}, copy);
  }
  for (const int head_dim : {64, 80, 96, 112, 160, 192, 256}) {
    bench_codec({head_dim, 4, kKeys, Dtype::kF16, CodecSetting::kTurns}, copy);
  }
  bench_codec({128, 4, kKeys, Dtype::kF32, CodecSetting::kTurns}, copy);
}
