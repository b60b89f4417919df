module github.com/seed70370324/lockd/internal/tools/zkbench

go 1.26.0

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/seed70370324/lockd v0.0.0
)

require (
	github.com/planetscale/vtprotobuf v0.6.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/seed70370324/lockd => ../../..
