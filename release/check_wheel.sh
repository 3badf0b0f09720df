#!/usr/bin/env bash
# check_wheel.sh PYTHON TORCH TORCHVISION, for example 3.11 2.11.0 0.26.0: installs the wheels in dist/
# into a fresh environment with these versions, runs the smoke suite, and removes the environment.
# TESTS_PYTHON is a Python with the packages of the tests, detops and another PyTorch. If it is set, it
# builds the C++ programs and runs them with this PyTorch, too, and the C++ files are compiled with the
# headers of this PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."
python=python$1
command -v "$python" >/dev/null || { echo "check_wheel.sh: no $python on PATH" >&2; exit 1; }
environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT
"$python" -m venv "$environment"
wheel=$(ls "$PWD"/dist/detops-*-manylinux_2_28_x86_64.whl)
install() { "$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile "$@"; }
install uv  # installs PyTorch in a fifth of the time
# PIP_ARGUMENTS="--index-url ..." selects another build of PyTorch.
# shellcheck disable=SC2086
"$environment/bin/uv" pip install --quiet --no-cache --python "$environment/bin/python" \
  ${PIP_ARGUMENTS:-} "torch==$2" "torchvision==$3"
install --no-cache-dir --find-links dist "${wheel}[demo]"
cp -r tests "$environment/tests"  # a folder outside the source tree
cd "$environment"
bin/python tests/support/smoke.py
bin/detops demo --output demo.png >/dev/null
if [ -n "${TESTS_PYTHON:-}" ]; then
  DETOPS_OTHER_TORCH=$(bin/python -c "import torch; print(torch.__path__[0])")/lib
  export DETOPS_OTHER_TORCH
  cd "$OLDPWD"
  "$TESTS_PYTHON" -m pytest -rs tests/packaging/test_cpp.py -k another | tee "$environment/tests.txt"
  grep -qw "1 passed" "$environment/tests.txt"  # pytest exits with 0 for a skipped test, too
  oldest=$(sed -n 's/^OLDEST_TORCH = "\(\w*\)".*/\1/p' setup.py)
  for file in csrc/*.cpp; do
    [ "$file" = csrc/python.cpp ] || "${CXX:-c++}" -std=c++17 -fsyntax-only \
      -D "TORCH_TARGET_VERSION=$oldest" -I "${DETOPS_OTHER_TORCH%lib}include" "$file"
  done
fi
