# A cell of a sweep: notes when another process uses the same GPU, takes a while, and makes two steps.
# $1: a directory; $2: seconds.
exec 9>"$1/gpu-$RUNWARD_GPU_INDICES"
flock -n 9 || echo "$RUNWARD_RUN_ID" >> "$1/doubles"
echo "step 1/2 loss 1.0"
sleep "$2" 9>&-
echo "step 2/2 loss 0.5"
