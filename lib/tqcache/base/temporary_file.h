#pragma once
// base/temporary_file.h: the file that a new file is, before it has its name.
//
// Only for the sources of base: everyone else writes through base/file.h.

#include <string>
#include <utility>

#include "tqcache/base/descriptor.h"
#include "tqcache/base/result.h"

namespace tqcache {

// Taken away with its object, unless it has got its name by then.
class TemporaryFile {
 public:
  TemporaryFile() = default;
  // Makes one for a writer of `name`: ".NAME.tmp-XXXXXX", or ".tqcache-XXXXXX" where that would be
  // too long a name. It is 0600, open for reading and writing, and locked where the file system has
  // locks. Before, it takes away those of the same kind that nobody has locked: their writers were
  // killed. `folder` must outlive the object.
  // Errors: kIo.
  static Result<TemporaryFile> make(const Descriptor& folder, const std::string& name);

  TemporaryFile(TemporaryFile&& other) noexcept { swap(other); }
  TemporaryFile& operator=(TemporaryFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~TemporaryFile() { remove(); }

  Descriptor& file() { return file_; }
  const std::string& name() const { return name_; }  // in the folder; empty when there is none

  // The file is taken away while it is still locked, and then closed.
  void remove();
  // The file has been renamed.
  void has_its_name() { name_.clear(); }

 private:
  TemporaryFile(int folder, std::string name) : folder_(folder), name_(std::move(name)) {}
  void swap(TemporaryFile& other) noexcept;
  int create();  // gives an errno, or 0
  Result<bool> claim();

  int folder_ = -1;
  std::string name_;
  Descriptor file_;
};

}  // namespace tqcache
