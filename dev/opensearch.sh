#!/usr/bin/env bash
# One OpenSearch 2.19 node on loopback: dev/opensearch.sh VERB
#
#   install              its jars, by Maven from the versions pinned in elasticsearch/pom.xml
#   start | stop | restart | kill | pause | resume
#   status | url | env | check | wipe
#
# With painless, _delete_by_query and _reindex; without security and TLS. Started only when named.
#
# TRACIUM_OPENSEARCH_PORT (59210, and the next for transport), TRACIUM_ES_HEAP (384m), TRACIUM_STACK_DIR (where its
# data lives), TRACIUM_CACHE_DIR (jars), JAVA_HOME (a JDK, 17 to 21, when none is in /usr/lib/jvm)
set -euo pipefail
# shellcheck source=dev/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

name=opensearch
port_var=TRACIUM_OPENSEARCH_PORT
port=${TRACIUM_OPENSEARCH_PORT:-59210}
heap=${TRACIUM_ES_HEAP:-384m}
url_var=TRACIUM_TEST_OPENSEARCH_URL
data=$stack_dir/opensearch-$port
engine=opensearch
version=2.19.6
oldest_java=17
newest_java=21
node_class=OsNode
# shellcheck source=dev/search-lib.sh
source "$dev/search-lib.sh"

component "$@"
