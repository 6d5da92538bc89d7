#!/usr/bin/env bash
# One Elasticsearch 9.5 node on loopback: dev/elasticsearch.sh VERB
#
#   install              its jars, by Maven from the versions pinned in elasticsearch/pom.xml
#   start | stop | restart | kill | pause | resume
#   status | url | env | check | wipe
#
# The server's own code, without the distribution's further modules: there is no painless, _delete_by_query,
# _reindex, scaled_float, language analyzer, security or TLS. It listens on the port and on the next (transport).
#
# TRACIUM_ES_PORT (59200), TRACIUM_ES_HEAP (384m), TRACIUM_STACK_DIR (where its data lives), TRACIUM_CACHE_DIR
# (jars), JAVA_HOME (a JDK, 21 or newer, when none is in /usr/lib/jvm)
set -euo pipefail
# shellcheck source=dev/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=elasticsearch
port_var=TRACIUM_ES_PORT
port=${TRACIUM_ES_PORT:-59200}
heap=${TRACIUM_ES_HEAP:-384m}
url_var=TRACIUM_TEST_ELASTICSEARCH_URL
data=$stack_dir/elasticsearch-$port
engine=elasticsearch
version=9.5.3
oldest_java=21
newest_java=25
node_class=EsNode
# shellcheck source=dev/search-lib.sh
source "$dev/search-lib.sh"

component "$@"
