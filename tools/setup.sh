# SPDX-License-Identifier: Apache-2.0
# Sourced by tools/check and tools/demo: installs what is missing, configures and builds.
# What is there already is left alone, so a second call takes no time. Each step says its name; one
# that fails says where its log is and what to do.
#   gemini_setup              packages, .venv, configure
#   gemini_build [TARGET...]  builds in gemini_build_dir, with as many jobs as the memory allows
#   gemini_configure PRESET FOLDER [CMAKE-ARGUMENT...]  another build than that of gemini_setup, from here on
# Sets:   gemini_root, gemini_python; gemini_build_dir, which is build/ until gemini_configure names another.
#         Needs bash with `set -euo pipefail`.
# Reads:  XDG_CACHE_HOME, GEMINI_JOBS (compile jobs), PYTHON (the interpreter that makes .venv).

# Everything that the build and the tests take from Debian or Ubuntu, in this one list.
gemini_packages=(
  build-essential ccache clang libclang-rt-dev lld ninja-build pkg-config git
  libabsl-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libtomlplusplus-dev
  flatbuffers-compiler libflatbuffers-dev libboost-dev liburing-dev libisal-dev libnuma-dev
  libgtest-dev libgmock-dev libbenchmark-dev libopenmpi-dev openmpi-bin
  python3 python3-venv fio strace util-linux
)

gemini_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
gemini_build_dir=$gemini_root/build
gemini_log_dir=$gemini_build_dir/logs
gemini_cache_dir=${XDG_CACHE_HOME:-$HOME/.cache}/gemini
gemini_python=$gemini_root/.venv/bin/python3

gemini_say() { printf '== %s\n' "$*"; }

# gemini_fail WHAT LOG ADVICE
gemini_fail() {
  {
    printf '\n%s: failed: %s\n' "$(basename "$0")" "$1"
    [[ -z $2 ]] || printf '  log:        %s\n' "$2"
    printf '  what to do: %s\n' "$3"
  } >&2
  exit 1
}

# gemini_step NAME LOG-NAME ADVICE COMMAND...: shows the command's output and keeps it as a log.
gemini_step() {
  local name=$1 log=$gemini_log_dir/$2.log advice=$3
  shift 3
  mkdir -p "$gemini_log_dir"
  gemini_say "$name"
  "$@" 2>&1 | tee "$log" || gemini_fail "$name" "$log" "$advice"
}

gemini_missing_packages() {
  local package
  for package in "${gemini_packages[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      printf '%s\n' "$package"
  done
}

gemini_install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    gemini_say "Packages: no dpkg here, so not checked; needed are: ${gemini_packages[*]}"
    return
  fi
  local missing as_root=()
  mapfile -t missing < <(gemini_missing_packages)
  if ((${#missing[@]} == 0)); then
    gemini_say "Packages: all ${#gemini_packages[@]} are installed"
    return
  fi
  local by_hand="apt-get install ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      gemini_fail "installing packages" "" "there is no sudo; as root, run: $by_hand"
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -q)
  gemini_step "Packages: reading the lists, because ${missing[*]} are missing" apt-update \
    "check the network and the sources in /etc/apt, then run this again" "${apt[@]}" update
  gemini_step "Packages: installing ${missing[*]}" apt-install \
    "read what apt says above; by hand it is: $by_hand" \
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
}

# Prints a Python that can make the environment: $PYTHON, python3, or /usr/bin/python3.
gemini_find_python() {
  local python
  for python in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3; do
    if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' \
      2>/dev/null; then
      command -v "$python"
      return
    fi
  done
  return 1
}

# Fills the folder $2 with an environment of $1. The stamp comes last: without it nothing counts.
gemini_fill_venv() {
  rm -rf "$2"
  "$1" -m venv "$2" &&
    "$2/bin/python3" -m pip install --disable-pip-version-check --progress-bar off \
      -r "$gemini_root/tools/requirements.txt" &&
    "$2/bin/python3" -m pip check --disable-pip-version-check &&
    touch "$2/.complete"
}

# Makes .venv, a link into a cache that all clones of this user share: one folder for each set of
# pinned versions and each Python.
gemini_install_venv() {
  local python id venv
  python=$(gemini_find_python) ||
    gemini_fail "finding Python" "" \
      "install Python 3.10 or newer with its venv module, or say which one: PYTHON=/path/python3 $0"
  id=$({ "$python" -c 'import platform, sys; print(sys.version, platform.machine())'
         sed '/^#/d' "$gemini_root/tools/requirements.txt"; } | sha256sum | cut -c 1-12)
  venv=$gemini_cache_dir/venv-$id
  mkdir -p "$gemini_cache_dir"
  if [[ ! -e $venv/.complete ]]; then
    (
      # Two clones must not install at once; the second one then finds the work done.
      flock --nonblock 9 || { gemini_say "Python: waiting for another installation"; flock 9; }
      if [[ ! -e $venv/.complete ]]; then
        gemini_step "Python: installing torch and others, about 5 GB, into $venv" venv \
          "check the network and the room on the disk (df -h '$gemini_cache_dir'), then run this again" \
          gemini_fill_venv "$python" "$venv"
      fi
    ) 9>"$venv.lock" || exit 1
  else
    gemini_say "Python: the environment is complete ($venv)"
  fi
  if [[ $(readlink "$gemini_root/.venv" || true) != "$venv" ]]; then
    if [[ -e $gemini_root/.venv && ! -L $gemini_root/.venv ]]; then
      gemini_fail "linking .venv" "" \
        "'$gemini_root/.venv' is a folder that this script did not make: move it away, then run this again"
    fi
    ln -sfn "$venv" "$gemini_root/.venv"
  fi
}

gemini_configure() {
  local preset=$1 folder=$2 arguments torch_dirs id
  shift 2
  gemini_build_dir=$gemini_root/$folder
  # Through .venv, not the cache behind it: so the path is the same for every build of this clone.
  torch_dirs=("$gemini_root"/.venv/lib/python3*/site-packages/torch)
  arguments=(--preset "$preset" -B "$folder" "-DGEMINI_TORCH_DIR=${torch_dirs[0]}"
             "-DCMAKE_MAKE_PROGRAM=$gemini_root/.venv/bin/ninja" "$@")
  if command -v ccache >/dev/null; then
    # The sloppiness is what ccache needs for sources with a precompiled header; the base folder lets
    # clones share what they compiled.
    arguments+=("-DCMAKE_CXX_COMPILER_LAUNCHER=env;CCACHE_SLOPPINESS=pch_defines,time_macros;CCACHE_BASEDIR=$gemini_root;CCACHE_NOHASHDIR=1;ccache")
  fi
  # Ninja itself configures anew when a CMakeLists.txt changed. The rest is in this line.
  id=$({ printf '%s\n' "${arguments[@]}"; readlink "$gemini_root/.venv"
         cat "$gemini_root/CMakePresets.json"; } | sha256sum)
  if [[ -e $gemini_build_dir/build.ninja && -e $gemini_build_dir/CMakeCache.txt && -e $gemini_build_dir/.configured &&
        $(<"$gemini_build_dir/.configured") == "$id" ]]; then
    gemini_say "Configure: nothing changed in $folder/"
    return
  fi
  cd "$gemini_root"
  gemini_step "Configure: $preset preset, in $folder/" "configure-$folder" \
    "read the first error above; if $folder/ is from elsewhere, remove it and run this again" \
    "$gemini_root/.venv/bin/cmake" "${arguments[@]}"
  cd - >/dev/null
  printf '%s' "$id" >"$gemini_build_dir/.configured"
}

# A Torch source takes up to 2 GiB while it is compiled: more jobs than that and the kernel kills one.
gemini_jobs() {
  local available_kib jobs
  available_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  jobs=$((available_kib / (2 * 1024 * 1024)))
  ((jobs <= $(nproc))) || jobs=$(nproc)
  ((jobs >= 1)) || jobs=1
  echo "${GEMINI_JOBS:-$jobs}"
}

gemini_build() {
  local jobs targets=()
  jobs=$(gemini_jobs)
  (($# == 0)) || targets=(--target "$@")
  gemini_step "Build: ${*:-everything} in $(basename "$gemini_build_dir")/, $jobs at a time" \
    "build-$(basename "$gemini_build_dir")" \
    "read the first error above; if a compiler was killed, memory ran out: GEMINI_JOBS=1 $0" \
    "$gemini_root/.venv/bin/cmake" --build "$gemini_build_dir" -j "$jobs" "${targets[@]}"
}

gemini_setup() {
  gemini_install_packages
  gemini_install_venv
  gemini_configure release build
}
