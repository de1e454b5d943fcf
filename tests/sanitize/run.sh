#!/usr/bin/env bash
# Builds the kernels with sanitizers in a separate folder and runs the tests there.
#   run.sh PYTHON address [pytest arguments]   ASan and UBSan: all tests
#   run.sh PYTHON thread [pytest arguments]    TSan: the tests of kernels, after a race that it must report
set -euo pipefail
python=$1 kind=$2
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$PWD/build/$kind cc=${CC:-gcc}

# -fno-wrapv: Python's own flag -fwrapv would define the overflow to detect.
case $kind in
  address) flags="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-wrapv" ;;
  # without __SSE2__, streaming stores are memcpy, which TSan instruments, unlike builtins
  thread) flags="-fsanitize=thread -U__SSE2__" ;;
  *) echo "the first two arguments must be PYTHON and address or thread" >&2; exit 2 ;;
esac

rm -rf "$folder"
mkdir -p "$folder"
tar -c --exclude=./.git --exclude='./.venv*' --exclude=./build --exclude=./dist \
  --exclude='*.so' --exclude=_kernels.c --exclude='.*_cache' --exclude=.hypothesis --exclude=__pycache__ . \
  | tar -x -C "$folder"
cd "$folder"
# Flags that follow setup.py's own: lines in reports, and a build in less than a minute.
printf '#!/bin/sh\nexec %s "$@" -O1 -g -fno-omit-frame-pointer %s\n' "$cc" "$flags" > cc
chmod +x cc
CC=$folder/cc "$python" setup.py -q build_ext --inplace > build.log 2>&1 || { cat build.log; exit 1; }

library() { "$cc" -print-file-name="$1"; }
export PYTHONPATH=$folder PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1
if [ "$kind" = address ]; then
  LD_PRELOAD=$(library libasan.so)
  export LD_PRELOAD
  # Python leaks at exit; faulthandler reports faults at guard pages
  export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:handle_segv=0:handle_sigbus=0
  export UBSAN_OPTIONS=print_stacktrace=1
  export PYTHONPATH=$PYTHONPATH:$folder/tests/sanitize
  # browsers cannot start with the preloaded library
  exec "$python" -m pytest -q -p no:cacheprovider -p unlimited --ignore tests/analysis/test_browser.py "$@"
fi
"$cc" -O1 -g -shared -fPIC tests/sanitize/gomp.c -o gomp.so -Wl,--no-as-needed -fopenmp -ldl
cat > race.c << 'END'
static volatile long sum;
int main(void)
{
#pragma omp parallel for num_threads(4) schedule(static)
    for (int i = 0; i < 20000; i++)
        sum += i;
}
END
./cc -fopenmp race.c -o race
# Functions that gomp.c does not annotate must not be used.
known='GOMP_(parallel(_loop(_nonmonotonic)?_dynamic)?|barrier|loop_end(_nowait)?'
known+='|(critical|atomic)_\w*|loop(_nonmonotonic)?_dynamic_(start|next))'
if nm -D --undefined-only ndtool/_kernels.*.so | grep -o ' GOMP_\w*' | grep -vwE "$known"; then
  echo "gomp.c does not annotate the functions above" >&2
  exit 1
fi
# Fixed addresses: TSan of gcc 12 fails with wide address randomization.
fixed=$(if command -v setarch > /dev/null; then echo "setarch -R"; fi)
# glibc frees the storage of threads that ended without locks that TSan sees.
echo 'race:_dl_deallocate_tls' > suppressions
export TSAN_OPTIONS=halt_on_error=1:exitcode=66:suppressions=$folder/suppressions
LD_PRELOAD="$(library libtsan.so) $folder/gomp.so"
export LD_PRELOAD
status=0
$fixed ./race 2> race.log || status=$?
if [ "$status" != 66 ]; then
  cat race.log >&2
  echo "TSan does not report a race" >&2
  exit 1
fi
exec $fixed "$python" -m pytest -q -p no:cacheprovider "$@"
