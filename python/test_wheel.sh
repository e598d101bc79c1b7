#!/usr/bin/env bash
# Installs a wheel of tqcache in an empty venv and runs the tests of python/tests there, outside of
# the source tree.
#
# usage: python/test_wheel.sh [PYTHON [WHEEL]]
#   PYTHON  the interpreter (default: python3)
#   WHEEL   the file (default: the one in python/dist that suits the interpreter)
# PYTEST_OPTIONS in the environment are given to pytest.
set -euo pipefail
cd "$(dirname "$0")"

python=${1:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pytest numpy
if [ $# -ge 2 ]; then
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check "$2"
else
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links dist tqcache
fi
mkdir "$work/tests"
cp tests/*.py "$work/tests"  # tests/plugins needs the engines: test_plugins.sh
cd "$work/tests"
# shellcheck disable=SC2086
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider ${PYTEST_OPTIONS:-} .
