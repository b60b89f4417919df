#!/bin/sh
# What `make check` does. Run from the repository's root. Every tool is pinned
# by internal/tools/go.mod and built from there.
set -eu
GO=${GO:-go}
fail=0

echo "check: formatting"
# Not the files that git knows: a copy of the tree may have none.
bad=$(find . -name '*.go' -not -path './.*' -exec gofmt -l {} +)
if [ -n "$bad" ]; then echo "gofmt would change:"; echo "$bad"; fail=1; fi

echo "check: go vet"
"$GO" vet ./... || fail=1
"$GO" vet -tags plantedbugs ./... || fail=1
(cd internal/tools && "$GO" vet ./... && "$GO" test ./...) || fail=1
(cd internal/tools/zkbench && "$GO" vet ./... && "$GO" test ./... && "$GO" mod tidy -diff) || fail=1

echo "check: staticcheck"
(cd internal/tools && "$GO" build -o ../../.cache/staticcheck honnef.co/go/tools/cmd/staticcheck && "$GO" build -o ../../.cache/protogen ./protogen)
.cache/staticcheck ./... || fail=1

echo "check: generated code is current"
rm -rf .cache/proto && mkdir -p .cache/proto
protos="store/pb/store.proto internal/wire/pb/lockd.proto replog/pb/replog.proto"
for p in $protos; do mkdir -p ".cache/proto/$(dirname "$p")"; cp "$p" ".cache/proto/$p"; done
.cache/protogen .cache/proto $protos
for p in $protos; do
  for kind in .pb.go _vtproto.pb.go _decode.pb.go; do
    g="${p%.proto}$kind"
    if ! cmp -s "$g" ".cache/proto/$g"; then echo "$g is not current: run make proto"; fail=1; fi
  done
done

echo "check: go.mod is tidy"
"$GO" mod tidy -diff || { echo "run go mod tidy"; fail=1; }

echo "check: builds for darwin and arm64"
for t in linux/arm64 darwin/arm64 darwin/amd64; do
  CGO_ENABLED=0 GOOS=${t%/*} GOARCH=${t#*/} "$GO" build -o /dev/null ./... || fail=1
done
exit $fail
