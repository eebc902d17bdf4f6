#!/usr/bin/env bash
set -o pipefail
cd -- /tmp || exit
export LR=3e-4
echo step 1; echo step 2; exit 3
