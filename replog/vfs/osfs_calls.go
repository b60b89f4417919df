package vfs

import "os"

// The calls of the operating system by which something comes on disk: all that
// OSFS changes goes through these, so that a test sees which are made, in which
// order, with which flags. That they are the real ones is tested as well. The
// calls of the direct writes, osfs_direct_linux.go, and syncData are beside them.
var (
	callOpen     = os.OpenFile
	callRename   = os.Rename
	callRemove   = os.Remove
	callMkdirAll = os.MkdirAll
	callWriteAt  = (*os.File).WriteAt
	callTruncate = (*os.File).Truncate
	callSyncDir  = (*os.File).Sync
)
