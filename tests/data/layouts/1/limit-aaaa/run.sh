#!/usr/bin/env bash
set -o pipefail
cd -- /tmp || exit
echo step 2; sleep 300
