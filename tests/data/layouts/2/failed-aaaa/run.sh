#!/usr/bin/env bash
set -o pipefail
cd -- / || exit
echo 'step 2 loss 0.5'; echo "KeyError: 'lr'" >&2; exit 1
