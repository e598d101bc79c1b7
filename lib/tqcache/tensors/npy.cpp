#include "tqcache/tensors/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/error.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::tensors {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxNpyDims = 32;
constexpr std::size_t kAlignment = 64;

struct ItemType {
  std::string_view descr;
  std::uint64_t bytes;
  TensorType type;
};

constexpr std::array kItemTypes = {
    ItemType{"<f2", 2, TensorType::kF16}, ItemType{"<f4", 4, TensorType::kF32},
    ItemType{"<f8", 8, TensorType::kF64}, ItemType{"|i1", 1, TensorType::kI8},
    ItemType{"<i2", 2, TensorType::kI16}, ItemType{"<i4", 4, TensorType::kI32},
    ItemType{"<i8", 8, TensorType::kI64}, ItemType{"|u1", 1, TensorType::kU8},
    ItemType{"<u2", 2, TensorType::kU16}, ItemType{"<u4", 4, TensorType::kU32},
    ItemType{"<u8", 8, TensorType::kU64}, ItemType{"|b1", 1, TensorType::kBool},
};

std::optional<std::uint64_t> number_of(std::string_view digits) {
  std::uint64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, failure] = std::from_chars(digits.data(), end, number);
  if (digits.empty() || failure != std::errc() || stop != end) return std::nullopt;
  return number;
}

// Bytes of one value. Texts have a fixed length: "|S12" has 12 bytes, "<U5" five 32-bit characters.
Result<ItemType> item_type_of(std::string_view descr) {
  const auto found = std::ranges::find(kItemTypes, descr, &ItemType::descr);
  if (found != kItemTypes.end()) return *found;
  const bool is_words = descr.starts_with("<U");
  if (is_words || descr.starts_with("|S")) {
    const auto length = number_of(descr.substr(2));
    const auto bytes = length ? checked_mul(*length, is_words ? 4 : 1) : std::nullopt;
    if (bytes) return ItemType{{}, *bytes, TensorType::kOther};
  }
  return unsupported("values of type " + printable_name(descr));
}

// Parser of the header's text: a Python dict with exactly the keys descr, fortran_order and shape.
class DictParser {
 public:
  explicit DictParser(std::string_view text) : rest_(text) {}

  Result<NpyHeader> parse() {
    TQC_TRY(expect('{'));
    while (!skip('}')) {
      TQC_TRY_ASSIGN(const std::string_view key, read_text());
      TQC_TRY(expect(':'));
      TQC_TRY(read_value(key));
      if (skip(',')) continue;
      TQC_TRY(expect('}'));
      break;
    }
    skip_spaces();
    if (!rest_.empty()) return corrupt("header: bytes after the dict");
    if (!descr_ || !has_order_ || !shape_) return corrupt("header: a key is missing");
    NpyHeader header;
    header.descr = std::move(*descr_);
    header.shape = std::move(*shape_);
    return header;
  }

 private:
  void skip_spaces() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) {
      rest_.remove_prefix(1);
    }
  }
  bool skip(char c) {
    skip_spaces();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool skip_word(std::string_view word) {
    skip_spaces();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  Result<void> expect(char c) {
    if (skip(c)) return {};
    return corrupt(std::string("header: no '") + c + "' where one belongs");
  }

  // No escapes: no supported header has a text that needs them.
  Result<std::string_view> read_text() {
    skip_spaces();
    if (!rest_.starts_with('\'') && !rest_.starts_with('"')) {
      return corrupt("header: not a text");
    }
    const std::size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) return corrupt("header: a text without an end");
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    if (text.find('\\') != std::string_view::npos) return corrupt("header: a text with escapes");
    return text;
  }

  Result<void> read_value(std::string_view key) {
    if (key == "descr" && !descr_) return read_descr();
    if (key == "fortran_order" && !has_order_) return read_order();
    if (key == "shape" && !shape_) return read_shape();
    return corrupt("header: key " + printable_name(key) + " is unknown or there twice");
  }

  Result<void> read_descr() {
    if (skip('[')) return unsupported("header: an array of records");
    TQC_TRY_ASSIGN(const std::string_view text, read_text());
    descr_ = std::string(text);
    return {};
  }

  Result<void> read_order() {
    if (skip_word("True")) return unsupported("header: in Fortran order");
    if (!skip_word("False")) return corrupt("header: fortran_order is no bool");
    has_order_ = true;
    return {};
  }

  Result<void> read_shape() {
    TQC_TRY(expect('('));
    shape_.emplace();
    while (!skip(')')) {
      TQC_TRY(read_dimension());
      if (skip(',')) continue;
      if (shape_->size() == 1) return corrupt("header: the shape is no tuple");
      TQC_TRY(expect(')'));
      break;
    }
    return {};
  }

  Result<void> read_dimension() {
    skip_spaces();
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    const auto end = std::ranges::find_if_not(rest_, is_digit);
    const auto size = static_cast<std::size_t>(end - rest_.begin());
    const auto number = number_of(rest_.substr(0, size));
    if (!number) return corrupt("header: a dimension that is no number");
    if (shape_->size() >= kMaxNpyDims) {
      return too_large(fmt::format("header: more than {} dimensions", kMaxNpyDims));
    }
    rest_.remove_prefix(size);
    shape_->push_back(*number);
    return {};
  }

  std::string_view rest_;
  std::optional<std::string> descr_;
  bool has_order_ = false;
  std::optional<std::vector<std::uint64_t>> shape_;
};

// The text between the header length and the values.
Result<std::string> read_dict(ByteReader& in) {
  TQC_TRY_ASSIGN(const std::string magic, in.take_string(kMagic.size()));
  if (magic != kMagic) return corrupt("not a .npy array (bad magic)");
  TQC_TRY_ASSIGN(const auto major, in.read<std::uint8_t>());
  TQC_TRY_ASSIGN(const auto minor, in.read<std::uint8_t>());
  if (major < 1 || major > 3 || minor != 0) {
    return unsupported(fmt::format(".npy version {}.{}", major, minor));
  }
  std::uint64_t size = 0;
  if (major == 1) {
    TQC_TRY_ASSIGN(size, in.read<std::uint16_t>());
  } else {
    TQC_TRY_ASSIGN(size, in.read<std::uint32_t>());
  }
  if (in.position() + size > kMaxNpyHeaderBytes) {
    return too_large(fmt::format("a header of {} bytes", size));
  }
  return in.take_string(size);
}

constexpr std::string_view kSuffix = ".npy";

Result<NpyHeader> read_header(const ZipArchive& zip, std::size_t member) {
  TQC_TRY_ASSIGN(const Bytes start, zip.read_start(member, kMaxNpyHeaderBytes));
  TQC_TRY_ASSIGN(NpyHeader header, parse_npy_header(start));
  const std::uint64_t there = zip.members()[member].bytes - header.data_offset;
  if (header.bytes == there) return header;
  return Error{header.bytes > there ? ErrorCode::kTruncated : ErrorCode::kCorrupt,
               fmt::format("{} bytes where its shape needs {}", there, header.bytes)};
}

}  // namespace

Result<NpyHeader> parse_npy_header(ByteView start) {
  ByteReader in(start);
  TQC_TRY_ASSIGN(const std::string dict, read_dict(in));
  TQC_TRY_ASSIGN(NpyHeader header, DictParser(dict).parse());
  TQC_TRY_ASSIGN(const ItemType item, item_type_of(header.descr));
  const auto count = element_count(header.shape);
  const auto bytes = count ? checked_mul(*count, item.bytes) : std::nullopt;
  if (!bytes) return corrupt("its size does not fit 64 bits");
  header.type = item.type;
  header.bytes = *bytes;
  header.data_offset = in.position();
  return header;
}

Bytes make_npy_header(std::string_view descr, const std::vector<std::uint64_t>& shape) {
  std::string dict = "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    dict += fmt::format("{}{}", (i > 0 ? ", " : ""), shape[i]);
  }
  dict += shape.size() == 1 ? ",), }" : "), }";
  const std::size_t unpadded = kMagic.size() + 2 + sizeof(std::uint16_t) + dict.size() + 1;
  dict.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  dict += '\n';
  ByteWriter out;
  out.append(as_bytes(kMagic));
  out.write(std::uint8_t{1});
  out.write(std::uint8_t{0});
  out.write(static_cast<std::uint16_t>(dict.size()));
  out.append(as_bytes(dict));
  return std::move(out).take();
}

Result<Npz> Npz::open(std::shared_ptr<const ByteSource> file, const ZipLimits& limits) {
  TQC_TRY_ASSIGN(auto zip, ZipArchive::open(std::move(file), limits));
  return open(std::move(zip));
}

Result<Npz> Npz::open(std::unique_ptr<ZipArchive> zip) {
  Npz npz(std::move(zip));
  for (std::size_t i = 0; i < npz.zip_->members().size(); ++i) TQC_TRY(npz.add(i));
  return npz;
}

Result<void> Npz::add(std::size_t member) {
  const std::string& name = zip_->members()[member].name;
  const std::string where = "member " + printable_name(name);
  if (!name.ends_with(kSuffix)) return unsupported(where + ": no array");
  auto header = read_header(*zip_, member);
  if (!header) return in_context(where, std::move(header).error());
  arrays_.emplace(name.substr(0, name.size() - kSuffix.size()),
                  NpzArray{std::move(header).value(), member});
  return {};
}

Result<void> Npz::read_at(const NpzArray& array, std::uint64_t offset,
                          std::span<std::byte> out) const {
  return zip_->read_at(array.member, array.header.data_offset + offset, out);
}

Result<void> Npz::read_all(const NpzArray& array, std::span<std::byte> out) const {
  return zip_->read_end(array.member, out);
}

}  // namespace tqcache::tensors
