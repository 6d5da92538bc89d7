# shellcheck shell=bash disable=SC2034
# A run in stages, and the table of how long each took and how it went; sourced after lib.sh, never run.

stages_started=$(now_ms)
rows=()   # "stage|milliseconds|result"; who runs a stage in another way than by `stage` adds its row
failed=() # the names of those that failed

seconds() { printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100)); }

# stage NAME COMMAND...: set -e is off within the command (it is a condition), so its steps chain with &&.
stage() {
  local what=$1 t0 result=ok
  shift
  say "==== $what"
  t0=$(now_ms)
  "$@" || result=FAILED
  rows+=("$what|$(($(now_ms) - t0))|$result")
  if [ "$result" != ok ]; then failed+=("$what"); return 1; fi
}

# stage_table RESULT: what the whole came to
stage_table() {
  local row what ms result width=5
  for row in "${rows[@]}"; do
    what=${row%%|*}
    if [ "${#what}" -gt "$width" ]; then width=${#what}; fi
  done
  echo
  printf "%-${width}s %8s  %s\n" stage seconds result
  for row in "${rows[@]}"; do
    IFS='|' read -r what ms result <<<"$row"
    printf "%-${width}s %8s  %s\n" "$what" "$(seconds "$ms")" "$result"
  done
  printf "%-${width}s %8s  %s\n" total "$(seconds $(($(now_ms) - stages_started)))" "$1"
}
