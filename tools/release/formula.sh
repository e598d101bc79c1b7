#!/usr/bin/env bash
# Writes the Homebrew formula of a release to standard output, with the sums of build/SHA256SUMS.
#
# usage: tools/release/formula.sh HOMEPAGE DOWNLOADS > tqcache.rb
#   HOMEPAGE   of the project
#   DOWNLOADS  the folder of URLs that has the archives, such as HOMEPAGE/releases/download/v0.2.0
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -eq 2 ] || { sed -n 's/^# \(usage: .*\)/\1/p' "$0" >&2; exit 2; }
version=$(sed -n 's/^project(tqcache VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
formula=$(cat packaging/tqcache.rb.in)
formula=${formula//@HOMEPAGE@/$1}
formula=${formula//@DOWNLOADS@/$2}
formula=${formula//@VERSION@/$version}
for target in linux-x86_64 linux-aarch64 macos-arm64; do
  sum=$(sed -n "s/^\([0-9a-f]\{64\}\)  tqcache-$version-$target\.tar\.xz\$/\1/p" build/SHA256SUMS)
  [ -n "$sum" ] || {
    echo "tools/release/formula.sh: build/SHA256SUMS has no archive of $version for $target:" \
      "tools/release.sh $target makes it" >&2
    exit 1
  }
  formula=${formula//@SHA256_$target@/$sum}
done
printf '%s\n' "$formula" | sed 1d
