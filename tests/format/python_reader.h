#pragma once
// format/python_reader.h: the second reader of the file format, in Python.
//
//   const ReaderOutcome told = run_reader("'" + path + "'");

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace tqcache::test {

// Debian's interpreter has the modules with which the reader checks compressed sections
// (tools/install-deps.sh); another one may come before it in PATH.
inline const std::string& python() {
  static const std::string chosen =
      std::system("/usr/bin/python3 -c 'import xxhash, zstandard' > /dev/null 2>&1") == 0
          ? "/usr/bin/python3"
          : "python3";
  return chosen;
}

inline bool have_python() {
  return std::system((python() + " --version > /dev/null 2>&1").c_str()) == 0;
}

struct ReaderOutcome {
  int status = 0;
  std::string output;  // JSON, or what it says of an error
};

// `arguments`: as a shell takes them; `environment`: "NAME='value' ", or empty.
inline ReaderOutcome run_reader(const std::string& arguments, const std::string& environment = "") {
  const std::string command =
      environment + python() + " '" TQCACHE_PYTHON_READER "' " + arguments + " 2>&1";
  ReaderOutcome outcome;
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen failed");
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, n);
  }
  outcome.status = ::pclose(pipe);
  return outcome;
}

}  // namespace tqcache::test
