#!/usr/bin/env bash
set -o pipefail
cd -- /data/cfm || exit
[ $# -gt 0 ] || set -- --num_envs 2048
exec /usr/bin/python3 /data/cfm/train.py "$@"
