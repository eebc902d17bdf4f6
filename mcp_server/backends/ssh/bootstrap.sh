runward_find() {
  for python in %(pythons)s; do
    path=$(command -v "$python" 2>/dev/null) || continue
    case "$found" in *"$path is "*) continue ;; esac
    if "$path" -c 'import sys; sys.exit(sys.version_info < %(oldest)s)' </dev/null >/dev/null 2>&1; then
      exec "$path" -I -S -X utf8 -c %(stage)s %(mark)s %(digest)s %(state)s %(prepare)s
    fi
    version=$("$path" -V </dev/null 2>&1 | head -n 1 | tr -cd 'A-Za-z0-9. ')
    found="$found$path is $version, "
  done
}
runward_start() {
  found=
  runward_find
  if [ -n %(prepare)s ]; then shell=bash; command -v bash >/dev/null 2>&1 || shell=/bin/sh
  else shell=${SHELL:-/bin/sh}; fi
  case "$shell" in */csh|*/tcsh) login=-c ;; *) login=-lc ;; esac
  PATH=$("$shell" "$login" %(line)s </dev/null 2>/dev/null | sed -n 's/^PATH=//p' | tail -n 1):$PATH
  export PATH
  runward_find
  printf '\n%%s{"failed": "python", "found": "%%s"}\n' %(mark)s "$(printf %%s "$found" | tr -d '"\\')"
  exit 1
}
runward_start
