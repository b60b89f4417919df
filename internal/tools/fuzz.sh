#!/bin/sh
# Runs every fuzz target that there is for the given time each, and ends at the
# first failure with what brings it back.
#
#   fuzz.sh 60s [PATTERN]   every target (of a package or name that matches)
#   fuzz.sh list            the targets
#   fuzz.sh seeds           write the seeds in testdata/fuzz anew
set -eu
cd "$(dirname "$0")/../.."
GO=${GO:-go}

# targets prints "directory name" for each target.
targets() {
	grep -rn --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*(' . |
		sed 's|^\./\(.*\)/[^/]*_test\.go:[0-9]*:func \(Fuzz[A-Za-z0-9_]*\)(.*|\1 \2|' | sort
}

# last VALUE: the last value that the fuzzer told of something.
last() { sed -n "s|.*$1\([0-9][0-9]*\).*|\1|p" "$log" | tail -1; }

case ${1:-60s} in
list)
	targets
	exit
	;;
seeds)
	for dir in $(targets | cut -d' ' -f1 | uniq); do
		rm -f "$dir"/testdata/fuzz/*/seed-*
		FUZZ_WRITE_SEEDS=1 "$GO" test -count=1 -run '^Fuzz' "./$dir"
	done
	exit
	;;
esac

for_=${1:-60s}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
count=0
idle=0
# Not a pipe: its end would be another process's.
list=$(targets | grep -E "${2:-.}" || true)
while read -r dir name; do
	[ -n "$dir" ] || continue
	count=$((count + 1))
	began=$(date +%s)
	result=ok
	"$GO" test -run '^$' -fuzz "^$name\$" -fuzztime "$for_" -fuzzminimizetime 1s "./$dir" >"$log" 2>&1 || result=FAILED
	executions=$(last 'execs: ')
	if [ "$result" = ok ] && [ "${executions:-0}" = 0 ]; then
		# The time was over before all seeds were through.
		result='NOT RUN, the time is too short'
		idle=$((idle + 1))
	fi
	printf '%-28s %-24s %10s executions %6s new interesting %5ss  %s\n' \
		"$dir" "$name" "${executions:-0}" "$(last 'new interesting: ')" "$(($(date +%s) - began))" "$result"
	if [ "$result" = FAILED ]; then
		cat "$log"
		input=$(sed -n 's|.*Failing input written to testdata/fuzz/\([A-Za-z0-9_/]*\).*|\1|p' "$log" | tail -1)
		echo "fuzz: $name of $dir has failed. The input is kept in $dir/testdata/fuzz/${input:-$name}; it brings the failure back with"
		echo "  $GO test -run '^${input:-$name}\$' ./$dir"
		exit 1
	fi
done <<LIST
$list
LIST
if [ "$idle" -gt 0 ]; then
	echo "fuzz: $count targets, $for_ each, nothing found; but $idle were not run: give more time"
	exit 1
fi
echo "fuzz: $count targets, $for_ each, nothing found"
