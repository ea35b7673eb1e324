# Sourced: lt2_install_deps installs what is missing from the packages of Debian 12 or Ubuntu 24.04.

LT2_PACKAGES=(
  g++ cmake ninja-build git ccache
  openmpi-bin libopenmpi-dev libhdf5-dev hdf5-tools libopenblas-openmp-dev
  libabsl-dev libtomlplusplus-dev nlohmann-json3-dev libcli11-dev libxxhash-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
# Wanted for development, and left out where the distribution has none.
LT2_OPTIONAL_PACKAGES=(clang-format-14 python3-numpy python3-h5py)

lt2_installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Echoes those of its arguments that are not installed.
lt2_missing() {
  local package
  for package in "$@"; do
    lt2_installed "$package" || echo "$package"
  done
}

lt2_install_deps() {
  if ! command -v dpkg-query >/dev/null; then
    echo "not a Debian or Ubuntu: install the equivalents of ${LT2_PACKAGES[*]}" >&2
    return 0
  fi
  local missing optional package
  missing=$(lt2_missing "${LT2_PACKAGES[@]}")
  optional=$(lt2_missing "${LT2_OPTIONAL_PACKAGES[@]}")
  if [ -z "$missing$optional" ]; then return 0; fi

  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
      if [ -z "$missing" ]; then return 0; fi
      echo "missing packages: $missing" | tr '\n' ' ' >&2
      echo "- run this as root, or install sudo" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
  "${apt[@]}" update >/dev/null || echo "apt-get update failed; going on with the known lists" >&2
  if [ -n "$missing" ]; then
    echo "installing" $missing
    "${apt[@]}" install --no-install-recommends $missing </dev/null >/dev/null || return 1
  fi
  for package in $optional; do
    "${apt[@]}" install --no-install-recommends "$package" </dev/null >/dev/null 2>&1 ||
      echo "$package is not to be had here; going on without" >&2
  done
}

# Sets LT2_DISASSEMBLER to a folder with NVIDIA's disassembler, from PyPI where nvcc comes without;
# what needs it is skipped where there is none.
lt2_find_disassembler() {
  if [ -n "${LT2_DISASSEMBLER:-}" ] || ! command -v nvcc >/dev/null; then return 0; fi
  if [ -x "$(dirname "$(command -v nvcc)")/nvdisasm" ]; then return 0; fi
  local folder=$PWD/build/disassembler
  if [ ! -x "$folder/nvidia/cu13/bin/nvdisasm" ]; then
    python3 -m pip install -q --no-deps --target "$folder" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm \
      </dev/null >/dev/null 2>&1 || return 0
  fi
  export LT2_DISASSEMBLER=$folder/nvidia/cu13/bin
}

# What every script that runs lt2 under mpirun wants in its environment.
lt2_mpi_environment() {
  if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_rmaps_base_oversubscribe=1
  export OMPI_MCA_hwloc_base_binding_policy=none
}

# For test runs: several at a time, so that each computes on one core unless it says otherwise.
lt2_test_environment() {
  lt2_mpi_environment
  export OMP_NUM_THREADS=1
}

# Cached objects are good for every checkout of the same sources.
lt2_build_environment() {
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
}

# lt2_build PRESET [TARGET…]
lt2_build() {
  local preset=$1
  shift
  lt2_build_environment
  cmake --preset "$preset" >"/dev/null" || cmake --preset "$preset" || return 1
  cmake --build --preset "$preset" ${1:+--target "$@"}
}
