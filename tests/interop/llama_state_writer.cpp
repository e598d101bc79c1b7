#include "llama_state_writer.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace tqcache::test {
namespace {

using interop::LlamaFile;
using interop::LlamaGeometry;
using interop::LlamaLayer;
using interop::LlamaLayerKind;
using interop::LlamaOutputs;
using interop::LlamaRowType;

using Layers = std::vector<std::size_t>;

void write_words(ByteWriter& out, const std::vector<std::int32_t>& words) {
  for (const std::int32_t word : words) out.write(word);
}

void write_tokens(ByteWriter& out, const StateSpec& spec) {
  const auto n = static_cast<std::uint32_t>(spec.tokens.size());
  ByteWriter media;
  for (const auto& [first, chunk] : spec.media) media.write(first);
  for (const auto& [first, chunk] : spec.media) {
    media.write(static_cast<std::uint32_t>(chunk.size()));
    media.append(as_bytes(chunk));
  }
  while (media.bytes().size() % 4 != 0) media.write(std::uint8_t{0});
  const auto n_words = static_cast<std::uint32_t>(media.bytes().size() / 4);
  out.write<std::uint32_t>(spec.wrapped ? n + 4 + n_words : n);
  if (spec.wrapped) write_words(out, {-1, 1, static_cast<std::int32_t>(n)});
  write_words(out, spec.tokens);
  if (spec.wrapped) out.write(spec.n_media);
  out.append(media.bytes());
}

void write_head(ByteWriter& out, const StateSpec& spec) {
  out.write(static_cast<std::uint32_t>(spec.architecture.size()));
  out.append(as_bytes(spec.architecture));
  if (spec.profile.outputs == LlamaOutputs::kNone) return;
  if (spec.profile.outputs == LlamaOutputs::kRngAndOutputs) {
    const std::string rng = "5489 1301868182 2938499221";
    out.write(static_cast<std::uint32_t>(rng.size()));
    out.append(as_bytes(rng));
  }
  out.write<std::uint32_t>(2);
  write_words(out, {0, 1});
  for (const std::uint64_t n : {10U, 3U}) {
    out.write(n);
    for (std::uint64_t i = 0; i < n; ++i) out.write(static_cast<float>(i));
  }
}

void write_cells(ByteWriter& out, const StateSpec& spec, std::uint64_t ext,
                 const std::vector<std::int32_t>& positions, std::vector<std::int32_t> ids) {
  out.write(static_cast<std::uint32_t>(positions.size()));
  for (std::size_t i = 0; i < spec.cells.size(); ++i) {
    const auto& [position, column, row] = spec.cells[i];
    out.write(position);
    out.write(static_cast<std::uint32_t>(ids.size()));
    if (ext >= 8) write_words(out, {column, row});
    if (ext >= 12) out.write(spec.tokens[i]);
    write_words(out, ids);
  }
  if (!spec.cells.empty()) return;
  for (const std::int32_t position : positions) {
    out.write(position);
    out.write(static_cast<std::uint32_t>(ids.size()));
    const bool is_last = position == positions.back();
    const auto [x, y] =
        spec.last_coordinates && is_last ? *spec.last_coordinates : std::pair(position, position);
    if (ext >= 8) write_words(out, {x, y});
    if (ext >= 12) out.write(spec.tokens[static_cast<std::size_t>(position)]);
    write_words(out, ids);
  }
}

Layers layers_of(const LlamaGeometry& model, std::initializer_list<LlamaLayerKind> kinds) {
  Layers layers;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (std::ranges::count(kinds, model.layers[i].kind) > 0) layers.push_back(i);
  }
  return layers;
}

std::int64_t row_values(const LlamaLayer& layer, bool is_key) {
  return layer.n_kv_heads * (is_key ? layer.k_head_dim : layer.v_head_dim);
}

void write_rows(ByteWriter& out, const LlamaGeometry& model, const StateSpec& spec,
                const Layers& layers, bool is_key, const std::vector<std::int32_t>& positions) {
  const LlamaRowType* type = interop::find_row_type(is_key ? spec.k_type : spec.v_type);
  for (const std::size_t layer : layers) {
    const auto n_values = static_cast<std::uint64_t>(row_values(model.layers[layer], is_key));
    out.write(type->id);
    out.write(interop::row_bytes(*type, n_values));
    for (const std::int32_t position : positions) {
      out.append(state_row(model, spec, layer, is_key, position));
    }
  }
}

void write_transposed(ByteWriter& out, const LlamaGeometry& model, const StateSpec& spec,
                      const Layers& layers, const std::vector<std::int32_t>& positions) {
  const LlamaRowType* type = interop::find_row_type(spec.v_type);
  for (const std::size_t layer : layers) {
    const auto n_values = static_cast<std::uint32_t>(row_values(model.layers[layer], false));
    out.write(type->id);
    out.write(static_cast<std::uint32_t>(type->block_bytes));
    out.write(n_values);
    std::vector<Bytes> rows;
    for (const std::int32_t position : positions) {
      rows.push_back(state_row(model, spec, layer, false, position));
    }
    for (std::uint32_t i = 0; i < n_values; ++i) {
      for (const Bytes& row : rows) {
        out.append(ByteView(row).subspan(i * type->block_bytes, type->block_bytes));
      }
    }
  }
}

void write_attention(ByteWriter& out, const LlamaGeometry& model, const StateSpec& spec,
                     const Layers& layers, const std::vector<std::int32_t>& positions) {
  if (spec.profile.has_streams) {
    out.write(spec.n_streams);
    for (std::uint32_t i = 1; i < spec.n_streams; ++i) out.write<std::uint32_t>(0);
  }
  write_cells(out, spec, spec.profile.cell_ext, positions, spec.ids);
  if (positions.empty()) return;
  out.write<std::uint32_t>(spec.transposed ? 1 : 0);
  out.write(static_cast<std::uint32_t>(layers.size()));
  if (spec.profile.has_rotations) {
    for (const bool is_key : {true, false}) {
      const std::int64_t run =
          layers.empty() ? 0 : state_rotation(model, spec, layers.front(), is_key);
      out.write(static_cast<std::uint32_t>(run));
    }
  }
  write_rows(out, model, spec, layers, true, positions);
  if (spec.transposed) {
    write_transposed(out, model, spec, layers, positions);
  } else {
    write_rows(out, model, spec, layers, false, positions);
  }
}

void write_states(ByteWriter& out, const LlamaGeometry& model, const Layers& layers, bool is_r,
                  const std::vector<std::int32_t>& positions) {
  for (const std::size_t layer : layers) {
    const std::uint64_t n = is_r ? model.layers[layer].r_values : model.layers[layer].s_values;
    out.write<std::uint32_t>(0);
    out.write<std::uint64_t>(n * sizeof(float));
    for (const std::int32_t position : positions) {
      for (std::uint64_t i = 0; i < n; ++i) {
        out.write(state_value(layer, is_r, position, static_cast<std::int64_t>(i)));
      }
    }
  }
}

void write_recurrent(ByteWriter& out, const LlamaGeometry& model, const StateSpec& spec,
                     const Layers& layers) {
  const bool has_ids = spec.kind == LlamaFile::kSession;
  write_cells(out, spec, 0, spec.recurrent_positions,
              has_ids ? spec.ids : std::vector<std::int32_t>());
  out.write<std::uint32_t>(0);
  out.write(static_cast<std::uint32_t>(model.layers.size()));
  write_states(out, model, layers, true, spec.recurrent_positions);
  write_states(out, model, layers, false, spec.recurrent_positions);
}

}  // namespace

StateSpec plain_spec(const LlamaGeometry& model, std::int64_t n) {
  StateSpec spec;
  spec.positions.resize(static_cast<std::size_t>(n));
  std::iota(spec.positions.begin(), spec.positions.end(), 0);
  for (const std::int32_t position : spec.positions) spec.tokens.push_back(7 * position % 1000);
  const std::int64_t first = std::max<std::int64_t>(0, n - model.window);
  spec.window_positions.assign(spec.positions.begin() + first, spec.positions.end());
  spec.recurrent_positions = {static_cast<std::int32_t>(n - 1)};
  return spec;
}

float state_value(std::size_t layer, bool is_key, std::int64_t position, std::int64_t component) {
  std::uint64_t x = layer * 2 + (is_key ? 1 : 0);
  for (const std::int64_t part : {position, component}) {
    x = (x ^ static_cast<std::uint64_t>(part)) * 0x9e3779b97f4a7c15;
    x ^= x >> 29;
  }
  return static_cast<float>(x >> 40) / static_cast<float>(1 << 23) - 1;
}

std::int64_t state_rotation(const LlamaGeometry& model, const StateSpec& spec, std::size_t layer,
                            bool is_key) {
  const LlamaLayer& shape = model.layers[layer];
  const LlamaRowType* type = interop::find_row_type(is_key ? spec.k_type : spec.v_type);
  if (!spec.rotated || type->dense) return 0;
  return is_key ? interop::key_rotation_size(shape.k_head_dim)
                : interop::value_rotation_size(shape.v_head_dim);
}

Bytes state_row(const LlamaGeometry& model, const StateSpec& spec, std::size_t layer, bool is_key,
                std::int64_t position) {
  const LlamaLayer& shape = model.layers[layer];
  const std::int64_t head_dim = is_key ? shape.k_head_dim : shape.v_head_dim;
  const LlamaRowType* type = interop::find_row_type(is_key ? spec.k_type : spec.v_type);
  std::vector<float> values(static_cast<std::size_t>(row_values(shape, is_key)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = state_value(layer, is_key, position, static_cast<std::int64_t>(i));
  }
  const auto n = static_cast<std::size_t>(head_dim);
  for (std::size_t at = 0; is_key && model.interleaved_keys && at < values.size(); at += n) {
    interop::to_interleaved(model.n_rot, sizeof(float),
                            std::as_writable_bytes(std::span(values).subspan(at, n)));
  }
  const std::int64_t run = state_rotation(model, spec, layer, is_key);
  if (run != 0) interop::hadamard(run, values);
  Bytes row(interop::row_bytes(*type, values.size()));
  interop::encode_row(*type, values, row);
  return row;
}

Bytes write_state(const LlamaGeometry& model, const StateSpec& spec) {
  using enum LlamaLayerKind;
  ByteWriter out;
  out.write<std::uint32_t>(spec.kind == LlamaFile::kSession ? 0x6767736e : 0x67677371);
  out.write(spec.version);
  write_tokens(out, spec);
  if (spec.kind == LlamaFile::kSession) write_head(out, spec);
  const Layers full = layers_of(model, {kAttention}), windows = layers_of(model, {kSlidingWindow});
  const bool apart = spec.profile.windows_are_apart && !windows.empty();
  const Layers first = apart ? full : layers_of(model, {kAttention, kSlidingWindow});
  if (apart || !first.empty()) write_attention(out, model, spec, first, spec.positions);
  if (apart) write_attention(out, model, spec, windows, spec.window_positions);
  const Layers recurrent = layers_of(model, {kRecurrent});
  if (!recurrent.empty()) write_recurrent(out, model, spec, recurrent);
  return std::move(out).take();
}

}  // namespace tqcache::test
