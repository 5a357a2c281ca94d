#!/usr/bin/env bash
# chart.sh checks the Helm chart: its values by their schema, and what it makes with all that is optional and with none
# of it. Values that are wrong must be refused.
set -euo pipefail

bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
GOBIN=$bin go install "helm.sh/helm/v3/cmd/helm@$HELM"
chart=deploy/helm/joblock
secrets=(--set redis.secretName=r --set accounts.secretName=a)
needed=("${secrets[@]}" --set tls.insecure=true)
full=("${secrets[@]}" --set tls.secretName=t --set serviceMonitor.enabled=true --set serviceMonitor.token.secretName=m
	--set serviceMonitor.tls.caSecretName=c --set serviceMonitor.labels.release=prometheus --set 'redis.ports={26379,6379}'
	--set 'networkPolicy.egress[0].ports[0].port=4317' --set 'imagePullSecrets[0].name=registry')
make() { "$bin/helm" template shop "$chart" --namespace web "$@"; }
fail() { echo "chart: $1" >&2; exit 1; }

"$bin/helm" lint --strict "$chart" "${needed[@]}"
"$bin/helm" lint --strict "$chart" "${full[@]}"
all=$(make "${full[@]}")
least=$(make "${needed[@]}" --set networkPolicy.enabled=false --set podDisruptionBudget.enabled=false)
for kind in Deployment Service NetworkPolicy PodDisruptionBudget ServiceMonitor; do
	grep -q "^kind: $kind\$" <<<"$all" || fail "no $kind"
done
[ "$(grep -c '^kind: ' <<<"$least")" = 2 ] || fail "more than a Deployment and a Service"
grep -q -e '--cert=' <<<"$all" && grep -q -e '--insecure' <<<"$least" || fail "TLS is not as it is set"

# What docs/deploy.md says to install.
page=$(sed -n '/^\$ helm install /,/[^\]$/ { s/^\$ helm install //; s/\\$//; p }' docs/deploy.md)
[ -n "$page" ] || fail "docs/deploy.md does not install the chart"
read -rd '' -a page <<<"$page" || true
page=$("$bin/helm" template "${page[@]}")
grep -q -e '--cert=' <<<"$page" || fail "docs/deploy.md does not install a server with TLS"

# Lines that one kind must have, without their indentation.
kind() { awk -v "kind=$1" 'BEGIN { RS = "---\n" } $0 ~ "\nkind: " kind "\n"' <<<"$all" | sed 's/^ *//'; }
has() { grep -qxF -e "$2" <<<"$(kind "$1")" || fail "no line \"$2\" in the $1"; }
has NetworkPolicy '- {port: 26379, protocol: TCP}'
has NetworkPolicy '- {port: 6379, protocol: TCP}'
has NetworkPolicy '- port: 4317'
has PodDisruptionBudget 'minAvailable: 1'
for line in '- name: registry' 'topologyKey: kubernetes.io/hostname'; do has Deployment "$line"; done
for line in 'release: prometheus' 'scheme: https' 'name: m' 'key: token' 'serverName: shop.web.svc' 'name: c' 'key: ca.crt'; do
	has ServiceMonitor "$line"
done
all=$(make "${needed[@]}" --set serviceMonitor.enabled=true --set serviceMonitor.token.secretName=m)
has ServiceMonitor 'scheme: http'
if grep -q tlsConfig <<<"$all"; then fail "a ServiceMonitor with TLS for a server without"; fi

# A budget for one replica would keep its node from being drained.
one=$(make "${needed[@]}" --set replicas=1)
if grep -q PodDisruptionBudget <<<"$one"; then fail "one replica has a budget"; fi

for bad in replicas=0 service.type=Other redis.ports=6379 'redis.ports={}' 'redis.ports={x}' 'redis.ports={0}' 'redis.ports={1,1}' \
	redis.port=6379 serviceMonitor.interval=often no.such=1 podDisruptionBudget.minAvailable=0 \
	podDisruptionBudget.minAvailable=2 serviceMonitor.enabled=true serviceMonitor.token.key=x 'imagePullSecrets={registry}'; do
	if make "${needed[@]}" --set "$bad" >/dev/null 2>&1; then fail "the value $bad is taken"; fi
done
if make >/dev/null 2>&1; then fail "it needs no Secrets"; fi
if make "${secrets[@]}" >/dev/null 2>&1; then fail "it serves HTTP although not asked to"; fi
echo "chart: linted; all and least of it are as they should be; bad values are refused"
