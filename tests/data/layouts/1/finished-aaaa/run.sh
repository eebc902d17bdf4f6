#!/usr/bin/env bash
set -o pipefail
cd -- /tmp || exit
for i in 1 2; do echo step $i; done
