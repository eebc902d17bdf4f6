#!/bin/sh
# tmux_versions.sh SOURCE PYTHON: build each version from SOURCE, a clone of tmux's repository, and run the tests about
# the end of tmux, its sessions and its clients with it.
set -eu
source=${1:?a clone of https://github.com/tmux/tmux}
python=$(realpath -s "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=""
for version in 3.2a 3.3a 3.4 3.5a 3.6a 3.7c; do
    mkdir -p "$work/$version/bin"
    git -C "$source" archive "$version" | tar -x -C "$work/$version"
    (cd "$work/$version" && sh autogen.sh && ./configure -q && make) > "$work/$version.log" 2>&1 || {
        tail -n 5 "$work/$version.log"
        failed="$failed $version (build)"
        continue
    }
    mv "$work/$version/tmux" "$work/$version/bin/tmux"
    "$work/$version/bin/tmux" -V
    PATH="$work/$version/bin:$PATH" "$python" -m pytest -q -p no:cacheprovider -n 2 tests/live/test_survival.py \
        tests/live/test_terminal.py tests/live/test_launch.py tests/contract/test_backends.py \
        || failed="$failed $version"
done
[ -z "$failed" ] || { echo "Failed:$failed"; exit 1; }
