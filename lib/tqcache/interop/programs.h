#pragma once
// interop/programs.h: what each program writes: the one table of marks by which its files are told,
// and of what can be done with them.
//
//   TQC_TRY_ASSIGN(const std::optional<NamedFile> named, name_file(*file));
//   if (named) print(named->words());    // "a prompt of mlx-vlm's prefix cache ..., not read; ..."
//
// A file is read if an importer knows it (FileKind); this names those that none reads, and says of
// all what tqcache does with them. Safe for untrusted input.
//
// Spec: docs/reference/programs.md.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::interop {

// Where a mark stands.
enum class MarkIn : std::uint8_t {
  kStart,       // bytes at `offset` of the file
  kPickle,      // a text in the first bytes of a pickle
  kMetadata,    // key of the metadata of a safetensors file; its value begins with `value`
  kOnlyTensor,  // name of the only tensor of a safetensors file
  kAnyTensor,   // the name of a tensor of a safetensors file ends with it
  kClass,       // class of a cache object of mlx-lm; `value`: how many numbers it has, or any
};

struct ProgramMark {
  MarkIn in;
  std::string_view mark;
  std::string_view value;    // see MarkIn
  std::string_view program;  // "mlx-vlm"
  std::string_view version;  // what the mark says of it: "1"; "*": the value of the metadata
  std::string_view holds;    // "a prompt of its prefix cache"
  std::string_view advice;   // what to do instead of reading it
  std::size_t offset = 0;    // of kStart
};

// All marks, in the order in which they are tried.
std::span<const ProgramMark> program_marks();

// A file, or a cache in it, that is recognized and not read.
struct NamedFile {
  std::string program;
  std::string version;  // printable; empty: the file does not say it
  std::string holds;
  std::string advice;

  // "a prompt of its prefix cache, of mlx-vlm, version 2: not read; save it with ..."
  std::string words() const;
};

// Of a file that no importer reads; nullopt: not known either. Errors: those of reading.
Result<std::optional<NamedFile>> name_file(const ByteSource& file);

// The parts of name_file(): by the first bytes; by metadata, tensors and classes; of a pickle.
Result<std::optional<NamedFile>> name_by_start(const ByteSource& file);
std::optional<NamedFile> name_safetensors(const tensors::SafetensorsIndex& index);
Result<std::optional<NamedFile>> name_pickled(const ByteSource& file);
// A class of mlx-lm's caches that no importer knows, with `n_numbers` numbers.
std::optional<NamedFile> name_class(std::string_view class_name, std::size_t n_numbers);

// What tqcache does with files of a kind that it reads: "read; written by convert --to mlx-lm".
std::string_view what_can_be_done(FileKind kind);

}  // namespace tqcache::interop
