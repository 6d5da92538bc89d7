#!/usr/bin/env bash
# PostgreSQL 17 on loopback beside the distribution's: dev/postgres17.sh VERB
#
#   install              its binaries, by Maven: no distribution has several majors
#   start | stop         a cluster is made at the first start; stop is a fast, clean shutdown
#   restart | kill       kill is SIGKILL to all its processes; start recovers
#   pause | resume       SIGSTOP / SIGCONT to all its processes
#   status | url | env | check | wipe
#   psql ARGS            psql as the superuser
#   createdb NAME        makes a database unless it is there, and prints its URL
#
# What depends on the server's version is tested against both. As in postgres.sh, but without TLS, the superuser
# is `tracium`, trusted on loopback.
#
# TRACIUM_PG17_PORT (55441), TRACIUM_STACK_DIR (where its data lives), TRACIUM_CACHE_DIR (the binaries),
# TRACIUM_PG_USER and TRACIUM_PG_CONF as in postgres.sh
set -euo pipefail
# shellcheck source=dev/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=postgres17
port_var=TRACIUM_PG17_PORT
port=${TRACIUM_PG17_PORT:-55441}
url_var=TRACIUM_TEST_POSTGRES17_URL
speaks_tls=
# shellcheck source=dev/postgres-lib.sh
source "$dev/postgres-lib.sh"

version=17.5.0
case $(uname -m) in
  aarch64) platform=linux-arm64v8 ;;
  *) platform=linux-amd64 ;;
esac
fetched=$cache_dir/postgres-$version-$platform
copied=$stack_dir/postgres-$version-$platform

# The one that the server's user can read: as root, the cache is in a folder that is closed to him.
server_folders() {
  local d
  for d in "$fetched" "$copied"; do
    if as_owner test -x "$d/bin/postgres"; then echo "$d/bin"; fi
  done
}

fetch() {
  local jar=embedded-postgres-binaries-$platform-$version.jar new=$fetched.new
  local -a missing=()
  have mvn || missing+=(maven)
  have python3 || missing+=(python3)
  have xz || missing+=(xz-utils)
  [ "${#missing[@]}" = 0 ] || apt_install "${missing[@]}"
  mkdir -p "$cache_dir"
  (
    flock 8 # several copies may start at once
    [ ! -e "$fetched" ] || exit 0
    say "$name: fetching $jar into $fetched"
    rm -rf "$new"
    mkdir -p "$new/jar"
    mvn -B -q --strict-checksums org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
      -Dartifact="io.zonky.test.postgres:${jar%-"$version.jar"}:$version" -DoutputDirectory="$new/jar" \
      </dev/null >"$new/jar/mvn.out" 2>&1 || { cat "$new/jar/mvn.out" >&2; die_missing "mvn could not fetch $jar"; }
    python3 -m zipfile -e "$new/jar/$jar" "$new/jar"
    tar -xJf "$new"/jar/*.txz -C "$new" --no-same-owner
    rm -rf "$new/jar"
    mv "$new" "$fetched"
  ) 8>"$cache_dir/.postgres-$version.lock"
}

verb_install() {
  [ -e "$fetched" ] || fetch
  if server_folders | grep -q .; then return 0; fi
  make_stack_dir
  (
    flock 8
    [ ! -e "$copied" ] || exit 0
    rm -rf "$copied.new"
    cp -R "$fetched" "$copied.new"
    chmod -R a+rX "$copied.new"
    mv "$copied.new" "$copied"
  ) 8>"$stack_dir/.postgres-$version.lock"
  server_folders | grep -q . || die_usage "the user '${TRACIUM_PG_USER:-postgres}' cannot run what is in $copied"
}

component "$@"
