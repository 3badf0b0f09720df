#!/usr/bin/env bash
# check_source.sh PYTHON TORCH TORCHVISION, for example 3.11 2.15.0 0.29.2: installs detops from a
# clone and from the sdist, with and without build isolation, into a fresh environment with these
# versions. Calls two ops after each installation.
set -euo pipefail
cd "$(dirname "$0")/.."
python=python$1
command -v "$python" >/dev/null || { echo "check_source.sh: no $python on PATH" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
pip() { "$folder/environment/bin/pip" --quiet --disable-pip-version-check "$@"; }

"$python" -m venv "$folder/environment"
# shellcheck disable=SC2086
pip install --no-compile ${PIP_ARGUMENTS:-} "torch==$2" "torchvision==$3" \
  "setuptools>=77" wheel ninja "pybind11>=3" build
git clone --quiet . "$folder/clone"
git clone --quiet . "$folder/sdist_clone"  # keeps build files out of the other clone
(cd "$folder/sdist_clone" && "$folder/environment/bin/python" -m build --no-isolation --sdist \
  --outdir "$folder" >/dev/null 2>&1)
sdist=$(ls "$folder"/detops-*.tar.gz)
for source in "$folder/clone" "$sdist"; do
  for isolation in --no-build-isolation ""; do
    began=$SECONDS
    # shellcheck disable=SC2086
    pip install ${PIP_ARGUMENTS:-} $isolation "$source"
    (cd "$folder" && environment/bin/python -c "
import torch, detops, detops._C
assert torch.__version__.split('+')[0] == '$2', torch.__version__
boxes = torch.tensor([[0.0, 0, 9, 9], [1, 1, 9, 9], [20, 20, 29, 29]])
assert detops._C.nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist() == [1, 2]
assert torch.ops.detops.box_iou(boxes, boxes).shape == (3, 3)
print(end=detops.__file__.replace('$folder/', '') + ' ' + str(detops._C.cuda_version))
")
    echo ": $(basename "$source") ${isolation:-isolated} torch $2, $((SECONDS - began)) s"
    pip uninstall --yes detops
  done
done
