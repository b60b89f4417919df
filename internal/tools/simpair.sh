#!/bin/sh
# Lets an older revision's simulator and this one play the same plans in turn,
# with all checks and without stories, and compares the CPU seconds.
#
#   simpair.sh REVISION [SEEDS [PAIRS]]     SEEDS: A-B, 1-200 if not given
#
# The plans are those that the older revision draws for the seeds. Both run with
# as many workers, and each with the settings of the garbage collector of its own
# ./sim/cmd/sim.
set -eu
cd "$(dirname "$0")/../.."
GO=${GO:-go}
old=${1:?name the older revision}
seeds=${2:-1-200}
pairs=${3:-3}
dir=$PWD/.cache/simpair
rm -rf "$dir"
mkdir -p "$dir/tree"
git archive "$old" | tar -x -C "$dir/tree"
mkdir -p "$dir/tree/sim/cmd/plans"
cp sim/cmd/plans/main.go "$dir/tree/sim/cmd/plans/"
(cd "$dir/tree" && "$GO" build -o "$dir/old" ./sim/cmd/plans)
"$GO" build -o "$dir/new" ./sim/cmd/plans

# memory TREE: flags for what ./sim/cmd/sim of that tree sets.
memory() {
	percent=$(sed -n 's/.*SetGCPercent(\(-*[0-9]*\)).*/\1/p' "$1/sim/cmd/sim/main.go")
	limit=$(sed -n 's/.*SetMemoryLimit(\([0-9]*\) << 20).*/\1/p' "$1/sim/cmd/sim/main.go")
	echo "-gc ${percent:-100} -memory ${limit:-0}"
}

"$dir/old" -draw "$seeds" "$dir/plans"
for _ in $(seq "$pairs"); do
	echo "old $("$dir/old" $(memory "$dir/tree") "$dir/plans" | tail -1)"
	echo "new $("$dir/new" $(memory .) "$dir/plans" | tail -1)"
done | tee "$dir/figures.txt"
awk '$1 == "old" { old += $2 } $1 == "new" { new += $2 }
	END { printf "CPU seconds: old %.2f, new %.2f; new / old %.3f\n", old, new, new / old }' "$dir/figures.txt"
