package sim

import (
	"fmt"
	"strings"
)

// Fault is a kind of thing that went wrong in a run.
type Fault int

// The faults, as they are counted when they happen (not when they are asked
// for: a power cut that finds nothing unsynced tears nothing). The last three are
// no faults, but what a thrifty leader does on purpose.
const (
	FaultKilled Fault = iota
	FaultPowerCut
	FaultPowerCutOfAll
	FaultLostTail
	FaultTornWrite
	FaultMarkAlone
	FaultRecordAlone
	FaultCutShort
	FaultWriteError
	FaultFsyncError
	FaultOtherError
	FaultPageCacheLies
	FaultSlowFlush
	FaultSlowDisk
	FaultHungDisk
	FaultFullDisk
	FaultRottenRecord
	FaultRottenMark
	FaultRottenSnapshot
	FaultRottenIdentity
	FaultEmptied
	FaultSecondProcess
	FaultRefusedDamaged
	FaultRefusedDoubtful
	FaultRefusedEmptied
	FaultSnapshotInstalled
	FaultFrozen
	FaultPartition
	FaultOneWay
	FaultLostMessage
	FaultDoubledMessage
	FaultLateMessage
	FaultOldBoot
	FaultReset
	FaultHandOver
	FaultStretched
	FaultRelay
	FaultCutAtAccept
	FaultCrashAtPromise
	FaultCrashAtVote
	FaultClientFrozen
	FaultClientKilled
	FaultHolderSeized
	FaultHalfCut
	FaultSetAside
	FaultDiedAmid
	FaultTailCut
	FaultRefusedByLimit
	FaultReadBack
	FaultMultiFailed
	FaultSnapshotPieces
	FaultHastyClose
	FaultWrongBreak
	FaultMasterKilled
	FaultReadError
	FaultRemoveError
	FaultResizeError
	FaultVanished
	FaultSeveralBits
	FaultNarrow
	FaultParts
	FaultSuperseded
	FaultOverflow
	FaultNoRoom
	FaultMalformed
	FaultStray
	FaultWrongStart
	FaultFounderKilled
	FaultLateSend
	FaultMisuse
	FaultFlood
	FaultGaveUpAtOnce
	FaultHeldBack
	FaultHedged
	FaultThriftMissed
	Faults
)

var faultNames = [Faults]string{"killed processes", "power cuts", "power cuts of all", "lost tails", "torn writes",
	"marks without their record", "records without their mark", "log operations cut short", "write errors", "fsync errors", "other disk errors",
	"restarts on a page cache that lies", "slow flushes", "slow disks", "hung disks", "full disks",
	"rotten records", "rotten marks", "rotten snapshots", "rotten identities", "emptied disks", "second processes",
	"refused as damaged", "refused as doubtful", "refused as emptied", "snapshots installed", "frozen replicas", "partitions", "one-way partitions",
	"lost messages", "doubled messages", "late messages", "messages of an earlier boot", "broken connections", "hand-overs", "stretched ways", "relays of the lead",
	"leaders cut off amid accepts", "crashes after a promise", "crashes after a vote", "frozen clients", "killed clients", "seized holders", "connections lost by one side", "replicas mended after the others", "power cuts amid a flush", "torn tails cut", "requests refused by a limit", "log entries read back from the disk",
	"multis that failed", "snapshots received in several pieces", "sessions closed while work stops", "breaks of another fence", "killed masters",
	"read errors", "remove errors", "resize errors", "vanished files", "files with several bad bits",
	"narrow links", "messages in parts", "parts' messages superseded", "link queues that overflow", "messages without room on a link",
	"malformed messages", "strangers in a replica's name",
	"starts with wrong options", "founders killed",
	"messages of connections given up", "misuses", "floods of calls", "calls given up in the moment of an answer",
	"slots held back", "hedged slots", "misses of thrift"}

func (f Fault) String() string { return faultNames[f] }

// FaultCounts says how often each fault happened.
type FaultCounts [Faults]uint64

// Add adds another run's.
func (c *FaultCounts) Add(o *FaultCounts) {
	for i := range c {
		c[i] += o[i]
	}
}

func (c *FaultCounts) String() string {
	var parts []string
	for i, n := range c {
		parts = append(parts, fmt.Sprintf("%v %d", Fault(i), n))
	}
	return strings.Join(parts, ", ")
}

// happened counts a fault.
func (w *World) happened(f Fault) { w.faults[f]++ }
