#!/bin/sh
# Build a wheel of Horovod against the torch that a Python has, with gloo only: no MPI, no TensorFlow, no MXNet.
#
#   deploy/horovod/build.sh PYTHON FOLDER
#
# Prints the path of the wheel. It is kept in FOLDER and named after torch's version: another call finds it there.
# Takes minutes, and a C++ compiler and make; cmake comes from PyPI, and nothing is installed where PYTHON has its packages.
set -eu

version=0.28.1
sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
python=$(command -v "$1")
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")  # absolute, since the build is elsewhere
mkdir -p "$2"
folder=$(cd "$2" && pwd)

torch=$("$python" -c 'import importlib.metadata; print(importlib.metadata.version("torch").replace("+", "."))')
found=$(find "$folder" -name "horovod-$version+torch$torch-*.whl")
if test -n "$found"; then
  echo "$found"
  exit
fi
for tool in c++ make sha256sum; do
  command -v "$tool" >/dev/null || {
    echo "Horovod is built from source, and $tool is not installed: apt-get install g++ make, or the like" >&2
    exit 1
  }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  "$python" -m pip install -q --disable-pip-version-check --target "$work/tools" cmake==3.31.6 setuptools==80.9.0 wheel==0.45.1
  export PYTHONPATH="$work/tools" PATH="$work/tools/bin:$PATH"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --no-build-isolation --no-binary horovod \
    --dest "$work" "horovod==$version"
  cd "$work"
  echo "$sha256  horovod-$version.tar.gz" | sha256sum --check --quiet
  tar -xzf "horovod-$version.tar.gz"
  cd "horovod-$version"
  # torch's headers are C++17 by now.
  sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 17)/' CMakeLists.txt horovod/torch/CMakeLists.txt
  # make hands MAKEFLAGS of its own down to what it calls.
  HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_LOCAL_VERSION="torch$torch" MAKEFLAGS="-j$(nproc)" \
    "$python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation --use-pep517 --wheel-dir "$work/wheel" .
} >&2
mv "$work"/wheel/horovod-*.whl "$folder/"
find "$folder" -name "horovod-$version+torch$torch-*.whl"
