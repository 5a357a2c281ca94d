#!/usr/bin/env bash
# chart.sh checks the Helm chart: its values by their schema, and what it makes with all that is optional and with none
# of it. Values that are wrong must be refused.
set -euo pipefail

helm="go run helm.sh/helm/v3/cmd/helm@$HELM"
chart=deploy/helm/joblock
needed=(--set redis.secretName=r --set accounts.secretName=a)
$helm lint --strict "$chart" "${needed[@]}"
all=$($helm template shop "$chart" "${needed[@]}" --set tls.secretName=t --set serviceMonitor.enabled=true)
least=$($helm template shop "$chart" "${needed[@]}" --set networkPolicy.enabled=false --set podDisruptionBudget.enabled=false)
for kind in Deployment Service NetworkPolicy PodDisruptionBudget ServiceMonitor; do
	grep -q "^kind: $kind\$" <<<"$all" || { echo "chart: no $kind" >&2; exit 1; }
done
[ "$(grep -c '^kind: ' <<<"$least")" = 2 ] || { echo "chart: more than a Deployment and a Service" >&2; exit 1; }
grep -q -e '--cert=' <<<"$all" && grep -q -e '--insecure' <<<"$least"
for bad in replicas=0 service.type=Other redis.port=x serviceMonitor.interval=often no.such=1; do
	if $helm template shop "$chart" "${needed[@]}" --set "$bad" >/dev/null 2>&1; then
		echo "chart: the value $bad is taken" >&2
		exit 1
	fi
done
if $helm template shop "$chart" >/dev/null 2>&1; then
	echo "chart: it needs no Secrets" >&2
	exit 1
fi
echo "chart: linted; all and least of it are as they should be; bad values are refused"
